//! Runs: back to back, each slot runs (q = 1) and a run is as long as its slot; or as a plan has it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::RngCore;
use strobe_bpf::EventTimes;
use strobe_event::{Cause, RawBatch, RunHead, RunId};
use strobe_sampling::Counts;
use strobe_sampling::ticks::{CpuTicks, tick_factors};

use crate::schedule::Planned;

/// The CPU profiler's name.
pub const PROFILER: &str = "cpu";

/// One run under way.
#[derive(Debug, Clone)]
pub struct Run {
    /// What its batches say of it.
    pub head: RunHead,
    /// `CLOCK_MONOTONIC` of its start.
    pub started_ns: u64,
    /// `CLOCK_MONOTONIC` of its planned end: samples from then on belong to the next run.
    pub ends_ns: u64,
    /// Batches closed so far.
    pub batches: u32,
    /// The slot that it was drawn for; none of those back to back.
    pub slot: Option<u64>,
    /// For how long the ticks of each CPU had been running when it began; empty for those that no slot was drawn for.
    pub clocks: BTreeMap<u32, EventTimes>,
    /// For how long it ran, once that is known: of a drawn one, by the ticks' own clocks.
    pub done_us: Option<u64>,
    /// Samples taken of each service, before limits, losses and thinning.
    pub taken: BTreeMap<Arc<str>, f64>,
}

/// Returns 128 random bits.
pub fn random_id() -> [u8; 16] {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

impl Run {
    /// Returns a run that starts at `now_ns`, which is `now_us` on the wall.
    pub fn start(host: &str, frequency_hz: u32, length: Duration, now_ns: u64, now_us: u64) -> Self {
        let length_us = length.as_micros() as u64;
        let head = RunHead {
            id: RunId(random_id()),
            host: host.to_owned(),
            profiler: PROFILER.to_owned(),
            cause: Cause::Continuous as u8,
            started_us: now_us,
            planned_us: length_us,
            slot_us: length_us,
            run_probability: 1.0,
            kernel_probability: 1.0,
            period: 1_000_000_000 / u64::from(frequency_hz),
        };
        Self {
            head,
            started_ns: now_ns,
            ends_ns: now_ns.saturating_add(length_us * 1_000),
            batches: 0,
            slot: None,
            clocks: BTreeMap::new(),
            done_us: None,
            taken: BTreeMap::new(),
        }
    }

    /// Returns the run of a slot that was drawn, which starts at `now_ns`, `now_us` on the wall.
    pub fn of_slot(host: &str, planned: &Planned, now_ns: u64, now_us: u64) -> Self {
        let length = Duration::from_micros(planned.planned_us);
        let mut run = Self::start(host, 1, length, now_ns, now_us);
        run.head.slot_us = planned.slot_us;
        run.head.run_probability = planned.run_probability;
        run.head.period = planned.period_ns;
        run.slot = Some(planned.slot);
        run
    }

    /// Returns a run that somebody asked for, which started at `now_ns`, `now_us` on the wall.
    pub fn asked(head: RunHead, now_ns: u64) -> Self {
        let length_ns = head.planned_us.saturating_mul(1_000);
        Self {
            head,
            started_ns: now_ns,
            ends_ns: now_ns.saturating_add(length_ns),
            batches: 0,
            slot: None,
            clocks: BTreeMap::new(),
            done_us: None,
            taken: BTreeMap::new(),
        }
    }

    /// Lets it begin at `now_ns`, if that is later than it was to begin.
    pub fn begin_at(&mut self, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(self.started_ns);
        self.started_ns += late_ns;
        self.ends_ns = self.ends_ns.saturating_add(late_ns);
        self.head.started_us += late_ns / 1_000;
    }

    /// Returns it with a period so many times as long.
    pub fn thinner(mut self, factor: u64) -> Self {
        self.head.period = self.head.period.saturating_mul(factor);
        self
    }

    /// Tells whether it ends when its events are stopped, and not at the moment at which the next begins.
    pub fn is_ordered(&self) -> bool {
        self.slot.is_some() || self.head.cause != Cause::Continuous as u8
    }

    /// Returns the clocks of ticks as they were at `now_ns`, without the time for which ticks ran outside of the run's span. Those of a
    /// drawn run start before it and stop after it.
    pub fn within_its_span(
        &self,
        clocks: BTreeMap<u32, EventTimes>,
        now_ns: u64,
    ) -> BTreeMap<u32, EventTimes> {
        if self.slot.is_none() {
            return clocks;
        }
        let span_ns = now_ns.clamp(self.started_ns, self.ends_ns) - self.started_ns;
        let within = |(cpu, now): (u32, EventTimes)| {
            let before = self.clocks.get(&cpu).copied().unwrap_or_default();
            // One that is behind was begun anew: the CPU was away.
            let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            let enabled_ns = since(now.enabled_ns, before.enabled_ns);
            let running_ns = since(now.running_ns, before.running_ns);
            let share = span_ns as f64 / enabled_ns.max(1) as f64;
            let times = EventTimes {
                enabled_ns: before.enabled_ns + enabled_ns.min(span_ns),
                running_ns: before.running_ns + (running_ns as f64 * share.min(1.0)).round() as u64,
            };
            (cpu, times)
        };
        clocks.into_iter().map(within).collect()
    }

    /// Returns for how long ticks ran since the run began, by their own clocks, on average over the CPUs: of one that was away for a
    /// while, less.
    pub fn ticked_us(&self, clocks: &BTreeMap<u32, EventTimes>) -> u64 {
        let ran = |(cpu, now): (&u32, &EventTimes)| {
            let before = self.clocks.get(cpu).map_or(0, |clock| clock.enabled_ns);
            // One that is behind was begun anew: the CPU was away.
            now.enabled_ns.checked_sub(before).unwrap_or(now.enabled_ns)
        };
        let sum: u64 = clocks.iter().map(ran).sum();
        sum.checked_div(1_000 * clocks.len() as u64).unwrap_or(0)
    }

    /// Counts what a closed batch took of each service: what was lost is carried by what was kept of its CPU.
    pub fn count(&mut self, batch: &RawBatch) {
        let ticks: Vec<CpuTicks> = batch
            .cpus
            .iter()
            .map(|cpu| CpuTicks {
                counts: Counts {
                    taken: cpu.taken,
                    kept: cpu.kept,
                },
                idle: cpu.idle,
                running_ns: cpu.running_ns,
            })
            .collect();
        let factors = tick_factors(&ticks, 1e9 / self.head.period as f64);
        let factor = |number: u32| {
            let at = batch.cpus.iter().position(|cpu| cpu.cpu == number);
            at.map_or(1.0, |at| factors[at])
        };
        let mut by_process = vec![0.0; batch.processes.len()];
        // Neighbours often are of one CPU.
        let mut last = (u32::MAX, 1.0);
        for (&thread, &cpu) in batch.samples.thread.iter().zip(&batch.samples.cpu) {
            if last.0 != cpu {
                last = (cpu, factor(cpu));
            }
            by_process[batch.threads.process[thread as usize] as usize] += last.1;
        }
        for (process, taken) in batch.processes.iter().zip(by_process) {
            let service = batch.strings[process.service as usize].as_str();
            match self.taken.get_mut(service) {
                Some(sum) => *sum += taken,
                None => {
                    self.taken.insert(service.into(), taken);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn times(enabled_ms: u64, running_ms: u64) -> EventTimes {
        EventTimes {
            enabled_ns: enabled_ms * MS,
            running_ns: running_ms * MS,
        }
    }

    fn drawn(start_ms: u64, planned_ms: u64) -> Run {
        let planned = Planned {
            slot: 1,
            start_ns: start_ms * MS,
            latest_ns: u64::MAX,
            planned_us: planned_ms * 1_000,
            slot_us: 60_000_000,
            run_probability: 0.5,
            period_ns: MS,
        };
        let mut run = Run::of_slot("h", &planned, planned.start_ns, 0);
        run.clocks = BTreeMap::from([(0, times(500, 500)), (1, times(700, 700))]);
        run
    }

    /// Checks that of ticks that started before a drawn run, and stopped after it, its own time alone counts; that an event that had
    /// to share its counter keeps its share; and that a CPU that came late, or went, has less.
    #[test]
    fn time_outside_of_the_span_does_not_count() {
        let run = drawn(1_000, 100);
        let clocks = BTreeMap::from([(0, times(630, 565)), (1, times(60, 60)), (2, times(40, 40))]);
        let within = run.within_its_span(clocks.clone(), 1_120 * MS);
        assert_eq!(within[&0], times(600, 550));
        // Begun anew: 60 ms since then.
        assert_eq!((within[&1], within[&2]), (times(760, 760), times(40, 40)));
        assert_eq!(run.ticked_us(&within), (100_000 + 60_000 + 40_000) / 3);
        let half = run.within_its_span(clocks, 1_050 * MS);
        assert_eq!(half[&0].enabled_ns, 550 * MS);
    }

    /// Checks that a run that begins late is as long as it was planned, and one that is early waits.
    #[test]
    fn a_late_run_is_as_long() {
        let mut run = drawn(1_000, 100);
        run.begin_at(990 * MS);
        assert_eq!(
            (run.started_ns, run.ends_ns, run.head.started_us),
            (1_000 * MS, 1_100 * MS, 0)
        );
        run.begin_at(1_007 * MS);
        assert_eq!(
            (run.started_ns, run.ends_ns, run.head.started_us),
            (1_007 * MS, 1_107 * MS, 7_000)
        );
    }
}
