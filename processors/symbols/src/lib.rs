//! Names: from a build id and an address to function, file and line.
//!
//! Agents put each binary once into the symbol store, under its build id. Stage 10 of a sample's path, the processor's
//! `symbolize.rs`, asks the [`Symbolizer`] for the names of a whole batch. What the memo does not know goes, one
//! request per binary, to a child process that parses the binary with blazesym. The invariants:
//!
//! * Binaries come from hosts and are not trusted. Only the child ([`worker_main`]) opens them; it has limits on
//!   memory, files and time, and its death costs one request. A binary that ends it twice is not tried again.
//! * "Not found" is an answer with a [`Reason`](strobe_event::Reason). An error is what an operator could fix: a
//!   store that cannot be read, a worker that cannot be started.
//! * Everything kept has a bound: the memo in bytes, parsed binaries in bytes and number, answers in bytes.

mod child;
pub mod client;
pub mod error;
mod fetch;
mod memo;
mod output;
mod precheck;
pub mod settings;
pub mod telemetry;
mod wire;
pub mod worker;

pub use client::{Location, Resolved, Symbolizer};
pub use error::SymbolsError;
pub use fetch::{Binaries, Found};
pub use settings::{Limits, Settings};
pub use telemetry::Telemetry;
pub use worker::worker_main;
