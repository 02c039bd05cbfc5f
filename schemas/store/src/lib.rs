//! The symbol store: where agents put binaries, and where processors find them.
//!
//! Producers and processors never see one another; this is where they meet over binaries, as they meet over batches on the
//! bus. An object of the store is whole or absent, and is not rewritten.

mod claims;
pub mod error;
pub mod index;
pub mod store;

pub use error::StoreError;
pub use index::{Failure, Holding, Object, State, Wanted};
pub use store::{BinaryKey, ContentHash, Put, Store};
