//! What can go wrong, and whether waiting helps.

use std::io;
use std::path::PathBuf;

/// Why something could not be asked or answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is not usable.
    #[error("`clickhouse.{name}` is `{value}`: {rule}")]
    Setting {
        /// The key in the configuration.
        name: &'static str,
        /// What it was; never a secret.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// The password file cannot be read.
    #[error("cannot read `clickhouse.password_file` {path}")]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The selection cannot be asked for.
    #[error("{0}")]
    Selection(String),
    /// The store did not answer, or refused.
    #[error("cannot {action}: ClickHouse at {url}")]
    Store {
        /// What was being done.
        action: &'static str,
        /// Where.
        url: String,
        /// The client's error, with ClickHouse's own text.
        source: clickhouse::error::Error,
    },
    /// The answer has another form than was asked for.
    #[error("ClickHouse's answer is not {expected}: leave out the FORMAT clause")]
    Answer {
        /// The form that was asked for.
        expected: &'static str,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// The answer could not be passed on.
    #[error("cannot write the answer")]
    Write {
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Returns whether ClickHouse knows neither the user nor the password.
    pub fn is_unauthorized(&self) -> bool {
        // Unknown user, wrong password, required password, authentication failed: ClickHouse's own codes.
        const NAMES: [&str; 4] = [
            "(UNKNOWN_USER)",
            "(WRONG_PASSWORD)",
            "(REQUIRED_PASSWORD)",
            "(AUTHENTICATION_FAILED)",
        ];
        matches!(self, Self::Store { source: clickhouse::error::Error::BadResponse(text), .. }
            if NAMES.iter().any(|name| text.contains(name)))
    }

    /// Returns whether the same call can succeed later without anyone's help.
    pub fn is_transient(&self) -> bool {
        use clickhouse::error::Error as Client;
        // Too many simultaneous queries, timeout, memory limit, too many parts, network, shutting down, keeper: load
        // or an outage, not the question.
        const PASSING: [&str; 8] = ["202", "159", "241", "252", "210", "209", "236", "999"];
        match self {
            Self::Store {
                source: Client::Network(_) | Client::TimedOut,
                ..
            } => true,
            Self::Store {
                source: Client::BadResponse(text),
                ..
            } => {
                let code = text
                    .strip_prefix("Code: ")
                    .and_then(|rest| rest.split(['.', ' ']).next());
                code.is_some_and(|code| PASSING.contains(&code)) || text.starts_with("503")
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that load and outages are waited for, and that wrong questions are not.
    #[test]
    fn only_load_and_outages_are_worth_waiting_for() {
        let answer = |text: &str| Error::Store {
            action: "ask",
            url: String::new(),
            source: clickhouse::error::Error::BadResponse(text.to_owned()),
        };
        assert!(answer("Code: 241. DB::Exception: memory limit (MEMORY_LIMIT_EXCEEDED)").is_transient());
        assert!(answer("Code: 202. DB::Exception: too many simultaneous queries").is_transient());
        assert!(!answer("Code: 62. DB::Exception: syntax error (SYNTAX_ERROR)").is_transient());
        assert!(!answer("Code: 2410. DB::Exception: no such code").is_transient());
        assert!(!Error::Selection("empty range".into()).is_transient());
        assert!(
            answer("Code: 516. DB::Exception: x: wrong password (AUTHENTICATION_FAILED)").is_unauthorized()
        );
        assert!(!answer("Code: 62. DB::Exception: syntax error (SYNTAX_ERROR)").is_unauthorized());
    }
}
