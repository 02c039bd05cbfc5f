//! What can go wrong here.

use std::io;

/// What can go wrong with what a process says of itself.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The address is none.
    #[error(
        "`{key}` is `{value}`: write it as `address:port`, `127.0.0.1:9641` for example, or leave it empty for no endpoint"
    )]
    Address {
        /// The configuration's key.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// The endpoint cannot listen.
    #[error(
        "the endpoint for metrics cannot listen on {address}; stop who holds it, or choose another address"
    )]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A thread of the endpoint cannot be started.
    #[error("the thread for metrics cannot be started")]
    Thread {
        /// Why.
        source: io::Error,
    },
}
