//! The part `[processor]` of a configuration, as written and as proved.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use strobe_bus::BusSettings;
use strobe_signing::{Signers, SigningKey};
use strobe_symbols::{ConvertLimits, Limits};

use crate::error::ProcessorError;
use crate::trigger::{RULES_MAX, RuleConfig};

/// As written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessorConfig {
    /// The symbol store: the folder that agents put binaries into.
    pub symbol_store: PathBuf,
    /// Consumer group; processors of one group share the partitions.
    pub group: String,
    /// Folders with separate debug information, `/usr/lib/debug` for example; none by default.
    pub debug_folders: Vec<PathBuf>,
    /// Longest time for one request to the symbolizer's child process.
    #[serde(with = "humantime_serde")]
    pub symbol_time: Duration,
    /// Private memory of that child.
    pub symbol_memory_bytes: u64,
    /// Largest binary that is read.
    pub symbol_binary_bytes: u64,
    /// Names remembered, in bytes.
    pub symbol_memo_bytes: usize,
    /// Tags of stacks remembered, in bytes.
    pub tag_memory_bytes: usize,
    /// Bytes of symbol files kept in memory.
    pub symbol_file_bytes: usize,
    /// Make symbol files of binaries that have none. Several processors of one store share the work.
    pub symbol_convert: bool,
    /// Longest time for making one.
    #[serde(with = "humantime_serde")]
    pub symbol_convert_time: Duration,
    /// Private memory for making one.
    pub symbol_convert_memory_bytes: u64,
}

impl Default for ProcessorConfig {
    fn default() -> Self {
        let (limits, convert) = (Limits::default(), ConvertLimits::default());
        Self {
            symbol_store: PathBuf::new(),
            group: "strobe-processor".into(),
            debug_folders: Vec::new(),
            symbol_time: limits.request_time,
            symbol_memory_bytes: limits.memory_bytes,
            symbol_binary_bytes: limits.binary_bytes,
            symbol_memo_bytes: limits.memo_bytes,
            tag_memory_bytes: crate::tag::MEMORY_BYTES,
            symbol_file_bytes: limits.file_bytes,
            symbol_convert: true,
            symbol_convert_time: convert.time,
            symbol_convert_memory_bytes: convert.memory_bytes,
        }
    }
}

/// The part `[tuner]`, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunerConfig {
    /// Consumer group; tuners of one group share the partitions.
    pub group: String,
    /// The file that says whose configuration of the fleet counts; empty: nobody's.
    pub signers: PathBuf,
}

impl Default for TunerConfig {
    fn default() -> Self {
        Self {
            group: "strobe-tuner".into(),
            signers: PathBuf::new(),
        }
    }
}

impl TunerConfig {
    /// Returns the settings that it stands for.
    ///
    /// # Errors
    /// [`ProcessorError::Signing`] where the file of signers cannot be used.
    pub fn validate(self, bus: BusSettings) -> Result<TunerSettings, ProcessorError> {
        let signers = match self.signers.as_os_str().is_empty() {
            true => Signers::none("`tuner.signers` names no file, so nobody may configure the fleet"),
            false => Signers::load(&self.signers)?,
        };
        Ok(TunerSettings {
            bus,
            group: self.group,
            signers: Arc::new(signers),
        })
    }
}

/// The tuner's settings, as proved.
#[derive(Debug, Clone)]
pub struct TunerSettings {
    /// The bus.
    pub bus: BusSettings,
    /// Consumer group.
    pub group: String,
    /// Whose configuration of the fleet counts.
    pub signers: Arc<Signers>,
}

/// The part `[trigger]`, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerConfig {
    /// Consumer group; triggers of one group share the partitions.
    pub group: String,
    /// The SSH key, without a passphrase, that signs what rules ask for. Hosts obey it as far as their files of signers say.
    pub key: PathBuf,
    /// Which alerts start which profilers.
    pub rule: Vec<RuleConfig>,
}

impl Default for TriggerConfig {
    fn default() -> Self {
        Self {
            group: "strobe-trigger".into(),
            key: PathBuf::new(),
            rule: Vec::new(),
        }
    }
}

impl TriggerConfig {
    /// Returns the settings that it stands for.
    ///
    /// # Errors
    /// [`ProcessorError`] names the rule or the key, and the remedy.
    pub fn validate(self, bus: BusSettings) -> Result<TriggerSettings, ProcessorError> {
        if self.rule.len() > RULES_MAX {
            return Err(ProcessorError::Rule(format!(
                "{} rules, of at most {RULES_MAX}",
                self.rule.len()
            )));
        }
        for (at, rule) in self.rule.iter().enumerate() {
            rule.validate().map_err(ProcessorError::Rule)?;
            if self.rule[..at].iter().any(|other| other.name == rule.name) {
                return Err(ProcessorError::Rule(format!(
                    "two rules are called `{}`",
                    rule.name
                )));
            }
        }
        let key = match (self.rule.is_empty(), self.key.as_os_str().is_empty()) {
            (true, _) => None,
            (false, true) => return Err(ProcessorError::NoTriggerKey),
            (false, false) => Some(Arc::new(SigningKey::load(&self.key)?)),
        };
        Ok(TriggerSettings {
            bus,
            group: self.group,
            key,
            rules: self.rule,
        })
    }
}

/// The trigger's settings, as proved.
#[derive(Debug, Clone)]
pub struct TriggerSettings {
    /// The bus.
    pub bus: BusSettings,
    /// Consumer group.
    pub group: String,
    /// What signs what rules ask for; nothing where there is no rule.
    pub key: Option<Arc<SigningKey>>,
    /// The rules.
    pub rules: Vec<RuleConfig>,
}

/// As proved.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The bus.
    pub bus: BusSettings,
    /// The symbol store's folder.
    pub symbol_store: PathBuf,
    /// Consumer group.
    pub group: String,
    /// Folders with separate debug information.
    pub debug_folders: Vec<PathBuf>,
    /// Limits on symbolization.
    pub limits: Limits,
    /// Memory for what is remembered of the tags of stacks; one batch may add to it before it is let go.
    pub tag_memory_bytes: usize,
    /// Limits on making symbol files; nothing where none are to be made.
    pub convert: Option<ConvertLimits>,
}

impl ProcessorConfig {
    /// Returns the settings that it stands for.
    ///
    /// # Errors
    /// [`ProcessorError`] names the key and the remedy.
    pub fn validate(self, bus: BusSettings) -> Result<Settings, ProcessorError> {
        if self.symbol_store.as_os_str().is_empty() {
            return Err(ProcessorError::NoSymbolStore);
        }
        let zero = [
            ("symbol_time", self.symbol_time.is_zero()),
            ("symbol_memory_bytes", self.symbol_memory_bytes == 0),
            ("symbol_binary_bytes", self.symbol_binary_bytes == 0),
            ("symbol_memo_bytes", self.symbol_memo_bytes == 0),
            ("tag_memory_bytes", self.tag_memory_bytes == 0),
            ("symbol_file_bytes", self.symbol_file_bytes == 0),
            ("symbol_convert_time", self.symbol_convert_time.is_zero()),
            (
                "symbol_convert_memory_bytes",
                self.symbol_convert_memory_bytes == 0,
            ),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, zero)| *zero) {
            return Err(ProcessorError::ZeroLimit(name));
        }
        Ok(Settings {
            bus,
            symbol_store: self.symbol_store,
            group: self.group,
            debug_folders: self.debug_folders,
            limits: Limits {
                request_time: self.symbol_time,
                memory_bytes: self.symbol_memory_bytes,
                binary_bytes: self.symbol_binary_bytes,
                memo_bytes: self.symbol_memo_bytes,
                file_bytes: self.symbol_file_bytes,
                ..Limits::default()
            },
            tag_memory_bytes: self.tag_memory_bytes,
            convert: self.symbol_convert.then(|| ConvertLimits {
                time: self.symbol_convert_time,
                memory_bytes: self.symbol_convert_memory_bytes,
                binary_bytes: self.symbol_binary_bytes,
                ..ConvertLimits::default()
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the process and its two children, each at its limit, stay within what each way to run it allows: else the
    /// kernel ends whichever it likes, and no binary gets its reason.
    #[test]
    fn the_limits_of_the_children_fit_into_the_service() {
        let config = ProcessorConfig::default();
        let own = config.symbol_memo_bytes + config.symbol_file_bytes + config.tag_memory_bytes;
        let all = config.symbol_memory_bytes + config.symbol_convert_memory_bytes + own as u64;
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../infra");
        let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
        let after = |text: &str, marks: &[&str]| {
            let behind = marks
                .iter()
                .fold(text, |text, mark| text.split_once(mark).unwrap().1);
            let number: String = behind.trim().chars().take_while(char::is_ascii_digit).collect();
            number.parse::<u64>().unwrap() << 30
        };
        let unit = after(&read("systemd/strobe-processor.service"), &["\nMemoryMax="]);
        let compose = after(&read("compose.yaml"), &["\n  processor:\n", "mem_limit:"]);
        let chart = after(
            &read("helm/strobe/values.yaml"),
            &["\nprocessor:\n", "limits: {memory:"],
        );
        for (what, limit) in [("unit", unit), ("compose", compose), ("chart", chart)] {
            // Beside those: the program, the window of the bus, one batch.
            assert!(all + (256 << 20) <= limit, "{what}: {all} of {limit} bytes");
        }
    }
}
