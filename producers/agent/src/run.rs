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

    /// Returns it with a period so many times as long.
    pub fn thinner(mut self, factor: u64) -> Self {
        self.head.period = self.head.period.saturating_mul(factor);
        self
    }

    /// Tells whether it ends when its events are stopped, and not at the moment at which the next begins.
    pub fn is_ordered(&self) -> bool {
        self.slot.is_some() || self.head.cause != Cause::Continuous as u8
    }

    /// Returns for how long ticks ran since the run began, by their own clocks, on average over the CPUs. By the clock on the wall it
    /// would be longer: the ticks start and stop CPU after CPU, and on a busy host each waits for its turn.
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
