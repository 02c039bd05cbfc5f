//! What an operator could fix.

use std::net::SocketAddr;

/// Why alerts cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum AlertsError {
    /// The address is none.
    #[error("`alerts.listen` is `{0}`: write it as `127.0.0.1:9645`")]
    Address(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The runtime cannot be started.
    #[error("cannot start: {0}")]
    Start(std::io::Error),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] strobe_bus::Error),
}
