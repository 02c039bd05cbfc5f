//! What became of slots, hour by hour, until it is told.
//!
//! Counted for each (service, hour, length of slots). It is told at every full five minutes, also where nothing ran, so that
//! whoever waits for the hosts of a service hears from each; at an hour's end; and as the agent stops. Each telling is
//! whole: the hour so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use strobe_event::{CoverageRecord, CpuSource, WHOLE_HOST};
use strobe_sampling::coverage::Coverage;
use strobe_sampling::slot::HOUR_US;

use crate::presence::Look;

/// Time between two tellings: the tuner's window.
pub const TELL_US: u64 = 300_000_000;
/// Hours kept open: the one under way, and the one before, whose last run may end a little later.
const HOURS_KEPT: u64 = 2;

/// Share of the CPU time that may have been read of processes where the rest was of control groups: less than what the samples
/// can tell.
const WEAK_SHARE_MAX: f64 = 0.01;

/// What one run says of the services that it met.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// q of its slot.
    pub run_probability: f64,
    /// Time planned, microseconds.
    pub planned_us: u64,
    /// Time done.
    pub done_us: u64,
    /// Samples per second and CPU.
    pub frequency_hz: f64,
    /// Samples taken of each service, before limits, losses and thinning.
    pub taken: BTreeMap<Arc<str>, f64>,
}

/// What became of one slot.
#[derive(Debug, Clone, PartialEq)]
pub enum Slot {
    /// It was not drawn.
    Quiet,
    /// It was drawn at this q, and could not run.
    Refused(f64),
    /// It ran.
    Ran(Done),
}

#[derive(Debug, Default)]
struct Open {
    coverage: Coverage,
    /// Where nearly all of its CPU time was read.
    cpu_source: Option<CpuSource>,
    /// What of it was read of processes.
    by_processes_us: u64,
    until_us: u64,
    changed: bool,
}

/// The hours that are open.
#[derive(Debug, Default)]
pub struct CoverageBook {
    open: BTreeMap<(u64, Arc<str>, u64), Open>,
    /// Up to when CPU time was counted.
    looked_us: u64,
}

impl CoverageBook {
    /// Counts a slot of `slot_us` in `hour` for the services that were present at its moment, and for the whole host.
    pub fn slot(&mut self, hour: u64, slot_us: u64, present: &[Arc<str>], slot: &Slot) {
        let whole: Arc<str> = WHOLE_HOST.into();
        for service in present.iter().chain([&whole]) {
            let open = self.open.entry((hour, Arc::clone(service), slot_us)).or_default();
            open.changed = true;
            let coverage = &mut open.coverage;
            coverage.planned += 1;
            match slot {
                Slot::Quiet => {}
                Slot::Refused(q) => {
                    coverage.refused += 1;
                    coverage.drawn_inverse += 1.0 / q;
                }
                Slot::Ran(done) => {
                    let taken = if **service == *WHOLE_HOST {
                        done.taken.values().sum()
                    } else {
                        done.taken.get(service).copied().unwrap_or(0.0)
                    };
                    add(coverage, done, taken);
                }
            }
        }
    }

    /// Counts the CPU time of a look at `now_us`, for the hour in which the time since the look before began.
    pub fn cpu(&mut self, now_us: u64, slot_us: u64, look: &Look) {
        let since_us = std::mem::replace(&mut self.looked_us, now_us);
        if since_us == 0 {
            return;
        }
        let hour = since_us / HOUR_US;
        let mut add = |service: Arc<str>, cpu_us: u64, source: CpuSource| {
            let open = self.open.entry((hour, service, slot_us)).or_default();
            open.coverage.cpu_us += cpu_us;
            if source == CpuSource::Processes {
                open.by_processes_us += cpu_us;
            }
            // A process that joins its group a moment after its start does not spoil the account of an hour.
            let weak = match open.coverage.cpu_us {
                0 => source == CpuSource::Processes,
                all_us => open.by_processes_us as f64 > all_us as f64 * WEAK_SHARE_MAX,
            };
            open.cpu_source = Some(match (source, weak) {
                (CpuSource::Host, _) => CpuSource::Host,
                (_, true) => CpuSource::Processes,
                (_, false) => CpuSource::ControlGroup,
            });
            open.changed = true;
        };
        for (service, used) in &look.used {
            add(Arc::clone(service), used.cpu_us, used.source);
        }
        add(WHOLE_HOST.into(), look.host_us, CpuSource::Host);
    }

    /// Returns what is to be told at `now_us`: every hour that changed, and that under way for every service in it. Hours
    /// that are over long enough are closed.
    pub fn tell(&mut self, now_us: u64, (host, profiler): (&str, &str)) -> Vec<CoverageRecord> {
        let now_hour = now_us.saturating_sub(1) / HOUR_US;
        let mut records = Vec::new();
        for ((hour, service, slot_us), open) in &mut self.open {
            let until_us = now_us.min((hour + 1) * HOUR_US);
            if !open.changed && until_us <= open.until_us {
                continue;
            }
            open.changed = false;
            open.until_us = until_us.max(hour * HOUR_US + 1);
            open.coverage.revision += 1;
            let coverage = &open.coverage;
            records.push(CoverageRecord {
                service: service.to_string(),
                profiler: profiler.to_owned(),
                host: host.to_owned(),
                slot_us: *slot_us,
                hour: *hour,
                until_us: open.until_us,
                revision: coverage.revision,
                planned: coverage.planned,
                refused: coverage.refused,
                complete: coverage.complete,
                cut_short: coverage.cut_short,
                drawn_inverse: coverage.drawn_inverse,
                done_us: coverage.done_us,
                taken: coverage.taken,
                cpu_us: coverage.cpu_us,
                cpu_source: open.cpu_source.unwrap_or(CpuSource::Unknown) as u8,
                runs: coverage.done.runs,
                u: coverage.done.u,
                uu: coverage.done.uu,
                t: coverage.done.t,
                tt: coverage.done.tt,
                tu: coverage.done.tu,
            });
        }
        self.open.retain(|(hour, ..), _| hour + HOURS_KEPT > now_hour);
        records
    }
}

fn add(coverage: &mut Coverage, done: &Done, taken: f64) {
    let share = done.done_us as f64 / done.planned_us.max(1) as f64;
    let u = share / done.run_probability;
    let t = taken / (done.run_probability * done.planned_us.max(1) as f64 / 1e6 * done.frequency_hz);
    // A run ends when its host gets to it: a hundredth less is as planned.
    if share >= 0.99 {
        coverage.complete += 1;
    } else {
        coverage.cut_short += 1;
    }
    coverage.drawn_inverse += 1.0 / done.run_probability;
    coverage.done_us += done.done_us;
    coverage.taken += taken.round() as u64;
    coverage.done.add(u, t);
}

#[cfg(test)]
mod tests {
    use strobe_sampling::slot::SlotLength;

    use super::*;
    use crate::presence::Used;

    const HOUR: u64 = 490_000;
    const NOON: u64 = HOUR * HOUR_US;

    fn ran(q: f64, share: f64, taken: f64) -> Slot {
        Slot::Ran(Done {
            run_probability: q,
            planned_us: 10_000_000,
            done_us: (share * 10e6) as u64,
            frequency_hz: 99.0,
            taken: BTreeMap::from([("orders".into(), taken)]),
        })
    }

    fn of<'a>(records: &'a [CoverageRecord], service: &str) -> &'a CoverageRecord {
        records.iter().find(|record| record.service == service).unwrap()
    }

    /// Checks that an hour of slots adds up for whoever was present, that what ran by half stands for half, and that all of it
    /// passes the proof of those who read it.
    #[test]
    fn an_hour_of_slots_adds_up() {
        let mut book = CoverageBook::default();
        let present: [Arc<str>; 2] = ["orders".into(), "idle".into()];
        for slot in 0..60 {
            let what = match slot {
                0 => ran(0.05, 1.0, 990.0),
                1 => ran(0.05, 0.5, 495.0),
                2 => Slot::Refused(0.05),
                _ => Slot::Quiet,
            };
            book.slot(HOUR, 60_000_000, &present, &what);
        }
        let records = book.tell(NOON + HOUR_US, ("h", "cpu"));
        assert_eq!(records.len(), 3);
        let orders = of(&records, "orders");
        assert_eq!(
            (orders.planned, orders.refused, orders.complete, orders.cut_short),
            (60, 1, 1, 1)
        );
        // One busy CPU in the first run, and half of it in the second, which had half of the time.
        assert!((orders.u - 30.0).abs() < 1e-9 && (orders.t - 30.0).abs() < 1e-9);
        assert_eq!(orders.taken, 1_485);
        assert_eq!(
            (of(&records, "idle").taken, of(&records, WHOLE_HOST).taken),
            (0, 1_485)
        );
        for open in book.open.values() {
            open.coverage.check("h", SlotLength::MINUTE).unwrap();
        }
    }

    /// Checks that an hour is told again only when there is news, whole, with a higher revision, and within its own end.
    #[test]
    fn each_telling_is_whole_and_later() {
        let mut book = CoverageBook::default();
        let present: [Arc<str>; 1] = ["orders".into()];
        book.slot(HOUR, 60_000_000, &present, &Slot::Quiet);
        let first = book.tell(NOON + 1_000_000, ("h", "cpu"));
        book.slot(HOUR, 60_000_000, &present, &Slot::Quiet);
        let second = book.tell(NOON + HOUR_US + 1, ("h", "cpu"));
        assert_eq!(
            (of(&first, "orders").planned, of(&second, "orders").planned),
            (1, 2)
        );
        assert_eq!(of(&second, "orders").revision, 2);
        assert_eq!(of(&second, "orders").until_us, NOON + HOUR_US);
        assert!(book.tell(NOON + HOUR_US + 2, ("h", "cpu")).is_empty());
        book.tell(NOON + 3 * HOUR_US, ("h", "cpu"));
        assert!(book.open.is_empty());
    }

    /// Checks that a moment in which a service was read of its processes does not decide for the hour, and that more than that does.
    #[test]
    fn the_account_of_an_hour_is_that_of_nearly_all_of_it() {
        let mut book = CoverageBook::default();
        let look = |cpu_us, source| Look {
            used: BTreeMap::from([("orders".into(), Used { cpu_us, source })]),
            present: vec!["orders".into()],
            host_us: 0,
        };
        let mut source = |at_us, cpu_us, source| {
            book.cpu(NOON + at_us, 60_000_000, &look(cpu_us, source));
            let records = book.tell(NOON + at_us, ("h", "cpu"));
            records
                .iter()
                .find(|record| record.service == "orders")
                .map(|record| record.cpu_source)
        };
        source(1, 0, CpuSource::Processes);
        assert_eq!(
            source(2, 5, CpuSource::Processes),
            Some(CpuSource::Processes as u8)
        );
        assert_eq!(
            source(3, 995, CpuSource::ControlGroup),
            Some(CpuSource::ControlGroup as u8)
        );
        assert_eq!(
            source(4, 50, CpuSource::Processes),
            Some(CpuSource::Processes as u8)
        );
    }

    /// Checks that CPU time goes to the hour in which it was used, and that the first look counts nothing.
    #[test]
    fn cpu_time_goes_to_its_hour() {
        let mut book = CoverageBook::default();
        let used = Used {
            cpu_us: 7,
            source: CpuSource::Processes,
        };
        let look = Look {
            used: BTreeMap::from([("orders".into(), used)]),
            present: vec!["orders".into()],
            host_us: 9,
        };
        book.cpu(NOON + HOUR_US - 1, 60_000_000, &look);
        book.cpu(NOON + HOUR_US, 60_000_000, &look);
        book.cpu(NOON + HOUR_US + 5, 60_000_000, &look);
        let records = book.tell(NOON + HOUR_US + 5, ("h", "cpu"));
        let of_hour = |hour| {
            records
                .iter()
                .find(|record| record.service == "orders" && record.hour == hour)
                .unwrap()
                .cpu_us
        };
        assert_eq!((of_hour(HOUR), of_hour(HOUR + 1)), (7, 7));
        assert_eq!(of(&records, "orders").cpu_source, CpuSource::Processes as u8);
        assert_eq!(of(&records, WHOLE_HOST).cpu_source, CpuSource::Host as u8);
    }
}
