//! What is asked for, and what is answered.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use strobe_event::{Cause, RunId};

use crate::leases::NotQueued;
use crate::profilers::Rate;

/// Processes of one run: those of a service that somebody would name one by one.
const PIDS_MAX: usize = strobe_bpf::WATCHED_MAX;

/// What somebody wants to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The run's name.
    pub run: RunId,
    /// The profiler.
    pub profiler: String,
    /// For how long.
    pub duration: Duration,
    /// How often, if not as the profiler says.
    pub rate: Option<Rate>,
    /// Whom it looks at.
    pub target: Target,
    /// What the profiler asks for: which address, which tracepoint.
    pub parameters: BTreeMap<String, String>,
    /// Why.
    pub cause: Cause,
    /// It does not start any more when it has waited for so long.
    pub start_within: Duration,
}

/// Whom a run looks at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Everything on this host.
    Host,
    /// One service.
    Service(String),
    /// These processes.
    Pids(Vec<u32>),
}

/// Why something that was asked for is not even queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such profiler.
    #[error("{0}")]
    Profiler(String),
    /// This host cannot do it.
    #[error("{profiler} cannot run here: {why}")]
    Unavailable {
        /// The profiler.
        profiler: String,
        /// Why not.
        why: String,
    },
    /// Longer, or more often, than the profiler's limits allow.
    #[error("{0}")]
    Limit(String),
    /// A parameter that is missing, unknown or wrong.
    #[error("{0}")]
    Parameter(String),
    /// Nobody to look at.
    #[error("{0}")]
    Target(String),
    /// No room, or never room enough.
    #[error(transparent)]
    Queue(#[from] NotQueued),
    /// Nothing on this host is profiled.
    #[error("{0}")]
    Stopped(String),
    /// The agent ends.
    #[error("the agent is stopping")]
    Ending,
}

impl Refusal {
    /// Returns a stable word for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Profiler(_) => "unknown_profiler",
            Self::Unavailable { .. } => "unavailable",
            Self::Limit(_) => "limit",
            Self::Parameter(_) => "parameter",
            Self::Target(_) => "target",
            Self::Queue(NotQueued::Full) => "queue_full",
            Self::Queue(NotQueued::NeverFits { .. }) => "too_many",
            Self::Stopped(_) => "stopped",
            Self::Ending => "ending",
        }
    }
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It waits.
    Queued {
        /// For whom or what.
        behind: Vec<String>,
        /// Its place in the queue, from 1.
        place: usize,
    },
    /// It samples.
    Running {
        /// Since when, microseconds since 1970.
        since_us: u64,
        /// Samples taken in closed batches.
        taken: u64,
        /// Of them, those that are in the batches.
        kept: u64,
    },
    /// It is over.
    Ended(Ending),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How.
    pub how: How,
    /// Why, where that needs saying.
    pub why: String,
    /// Samples taken.
    pub taken: u64,
    /// Of them, those that are in batches.
    pub kept: u64,
    /// Time sampled, microseconds.
    pub done_us: u64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As planned.
    Done,
    /// Somebody stopped it.
    Stopped,
    /// It broke off, or could not begin.
    Failed,
    /// It waited, and never began.
    Refused,
}

impl Target {
    pub(super) fn owner(&self) -> String {
        match self {
            Self::Host => String::new(),
            Self::Service(service) => service.clone(),
            Self::Pids(pids) => pids.first().map(u32::to_string).unwrap_or_default(),
        }
    }
}

pub(super) fn check_target(target: &Target) -> Result<(), Refusal> {
    match target {
        Target::Host => Ok(()),
        Target::Service(service) if service.is_empty() => {
            Err(Refusal::Target("the service's name is empty".into()))
        }
        Target::Service(_) => Ok(()),
        Target::Pids(pids) if pids.is_empty() || pids.len() > PIDS_MAX => Err(Refusal::Target(format!(
            "{} processes: name 1 to {PIDS_MAX}",
            pids.len()
        ))),
        Target::Pids(pids) => match pids.iter().find(|pid| !is_there(**pid)) {
            Some(pid) => Err(Refusal::Target(format!("no process {pid} is here"))),
            None => Ok(()),
        },
    }
}

/// Tells whether there is such a process.
fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}
