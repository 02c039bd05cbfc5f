//! What can go wrong, and whether waiting helps.

use std::io;
use std::path::{Path, PathBuf};

/// Why the spool could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is out of range.
    #[error("spool setting `{name}` is {value}: {rule}")]
    Setting {
        /// The field of [`crate::Settings`].
        name: &'static str,
        /// What it was.
        value: String,
        /// What it must be.
        rule: String,
    },
    /// Another process, or another part of this one, has the spool open.
    #[error("spool {directory} is in use by process {}", holder.map_or("unknown".into(), |pid| pid.to_string()))]
    Locked {
        /// The spool's directory.
        directory: PathBuf,
        /// The pid the holder wrote down; a pid of the holder's own namespace.
        holder: Option<u32>,
    },
    /// The record does not fit under `size_limit_bytes`; room comes with acknowledgements.
    #[error("spool is full: {used_bytes} of {limit_bytes} bytes")]
    Full {
        /// Bytes of all segment files.
        used_bytes: u64,
        /// `size_limit_bytes`.
        limit_bytes: u64,
    },
    /// There are as many segment files as are allowed; room comes with acknowledgements.
    #[error("spool has {count} segments, the most allowed")]
    TooManySegments {
        /// Segment files.
        count: usize,
    },
    /// The file system has no room, whatever the spool's own limit says.
    #[error("cannot {action} {path}: no space on the file system")]
    DiskFull {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The record is empty or larger than one record may be.
    #[error("record has {bytes} bytes: 1 to {limit_bytes} are allowed")]
    RecordSize {
        /// Bytes of the payload.
        bytes: usize,
        /// The most that [`crate::Settings::record_bytes_max`] allows.
        limit_bytes: usize,
    },
    /// [`crate::IN_FLIGHT_MAX`] records were read and not acknowledged.
    #[error("{limit} records are read and not acknowledged, the most allowed")]
    TooManyInFlight {
        /// [`crate::IN_FLIGHT_MAX`].
        limit: usize,
    },
    /// An fsync failed, or a half-written record could not be cut off: what the disk holds is no longer known.
    /// From now on every append is [`Error::Failed`].
    #[error("cannot {action} {path}; no more records are taken until the spool is opened anew")]
    Unsafe {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The writer refuses since an earlier [`Error::Unsafe`].
    #[error("spool takes no more records: {cause}")]
    Failed {
        /// The earlier error.
        cause: String,
    },
    /// The kernel gave no random bits for the epoch.
    #[error("cannot draw an epoch: {reason}")]
    Random {
        /// The system's answer.
        reason: String,
    },
    /// The disk refused.
    #[error("cannot {action} {path}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the same call can succeed later without anyone's help.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Full { .. }
                | Self::TooManySegments { .. }
                | Self::DiskFull { .. }
                | Self::TooManyInFlight { .. }
        )
    }

    /// Returns whether nothing more is taken until the spool is opened anew.
    pub fn needs_reopening(&self) -> bool {
        matches!(self, Self::Unsafe { .. } | Self::Failed { .. })
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, source }
            }
            _ => Self::Io { action, path, source },
        }
    }
}
