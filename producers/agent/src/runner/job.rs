//! One run, as the runner, the sampling thread and its askers know it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use strobe_bpf::Sampler;
use strobe_event::RunId;

use super::ask::{Ask, Ending, How, Standing, Target};
use super::{Command, Inner, LOOK, locked};
use crate::profilers::{Event, Profiler, Rate};

/// A run that began less than this ago is joined by an equal one: its samples are as young as those of a new one would be.
const JOINED_WITHIN: Duration = Duration::from_secs(1);

/// One run, as all who deal with it know it.
#[derive(Debug)]
pub struct Job {
    pub(super) ask: Ask,
    pub(super) profiler: Profiler,
    pub(super) rate: Rate,
    pub(super) wish: u64,
    pub(super) taken: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) state: Mutex<State>,
    pub(super) inner: Weak<Inner>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// Who still wants it.
    pub(super) askers: usize,
    pub(super) stop: Option<String>,
    /// Who holds what it needs, outside of this agent.
    pub(super) held_by: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) enum Phase {
    Waiting,
    Running { since: Instant, since_us: u64 },
    Ended(Ending),
}

/// A run that the sampling thread has ended.
pub struct Closed {
    /// The kernel's side, to be closed.
    pub sampler: Sampler,
    /// How it ended.
    pub how: How,
    /// Why.
    pub why: String,
    /// Time sampled, microseconds.
    pub done_us: u64,
}

/// One asker's hold on a run. To drop it does not stop the run.
#[derive(Debug)]
pub struct Ticket {
    pub(super) job: Arc<Job>,
    pub(super) joined: bool,
}

impl Job {
    /// Tells whether a sample is watched; `service` is asked only where that decides. Processes are told apart in the kernel.
    pub fn watches(&self, service: impl FnOnce() -> Arc<str>) -> bool {
        match &self.ask.target {
            Target::Host | Target::Pids(_) => true,
            Target::Service(wanted) => *service() == **wanted,
        }
    }

    /// Returns what one sample stands for as it was asked for.
    pub fn period(&self) -> u64 {
        Profiler::value(self.rate)
    }

    /// Returns how many samples a second it may take.
    pub fn samples_per_second_max(&self) -> u64 {
        self.profiler.limits.samples_per_second_max
    }

    /// Tells whether a longer period makes it cheaper: of a breakpoint, each touch costs the same.
    pub fn can_be_thinner(&self) -> bool {
        self.profiler.event != Event::Breakpoint {}
    }

    /// Returns why it is to be stopped, where somebody wants that.
    pub fn stop_wanted(&self) -> Option<String> {
        locked(&self.state).stop.clone()
    }

    /// Says how many samples were taken, and how many of them are in batches.
    pub fn progress(&self, taken: u64, kept: u64) {
        self.taken.store(taken, Relaxed);
        self.kept.store(kept, Relaxed);
    }

    /// Ends it, and has its events closed by the runner's thread.
    pub fn close(&self, closed: Closed) {
        let Closed {
            sampler,
            how,
            why,
            done_us,
        } = closed;
        self.end(how, why, done_us);
        if let Some(inner) = self.inner.upgrade() {
            // Where the thread is behind, they are closed here.
            let _ = inner.to_thread.try_send(Command::Bury(Box::new(sampler)));
        }
    }

    pub(super) fn is_joined_by(&self, ask: &Ask, rate: Rate) -> bool {
        let state = locked(&self.state);
        let is_young = match &state.phase {
            Phase::Waiting => true,
            Phase::Running { since, .. } => since.elapsed() < JOINED_WITHIN,
            Phase::Ended(_) => false,
        };
        let mine = &self.ask;
        is_young
            && state.stop.is_none()
            && rate == self.rate
            && (&ask.profiler, ask.duration, ask.cause) == (&mine.profiler, mine.duration, mine.cause)
            && (&ask.target, &ask.parameters) == (&mine.target, &mine.parameters)
    }

    pub(super) fn end(&self, how: How, why: String, done_us: u64) {
        let (taken, kept) = (self.taken.load(Relaxed), self.kept.load(Relaxed));
        locked(&self.state).phase = Phase::Ended(Ending {
            how,
            why,
            taken,
            kept,
            done_us,
        });
        if let Some(inner) = self.inner.upgrade() {
            let mut table = locked(&inner.table);
            table.leases.end(self.wish);
            table.remember(self.ask.run);
            drop(table);
            inner.wake();
        }
    }

    pub(super) fn stop(&self, why: &str) {
        let phase = {
            let mut state = locked(&self.state);
            state.stop.get_or_insert_with(|| why.to_owned());
            state.phase.clone()
        };
        let Some(inner) = self.inner.upgrade() else { return };
        let waited =
            matches!(phase, Phase::Waiting) && locked(&inner.table).leases.withdraw(self.wish).is_some();
        // Else it runs, or is about to: then whoever samples sees the wish.
        if waited {
            self.end(How::Stopped, why.to_owned(), 0);
        }
    }
}

impl Ticket {
    /// Returns the run's name: another than the one that was asked for where the run was joined.
    pub fn run(&self) -> RunId {
        self.job.ask.run
    }

    /// Tells whether an equal run was there already.
    pub fn joined(&self) -> bool {
        self.joined
    }

    /// Returns where the run stands.
    pub fn standing(&self) -> Standing {
        let phase = locked(&self.job.state).phase.clone();
        match phase {
            Phase::Ended(ending) => Standing::Ended(ending),
            Phase::Running { since_us, .. } => Standing::Running {
                since_us,
                taken: self.job.taken.load(Relaxed),
                kept: self.job.kept.load(Relaxed),
            },
            Phase::Waiting => {
                let (mut behind, mut place) = (Vec::new(), 1);
                if let Some(inner) = self.job.inner.upgrade() {
                    let table = locked(&inner.table);
                    place = table
                        .leases
                        .waits_for(self.job.wish)
                        .map_or(1, |(place, _)| place);
                    behind = table.behind(self.job.wish);
                }
                Standing::Queued { behind, place }
            }
        }
    }

    /// Waits until the run stands otherwise than at `last`, but not longer than `timeout`; returns where it stands then.
    pub fn wait(&self, last: &Standing, timeout: Duration) -> Standing {
        let until = Instant::now() + timeout;
        loop {
            let standing = self.standing();
            let left = until.saturating_duration_since(Instant::now());
            if standing != *last || left.is_zero() {
                return standing;
            }
            let Some(inner) = self.job.inner.upgrade() else {
                return standing;
            };
            let table = locked(&inner.table);
            // What was counted meanwhile tells nobody: so not longer than that.
            let _ = inner.changed.wait_timeout(table, left.min(LOOK));
        }
    }

    /// Says that this asker no longer wants it. It ends when nobody does.
    pub fn stop(&self, why: &str) {
        let left = {
            let mut state = locked(&self.job.state);
            state.askers = state.askers.saturating_sub(1);
            state.askers
        };
        if left == 0 {
            self.job.stop(why);
        }
    }
}
