//! Reads that a profiled process can hold up for ever, done by a thread that may be left behind.
//!
//! A mapped file may lie on a share whose server is gone, or in a file system that the profiled process itself serves (FUSE);
//! so may the page that holds its environment. Such a read does not end, and no timeout of its own ends it. Sampling must go
//! on: it lets a thread read, waits [`WAIT`] for it, and else goes on without the answer and with a new thread. How many
//! threads may be stuck is bounded, and so is the share of time that slow answers may take; beyond, nothing is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Longest wait for one read: as long as a cold read from a slow disk takes, and half of the pause between two readings of the
/// ring, which is made to hold far more.
const WAIT: Duration = Duration::from_millis(100);
/// A read that took longer is slow: what the page cache or a disk made of silicon has comes sooner.
const SLOW: Duration = Duration::from_millis(10);
/// Time that may go into slow reads at once, as many do when an agent starts on a host with cold disks ...
const SLOW_TOTAL: Duration = Duration::from_secs(5);
/// ... and one part in so many of the time after that: who answers every read just in time takes no more from sampling.
const SLOW_SHARE: u32 = 20;
/// Threads that may be stuck at once: together they hold up sampling for less than a second.
const STUCK_MAX: usize = 8;
/// Stack of a thread: it reads headers and notes, into memory that it allocates.
const STACK_BYTES: usize = 256 << 10;

type Work = Box<dyn FnOnce() + Send>;

/// Reads with patience that ends.
#[derive(Debug, Default)]
pub struct Patience {
    /// The thread that waits for work, as long as it is not stuck.
    reader: Option<SyncSender<Work>>,
    /// Threads that have not ended: stuck ones, and `reader`'s.
    alive: Arc<AtomicUsize>,
    /// Time that slow reads have taken and that is not forgiven yet, as of `forgiven`.
    slow: Duration,
    forgiven: Option<Instant>,
    /// Reads whose end was not waited for, or that were not begun because too many are stuck or slow. Healthy: 0.
    pub given_up: u64,
}

/// Counts a thread for as long as it lives.
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Patience {
    /// Returns what `work` returns, or nothing where it takes too long.
    pub fn ask<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let begun = Instant::now();
        if !self.may_be_slow(begun) {
            self.given_up += 1;
            return None;
        }
        let (answer, answered) = sync_channel(1);
        let work: Work = Box::new(move || {
            // Nobody may be waiting any more.
            let _ = answer.send(work());
        });
        let reader = match self.reader.take().or_else(|| self.start()) {
            Some(reader) if reader.send(work).is_ok() => reader,
            _ => {
                self.given_up += 1;
                return None;
            }
        };
        let result = answered.recv_timeout(WAIT);
        let taken = begun.elapsed();
        if taken > SLOW {
            self.slow += taken;
        }
        match result {
            Ok(value) => {
                self.reader = Some(reader);
                Some(value)
            }
            Err(_) => {
                // The thread ends when its read does, since nobody can give it work any more.
                self.given_up += 1;
                None
            }
        }
    }

    /// Returns whether one more slow read may take its time.
    fn may_be_slow(&mut self, now: Instant) -> bool {
        let since = self
            .forgiven
            .replace(now)
            .map_or(Duration::ZERO, |last| now - last);
        self.slow = self.slow.saturating_sub(since / SLOW_SHARE);
        self.slow + WAIT <= SLOW_TOTAL
    }

    fn start(&self) -> Option<SyncSender<Work>> {
        if self.alive.load(Relaxed) >= STUCK_MAX {
            return None;
        }
        let (sender, receiver) = sync_channel::<Work>(1);
        self.alive.fetch_add(1, Relaxed);
        let alive = Alive(Arc::clone(&self.alive));
        std::thread::Builder::new()
            .name("reads".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let _alive = alive;
                receiver.iter().for_each(|work| work());
            })
            .ok()
            .map(|_| sender)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Checks that reads that do not end hold nobody up for long, that no more than a few threads get stuck by them, and
    /// that reading goes on once they have ended.
    #[test]
    fn a_read_that_does_not_end_holds_nobody_up() {
        let mut patience = Patience::default();
        assert_eq!(patience.ask(|| 1), Some(1));
        let begun = Instant::now();
        let mut held = Vec::new();
        for _ in 0..3 * STUCK_MAX {
            let (end, wait) = sync_channel::<()>(0);
            held.push(end);
            assert_eq!(patience.ask(move || wait.recv()), None);
        }
        assert!(
            begun.elapsed() < WAIT * (STUCK_MAX as u32 + 4),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(patience.alive.load(Relaxed), STUCK_MAX);
        assert_eq!(patience.given_up, 3 * STUCK_MAX as u64);

        // Letting go of all of them is no slow read of anybody's.
        patience.slow = Duration::ZERO;
        held.clear();
        while patience.alive.load(Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(patience.ask(|| 2), Some(2));
    }

    /// Checks that reads that all end just in time take a bounded part of the time.
    #[test]
    fn reads_that_are_slow_on_purpose_take_a_bounded_time() {
        let mut patience = Patience::default();
        let begun = Instant::now();
        assert!(patience.may_be_slow(begun));
        patience.slow = SLOW_TOTAL;
        assert_eq!(patience.ask(|| 1), None, "there is no time left");
        assert!(!patience.may_be_slow(begun + SLOW_SHARE * WAIT / 2));
        assert!(patience.may_be_slow(begun + SLOW_SHARE * WAIT * 2));
        patience.slow = Duration::ZERO;
        assert_eq!(patience.ask(|| std::thread::sleep(2 * SLOW)), Some(()));
        assert!(patience.slow >= 2 * SLOW);
        let before = patience.slow;
        assert_eq!(patience.ask(|| ()), Some(()));
        assert!(patience.slow <= before + SLOW, "a quick read costs nothing");
    }
}
