//! Coverage: which slots were planned, refused, run and cut short; and the correction that follows from it.
//!
//! Refused and cut-short runs are known only afterwards, so they are not in the weights of rows. With S the
//! slots planned while the service was present and U = Σ over completed runs of (1/q)·(D done / D planned), a
//! total is `c·ΣW0`, `c = S/U`. A slot is planned for who is present at its moment
//! ([`crate::schedule::Moment`]), drawn or not, and counts for the moment's hour.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::error::SamplingError;
use crate::slot::SlotLength;
use crate::spread::RunSums;

/// Hours with fewer runs behind them are corrected together with their neighbours.
pub const POOL_RUNS_MIN: u64 = 30;

/// Moments that an hour can hold beyond its slots: one since they lie anywhere in their slots, and one where
/// two days' grids meet at midnight.
pub const MORE_SLOTS: f64 = 2.0;

/// Share by which runs may last longer than planned: a run ends when its host gets to it, and what it sampled until then
/// counts, with its time. The shortest last a second, and an overloaded host is late by hundreds of milliseconds.
pub const OVERRUN_MAX: f64 = 0.5;

/// What became of the slots of one (service, profiler, host, epoch, hour). An agent sends it again when it
/// changes, whole and with a higher revision, so that a late record corrects an early one and a repeated one
/// changes nothing. The epoch is that of the host's spool: after a restart the rest of the hour is another
/// record, which adds to the first.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Coverage {
    /// The higher one of two records with the same key counts.
    pub revision: u64,
    /// S: slots at whose moment the service was present.
    pub planned: u64,
    /// Slots that were drawn and could not run.
    pub refused: u64,
    /// Slots that ran as planned.
    pub complete: u64,
    /// Slots whose run ended early.
    pub cut_short: u64,
    /// Σ 1/q over all slots that were drawn, also the refused ones.
    pub drawn_inverse: f64,
    /// Time profiled, microseconds: Σ D done.
    pub done_us: u64,
    /// Samples taken: before limits, losses and thinning.
    pub taken: u64,
    /// CPU time of the service by the kernel's own accounting, microseconds; 0 where it is not known.
    pub cpu_us: u64,
    /// Sums over the completed runs; t is taken ÷ (q × D planned × f), where f is 1 for a profiler without a
    /// frequency: for `cpu` the busy CPUs that a run saw, times the slots that it stands for.
    pub done: RunSums,
}

impl Coverage {
    /// Returns the later one of two records with the same key.
    pub fn later(self, other: Self) -> Self {
        if other.revision > self.revision {
            other
        } else {
            self
        }
    }

    /// Returns the record of `host` if its counts can be true.
    ///
    /// # Errors
    /// [`SamplingError::Coverage`] says what contradicts what.
    pub fn check(self, host: &str, slot: SlotLength) -> Result<Self, SamplingError> {
        let runs = self.complete.saturating_add(self.cut_short);
        let wrong = if self.refused.saturating_add(runs) > self.planned {
            "more slots were drawn than planned"
        } else if self.planned as f64 > slot.per_hour() + MORE_SLOTS {
            "more slots were planned than an hour holds"
        } else if self.done.runs != runs {
            "its runs are not those that it sums"
        } else if ![
            self.drawn_inverse,
            self.done.u,
            self.done.uu,
            self.done.t,
            self.done.tt,
            self.done.tu,
        ]
        .iter()
        .all(|sum| sum.is_finite() && *sum >= 0.0)
        {
            "a sum is negative or not a number"
        } else if self.drawn_inverse < (self.refused + runs) as f64 * (1.0 - 1e-9)
            || self.done.u > self.drawn_inverse * (1.0 + OVERRUN_MAX)
        {
            "its probabilities are not in (0, 1]"
        } else {
            return Ok(self);
        };
        Err(SamplingError::Coverage {
            host: host.to_owned(),
            what: wrong,
        })
    }

    /// Returns the share of the slots' time that was profiled.
    pub fn profiled(&self, slot: SlotLength) -> f64 {
        match self.planned {
            0 => 0.0,
            planned => (self.done_us as f64 / (planned as f64 * slot.us() as f64)).min(1.0),
        }
    }

    /// Returns c, by which ΣW0 is multiplied, or nothing where no run was completed: S/U, freed of the error
    /// that a ratio of two estimates has ([`RunSums::small_sample_factor`]).
    pub fn correction(&self) -> Option<f64> {
        (self.done.runs > 0 && self.done.u > 0.0)
            .then(|| self.planned as f64 / self.done.u * self.done.small_sample_factor())
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Self) {
        self.revision = self.revision.max(other.revision);
        self.planned += other.planned;
        self.refused += other.refused;
        self.complete += other.complete;
        self.cut_short += other.cut_short;
        self.drawn_inverse += other.drawn_inverse;
        self.done_us += other.done_us;
        self.taken += other.taken;
        self.cpu_us += other.cpu_us;
        self.done += other.done;
    }
}

/// Returns c for each of some consecutive hours: of the hour itself where at least [`POOL_RUNS_MIN`] runs
/// stand behind it, otherwise of the hour and those after it (at the end: before it) until so many do.
/// Nothing was sampled in all: nothing.
pub fn corrections(hours: &[Coverage]) -> Vec<Option<f64>> {
    let mut pools: Vec<(usize, Coverage)> = Vec::new();
    let mut open = Coverage::default();
    let mut since = 0;
    for (at, hour) in hours.iter().enumerate() {
        open += *hour;
        if open.done.runs >= POOL_RUNS_MIN {
            pools.push((at + 1 - since, std::mem::take(&mut open)));
            since = at + 1;
        }
    }
    let left = hours.len() - since;
    match pools.last_mut() {
        Some((length, pool)) => {
            *length += left;
            *pool += open;
        }
        None => pools.push((left, open)),
    }
    pools
        .iter()
        .flat_map(|(length, pool)| std::iter::repeat_n(pool.correction(), *length))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An hour in which every one of `runs` runs had probability `q` and did `done` of what was planned.
    fn hour(planned: u64, refused: u64, runs: u64, q: f64, done: f64) -> Coverage {
        let mut sums = RunSums::default();
        (0..runs).for_each(|_| sums.add(done / q, 7.0 * done / q));
        Coverage {
            revision: 1,
            planned,
            refused,
            complete: runs,
            drawn_inverse: (runs + refused) as f64 / q,
            done: sums,
            ..Coverage::default()
        }
    }

    /// Checks that what was refused and what was cut short is carried by what was done.
    #[test]
    fn what_did_not_run_is_carried_by_what_did() {
        // 6,000 slots at q = 0.01: 60 drawn, 20 refused, 40 done by half: they stand for 2,000.
        let c = hour(6_000, 20, 40, 0.01, 0.5).correction().unwrap();
        assert!((c - 3.0).abs() < 1e-9, "{c}");
        assert_eq!(hour(6_000, 60, 0, 0.01, 1.0).correction(), None);
    }

    /// Checks that hours with few runs borrow from their neighbours, and that no hour is left without where
    /// any was sampled.
    #[test]
    fn thin_hours_borrow_from_their_neighbours() {
        let hours = [
            hour(60, 0, 40, 0.5, 1.0),
            hour(60, 0, 10, 0.5, 1.0),
            hour(60, 0, 25, 0.5, 1.0),
            hour(60, 0, 0, 0.5, 1.0),
        ];
        let c = corrections(&hours);
        assert_eq!(c[0], Some(60.0 / 80.0));
        assert_eq!(c[1..], [Some(180.0 / 70.0); 3]);
        assert_eq!(corrections(&[hour(60, 0, 0, 0.5, 1.0); 3]), vec![None; 3]);
        assert_eq!(corrections(&[]), vec![]);
    }

    /// Checks that a repeated record changes nothing and a late one corrects, in whatever order they come.
    #[test]
    fn the_highest_revision_counts() {
        let (early, late) = (
            hour(60, 0, 5, 0.5, 1.0),
            Coverage {
                revision: 2,
                ..hour(60, 0, 9, 0.5, 1.0)
            },
        );
        assert_eq!(early.later(late), late);
        assert_eq!(late.later(early), late);
        assert_eq!(early.later(early), early);
    }

    /// Checks that records that cannot be true are refused.
    #[test]
    fn impossible_records_are_refused() {
        let good = hour(60, 2, 5, 0.5, 1.0);
        let check = |record: Coverage| record.check("h", SlotLength::MINUTE);
        assert_eq!(check(good), Ok(good));
        for bad in [
            Coverage { planned: 6, ..good },
            Coverage { planned: 63, ..good },
            Coverage { complete: 6, ..good },
            Coverage {
                drawn_inverse: f64::NAN,
                ..good
            },
            Coverage {
                drawn_inverse: 6.9,
                ..good
            },
            Coverage {
                done: RunSums { t: -1.0, ..good.done },
                ..good
            },
            Coverage {
                done: RunSums { u: 1e9, ..good.done },
                ..good
            },
            Coverage {
                refused: u64::MAX,
                ..good
            },
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    /// Checks that a service whose hosts run at different q is not off by chance of small numbers: plain S/U
    /// is 0.5 % too high here, as the theory says.
    #[test]
    fn few_runs_at_different_q_are_not_biased() {
        use crate::hash::{Key, Probability, Purpose};
        // Half of the hosts at q = 0.01 with load 1, half at 0.04 with load 2.
        let key = Key::new(Purpose::Slot, "bias", "cpu", "h");
        let kinds = [
            (Probability::new("q", 0.01).unwrap(), 1.0),
            (Probability::new("q", 0.04).unwrap(), 2.0),
        ];
        let (slots, goes) = (1_320_u64, 40_000_u64);
        let (mut ours, mut plain, mut squares) = (0.0, 0.0, 0.0);
        for go in 0..goes {
            let mut coverage = Coverage {
                planned: 2 * slots,
                ..Coverage::default()
            };
            for slot in 0..2 * slots {
                let (q, load) = kinds[(slot % 2) as usize];
                if key.draw(go * 2 * slots + slot).below(q) {
                    coverage.done.add(1.0 / q.get(), load / q.get());
                }
            }
            let truth = slots as f64 * 3.0;
            let of = |c: f64| c * coverage.done.t / truth - 1.0;
            let own = of(coverage.correction().unwrap());
            ours += own / goes as f64;
            squares += own * own / goes as f64;
            plain += of(coverage.planned as f64 / coverage.done.u) / goes as f64;
        }
        let error = (squares / goes as f64).sqrt();
        assert!(ours.abs() < 4.0 * error && ours.abs() < 0.001, "{ours} ± {error}");
        assert!(plain > 0.003, "{plain}");
    }

    proptest! {
        /// Checks that pooling keeps the whole: each run is counted in exactly one pool, so that with nothing
        /// refused and equal loads the corrected total is that of all slots.
        #[test]
        fn pools_keep_the_whole(runs in prop::collection::vec(0_u64..60, 1..48)) {
            let hours: Vec<_> = runs.iter().map(|&n| hour(60, 0, n, 0.5, 1.0)).collect();
            let corrected = corrections(&hours);
            let totals = corrected.iter().zip(&hours).filter_map(|(c, hour)| Some((*c)? * hour.done.t));
            let total: f64 = totals.sum();
            prop_assume!(runs.iter().any(|&n| n > 0));
            let truth = 60.0 * 7.0 * runs.len() as f64;
            prop_assert!((total / truth - 1.0).abs() < 1e-9, "{} {}", total, truth);
        }
    }
}
