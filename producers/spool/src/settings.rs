//! What the owner decides about a spool.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;
use crate::format::{HOST_BYTES_MAX, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES_MAX};

/// The smallest segment: its header with the longest host, and a record worth having.
const SEGMENT_BYTES_MIN: u64 = 512;

/// Where a spool is and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The spool's own directory.
    pub directory: PathBuf,
    /// The owner's name: the first part of each identity.
    pub host: String,
    /// The most that all segment files together may take on disk; at least two segments, so that the one being
    /// written can never hold up all others.
    pub size_limit_bytes: u64,
    /// Older records are not worth sending ([`crate::Reader::is_too_old`]). Below Kafka's retention.
    pub age_limit: Duration,
    /// A segment is closed before it grows past this. It is what one acknowledgement can free, and what is
    /// repeated at most after a power cut that also took the checkpoint.
    pub segment_bytes: u64,
    /// A segment that is older is closed at the next append or [`crate::Writer::sync_if_due`], so that a quiet host
    /// gives its disk back too.
    pub segment_age: Duration,
    /// The longest time that an appended record may be lost to a power cut.
    pub sync_interval: Duration,
}

impl Settings {
    /// Returns the defaults for a spool of `host` in `directory`: 1 GiB, a day, segments of 16 MiB or 60 s, half a second.
    pub fn new(directory: impl Into<PathBuf>, host: impl Into<String>) -> Self {
        Self {
            directory: directory.into(),
            host: host.into(),
            size_limit_bytes: 1 << 30,
            age_limit: Duration::from_secs(24 * 3600),
            segment_bytes: 16 << 20,
            segment_age: Duration::from_secs(60),
            sync_interval: Duration::from_millis(500),
        }
    }

    /// Returns the largest payload that is taken: [`RECORD_BYTES_MAX`], or what fits in one segment.
    pub fn record_bytes_max(&self) -> usize {
        let overhead = (SEGMENT_HEADER_BYTES_MAX + RECORD_HEADER_BYTES) as u64;
        let room = self.segment_bytes.saturating_sub(overhead);
        usize::try_from(room).unwrap_or(usize::MAX).min(RECORD_BYTES_MAX)
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |name, value: String, rule: String| Err(Error::Setting { name, value, rule });
        if self.host.is_empty() || self.host.len() > HOST_BYTES_MAX {
            let rule = format!("1 to {HOST_BYTES_MAX} bytes of UTF-8");
            return refuse("host", format!("{} bytes", self.host.len()), rule);
        }
        if self.segment_bytes < SEGMENT_BYTES_MIN {
            let rule = format!("at least {SEGMENT_BYTES_MIN}");
            return refuse("segment_bytes", self.segment_bytes.to_string(), rule);
        }
        if self.size_limit_bytes / 2 < self.segment_bytes {
            let rule = format!("at least two segments of {} bytes", self.segment_bytes);
            return refuse("size_limit_bytes", self.size_limit_bytes.to_string(), rule);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a setting out of range is refused by its name.
    #[test]
    fn names_the_setting_that_is_wrong() {
        let good = Settings::new("/nowhere", "host");
        assert!(good.validate().is_ok());
        let named = |settings: Settings| match settings.validate() {
            Err(Error::Setting { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            named(Settings {
                host: String::new(),
                ..good.clone()
            }),
            "host"
        );
        assert_eq!(
            named(Settings {
                host: "h".repeat(256),
                ..good.clone()
            }),
            "host"
        );
        assert_eq!(
            named(Settings {
                segment_bytes: 511,
                ..good.clone()
            }),
            "segment_bytes"
        );
        assert_eq!(
            named(Settings {
                size_limit_bytes: (32 << 20) - 1,
                ..good
            }),
            "size_limit_bytes"
        );
    }
}
