//! Alerts in, alert events on the bus: Alertmanager's webhook, version 4, at `POST /webhook`.
//!
//! Anything that can write to Kafka can put its alerts on `strobe.alerts` itself; this is for what speaks HTTP. Its invariants:
//!
//! * 2xx is answered only when the broker has every alert of the message. Anything else makes Alertmanager send again, and a repeat is
//!   harmless: an alert that has fired before, since the same moment, starts nothing twice.
//! * What cannot be read is refused whole, by 400: half a message is never on the bus.
//! * Bodies, alerts and connections are bounded; who sends nothing holds nothing.

pub mod config;
pub mod error;
pub mod serve;
pub mod webhook;

pub use config::{AlertsConfig, Settings};
pub use error::AlertsError;
pub use serve::{Served, run};
