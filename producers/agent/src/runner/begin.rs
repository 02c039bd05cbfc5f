//! A job → its events, open in the kernel; or why not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use strobe_bpf::{Sampler, SamplerSettings, SharedTables};
use strobe_event::{RunHead, RunState};

use super::{How, Job, Phase, Refusal, locked};
use crate::config::Settings;
use crate::profilers::{Profiler, Rate, nearest};
use crate::run::Run;
use crate::sampling::{Prepared, wall_us};
use crate::spooling::{Event, Report, ToSpool};

/// Commands that may wait for the runner's thread, and runs for the sampling thread: more than run at one time.
pub const QUEUE: usize = 16;

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
        let Rate::Hz(hz) = job.rate else {
            return self.fail(job, "it does not tick");
        };
        let settings = SamplerSettings {
            ring_bytes: self.ring_bytes,
            ..SamplerSettings::at(hz)
        };
        let sampler = match Sampler::start_beside(&settings, self.tables.as_ref()) {
            Ok(sampler) => sampler,
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

/// Tells whether there is such a process.
pub(super) fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
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
            _ => format!(
                "{} has no parameter `{name}`: did you mean `{}`?",
                profiler.name,
                nearest(&name.to_string(), known.iter().copied())
            ),
        }));
    }
    Ok(())
}
