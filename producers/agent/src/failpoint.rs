//! Points at which tests kill the agent. Without the variable `STROBE_FAIL_AT` they cost one comparison.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static POINT: OnceLock<Option<(String, u64)>> = OnceLock::new();
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Ends the process as `kill -9` would when `STROBE_FAIL_AT` is `point`, or `point:n` at the n-th passage.
pub fn hit(point: &str) {
    let wanted = POINT.get_or_init(|| {
        let text = std::env::var("STROBE_FAIL_AT").ok()?;
        match text.rsplit_once(':') {
            Some((name, count)) => Some((name.to_owned(), count.parse().ok()?)),
            None => Some((text, 1)),
        }
    });
    if let Some((name, count)) = wanted
        && name == point
        && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == *count
    {
        let own = rustix::process::getpid();
        // A signal to ourselves cannot fail; if it did, going on is what the rest of the world would see anyway.
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}
