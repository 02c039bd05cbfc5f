//! The bus: topics, keys, headers and delivery over Kafka. The only crate that names rdkafka.
//!
//! Its part of the path: the agent's publisher hands it batches ([`ResendingProducer`]), the processor is a pure
//! stage between two topics ([`drive()`]), the sink reads and commits by hand ([`Consumer`]), and whatever a consumer
//! cannot process goes aside and comes back ([`dead_letter`]). The bus moves bytes and headers; it never looks into
//! a value. Its invariants:
//!
//! * Everything is at least once. An offset is committed only when every output up to it was acknowledged, and a
//!   message leaves a producer's window only when the broker has it or refuses it for good.
//! * Nobody gives up on a message: `message.timeout.ms` is 0, and an error restarts from the first unacknowledged
//!   one, because an idempotent producer that skips one delivers the later ones.
//! * A change of assignment is seen only inside [`Consumer::poll`], on the thread that polls. Between two polls the
//!   generation cannot change for the better: a commit by a consumer that was stopped past its session timeout is
//!   fenced ([`CommitError::Fenced`]).
//! * Every queue has a bound: a producer's window, librdkafka's two queues, the messages under way in [`drive()`].
//! * A message that cannot be delivered as it is, is counted and goes to `<topic>.dlq`; the partition goes on.

pub mod access;
pub mod admin;
mod bench;
pub mod compacted;
pub mod consumer;
pub mod dead_letter;
pub mod drive;
pub mod error;
pub mod failpoint;
pub mod headers;
pub mod lag;
pub mod message;
mod native;
pub mod producer;
pub mod progress;
pub mod resend;
pub mod settings;
pub mod shutdown;
pub mod tail;
pub mod telemetry;
pub mod topics;

pub use access::{Groups, Resource, Right, Role, rights};
pub use admin::{TopicAction, TopicChange};
pub use compacted::Compacted;
pub use consumer::{CommitError, Consumer, Event};
pub use dead_letter::{Complaint, DeadReason};
pub use drive::{DriveSettings, StageResult, drive};
pub use error::Error;
pub use headers::{Headers, Meta};
pub use message::{Message, Outgoing, Partition};
pub use producer::{Delivery, Producer};
pub use resend::{Outcome, ResendingProducer, WindowFull, WindowLimits};
pub use settings::{Bus, BusSettings};
pub use shutdown::Shutdown;
pub use tail::Tail;
pub use topics::{MESSAGE_BYTES_MAX, TOPIC_BYTES_MAX, Topic, TopicSpec};
