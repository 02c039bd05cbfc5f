//! A sample in each of its states, from a closed batch of raw stacks to named and weighted samples.
//!
//! This crate is pure: types, keys and the wire codec, no I/O. Its invariants:
//!
//! * A new state is a new type: [`RawBatch`] (addresses) becomes [`SamplesBatch`] (names, tags, weights).
//! * A batch is self-contained: dictionaries of strings, binaries, frames and stacks, then columns of samples.
//!   Every index in a column points into a dictionary of the same batch; [`RawBatch::validate`] proves it once,
//!   at the door, and later stages index without asking again.
//! * Stacks run from the root to the leaf, user frames before kernel frames, because neighbours then share
//!   prefixes and the wire, the store and the flame graph all want that order.
//! * The identity of a batch is not in its value: the spool gives it after encoding, and it travels as Kafka
//!   headers ([`Identity`]).
//! * What a stack is called may change; its [`StackKey`] never does, since it is made of frames as they were on
//!   the wire.

pub mod alert;
pub mod audit;
pub mod binary;
pub mod codec;
pub mod config;
pub mod frame;
pub mod generation;
pub mod identity;
pub mod key;
pub mod outcome;
pub mod raw;
pub mod request;
pub mod run;
pub mod samples;
pub mod sampling;
pub mod split;
pub mod stack;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod synthetic;
pub mod tags;

pub use alert::{Alert, AlertAnswer, AlertStatus};
pub use audit::{AuditAction, AuditId, AuditOutcome, AuditRecord};
pub use binary::{Binary, BinaryKind, BuildId};
pub use config::{ConfigFile, ConfigId, ConfigSet, SignedConfig, StackSchemaFile};
pub use frame::{Frames, Reason};
pub use generation::Generation;
pub use identity::{Epoch, Identity, Part};
pub use key::{ContextKey, FrameKey, StackKey};
pub use outcome::{DropCount, DropReason};
pub use raw::{CpuCounts, Process, RawBatch, Samples, Threads};
pub use request::{Action, HostReport, Phase, Request, RequestId, RequestState, SignedRequest, Step};
pub use run::{Cause, RunEvent, RunHead, RunId, RunState};
pub use samples::{Locations, SamplesBatch, Weight};
pub use sampling::{CoverageRecord, CpuSource, HostRecord, PlanRecord, TunerRecord, WHOLE_HOST};
pub use stack::{StackEnd, Stacks};
pub use tags::{Context, FrameTag, Mark, MarkKind, Place, StackOutcome, Tags};
