//! Profilers as declarations: a file says what is sampled, how often, what it takes and what it may cost; the agent works from these
//! alone. They are compiled in from `producers/profilers/`; a file of the same name in the configured folder takes one's place, any
//! other adds one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::nearest_key;
use crate::error::AgentError;

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../profilers/", $name, ".toml")))),*]
    };
}

/// The declarations that are compiled in: file name and text.
const BUILT_IN: &[(&str, &str)] = built_in![
    "cpu",
    "alignment-faults",
    "block-bytes",
    "block-requests",
    "branch-misses",
    "cache-misses",
    "cache-references",
    "cgroup-switches",
    "context-switches",
    "cpu-migrations",
    "cycles",
    "data-watch",
    "dtlb-misses",
    "emulation-faults",
    "exits",
    "forks",
    "instructions",
    "itlb-misses",
    "kernel-memory",
    "l1d-misses",
    "llc-misses",
    "major-faults",
    "minor-faults",
    "net-sends",
    "page-faults",
    "sched-switches",
    "sched-wakeups",
    "signals",
    "syscalls",
    "task-clock",
    "tracepoint",
];
/// Declarations of one host: far more than anybody reads.
const PROFILERS_MAX: usize = 256;
/// Bytes of one file: these are a page long.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Characters of a name: it is a column of the store.
const NAME_CHARS_MAX: usize = 64;
/// Longest of all runs, whatever a declaration says: a ring of its own, and a thread's attention, for so long.
pub const DURATION_MAX: Duration = Duration::from_secs(3_600);
/// The shortest: below, a run is mostly its own start and end.
pub const DURATION_MIN: Duration = Duration::from_secs(1);

/// One profiler, as its file says.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profiler {
    /// Its name: the value of the store's column.
    pub name: String,
    /// What it answers, in a line.
    pub about: String,
    /// What is sampled.
    pub event: Event,
    /// What it gives.
    #[serde(default)]
    pub yields: Yields,
    /// What the weights of its samples are counted in.
    pub unit: Unit,
    /// How often a sample is taken, unless somebody says otherwise.
    pub rate: Rate,
    /// How long a run lasts, unless somebody says otherwise.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// How its frames get names.
    #[serde(default)]
    pub symbolization: Symbolization,
    /// How much it takes of what is scarce.
    #[serde(default)]
    pub resources: BTreeMap<Resource, u32>,
    /// Profilers that must not run at the same time.
    #[serde(default)]
    pub not_with: BTreeSet<String>,
    /// What one sample costs at most, microseconds of CPU time of the sampled thread and of the agent together.
    pub cost_us: f64,
    /// What nobody may ask for.
    pub limits: Limits,
}

/// What is sampled.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// An event that the kernel counts itself.
    Software(Software),
    /// An event that the CPU counts: `cycles`, `instructions` and others of the kernel's generic ones.
    Hardware(Hardware),
    /// An event of the CPU's caches, as perf names them: `LLC-load-misses`.
    Cache(String),
    /// Who touches an address: parameters `address`, `access` (`w`, `rw` or `x`) and `length` (1, 2, 4 or 8).
    Breakpoint {},
    /// A tracepoint of the kernel.
    Tracepoint {
        /// Which one, `sched:sched_switch`; nothing: the parameter `tracepoint` says it.
        #[serde(default)]
        name: Option<String>,
        /// The field that says what one event counts for; nothing: one.
        #[serde(default)]
        value: Option<String>,
    },
}

/// The kernel's software events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is named as perf names it")]
pub enum Software {
    CpuClock,
    TaskClock,
    PageFaults,
    MinorFaults,
    MajorFaults,
    ContextSwitches,
    CpuMigrations,
    AlignmentFaults,
    EmulationFaults,
    CgroupSwitches,
}

/// The kernel's generic hardware events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is named as perf names it")]
pub enum Hardware {
    Cycles,
    Instructions,
    CacheReferences,
    CacheMisses,
    BranchInstructions,
    BranchMisses,
    BusCycles,
    StalledCyclesFrontend,
    StalledCyclesBackend,
    RefCycles,
}

/// What a profiler gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Yields {
    /// Stacks with a weight.
    #[default]
    Stacks,
}

/// What weights are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Events.
    Counts,
    /// Bytes.
    Bytes,
}

impl Unit {
    /// Returns its name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "nanoseconds",
            Self::Counts => "counts",
            Self::Bytes => "bytes",
        }
    }
}

/// How frames get names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symbolization {
    /// Functions, files, lines and what was inlined, behind the bus.
    #[default]
    Full,
}

/// What there is only so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// A counter of the CPU's.
    PmuCounter,
    /// A register that watches an address.
    Breakpoint,
    /// The last branch record.
    Lbr,
    /// A uprobe.
    UprobeSlot,
}

impl Resource {
    /// Returns its name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::PmuCounter => "pmu-counter",
            Self::Breakpoint => "breakpoint",
            Self::Lbr => "lbr",
            Self::UprobeSlot => "uprobe-slot",
        }
    }
}

/// How often a sample is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rate {
    /// So many times a second, on each CPU: of what ticks.
    Hz(u32),
    /// At each so many events: of what is counted.
    Period(u64),
}

/// What nobody may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// A longer run.
    #[serde(with = "humantime_serde")]
    pub duration_max: Duration,
    /// More ticks a second and CPU.
    #[serde(default)]
    pub hz_max: Option<u32>,
    /// A shorter period.
    #[serde(default)]
    pub period_min: Option<u64>,
    /// More samples a second on the whole host: then the period is made longer while it runs.
    #[serde(default = "samples_per_second_max")]
    pub samples_per_second_max: u64,
}

/// Two thirds of a per cent of 100 CPUs at 10 µs a sample, or a tenth of one: what nobody should notice.
fn samples_per_second_max() -> u64 {
    10_000
}

impl Profiler {
    /// Returns what a file says.
    ///
    /// # Errors
    /// What is wrong with it, and for an unknown key or word the nearest known one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parsed: Self = toml::from_str(text).map_err(|error| {
            let near = nearest_key(error.message());
            let hint = near.map(|near| format!("\ndid you mean `{near}`?"));
            format!("{}{}", error.to_string().trim_end(), hint.unwrap_or_default())
        })?;
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<(), String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if self.name.is_empty() || self.name.len() > NAME_CHARS_MAX || !self.name.chars().all(is_name) {
            return Err(format!(
                "`name` is `{}`: give 1 to {NAME_CHARS_MAX} letters, digits, `-` and `_`",
                self.name.escape_debug()
            ));
        }
        let ticks = matches!(
            self.event,
            Event::Software(Software::CpuClock | Software::TaskClock)
        );
        match self.rate {
            Rate::Hz(0) | Rate::Period(0) => return Err("`rate` is 0: give at least 1".into()),
            Rate::Hz(_) if !ticks => {
                return Err("`rate` is in Hz, and the event does not tick: give a `period`".into());
            }
            Rate::Period(_) if ticks => {
                return Err("`rate` is a period, and the event ticks: give `hz`".into());
            }
            _ => {}
        }
        if !self.cost_us.is_finite() || self.cost_us <= 0.0 {
            return Err("`cost_us` must be above 0".into());
        }
        if let Event::Breakpoint {} = self.event
            && !self.resources.contains_key(&Resource::Breakpoint)
        {
            return Err("it watches an address: `resources` must say `breakpoint = 1`".into());
        }
        if matches!(self.event, Event::Hardware(_) | Event::Cache(_))
            && !self.resources.contains_key(&Resource::PmuCounter)
        {
            return Err("it counts in hardware: `resources` must say `pmu-counter = 1`".into());
        }
        if self.limits.duration_max > DURATION_MAX {
            return Err(format!("`limits.duration_max` is over {DURATION_MAX:?}"));
        }
        self.check_ask(self.duration, self.rate)
    }

    /// Says what is wrong with a duration and a rate.
    ///
    /// # Errors
    /// Which limit it breaks.
    pub fn check_ask(&self, duration: Duration, rate: Rate) -> Result<(), String> {
        let limits = &self.limits;
        if !(DURATION_MIN..=limits.duration_max).contains(&duration) {
            return Err(format!(
                "a run of {} lasts {} to {}, not {}",
                self.name,
                humantime::format_duration(DURATION_MIN),
                humantime::format_duration(limits.duration_max),
                humantime::format_duration(duration)
            ));
        }
        match (rate, self.rate) {
            (Rate::Hz(hz), Rate::Hz(_)) => match limits.hz_max {
                _ if hz == 0 => Err("0 Hz: give at least 1".into()),
                Some(most) if hz > most => Err(format!("{} runs at up to {most} Hz, not {hz}", self.name)),
                _ => Ok(()),
            },
            (Rate::Period(period), Rate::Period(_)) => match limits.period_min {
                _ if period == 0 => Err("a period of 0: give at least 1".into()),
                Some(least) if period < least => Err(format!(
                    "{} takes a sample at every {least} or more, not at every {period}",
                    self.name
                )),
                _ => Ok(()),
            },
            (Rate::Hz(_), _) => Err(format!("{} counts events: give a period, not Hz", self.name)),
            (Rate::Period(_), _) => Err(format!("{} ticks: give Hz, not a period", self.name)),
        }
    }

    /// Returns the names of the parameters that a run of it has.
    pub fn parameters(&self) -> &'static [&'static str] {
        match &self.event {
            Event::Breakpoint {} => &["address", "access", "length"],
            Event::Tracepoint { name: None, .. } => &["tracepoint"],
            _ => &[],
        }
    }

    /// Returns what one sample stands for at this rate, in the profiler's unit.
    pub fn value(rate: Rate) -> u64 {
        match rate {
            Rate::Hz(hz) => 1_000_000_000 / u64::from(hz.max(1)),
            Rate::Period(period) => period,
        }
    }
}

/// All profilers of this host, by name.
#[derive(Debug, Clone, Default)]
pub struct Profilers {
    known: BTreeMap<String, Profiler>,
}

impl Profilers {
    /// Returns those that are compiled in, and those of the folder.
    ///
    /// # Errors
    /// [`AgentError::Config`] names the file and what is wrong with it.
    pub fn read(folder: Option<&Path>) -> Result<Self, AgentError> {
        let mut known = BTreeMap::new();
        for (name, text) in BUILT_IN {
            let profiler = parse_named(name, text)
                .map_err(|why| AgentError::Config(format!("profiler {name}.toml, compiled in: {why}")))?;
            known.insert(profiler.name.clone(), profiler);
        }
        let Some(folder) = folder else {
            return Ok(Self { known });
        };
        let failed = |source| AgentError::Folder {
            folder: folder.to_owned(),
            source,
        };
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let profiler = read_one(&path)
                .map_err(|why| AgentError::Config(format!("profiler {}: {why}", path.display())))?;
            known.insert(profiler.name.clone(), profiler);
            if known.len() > PROFILERS_MAX {
                return Err(AgentError::Config(format!(
                    "`profilers`: more than {PROFILERS_MAX} in {}",
                    folder.display()
                )));
            }
        }
        Ok(Self { known })
    }

    /// Returns one of them.
    ///
    /// # Errors
    /// The nearest name.
    pub fn get(&self, name: &str) -> Result<&Profiler, String> {
        self.known.get(name).ok_or_else(|| {
            let near = nearest(name, self.known.keys().map(String::as_str));
            format!(
                "no profiler is called `{}`: did you mean `{near}`? `strobe-agent profilers` lists them",
                name.escape_debug()
            )
        })
    }

    /// Returns all of them, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Profiler> {
        self.known.values()
    }
}

/// Returns the known name that is nearest to an unknown one.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    let likeness = |name: &&str| strsim::jaro_winkler(unknown, name);
    known
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        .unwrap_or_default()
}

fn read_one(path: &Path) -> Result<Profiler, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("{size} bytes, and at most {FILE_BYTES_MAX} are read"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    parse_named(&stem, &text)
}

fn parse_named(file: &str, text: &str) -> Result<Profiler, String> {
    let profiler = Profiler::parse(text)?;
    if profiler.name != file {
        return Err(format!("it is called `{}`, not as its file", profiler.name));
    }
    Ok(profiler)
}

#[cfg(test)]
mod tests;
