//! What is said of sampling beside the samples: what became of slots, which plans are in force, which hosts there are.
//!
//! The numbers are those of `strobe-sampling`, whose crate says what they mean and proves them; these are their records on
//! the bus.

/// The service that stands for a whole host, whatever runs there: no service can be called so.
pub const WHOLE_HOST: &str = "*";

/// Where a service's CPU time was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CpuSource {
    /// Not at all.
    Unknown = 0,
    /// From control groups that hold nothing else: whole, whatever processes came and went.
    ControlGroup = 1,
    /// From its processes: what ended between two looks is missing since the last.
    Processes = 2,
    /// From the host's own account of busy time.
    Host = 3,
}

impl CpuSource {
    /// Returns the source that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Unknown, Self::ControlGroup, Self::Processes, Self::Host];
        all.get(usize::from(code)).copied()
    }

    /// Returns the source's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::ControlGroup => "control_group",
            Self::Processes => "processes",
            Self::Host => "host",
        }
    }
}

/// What became of the slots of one (service, profiler, host, opening of its spool, slot length, hour) so far.
///
/// An agent sends it again when it changes, whole and with a higher revision; the highest counts. The spool's epoch is the
/// message's identity: after a restart the rest of the hour is another record, which adds to the first.
#[derive(Debug, Clone, PartialEq)]
pub struct CoverageRecord {
    /// The service, or [`WHOLE_HOST`].
    pub service: String,
    /// The profiler.
    pub profiler: String,
    /// The host.
    pub host: String,
    /// Length of the slots, microseconds.
    pub slot_us: u64,
    /// The hour, counted since 1970 (UTC).
    pub hour: u64,
    /// Up to when the record counts, microseconds since 1970: at most the hour's end.
    pub until_us: u64,
    /// Of two records of the same hour the higher one counts.
    pub revision: u64,
    /// Slots at whose moment the service was present.
    pub planned: u64,
    /// Of those, the ones that were drawn and could not run.
    pub refused: u64,
    /// The ones that ran as planned.
    pub complete: u64,
    /// The ones whose run ended early.
    pub cut_short: u64,
    /// Σ 1/q over the slots that were drawn, also the refused ones.
    pub drawn_inverse: f64,
    /// Time profiled, microseconds.
    pub done_us: u64,
    /// Samples taken, before limits, losses and thinning.
    pub taken: u64,
    /// CPU time of the service by the kernel's own account, microseconds.
    pub cpu_us: u64,
    /// Where that was read: code of a [`CpuSource`].
    pub cpu_source: u8,
    /// Completed runs, also those without a sample.
    pub runs: u64,
    /// Σu over them, u = (time done ÷ time planned) ÷ q.
    pub u: f64,
    /// Σu².
    pub uu: f64,
    /// Σt, t = taken ÷ (q × time planned × frequency): the busy CPUs that a run saw, times the slots it stands for.
    pub t: f64,
    /// Σt².
    pub tt: f64,
    /// Σtu.
    pub tu: f64,
}

/// The plan in force for one (service, profiler, selector).
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRecord {
    /// The service.
    pub service: String,
    /// The profiler.
    pub profiler: String,
    /// Which of its hosts; empty for all.
    pub selector: String,
    /// Probability with which a slot runs.
    pub run_probability: f64,
    /// How long a run lasts, microseconds.
    pub planned_us: u64,
    /// Samples per second and CPU.
    pub frequency_hz: f64,
    /// From when on, microseconds since 1970.
    pub since_us: u64,
    /// Share of the samples that limits let stay.
    pub keep: f64,
    /// From when on that share applies, microseconds since 1970: an hour's start.
    pub keep_since_us: u64,
    /// The share before.
    pub keep_before: f64,
    /// Why the plan is as it is, for people.
    pub why: String,
}

/// What the tuner knows of one (service, profiler, selector): its state, and the last window in words of people.
#[derive(Debug, Clone, PartialEq)]
pub struct TunerRecord {
    /// The plan that it led to.
    pub plan: PlanRecord,
    /// Start of the last window that was taken in, microseconds since 1970.
    pub window_us: u64,
    /// Samples per hour that are desired.
    pub desired_per_hour: f64,
    /// Samples per hour that the last window took.
    pub observed_per_hour: f64,
    /// Samples per hour that the plan is believed to yield, on average over the day to come.
    pub expected_per_hour: f64,
    /// What can be had when not what is desired, samples per hour; 0 where it can.
    pub reachable_per_hour: f64,
    /// Hosts on which the service lives.
    pub live_hosts: u64,
    /// Hosts that were believed only in part, with what they claimed: `name: 40 of 2,000 busy CPUs`.
    pub doubted: Vec<String>,
    /// Hosts of whose name there seems to be more than one.
    pub same_name: Vec<String>,
    /// The tuner's state, as JSON: whoever takes over goes on from it.
    pub state: String,
}

/// One host, as its agent last said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRecord {
    /// The host.
    pub host: String,
    /// When, microseconds since 1970 (UTC).
    pub time_us: u64,
    /// Version of its agent.
    pub agent: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Its CPUs.
    pub cpus: u32,
    /// Its labels, `key=value`.
    pub labels: Vec<String>,
    /// Services that live on it.
    pub services: Vec<String>,
}
