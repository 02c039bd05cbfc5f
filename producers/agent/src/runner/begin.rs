//! A job → its events, open in the kernel; or why not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use strobe_bpf::{Sampler, SamplerSettings, SharedTables};
use strobe_event::{RunHead, RunState};

use super::ask::{How, Refusal, Target};
use super::job::{Job, Phase};
use super::locked;
use crate::config::Settings;
use crate::holders;
use crate::mechanism::{self, Availability, PROBED_CPU};
use crate::profilers::{Profiler, nearest};
use crate::run::Run;
use crate::sampling::{Prepared, wall_us};
use crate::spooling::{Event, Report, ToSpool};

/// Commands that may wait for the runner's thread, and runs for the sampling thread: more than run at one time.
pub const QUEUE: usize = 16;
/// Pause before what somebody outside holds is tried again: each try loads a program.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// What runs are begun with.
pub struct Beginning {
    host: String,
    ring_bytes: Option<usize>,
    tables: Option<SharedTables>,
    to_sampling: SyncSender<Prepared>,
    to_spool: SyncSender<ToSpool>,
}

impl Beginning {
    /// Returns what runs are begun with on this host.
    pub fn new(
        settings: &Settings,
        tables: Option<SharedTables>,
        to_sampling: SyncSender<Prepared>,
        to_spool: SyncSender<ToSpool>,
    ) -> Self {
        Self {
            host: settings.host.clone(),
            ring_bytes: settings.ring_bytes,
            tables,
            to_sampling,
            to_spool,
        }
    }

    /// Opens a run's events and hands it to the sampling thread.
    pub(super) fn begin(&self, job: &Arc<Job>) {
        let event = match mechanism::event(&job.profiler, job.rate, &job.ask.parameters) {
            Ok(event) => event,
            Err(why) => return self.fail(job, &why),
        };
        let settings = SamplerSettings {
            ring_bytes: self.ring_bytes,
            event,
            watched: match &job.ask.target {
                Target::Pids(pids) => pids.clone(),
                Target::Host | Target::Service(_) => Vec::new(),
            },
            ..SamplerSettings::at(1)
        };
        // The cheap trial first: it says the same, and need not load a program to hear it.
        let started = settings.event.probe(PROBED_CPU);
        let started = started.and_then(|()| Sampler::start_beside(&settings, self.tables.as_ref()));
        let sampler = match started {
            Ok(sampler) => sampler,
            Err(error) if error.is_taken() => {
                return self.held_outside(job, &crate::error::with_causes(&error));
            }
            Err(error) if error.is_missing() => {
                let why = match mechanism::availability(&job.profiler) {
                    Availability::Missing { why } => why,
                    _ => crate::error::with_causes(&error),
                };
                return self.fail(job, &why);
            }
            Err(error) => return self.fail(job, &crate::error::with_causes(&error)),
        };
        let started_ns = sampler.started_ns();
        let run = Run::asked(self.head(job, wall_us(started_ns)), started_ns);
        locked(&job.state).phase = Phase::Running {
            since: std::time::Instant::now(),
            since_us: run.head.started_us,
        };
        let prepared = Prepared {
            sampler,
            run,
            job: Arc::clone(job),
        };
        if self.to_sampling.try_send(prepared).is_err() {
            return self.fail(
                job,
                "the sampling thread does not take it: it is stuck, or the agent ends",
            );
        }
        if let Some(inner) = job.inner.upgrade() {
            inner.changed.notify_all();
        }
    }

    /// Puts a run back into the queue: somebody outside holds what it needs.
    fn held_outside(&self, job: &Arc<Job>, why: &str) {
        let Some(resource) = job.profiler.resources.keys().next() else {
            return self.fail(job, why);
        };
        locked(&job.state).held_by = holders::of_perf_events();
        if let Some(inner) = job.inner.upgrade() {
            let again_ms = inner.now_ms() + TRY_AGAIN.as_millis() as u64;
            let mut table = locked(&inner.table);
            table.leases.held_outside(job.wish, resource.name(), again_ms);
            drop(table);
            inner.changed.notify_all();
        }
    }

    /// Ends a run that waited and never began.
    pub(super) fn refuse(&self, job: &Arc<Job>, why: &str) {
        self.record(job, &format!("refused: {why}"));
        job.end(How::Refused, why.to_owned(), 0);
    }

    fn fail(&self, job: &Arc<Job>, why: &str) {
        tracing::warn!(run = %job.ask.run, profiler = job.ask.profiler, why, "a run cannot begin");
        self.record(job, why);
        job.end(How::Failed, why.to_owned(), 0);
    }

    fn head(&self, job: &Job, started_us: u64) -> RunHead {
        let planned_us = job.ask.duration.as_micros() as u64;
        RunHead {
            id: job.ask.run,
            host: self.host.clone(),
            profiler: job.profiler.name.clone(),
            cause: job.ask.cause as u8,
            started_us,
            planned_us,
            slot_us: planned_us,
            run_probability: 1.0,
            kernel_probability: 1.0,
            period: Profiler::value(job.rate),
        }
    }

    /// Lets the store know of a run that never was.
    fn record(&self, job: &Job, why: &str) {
        let now_us = crate::procfs::wall_us();
        let event = Event {
            run: self.head(job, now_us),
            state: RunState::Failed,
            time_us: now_us,
            detail: why.to_owned(),
            done_us: 0,
            report: Report::default(),
        };
        if self.to_spool.try_send(ToSpool::Event(Box::new(event))).is_err() {
            tracing::error!(run = %job.ask.run, "that a run did not begin is not recorded: the spooling thread is stuck");
        }
    }
}

/// Says why this host cannot do it. What is merely taken is waited for.
pub(super) fn check_host(profiler: &Profiler) -> Result<(), Refusal> {
    let profiler_name = || profiler.name.clone();
    match mechanism::availability(profiler) {
        Availability::Missing { why } => Err(Refusal::Unavailable {
            profiler: profiler_name(),
            why,
        }),
        Availability::Available | Availability::Taken { .. } => Ok(()),
    }
}

/// Says what is wrong with the parameters of a run.
pub(super) fn check_parameters(profiler: &Profiler, given: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let known = profiler.parameters();
    for name in given.keys() {
        if known.contains(&name.as_str()) {
            continue;
        }
        let name = name.escape_debug();
        return Err(Refusal::Parameter(match known {
            [] => format!("{} has no parameters, and `{name}` was given", profiler.name),
            known => format!(
                "{} has no parameter `{name}`: did you mean `{}`?",
                profiler.name,
                nearest(&name.to_string(), known.iter().copied())
            ),
        }));
    }
    mechanism::event(profiler, profiler.rate, given)
        .map(drop)
        .map_err(Refusal::Parameter)
}
