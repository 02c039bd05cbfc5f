//! Configuration as code: files in a repository that say what is desired of which service, and what may pass.
//!
//! A folder of TOML files becomes one [`Fleet`], or the list of all that is wrong with it, each with file and line. It travels
//! as one signed message ([`strobe_event::SignedConfig`]): what is applied is applied whole. Whoever obeys it proves it again by
//! [`open`], so that the file of signers of whoever obeys decides, not the tool that sent it.
//!
//! * A key that is not known is an error that names the nearest.
//! * Of several entries that fit a service the most exact counts: its own name before `check*`, `check*` before `*`. Two of the same
//!   name for the same profiler are an error, wherever they stand.
//! * What no entry says is as it was: `strobe sampling set`, or the defaults.

mod error;
mod fleet;
mod open;
mod written;

pub use error::ConfigError;
pub use fleet::{Fleet, Lift, Pattern, Rule};
pub use open::{InForce, Refused, open};

/// Files of one configuration: a thousand teams with one each.
pub const FILES_MAX: usize = 1_000;
/// Entries of all of them together.
pub const ENTRIES_MAX: usize = 10_000;
/// Longest time for which a limit can be lifted: what takes longer is another limit.
pub const LIFT_US_MAX: u64 = 7 * 24 * 3_600_000_000;
