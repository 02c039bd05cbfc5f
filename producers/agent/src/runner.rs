//! Runs that somebody asks for: who asks, what is allowed here, who waits for what, and what became of it.
//!
//! A thread of its own begins them, since the kernel takes its time to load a program and to open events; the sampling thread takes
//! each over once its events are open (`sampling/asked.rs`), and ends it. Both sides know a run by its [`Job`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use strobe_bpf::Sampler;
use strobe_bus::Shutdown;
use strobe_event::{Cause, RunId};

use crate::leases::{Class, Leases, NotQueued, Obstacle, Wish};
use crate::profilers::{Profiler, Profilers, Rate};

mod begin;

pub use begin::{Beginning, QUEUE};

/// Runs that ended and are remembered, so that the same run, asked for again, is not run twice.
const REMEMBERED: usize = 1_024;
/// A run that began less than this ago is joined by an equal one: its samples are as young as those of a new one would be.
const JOINED_WITHIN: Duration = Duration::from_secs(1);
/// Processes of one run: those of a service that somebody would name one by one.
const PIDS_MAX: usize = strobe_bpf::WATCHED_MAX;
/// How often a ticket looks whether samples came.
const LOOK: Duration = Duration::from_millis(100);

/// What somebody wants to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The run's name.
    pub run: RunId,
    /// The profiler.
    pub profiler: String,
    /// For how long.
    pub duration: Duration,
    /// How often, if not as the profiler says.
    pub rate: Option<Rate>,
    /// Whom it looks at.
    pub target: Target,
    /// What the profiler asks for: which address, which tracepoint.
    pub parameters: BTreeMap<String, String>,
    /// Why.
    pub cause: Cause,
    /// It does not start any more when it has waited for so long.
    pub start_within: Duration,
}

/// Whom a run looks at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Everything on this host.
    Host,
    /// One service.
    Service(String),
    /// These processes.
    Pids(Vec<u32>),
}

/// Why something that was asked for is not even queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such profiler.
    #[error("{0}")]
    Profiler(String),
    /// This host cannot do it.
    #[error("{profiler} cannot run here: {why}")]
    Unavailable {
        /// The profiler.
        profiler: String,
        /// Why not.
        why: String,
    },
    /// Longer, or more often, than the profiler's limits allow.
    #[error("{0}")]
    Limit(String),
    /// A parameter that is missing, unknown or wrong.
    #[error("{0}")]
    Parameter(String),
    /// Nobody to look at.
    #[error("{0}")]
    Target(String),
    /// No room, or never room enough.
    #[error(transparent)]
    Queue(#[from] NotQueued),
    /// The agent ends.
    #[error("the agent is stopping")]
    Ending,
}

impl Refusal {
    /// Returns a stable word for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Profiler(_) => "unknown_profiler",
            Self::Unavailable { .. } => "unavailable",
            Self::Limit(_) => "limit",
            Self::Parameter(_) => "parameter",
            Self::Target(_) => "target",
            Self::Queue(NotQueued::Full) => "queue_full",
            Self::Queue(NotQueued::NeverFits { .. }) => "too_many",
            Self::Ending => "ending",
        }
    }
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It waits.
    Queued {
        /// For whom or what.
        behind: Vec<String>,
        /// Its place in the queue, from 1.
        place: usize,
    },
    /// It samples.
    Running {
        /// Since when, microseconds since 1970.
        since_us: u64,
        /// Samples taken in closed batches.
        taken: u64,
        /// Of them, those that are in the batches.
        kept: u64,
    },
    /// It is over.
    Ended(Ending),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How.
    pub how: How,
    /// Why, where that needs saying.
    pub why: String,
    /// Samples taken.
    pub taken: u64,
    /// Of them, those that are in batches.
    pub kept: u64,
    /// Time sampled, microseconds.
    pub done_us: u64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As planned.
    Done,
    /// Somebody stopped it.
    Stopped,
    /// It broke off, or could not begin.
    Failed,
    /// It waited, and never began.
    Refused,
}

/// Asks for runs. Clones ask the same runner.
#[derive(Debug, Clone)]
pub struct Runner {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    profilers: Profilers,
    table: Mutex<Table>,
    changed: Condvar,
    to_thread: SyncSender<Command>,
    began: Instant,
}

/// What the runner's thread is woken for.
#[derive(Debug)]
pub enum Command {
    /// Something changed: look what can start.
    Look,
    /// A run is over: to close its events takes time.
    Bury(Box<Sampler>),
}

#[derive(Debug)]
struct Table {
    leases: Leases,
    jobs: BTreeMap<RunId, Arc<Job>>,
    by_wish: BTreeMap<u64, RunId>,
    ended: VecDeque<RunId>,
    next_wish: u64,
    is_over: bool,
}

/// One run, as all who deal with it know it.
#[derive(Debug)]
pub struct Job {
    ask: Ask,
    profiler: Profiler,
    rate: Rate,
    wish: u64,
    taken: AtomicU64,
    kept: AtomicU64,
    state: Mutex<State>,
    inner: Weak<Inner>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Who still wants it.
    askers: usize,
    stop: Option<String>,
    /// Who holds what it needs, outside of this agent.
    held_by: Vec<String>,
}

#[derive(Debug, Clone)]
enum Phase {
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
    job: Arc<Job>,
    joined: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Returns a runner with so much of each resource, and what its thread is woken by.
    pub fn new(profilers: Profilers, capacity: BTreeMap<String, u32>) -> (Self, Receiver<Command>) {
        let (to_thread, commands) = std::sync::mpsc::sync_channel(QUEUE);
        let inner = Inner {
            profilers,
            table: Mutex::new(Table {
                leases: Leases::new(capacity),
                jobs: BTreeMap::new(),
                by_wish: BTreeMap::new(),
                ended: VecDeque::new(),
                next_wish: 0,
                is_over: false,
            }),
            changed: Condvar::new(),
            to_thread,
            began: Instant::now(),
        };
        let inner = Arc::new(inner);
        (Self { inner }, commands)
    }

    /// Returns the profilers of this host.
    pub fn profilers(&self) -> &Profilers {
        &self.inner.profilers
    }

    /// Queues a run, or joins it to an equal one that waits or has just begun. Returns at once.
    ///
    /// # Errors
    /// [`Refusal`] says why it is not even queued, and what to do.
    pub fn ask(&self, ask: Ask) -> Result<Ticket, Refusal> {
        let profiler = self
            .inner
            .profilers
            .get(&ask.profiler)
            .map_err(Refusal::Profiler)?;
        let rate = ask.rate.unwrap_or(profiler.rate);
        profiler.check_ask(ask.duration, rate).map_err(Refusal::Limit)?;
        check_target(&ask.target)?;
        begin::check_parameters(profiler, &ask.parameters)?;
        begin::check_host(profiler)?;
        let mut table = locked(&self.inner.table);
        if table.is_over {
            return Err(Refusal::Ending);
        }
        if let Some(job) = table.jobs.get(&ask.run) {
            let job = Arc::clone(job);
            return Ok(Ticket { job, joined: false });
        }
        if let Some(job) = table.jobs.values().find(|job| job.is_joined_by(&ask, rate)) {
            let job = Arc::clone(job);
            locked(&job.state).askers += 1;
            return Ok(Ticket { job, joined: true });
        }
        let wish = table.next_wish;
        table.next_wish += 1;
        let needs = profiler
            .resources
            .iter()
            .map(|(resource, &count)| (resource.name().to_owned(), count));
        table.leases.ask(Wish {
            id: wish,
            class: match ask.cause {
                Cause::OnDemand => Class::OnDemand,
                Cause::Triggered | Cause::Ring => Class::Triggered,
                Cause::Continuous => Class::Continuous,
            },
            owner: ask.target.owner(),
            profiler: profiler.name.clone(),
            needs: needs.collect(),
            not_with: profiler.not_with.clone(),
            latest_ms: self.inner.now_ms() + ask.start_within.as_millis() as u64,
        })?;
        let run = ask.run;
        let job = Arc::new(Job {
            profiler: profiler.clone(),
            ask,
            rate,
            wish,
            taken: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Waiting,
                askers: 1,
                stop: None,
                held_by: Vec::new(),
            }),
            inner: Arc::downgrade(&self.inner),
        });
        table.jobs.insert(run, Arc::clone(&job));
        table.by_wish.insert(wish, run);
        drop(table);
        self.inner.wake();
        Ok(Ticket { job, joined: false })
    }

    /// Stops everything that runs and refuses everything that waits.
    pub fn stop_all(&self, why: &str) {
        let jobs: Vec<Arc<Job>> = locked(&self.inner.table).jobs.values().cloned().collect();
        for job in jobs {
            job.stop(why);
        }
    }

    /// Does the thread's work until the wish to stop.
    pub fn run(&self, commands: &Receiver<Command>, beginning: &Beginning, shutdown: &Shutdown) {
        while !shutdown.is_requested() {
            match commands.recv_timeout(LOOK) {
                Ok(Command::Bury(sampler)) => drop(sampler),
                Ok(Command::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.refuse_late(beginning);
            while let Some(job) = self.next() {
                beginning.begin(&job);
            }
        }
        locked(&self.inner.table).is_over = true;
        self.stop_all("the agent was stopped");
        // The sampling thread ends those that run; their events need not be closed before the process is.
        while let Ok(Command::Bury(_) | Command::Look) = commands.recv_timeout(LOOK) {}
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut table = locked(&self.inner.table);
        let wish = table.leases.start_next(self.inner.now_ms())?;
        let run = table.by_wish.get(&wish.id)?;
        table.jobs.get(run).cloned()
    }

    fn refuse_late(&self, beginning: &Beginning) {
        let late = {
            let mut table = locked(&self.inner.table);
            let now_ms = self.inner.now_ms();
            let names = |table: &Table, id| table.jobs.get(table.by_wish.get(&id)?).cloned();
            let waits: Vec<_> = table.leases.late(now_ms);
            let late: Vec<_> = waits
                .iter()
                .filter_map(|&id| {
                    let behind = table.behind(id);
                    Some((names(&table, id)?, behind))
                })
                .collect();
            table.leases.expire(now_ms);
            late
        };
        for (job, behind) in late {
            let mut why = format!(
                "it waited for {}",
                humantime::format_duration(Duration::from_secs(job.ask.start_within.as_secs()))
            );
            if !behind.is_empty() {
                why += &format!(", behind {}", behind.join(", "));
            }
            beginning.refuse(&job, &why);
        }
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn wake(&self) {
        self.changed.notify_all();
        // Full: the thread has enough to look at, and will look at this as well.
        let _ = self.to_thread.try_send(Command::Look);
    }
}

impl Table {
    /// Returns what a waiting run waits for, in words.
    fn behind(&self, wish: u64) -> Vec<String> {
        let job_of = |id: &u64| self.jobs.get(self.by_wish.get(id)?);
        let held_by = || {
            job_of(&wish)
                .map(|job| locked(&job.state).held_by.clone())
                .unwrap_or_default()
        };
        let Some((_, obstacles)) = self.leases.waits_for(wish) else {
            // It is being tried, once more.
            return held_by();
        };
        let mut behind = Vec::new();
        for obstacle in &obstacles {
            match obstacle {
                Obstacle::Run(id) | Obstacle::Waiting(id) => {
                    let name = |job: &Arc<Job>| format!("{} run {}", job.profiler.name, job.ask.run);
                    behind.extend(job_of(id).map(name));
                }
                Obstacle::Places => behind.push("other runs: all places are taken".to_owned()),
                Obstacle::Outside(resource) => {
                    let held_by = held_by();
                    match held_by.is_empty() {
                        true => behind.push(format!("another program, which holds every {resource}")),
                        false => behind.extend(held_by),
                    }
                }
            }
        }
        behind
    }

    fn remember(&mut self, run: RunId) {
        self.ended.push_back(run);
        while self.ended.len() > REMEMBERED {
            if let Some(job) = self.ended.pop_front().and_then(|run| self.jobs.remove(&run)) {
                self.by_wish.remove(&job.wish);
            }
        }
    }
}

impl Target {
    fn owner(&self) -> String {
        match self {
            Self::Host => String::new(),
            Self::Service(service) => service.clone(),
            Self::Pids(pids) => pids.first().map(u32::to_string).unwrap_or_default(),
        }
    }
}

fn check_target(target: &Target) -> Result<(), Refusal> {
    match target {
        Target::Host => Ok(()),
        Target::Service(service) if service.is_empty() => {
            Err(Refusal::Target("the service's name is empty".into()))
        }
        Target::Service(_) => Ok(()),
        Target::Pids(pids) if pids.is_empty() || pids.len() > PIDS_MAX => Err(Refusal::Target(format!(
            "{} processes: name 1 to {PIDS_MAX}",
            pids.len()
        ))),
        Target::Pids(pids) => match pids.iter().find(|pid| !begin::is_there(**pid)) {
            Some(pid) => Err(Refusal::Target(format!("no process {pid} is here"))),
            None => Ok(()),
        },
    }
}

impl Job {
    /// Tells whether a sample is watched; `service` is asked only where that decides. Processes are told apart in the kernel.
    pub fn watches(&self, service: impl FnOnce() -> Arc<str>) -> bool {
        match &self.ask.target {
            Target::Host | Target::Pids(_) => true,
            Target::Service(wanted) => *service() == **wanted,
        }
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

    fn is_joined_by(&self, ask: &Ask, rate: Rate) -> bool {
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

    fn end(&self, how: How, why: String, done_us: u64) {
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

    fn stop(&self, why: &str) {
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
