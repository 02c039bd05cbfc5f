//! The part `[alerts]` of a configuration, as written and as proved.

use std::net::SocketAddr;

use serde::Deserialize;
use strobe_bus::BusSettings;

use crate::error::AlertsError;

/// As written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertsConfig {
    /// Where the webhook listens. Only this host unless said otherwise: whoever reaches it can say that an alert fires.
    pub listen: String,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9645".into(),
        }
    }
}

impl AlertsConfig {
    /// Returns the settings that it stands for.
    ///
    /// # Errors
    /// [`AlertsError::Address`].
    pub fn validate(self, bus: BusSettings) -> Result<Settings, AlertsError> {
        match self.listen.parse() {
            Ok(listen) => Ok(Settings { bus, listen }),
            Err(_) => Err(AlertsError::Address(self.listen)),
        }
    }
}

/// As proved.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The bus.
    pub bus: BusSettings,
    /// Where the webhook listens.
    pub listen: SocketAddr,
}
