//! The agent's configuration, as written and as proved.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use strobe_bus::{Bus, BusSettings};
use strobe_sampling::SamplingError;
use strobe_sampling::plan::Bounds;
use strobe_sampling::slot::SlotLength;
use strobe_telemetry::Admin;

use crate::budget::{BudgetConfig, Limits};
use crate::error::AgentError;

/// As written: TOML, every key optional, unknown keys refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Name of this host; empty: the kernel's host name.
    pub host: String,
    /// Folder for the spool and the status file.
    pub state_dir: PathBuf,
    /// Folder of the symbol store; empty: binaries are not uploaded.
    pub symbol_store: PathBuf,
    /// Ticks per second and CPU. Odd, so that it does not march in step with timers of 10 and 100 Hz.
    pub frequency_hz: u32,
    /// Length of a run; runs follow each other.
    #[serde(with = "humantime_serde")]
    pub run_length: Duration,
    /// Whether batches are sent to the bus; otherwise they stay in the spool.
    pub publish: bool,
    /// File of those who may ask for profiles here; empty: nobody.
    pub signers: PathBuf,
    /// Bytes of the kernel's ring buffer; unset: 1 MiB for each CPU.
    pub ring_bytes: Option<usize>,
    /// Address of the endpoint for metrics and health, `127.0.0.1:9641` for example; empty: none.
    pub admin: String,
    /// The bus.
    pub bus: Bus,
    /// The spool.
    pub spool: SpoolConfig,
    /// Upload of binaries.
    pub binaries: BinariesConfig,
    /// Unwinding without frame pointers.
    pub unwind: UnwindConfig,
    /// When to run, once there are plans.
    pub schedule: ScheduleConfig,
    /// Folder with declarations of profilers, beside and in place of those that are compiled in; empty: none.
    pub profilers: PathBuf,
    /// What the agent may take as a whole.
    pub budget: BudgetConfig,
    /// While this file is there, nothing is profiled; empty: `stop` in the folder of the state.
    pub stop_file: PathBuf,
}

/// The part `[unwind]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UnwindConfig {
    /// The most that tables take in the kernel, taken as it is needed; 0: stacks are walked by frame pointers alone. About 4.4
    /// bytes for each row, of which 100 MB of code have some 1.6 million.
    pub kernel_bytes_max: u64,
    /// The most that tables take on disk.
    pub kept_bytes_max: u64,
    /// The command that makes a table of the binary on its stdin. The agent itself, unless somebody tests.
    #[serde(skip)]
    pub worker: Vec<OsString>,
}

/// The part `[schedule]`: between what plans may lie. The tuner's bounds should be the same.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Makes the draws of this fleet independent of another's.
    pub salt: String,
    /// Length of slots: a divisor of a day, from 200ms to 1h.
    #[serde(with = "humantime_serde")]
    pub slot: Duration,
    /// Every slot runs with at least this probability, also where only daemons run.
    pub run_probability_min: f64,
    /// The shortest run.
    #[serde(with = "humantime_serde")]
    pub run_min: Duration,
    /// The longest run.
    #[serde(with = "humantime_serde")]
    pub run_max: Duration,
    /// The lowest frequency.
    pub frequency_min_hz: f64,
    /// The highest frequency.
    pub frequency_max_hz: f64,
    /// Labels of this host, `key=value`, for the inventory.
    pub labels: Vec<String>,
}

/// The part `[schedule]`, proved.
#[derive(Debug, Clone)]
pub struct ScheduleSettings {
    /// Makes the draws of this fleet independent of another's.
    pub salt: String,
    /// Between what plans may lie.
    pub bounds: Bounds,
    /// Labels of this host.
    pub labels: Vec<String>,
}

/// The part `[spool]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpoolConfig {
    /// The most that the spool takes on disk. When it is full the newest batch is dropped and counted.
    pub size_limit_bytes: u64,
    /// Batches older than this are dropped and counted. Below the bus's retention.
    #[serde(with = "humantime_serde")]
    pub age_limit: Duration,
    /// The longest time that a batch may be lost to a power cut.
    #[serde(with = "humantime_serde")]
    pub sync_interval: Duration,
}

/// The part `[binaries]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BinariesConfig {
    /// Larger binaries are not uploaded.
    pub file_bytes_max: u64,
    /// Rate of uploads.
    pub bytes_per_second: u32,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            host: String::new(),
            state_dir: "/var/lib/strobe-agent".into(),
            symbol_store: PathBuf::new(),
            frequency_hz: 101,
            run_length: Duration::from_secs(60),
            publish: true,
            signers: PathBuf::new(),
            ring_bytes: None,
            admin: String::new(),
            bus: Bus::default(),
            spool: SpoolConfig::default(),
            binaries: BinariesConfig::default(),
            unwind: UnwindConfig::default(),
            schedule: ScheduleConfig::default(),
            profilers: PathBuf::new(),
            budget: BudgetConfig::default(),
            stop_file: PathBuf::new(),
        }
    }
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            size_limit_bytes: 1 << 30,
            age_limit: Duration::from_secs(24 * 3600),
            sync_interval: Duration::from_millis(500),
        }
    }
}

impl Default for UnwindConfig {
    fn default() -> Self {
        Self {
            kernel_bytes_max: 128 << 20,
            kept_bytes_max: 1 << 30,
            // Also where the file has been replaced by a newer one meanwhile.
            worker: ["/proc/self/exe", WORKER_COMMAND].map(OsString::from).to_vec(),
        }
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        let bounds = Bounds::CPU;
        Self {
            salt: String::new(),
            slot: Duration::from_micros(bounds.slot.us()),
            run_probability_min: bounds.run_probability_min,
            run_min: Duration::from_micros(bounds.planned_min_us),
            run_max: Duration::from_micros(bounds.planned_max_us),
            frequency_min_hz: bounds.frequency_min_hz,
            frequency_max_hz: bounds.frequency_max_hz,
            labels: Vec::new(),
        }
    }
}

impl ScheduleConfig {
    fn validate(self) -> Result<ScheduleSettings, AgentError> {
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let wrong = |error: SamplingError| AgentError::Config(format!("`[schedule]`: {error}"));
        let bounds = Bounds {
            slot: SlotLength::new(us(self.slot)).map_err(wrong)?,
            run_probability_min: self.run_probability_min,
            planned_min_us: us(self.run_min),
            planned_max_us: us(self.run_max),
            frequency_min_hz: self.frequency_min_hz,
            frequency_max_hz: self.frequency_max_hz,
        };
        if self.labels.len() > LABELS_MAX || self.labels.iter().any(|label| label.len() > LABEL_BYTES_MAX) {
            return Err(AgentError::Config(format!(
                "`schedule.labels`: give at most {LABELS_MAX} of up to {LABEL_BYTES_MAX} bytes"
            )));
        }
        Ok(ScheduleSettings {
            salt: self.salt,
            bounds: bounds.validate().map_err(wrong)?,
            labels: self.labels,
        })
    }
}

impl Default for BinariesConfig {
    fn default() -> Self {
        Self {
            file_bytes_max: 512 << 20,
            bytes_per_second: 4 << 20,
        }
    }
}

/// The agent's sub-command that makes one table.
pub const WORKER_COMMAND: &str = "unwind-worker";
/// Least room of a spool: two segments of 16 MiB and the reserve for the events of runs.
const SPOOL_BYTES_MIN: u64 = 34 << 20;
/// Shortest run: below, a run is mostly its own start and end.
const RUN_MIN: Duration = Duration::from_secs(1);
/// Longest run: its end is when losses are told for good.
const RUN_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Labels of a host, and bytes of one: what people write on a host, and far under the limit on messages.
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;
/// Longest host name: the spool's bound on the owner's name.
const HOST_BYTES_MAX: usize = 255;

/// As proved.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of this host.
    pub host: String,
    /// Folder for the spool and the status file.
    pub state_dir: PathBuf,
    /// Folder of the symbol store, where binaries are uploaded.
    pub symbol_store: Option<PathBuf>,
    /// Ticks per second and CPU.
    pub frequency_hz: u32,
    /// Length of a run.
    pub run_length: Duration,
    /// Who may ask for profiles here.
    pub signers: PathBuf,
    /// The bus, where batches are sent.
    pub bus: Option<BusSettings>,
    /// Bytes of the kernel's ring buffer.
    pub ring_bytes: Option<usize>,
    /// The endpoint for metrics and health.
    pub admin: Option<Admin>,
    /// The spool.
    pub spool: strobe_spool::Settings,
    /// Upload of binaries.
    pub binaries: BinariesConfig,
    /// Unwinding without frame pointers.
    pub unwind: UnwindConfig,
    /// When to run, once there are plans.
    pub schedule: ScheduleSettings,
    /// Folder with declarations of profilers.
    pub profilers: Option<PathBuf>,
    /// What the agent may take as a whole.
    pub budget: Limits,
    /// While this file is there, nothing is profiled.
    pub stop_file: PathBuf,
    /// Folder into which each framed raw batch is written as well, for benchmarks.
    pub capture: Option<PathBuf>,
    /// Time after which the agent stops by itself.
    pub duration: Option<Duration>,
}

impl Settings {
    /// Returns the host's region: its label `region=…`; empty where it has none.
    pub fn region(&self) -> &str {
        let mut labels = self.schedule.labels.iter();
        labels
            .find_map(|label| label.strip_prefix("region="))
            .unwrap_or_default()
    }
}

impl AgentConfig {
    /// Reads the configuration from `path`, or the defaults where there is none.
    ///
    /// # Errors
    /// [`AgentError`] names the file, the line and, for an unknown key, the nearest known one.
    pub fn read(path: Option<&Path>) -> Result<Self, AgentError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = fs::read_to_string(path).map_err(|source| AgentError::ConfigRead {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|message| AgentError::Config(format!("{}: {message}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let message = error.to_string();
            match nearest_key(error.message()) {
                Some(near) => format!("{}\ndid you mean `{near}`?", message.trim_end()),
                None => message.trim_end().to_owned(),
            }
        })
    }

    /// Returns the settings that it stands for.
    ///
    /// # Errors
    /// [`AgentError::Config`] names the key and the remedy.
    pub fn validate(self) -> Result<Settings, AgentError> {
        let wrong = |text: String| Err(AgentError::Config(text));
        let host = match self.host.trim() {
            "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            host => host.to_owned(),
        };
        if host.is_empty() || host.len() > HOST_BYTES_MAX || host.chars().any(char::is_control) {
            return wrong(format!(
                "`host` is `{}`: give a name of 1 to 255 bytes",
                host.escape_debug()
            ));
        }
        if self.frequency_hz == 0 {
            return wrong("`frequency_hz` is 0: give the ticks per second, 101 for example".into());
        }
        if !(RUN_MIN..=RUN_MAX).contains(&self.run_length) {
            return wrong(format!("`run_length` is {:?}: give 1s to 1day", self.run_length));
        }
        if self.spool.size_limit_bytes < SPOOL_BYTES_MIN {
            let given = self.spool.size_limit_bytes;
            return wrong(format!(
                "`spool.size_limit_bytes` is {given}: give at least {SPOOL_BYTES_MIN}"
            ));
        }
        if self.spool.age_limit.is_zero() || self.binaries.bytes_per_second == 0 {
            return wrong("`spool.age_limit` and `binaries.bytes_per_second` must not be 0".into());
        }
        let bus = if self.publish {
            Some(self.bus.validate()?.with_client_id("strobe-agent"))
        } else {
            None
        };
        let schedule = self.schedule.validate()?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let budget = self.budget.validate(cpus).map_err(AgentError::Config)?;
        let stop_file = match self.stop_file.as_os_str().is_empty() {
            true => self.state_dir.join(crate::halt::FILE),
            false => self.stop_file,
        };
        let spool = strobe_spool::Settings {
            size_limit_bytes: self.spool.size_limit_bytes,
            age_limit: self.spool.age_limit,
            sync_interval: self.spool.sync_interval,
            ..strobe_spool::Settings::new(self.state_dir.join("spool"), host.clone())
        };
        Ok(Settings {
            host,
            symbol_store: (!self.symbol_store.as_os_str().is_empty()).then_some(self.symbol_store),
            state_dir: self.state_dir,
            frequency_hz: self.frequency_hz,
            run_length: self.run_length,
            signers: self.signers,
            bus,
            ring_bytes: self.ring_bytes,
            admin: Admin::parse("admin", &self.admin)?,
            spool,
            binaries: self.binaries,
            unwind: self.unwind,
            schedule,
            budget,
            stop_file,
            profilers: (!self.profilers.as_os_str().is_empty()).then_some(self.profilers),
            capture: None,
            duration: None,
        })
    }
}

/// Returns the known key that is nearest to the unknown one of a message "unknown field `a`, expected one of `b`, `c`", or
/// the nearest word where the message is of an unknown variant.
pub(crate) fn nearest_key(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `");
    let rest = rest.or_else(|| message.strip_prefix("unknown variant `"));
    let (unknown, known) = rest?.split_once('`')?;
    let known = known.split('`').skip(1).step_by(2);
    known
        .max_by(|a, b| strsim::jaro_winkler(unknown, a).total_cmp(&strsim::jaro_winkler(unknown, b)))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an unknown key is refused, and that the nearest known one is named.
    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = AgentConfig::parse("frequenzy_hz = 99").unwrap_err();
        assert!(error.contains("did you mean `frequency_hz`?"), "{error}");
        let error = AgentConfig::parse("[spool]\nsize = 1").unwrap_err();
        assert!(error.contains("did you mean `size_limit_bytes`?"), "{error}");
    }

    /// Checks that a limit on tables leaves the command that makes them as it is.
    #[test]
    fn a_limit_on_tables_leaves_their_maker() {
        let config = AgentConfig::parse("[unwind]\nkept_bytes_max = 5").unwrap();
        assert_eq!(config.unwind.worker, UnwindConfig::default().worker);
        assert_eq!(config.unwind.worker.len(), 2);
    }

    /// Checks that nothing need be configured, and that what makes no sense is refused by name.
    #[test]
    fn defaults_are_whole_and_nonsense_is_refused() {
        let settings = AgentConfig::default().validate().unwrap();
        assert_eq!(settings.frequency_hz, 101);
        for (text, key) in [
            ("frequency_hz = 0", "frequency_hz"),
            ("run_length = \"1ms\"", "run_length"),
            ("[spool]\nsize_limit_bytes = 1", "spool.size_limit_bytes"),
            ("[bus]\nbootstrap = \"\"", "bootstrap"),
            ("admin = \"localhost\"", "`admin`"),
            ("[schedule]\nslot = \"7s\"", "[schedule]"),
            ("[schedule]\nrun_max = \"2m\"", "planned_max_us"),
            ("[schedule]\nrun_probability_min = 0.0", "run_probability_min"),
        ] {
            let error = AgentConfig::parse(text).unwrap().validate().unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
            assert_eq!(error.exit_code(), 78);
        }
    }
}
