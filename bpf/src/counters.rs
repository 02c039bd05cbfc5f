//! What the program counted, per CPU: every busy tick has its fate here.

use crate::record::StackEnd;

/// `struct cpu_counters` in `progs/record.h`, in words.
const COUNTER_WORDS: usize = 5 + DROP_REASONS + StackEnd::COUNT;
const DROP_REASONS: usize = 2;

/// One CPU's counts since the start. Read while the program runs: sums can be off by the tick that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// Busy ticks. All of them are in one of the fields up to `output_failed`.
    pub taken: u64,
    /// Ticks of the idle task. No sample is made of them: they are capacity. A lower bound: a virtual machine may leave an idle CPU
    /// without a timer's interrupts for most of the time, and the timer skips what has passed. Capacity is enabled time × frequency.
    pub idle: u64,
    /// Ticks of processes that the sampler does not watch. No sample is made of them.
    pub unwatched: u64,
    /// Sent with frames.
    pub full: u64,
    /// Sent without frames, which had been sent in this epoch.
    pub omitted: u64,
    /// Lost: no room in the ring, or its lock was not to be had. Healthy: 0. Else the ring is too small, or not read.
    pub ring_full: u64,
    /// Lost for any other reason. Healthy: 0.
    pub output_failed: u64,
    /// How the user stacks of the busy ticks ended, by [`StackEnd`] as number.
    pub user_ends: [u64; StackEnd::COUNT],
}

impl CpuCounters {
    /// Returns the samples lost in the kernel.
    pub fn dropped(&self) -> u64 {
        self.ring_full + self.output_failed
    }

    /// Returns how many user stacks ended so.
    pub fn user_end(&self, end: StackEnd) -> u64 {
        self.user_ends[end as usize]
    }

    /// Returns how many walks stopped before the outermost frame, where there was a user stack to walk.
    pub fn walk_failures(&self) -> u64 {
        use StackEnd::{
            BadFramePointer, BadReturnAddress, BeforeTables, NoMapping, NoRoom, NoTable, Unreadable,
            Unsupported,
        };
        [
            Unreadable,
            BadFramePointer,
            BadReturnAddress,
            NoMapping,
            Unsupported,
            NoTable,
            BeforeTables,
            NoRoom,
        ]
        .into_iter()
        .map(|end| self.user_end(end))
        .sum()
    }

    /// Adds another CPU's counts.
    pub fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.idle += other.idle;
        self.unwatched += other.unwatched;
        self.full += other.full;
        self.omitted += other.omitted;
        self.ring_full += other.ring_full;
        self.output_failed += other.output_failed;
        for (sum, count) in self.user_ends.iter_mut().zip(other.user_ends) {
            *sum += count;
        }
    }

    /// Reads `struct cpu_counters`; `None` when the size is another.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != COUNTER_WORDS * size_of::<u64>() {
            return None;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let mut next = || words.next();
        let mut counters = Self {
            taken: next()?,
            idle: next()?,
            unwatched: next()?,
            full: next()?,
            omitted: next()?,
            ring_full: next()?,
            output_failed: next()?,
            user_ends: [0; StackEnd::COUNT],
        };
        for end in &mut counters.user_ends {
            *end = next()?;
        }
        Some(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each word lands in its field, and another size is refused.
    #[test]
    fn words_are_read_in_the_order_of_the_header() {
        let bytes: Vec<u8> = (1..=COUNTER_WORDS as u64).flat_map(u64::to_ne_bytes).collect();
        let counters = CpuCounters::parse(&bytes).unwrap();
        assert_eq!(
            (counters.taken, counters.idle, counters.full, counters.omitted),
            (1, 2, 4, 5)
        );
        assert_eq!(
            (counters.dropped(), counters.user_end(StackEnd::NotTaken)),
            (13, 8)
        );
        assert_eq!(counters.walk_failures(), 11 + 12 + 13 + 17 + 18 + 19 + 20 + 21);
        assert_eq!(CpuCounters::parse(&bytes[8..]), None);
    }
}
