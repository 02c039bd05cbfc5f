//! What an operator could fix.

use std::path::PathBuf;

use strobe_telemetry::TelemetryError;

/// Why the agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    ConfigRead {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The configuration is not right.
    #[error("{0}")]
    Config(String),
    /// A folder of the agent cannot be used.
    #[error("cannot use the folder {folder}: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The stop file cannot be written or removed.
    #[error("cannot change the stop file {file}: {source}; run this as the agent's user, or as root")]
    StopFile {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// The thread.
        name: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// A thread ended by a panic, which is a fault of ours.
    #[error("the thread {0} broke off: this is a fault of the agent; its log says where")]
    BrokeOff(&'static str),
    /// There is no such process, or it may not be looked at.
    #[error(
        "process {0} is gone, is the kernel's, or may not be looked at: run this as root, or with CAP_SYS_PTRACE"
    )]
    NoProcess(u32),
    /// The kernel's side.
    #[error(transparent)]
    Bpf(#[from] strobe_bpf::Error),
    /// The agent that runs here is not well.
    #[error("{0}")]
    Unwell(String),
    /// The endpoint for metrics.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] strobe_spool::Error),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] strobe_bus::Error),
    /// The kept unwind tables.
    #[error(transparent)]
    Unwind(#[from] strobe_unwind::UnwindError),
    /// The file of allowed signers.
    #[error(transparent)]
    Signing(#[from] strobe_signing::SigningError),
    /// The symbol store.
    #[error(transparent)]
    Store(#[from] strobe_store::StoreError),
}

impl AgentError {
    /// Returns the exit code: 78 for configuration, 77 for privileges, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::ConfigRead { .. }
            | Self::Config(_)
            | Self::Signing(_)
            | Self::Bus(strobe_bus::Error::Config(_))
            | Self::Telemetry(TelemetryError::Address { .. }) => 78,
            Self::Bpf(strobe_bpf::Error::MissingCapability { .. }) => 77,
            _ => 1,
        }
    }
}

/// Returns an error and its causes on one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}
