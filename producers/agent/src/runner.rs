//! Runs that somebody asks for: who asks, what is allowed here, who waits for what, and what became of it.
//!
//! A thread of its own begins them, since the kernel takes its time to load a program and to open events; the sampling thread takes
//! each over once its events are open (`sampling/asked.rs`), and ends it. Both sides know a run by its [`Job`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strobe_bpf::Sampler;
use strobe_bus::Shutdown;
use strobe_event::{Cause, RunId};

use crate::halt::Halt;
use crate::leases::{Class, Leases, Obstacle, Wish};
use crate::profilers::Profilers;

mod ask;
mod begin;
mod job;

pub use ask::{Ask, Ending, How, Refusal, Standing, Target};
pub use begin::{Beginning, QUEUE};
pub use job::{Closed, Job, Ticket};

use ask::check_target;
use job::{Phase, State};

/// Runs that ended and are remembered, so that the same run, asked for again, is not run twice.
const REMEMBERED: usize = 1_024;
/// How often a ticket looks whether samples came.
const LOOK: Duration = Duration::from_millis(100);

/// Asks for runs. Clones ask the same runner.
#[derive(Debug, Clone)]
pub struct Runner {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    profilers: Profilers,
    halt: Arc<Halt>,
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Returns a runner with so much of each resource, and what its thread is woken by.
    pub fn new(
        profilers: Profilers,
        capacity: BTreeMap<String, u32>,
        halt: Arc<Halt>,
    ) -> (Self, Receiver<Command>) {
        let (to_thread, commands) = std::sync::mpsc::sync_channel(QUEUE);
        let inner = Inner {
            profilers,
            halt,
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
        if let Some(why) = self.inner.halt.why() {
            return Err(Refusal::Stopped(why));
        }
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
            if let Some(why) = self.inner.halt.why() {
                self.refuse_waiting(beginning, &why);
            }
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

    fn refuse_waiting(&self, beginning: &Beginning, why: &str) {
        let waiting: Vec<Arc<Job>> = {
            let mut table = locked(&self.inner.table);
            let wishes = table.leases.expire(u64::MAX);
            let runs = wishes.iter().filter_map(|wish| table.by_wish.get(&wish.id));
            runs.filter_map(|run| table.jobs.get(run).cloned()).collect()
        };
        for job in waiting {
            beginning.refuse(&job, why);
        }
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
