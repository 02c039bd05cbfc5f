//! What the samples of one run after another go through, from their ring to their batches. Several stand side by side, each with
//! its own ring, stacks and batch, so that none takes another's room; what is known of processes and files is common.

use std::collections::BTreeMap;

use strobe_bpf::{EventTimes, ImageIdentity, Sampler, monotonic_ns};
use strobe_event::DropReason;
use strobe_sampling::ticks::is_ticking;

use super::Hole;
use crate::batch::{Builder, Totals};
use crate::error::AgentError;
use crate::held::HeldSamples;
use crate::procfs;
use crate::run::Run;
use crate::spooling::Report;
use crate::stacks::{KnownStacks, StackId};
use crate::unwinding::Unwinding;

/// Parents without tables that are looked at after one reading: the others are named again by their next child.
const PARENTS_MAX: usize = 256;

/// Parents of processes without tables, each with the time of its child's sample.
pub(super) type Parents = Vec<(u64, ImageIdentity)>;

/// One of them.
pub(super) struct Flow {
    pub(super) sampler: Sampler,
    pub(super) stacks: KnownStacks,
    pub(super) forgotten: Option<StackId>,
    pub(super) builder: Builder,
    pub(super) run: Run,
    pub(super) report: Report,
    /// When its events were stopped; what was taken before is not settled yet.
    pub(super) stopped_ns: Option<u64>,
    /// The epoch before which stacks can be forgotten.
    epoch: u32,
}

impl Flow {
    /// Returns one whose run began at `now_ns`.
    pub(super) fn new(sampler: Sampler, run: Run, now_ns: u64) -> Self {
        let mut builder = Builder::new(now_ns);
        // All else begins at zero with its sampler.
        let before = Totals {
            idle_ns: idle_ns(&run),
            ..Totals::default()
        };
        builder.begin(now_ns, &before);
        Self {
            sampler,
            stacks: KnownStacks::default(),
            forgotten: None,
            builder,
            run,
            report: Report::default(),
            stopped_ns: None,
            epoch: 0,
        }
    }

    /// Reads what is in the ring, and returns how many samples that were; what the tables of a parent could walk is added to `parents`.
    /// What falls into the hole is lost.
    pub(super) fn read(
        &mut self,
        held: &mut HeldSamples,
        hole: Option<Hole>,
        unwinding: &mut Option<Unwinding>,
        parents: &mut Parents,
    ) -> Result<usize, AgentError> {
        let consumed = self.sampler.consume(&mut |sample| {
            if hole.is_some_and(|hole| hole.swallows(&sample)) {
                return;
            }
            if sample.without_tables()
                && let Some(unwinding) = unwinding
            {
                unwinding.expect(ImageIdentity {
                    tgid: sample.tgid,
                    start_time_ns: sample.start_time_ns,
                    exec_id: sample.exec_id,
                });
                if let Some(parent) = sample.parent.filter(|_| parents.len() < PARENTS_MAX) {
                    parents.push((sample.time_ns, parent));
                }
            }
            held.push(&sample);
        })?;
        self.builder.count_undecodable(consumed.undecodable as u64);
        held.sort();
        Ok(consumed.samples)
    }

    /// Lets the kernel send every stack once more.
    pub(super) fn advance_epoch(&mut self) {
        self.epoch = self.sampler.advance_epoch();
    }

    /// Drops the stacks of older epochs. Only between two batches: numbers given before mean nothing afterwards.
    pub(super) fn forget(&mut self) {
        self.forgotten = None;
        self.stacks.keep_from(self.epoch);
    }

    /// Returns what the kernel has counted of the run until now, or until the events were stopped.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.all_totals(&self.run);
        let ran = self.run.within_its_span(totals.times.clone(), totals.at_ns);
        for (cpu, idle_ns) in &mut totals.idle_ns {
            // What was outside of the span may have been idle; it is not of the run.
            let enabled_ns =
                |times: &BTreeMap<u32, EventTimes>| times.get(cpu).map_or(0, |times| times.enabled_ns);
            *idle_ns = idle_ns.saturating_sub(enabled_ns(&totals.times).saturating_sub(enabled_ns(&ran)));
        }
        totals.times = ran;
        totals
    }

    /// Returns what the kernel has counted until now, also before and after what `run` covers.
    pub(super) fn all_totals(&self, run: &Run) -> Totals {
        // A reading that fails leaves the counts as they were: they go with a later batch.
        Totals {
            at_ns: self.stopped_ns.unwrap_or_else(monotonic_ns),
            counters: self.sampler.counters().unwrap_or_default(),
            times: self.sampler.times().unwrap_or_default(),
            idle_ns: idle_ns(run),
        }
    }

    /// Counts as lost what the kernel took and nobody read. Call it when nothing more will come.
    pub(super) fn count_lost(&mut self) {
        let uncounted = self.builder.uncounted(&self.totals());
        self.report.taken += uncounted;
        self.report.drop(DropReason::RingFull, uncounted);
    }

    /// Notes for how long the run ran, whose ticks have stopped or end at `now_ns`.
    pub(super) fn measure(&mut self, now_ns: u64) {
        let times = self.run.slot.and_then(|_| self.sampler.times().ok());
        self.run.done_us = Some(match times {
            Some(times) => self.run.ticked_us(&self.run.within_its_span(times, now_ns)),
            None => self.done_us(now_ns),
        });
    }

    /// Returns how much of the run is done at `now_ns`.
    pub(super) fn done_us(&self, now_ns: u64) -> u64 {
        if let Some(done_us) = self.run.done_us {
            return done_us;
        }
        // What was ordered ends when its ticks were stopped, which is a moment after its planned end.
        let end_ns = match self.run.is_ordered() {
            true => now_ns,
            false => now_ns.min(self.run.ends_ns),
        };
        end_ns.saturating_sub(self.run.started_ns) / 1_000
    }
}

/// Returns for how long each CPU has been idle, where the run ticks.
fn idle_ns(run: &Run) -> BTreeMap<u32, u64> {
    let ticking = is_ticking(&run.head.profiler);
    ticking.then(procfs::idle_ns).flatten().unwrap_or_default()
}
