//! From a desired rate to a plan: how often, how long, how fast.

use crate::plan::{Bounds, Plan};

/// A run yields at most this share of the samples desired per hour, so that an hour is spread over many runs:
/// its spread is that of runs, not of samples.
pub const RUNS_PER_HOUR: f64 = 500.0;

/// D and f are kept while D·f is within this factor of the best: a plan that changes with every window is
/// hard to read.
const KEEP_WORK: f64 = 1.5;

/// What the tuner believes of a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    /// Slots that start per hour, on all hosts together.
    pub slots_per_hour: f64,
    /// Busy CPUs of a host, on average over its slots.
    pub busy: f64,
}

impl Belief {
    /// Returns F, the samples that an hour would yield at q = 1 with runs of D·f = `work`.
    pub fn yield_per_hour(&self, work: f64) -> f64 {
        self.slots_per_hour * self.busy * work
    }
}

/// Whether what is desired can be had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reach {
    /// It can.
    Met,
    /// Even at q_min, with the shortest runs at the lowest frequency, more is taken.
    Floor {
        /// Samples per hour at the least.
        at_least: f64,
    },
    /// Every slot of every host runs, as long and as fast as allowed, and it is not enough.
    Unreachable {
        /// Samples per hour at the most.
        at_most: f64,
    },
}

/// Returns q, D and f for `desired` samples per hour: D so that one run yields at most 1/[`RUNS_PER_HOUR`] of
/// them, down to the shortest run, then the frequency falls; longer again where all slots together would not
/// do.
pub fn shape(bounds: &Bounds, desired: f64, belief: Belief, current: &Plan) -> (Plan, Reach) {
    // q·D·f that yields what is desired.
    let needed = desired / (belief.slots_per_hour * belief.busy);
    let least = bounds.planned_min_us as f64 / 1e6 * bounds.frequency_min_hz;
    let most = bounds.planned_max_us as f64 / 1e6 * bounds.frequency_max_hz;
    let best = (desired / RUNS_PER_HOUR / belief.busy)
        .max(needed)
        .clamp(least, most);
    let best = best.min((needed / bounds.run_probability_min).max(least));
    let old = current.work();
    let fits = |work: f64| (bounds.run_probability_min..=1.0).contains(&(needed / work));
    let plan = if old <= best * KEEP_WORK && old >= best / KEEP_WORK && fits(old) {
        *current
    } else {
        with_work(bounds, best, current)
    };
    let q = needed / plan.work();
    let plan = Plan {
        run_probability: q.clamp(bounds.run_probability_min, 1.0),
        ..plan
    };
    let rate = plan.run_probability * belief.yield_per_hour(plan.work());
    // Rounding of D and f is not a failure to reach.
    let reach = if rate < desired * 0.99 {
        Reach::Unreachable { at_most: rate }
    } else if rate > desired * 1.01 {
        Reach::Floor { at_least: rate }
    } else {
        Reach::Met
    };
    (plan, reach)
}

/// Returns `current` with D·f = `work`: as fast as allowed and short, or as short as allowed and slow.
fn with_work(bounds: &Bounds, work: f64, current: &Plan) -> Plan {
    let micros = work / bounds.frequency_max_hz * 1e6;
    let planned_us = (micros.ceil() as u64).clamp(bounds.planned_min_us, bounds.planned_max_us);
    let frequency = work / (planned_us as f64 / 1e6);
    Plan {
        planned_us,
        frequency_hz: frequency.clamp(bounds.frequency_min_hz, bounds.frequency_max_hz),
        ..*current
    }
}

/// Returns the plan to start with when nothing is known: as if every CPU were busy, so that nobody is
/// flooded.
pub fn first_plan(bounds: &Bounds, desired: f64, slots_per_hour: f64, cpus: f64) -> Plan {
    let belief = Belief {
        slots_per_hour: slots_per_hour.max(1.0),
        busy: cpus,
    };
    shape(bounds, desired, belief, &bounds.floor()).0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks the example of 1,000 hosts of 16 cores: 40,000 samples an hour come from 500 runs of one
    /// second, slowed down so that a run yields 80.
    #[test]
    fn a_large_service_runs_short_and_slow() {
        let belief = Belief {
            slots_per_hour: 60_000.0,
            busy: 4.8,
        };
        let (plan, reach) = shape(&Bounds::CPU, 40_000.0, belief, &Bounds::CPU.floor());
        assert_eq!((plan.planned_us, reach), (1_000_000, Reach::Met));
        assert!(
            (plan.frequency_hz - 80.0 / 4.8).abs() < 1e-9,
            "{}",
            plan.frequency_hz
        );
        assert!((plan.run_probability - 500.0 / 60_000.0).abs() < 1e-9);
    }

    /// Checks that a small service runs in every slot, as long as it must, and that what cannot be had is
    /// said.
    #[test]
    fn a_small_service_runs_always_and_says_when_that_is_not_enough() {
        let belief = Belief {
            slots_per_hour: 60.0,
            busy: 1.0,
        };
        let (plan, reach) = shape(&Bounds::CPU, 40_000.0, belief, &Bounds::CPU.floor());
        assert_eq!((plan.run_probability, reach), (1.0, Reach::Met));
        assert!((plan.work() - 40_000.0 / 60.0).abs() < 1e-3);
        let (plan, reach) = shape(&Bounds::CPU, 1e6, belief, &Bounds::CPU.floor());
        let at_most = 60.0 * 30.0 * 99.0;
        assert_eq!(
            (plan.run_probability, reach),
            (1.0, Reach::Unreachable { at_most })
        );
    }

    proptest! {
        /// Checks that any plan lies within its bounds, and yields what is desired where it says so.
        #[test]
        fn plans_lie_within_their_bounds(
            desired in 1.0_f64..1e9,
            slots in 1.0_f64..1e8,
            busy in 1e-6_f64..512.0,
            work in 1.0_f64..2_970.0,
        ) {
            let current = with_work(&Bounds::CPU, work, &Bounds::CPU.floor());
            let belief = Belief { slots_per_hour: slots, busy };
            let (plan, reach) = shape(&Bounds::CPU, desired, belief, &current);
            prop_assert!(Bounds::CPU.check(plan, 0).is_ok(), "{:?}", plan);
            let rate = plan.run_probability * belief.yield_per_hour(plan.work());
            match reach {
                Reach::Met => prop_assert!((rate / desired - 1.0).abs() < 0.011, "{} of {}", rate, desired),
                Reach::Unreachable { at_most } => {
                    prop_assert!(plan.run_probability == 1.0 && at_most < desired)
                }
                Reach::Floor { at_least } => prop_assert!(plan.run_probability < 0.001 && at_least > desired),
            }
        }
    }
}
