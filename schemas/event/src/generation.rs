//! Which of several rows of names or tags counts: one number, the highest prevails.
//!
//! Processors do not all know the same at the same time: one that has no binary yet, or that reached a limit, finds fewer
//! names than another found before it. What is made of more names ranks above what is made of fewer, whenever it came;
//! among equals the newer counts. So the number is 255 less the frames without a name (those beyond 255 are not told
//! apart), times 2^52, plus the microseconds since 1970 at which it was made, which have 52 bits until the year 2112.

/// Bits of the time.
const TIME_BITS: u32 = 52;
/// The microseconds of a generation: `bitAnd(generation, 4503599627370495)`.
pub const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// Rank of what has no frame without a name.
const ALL_NAMED: u64 = 255;

/// Rank and time of a row of names or tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl Generation {
    /// Returns that of what was made at a time, microseconds since 1970, of frames of which so many have no name.
    pub fn new(unnamed: usize, made_us: u64) -> Self {
        let rank = ALL_NAMED - ALL_NAMED.min(unnamed as u64);
        Self(rank << TIME_BITS | made_us.min(TIME_MASK))
    }

    /// Returns when it was made, microseconds since 1970.
    pub fn made_us(self) -> u64 {
        self.0 & TIME_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_793_577_600_000_000;

    /// Checks that more names prevail over later ones, and that among equals the later prevails.
    #[test]
    fn more_names_prevail_then_the_later() {
        assert!(Generation::new(0, NOW) > Generation::new(1, NOW + 1));
        assert!(Generation::new(3, NOW) > Generation::new(254, u64::MAX));
        assert!(Generation::new(2, NOW) < Generation::new(2, NOW + 1));
        assert_eq!(Generation::new(300, NOW), Generation::new(255, NOW));
        assert_eq!(Generation::new(7, NOW).made_us(), NOW);
    }

    /// Checks that rows of before there were ranks, whose number is their time alone, count less than any of now.
    #[test]
    fn numbers_without_a_rank_count_least() {
        assert!(Generation::new(254, 1) > Generation(NOW));
        assert_eq!(Generation(NOW).made_us(), NOW);
    }
}
