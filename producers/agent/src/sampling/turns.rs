//! How runs begin and end: run after run, or as the scheduling thread orders.
//!
//! Run after run, a sample's own time says which run it is of. The ticks of a drawn run start before it and stop after it, and the
//! kernel's side counts those of its span alone: when this thread gets a CPU decides nothing.

use super::*;

/// How runs follow each other.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Whether only what is ordered runs.
    pub(super) scheduled: bool,
    /// Drawn slots whose time has not come.
    pub(super) waiting: VecDeque<Planned>,
    /// No run is under way, and nothing ticks.
    pub(super) idle: bool,
    /// Why the run under way has to end before its time.
    pub(super) cut: Option<String>,
}

impl Sampling {
    /// Takes orders, and stops the ticks where a run is over.
    pub(super) fn obey(&mut self) -> Result<(), AgentError> {
        let settler = &mut self.settler;
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Continuous => settler.pace.scheduled = false,
                Order::Scheduled => settler.pace.scheduled = true,
                Order::Run(planned) => settler.pace.waiting.push_back(*planned),
            }
        }
        let over = match self.continuous.run.slot {
            Some(_) => monotonic_ns() >= self.continuous.run.ends_ns,
            None => settler.pace.scheduled,
        };
        let over = over || settler.pace.cut.is_some();
        if over && !settler.pace.idle && self.continuous.stopped_ns.is_none() {
            self.continuous.sampler.pause()?;
            let now_ns = monotonic_ns();
            self.continuous.stopped_ns = Some(match self.continuous.run.slot {
                Some(_) => now_ns.min(self.continuous.run.ends_ns),
                None => now_ns,
            });
        }
        Ok(())
    }

    /// Ends the run whose last samples are settled, and begins the next where its time has come.
    pub(super) fn turn(&mut self, clock_ns: u64) -> Result<(), AgentError> {
        let (settler, flow) = (&mut self.settler, &mut self.continuous);
        if let Some(stopped_ns) = flow.stopped_ns.filter(|&stopped_ns| clock_ns >= stopped_ns) {
            let detail = settler.pace.cut.take().unwrap_or_default();
            settler.end_run(flow, stopped_ns, detail);
            flow.stopped_ns = None;
            settler.pace.idle = true;
        }
        if !settler.pace.idle {
            return Ok(());
        }
        settler.pace.cut = None;
        if settler.guards.halt.why().is_some() {
            for planned in std::mem::take(&mut settler.pace.waiting) {
                settler.refuse(&planned);
            }
            return Ok(());
        }
        let thinner = settler.guards.level().factor();
        if !settler.pace.scheduled {
            for planned in std::mem::take(&mut settler.pace.waiting) {
                settler.refuse(&planned);
            }
            let length = settler.run_length;
            let start =
                |host: &str, now_ns| Run::start(host, settler.frequency_hz, length, now_ns, wall_us(now_ns));
            let run = start(&settler.host, monotonic_ns()).thinner(thinner);
            flow.sampler.set_span(0, u64::MAX);
            return settler.begin_run(flow, run);
        }
        while let Some(planned) = settler.pace.waiting.front() {
            let now_ns = monotonic_ns();
            if planned.start_ns > now_ns + LEAD_NS {
                break;
            }
            let Some(planned) = settler.pace.waiting.pop_front() else {
                break;
            };
            if planned.latest_ns < now_ns {
                settler.refuse(&planned);
                continue;
            }
            let start_ns = planned.start_ns.max(now_ns);
            let run = Run::of_slot(&settler.host, &planned, start_ns, wall_us(start_ns)).thinner(thinner);
            flow.sampler.set_span(u64::MAX, u64::MAX);
            settler.begin_run(flow, run)?;
            break;
        }
        Ok(())
    }

    /// Returns for how long nothing has to begin or end: at most `longest`.
    pub(super) fn until_turn(&self, longest: Duration) -> Duration {
        let pace = &self.settler.pace;
        let at_ns = match pace.idle {
            true => (pace.waiting.front()).map(|planned| planned.start_ns.saturating_sub(LEAD_NS)),
            false => self.continuous.run.slot.map(|_| self.continuous.run.ends_ns),
        };
        // The wait is cut to milliseconds: one more, so that it is over when it ends.
        let left = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())) + MILLISECOND;
        let asked_ns = self.asked.iter().filter_map(Asked::ends_ns);
        let at_ns = asked_ns.chain(at_ns).min();
        at_ns.map_or(longest, |at_ns| left(at_ns).min(longest))
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// How long before a drawn run its ticks start: as long as this thread may have to wait for a CPU, and then for each of the others.
const LEAD_NS: u64 = 10_000_000;

impl Settler {
    fn begin_run(&mut self, flow: &mut Flow, mut run: Run) -> Result<(), AgentError> {
        // What is read before the ticks start is what they begin from.
        let mut totals = flow.all_totals(&run);
        flow.sampler.resume(run.head.period)?;
        if run.slot.is_some() {
            // Only now that all CPUs tick: no part of its span is without one.
            run.begin_at(monotonic_ns().max(run.started_ns));
            flow.sampler.set_span(run.started_ns, run.ends_ns);
            run.clocks.clone_from(&totals.times);
        }
        totals.at_ns = run.started_ns;
        flow.builder.begin(run.started_ns, &totals);
        flow.run = run;
        flow.report = Report::default();
        self.pace.idle = false;
        self.announce(flow, RunState::Started, flow.run.started_ns, String::new());
        Ok(())
    }

    /// Ends the run at `now_ns`: its accounting is complete.
    pub(super) fn end_run(&mut self, flow: &mut Flow, now_ns: u64, detail: String) {
        self.close(flow, now_ns);
        flow.measure(now_ns);
        self.announce(flow, RunState::Finished, now_ns, detail);
        self.account(flow, now_ns);
    }

    /// Tells the scheduling thread what the run did.
    pub(super) fn account(&mut self, flow: &mut Flow, now_ns: u64) {
        let done_us = flow.done_us(now_ns);
        let head = &flow.run.head;
        // A run that nobody drew is a slot of its own, as long as it was: what the agent did not see was not planned.
        let (planned_us, slot_us) = match flow.run.slot {
            Some(_) => (head.planned_us, head.slot_us),
            None => (done_us, done_us),
        };
        let report = RunReport {
            slot: flow.run.slot,
            started_us: head.started_us,
            slot_us,
            done: Some(Done {
                run_probability: head.run_probability,
                planned_us,
                done_us,
                frequency_hz: 1e9 / head.period as f64,
                taken: std::mem::take(&mut flow.run.taken),
            }),
        };
        if done_us > 0 {
            self.tell(report);
        }
    }

    fn refuse(&self, planned: &Planned) {
        self.tell(RunReport {
            slot: Some(planned.slot),
            started_us: wall_us(planned.start_ns),
            done: None,
            slot_us: planned.slot_us,
        });
    }

    fn tell(&self, report: RunReport) {
        if self.reports.try_send(report).is_err() && self.status.may_complain() {
            tracing::error!("what became of a run is not counted: the scheduling thread is stuck");
        }
    }

    /// Ends the run and starts the next when `time_ns` is past its planned end, run after run.
    pub(super) fn turn_run_if_due(&mut self, flow: &mut Flow, time_ns: u64) {
        if time_ns < flow.run.ends_ns || self.pace.idle || flow.run.slot.is_some() {
            return;
        }
        self.end_run(flow, flow.run.ends_ns, String::new());
        // After a stop of the machine the next run starts now, not for every slot that was slept through.
        let behind = time_ns.saturating_sub(flow.run.ends_ns) > self.run_length.as_nanos() as u64;
        let start_ns = if behind { time_ns } else { flow.run.ends_ns };
        flow.run = Run::start(
            &self.host,
            self.frequency_hz,
            self.run_length,
            start_ns,
            wall_us(start_ns),
        )
        .thinner(self.guards.level().factor());
        flow.report = Report::default();
        self.announce(flow, RunState::Started, start_ns, String::new());
    }

    pub(super) fn announce(&mut self, flow: &Flow, state: RunState, now_ns: u64, detail: String) {
        let done_us = flow.done_us(now_ns);
        if self.events.len() == EVENTS_MAX {
            tracing::error!(run = %flow.run.head.id, "an event of the run is lost: the spooling thread is stuck");
            return;
        }
        self.events.push_back(ToSpool::Event(Box::new(Event {
            run: flow.run.head.clone(),
            state,
            time_us: wall_us(now_ns),
            detail,
            done_us,
            report: flow.report.clone(),
        })));
        self.send_events();
    }

    /// Hands the waiting events to the spooling thread; returns whether it took all.
    pub(super) fn send_events(&mut self) -> bool {
        while let Some(event) = self.events.pop_front() {
            if let Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) =
                self.to_spool.try_send(event)
            {
                self.events.push_front(back);
                return false;
            }
        }
        true
    }

    pub(super) fn send_last_events(&mut self) {
        let until = Instant::now() + LAST_WORDS;
        while !self.send_events() {
            if Instant::now() >= until {
                tracing::error!("the ends of runs are lost: the spooling thread is stuck");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns what to add to `CLOCK_MONOTONIC` to get nanoseconds since 1970.
pub(super) fn wall_ns() -> i128 {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as i128);
    wall - i128::from(monotonic_ns())
}

pub(crate) fn wall_us(time_ns: u64) -> u64 {
    ((i128::from(time_ns) + wall_ns()).max(0) / 1_000) as u64
}
