//! Totals with their ±: the spread of what a sample of runs says about all slots.
//!
//! The unit is the run, not the sample: the samples of a run are alike, so that a thousand of them from one
//! run say less than a hundred from each of ten. With t a run's weighted total, u = (D done / D planned) / q
//! the slots that it stands for, and R = Σt/Σu, the variance of the total over S slots is `(S/Σu)² · n/(n−1)
//! · Σ(t − R·u)²`.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Below so many runs no interval is given: the spread of nine numbers is itself a guess.
pub const RUNS_MIN: u64 = 10;

/// Sums over completed runs, from which totals and spreads are made. They can be added in any order.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RunSums {
    /// n: completed runs, also those without a sample.
    pub runs: u64,
    /// Σu.
    pub u: f64,
    /// Σu².
    pub uu: f64,
    /// Σt.
    pub t: f64,
    /// Σt².
    pub tt: f64,
    /// Σtu.
    pub tu: f64,
}

impl RunSums {
    /// Adds a run that stands for `u` slots and whose weighted total is `t`.
    pub fn add(&mut self, u: f64, t: f64) {
        *self += Self {
            runs: 1,
            u,
            uu: u * u,
            t,
            tt: t * t,
            tu: t * u,
        };
    }

    /// Returns the sums of a part (a function, a tag) of what these runs sampled: `t` are its Σt, Σt² and Σtu
    /// over the runs in which it was seen; in the others it was seen zero times, which the runs' own Σu and n
    /// carry.
    pub fn of_part(&self, (t, tt, tu): (f64, f64, f64)) -> Self {
        Self { t, tt, tu, ..*self }
    }

    /// Returns R = Σt/Σu: what one slot holds.
    pub fn ratio(&self) -> Option<f64> {
        (self.u > 0.0).then(|| self.t / self.u)
    }

    /// Returns V, the variance of the total over `slots` slots, or nothing for fewer than two runs.
    pub fn variance(&self, slots: f64) -> Option<f64> {
        let ratio = self.ratio()?;
        if self.runs < 2 {
            return None;
        }
        let n = self.runs as f64;
        // Rounding can leave a little less than nothing where all runs agree.
        let squares = (self.tt - 2.0 * ratio * self.tu + ratio * ratio * self.uu).max(0.0);
        Some((slots / self.u).powi(2) * n / (n - 1.0) * squares)
    }

    /// Returns by how much Σt/Σu is expected to be off because both are estimates, as the factor that undoes
    /// it (Beale's): without it, a service whose hosts run at different q would be off by about cv(u)²/n,
    /// half a percent at 66 runs.
    pub fn small_sample_factor(&self) -> f64 {
        if self.runs < 2 || self.t <= 0.0 || self.u <= 0.0 {
            return 1.0;
        }
        let n = self.runs as f64;
        let (t, u) = (self.t / n, self.u / n);
        let with_t = (self.tu / n - t * u) / (n - 1.0) / (t * u);
        let with_u = (self.uu / n - u * u) / (n - 1.0) / (u * u);
        (1.0 + with_t) / (1.0 + with_u)
    }
}

impl AddAssign for RunSums {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.u += other.u;
        self.uu += other.uu;
        self.t += other.t;
        self.tt += other.tt;
        self.tu += other.tu;
    }
}

/// Share of the time from which on all of it counts as profiled: what turning from run to run leaves out.
const WHOLE: f64 = 0.999;
/// 97.5 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.959_963_984_540_054;

/// A total as people see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Total {
    /// No run was completed: nothing is known, which is not 0.
    NotSampled,
    /// Known from fewer than [`RUNS_MIN`] runs: too few for a ±.
    FewRuns {
        /// The best guess.
        total: f64,
        /// Runs behind it.
        runs: u64,
    },
    /// Known, with half the width of its 95 % interval.
    Known {
        /// The estimate.
        total: f64,
        /// ±.
        plus_minus: f64,
        /// Runs behind it.
        runs: u64,
    },
}

/// What a total is a sample of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Population {
    /// S: slots planned.
    pub slots: f64,
    /// Share of the slots' time that was profiled, in [0, 1]: what was seen need not be estimated. 0 where it
    /// is not known.
    pub profiled: f64,
    /// ΣW0² of the samples in the total: how coarse it is by being made of ticks. 0 where `profiled` is 0.
    pub squared_weights: f64,
}

impl Total {
    /// Returns the total of `weighted` = ΣW0, corrected by `c`, with the spread that `sums` give it.
    ///
    /// What part of the time was profiled is known but for its ticks, so only the rest has the spread between
    /// runs.
    pub fn new(weighted: f64, c: f64, sums: &RunSums, population: Population) -> Self {
        let (total, runs) = (c * weighted, sums.runs);
        let seen = population.profiled.clamp(0.0, 1.0);
        if runs > 0 && seen >= WHOLE {
            // Nothing is left to be estimated but how the ticks fell: as many as there were, not as many as runs.
            let plus_minus = NORMAL_QUANTILE * c * population.squared_weights.sqrt();
            return Self::Known {
                total,
                plus_minus,
                runs,
            };
        }
        match sums.variance(population.slots) {
            None if runs == 0 || sums.u <= 0.0 => Self::NotSampled,
            Some(between) if runs >= RUNS_MIN => {
                let variance = between * (1.0 - seen) + population.squared_weights * c * c * seen;
                Self::Known {
                    total,
                    plus_minus: t_quantile(runs - 1) * variance.sqrt(),
                    runs,
                }
            }
            _ => Self::FewRuns { total, runs },
        }
    }
}

impl Total {
    /// Returns by how many halves of its interval the total is above what is known otherwise (below:
    /// negative), as the kernel's own accounting of the same service and hour: beyond ± 1 they disagree, but
    /// for one hour in twenty. Nothing where the total has no interval.
    pub fn off_by(&self, known: f64) -> Option<f64> {
        match *self {
            Self::Known {
                total, plus_minus, ..
            } if plus_minus > 0.0 => Some((total - known) / plus_minus),
            _ => None,
        }
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotSampled => f.write_str("not sampled"),
            Self::FewRuns { total, runs } => write!(f, "{total} (fewer than {RUNS_MIN} runs: {runs})"),
            Self::Known {
                total, plus_minus, ..
            } => write!(f, "{total} ± {plus_minus}"),
        }
    }
}

/// Returns the 97.5 % quantile of Student's t for at least 9 degrees of freedom, to 0.001: the expansion by
/// Fisher and Cornish. With the normal's 1.96, ten runs would be given intervals that hold 92 % of the time.
pub fn t_quantile(freedom: u64) -> f64 {
    let (z, n) = (NORMAL_QUANTILE, (freedom as f64).max(1.0));
    let g1 = (z.powi(3) + z) / 4.0;
    let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let g3 = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + g1 / n + g2 / n.powi(2) + g3 / n.powi(3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(runs: &[(f64, f64)]) -> RunSums {
        let mut sums = RunSums::default();
        runs.iter().for_each(|&(u, t)| sums.add(u, t));
        sums
    }

    fn all(slots: f64) -> Population {
        Population {
            slots,
            profiled: 0.0,
            squared_weights: 0.0,
        }
    }

    /// Checks the quantiles against a printed table of Student's t.
    #[test]
    fn quantiles_are_those_of_the_table() {
        for (freedom, table) in [
            (9, 2.262),
            (10, 2.228),
            (15, 2.131),
            (30, 2.042),
            (60, 2.000),
            (120, 1.980),
        ] {
            assert!(
                (t_quantile(freedom) - table).abs() < 0.001,
                "{freedom}: {}",
                t_quantile(freedom)
            );
        }
    }

    /// Checks the formula against the textbook's for a plain mean: with all u alike, V is S² s²/n.
    #[test]
    fn with_equal_runs_the_spread_is_that_of_a_mean() {
        let values = [3.0, 5.0, 4.0, 8.0, 1.0, 9.0, 2.0, 6.0, 7.0, 5.0, 4.0, 6.0];
        let runs: Vec<_> = values.iter().map(|&t| (20.0, t)).collect();
        let mean = values.iter().sum::<f64>() / 12.0;
        let s2 = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 11.0;
        // t is per run of u = 20 slots: a slot holds t/20.
        let expected = 240.0_f64.powi(2) * s2 / 400.0 / 12.0;
        let variance = sums(&runs).variance(240.0).unwrap();
        assert!((variance / expected - 1.0).abs() < 1e-9, "{variance} {expected}");
    }

    /// Checks that nothing known is not 0, and that few runs are called few.
    #[test]
    fn nothing_is_not_zero_and_few_are_called_few() {
        let total = |n: usize| Total::new(10.0, 1.0, &sums(&vec![(1.0, 2.0); n]), all(60.0));
        assert_eq!(total(0).to_string(), "not sampled");
        assert_eq!(total(1).to_string(), "10 (fewer than 10 runs: 1)");
        assert_eq!(total(9).to_string(), "10 (fewer than 10 runs: 9)");
        assert_eq!(total(10).to_string(), "10 ± 0");
    }

    /// Checks that a total is compared with what is known by the width of its interval, and not at all
    /// without one.
    #[test]
    fn totals_are_compared_by_their_intervals() {
        let total = Total::Known {
            total: 110.0,
            plus_minus: 5.0,
            runs: 60,
        };
        assert_eq!(total.off_by(100.0), Some(2.0));
        assert_eq!(total.off_by(112.5), Some(-0.5));
        assert_eq!(Total::NotSampled.off_by(1.0), None);
    }

    /// Checks that a service that was profiled all the time is known but for its ticks.
    #[test]
    fn what_was_seen_is_not_estimated() {
        let runs: Vec<_> = (0..60).map(|n| (1.0, f64::from(n))).collect();
        let seen = Population {
            slots: 60.0,
            profiled: 1.0,
            squared_weights: 4.0,
        };
        match Total::new(1_770.0, 1.0, &sums(&runs), seen) {
            Total::Known { plus_minus, .. } => assert!((plus_minus - 2.0 * NORMAL_QUANTILE).abs() < 1e-12),
            other => panic!("{other}"),
        }
    }

    proptest! {
        /// Checks that order and batching do not matter, to 1e-9.
        #[test]
        fn order_and_batching_do_not_matter(
            runs in prop::collection::vec((0.01_f64..1e4, 0.0_f64..1e12), 10..80),
            cut in 0_usize..80,
        ) {
            let whole = sums(&runs);
            let cut = cut % runs.len();
            let mut parts = sums(&runs[cut..]);
            parts += sums(&runs[..cut]);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
            prop_assert!(near(whole.t, parts.t) && near(whole.u, parts.u) && near(whole.tt, parts.tt));
            let (a, b) = (whole.variance(1e3).unwrap(), parts.variance(1e3).unwrap());
            // Σ(t − R·u)² is a difference of sums that are at most Σt² each.
            prop_assert!((a - b).abs() <= 1e-9 * (1e3 / whole.u).powi(2) * whole.tt.max(1.0), "{} {}", a, b);
        }

        /// Checks that halving every q (doubling u and t) changes neither the total nor its relative spread.
        #[test]
        fn the_unit_of_probability_cancels(
            runs in prop::collection::vec((0.01_f64..1e4, 0.0_f64..1e6), 10..80),
        ) {
            let doubled: Vec<_> = runs.iter().map(|&(u, t)| (2.0 * u, 2.0 * t)).collect();
            let (a, b) = (sums(&runs), sums(&doubled));
            prop_assert_eq!(a.ratio(), b.ratio());
            let (a, b) = (a.variance(1e3).unwrap(), b.variance(1e3).unwrap());
            prop_assert!((a - b).abs() <= 1e-9 * a.max(b));
        }
    }
}
