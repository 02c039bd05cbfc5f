//! Names: from a build id and an address to function, file and line.
//!
//! Agents put each binary once into the symbol store, under its build id. A [`Keeper`] makes its symbol file, once for the
//! whole fleet ([`converter`], [`file`]). Stage 10 of a sample's path, the processor's `symbolize.rs`, asks the
//! [`Symbolizer`] for the names of a whole batch: what the memo does not know is looked up in the symbol file, and until
//! that is made a child process asks blazesym. The invariants:
//!
//! * Binaries come from hosts and are not trusted. Only a child ([`worker_main`]) opens them; it has limits on
//!   memory, files and time, and its death costs one request. A binary that ends it twice is not tried again.
//! * A symbol file is proved before it is stored, and still not trusted when it is read.
//! * "Not found" is an answer with a [`Reason`](strobe_event::Reason). An error is what an operator could fix: a
//!   store that cannot be read, a worker that cannot be started.
//! * Everything kept has a bound: the memo in bytes, symbol files in bytes and number, answers in bytes.

pub mod api;
mod child;
pub mod client;
mod convert;
pub mod converter;
pub mod error;
mod fetch;
pub mod file;
pub mod keeper;
mod library;
mod memo;
mod output;
mod precheck;
pub mod settings;
pub mod telemetry;
mod wire;
pub mod worker;

pub use client::{Location, Resolved, Symbolizer};
pub use converter::{Conversion, ConvertLimits, ConvertSources, Converter};
pub use error::SymbolsError;
pub use fetch::{Binaries, Found};
pub use keeper::{Hint, Keeper, KeeperCounts, Outcome};
pub use settings::{Limits, Settings};
pub use telemetry::Telemetry;
pub use worker::worker_main;
