//! Runs: back to back, each slot runs (q = 1), and a run is as long as its slot.

use std::time::Duration;

use rand::RngCore;
use strobe_event::{Cause, RunHead, RunId};

/// The CPU profiler's name.
pub const PROFILER: &str = "cpu";

/// One run under way.
#[derive(Debug, Clone)]
pub struct Run {
    /// What its batches say of it.
    pub head: RunHead,
    /// `CLOCK_MONOTONIC` of its start.
    pub started_ns: u64,
    /// `CLOCK_MONOTONIC` of its planned end: samples from then on belong to the next run.
    pub ends_ns: u64,
    /// Batches closed so far.
    pub batches: u32,
}

/// Returns 128 random bits.
pub fn random_id() -> [u8; 16] {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

impl Run {
    /// Returns a run that starts at `now_ns`, which is `now_us` on the wall.
    pub fn start(host: &str, frequency_hz: u32, length: Duration, now_ns: u64, now_us: u64) -> Self {
        let length_us = length.as_micros() as u64;
        let head = RunHead {
            id: RunId(random_id()),
            host: host.to_owned(),
            profiler: PROFILER.to_owned(),
            cause: Cause::Continuous as u8,
            started_us: now_us,
            planned_us: length_us,
            slot_us: length_us,
            run_probability: 1.0,
            kernel_probability: 1.0,
            period: 1_000_000_000 / u64::from(frequency_hz),
        };
        Self {
            head,
            started_ns: now_ns,
            ends_ns: now_ns.saturating_add(length_us * 1_000),
            batches: 0,
        }
    }
}
