//! What the writer and the reader know in common: which segments there are and how far each is written.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::format::Epoch;

/// The most segment files: a process that is restarted every second, while the broker is away for 18 hours. Their
/// entries take 6 MiB.
pub const SEGMENTS_MAX: usize = 65_536;

/// No segment has this number or a higher one: far beyond any real one, and sums with it cannot overflow.
pub(crate) const NUMBER_LIMIT: u64 = 1 << 62;

const SUFFIX: &str = ".segment";
const DIGITS: usize = 20;

/// One segment file, as both ends see it.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub number: u64,
    pub host: Arc<str>,
    pub epoch: Epoch,
    pub first_sequence: u64,
    /// Where the first record is.
    pub start: u64,
    /// Where the last whole record ends.
    pub end: u64,
    /// What the file takes of the size limit.
    pub bytes: u64,
    /// Records from the frontier on that were whole when last looked at.
    pub records: u64,
    /// Nothing will be appended any more.
    pub closed: bool,
}

/// The state behind the lock. Nothing slow is done while it is held.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// In order of their numbers.
    pub segments: VecDeque<Segment>,
    pub used_bytes: u64,
    pub unacknowledged: u64,
    /// Records that were whole once and could not be read back.
    pub lost: u64,
}

impl State {
    /// Returns the first segment whose number is at least `number`.
    pub fn segment_from(&self, number: u64) -> Option<&Segment> {
        self.segments
            .get(self.segments.partition_point(|segment| segment.number < number))
    }

    /// Returns whether a record was written at or after (`number`, `offset`).
    pub fn has_record_from(&self, number: u64, offset: u64) -> bool {
        let first = self.segments.partition_point(|segment| segment.number < number);
        self.segments.range(first..).any(|segment| {
            let from = if segment.number == number {
                offset.max(segment.start)
            } else {
                segment.start
            };
            segment.end > from
        })
    }
}

/// The state and the bell that rings when a record was appended.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    appended: Condvar,
}

impl Shared {
    pub fn new(state: State) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            appended: Condvar::new(),
        })
    }

    /// Returns the state. A thread that panicked holding it left it whole: each update is plain arithmetic.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ring(&self) {
        self.appended.notify_all();
    }

    /// Waits until `ready` or for `timeout`, and returns whether it is ready.
    pub fn wait(&self, timeout: Duration, ready: impl Fn(&State) -> bool) -> bool {
        let waited = self
            .appended
            .wait_timeout_while(self.lock(), timeout, |state| !ready(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ready(&state)
    }
}

/// Returns where the segment of that number is.
pub(crate) fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:0DIGITS$}{SUFFIX}"))
}

/// Returns the number of the segment that is named so, if one can be.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let all_digits = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits
        .then(|| digits.parse().ok())
        .flatten()
        .filter(|&number| number < NUMBER_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that only names of full width are segments', so that no two names mean one number.
    #[test]
    fn one_name_per_number() {
        for number in [0, 1, 42, NUMBER_LIMIT - 1] {
            let path = segment_path(Path::new("/spool"), number);
            assert_eq!(
                segment_number(path.file_name().unwrap().to_str().unwrap()),
                Some(number)
            );
        }
        for name in [
            "1.segment",
            "00000000000000000001",
            "+0000000000000000001.segment",
            "checkpoint",
            "99999999999999999999.segment",
            "18446744073709551615.segment",
        ] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }
}
