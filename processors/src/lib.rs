//! Symbolize, tag, weigh: one raw batch of `strobe.stacks.raw` in, one samples batch of `strobe.samples` out.
//!
//! Stages 10 to 12 of the path. Each is a file and can be called by itself: [`symbolize`] names frames, [`tag`] tags
//! stacks, [`weigh`] forms weights. [`step`] runs them in one go, and [`run`] puts that between two topics; delivery
//! itself is `strobe_bus::drive`'s.
//!
//! Invariants:
//!
//! * The identity of a batch stays. A batch that outgrows the limit on messages is split into parts, and the part joins
//!   the identity. A batch that comes again with other names may be split otherwise; a part's number says which
//!   samples it covers ([`strobe_event::Part`]), so that the sink recognizes what it has all the same.
//! * No sample is lost for want of a name: a frame without one keeps its place and says why.
//! * What cannot be processed goes to the dead-letter topic with its reason, and the partition goes on. Trouble of our own
//!   (a store that does not answer) is not the message's fault: it is tried again.
//! * Stack schemas change between two batches ([`schemas`]); one that cannot be put in force leaves those before in place.
//! * No state but caches: any number of processors share the partitions.

pub mod config;
pub mod error;
pub mod hosts;
mod keep;
pub mod schemas;
pub mod service;
pub mod step;
pub mod symbolize;
pub mod tag;
pub mod telemetry;
pub mod thin;
pub mod trigger;
pub mod tune;
pub mod tuner;
pub mod weigh;

pub use config::{ProcessorConfig, Settings, TriggerConfig, TriggerSettings, TunerConfig, TunerSettings};
pub use error::ProcessorError;
pub use service::{run, run_with};
pub use telemetry::{ProcessorTelemetry, TriggerTelemetry, TunerTelemetry};
