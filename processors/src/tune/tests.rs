//! The stage over records as agents send them.

use strobe_sampling::plan::Bounds;
use strobe_sampling::tuner::Why;

use super::*;

const START: u64 = 20_000 * 24 * HOUR_US;
const SLOT: SlotLength = SlotLength::MINUTE;
const HOSTS: u64 = 200;
const BUSY: f64 = 4.0;

fn target() -> Target {
    Target {
        service: "web".to_owned(),
        profiler: "cpu".to_owned(),
    }
}

fn desired() -> Desired {
    Desired::new(20_000.0, 16.0, Bounds::CPU).unwrap()
}

/// Hosts that follow the plan: each reports every five minutes what its hour holds so far.
struct Hosts {
    hours: Vec<Coverage>,
    now_us: u64,
    /// The place of the next record.
    offset: i64,
    /// Draws by turns: run `n` of all slots is drawn where n·q passes a whole number.
    share: f64,
}

impl Hosts {
    fn new() -> Self {
        Self {
            hours: vec![Coverage::default(); HOSTS as usize],
            now_us: START,
            offset: 0,
            share: 0.0,
        }
    }

    /// Lets five minutes pass and returns what is reported.
    fn report(&mut self, q: f64, work: f64) -> Vec<Reported> {
        let mut records = Vec::new();
        if self.now_us.is_multiple_of(HOUR_US) {
            let over = std::mem::replace(&mut self.hours, vec![Coverage::default(); HOSTS as usize]);
            // The last runs of an hour end in the next one.
            if self.now_us > START {
                records = self.late(&over, q);
            }
        }
        let hour = self.now_us / HOUR_US;
        self.now_us += WINDOW_US;
        for (host, coverage) in self.hours.iter_mut().enumerate() {
            let before = coverage.revision;
            *coverage = Coverage {
                revision: before + 1,
                planned: coverage.planned + 5,
                ..*coverage
            };
            self.share += 5.0 * q;
            while self.share >= 1.0 {
                self.share -= 1.0;
                coverage.complete += 1;
                coverage.drawn_inverse += 1.0 / q;
                coverage.taken += (BUSY * work).round() as u64;
                coverage.done.add(1.0 / q, BUSY / q);
            }
            records.push(record(self.offset, host, hour, self.now_us, *coverage));
            self.offset += 1;
        }
        records
    }

    /// Returns what every tenth host says of the hour that is over: one run more.
    fn late(&mut self, over: &[Coverage], q: f64) -> Vec<Reported> {
        let mut records = Vec::new();
        for (host, coverage) in over.iter().enumerate().step_by(10) {
            let mut coverage = Coverage {
                revision: coverage.revision + 1,
                complete: coverage.complete + 1,
                drawn_inverse: coverage.drawn_inverse + 1.0 / q,
                taken: coverage.taken + 1_000,
                ..*coverage
            };
            coverage.done.add(1.0 / q, BUSY / q);
            let hour = self.now_us / HOUR_US - 1;
            records.push(record(self.offset, host, hour, self.now_us, coverage));
            self.offset += 1;
        }
        records
    }
}

fn record(offset: i64, host: usize, hour: u64, until_us: u64, coverage: Coverage) -> Reported {
    Reported {
        target: target(),
        host: format!("host-{host}"),
        epoch: Epoch([1; 16]),
        hour,
        until_us,
        slot_us: SLOT.us(),
        offset,
        coverage,
    }
}

/// Takes records in and closes what can be closed.
fn feed(tune: &mut Tune, records: Vec<Reported>) -> Vec<Tuned> {
    for record in records {
        let now = record.until_us;
        tune.take(record, SLOT, now);
    }
    tune.close(|_| Some(desired()), |_| HOSTS, SLOT)
}

/// Runs the loop for `windows` and returns what it decided.
fn run(
    tune: &mut Tune,
    hosts: &mut Hosts,
    windows: u64,
    plan: &mut strobe_sampling::plan::Plan,
) -> Vec<Tuned> {
    let mut all = Vec::new();
    for _ in 0..windows {
        let records = hosts.report(plan.run_probability, plan.work());
        for tuned in feed(tune, records) {
            *plan = tuned.decision.plan;
            all.push(tuned);
        }
    }
    all
}

fn first_plan() -> strobe_sampling::plan::Plan {
    Tuner::new(&desired(), HOSTS).plan(&desired())
}

/// Checks that a window closes as soon as 99 % of the live hosts have reported past it, not before, and at
/// the latest after an hour of event time.
#[test]
fn a_window_closes_when_nearly_all_have_reported() {
    let mut hosts = Hosts::new();
    let mut tune = Tune::default();
    let mut records = hosts.report(0.1, 20.0);
    let late = records.split_off(197);
    assert_eq!(feed(&mut tune, records), vec![]);
    assert_eq!(feed(&mut tune, late).len(), 1);

    let mut tune = Tune::default();
    let mut hosts = Hosts::new();
    let mut closed = 0;
    for window in 0..14 {
        let few = hosts.report(0.1, 20.0).into_iter().take(50).collect();
        closed += feed(&mut tune, few).len();
        assert_eq!(closed, (window + 1_usize).saturating_sub(12), "{window}");
    }
}

/// Checks that from nothing the loop finds the desired rate within a day and holds it.
#[test]
fn the_loop_finds_its_rate() {
    let (mut tune, mut hosts, mut plan) = (Tune::default(), Hosts::new(), first_plan());
    run(&mut tune, &mut hosts, 288, &mut plan);
    let rate = plan.run_probability * plan.work() * BUSY * HOSTS as f64 * 60.0;
    assert!((rate / 20_000.0 - 1.0).abs() < 0.05, "{rate}");
}

/// Checks that repeated and reordered records decide nothing anew.
#[test]
fn repeats_change_nothing() {
    let (mut once, mut hosts, mut plan) = (Tune::default(), Hosts::new(), first_plan());
    let (mut twice, mut same_hosts, mut same_plan) = (Tune::default(), Hosts::new(), first_plan());
    for _ in 0..40 {
        let records = same_hosts.report(same_plan.run_probability, same_plan.work());
        let mut again: Vec<Reported> = records.iter().rev().cloned().collect();
        again.extend(records);
        for tuned in feed(&mut twice, again) {
            same_plan = tuned.decision.plan;
        }
    }
    run(&mut once, &mut hosts, 40, &mut plan);
    let near = (plan.run_probability / same_plan.run_probability - 1.0).abs();
    // Sums in another order may differ in the last digits.
    assert!(near < 1e-9, "{near}");
}

/// Checks that two windows led to the same. A number that went through the state's JSON may differ in its last digit.
fn assert_same(one: &Tuned, other: &Tuned) {
    let counted = |tuned: &Tuned| (tuned.window_us, tuned.taken, tuned.known.read);
    assert_eq!(counted(one), counted(other));
    let numbers = |tuned: &Tuned| {
        let plan = tuned.decision.plan;
        let busy = tuned.known.tuner.history().busy().map_or(0.0, |(busy, _)| busy);
        [
            plan.run_probability,
            plan.planned_us as f64,
            plan.frequency_hz,
            busy,
        ]
    };
    for (one, other) in numbers(one).into_iter().zip(numbers(other)) {
        assert!((one - other).abs() <= 1e-9 * other.abs(), "{one} {other}");
    }
}

/// Checks that a successor, restored after any window from the state that was published, decides as the predecessor did from there
/// on: also where runs of an hour that is over are reported after its windows are closed.
#[test]
fn a_restart_changes_nothing() {
    let (mut tune, mut hosts, mut plan) = (Tune::default(), Hosts::new(), first_plan());
    let mut log = Vec::new();
    for _ in 0..40 {
        let records = hosts.report(plan.run_probability, plan.work());
        let tuned = feed(&mut tune, records.clone()).pop().unwrap();
        plan = tuned.decision.plan;
        log.push((records, tuned));
    }
    let all: u64 = log.iter().map(|(_, tuned)| tuned.taken).sum();
    let last = hosts.hours.iter().map(|coverage| coverage.taken).sum();
    assert!(
        all > 3 * 20 * 1_000 && all > last,
        "nothing of what was late was counted"
    );
    for at in 0..log.len() - 1 {
        let state = serde_json::to_string(&log[at].1.known).unwrap();
        let mut successor = Tune::default();
        successor.restore(target(), serde_json::from_str(&state).unwrap());
        let from = at.saturating_sub(2 * 12);
        for (records, _) in &log[from..=at] {
            assert_eq!(feed(&mut successor, records.clone()), vec![]);
        }
        for (records, expected) in &log[at + 1..] {
            let tuned = feed(&mut successor, records.clone());
            assert_eq!(tuned.len(), 1);
            assert_same(&tuned[0], expected);
        }
    }
}

/// Checks that a successor takes what corrects a window that was closed, and was read by the predecessor for the next one, for news:
/// what is no later than the state is not therefore in it.
#[test]
fn what_was_read_for_an_open_window_outlives_its_reader() {
    let (mut tune, mut hosts, plan) = (Tune::default(), Hosts::new(), first_plan());
    let mut state = None;
    let mut log = Vec::new();
    for _ in 0..12 {
        let records = hosts.report(plan.run_probability, plan.work());
        log.extend(records.clone());
        state = feed(&mut tune, records).pop().map(|tuned| tuned.known);
    }
    let mut successor = Tune::default();
    successor.restore(target(), state.unwrap());
    let late = hosts.report(plan.run_probability, plan.work());
    assert!(late[0].until_us == START + HOUR_US, "the first is a correction");
    assert_eq!(feed(&mut tune, vec![late[0].clone()]), vec![]);
    // The predecessor is gone with what it had read; the successor reads all of it again.
    log.push(late[0].clone());
    assert_eq!(feed(&mut successor, log), vec![]);
    let expected = feed(&mut tune, late[1..].to_vec());
    let found = feed(&mut successor, late[1..].to_vec());
    assert_eq!((expected.len(), found.len()), (1, 1));
    assert_same(&found[0], &expected[0]);
}

/// Checks that records that cannot be true are refused with a reason and change nothing.
#[test]
fn impossible_records_are_refused() {
    let mut hosts = Hosts::new();
    let good = hosts.report(0.1, 20.0).swap_remove(0);
    let mut tune = Tune::default();
    let now = good.until_us;
    let ahead = Reported {
        until_us: now + 2 * CLOCK_SKEW_US,
        ..good.clone()
    };
    let elsewhere = Reported {
        hour: good.hour + 1,
        ..good.clone()
    };
    let mut absurd = good.clone();
    absurd.coverage.planned = 1_000;
    for bad in [ahead, elsewhere, absurd] {
        assert!(
            matches!(tune.take(bad.clone(), SLOT, now), Fate::Refused(_)),
            "{bad:?}"
        );
    }
    assert_eq!(tune.take(good.clone(), SLOT, now), Fate::Counted);
    assert_eq!(tune.take(good.clone(), SLOT, now), Fate::Repeated);
    let later = Reported {
        hour: good.hour + 5,
        until_us: (good.hour + 5) * HOUR_US + WINDOW_US,
        slot_us: SLOT.us(),
        host: "other".to_owned(),
        ..good.clone()
    };
    assert_eq!(tune.take(later, SLOT, now + 6 * HOUR_US), Fate::Counted);
    let late = Reported {
        epoch: Epoch([9; 16]),
        ..good
    };
    assert_eq!(tune.take(late, SLOT, now + 6 * HOUR_US), Fate::TooLate);
}

/// Checks that two machines with one name are noticed, and that a host that boasts is named and believed in
/// part.
#[test]
fn two_of_one_name_and_boasters_are_named() {
    let (mut tune, mut hosts) = (Tune::default(), Hosts::new());
    let (mut named, mut doubted) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let mut records = hosts.report(0.5, 20.0);
        let twin = Reported {
            epoch: Epoch([2; 16]),
            ..records[3].clone()
        };
        records.push(twin);
        records[7].coverage.done.t *= 1e6;
        records[7].coverage.done.tt *= 1e12;
        records[7].coverage.done.tu *= 1e6;
        for tuned in feed(&mut tune, records) {
            named.extend(tuned.same_name);
            doubted.extend(tuned.doubted);
        }
    }
    named.dedup();
    assert_eq!(named, ["host-3"]);
    assert!(
        !doubted.is_empty() && doubted.iter().all(|(host, ..)| host == "host-7"),
        "{doubted:?}"
    );
}

/// Checks that a target of which nothing is wanted is not tuned, and that nothing of it piles up once it is
/// released.
#[test]
fn what_is_not_wanted_is_not_tuned() {
    let mut tune = Tune::default();
    for record in Hosts::new().report(0.1, 20.0) {
        tune.take(record, SLOT, START + WINDOW_US);
    }
    assert_eq!(tune.close(|_| None, |_| HOSTS, SLOT), vec![]);
    let tuned = tune.close(|_| Some(desired()), |_| HOSTS, SLOT);
    assert!(matches!(tuned[0].decision.why, Why::Observed | Why::Start));
    tune.release(&target());
    assert_eq!(tune.close(|_| Some(desired()), |_| HOSTS, SLOT), vec![]);
}

/// Checks that a host that runs all of the time in runs of an hour's sixtieth times five counts as one that ran in every slot, and
/// that runs that hold no whole slot are refused.
#[test]
fn long_runs_cover_several_slots() {
    let mut sums = RunSums::default();
    (0..12).for_each(|_| sums.add(1.0, BUSY));
    let record = |slot_us| Reported {
        target: target(),
        host: "h".to_owned(),
        epoch: Epoch([1; 16]),
        hour: START / HOUR_US,
        until_us: START + HOUR_US,
        slot_us,
        offset: 0,
        coverage: Coverage {
            revision: 1,
            planned: 12,
            complete: 12,
            drawn_inverse: 12.0,
            done: sums,
            ..Coverage::default()
        },
    };
    let mut tune = Tune::default();
    assert!(matches!(
        tune.take(record(7_000_000), SLOT, START + HOUR_US),
        Fate::Refused(_)
    ));
    assert_eq!(
        tune.take(record(5 * SLOT.us()), SLOT, START + HOUR_US),
        Fate::Counted
    );
    let tuned = tune.close(|_| Some(desired()), |_| 1, SLOT);
    assert_eq!(tuned.len(), 1);
    let history = tuned[0].known.tuner.history();
    let (busy, runs) = history.busy().unwrap();
    assert!(
        (busy - BUSY).abs() < 1e-9 && (runs - 12.0).abs() < 1e-9,
        "{busy} {runs}"
    );
}
