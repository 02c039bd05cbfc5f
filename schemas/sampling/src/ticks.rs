//! Ticks that the kernel left out: no counter tells of them, only the time that passed.

use crate::loss::{Counts, loss_factors};

/// Ticks by which a count may differ from time × frequency by where the interval begins and ends.
const EDGE_TICKS: f64 = 2.0;
/// Share by which it may differ because timers are late.
const LATE_SHARE: f64 = 0.01;

/// Returns how many ticks each one stands for on a CPU that saw `ticks` (busy and idle) while its event ran
/// for `running_ns` at `frequency_hz`: 1 unless the kernel throttled it. Nothing if it was throttled to
/// nothing: then the CPU was not sampled, and its part of the run counts as cut short.
pub fn throttle_factor(ticks: u64, running_ns: u64, frequency_hz: f64) -> Option<f64> {
    let due = running_ns as f64 / 1e9 * frequency_hz;
    if ticks as f64 >= due * (1.0 - LATE_SHARE) - EDGE_TICKS {
        return Some(1.0);
    }
    (ticks > 0).then(|| due / ticks as f64)
}

/// Profilers whose events are ticks of a clock, each of which stands for the run's period in nanoseconds.
const TICKING: [&str; 1] = ["cpu"];

/// Returns whether the events of a profiler are ticks of a clock.
pub fn is_ticking(profiler: &str) -> bool {
    TICKING.contains(&profiler)
}

/// Returns how many of the ticks that a CPU did not give were due while it was idle, where it saw `ticks` in all, of which `idle`
/// found it idle, while its event ran for `running_ns` and the kernel's account of the CPU has `idle_ns` of idle time.
///
/// A virtual machine may leave an idle CPU without a timer's interrupts. What is missing then was due while nothing ran: charged to
/// the busy ticks, a CPU that works for a tenth of the time would seem to work all of it. What the kernel throttles was due while
/// something ran, so that no idle tick is missing.
pub fn missed_idle_ticks(ticks: u64, idle: u64, running_ns: u64, idle_ns: u64, frequency_hz: f64) -> u64 {
    let due = |ns: u64| ns as f64 / 1e9 * frequency_hz;
    let missing = due(running_ns) - ticks as f64;
    let missing_idle = due(idle_ns.min(running_ns)) - idle as f64;
    missing.min(missing_idle).max(0.0).round() as u64
}

/// What one CPU counted of a profiler that ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTicks {
    /// Busy ticks: taken and kept.
    pub counts: Counts,
    /// Ticks that found it idle.
    pub idle: u64,
    /// Nanoseconds for which the event really counted.
    pub running_ns: u64,
}

/// Returns how many ticks a kept one stands for on each CPU: its loss factor ([`loss_factors`]) times its throttle factor.
/// A CPU without a single tick keeps its loss factor, which applies to nothing.
pub fn tick_factors(cpus: &[CpuTicks], frequency_hz: f64) -> Vec<f64> {
    let counts: Vec<Counts> = cpus.iter().map(|cpu| cpu.counts).collect();
    let mut factors = loss_factors(&counts);
    for (factor, cpu) in factors.iter_mut().zip(cpus) {
        let ticks = cpu.counts.taken.max(cpu.counts.kept).saturating_add(cpu.idle);
        *factor *= throttle_factor(ticks, cpu.running_ns, frequency_hz).unwrap_or(1.0);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a CPU that lost half of its ticks in the ring, and half of all before, counts four times, and that an
    /// untroubled one stays as it is.
    #[test]
    fn losses_and_throttling_multiply() {
        let cpu = |taken, kept, idle| CpuTicks {
            counts: Counts { taken, kept },
            idle,
            running_ns: 10_000_000_000,
        };
        let factors = tick_factors(&[cpu(300, 150, 195), cpu(500, 500, 490)], 99.0);
        assert_eq!(factors, vec![4.0, 1.0]);
    }

    /// Checks that an untroubled CPU is left alone, whatever the interval's edges do.
    #[test]
    fn edges_are_not_throttling() {
        for ticks in 97..=101 {
            assert_eq!(throttle_factor(ticks, 1_000_000_000, 99.0), Some(1.0), "{ticks}");
        }
    }

    /// Checks that a CPU whose timer slept while it was idle is left alone: all of its missing ticks were idle ones, and its busy ones
    /// count once.
    #[test]
    fn an_idle_cpu_that_does_not_tick_is_not_throttled() {
        let (busy, idle, running_ns) = (99, 4, 10_000_000_000);
        let missed = missed_idle_ticks(busy + idle, idle, running_ns, 9_000_000_000, 99.0);
        assert_eq!(missed, 887);
        assert_eq!(
            throttle_factor(busy + idle, running_ns, 99.0),
            Some(990.0 / 103.0)
        );
        assert_eq!(throttle_factor(busy + idle + missed, running_ns, 99.0), Some(1.0));
    }

    /// Checks that a busy CPU that was throttled owes no idle ticks; and that one that did both owes those of its idle time alone.
    #[test]
    fn a_throttled_cpu_has_missed_no_idle_tick() {
        let missed = |ticks, idle, idle_ns| missed_idle_ticks(ticks, idle, 10_000_000_000, idle_ns, 99.0);
        assert_eq!(missed(495, 0, 0), 0);
        assert_eq!(missed(495, 297, 3_000_000_000), 0);
        assert_eq!(missed(300, 0, 4_000_000_000), 396);
        // An account that is off by a clock tick, or by more than there is.
        assert_eq!(missed(990, 495, 5_010_000_000), 0);
        assert_eq!(missed(495, 0, u64::MAX), 495);
    }

    /// Checks that a CPU that was throttled for half of the time counts twice, and that silence is not a
    /// count.
    #[test]
    fn throttled_ticks_are_carried_by_the_others() {
        assert_eq!(throttle_factor(495, 10_000_000_000, 99.0), Some(2.0));
        assert_eq!(throttle_factor(0, 10_000_000_000, 99.0), None);
        assert_eq!(throttle_factor(0, 1_000_000, 99.0), Some(1.0));
    }
}
