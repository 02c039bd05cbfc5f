//! What an operator could fix. What is merely not known is a `Reason`, never an error.

use std::io;

use strobe_store::StoreError;

/// Why the symbolizer cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SymbolsError {
    /// The symbol store, or the folder with copies of a remote one, does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A symbol file does not hold together. It is made anew from the binary.
    #[error("symbol file is damaged: {what}")]
    Damaged {
        /// What does not hold.
        what: &'static str,
    },
    /// A symbol file cannot be read or written.
    #[error("symbol file cannot be read or written")]
    File {
        /// What the system said.
        source: io::Error,
    },
    /// The address to serve on cannot be had.
    #[error(
        "cannot listen on {address}: name another address in `symbols.listen`, or stop what listens there"
    )]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The symbol worker cannot be started.
    #[error("symbol worker `{command}` cannot be started")]
    WorkerStart {
        /// The command line.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// The symbol worker ended, or said something else, before its first request: a wrong command, or too little
    /// memory to start in.
    #[error("symbol worker `{command}` does not answer: {detail}")]
    WorkerUnusable {
        /// The command line.
        command: String,
        /// What was seen.
        detail: String,
    },
}

impl SymbolsError {
    /// Returns whether the same call may succeed later without anybody's doing.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::WorkerStart { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory
                )
            }
            Self::File { .. } => true,
            Self::WorkerUnusable { .. } | Self::Damaged { .. } | Self::Listen { .. } => false,
        }
    }
}
