//! Runs: one bounded go of one profiler on one host, and the events of its life.

use std::fmt;
use std::str::FromStr;

use crate::identity::{NotHex128, parse_hex128};
use crate::outcome::DropCount;

/// 128 random bits that name a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub [u8; 16]);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

impl FromStr for RunId {
    type Err = NotHex128;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex128(text).map(Self)
    }
}

/// Why a run happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// Drawn by the schedule: counts in fleet totals.
    Continuous = 1,
    /// Asked for by somebody.
    OnDemand = 2,
    /// Started by an alert.
    Triggered = 3,
    /// Taken from the ring of the last minutes.
    Ring = 4,
}

impl Cause {
    /// Returns the cause that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Continuous, Self::OnDemand, Self::Triggered, Self::Ring]
            .get(usize::from(code).checked_sub(1)?)
            .copied()
    }

    /// Returns the cause's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continuous => "continuous",
            Self::OnDemand => "on_demand",
            Self::Triggered => "triggered",
            Self::Ring => "ring",
        }
    }
}

/// What every batch of a run says of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunHead {
    /// The run's name.
    pub id: RunId,
    /// The host that runs it.
    pub host: String,
    /// The profiler, `cpu` for example.
    pub profiler: String,
    /// Code of a [`Cause`].
    pub cause: u8,
    /// Start of the run, microseconds since 1970 (UTC).
    pub started_us: u64,
    /// Planned duration, microseconds: D_planned.
    pub planned_us: u64,
    /// Length of the slot it was drawn for, microseconds: L.
    pub slot_us: u64,
    /// Probability with which the slot was drawn: q, in (0, 1].
    pub run_probability: f64,
    /// Probability with which the kernel kept an event: p_kernel, in (0, 1].
    pub kernel_probability: f64,
    /// What one sample stands for before any correction: nanoseconds of CPU time per tick for `cpu`.
    pub period: u64,
}

/// A state in the life of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RunState {
    /// Drawn or asked for, waiting.
    Queued = 1,
    /// Sampling began.
    Started = 2,
    /// Sampling ended as planned, or was ended early; the accounting is complete.
    Finished = 3,
    /// It could not run, or broke off.
    Failed = 4,
    /// Samples of it were lost after the spool had taken them; the event has the identity of their batch.
    Lost = 5,
}

impl RunState {
    /// Returns the state that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::Queued,
            Self::Started,
            Self::Finished,
            Self::Failed,
            Self::Lost,
        ];
        all.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the state's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// One event in the life of a run, with the accounting up to it. Travels through the spool, in order with batches.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEvent {
    /// The run.
    pub run: RunHead,
    /// Code of a [`RunState`].
    pub state: u8,
    /// When, microseconds since 1970 (UTC).
    pub time_us: u64,
    /// Why it failed or ended early; empty otherwise.
    pub detail: String,
    /// Samples taken so far (idle left out).
    pub taken: u64,
    /// Samples put into batches that the spool took.
    pub spooled: u64,
    /// Ticks that found their CPU idle, as in [`CpuCounts::idle`](crate::CpuCounts::idle).
    pub idle: u64,
    /// Batches that the spool took.
    pub batches: u64,
    /// Samples dropped so far on the host, by reason.
    pub drops: Vec<DropCount>,
    /// Time actually sampled, microseconds: D_done.
    pub done_us: u64,
}
