//! Runs that somebody asked for, beside what is sampled anyway: begun by the runner's thread, which may wait for the kernel, and
//! read, settled and ended here.

use strobe_bpf::{Sampler, monotonic_ns};
use strobe_event::RunState;

use super::flow::{Flow, Parents};
use super::{BATCH_NS, Sampling, Settler};
use crate::held::HeldSamples;
use crate::run::Run;
use crate::runner::{Closed, How, Job};
use crate::unwinding::Unwinding;

use std::sync::Arc;

/// A run that was begun a moment ago: its events are open, and its samples lie in its ring.
pub struct Prepared {
    /// The kernel's side.
    pub sampler: Sampler,
    /// The run.
    pub run: Run,
    /// Who waits for it.
    pub job: Arc<Job>,
}

/// A run under way.
pub(super) struct Asked {
    pub(super) flow: Flow,
    job: Arc<Job>,
    held: HeldSamples,
    next: usize,
    /// When its events were stopped, how it ended and why; what was taken before is not settled yet.
    stopped: Option<(u64, How, String)>,
}

impl Asked {
    /// Reads what is in its ring. A ring that cannot be read ends the run, and only this one.
    pub(super) fn read(&mut self, unwinding: &mut Option<Unwinding>, parents: &mut Parents) {
        if let Err(error) = self.flow.read(&mut self.held, unwinding, parents) {
            self.stop(How::Failed, error.to_string());
        }
    }

    /// Settles what is older than `time_ns`.
    pub(super) fn settle_until(&mut self, settler: &mut Settler, time_ns: u64) {
        while let Some(held) = self.held.get(self.next).filter(|held| held.time_ns < time_ns) {
            if self.job.watches(|| settler.service_of(held)) {
                settler.settle(&mut self.flow, held, self.held.addresses(held));
            } else {
                self.flow.builder.pass_over(held);
            }
            self.next += 1;
        }
    }

    /// Returns when it has to be stopped; nothing where it was.
    pub(super) fn ends_ns(&self) -> Option<u64> {
        self.stopped.is_none().then_some(self.flow.run.ends_ns)
    }

    /// Stops its events.
    fn stop(&mut self, how: How, why: String) {
        if self.stopped.is_some() {
            return;
        }
        let (how, why) = match self.flow.sampler.stop() {
            Ok(()) => (how, why),
            Err(error) => (How::Failed, error.to_string()),
        };
        self.stopped = Some((monotonic_ns(), how, why));
    }
}

impl Sampling {
    /// Takes up the runs that the runner's thread has begun.
    pub(super) fn take_prepared(&mut self) {
        while let Ok(Prepared { sampler, run, job }) = self.prepared.try_recv() {
            if let Err(error) = self.continuous.sampler.wake_on(&sampler) {
                // It is read at every round all the same.
                tracing::debug!(%error, "a ring that fills up does not wake the reader");
            }
            let started_ns = run.started_ns;
            let flow = Flow::new(sampler, run, started_ns);
            self.settler
                .announce(&flow, RunState::Started, started_ns, String::new());
            self.asked.push(Asked {
                flow,
                job,
                held: HeldSamples::default(),
                next: 0,
                stopped: None,
            });
        }
    }

    /// Stops the events of runs whose time is over, or that nobody wants any longer.
    pub(super) fn stop_asked_in_time(&mut self) {
        let now_ns = monotonic_ns();
        for asked in &mut self.asked {
            if let Some(why) = asked.job.stop_wanted() {
                asked.stop(How::Stopped, why);
            } else if now_ns >= asked.flow.run.ends_ns {
                asked.stop(How::Done, String::new());
            }
        }
    }

    /// Closes batches, and ends the runs whose last samples are settled.
    pub(super) fn turn_asked(&mut self, clock_ns: u64) {
        let settler = &mut self.settler;
        let now_ns = monotonic_ns();
        for asked in &mut self.asked {
            let settled = std::mem::take(&mut asked.next);
            asked.held.settle(settled);
            if now_ns.saturating_sub(asked.flow.builder.start_ns()) >= BATCH_NS {
                settler.close(&mut asked.flow, now_ns.min(clock_ns));
            }
            let (taken, kept) = asked.flow.report.so_far();
            asked.job.progress(taken, kept);
        }
        let is_over = |asked: &mut Asked| asked.stopped.as_ref().is_some_and(|(at, ..)| clock_ns >= *at);
        for asked in self.asked.extract_if(.., is_over) {
            settler.end_asked(asked);
        }
    }

    /// Ends all of them, as the agent ends.
    pub(super) fn end_asked(&mut self, now_ns: u64, why: &str) {
        for mut asked in std::mem::take(&mut self.asked) {
            asked.stop(How::Stopped, why.to_owned());
            // Whom it would lend tables from ends with it.
            asked.read(&mut self.settler.unwinding, &mut Parents::new());
            // Nothing more will be heard of processes.
            asked.settle_until(&mut self.settler, now_ns.max(monotonic_ns()));
            self.settler.end_asked(asked);
        }
    }
}

impl Settler {
    fn end_asked(&mut self, asked: Asked) {
        let Asked {
            mut flow,
            job,
            stopped,
            ..
        } = asked;
        let (stopped_ns, how, why) = stopped.unwrap_or((monotonic_ns(), How::Stopped, String::new()));
        self.close(&mut flow, stopped_ns);
        flow.count_lost();
        let state = match how {
            How::Failed => RunState::Failed,
            _ => RunState::Finished,
        };
        self.announce(&flow, state, stopped_ns, why.clone());
        let (taken, kept) = flow.report.so_far();
        job.progress(taken, kept);
        let done_us = flow.done_us(stopped_ns);
        job.close(Closed {
            sampler: flow.sampler,
            how,
            why,
            done_us,
        });
    }
}
