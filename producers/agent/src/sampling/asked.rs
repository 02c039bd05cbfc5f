//! Runs that somebody asked for, beside what is sampled anyway: begun by the runner's thread, which may wait for the kernel, and
//! read, settled and ended here.

use strobe_bpf::{Sampler, monotonic_ns};
use strobe_event::RunState;

use super::flow::{Flow, Parents};
use super::{BATCH_NS, Sampling, Settler};
use crate::budget::Level;
use crate::held::HeldSamples;
use crate::run::Run;
use crate::runner::{Closed, How, Job};
use crate::unwinding::Unwinding;

use std::sync::Arc;

/// Time between two looks at how many samples a run takes: a burst shorter than this has room in its ring.
const LIMIT_LOOK_NS: u64 = 250_000_000;

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
    /// When it was last looked how many samples it takes, and how many there were.
    looked: (u64, u64),
    /// By how much its period was made longer, for the agent's budget and for its profiler's limit.
    for_budget: u64,
    for_limit: u64,
    /// Why, where it was.
    thinned: String,
    /// How it ended and why, once its events were stopped.
    stopped: Option<(How, String)>,
}

impl Asked {
    /// Reads what is in its ring. A ring that cannot be read ends the run, and only this one.
    pub(super) fn read(&mut self, unwinding: &mut Option<Unwinding>, parents: &mut Parents) -> usize {
        match self.flow.read(&mut self.held, None, unwinding, parents) {
            Ok(samples) => samples,
            Err(error) => {
                self.stop(How::Failed, error.to_string());
                0
            }
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

    /// Makes its period as long as the agent's budget asks for; or stops it.
    pub(super) fn keep_to(&mut self, settler: &mut Settler, level: Level, why: &str) {
        if level == Level::Stopped {
            return self.stop(How::Stopped, format!("over the budget: {why}"));
        }
        self.for_budget = level.factor();
        self.set_period(settler, why);
    }

    /// Looks whether it takes more samples than its profiler may, and thins it; or stops it where that does not help.
    fn keep_to_limit(&mut self, settler: &mut Settler, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.looked.0);
        if passed_ns < LIMIT_LOOK_NS || self.stopped.is_some() {
            return;
        }
        let Ok(counters) = self.flow.sampler.counters() else {
            return;
        };
        let taken: u64 = counters.values().map(|counters| counters.taken).sum();
        let rate = taken.saturating_sub(self.looked.1) as f64 * 1e9 / passed_ns as f64;
        self.looked = (now_ns, taken);
        let most = self.job.samples_per_second_max() as f64;
        if rate <= most {
            return;
        }
        if !self.job.can_be_thinner() {
            let why = format!(
                "the address is touched {rate:.0} times a second, and each touch interrupts whoever does it: at most {most} are borne"
            );
            return self.stop(How::Stopped, why);
        }
        self.for_limit = self.for_limit.saturating_mul((rate / most).ceil() as u64);
        let why = format!("it took {rate:.0} samples a second, and may take {most}");
        self.set_period(settler, &why);
    }

    fn set_period(&mut self, settler: &mut Settler, why: &str) {
        let factor = self.for_budget.saturating_mul(self.for_limit);
        let period = self.job.period().saturating_mul(factor);
        if self.stopped.is_some() || period == self.flow.run.head.period {
            return;
        }
        // A batch says what a sample stands for once, for all of its samples; those under way say it themselves.
        settler.close(&mut self.flow, monotonic_ns());
        if let Err(error) = self.flow.sampler.set_period(period) {
            return self.stop(How::Failed, error.to_string());
        }
        self.flow.run.head.period = period;
        self.thinned = format!("its period was made {factor} times as long: {why}");
    }

    /// Stops its events.
    pub(super) fn stop(&mut self, how: How, why: String) {
        if self.stopped.is_some() {
            return;
        }
        let (how, why) = match self.flow.sampler.stop() {
            Ok(()) => (how, why),
            Err(error) => (How::Failed, error.to_string()),
        };
        self.flow.stopped_ns = Some(monotonic_ns());
        self.stopped = Some((how, why));
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
            let mut asked = Asked {
                flow,
                job,
                held: HeldSamples::default(),
                next: 0,
                stopped: None,
                looked: (started_ns, 0),
                for_budget: 1,
                for_limit: 1,
                thinned: String::new(),
            };
            let level = self.settler.guards.level();
            if let Some(why) = self.settler.guards.halt.why() {
                asked.stop(How::Stopped, why);
            } else if level != Level::Full {
                asked.keep_to(&mut self.settler, level, "the agent is over its budget");
            }
            self.asked.push(asked);
        }
    }

    /// Stops the events of runs whose time is over, or that nobody wants any longer.
    pub(super) fn stop_asked_in_time(&mut self) {
        let now_ns = monotonic_ns();
        for asked in &mut self.asked {
            if let Some(why) = asked.job.stop_wanted() {
                asked.stop(How::Stopped, why);
            } else if now_ns >= asked.flow.run.ends_ns {
                let thinned = std::mem::take(&mut asked.thinned);
                asked.stop(How::Done, thinned);
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
            asked.keep_to_limit(settler, now_ns);
            let (taken, kept) = asked.flow.report.so_far();
            asked.job.progress(taken, kept);
        }
        let is_over = |asked: &mut Asked| asked.flow.stopped_ns.is_some_and(|at| clock_ns >= at);
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
        let stopped_ns = flow.stopped_ns.unwrap_or_else(monotonic_ns);
        let (how, why) = stopped.unwrap_or((How::Stopped, String::new()));
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
