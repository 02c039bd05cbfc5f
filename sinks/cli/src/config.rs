//! `strobe.toml`, as written. Each part proves its own section.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use strobe_alerts::AlertsConfig;
use strobe_bus::{Bus, BusSettings};
use strobe_explore::{ClickHouse, ClickHouseConfig};
use strobe_processor::{ProcessorConfig, TriggerConfig, TunerConfig};
use strobe_sink::SinkConfig;

use crate::asking::AskConfig;
use crate::error::CliError;

/// Where the configuration is looked for when nobody names it.
const DEFAULT: &str = "/etc/strobe/strobe.toml";

/// As written: TOML, every key optional, unknown keys refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The bus.
    pub bus: Bus,
    /// The store.
    pub clickhouse: Store,
    /// The processor.
    pub processor: ProcessorConfig,
    /// The tuner.
    pub tuner: TunerConfig,
    /// The trigger.
    pub trigger: TriggerConfig,
    /// The sink.
    pub sink: SinkConfig,
    /// Symbols for other tools.
    pub symbols: Symbols,
    /// Taking alerts.
    pub alerts: AlertsConfig,
    /// Asking for profiles.
    pub ask: AskConfig,
    /// Endpoints for metrics and health.
    pub admin: Admins,
}

/// The section `[symbols]`: where `strobe run symbols` answers other tools.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Symbols {
    /// Address of the symbolication API. Nobody is asked for a password: whoever reaches it learns names of functions and files.
    pub listen: String,
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9644".into(),
        }
    }
}

/// The section `[admin]`: where each role serves `/metrics`, `/-/healthy` and `/-/ready`; empty: nowhere.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admins {
    /// The processor's, `127.0.0.1:9642` for example.
    pub processor: String,
    /// The tuner's, `127.0.0.1:9644` for example.
    pub tuner: String,
    /// The sink's, `127.0.0.1:9643` for example.
    pub sink: String,
    /// The trigger's, `127.0.0.1:9644` for example.
    pub trigger: String,
}

/// The section `[clickhouse]`: one server, two users. Views and queries are the reader's, tables and rows the writer's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// HTTP address.
    pub url: String,
    /// Database.
    pub database: String,
    /// The user that creates tables and inserts.
    pub user: String,
    /// File with that user's password.
    pub password_file: Option<PathBuf>,
    /// The user that only reads.
    pub reader_user: String,
    /// File with the reader's password.
    pub reader_password_file: Option<PathBuf>,
}

impl Default for Store {
    fn default() -> Self {
        let reader = ClickHouseConfig::default();
        Self {
            url: reader.url,
            database: reader.database,
            user: "strobe_writer".into(),
            password_file: None,
            reader_user: reader.user,
            reader_password_file: None,
        }
    }
}

impl Store {
    fn as_user(&self, user: &str, password_file: &Option<PathBuf>) -> Result<ClickHouse, CliError> {
        let config = ClickHouseConfig {
            url: self.url.clone(),
            database: self.database.clone(),
            user: user.to_owned(),
            password_file: password_file.clone(),
        };
        Ok(config.validate()?)
    }

    /// Returns the store as its reader sees it.
    ///
    /// # Errors
    /// [`CliError`] names the key, or the password file.
    pub fn reader(&self) -> Result<ClickHouse, CliError> {
        self.as_user(&self.reader_user, &self.reader_password_file)
    }

    /// Returns the store as its writer sees it.
    ///
    /// # Errors
    /// [`CliError`] names the key, or the password file.
    pub fn writer(&self) -> Result<ClickHouse, CliError> {
        self.as_user(&self.user, &self.password_file)
    }
}

impl Config {
    /// Reads the configuration from `path`, else from the usual place, else the defaults.
    ///
    /// # Errors
    /// [`CliError`] names the file, the line and, for an unknown key, the nearest known one.
    pub fn read(path: Option<&Path>) -> Result<Self, CliError> {
        let fallback = Path::new(DEFAULT);
        let Some(path) = path.or_else(|| fallback.exists().then_some(fallback)) else {
            return Ok(Self::default());
        };
        let text = fs::read_to_string(path).map_err(|source| CliError::ConfigRead {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|message| CliError::Config(format!("{}: {message}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let whole = error.to_string().trim_end().to_owned();
            match nearest_key(error.message()) {
                Some(near) => format!("{whole}\ndid you mean `{near}`?"),
                None => whole,
            }
        })
    }

    /// Returns the bus, proved.
    ///
    /// # Errors
    /// [`CliError::Bus`] names the key and the remedy.
    pub fn bus(&self) -> Result<BusSettings, CliError> {
        Ok(self.bus.clone().validate()?)
    }
}

/// Returns the known key that is nearest to the unknown one of a message "unknown field `a`, expected one of `b`, `c`".
fn nearest_key(message: &str) -> Option<String> {
    let (unknown, known) = message.strip_prefix("unknown field `")?.split_once('`')?;
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
        let error = Config::parse("[clickhouse]\npasword_file = \"x\"").unwrap_err();
        assert!(error.contains("did you mean `password_file`?"), "{error}");
        let error = Config::parse("[sinks]").unwrap_err();
        assert!(error.contains("did you mean `sink`?"), "{error}");
    }

    /// Checks that nothing need be configured.
    #[test]
    fn defaults_are_whole() {
        let config = Config::parse("").unwrap();
        assert!(config.bus().is_ok() && config.clickhouse.reader().is_ok());
    }
}
