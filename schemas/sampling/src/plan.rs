//! Plans: with which probability, for how long and how often a profiler samples; and which of several plans a
//! host takes.

use serde::{Deserialize, Serialize};

use crate::error::{SamplingError, in_range};
use crate::hash::Probability;
use crate::slot::SlotLength;

/// What is in force for a (service, profiler, selector).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// q: the probability with which a slot runs.
    pub run_probability: f64,
    /// D: how long a run lasts, microseconds.
    pub planned_us: u64,
    /// f: samples per second and CPU.
    pub frequency_hz: f64,
    /// Share of the samples that limits let stay: p_limit.
    pub keep: f64,
    /// From when on, microseconds since 1970.
    pub since_us: u64,
}

impl Plan {
    /// Returns q·D·f: by which plans of services on the same host are compared.
    pub fn strength(&self) -> f64 {
        self.run_probability * self.work()
    }

    /// Returns D·f: the samples of one run on one busy CPU.
    pub fn work(&self) -> f64 {
        self.planned_us as f64 / 1e6 * self.frequency_hz
    }
}

/// How far clocks of hosts may differ before a plan is taken for nonsense.
pub const CLOCK_SKEW_US: u64 = 300_000_000;

/// Between what plans may lie, for one profiler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The slots that runs lie in; a run is at most as long.
    pub slot: SlotLength,
    /// q_min: below it no slot is drawn, whatever is desired.
    pub run_probability_min: f64,
    /// The shortest run, microseconds.
    pub planned_min_us: u64,
    /// The longest run.
    pub planned_max_us: u64,
    /// The lowest frequency.
    pub frequency_min_hz: f64,
    /// The highest frequency: the profiler's own.
    pub frequency_max_hz: f64,
}

impl Bounds {
    /// Slots of a minute; at least one run for each host and day (1 of 1,440 slots); runs of 1 s (shorter
    /// ones cost more to set up than they sample) to 30 s (half of a slot: room to wait for the machine); 1
    /// to 99 Hz.
    pub const CPU: Self = Self {
        slot: SlotLength::MINUTE,
        run_probability_min: 1.0 / 1_440.0,
        planned_min_us: 1_000_000,
        planned_max_us: 30_000_000,
        frequency_min_hz: 1.0,
        frequency_max_hz: 99.0,
    };

    /// Proves the bounds.
    ///
    /// # Errors
    /// [`SamplingError`] names the bound that cannot be.
    pub fn validate(self) -> Result<Self, SamplingError> {
        let slot = self.slot.us() as f64;
        Probability::new("run_probability_min", self.run_probability_min)?;
        in_range("planned_max_us", self.planned_max_us as f64, 1.0, slot)?;
        in_range(
            "planned_min_us",
            self.planned_min_us as f64,
            1.0,
            self.planned_max_us as f64,
        )?;
        // A tick every 100 us is the kernel's own default limit (perf_event_max_sample_rate has 100,000; its
        // handler is allowed a quarter of the CPU, which 10,000 stacks a second already take).
        in_range("frequency_max_hz", self.frequency_max_hz, 1e-3, 10_000.0)?;
        in_range(
            "frequency_min_hz",
            self.frequency_min_hz,
            1e-3,
            self.frequency_max_hz,
        )?;
        Ok(self)
    }

    /// Returns the plan of a host where only daemons run: q_min, the shortest run, the profiler's own
    /// frequency.
    pub fn floor(&self) -> Plan {
        Plan {
            run_probability: self.run_probability_min,
            planned_us: self.planned_min_us,
            frequency_hz: self.frequency_max_hz,
            keep: 1.0,
            since_us: 0,
        }
    }

    /// Returns a plan from the bus, if it lies within the bounds and clocks.
    ///
    /// # Errors
    /// [`SamplingError`] says what does not. The plan that was in force stays so.
    pub fn check(&self, plan: Plan, now_us: u64) -> Result<Plan, SamplingError> {
        Probability::new("run_probability", plan.run_probability)?;
        Probability::new("keep", plan.keep)?;
        let (least, most) = (self.planned_min_us as f64, self.planned_max_us as f64);
        in_range("planned_us", plan.planned_us as f64, least, most)?;
        let (least, most) = (self.frequency_min_hz, self.frequency_max_hz);
        in_range("frequency_hz", plan.frequency_hz, least, most)?;
        match plan.since_us.checked_sub(now_us) {
            Some(ahead_us) if ahead_us > CLOCK_SKEW_US => Err(SamplingError::FromTheFuture { ahead_us }),
            _ => Ok(plan),
        }
    }
}

/// The plan that a host follows in a slot, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice<'a> {
    /// What the host does.
    pub plan: Plan,
    /// Whose plan it is; none when it is the floor that every host has.
    pub service: Option<&'a str>,
}

/// Returns the plan of a host with several services: the one with the largest q·D·f, taken whole.
///
/// Decided when a slot starts, from who is there at that moment, and recorded with the run: the weights of
/// all services of the host are formed with the q in force, whosever it is. Taken whole, since a q of one
/// with a D of another would be a plan that nobody tuned. At least q_min in any case. Equal ones are decided
/// by name, not by order.
pub fn choose<'a>(bounds: &Bounds, plans: impl IntoIterator<Item = (&'a str, Plan)>) -> Choice<'a> {
    let mut chosen = Choice {
        plan: bounds.floor(),
        service: None,
    };
    for (service, plan) in plans {
        let (new, old) = (plan.strength(), chosen.plan.strength());
        let better = match chosen.service {
            None => true,
            Some(other) => new > old || (new == old && service < other),
        };
        if better {
            chosen = Choice {
                plan,
                service: Some(service),
            };
        }
    }
    chosen.plan.run_probability = chosen.plan.run_probability.max(bounds.run_probability_min);
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(q: f64, seconds: u64, hz: f64) -> Plan {
        Plan {
            run_probability: q,
            planned_us: seconds * 1_000_000,
            frequency_hz: hz,
            keep: 1.0,
            since_us: 0,
        }
    }

    /// Checks that the strongest plan is taken whole, also when another has a greater q.
    #[test]
    fn the_strongest_plan_is_taken_whole() {
        let (often, long) = (plan(0.02, 1, 50.0), plan(0.01, 10, 99.0));
        let choice = choose(&Bounds::CPU, [("a", often), ("b", long)]);
        assert_eq!((choice.plan, choice.service), (long, Some("b")));
    }

    /// Checks that a host where only daemons run is sampled at q_min.
    #[test]
    fn a_host_without_services_is_sampled_at_the_least() {
        let choice = choose(&Bounds::CPU, []);
        assert_eq!(choice.plan.run_probability, Bounds::CPU.run_probability_min);
        assert_eq!(choice.service, None);
    }

    /// Checks that nonsense from the bus is refused: absurd numbers and plans from the future.
    #[test]
    fn absurd_plans_are_refused() {
        let good = plan(0.5, 10, 99.0);
        let now = 1_000_000_000_000_000;
        assert_eq!(Bounds::CPU.check(good, now), Ok(good));
        for bad in [
            plan(0.0, 10, 99.0),
            plan(-1.0, 10, 99.0),
            plan(f64::NAN, 10, 99.0),
            plan(0.5, 0, 99.0),
            plan(0.5, 61, 99.0),
            plan(0.5, 10, 1e9),
            plan(0.5, 10, -1.0),
            Plan { keep: 0.0, ..good },
        ] {
            assert!(Bounds::CPU.check(bad, now).is_err(), "{bad:?}");
        }
        let skewed = |ahead| Plan {
            since_us: now + ahead,
            ..good
        };
        assert!(Bounds::CPU.check(skewed(CLOCK_SKEW_US), now).is_ok());
        let ahead_us = CLOCK_SKEW_US + 1;
        let refused = Bounds::CPU.check(skewed(ahead_us), now);
        assert_eq!(refused, Err(SamplingError::FromTheFuture { ahead_us }));
    }

    /// Checks that bounds that exclude one another are refused.
    #[test]
    fn impossible_bounds_are_refused() {
        assert!(Bounds::CPU.validate().is_ok());
        assert!(
            Bounds {
                planned_min_us: 31_000_000,
                ..Bounds::CPU
            }
            .validate()
            .is_err()
        );
        assert!(
            Bounds {
                planned_max_us: 61_000_000,
                ..Bounds::CPU
            }
            .validate()
            .is_err()
        );
        assert!(
            Bounds {
                frequency_min_hz: -1.0,
                ..Bounds::CPU
            }
            .validate()
            .is_err()
        );
        assert!(
            Bounds {
                run_probability_min: 0.0,
                ..Bounds::CPU
            }
            .validate()
            .is_err()
        );
    }

    proptest! {
        /// Checks that the choice does not depend on the order in which services are named, and that a
        /// service never has less than its own plan would give it.
        #[test]
        fn the_order_of_services_does_not_matter(
            plans in prop::collection::vec((1e-4_f64..1.0, 1_u64..30, 1.0_f64..99.0), 1..6),
            turn in 0_usize..6,
        ) {
            let names = ["a", "b", "c", "d", "e", "f"];
            let named = plans.iter().zip(names).map(|(&(q, s, hz), name)| (name, plan(q, s, hz)));
            let mut named: Vec<_> = named.collect();
            let choice = choose(&Bounds::CPU, named.iter().copied());
            let most = choice.plan.strength() * (1.0 + 1e-12);
            prop_assert!(named.iter().all(|(_, plan)| plan.strength() <= most));
            let at = turn % named.len();
            named.rotate_left(at);
            prop_assert_eq!(choose(&Bounds::CPU, named.iter().copied()), choice);
        }
    }
}
