//! The sink: batches of `strobe.samples` and events of `strobe.runs` into ClickHouse, each visible exactly once.
//!
//! Stage 13 of the path. Messages of a partition are cut into ranges of offsets ([`collect`]); a range is turned into
//! one block per table ([`rows`]) and stored by a protocol ([`protocol`]) in which it is written down before it is
//! inserted ([`pending`]), so that whoever takes over inserts the same rows under the same tokens.
//!
//! Invariants:
//!
//! * What the topic repeats is stored once: the identity of a batch is compared with what is stored ([`stored`]), also
//!   where a repeat was split otherwise. Only the rows of `samples` say what is stored.
//! * What the sink repeats is stored once: by its tokens.
//! * No partition waits for ClickHouse in memory: what does not fit the window stays with the broker.
//! * A message that cannot be stored, now or ever, goes to the dead letters and the partition goes on. Trouble of
//!   ClickHouse is never a message's fault: it is waited out.

pub mod collect;
pub mod error;
pub mod insert;
mod judge;
pub mod lane;
pub mod native;
pub mod pending;
pub mod protocol;
pub mod retag;
pub mod rows;
pub mod service;
pub mod settings;
pub mod stored;
pub mod tables;
pub mod telemetry;
pub mod written;

pub use error::SinkError;
pub use retag::{write_frames, write_tags};
pub use rows::{FrameRow, FrameRows, TagRow, TagRows};
pub use service::{run, run_with};
pub use settings::{Settings, SinkConfig};
pub use telemetry::SinkTelemetry;
