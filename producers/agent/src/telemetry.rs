//! The agent's metrics as its endpoint shows them, and whether it can do its work.

use std::sync::Arc;
use std::time::Duration;

use strobe_telemetry::{Health, Reading, Source};

use crate::status::Status;

/// Longest time between two turns of a thread: each turns ten times a second or more, and a host may be very busy.
const LONGEST_TURN: Duration = Duration::from_secs(30);
/// Longest time without the broker's word while something waits for it.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// Per cent of the spool above which the agent is not ready: what comes next may be dropped.
const SPOOL_FULL_PERCENT: u64 = 90;

/// Returns whose standing still means that the agent must be started anew. Publishing waits for nobody either, but for the disk.
pub fn health(status: &Status, publishing: bool) -> Health {
    let health = Health::default()
        .with("sampling", LONGEST_TURN, Arc::clone(&status.sampling))
        .with("spooling", LONGEST_TURN, Arc::clone(&status.spooling));
    if publishing {
        health.with("publishing", LONGEST_TURN, Arc::clone(&status.publishing))
    } else {
        health
    }
}

/// What the endpoint reads.
#[derive(Debug)]
pub struct AgentSource {
    /// The counters.
    pub status: Arc<Status>,
    /// The most that the spool may hold.
    pub spool_limit_bytes: u64,
}

impl Source for AgentSource {
    fn readings(&self) -> Vec<Reading> {
        let mut readings = self.status.readings();
        readings.push(Reading::of(
            "strobe_agent_spool_limit_bytes",
            self.spool_limit_bytes,
        ));
        readings
    }

    fn ready(&self) -> Result<(), String> {
        let used = self.status.spool_bytes();
        if used > self.spool_limit_bytes / 100 * SPOOL_FULL_PERCENT {
            return Err(format!(
                "the spool holds {used} of {} bytes: the bus does not take what is sampled",
                self.spool_limit_bytes
            ));
        }
        // Not asked but remembered: with every agent asking, the brokers would be busy with answering.
        let silent = self.status.acknowledged.age();
        match silent.filter(|silent| *silent > LONGEST_SILENCE && self.status.is_waiting_for_broker()) {
            Some(silent) => Err(format!(
                "the broker has acknowledged nothing for {} s",
                silent.as_secs()
            )),
            None => Ok(()),
        }
    }
}
