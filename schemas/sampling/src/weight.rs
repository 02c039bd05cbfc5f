//! The two weights of a sample.

/// What a run says of itself that enters its samples' weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunRates {
    /// q: the probability with which the slot was drawn, in (0, 1].
    pub run_probability: f64,
    /// p_kernel: the probability with which the kernel kept an event, in (0, 1].
    pub kernel_probability: f64,
    /// D_planned: the run's planned duration, microseconds.
    pub planned_us: u64,
    /// L: the slot's length, microseconds.
    pub slot_us: u64,
    /// Whether the slot was drawn by the schedule; a run that somebody chose has no weight in the fleet.
    pub drawn: bool,
}

/// Probabilities with which samples were kept after they were taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thinning {
    /// p_limit: kept by limits before the weight was formed, in (0, 1].
    pub limit: f64,
    /// p_thin: kept when thinned afterwards, in (0, 1].
    pub thin: f64,
}

impl Thinning {
    /// Nothing was thinned.
    pub const NONE: Self = Self {
        limit: 1.0,
        thin: 1.0,
    };
}

/// Why no weight could be formed: the sample is refused rather than counted wrongly.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum WeightError {
    /// A probability is not in (0, 1].
    #[error("probability {0} is not in (0, 1]")]
    Probability(f64),
    /// A duration is zero.
    #[error("the run has no planned duration or its slot no length")]
    NoDuration,
    /// The value, or the weight made of it, is not a positive number.
    #[error("a weight of {0} is not a positive number")]
    NotPositive(f64),
    /// The event was enabled, never ran, and yet a sample came of it.
    #[error("the event was enabled for {enabled_ns} ns and never ran")]
    NeverRan {
        /// Nanoseconds for which it was enabled.
        enabled_ns: u64,
    },
}

/// Returns w_run: how many events one sample of `value` stands for within its run.
///
/// `loss` is the CPU's factor of [`crate::loss_factors`]. `enabled_ns` and `running_ns` are the CPU's; both 0 where
/// the event has no such counts.
///
/// # Errors
/// [`WeightError`] where a part is out of its range.
pub fn run_weight(
    value: u64,
    loss: f64,
    (enabled_ns, running_ns): (u64, u64),
    run: &RunRates,
    thinning: Thinning,
) -> Result<f64, WeightError> {
    let multiplexed = match (enabled_ns, running_ns) {
        (0, _) => 1.0,
        (_, 0) => return Err(WeightError::NeverRan { enabled_ns }),
        // Read at slightly different moments, running may come out a little ahead; it never means less than 1.
        _ => (enabled_ns as f64 / running_ns as f64).max(1.0),
    };
    let kept = probability(run.kernel_probability)? * probability(thinning.limit)?;
    positive(value as f64 * loss * multiplexed / kept)
}

/// Returns W0: how many events of the fleet a sample of the given `run_weight` stands for; 0 for a run that was chosen.
///
/// # Errors
/// [`WeightError`] where a part is out of its range.
pub fn fleet_weight(run_weight: f64, run: &RunRates, thinning: Thinning) -> Result<f64, WeightError> {
    if !run.drawn {
        return Ok(0.0);
    }
    if run.planned_us == 0 || run.slot_us == 0 {
        return Err(WeightError::NoDuration);
    }
    let share = probability(run.run_probability)? * probability(thinning.thin)? * run.planned_us as f64;
    positive(run_weight * run.slot_us as f64 / share)
}

fn probability(p: f64) -> Result<f64, WeightError> {
    if p > 0.0 && p <= 1.0 {
        Ok(p)
    } else {
        Err(WeightError::Probability(p))
    }
}

fn positive(weight: f64) -> Result<f64, WeightError> {
    if weight.is_finite() && weight > 0.0 {
        Ok(weight)
    } else {
        Err(WeightError::NotPositive(weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALWAYS: RunRates = RunRates {
        run_probability: 1.0,
        kernel_probability: 1.0,
        planned_us: 60_000_000,
        slot_us: 60_000_000,
        drawn: true,
    };

    fn both(value: u64, run: &RunRates) -> (f64, f64) {
        let own = run_weight(value, 1.0, (0, 0), run, Thinning::NONE).unwrap();
        (own, fleet_weight(own, run, Thinning::NONE).unwrap())
    }

    /// Checks that a run of the whole slot on every host weighs its samples as they are.
    #[test]
    fn a_run_that_is_always_on_weighs_its_samples_as_they_are() {
        assert_eq!(both(1_000, &ALWAYS), (1_000.0, 1_000.0));
    }

    /// Checks that a run that somebody chose has no weight in the fleet, but one within itself.
    #[test]
    fn a_chosen_run_says_nothing_about_the_fleet() {
        assert_eq!(
            both(
                1_000,
                &RunRates {
                    drawn: false,
                    ..ALWAYS
                }
            ),
            (1_000.0, 0.0)
        );
    }

    /// Checks that an event that the kernel let run for half of the time counts twice.
    #[test]
    fn a_multiplexed_event_counts_for_the_time_it_did_not_run() {
        assert_eq!(
            run_weight(10, 1.0, (2_000, 1_000), &ALWAYS, Thinning::NONE),
            Ok(20.0)
        );
        let never = run_weight(10, 1.0, (2_000, 0), &ALWAYS, Thinning::NONE);
        assert_eq!(never, Err(WeightError::NeverRan { enabled_ns: 2_000 }));
    }

    /// Checks that nonsense is refused with its reason, never turned into a weight.
    #[test]
    fn nonsense_is_refused() {
        let bad = RunRates {
            run_probability: 0.0,
            ..ALWAYS
        };
        assert_eq!(
            fleet_weight(1.0, &bad, Thinning::NONE),
            Err(WeightError::Probability(0.0))
        );
        let none = RunRates {
            planned_us: 0,
            ..ALWAYS
        };
        assert_eq!(
            fleet_weight(1.0, &none, Thinning::NONE),
            Err(WeightError::NoDuration)
        );
        assert!(run_weight(0, 1.0, (0, 0), &ALWAYS, Thinning::NONE).is_err());
        assert!(run_weight(1, f64::NAN, (0, 0), &ALWAYS, Thinning::NONE).is_err());
    }

    proptest! {
        /// Checks that halving q doubles what a sample stands for in the fleet, and leaves its run alone.
        #[test]
        fn rarer_runs_weigh_more(value in 1_u64..1_000_000_000, q in 1e-6_f64..1.0) {
            let (own, fleet) = both(value, &RunRates { run_probability: q, ..ALWAYS });
            let (own_half, fleet_half) = both(value, &RunRates { run_probability: q / 2.0, ..ALWAYS });
            prop_assert_eq!(own, own_half);
            prop_assert!((fleet_half / fleet - 2.0).abs() < 1e-9);
        }

        /// Checks that thinning by p leaves the expected total where it was.
        #[test]
        fn thinning_keeps_the_expected_total(value in 1_u64..1_000_000_000, p in 1e-6_f64..=1.0) {
            let whole = run_weight(value, 1.0, (0, 0), &ALWAYS, Thinning::NONE).unwrap();
            let thinned = run_weight(value, 1.0, (0, 0), &ALWAYS, Thinning { limit: p, thin: 1.0 }).unwrap();
            prop_assert!((thinned * p / whole - 1.0).abs() < 1e-9);
        }
    }
}
