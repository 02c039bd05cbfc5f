//! A file as written: TOML, and where in it something stands.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::error::ConfigError;

/// A file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenFile {
    /// Whose services these are, where an entry does not say.
    pub team: String,
    /// What is desired.
    pub profile: Vec<Spanned<WrittenProfile>>,
    /// What may pass.
    pub limit: Vec<Spanned<WrittenLimit>>,
    /// Limits that do not apply for a while.
    pub lift: Vec<Spanned<WrittenLift>>,
}

/// What is desired of a service.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenProfile {
    pub service: String,
    #[serde(default = "cpu")]
    pub profiler: String,
    pub samples_per_hour: f64,
    pub team: Option<String>,
    #[serde(with = "humantime_serde::option", default)]
    pub run_min: Option<Duration>,
    #[serde(with = "humantime_serde::option", default)]
    pub run_max: Option<Duration>,
    pub run_probability_min: Option<f64>,
    pub frequency_min_hz: Option<f64>,
    pub frequency_max_hz: Option<f64>,
}

fn cpu() -> String {
    "cpu".into()
}

/// What may pass in an hour: of one service, of a team's together, of each service, or of the whole fleet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenLimit {
    pub service: Option<String>,
    pub team: Option<String>,
    pub each: bool,
    pub fleet: bool,
    pub samples_per_hour: Option<f64>,
    pub bus_bytes_per_hour: Option<f64>,
    pub stored_bytes_per_hour: Option<f64>,
}

/// A limit that does not apply for a while.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenLift {
    pub service: String,
    pub until: String,
    pub why: String,
}

/// A file, read.
pub struct Text<'a> {
    /// Its name.
    pub name: &'a str,
    text: &'a str,
}

impl<'a> Text<'a> {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] with the line, and the nearest key where one is not known.
    pub fn read(name: &'a str, text: &'a str) -> Result<(Self, WrittenFile), ConfigError> {
        let this = Self { name, text };
        match toml::from_str(text) {
            Ok(written) => Ok((this, written)),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let message = error.message();
                let what = match nearest(message) {
                    Some(near) => format!("{message}; did you mean `{near}`?"),
                    None => message.to_owned(),
                };
                Err(this.wrong(at, what))
            }
        }
    }

    /// Returns the line of a byte, counted from 1.
    pub fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Returns what is wrong at a byte.
    pub fn wrong(&self, at: usize, what: impl Into<String>) -> ConfigError {
        ConfigError::Wrong {
            file: self.name.to_owned(),
            line: self.line(at),
            what: what.into(),
        }
    }
}

/// Returns the known key that is nearest to the unknown one of a message "unknown field `a`, expected one of `b`, `c`".
fn nearest(message: &str) -> Option<&str> {
    let (unknown, known) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let known = known.split('`').skip(1).step_by(2);
    known.max_by(|a, b| strsim::jaro_winkler(unknown, a).total_cmp(&strsim::jaro_winkler(unknown, b)))
}
