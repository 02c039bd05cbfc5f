//! The tuner's arithmetic: from what was observed to the plan in force, for one (service, profiler,
//! selector).
//!
//! `F`, what an hour would yield at q = 1, comes from every run that sampled the service, divided by the q in
//! force, whoever set it: with a stronger neighbour on its hosts a service neither starves nor swings when
//! that one leaves. It is counted before limits, losses and thinning, since otherwise a limit would drive q
//! to 1. Formed as slots × (Σ samples/q ÷ Σ 1/q over the slots drawn): how many were drawn is chance, how
//! many there are is known. Then `q = desired / F`, within bounds. It depends on the past alone, so the
//! weights stay unbiased.
//!
//! What is remembered is how busy a host is, by hour of the day; how many hosts there are comes from the
//! inventory. So a service whose hosts double is corrected with the next window, and one whose load changes
//! as soon as a hundred runs say so beyond chance. Everything it knows is in [`Tuner`], a plain value that
//! travels with the plan: whoever takes over goes on from there.

mod gather;
mod history;
mod shape;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{SamplingError, in_range};
use crate::plan::{Bounds, Plan};
use crate::slot::{DAY_US, HOUR_US};
use crate::spread::RunSums;
pub use gather::{Doubted, Gather};
pub use history::{Evidence, History, Hour};
pub use shape::{Belief, RUNS_PER_HOUR, Reach, first_plan, shape};

/// Runs after which the tuner acts for the first time, and without which it changes q by at most
/// [`STEP_MAX`]: 100 runs know a yield to about a tenth.
pub const RUNS_TO_ACT: u64 = 100;
/// Length of windows, in event time.
pub const WINDOW_US: u64 = 300_000_000;
/// Most by which q is raised or lowered on few runs.
pub const STEP_MAX: f64 = 4.0;
/// Whole hours without a sample for which a service that was busy once is believed to come back as it was: a
/// week. Then its memory halves each day.
pub const IDLE_HOURS_KEPT: u64 = 7 * 24;
/// Most samples per hour that can be desired of one service: a hundred times what is usual for a large one.
pub const DESIRED_MAX: f64 = 1e7;

/// What is desired of a (service, profiler, selector).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Desired {
    /// Samples per hour.
    samples_per_hour: f64,
    /// CPUs of the largest of its hosts: all busy until more is known.
    cpus: f64,
    bounds: Bounds,
}

impl Desired {
    /// Returns the wish, proved.
    ///
    /// # Errors
    /// [`SamplingError`] names what is negative, absurd or not a number.
    pub fn new(samples_per_hour: f64, cpus: f64, bounds: Bounds) -> Result<Self, SamplingError> {
        Ok(Self {
            samples_per_hour: in_range("desired samples per hour", samples_per_hour, 1.0, DESIRED_MAX)?,
            // 8,192 is the most that the kernel is built for (NR_CPUS with MAXSMP).
            cpus: in_range("CPUs of a host", cpus, 1.0, 8_192.0)?,
            bounds: bounds.validate()?,
        })
    }

    /// Returns the bounds of plans.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Returns the samples desired per hour.
    pub fn samples_per_hour(&self) -> f64 {
        self.samples_per_hour
    }
}

/// What was reported of a stretch of event time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// Its start, microseconds since 1970.
    pub start_us: u64,
    /// Hosts on which the service lives, by the inventory.
    pub live_hosts: u64,
    /// Slots planned in it.
    pub planned: u64,
    /// Σ1/q of the slots drawn, also of the refused ones.
    pub drawn_inverse: f64,
    /// Sums over the runs; t as in [`crate::coverage::Coverage::done`].
    pub runs: RunSums,
    /// Samples taken.
    pub taken: u64,
}

/// Why the plan is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Why {
    /// Nothing is known yet: as if every CPU were busy.
    Start,
    /// Enough runs were seen, or an hour is over.
    Observed,
    /// The level changed by this factor.
    Changed(f64),
    /// The number of hosts changed.
    Hosts,
    /// The day's samples were used up early.
    UsedEarly,
    /// Slots were planned and nothing was sampled.
    NothingSampled,
    /// No slot was planned: no change.
    NothingPlanned,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("nothing is known yet: as if every CPU were busy"),
            Self::Observed => f.write_str("by what was observed"),
            Self::Changed(by) => write!(f, "the load changed {by:.2} times"),
            Self::Hosts => f.write_str("the number of hosts changed"),
            Self::UsedEarly => f.write_str("the day's samples were used up early"),
            Self::NothingSampled => f.write_str("slots were planned and nothing was sampled"),
            Self::NothingPlanned => f.write_str("no slot was planned"),
        }
    }
}

/// What a window led to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The plan in force from now on.
    pub plan: Plan,
    /// Whether it differs from the one before.
    pub changed: bool,
    /// Why it is as it is.
    pub why: Why,
    /// Whether what is desired can be had.
    pub reach: Reach,
    /// Samples per hour that the plan is believed to yield, on average over the day to come.
    pub expected_per_hour: f64,
}

/// The tuner's knowledge of one (service, profiler, selector).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuner {
    /// The plan in force, before it is lowered for the day.
    plan: Plan,
    why: Why,
    history: History,
    hosts: f64,
    /// Start of the last window taken in.
    last_us: Option<u64>,
    /// The day, samples used in it, and hours of it in which the service was there.
    day: (u64, f64, f64),
    acted: bool,
}

impl Tuner {
    /// Returns a tuner that knows nothing, for a service on `live_hosts` hosts.
    pub fn new(desired: &Desired, live_hosts: u64) -> Self {
        let slots = live_hosts as f64 * desired.bounds.slot.per_hour();
        Self {
            plan: first_plan(&desired.bounds, desired.samples_per_hour, slots, desired.cpus),
            why: Why::Start,
            history: History::default(),
            hosts: live_hosts as f64,
            last_us: None,
            day: (0, 0.0, 0.0),
            acted: false,
        }
    }

    /// Returns the plan in force.
    pub fn plan(&self, desired: &Desired) -> Plan {
        self.lowered(desired)
    }

    /// Returns the start of the last window that was taken in.
    pub fn last_us(&self) -> Option<u64> {
        self.last_us
    }

    /// Returns what is remembered.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Takes in the next window. One that is not later than the last was counted already, and changes
    /// nothing: a replay after a restart is harmless.
    pub fn take(&mut self, desired: &Desired, window: &Window) -> Decision {
        let before = self.lowered(desired);
        if self.last_us.is_some_and(|last| window.start_us <= last) {
            return self.decision(desired, before);
        }
        self.last_us = Some(window.start_us);
        self.use_up(window);
        // Who is there is known to whoever knows more: the inventory before the first report, the reports
        // before the inventory was written.
        let seen = window.planned as f64 / (WINDOW_US as f64 / desired.bounds.slot.us() as f64);
        let hosts = if seen > window.live_hosts as f64 * 1.1 {
            seen
        } else {
            window.live_hosts as f64
        };
        let moved = hosts > 0.0 && self.hosts > 0.0 && (hosts / self.hosts).ln().abs() > 0.1;
        let (closed, changed) = self.history.take(window);
        if window.planned == 0 || hosts <= 0.0 {
            self.why = Why::NothingPlanned;
            return self.decision(desired, before);
        }
        let known = self.history.busy();
        match known {
            Some((busy, runs)) if busy > 0.0 => {
                let first = !self.acted && (runs >= RUNS_TO_ACT as f64 || self.history.is_whole());
                if closed
                    && self.history.idle_hours > IDLE_HOURS_KEPT
                    && self.history.idle_hours.is_multiple_of(24)
                {
                    self.history.fade();
                }
                if first || changed.is_some() || moved || (self.acted && closed) || self.learns(runs) {
                    self.hosts = hosts;
                    self.act(desired, busy, runs);
                    self.why = match changed {
                        Some(by) => Why::Changed(by),
                        None if moved && !closed => Why::Hosts,
                        None => Why::Observed,
                    };
                }
            }
            _ if closed || moved => {
                self.hosts = hosts;
                self.raise(desired);
                self.why = Why::NothingSampled;
            }
            _ => {}
        }
        self.decision(desired, before)
    }

    /// Whether the first day is under way: every window with enough runs teaches.
    fn learns(&self, runs: f64) -> bool {
        !self.history.is_whole() && runs >= RUNS_TO_ACT as f64
    }

    fn belief(&self, desired: &Desired, busy: f64) -> Belief {
        Belief {
            slots_per_hour: self.hosts * desired.bounds.slot.per_hour(),
            busy,
        }
    }

    fn act(&mut self, desired: &Desired, busy: f64, runs: f64) {
        // What sleeps is not hunted past what one busy host would yield.
        let busy = match self.history.idle_hours {
            0 => busy,
            _ => busy.max(desired.cpus / self.hosts),
        };
        let belief = self.belief(desired, busy);
        let (mut plan, _) = shape(&desired.bounds, desired.samples_per_hour, belief, &self.plan);
        if runs < RUNS_TO_ACT as f64 {
            let old = self.plan.strength();
            let step = (plan.strength() / old).clamp(1.0 / STEP_MAX, STEP_MAX);
            let assumed = desired.samples_per_hour / (old * step * belief.slots_per_hour);
            let belief = Belief {
                busy: assumed,
                ..belief
            };
            plan = shape(&desired.bounds, desired.samples_per_hour, belief, &self.plan).0;
        }
        self.plan = plan;
        self.acted = true;
    }

    /// Raises q by a bounded step, never past what one busy host would yield.
    fn raise(&mut self, desired: &Desired) {
        let bounds = &desired.bounds;
        let one_host = bounds.slot.per_hour() * desired.cpus * self.plan.work();
        let most = (desired.samples_per_hour / one_host).clamp(bounds.run_probability_min, 1.0);
        let raised = (self.plan.run_probability * STEP_MAX).min(most);
        self.plan.run_probability = raised.max(self.plan.run_probability);
    }

    fn use_up(&mut self, window: &Window) {
        let day = window.start_us / DAY_US;
        if self.day.0 != day {
            let left = DAY_US - window.start_us % DAY_US;
            self.day = (day, 0.0, left as f64 / HOUR_US as f64);
        }
        self.day.1 += window.taken as f64;
    }

    /// Returns the plan, lowered where the day's samples are used with more than an hour of it left: to a
    /// quarter, and to a quarter of that for each further day's worth.
    fn lowered(&self, desired: &Desired) -> Plan {
        let mut plan = self.plan;
        if self.used_early(desired) {
            let days = (self.day.1 / (desired.samples_per_hour * self.day.2))
                .floor()
                .min(10.0);
            let q = plan.run_probability * STEP_MAX.powf(-days);
            plan.run_probability = q.max(desired.bounds.run_probability_min);
        }
        plan
    }

    fn used_early(&self, desired: &Desired) -> bool {
        let (_, used, hours) = self.day;
        let now = self.last_us.unwrap_or(0) % DAY_US;
        used > 0.0 && used >= desired.samples_per_hour * hours && now + HOUR_US < DAY_US
    }

    fn decision(&self, desired: &Desired, before: Plan) -> Decision {
        let plan = self.lowered(desired);
        let busy = self.history.busy().map_or(0.0, |(busy, _)| busy);
        let belief = self.belief(desired, busy);
        let reach = if busy > 0.0 {
            shape(&desired.bounds, desired.samples_per_hour, belief, &self.plan).1
        } else {
            Reach::Met
        };
        Decision {
            plan,
            changed: plan != before,
            why: if self.used_early(desired) {
                Why::UsedEarly
            } else {
                self.why
            },
            reach,
            expected_per_hour: plan.run_probability * belief.yield_per_hour(plan.work()),
        }
    }
}

#[cfg(test)]
mod tests;
