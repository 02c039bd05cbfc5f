//! Limits: from numbers of samples and bytes per hour to the probability with which a sample stays.
//!
//! The probability is fixed before the interval to which it applies, and recorded; a sample stays if a hash
//! of its batch's identity and its place in it is below the probability. A bucket of tokens would keep
//! whoever comes first in the interval, and the weights would no longer hold.
//!
//! What a limit leaves is shared evenly among those under it: who wants less than an even share gets all it
//! wants, so that a small service is not thinned because of a large one.

use std::collections::BTreeMap;

use crate::error::{SamplingError, in_range};
use crate::hash::{Key, Probability};

/// The least probability that a limit leaves: a sample stands for a million others. Less would be noise, and
/// is counted as an overrun instead.
pub const KEEP_MIN: f64 = 1e-6;

/// What may pass in an hour; infinite where there is no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerHour {
    /// Samples.
    pub samples: f64,
    /// Bytes to the bus.
    pub bus_bytes: f64,
    /// Bytes to storage.
    pub stored_bytes: f64,
}

impl PerHour {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        samples: f64::INFINITY,
        bus_bytes: f64::INFINITY,
        stored_bytes: f64::INFINITY,
    };

    /// Proves that every limit is a number of at least 1.
    ///
    /// # Errors
    /// [`SamplingError::OutOfRange`] names the one that is not.
    pub fn validate(self) -> Result<Self, SamplingError> {
        for (name, value) in [
            ("samples per hour", self.samples),
            ("bytes per hour to the bus", self.bus_bytes),
            ("bytes per hour to storage", self.stored_bytes),
        ] {
            in_range(name, value, 1.0, f64::INFINITY)?;
        }
        Ok(self)
    }

    fn kinds(&self) -> [f64; 3] {
        [self.samples, self.bus_bytes, self.stored_bytes]
    }
}

/// The limits in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Of each service, unless it has its own.
    pub service: PerHour,
    /// Of services that have their own; lifted until the given moment.
    pub services: BTreeMap<String, (PerHour, u64)>,
    /// Of teams.
    pub teams: BTreeMap<String, PerHour>,
    /// Of all together.
    pub fleet: PerHour,
}

/// What a service will send in the next hour under its plan, before any limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand<'a> {
    /// The service.
    pub service: &'a str,
    /// Whose it is.
    pub team: &'a str,
    /// What it will send.
    pub expected: PerHour,
}

/// Which limit thins a service most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Its own.
    Service,
    /// Its team's.
    Team,
    /// That of the whole fleet.
    Fleet,
}

/// The probability with which a service's samples stay, and whose limit it is when below 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keep {
    /// The probability, in [[`KEEP_MIN`], 1].
    pub probability: f64,
    /// The limit that decided it last.
    pub by: Option<Level>,
}

/// Returns the keep probability of each demand, in order. An owner's lifting of a service's limit leaves
/// those of team and fleet in force: it is theirs to lift.
pub fn keep_probabilities(demands: &[Demand<'_>], limits: &Limits, now_us: u64) -> Vec<Keep> {
    let mut keeps = vec![
        Keep {
            probability: 1.0,
            by: None
        };
        demands.len()
    ];
    for kind in 0..3 {
        let mut costs: Vec<f64> = demands
            .iter()
            .map(|demand| demand.expected.kinds()[kind].max(0.0))
            .collect();
        let mut own = vec![
            Keep {
                probability: 1.0,
                by: None
            };
            demands.len()
        ];
        let mut narrow = |members: &[usize], most: f64, by: Level| {
            let level = even_level(members.iter().map(|&at| costs[at]), most);
            for &at in members {
                if costs[at] > level {
                    own[at] = Keep {
                        probability: own[at].probability * level / costs[at],
                        by: Some(by),
                    };
                    costs[at] = level;
                }
            }
        };
        for (at, demand) in demands.iter().enumerate() {
            let limit = match limits.services.get(demand.service) {
                Some((_, lifted_until_us)) if now_us < *lifted_until_us => PerHour::UNLIMITED,
                Some((limit, _)) => *limit,
                None => limits.service,
            };
            narrow(&[at], limit.kinds()[kind], Level::Service);
        }
        for (team, limit) in &limits.teams {
            let members: Vec<usize> = (0..demands.len())
                .filter(|&at| demands[at].team == team)
                .collect();
            narrow(&members, limit.kinds()[kind], Level::Team);
        }
        let all: Vec<usize> = (0..demands.len()).collect();
        narrow(&all, limits.fleet.kinds()[kind], Level::Fleet);
        for (keep, own) in keeps.iter_mut().zip(own) {
            if own.probability < keep.probability {
                *keep = own;
            }
        }
    }
    for keep in &mut keeps {
        keep.probability = keep.probability.max(KEEP_MIN);
    }
    keeps
}

/// Returns the level to which costs must be cut so that they sum up to at most `most`; infinite if they do
/// already.
fn even_level(costs: impl Iterator<Item = f64>, most: f64) -> f64 {
    let mut costs: Vec<f64> = costs.filter(|cost| cost.is_finite()).collect();
    if costs.iter().sum::<f64>() <= most {
        return f64::INFINITY;
    }
    costs.sort_unstable_by(f64::total_cmp);
    let mut left = most;
    for (at, &cost) in costs.iter().enumerate() {
        let share = left / (costs.len() - at) as f64;
        if cost > share {
            return share;
        }
        left -= cost;
    }
    f64::INFINITY
}

/// Returns the probability for the next second, after `used` passed in a second for which `allowed` was
/// meant: lower by the overrun, or back towards the plan's `planned`, at most doubling, once there is room.
pub fn after_second(keep: f64, planned: f64, used: f64, allowed: f64) -> f64 {
    let factor = if used > 0.0 {
        (allowed / used).clamp(0.0, 2.0)
    } else {
        2.0
    };
    (keep * factor).clamp(KEEP_MIN, planned.max(KEEP_MIN))
}

/// Decides which samples of a batch stay.
#[derive(Debug, Clone, Copy)]
pub struct Sieve {
    key: Key,
    keep: Probability,
}

impl Sieve {
    /// Returns the sieve of the batch with this identity in the spool. A repeated batch keeps the same
    /// samples.
    pub fn new(host: &str, epoch: &[u8; 16], sequence: u64, keep: Probability) -> Self {
        Self {
            key: Key::of_batch(host, epoch, sequence),
            keep,
        }
    }

    /// Returns whether the sample at `index` stays.
    #[inline]
    pub fn stays(&self, index: usize) -> bool {
        self.key.draw(index as u64).below(self.keep)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples(samples: f64) -> PerHour {
        PerHour {
            samples,
            ..PerHour::UNLIMITED
        }
    }

    fn demand<'a>(service: &'a str, team: &'a str, wanted: f64) -> Demand<'a> {
        let expected = PerHour {
            samples: wanted,
            bus_bytes: 10.0 * wanted,
            stored_bytes: 5.0 * wanted,
        };
        Demand {
            service,
            team,
            expected,
        }
    }

    fn limits() -> Limits {
        Limits {
            service: samples(1_000.0),
            services: BTreeMap::from([("big".to_owned(), (samples(4_000.0), 500))]),
            teams: BTreeMap::from([("t".to_owned(), samples(1_500.0))]),
            fleet: PerHour::UNLIMITED,
        }
    }

    /// Checks that a service is cut to its own limit, that its owner can lift that for a time, and that it
    /// ends by itself.
    #[test]
    fn a_limit_can_be_lifted_for_a_time() {
        let keep = |now| keep_probabilities(&[demand("big", "u", 8_000.0)], &limits(), now)[0];
        assert_eq!(
            keep(499),
            Keep {
                probability: 1.0,
                by: None
            }
        );
        assert_eq!(
            keep(500),
            Keep {
                probability: 0.5,
                by: Some(Level::Service)
            }
        );
    }

    /// Checks that a small service is not thinned because a large one of its team is.
    #[test]
    fn the_small_one_is_not_thinned_for_the_large_one() {
        let demands = [
            demand("a", "t", 100.0),
            demand("b", "t", 3_000.0),
            demand("c", "t", 1_000.0),
        ];
        let keeps = keep_probabilities(&demands, &limits(), 0);
        assert_eq!(
            keeps[0],
            Keep {
                probability: 1.0,
                by: None
            }
        );
        assert!((keeps[1].probability * 3_000.0 - 700.0).abs() < 1e-9);
        assert!((keeps[2].probability * 1_000.0 - 700.0).abs() < 1e-9);
    }

    /// Checks that a batch that comes again is thinned as it was the first time, and that what stays is p of
    /// it.
    #[test]
    fn a_repeated_batch_keeps_the_same_samples() {
        let keep = Probability::new("keep", 0.3).unwrap();
        let mut kept = 0_i64;
        for sequence in 0..200 {
            let sieve = Sieve::new("h", &[7; 16], sequence, keep);
            let stays: Vec<bool> = (0..1_000).map(|at| sieve.stays(at)).collect();
            let again = Sieve::new("h", &[7; 16], sequence, keep);
            assert!((0..1_000).all(|at| again.stays(at) == stays[at]));
            kept += stays.iter().filter(|stays| **stays).count() as i64;
        }
        // 200,000 draws at 0.3: standard deviation 205.
        assert!((kept - 60_000).abs() < 4 * 205, "{kept}");
    }

    /// Checks that an overrun lowers the next second at once, and that room raises it again no further than
    /// planned.
    #[test]
    fn an_overrun_lowers_the_next_second() {
        assert_eq!(after_second(0.8, 0.8, 400.0, 100.0), 0.2);
        assert_eq!(after_second(0.2, 0.8, 100.0, 100.0), 0.2);
        assert_eq!(after_second(0.2, 0.8, 0.0, 100.0), 0.4);
        assert_eq!(after_second(0.7, 0.8, 0.0, 100.0), 0.8);
        assert_eq!(after_second(1e-6, 0.8, 1e12, 1.0), KEEP_MIN);
    }

    proptest! {
        /// Checks that no limit is passed, of any kind and level, and that nothing is thinned without need.
        #[test]
        fn no_limit_is_passed(
            wanted in prop::collection::vec(1.0_f64..1e5, 1..20),
            own in 10.0_f64..1e5,
            team in 10.0_f64..1e5,
            fleet in 10.0_f64..1e6,
        ) {
            let names: Vec<String> = (0..wanted.len()).map(|n| n.to_string()).collect();
            let demands: Vec<_> = (0..wanted.len())
                .map(|n| demand(&names[n], ["t", "u"][n % 2], wanted[n]))
                .collect();
            let limits = Limits {
                service: samples(own),
                services: BTreeMap::new(),
                teams: BTreeMap::from([("t".to_owned(), samples(team))]),
                fleet: PerHour { bus_bytes: fleet, ..PerHour::UNLIMITED },
            };
            let keeps = keep_probabilities(&demands, &limits, 0);
            let sent = wanted.iter().zip(&keeps).map(|(wanted, keep)| wanted * keep.probability);
            let sent: Vec<f64> = sent.collect();
            let slack = 1.0 + 1e-9;
            prop_assert!(sent.iter().all(|&sent| sent <= own * slack));
            prop_assert!(sent.iter().step_by(2).sum::<f64>() <= team * slack);
            prop_assert!(sent.iter().sum::<f64>() * 10.0 <= fleet * slack);
            if wanted.iter().sum::<f64>() <= own.min(team).min(fleet / 10.0) {
                prop_assert!(keeps.iter().all(|keep| keep.by.is_none() && keep.probability == 1.0));
            }
        }
    }
}
