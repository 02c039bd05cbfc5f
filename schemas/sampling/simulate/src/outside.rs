//! What stands outside of a simulated fleet: who takes what its hosts report, and says which plans are in force. Without anybody there
//! the tuner runs in memory.

use std::collections::BTreeMap;

use strobe_sampling::coverage::Coverage;
use strobe_sampling::plan::Plan;
use strobe_sampling::slot::HOUR_US;

/// Why whoever stands outside cannot go on.
pub type OutsideError = Box<dyn std::error::Error + Send + Sync>;

/// What one host reports of one service: an hour so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HourReport {
    /// The host's number.
    pub host: usize,
    /// The service's number.
    pub service: usize,
    /// The hour, counted since 1970.
    pub hour: u64,
    /// Up to when it counts, microseconds since 1970: within its hour.
    pub until_us: u64,
    /// The hour so far.
    pub coverage: Coverage,
}

/// What one run sampled of one service.
#[derive(Debug, Clone, Copy)]
pub struct RunReport<'a> {
    /// The host's number.
    pub host: usize,
    /// The service's number.
    pub service: usize,
    /// When it started, microseconds since 1970.
    pub start_us: u64,
    /// How long it ran.
    pub done_us: u64,
    /// The plan that it followed.
    pub plan: Plan,
    /// Samples taken.
    pub taken: u64,
    /// Samples that stayed, of each part of the service.
    pub kept: &'a [u64],
}

/// Whoever stands outside.
pub trait Outside {
    /// Takes what a run sampled.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn run(&mut self, run: &RunReport<'_>) -> Result<(), OutsideError>;

    /// Takes the reports of a window that ended at `end_us`, one for each host and service that are there, and returns the plans in
    /// force from now on, one for each service; none where nobody has made any yet.
    ///
    /// # Errors
    /// Whatever hinders it.
    fn window(&mut self, end_us: u64, reports: &[HourReport]) -> Result<Vec<Option<Plan>>, OutsideError>;
}

/// Hours that are still reported: the one under way, and the one before.
const HOURS_KEPT: u64 = 2;

/// What hosts have to report.
#[derive(Debug, Default)]
pub(crate) struct Told {
    hours: BTreeMap<(usize, usize, u64), (Coverage, bool)>,
}

impl Told {
    /// Adds to what a host has to report of a service in an hour.
    pub(crate) fn add(&mut self, host: usize, service: usize, hour: u64, news: Coverage) {
        let (coverage, changed) = self.hours.entry((host, service, hour)).or_default();
        let revision = coverage.revision + u64::from(!*changed);
        *coverage += news;
        coverage.revision = revision;
        *changed = true;
    }

    /// Returns what changed, as it is told at `end_us`.
    pub(crate) fn reports(&mut self, end_us: u64) -> Vec<HourReport> {
        let mut reports = Vec::new();
        for (&(host, service, hour), (coverage, changed)) in &mut self.hours {
            if !std::mem::take(changed) {
                continue;
            }
            reports.push(HourReport {
                host,
                service,
                hour,
                // A run of the next hour, which was drawn a moment before its start.
                until_us: end_us.clamp(hour * HOUR_US + 1, (hour + 1) * HOUR_US),
                coverage: *coverage,
            });
        }
        let now = end_us / HOUR_US;
        self.hours.retain(|(_, _, hour), _| hour + HOURS_KEPT > now);
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an hour is told whole, again only when it changed, each time with a higher revision, and within its own end.
    #[test]
    fn hours_are_told_whole() {
        let mut told = Told::default();
        let slot = Coverage {
            planned: 1,
            ..Coverage::default()
        };
        let end_us = 490_000 * HOUR_US + 300_000_000;
        told.add(3, 1, 490_000, slot);
        told.add(3, 1, 490_000, slot);
        told.add(3, 1, 490_001, slot);
        let first = told.reports(end_us);
        assert_eq!(first.len(), 2);
        assert_eq!((first[0].coverage.planned, first[0].coverage.revision), (2, 1));
        assert_eq!(
            (first[0].until_us, first[1].until_us),
            (end_us, 490_001 * HOUR_US + 1)
        );
        assert!(told.reports(end_us).is_empty());
        told.add(3, 1, 490_000, slot);
        let again = told.reports(end_us + HOUR_US);
        assert_eq!(
            (again.len(), again[0].coverage.planned, again[0].coverage.revision),
            (1, 3, 2)
        );
        assert_eq!(again[0].until_us, 490_001 * HOUR_US);
    }
}
