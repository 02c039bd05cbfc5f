//! Slots: a day of a host is a row of slots of equal length, shifted by a phase that is drawn for the day.
//!
//! A run lies in its shifted slot, at a place that is drawn too. Over phases and places every moment of a day
//! has the same chance to be profiled, q·D/L, also at midnight, where one day's grid gives way to the next.
//! Were starts fixed to the minute, whatever happens in its first seconds would have less: a run of 10 s at a
//! random place within an unshifted slot of 60 s covers the first two seconds with a seventh of what is due
//! to them.

use crate::error::SamplingError;
use crate::hash::{Key, Probability, Purpose};

/// Microseconds of a day (UTC, as all times here).
pub const DAY_US: u64 = 86_400_000_000;
/// Microseconds of an hour, for which coverage is counted.
pub const HOUR_US: u64 = 3_600_000_000;

/// The shortest slots: twice the 100 ms that a run takes at least if its ticks are to be more than its edges.
const SLOT_US_MIN: u64 = 200_000;

/// L: the length of slots, a divisor of the day from 200 ms to 1 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLength(u64);

impl SlotLength {
    /// One minute.
    pub const MINUTE: Self = Self(60_000_000);

    /// Returns slots of `us` microseconds.
    ///
    /// # Errors [`SamplingError::SlotLength`] if they do not fill a day, or are not from 200 ms to 1 h long:
    /// a shorter one holds no run, a longer one no longer belongs to an hour.
    pub fn new(us: u64) -> Result<Self, SamplingError> {
        if (SLOT_US_MIN..=HOUR_US).contains(&us) && DAY_US.is_multiple_of(us) {
            Ok(Self(us))
        } else {
            Err(SamplingError::SlotLength(us))
        }
    }

    /// Returns the length in microseconds.
    pub fn us(self) -> u64 {
        self.0
    }

    /// Returns how many fill a day.
    pub fn per_day(self) -> u64 {
        DAY_US / self.0
    }

    /// Returns how many start in an hour, on one host.
    pub fn per_hour(self) -> f64 {
        HOUR_US as f64 / self.0 as f64
    }
}

/// The slots of one host and profiler.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    length: SlotLength,
    slots: Key,
    phases: Key,
    offsets: Key,
}

impl Grid {
    /// Returns the grid of (salt, profiler, host); another use of hosts has another salt.
    pub fn new(salt: &str, profiler: &str, host: &str, length: SlotLength) -> Self {
        let key = |purpose| Key::new(purpose, salt, profiler, host);
        Self {
            length,
            slots: key(Purpose::Slot),
            phases: key(Purpose::Phase),
            offsets: key(Purpose::Offset),
        }
    }

    /// Returns the length of its slots.
    pub fn length(&self) -> SlotLength {
        self.length
    }

    /// Returns by how much the grid of a day is shifted, less than a slot.
    pub fn phase_us(&self, day: u64) -> u64 {
        place(self.phases, day, self.length.0)
    }

    /// Returns the number of the slot that started last at `time_us`. Numbers count slots since 1970; they
    /// and the starts rise together.
    pub fn slot_at(&self, time_us: u64) -> u64 {
        let day = time_us / DAY_US;
        let first = day * self.length.per_day();
        match (time_us % DAY_US).checked_sub(self.phase_us(day)) {
            Some(since) => first + since / self.length.0,
            // The day's first slot has not started: the last one of the day before has.
            None => first.saturating_sub(1),
        }
    }

    /// Returns when a slot starts. Times past the year 500,000 are all the last one.
    pub fn start_us(&self, slot: u64) -> u64 {
        let (day, nth) = (slot / self.length.per_day(), slot % self.length.per_day());
        let start = u128::from(day) * u128::from(DAY_US)
            + u128::from(nth) * u128::from(self.length.0)
            + u128::from(self.phase_us(day));
        u64::try_from(start).unwrap_or(u64::MAX)
    }

    /// Returns whether a slot runs at probability `q`.
    #[inline]
    pub fn runs(&self, slot: u64, q: Probability) -> bool {
        self.slots.draw(slot).below(q)
    }

    /// Returns when the run of a slot starts, so that `planned_us` fit in it.
    pub fn run_start_us(&self, slot: u64, planned_us: u64) -> u64 {
        let room = self.length.0.saturating_sub(planned_us);
        self.start_us(slot)
            .saturating_add(place(self.offsets, slot, room))
    }
}

/// Returns a place in [0, `room`) that is drawn for `number`.
fn place(key: Key, number: u64, room: u64) -> u64 {
    (key.draw(number).unit() * room as f64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grid(host: u64) -> Grid {
        Grid::new("salt", "cpu", &format!("host-{host}"), SlotLength::MINUTE)
    }

    /// Checks that only lengths that fill a day are slots.
    #[test]
    fn slots_fill_a_day() {
        for us in [0, 1, 100_000, 7_000_000, 2 * HOUR_US, u64::MAX] {
            assert_eq!(SlotLength::new(us), Err(SamplingError::SlotLength(us)));
        }
        assert_eq!(SlotLength::new(60_000_000), Ok(SlotLength::MINUTE));
    }

    /// Checks that what a workload does in the first two seconds of each minute is profiled as long as is due
    /// to it, and that with unshifted slots it would not be: the fault that the phase avoids.
    #[test]
    fn every_moment_of_a_minute_is_profiled_alike() {
        const RUN_US: u64 = 10_000_000;
        const BUSY_US: u64 = 2_000_000;
        let overlap = |start: u64| -> u64 {
            let from = start % 60_000_000;
            let first = BUSY_US.saturating_sub(from).min(RUN_US);
            let next = (from + RUN_US).saturating_sub(60_000_000).min(BUSY_US);
            first + next
        };
        let (mut ours, mut unshifted, mut runs) = (0_u64, 0_u64, 0_u64);
        for host in 0..200 {
            let grid = grid(host);
            for slot in (20_000 * 1_440..20_020 * 1_440).step_by(7) {
                let start = grid.run_start_us(slot, RUN_US);
                ours += overlap(start);
                unshifted += overlap(start - grid.phase_us(slot / 1_440));
                runs += 1;
            }
        }
        let due = runs as f64 * RUN_US as f64 * BUSY_US as f64 / 60e6;
        let (ours, unshifted) = (ours as f64 / due, unshifted as f64 / due);
        // The phase is drawn once for each of 4,000 host-days; the share of starts that meet the two seconds
        // is about a fifth, which leaves a standard error of about 1.5 %.
        assert!((ours - 1.0).abs() < 0.06, "{ours}");
        assert!(unshifted < 0.25, "{unshifted}");
    }

    /// Checks that the minutes around midnight are covered like all others, though two grids meet there.
    #[test]
    fn midnight_is_profiled_like_noon() {
        const RUN_US: u64 = 20_000_000;
        let covered = |from: u64, to: u64| -> f64 {
            let mut sum = 0;
            for host in 0..20_000 {
                let grid = grid(host);
                let first = grid.slot_at(from - 120_000_000);
                for slot in first..=grid.slot_at(to) {
                    let start = grid.run_start_us(slot, RUN_US);
                    sum += (start + RUN_US).min(to).saturating_sub(start.max(from));
                }
            }
            sum as f64 / (20_000.0 * (to - from) as f64)
        };
        let midnight = 20_000 * DAY_US;
        // A third of the time; two minutes of 20,000 hosts leave a standard error under 0.3 % of it.
        for (from, to) in [
            (midnight - 30_000_000, midnight + 30_000_000),
            (midnight, midnight + 20_000_000),
        ] {
            assert!(
                (covered(from, to) * 3.0 - 1.0).abs() < 0.015,
                "{}",
                covered(from, to)
            );
        }
    }

    /// Checks that runs do not return to the same minute of the day: a pattern of traffic is not missed day
    /// after day.
    #[test]
    fn runs_fall_on_other_minutes_each_day() {
        let grid = grid(1);
        let q = Probability::new("q", 1.0 / 144.0).unwrap();
        let minutes: std::collections::BTreeSet<u64> = (20_000 * 1_440..20_100 * 1_440)
            .filter(|&slot| grid.runs(slot, q))
            .map(|slot| slot % 1_440)
            .collect();
        // 1,000 draws of 1,440 minutes meet about half of them.
        assert!((620..820).contains(&minutes.len()), "{}", minutes.len());
    }

    proptest! {
        /// Checks that numbers and times agree: the slot of a moment has started, and the next one has not.
        #[test]
        fn a_slot_has_started_and_the_next_has_not(
            time in DAY_US..4_000_000_000_000_000,
            host in 0_u64..50,
            seconds in prop::sample::select(vec![1_u64, 10, 60, 300, 3_600]),
        ) {
            let length = SlotLength::new(seconds * 1_000_000).unwrap();
            let grid = Grid::new("s", "cpu", &host.to_string(), length);
            let slot = grid.slot_at(time);
            prop_assert!(grid.start_us(slot) <= time);
            prop_assert!(grid.start_us(slot + 1) > time);
            prop_assert_eq!(grid.slot_at(grid.start_us(slot)), slot);
        }

        /// Checks that a run fits in its slot, whatever is planned.
        #[test]
        fn a_run_fits_in_its_slot(slot in any::<u64>(), planned in 0_u64..=60_000_000) {
            let grid = grid(3);
            let (start, run) = (grid.start_us(slot), grid.run_start_us(slot, planned));
            prop_assert!(run >= start);
            prop_assert!(run.saturating_add(planned) <= start.saturating_add(60_000_000));
        }
    }
}
