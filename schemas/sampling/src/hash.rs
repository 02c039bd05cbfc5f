//! The draw: a hash that decides what is sampled. Frozen, since two versions of the fleet must draw alike,
//! and what was recorded must be reproducible.
//!
//! Its name is [`DRAW`]. A [`Key`] is XXH3-64 (seed 0) over the name, a byte for the purpose, and for each of
//! salt, profiler and host the length (4 bytes, little endian) and the bytes. The draw of a number (a slot, a
//! day, a sample's index) is XXH3-64, seeded with the key, over the number's 8 bytes, little endian; its
//! upper 53 bits over 2⁵³ are a number in [0, 1), the most that a double holds exactly. What is drawn at
//! probability p is also drawn at every greater one, and another salt draws independently.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::SamplingError;

/// The name of the draw, hashed into every key. Another algorithm gets another name.
pub const DRAW: &str = "strobe-draw-1";

/// Steps into which [0, 1) is divided: 2⁵³.
const STEPS: f64 = 9_007_199_254_740_992.0;

/// What a draw decides. Each draws independently of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Whether a slot runs.
    Slot = 1,
    /// By how much a day's grid of slots is shifted.
    Phase = 2,
    /// Where in its slot a run starts.
    Offset = 3,
    /// Whether a sample stays under a limit.
    Keep = 4,
    /// Which hosts a request picks.
    Request = 5,
}

/// Whose draws: one key for each use, salt, profiler and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Returns the key of (purpose, salt, profiler, host).
    pub fn new(purpose: Purpose, salt: &str, profiler: &str, host: &str) -> Self {
        let mut bytes = Vec::with_capacity(32 + salt.len() + profiler.len() + host.len());
        bytes.extend_from_slice(DRAW.as_bytes());
        bytes.push(purpose as u8);
        for field in [salt, profiler, host] {
            push_field(&mut bytes, field.as_bytes());
        }
        Self(xxh3_64(&bytes))
    }

    /// Returns the key for the samples of a batch, from its identity in the spool.
    pub fn of_batch(host: &str, epoch: &[u8; 16], sequence: u64) -> Self {
        let mut bytes = Vec::with_capacity(64 + host.len());
        bytes.extend_from_slice(DRAW.as_bytes());
        bytes.push(Purpose::Keep as u8);
        push_field(&mut bytes, host.as_bytes());
        push_field(&mut bytes, epoch);
        push_field(&mut bytes, &sequence.to_le_bytes());
        Self(xxh3_64(&bytes))
    }

    /// Returns the draw of `number`.
    #[inline]
    pub fn draw(self, number: u64) -> Draw {
        Draw(xxh3_64_with_seed(&number.to_le_bytes(), self.0) >> 11)
    }
}

fn push_field(bytes: &mut Vec<u8>, field: &[u8]) {
    // Lengths first, so that ("a", "bc") and ("ab", "c") differ.
    bytes.extend_from_slice(&(field.len() as u32).to_le_bytes());
    bytes.extend_from_slice(field);
}

/// One outcome of the hash, 53 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Draw(u64);

impl Draw {
    /// Returns it as a number in [0, 1).
    pub fn unit(self) -> f64 {
        self.0 as f64 / STEPS
    }

    /// Returns whether it falls below `probability`: always at 1.
    #[inline]
    pub fn below(self, probability: Probability) -> bool {
        self.0 < probability.threshold
    }
}

/// A number in (0, 1]: 0 would mean a weight without end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probability {
    value: f64,
    /// The value in steps of the draw. A product with a power of two is exact, so that rounding up is the
    /// only error: at most one in 2⁵³.
    threshold: u64,
}

impl Probability {
    /// Certainty.
    pub const ALWAYS: Self = Self {
        value: 1.0,
        threshold: 1 << 53,
    };

    /// Returns `value` as a probability.
    ///
    /// # Errors
    /// [`SamplingError::Probability`] outside of (0, 1].
    pub fn new(name: &'static str, value: f64) -> Result<Self, SamplingError> {
        if value > 0.0 && value <= 1.0 {
            Ok(Self {
                value,
                threshold: (value * STEPS).ceil() as u64,
            })
        } else {
            Err(SamplingError::Probability { name, value })
        }
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks the frozen vectors. They were computed with the reference implementation of XXH3
    /// (python-xxhash), not with this code: a change here would make agents of two versions draw differently.
    #[test]
    fn the_draw_is_frozen() {
        let vectors: Vec<(u8, String, String, String, u64, u64)> =
            serde_json::from_str(include_str!("../tests/data/draws.json")).unwrap();
        assert!(vectors.len() >= 24);
        for (purpose, salt, profiler, host, number, expected) in vectors {
            let purpose = [Purpose::Slot, Purpose::Phase, Purpose::Offset][usize::from(purpose) - 1];
            let draw = Key::new(purpose, &salt, &profiler, &host).draw(number);
            assert_eq!(
                draw,
                Draw(expected),
                "{purpose:?} {salt} {profiler} {host} {number}"
            );
        }
    }

    /// Checks that fields do not run into one another, and that each of them matters.
    #[test]
    fn every_field_of_a_key_matters() {
        let key = |p, s, f, h| Key::new(p, s, f, h);
        let base = key(Purpose::Slot, "a", "bc", "d");
        for other in [
            key(Purpose::Phase, "a", "bc", "d"),
            key(Purpose::Slot, "ab", "c", "d"),
            key(Purpose::Slot, "a", "b", "cd"),
            key(Purpose::Slot, "a", "bc", "e"),
        ] {
            assert_ne!(base, other);
        }
        assert_ne!(Key::of_batch("h", &[1; 16], 1), Key::of_batch("h", &[1; 16], 2));
        assert_ne!(Key::of_batch("h", &[1; 16], 1), Key::of_batch("h", &[2; 16], 1));
    }

    /// Checks that over many hosts and slots the share drawn is the probability, within 4 standard errors,
    /// for each host and for each slot: neither is favoured.
    #[test]
    fn draws_are_even_over_hosts_and_over_slots() {
        let q = Probability::new("q", 0.05).unwrap();
        let keys: Vec<Key> = (0..500)
            .map(|host| Key::new(Purpose::Slot, "s", "cpu", &format!("host-{host}")))
            .collect();
        let mut by_slot = vec![0_u32; 2_000];
        let mut squares = 0.0;
        for key in &keys {
            let drawn: Vec<usize> = (0..2_000)
                .filter(|&slot| key.draw(29_000_000 + slot as u64).below(q))
                .collect();
            drawn.iter().for_each(|&slot| by_slot[slot] += 1);
            squares += (drawn.len() as f64 - 100.0).powi(2) / 95.0;
        }
        // Sums of squared normal deviates: n ± 4 √(2n).
        assert!((squares - 500.0).abs() < 4.0 * 1_000.0_f64.sqrt(), "{squares}");
        let squares: f64 = by_slot
            .iter()
            .map(|&n| (f64::from(n) - 25.0).powi(2) / 23.75)
            .sum();
        assert!((squares - 2_000.0).abs() < 4.0 * 4_000.0_f64.sqrt(), "{squares}");
    }

    proptest! {
        /// Checks that raising a probability only adds slots, and that certainty takes all.
        #[test]
        fn a_greater_probability_only_adds(
            seed in any::<u64>(),
            number in any::<u64>(),
            a in 1e-9_f64..1.0,
            b in 1e-9_f64..1.0,
        ) {
            let draw = Key(seed).draw(number);
            let [low, high] = [a.min(b), a.max(b)].map(|p| Probability::new("q", p).unwrap());
            prop_assert!(!draw.below(low) || draw.below(high));
            prop_assert!(draw.below(Probability::ALWAYS));
            prop_assert_eq!(draw.below(low), draw.unit() < low.get());
        }
    }

    /// Checks that what is not in (0, 1] is refused.
    #[test]
    fn only_probabilities_are_probabilities() {
        for value in [0.0, -0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(Probability::new("q", value).is_err(), "{value}");
        }
        assert_eq!(Probability::new("q", 1.0), Ok(Probability::ALWAYS));
    }
}
