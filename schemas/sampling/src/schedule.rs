//! The schedule of one host and profiler: which slot opens next, and what outlasts a restart.
//!
//! A slot is judged when it starts, by whoever is there to see it: what started while the agent was down, or
//! while the machine slept, was not planned and enters no total. What started while the agent was there and
//! slow is judged late, in order, and counts: left out, a busy machine would lose its busiest moments. Judged
//! once, a slot is never judged again, also when the clock goes back: what has the number of the last slot or
//! a lower one waits. Memory is stored before a slot is acted upon, so that a crash can lose a slot and never
//! run one twice.

use serde::{Deserialize, Serialize};

use crate::hash::Probability;
use crate::slot::{DAY_US, Grid, HOUR_US};

/// A slot that started longer than this before the first look is not planned: nobody was there. Agents look at the
/// clock many times a second; a tenth of the shortest slot is ample.
pub const LATE_US: u64 = 100_000;

/// Longest gap between two looks that is a slow agent. After a longer one the machine slept, the process was
/// stopped, or the clock jumped: what started in the gap was seen by nobody. Ten times what agents sleep at
/// most between two looks.
pub const STALL_MAX_US: u64 = 10_000_000;

/// A clock that goes back by up to a day is waited for, so that no slot repeats. By more, what was believed
/// before was wrong (a machine that woke in 2099), and waiting could last years.
pub const BACK_MAX_US: u64 = DAY_US;

/// What outlasts a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// The last slot that was judged.
    pub last: Option<u64>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing starts before this moment. Look again then, or earlier.
    Wait {
        /// When the next slot starts, by the clock as it is now.
        until_us: u64,
    },
    /// A slot starts: [`Schedule::moment`] says when in it, and whether it runs.
    Opens(Opening),
}

/// A slot that starts now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Its number.
    pub slot: u64,
    /// When it started.
    pub start_us: u64,
    /// How many slots before it started unseen: not planned, for nobody was there.
    pub missed: u64,
    /// Whether the clock was found more than [`BACK_MAX_US`] behind what was believed; worth a line in the
    /// log.
    pub clock_was_ahead: bool,
}

/// The moment of a slot: when its run starts, or would have started.
///
/// A slot counts as planned for the services that are present at this moment, drawn or not. Counted at the
/// slot's start instead, a service that comes and goes would miss the first half minute of each stay, and
/// what was planned in its last half minute would find nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// When it is.
    pub start_us: u64,
    /// By when a run must have started in order to fit: until then it waits for the machine, and is refused
    /// afterwards.
    pub latest_us: u64,
    /// The hour that it counts for, since 1970: that of the middle of its planned run. By the start, an hour
    /// would have half a run's length of the next one's load.
    pub hour: u64,
    /// Whether the slot was drawn.
    pub runs: bool,
}

/// The schedule of one host and profiler.
#[derive(Debug, Clone)]
pub struct Schedule {
    grid: Grid,
    memory: Memory,
    /// The last look, and since when looks have followed each other without a gap.
    looked_us: Option<u64>,
    awake_since_us: u64,
}

impl Schedule {
    /// Returns the schedule that goes on from `memory`.
    pub fn new(grid: Grid, memory: Memory) -> Self {
        Self {
            grid,
            memory,
            looked_us: None,
            awake_since_us: 0,
        }
    }

    /// Returns what must be stored before the slot that [`Schedule::look`] returned is acted upon.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Returns what to do at `now_us`. A slot is returned once.
    pub fn look(&mut self, now_us: u64) -> Verdict {
        self.look_ahead(now_us, 0)
    }

    /// Returns what to do at `now_us`, of slots that start up to `ahead_us` later, which is less than their length: what must
    /// be stored first then is by the time that they start, also where the disk is slow. Several may be due: look again until
    /// the verdict is to wait.
    pub fn look_ahead(&mut self, now_us: u64, ahead_us: u64) -> Verdict {
        let looked_us = self.looked_us.replace(now_us);
        let gap_us = looked_us.and_then(|looked_us| now_us.checked_sub(looked_us));
        if gap_us.is_none_or(|gap_us| gap_us > STALL_MAX_US) {
            self.awake_since_us = now_us.saturating_sub(LATE_US);
        }
        let mut slot = self.first_since(self.awake_since_us);
        let mut clock_was_ahead = false;
        if let Some(last) = self.memory.last {
            clock_was_ahead = self.grid.start_us(last).saturating_sub(now_us) > BACK_MAX_US;
            if clock_was_ahead {
                // Forget the wrong future at once: slots are judged by the clock as it is.
                self.memory.last = Some(slot.saturating_sub(1));
            }
            slot = slot.max(self.memory.last.unwrap_or(last).saturating_add(1));
        }
        let start_us = self.grid.start_us(slot);
        if start_us > now_us.saturating_add(ahead_us) {
            return Verdict::Wait {
                until_us: start_us.saturating_sub(ahead_us).max(now_us.saturating_add(1)),
            };
        }
        let missed = self.memory.last.map_or(0, |last| slot - last - 1);
        self.memory.last = Some(slot);
        Verdict::Opens(Opening {
            slot,
            start_us,
            missed,
            clock_was_ahead,
        })
    }

    /// Returns the first slot that starts at `time_us` or later.
    fn first_since(&self, time_us: u64) -> u64 {
        let slot = self.grid.slot_at(time_us);
        match self.grid.start_us(slot) < time_us {
            true => slot.saturating_add(1),
            false => slot,
        }
    }

    /// Returns the moment of a slot for a plan with run probability `q` and runs of `planned_us`.
    pub fn moment(&self, slot: u64, q: Probability, planned_us: u64) -> Moment {
        let room_us = self.grid.length().us().saturating_sub(planned_us);
        let start_us = self.grid.run_start_us(slot, planned_us);
        Moment {
            start_us,
            hour: start_us.saturating_add(planned_us / 2) / HOUR_US,
            latest_us: self.grid.start_us(slot).saturating_add(room_us),
            runs: self.grid.runs(slot, q),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::slot::SlotLength;

    const NOON: u64 = 20_000 * DAY_US + DAY_US / 2;
    const TICK_US: u64 = 50_000;

    fn schedule(memory: Memory) -> Schedule {
        Schedule::new(Grid::new("s", "cpu", "h", SlotLength::MINUTE), memory)
    }

    /// Follows a clock of 50 ms ticks and returns the slots that opened.
    fn follow(schedule: &mut Schedule, from_us: u64, to_us: u64) -> Vec<u64> {
        (from_us..to_us)
            .step_by(TICK_US as usize)
            .filter_map(|now| match schedule.look(now) {
                Verdict::Opens(opening) => Some(opening.slot),
                Verdict::Wait { until_us } => {
                    assert!(until_us > now);
                    None
                }
            })
            .collect()
    }

    /// Checks that every slot opens once while somebody looks.
    #[test]
    fn each_slot_opens_once() {
        let slots = follow(&mut schedule(Memory::default()), NOON, NOON + HOUR_US);
        assert_eq!(slots.len(), 60);
        assert!(slots.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }

    /// Checks that looking ahead opens the same slots as looking at the clock does, each once and earlier, also where looks are
    /// far apart.
    #[test]
    fn looking_ahead_opens_the_same_slots() {
        let opened = |ahead_us: u64, tick_us: u64| -> Vec<u64> {
            let mut schedule = schedule(Memory::default());
            let times = (NOON..NOON + HOUR_US).step_by(tick_us as usize);
            times
                .filter_map(|now_us| match schedule.look_ahead(now_us, ahead_us) {
                    Verdict::Opens(opening) => {
                        assert!(
                            opening.start_us + LATE_US >= now_us && opening.start_us <= now_us + ahead_us
                        );
                        Some(opening.slot)
                    }
                    Verdict::Wait { until_us } => {
                        assert!(until_us > now_us);
                        None
                    }
                })
                .collect()
        };
        let at_once = opened(0, TICK_US);
        let (ahead, rarely) = (opened(2_000_000, TICK_US), opened(2_000_000, 1_900_000));
        assert!(at_once.len() == 60 && ahead.len() >= 60 && rarely.len() >= 60);
        assert!(
            at_once
                .iter()
                .skip(1)
                .all(|slot| ahead.contains(slot) && rarely.contains(slot))
        );
    }

    /// Checks that a restart within a slot does not run it again, and that slots of the time between are not
    /// planned.
    #[test]
    fn a_restart_repeats_nothing() {
        let mut before = schedule(Memory::default());
        let first = follow(&mut before, NOON, NOON + 600_000_000);
        let mut after = schedule(before.memory());
        let second = follow(&mut after, NOON + 590_000_000, NOON + 1_200_000_000);
        assert_eq!(second.first(), first.last().map(|last| last + 1).as_ref());
        let mut late = schedule(before.memory());
        let third = follow(&mut late, NOON + HOUR_US, NOON + HOUR_US + 120_000_000);
        assert_eq!(third.len(), 2);
        assert!(third[0] > first[9] + 40);
    }

    /// Checks that a clock that jumps an hour forth plans nothing for the hour that never was, and that after
    /// it jumps back nothing runs a second time.
    #[test]
    fn clock_jumps_repeat_nothing() {
        let mut schedule = schedule(Memory::default());
        let mut seen = BTreeSet::new();
        let mut opened = 0;
        for (from, to) in [
            (NOON, NOON + 600_000_000),
            (NOON + HOUR_US, NOON + HOUR_US + 600_000_000),
            (NOON + 600_000_000, NOON + 2 * HOUR_US),
        ] {
            let slots = follow(&mut schedule, from, to);
            opened += slots.len();
            seen.extend(slots);
        }
        assert_eq!(seen.len(), opened);
        assert_eq!(opened, 10 + 10 + 50);
    }

    /// Checks that a memory from the far future is given up, and said so, instead of waited for.
    #[test]
    fn a_memory_from_the_far_future_is_given_up() {
        let grid = Grid::new("s", "cpu", "h", SlotLength::MINUTE);
        let memory = Memory {
            last: Some(grid.slot_at(NOON + 400 * DAY_US)),
        };
        assert_eq!(follow(&mut schedule(memory), NOON, NOON + 600_000_000).len(), 10);
        let slot = grid.slot_at(NOON);
        match schedule(memory).look(grid.start_us(slot)) {
            Verdict::Opens(opening) => assert!(opening.clock_was_ahead && opening.missed == 0),
            Verdict::Wait { .. } => panic!("the slot did not open"),
        }
    }

    /// Checks that a run fits between its moment and the slot's end, also when it waits as long as it may.
    #[test]
    fn a_run_may_wait_within_its_slot() {
        let schedule = schedule(Memory::default());
        for slot in 28_800_000..28_801_000 {
            let moment = schedule.moment(slot, Probability::ALWAYS, 10_000_000);
            assert!(moment.runs && moment.start_us <= moment.latest_us);
            assert_eq!(
                moment.latest_us + 10_000_000,
                schedule.grid.start_us(slot) + 60_000_000
            );
        }
    }

    /// Checks that an agent that is slow for some seconds judges every slot that started meanwhile, in order, and that after a
    /// longer gap nothing of it is judged.
    #[test]
    fn a_slow_agent_judges_every_slot() {
        let grid = Grid::new("s", "cpu", "h", SlotLength::new(1_000_000).unwrap());
        let first = grid.slot_at(NOON);
        let mut schedule = Schedule::new(grid, Memory::default());
        let mut opened = |after_us: u64| {
            let mut slots = Vec::new();
            let now_us = grid.start_us(first) + after_us;
            while let Verdict::Opens(opening) = schedule.look_ahead(now_us, 500_000) {
                slots.push((opening.slot - first, opening.missed));
            }
            slots
        };
        assert_eq!(opened(0), [(0, 0)]);
        let slow: Vec<(u64, u64)> = (1..=10).map(|slot| (slot, 0)).collect();
        assert_eq!(opened(9_500_000), slow);
        assert_eq!(opened(20_600_000), [(21, 10)]);
    }

    /// Checks that the memory survives being written down.
    #[test]
    fn the_memory_can_be_written_down() {
        let memory = Memory {
            last: Some(28_800_123),
        };
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), memory);
    }

    proptest! {
        /// Checks that however the clock wanders within a day, and whenever the agent restarts, no slot opens
        /// twice.
        #[test]
        fn no_slot_opens_twice(walk in prop::collection::vec((-3_600_i64..3_600, any::<bool>()), 1..60)) {
            let mut schedule = schedule(Memory::default());
            let mut seen = BTreeSet::new();
            let mut now = NOON as i64;
            for (step_s, restart) in walk {
                let (noon, reach) = (NOON as i64, 40_000_000_000);
                now = (now + step_s * 1_000_000).clamp(noon - reach, noon + reach);
                if restart {
                    schedule = self::schedule(schedule.memory());
                }
                let start = schedule.grid.start_us(schedule.grid.slot_at(now as u64));
                for at in [start, now as u64] {
                    if let Verdict::Opens(opening) = schedule.look(at) {
                        prop_assert!(seen.insert(opening.slot), "slot {} opened twice", opening.slot);
                    }
                }
            }
        }
    }
}
