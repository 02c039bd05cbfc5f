//! What a process says of itself, to people, to Prometheus, to Kubernetes and to systemd.
//!
//! Each process has one small HTTP endpoint ([`Admin`]): `/metrics`, `/-/healthy` and `/-/ready`. It is off unless an address
//! is configured; loopback in packages, the containers' own network elsewhere. [`METRICS`] is the one list of all metrics, each with
//! its healthy value.
//!
//! * *Healthy* means that every loop of the process has gone round lately ([`Pulse`]): if not, restarting it may help. The service
//!   manager's watchdog is fed by the same answer ([`supervise`]). A step that waits for the store or for a child process is none of
//!   these: restarting would repeat it. It shows as lag.
//! * *Ready* means that it can do its work now: the bus and the store answer. If not, restarting it would not help.
//! * Nothing here waits for the process, and the process waits for nothing here: counters are read as they are.

mod admin;
mod error;
mod list;
mod probe;
mod pulse;
mod reading;
mod supervise;

pub use admin::Admin;
pub use error::TelemetryError;
pub use list::{Kind, METRICS, Metric};
pub use probe::probe;
pub use pulse::{Health, Pulse};
pub use reading::{Reading, Source, exposition};
pub use supervise::supervise;
