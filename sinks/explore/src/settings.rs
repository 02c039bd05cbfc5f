//! How ClickHouse is reached: config as written, settings as proved.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use clickhouse::Client;
use serde::Deserialize;

use crate::Error;

/// The `[clickhouse]` section as written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClickHouseConfig {
    /// HTTP address: `http://host:port`.
    pub url: String,
    /// Database.
    pub database: String,
    /// User.
    pub user: String,
    /// File with the user's password; its line end is left out. None: no password.
    pub password_file: Option<PathBuf>,
}

impl Default for ClickHouseConfig {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8123".into(),
            database: "strobe".into(),
            user: "strobe_reader".into(),
            password_file: None,
        }
    }
}

impl ClickHouseConfig {
    /// Proves the section and reads the password.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key, [`Error::PasswordFile`] the file.
    pub fn validate(self) -> Result<ClickHouse, Error> {
        let refuse = |name, value: &str, rule| {
            Err(Error::Setting {
                name,
                value: value.to_owned(),
                rule,
            })
        };
        let host = self.url.strip_prefix("http://");
        if host.is_none_or(|host| host.is_empty() || host.contains(['?', '#', '@', ' '])) {
            return refuse(
                "url",
                &self.url,
                "write `http://host:port`, without user, query or fragment",
            );
        }
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.database.is_empty() || self.database.len() > 64 || !self.database.chars().all(word) {
            return refuse(
                "database",
                &self.database,
                "1 to 64 letters, digits or underscores",
            );
        }
        if self.user.is_empty() {
            return refuse("user", &self.user, "name a user");
        }
        let password = match self.password_file {
            None => String::new(),
            Some(path) => match fs::read_to_string(&path) {
                Ok(text) => text.trim_end_matches(['\r', '\n']).to_owned(),
                Err(source) => return Err(Error::PasswordFile { path, source }),
            },
        };
        Ok(ClickHouse {
            url: self.url,
            database: self.database,
            user: self.user,
            password,
        })
    }
}

/// A ClickHouse that can be asked: proved settings. Its password is in no output.
#[derive(Clone, PartialEq, Eq)]
pub struct ClickHouse {
    url: String,
    database: String,
    user: String,
    password: String,
}

impl fmt::Debug for ClickHouse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClickHouse({}@{}/{})", self.user, self.url, self.database)
    }
}

impl ClickHouse {
    /// Returns the HTTP address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the database's name: letters, digits and underscores.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Returns a client of the database.
    pub fn client(&self) -> Client {
        self.client_without_database().with_database(&self.database)
    }

    /// Returns a client that works before the database exists.
    pub fn client_without_database(&self) -> Client {
        let client = Client::default()
            .with_url(&self.url)
            .with_user(&self.user)
            .with_product_info("strobe", env!("CARGO_PKG_VERSION"));
        match self.password.is_empty() {
            true => client,
            false => client.with_password(&self.password),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a wrong key is refused by its name, and that a password shows nowhere.
    #[test]
    fn names_what_is_wrong_and_shows_no_secret() {
        let named = |config: ClickHouseConfig| match config.validate() {
            Err(Error::Setting { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        let good = ClickHouseConfig::default();
        assert_eq!(
            named(ClickHouseConfig {
                url: "127.0.0.1:8123".into(),
                ..good.clone()
            }),
            "url"
        );
        assert_eq!(
            named(ClickHouseConfig {
                url: "http://u:p@host".into(),
                ..good.clone()
            }),
            "url"
        );
        assert_eq!(
            named(ClickHouseConfig {
                database: "a; DROP".into(),
                ..good.clone()
            }),
            "database"
        );
        assert_eq!(
            named(ClickHouseConfig {
                user: String::new(),
                ..good.clone()
            }),
            "user"
        );

        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "s3cret\n").unwrap();
        let settings = ClickHouseConfig {
            password_file: Some(file.path().into()),
            ..good.clone()
        }
        .validate()
        .unwrap();
        assert_eq!(settings.password, "s3cret");
        assert!(!format!("{settings:?}").contains("s3cret"));

        let missing = ClickHouseConfig {
            password_file: Some("/nowhere/password".into()),
            ..good
        };
        assert!(
            missing
                .validate()
                .unwrap_err()
                .to_string()
                .contains("/nowhere/password")
        );
    }
}
