//! libbpf's own words: to `tracing` at debug, and the last of them into the error when a program is refused.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::PrintLevel;

/// The verifier says what it objects to at the end. A whole log has millions of lines.
const KEPT_BYTES: usize = 8 << 10;

static LAST: Mutex<VecDeque<u8>> = Mutex::new(VecDeque::new());
static LOADING: Mutex<()> = Mutex::new(());

/// Held while one object is loaded, so that what is kept is about that one.
pub struct Recording {
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Recording {
    /// Starts with nothing kept.
    pub fn start() -> Self {
        let one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        libbpf_rs::set_print(Some((PrintLevel::Debug, record)));
        last().clear();
        Self {
            _one_at_a_time: one_at_a_time,
        }
    }

    /// Returns the last of what was said.
    pub fn take(self) -> String {
        let bytes: Vec<u8> = last().drain(..).collect();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }
}

fn last() -> MutexGuard<'static, VecDeque<u8>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(level: PrintLevel, message: String) {
    tracing::debug!(target: "libbpf", "{}", message.trim_end());
    if level != PrintLevel::Debug {
        let mut last = last();
        last.extend(message.bytes());
        let excess = last.len().saturating_sub(KEPT_BYTES);
        last.drain(..excess);
    }
}
