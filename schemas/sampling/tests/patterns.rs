//! Workloads whose rhythm could fall in step with sampling, weighed by the code that weighs real ones.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use strobe_sampling::coverage::Coverage;
use strobe_sampling::hash::Probability;
use strobe_sampling::slot::{Grid, SlotLength};
use strobe_sampling::{RunRates, Thinning, fleet_weight, run_weight};

const PERIOD_NS: u64 = 1_000_000_000 / 49;
const MINUTE_US: u64 = 60_000_000;
const SLOTS: u64 = 1_440;
const FIRST_DAY: u64 = 20_000;

/// A host that is asked which of its slots run, and what a run there sees of a load.
struct Host {
    grid: Grid,
    q: f64,
    planned_us: u64,
}

/// What was sampled of some slots: W0 of the samples in CPU seconds, and what became of the slots.
#[derive(Default, Clone, Copy)]
struct Sampled {
    weighted: f64,
    coverage: Coverage,
}

impl Sampled {
    fn add(&mut self, other: &Self) {
        self.weighted += other.weighted;
        self.coverage += other.coverage;
    }

    fn total(&self) -> f64 {
        self.weighted * self.coverage.correction().unwrap()
    }
}

impl Host {
    fn new(number: u64) -> Self {
        Self {
            grid: Grid::new("patterns", "cpu", &format!("host-{number}"), SlotLength::MINUTE),
            q: 0.2,
            planned_us: 10_000_000,
        }
    }

    fn rates(&self, drawn: bool) -> RunRates {
        RunRates {
            run_probability: self.q,
            kernel_probability: 1.0,
            planned_us: self.planned_us,
            slot_us: MINUTE_US,
            drawn,
        }
    }

    /// Returns Σ W0, CPU seconds, of the ticks of a run that starts at `start_us`, on one CPU that is busy when `busy` says so.
    fn run(&self, start_us: u64, drawn: bool, busy: &impl Fn(u64) -> bool) -> f64 {
        let rates = self.rates(drawn);
        let own = run_weight(PERIOD_NS, 1.0, (0, 0), &rates, Thinning::NONE).unwrap();
        let fleet = fleet_weight(own, &rates, Thinning::NONE).unwrap();
        let ticks = (0..self.planned_us * 1_000 / PERIOD_NS)
            .map(|tick| start_us + (tick * PERIOD_NS + PERIOD_NS / 2) / 1_000)
            .filter(|&at_us| busy(at_us));
        ticks.count() as f64 * fleet / 1e9
    }

    /// Samples a day; `starts` says when the run of a slot starts, `draws` by which number it is drawn.
    fn day(
        &self,
        day: u64,
        starts: impl Fn(u64) -> u64,
        draws: impl Fn(u64) -> u64,
        busy: &impl Fn(u64) -> bool,
    ) -> Sampled {
        let q = Probability::new("q", self.q).unwrap();
        let mut sampled = Sampled::default();
        for slot in (FIRST_DAY + day) * SLOTS..(FIRST_DAY + day + 1) * SLOTS {
            sampled.coverage.planned += 1;
            if self.grid.runs(draws(slot), q) {
                let t = self.run(starts(slot), true, busy);
                sampled.weighted += t;
                sampled.coverage.done.add(1.0 / self.q, t);
            }
        }
        sampled
    }
}

/// Checks that a workload that is busy in the first two seconds of each minute alone is weighed as what it is, within four standard
/// errors of 3 % at most; in slots that start with the minute it would be a fifth of that.
#[test]
fn the_first_two_seconds_of_each_minute_weigh_what_they_are() {
    let busy = |at_us: u64| at_us % MINUTE_US < 2_000_000;
    let truth = 2.0 * SLOTS as f64;
    let (hosts, days) = (80_u64, 6_u64);
    // A phase is of a host's day: that is the unit which differs by chance.
    let (mut ours, mut squares, mut unshifted) = (Sampled::default(), 0.0, Sampled::default());
    for host in (0..hosts).map(Host::new) {
        for day in 0..days {
            let shift = host.grid.phase_us(FIRST_DAY + day);
            let start = |slot| host.grid.run_start_us(slot, host.planned_us);
            let sampled = host.day(day, start, |slot| slot, &busy);
            squares += (sampled.total() / truth - 1.0).powi(2);
            ours.add(&sampled);
            unshifted.add(&host.day(day, |slot| start(slot) - shift, |slot| slot, &busy));
        }
    }
    let count = (hosts * days) as f64;
    let error = squares.sqrt() / count;
    let off = ours.total() / (truth * count) - 1.0;
    assert!(error < 0.03 && off.abs() < 4.0 * error, "{off} ± {error}");
    let unshifted = unshifted.total() / (truth * count);
    assert!(unshifted < 0.25, "{unshifted}");
}

/// Checks that traffic of three minutes a day is found in its place in time, though one host is profiled a fifth of the time; with runs
/// pinned to the same minutes of every day it would be missed, or counted five times, for ever.
#[test]
fn traffic_at_a_fixed_minute_is_not_missed() {
    let busy = |at_us: u64| (200..203).contains(&(at_us / MINUTE_US % SLOTS));
    let (days, truth) = (200_u64, 180.0);
    let mut worst = 0.0_f64;
    let mut pinned_off = Vec::new();
    for host in (0..8).map(Host::new) {
        let start = |slot| host.grid.run_start_us(slot, host.planned_us);
        let (mut ours, mut pinned) = (Sampled::default(), Sampled::default());
        for day in 0..days {
            ours.add(&host.day(day, start, |slot| slot, &busy));
            pinned.add(&host.day(day, start, |slot| slot % SLOTS, &busy));
        }
        let off = |sampled: &Sampled| sampled.total() / (truth * days as f64) - 1.0;
        worst = worst.max(off(&ours).abs());
        pinned_off.push(off(&pinned).abs());
    }
    // 600 minutes of traffic, of which a fifth was profiled: chance makes 8 %.
    assert!(worst < 0.35, "{worst}");
    let missed = pinned_off.iter().filter(|off| **off > 0.5).count();
    assert!(missed >= 6, "{pinned_off:?}");
}

/// Checks that a hundred profiles that somebody asked for, or that an alert did, on the busiest host at its busiest time, leave the
/// totals of the continuous ones where they were, to the last bit.
#[test]
fn profiles_on_demand_leave_the_totals_alone() {
    let busy = |at_us: u64| at_us % MINUTE_US < 20_000_000;
    let host = Host::new(1);
    let start = |slot| host.grid.run_start_us(slot, host.planned_us);
    let before = host.day(0, start, |slot| slot, &busy);
    let mut after = before;
    for asked in 0..100 {
        // What was asked for is no slot: nobody planned it.
        let weighted = host.run((FIRST_DAY * SLOTS + asked) * MINUTE_US, false, &busy);
        assert!(weighted.to_bits() == 0.0_f64.to_bits());
        after.weighted += weighted;
    }
    assert!(before.total() > 0.0 && after.total().to_bits() == before.total().to_bits());
}
