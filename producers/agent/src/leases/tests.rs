//! The rules one by one, and all of them on random schedules.

use proptest::prelude::*;

use super::*;

const BREAKPOINTS: &str = "breakpoint";
const COUNTERS: &str = "pmu-counter";

fn table() -> Leases {
    Leases::new(BTreeMap::from([
        (BREAKPOINTS.to_owned(), 4),
        (COUNTERS.to_owned(), 2),
    ]))
}

fn wish(id: u64, class: Class, needs: &[(&str, u32)]) -> Wish {
    Wish {
        id,
        class,
        owner: String::new(),
        profiler: "any".to_owned(),
        needs: needs
            .iter()
            .map(|&(name, count)| (name.to_owned(), count))
            .collect(),
        not_with: BTreeSet::new(),
        latest_ms: u64::MAX,
    }
}

/// Checks that a fifth of four breakpoints waits, says for whom, and starts when one is given back.
#[test]
fn the_fifth_of_four_waits() {
    let mut leases = table();
    for id in 1..=5 {
        leases
            .ask(wish(id, Class::OnDemand, &[(BREAKPOINTS, 1)]))
            .unwrap();
    }
    for id in 1..=4 {
        assert_eq!(leases.start_next(0).unwrap().id, id);
    }
    assert_eq!(leases.start_next(0), None);
    let (place, obstacles) = leases.waits_for(5).unwrap();
    assert_eq!(place, 1);
    assert_eq!(obstacles, (1..=4).map(Obstacle::Run).collect::<Vec<_>>());
    leases.end(2).unwrap();
    assert_eq!(leases.start_next(0).unwrap().id, 5);
}

/// Checks that a large need is not starved by small ones that come later, and that what needs something else goes ahead.
#[test]
fn a_large_need_keeps_its_resource_from_those_behind_it() {
    let mut leases = table();
    leases.ask(wish(1, Class::OnDemand, &[(BREAKPOINTS, 1)])).unwrap();
    leases.start_next(0).unwrap();
    leases.ask(wish(2, Class::OnDemand, &[(BREAKPOINTS, 4)])).unwrap();
    leases.ask(wish(3, Class::OnDemand, &[(BREAKPOINTS, 1)])).unwrap();
    leases.ask(wish(4, Class::OnDemand, &[(COUNTERS, 1)])).unwrap();
    assert_eq!(leases.start_next(0).unwrap().id, 4);
    assert_eq!(leases.start_next(0), None);
    let (_, obstacles) = leases.waits_for(3).unwrap();
    assert_eq!(obstacles, [Obstacle::Waiting(2)]);
    leases.end(1).unwrap();
    assert_eq!(leases.start_next(0).unwrap().id, 2);
}

/// Checks that one start in four is of a continuous run while others wait, and that it has places of its own.
#[test]
fn continuous_runs_have_one_start_in_four_and_a_quarter_of_the_places() {
    let mut leases = table();
    for id in 0..40 {
        leases.ask(wish(id, Class::OnDemand, &[])).unwrap();
        leases.ask(wish(100 + id, Class::Continuous, &[])).unwrap();
    }
    let mut classes = Vec::new();
    for _ in 0..40 {
        let started = leases.start_next(0).unwrap();
        leases.end(started.id);
        classes.push(started.class);
    }
    for four in classes.windows(CONTINUOUS_EVERY as usize) {
        assert!(four.contains(&Class::Continuous), "{classes:?}");
    }
    let mut leases = table();
    for id in 0..20 {
        leases.ask(wish(id, Class::OnDemand, &[])).unwrap();
    }
    let started = std::iter::from_fn(|| leases.start_next(0)).count();
    assert_eq!(started, PLACES - CONTINUOUS_PLACES);
    leases.ask(wish(100, Class::Continuous, &[])).unwrap();
    assert_eq!(leases.start_next(0).unwrap().id, 100);
}

/// Checks that of two owners, one of whom asks for much, each has every other start.
#[test]
fn owners_take_turns() {
    let mut leases = table();
    for id in 0..20 {
        let owner = if id < 16 { "greedy" } else { "modest" };
        let wish = Wish {
            owner: owner.to_owned(),
            ..wish(id, Class::OnDemand, &[])
        };
        leases.ask(wish).unwrap();
    }
    let owners: Vec<String> = (0..8)
        .map(|_| {
            let started = leases.start_next(0).unwrap();
            leases.end(started.id);
            started.owner
        })
        .collect();
    assert_eq!(
        owners.iter().filter(|owner| *owner == "modest").count(),
        4,
        "{owners:?}"
    );
}

/// Checks that a wish never starts past its time, and that nothing waits without bound.
#[test]
fn what_is_late_expires_and_the_queue_is_bounded() {
    let mut leases = table();
    let late = Wish {
        latest_ms: 10,
        ..wish(1, Class::OnDemand, &[])
    };
    leases.ask(late).unwrap();
    assert_eq!(leases.start_next(10), None);
    assert_eq!(leases.expire(10).len(), 1);
    for id in 0..WAITING_MAX as u64 {
        leases.ask(wish(id, Class::Triggered, &[])).unwrap();
    }
    assert_eq!(
        leases.ask(wish(9_999, Class::OnDemand, &[])),
        Err(NotQueued::Full)
    );
    let much = wish(1, Class::OnDemand, &[(BREAKPOINTS, 5)]);
    assert!(matches!(
        table().ask(much),
        Err(NotQueued::NeverFits { there: 4, .. })
    ));
}

/// Checks that what somebody outside holds is tried again, and not before the time that was said.
#[test]
fn what_is_held_outside_is_tried_again() {
    let mut leases = table();
    leases.ask(wish(1, Class::OnDemand, &[(BREAKPOINTS, 1)])).unwrap();
    leases.ask(wish(2, Class::OnDemand, &[])).unwrap();
    assert_eq!(leases.start_next(0).unwrap().id, 1);
    leases.held_outside(1, BREAKPOINTS, 500);
    assert_eq!(
        leases.start_next(1).unwrap().id,
        2,
        "it does not need the resource"
    );
    assert_eq!(leases.start_next(499), None);
    assert_eq!(
        leases.waits_for(1).unwrap().1,
        [Obstacle::Outside(BREAKPOINTS.to_owned())]
    );
    assert_eq!(leases.start_next(500).unwrap().id, 1);
}

/// One step of a schedule.
#[derive(Debug, Clone)]
enum Step {
    Ask(Class, u32, u32, u8, u64),
    End(usize),
    Withdraw(usize),
    Outside,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![
        Just(Class::OnDemand),
        Just(Class::Triggered),
        Just(Class::Continuous)
    ];
    prop_oneof![
        4 => (class, 0..=4_u32, 0..=2_u32, 0..4_u8, 1..2_000_u64)
            .prop_map(|(class, breakpoints, counters, owner, life)| Step::Ask(class, breakpoints, counters, owner, life)),
        3 => (0..16_usize).prop_map(Step::End),
        1 => (0..16_usize).prop_map(Step::Withdraw),
        1 => Just(Step::Outside),
        2 => (1..300_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Checks on random schedules that no resource is ever held more often than it exists, that profilers that exclude each other
    /// never overlap, that nothing starts past its time, and that each wish has exactly one end.
    #[test]
    fn scarce_resources_never_overlap(steps in proptest::collection::vec(step(), 1..80)) {
        let mut leases = table();
        let (mut now, mut next_id) = (0_u64, 0_u64);
        let mut running: Vec<Wish> = Vec::new();
        let mut ended: BTreeSet<u64> = BTreeSet::new();
        let mut refused = 0;
        for step in steps {
            match step {
                Step::Ask(class, breakpoints, counters, owner, life) => {
                    next_id += 1;
                    let wish = Wish {
                        owner: format!("owner-{owner}"),
                        profiler: format!("profiler-{owner}"),
                        not_with: if owner == 0 { BTreeSet::from(["profiler-1".to_owned()]) } else { BTreeSet::new() },
                        latest_ms: now + life,
                        ..wish(next_id, class, &[(BREAKPOINTS, breakpoints), (COUNTERS, counters)])
                    };
                    if leases.ask(wish).is_err() {
                        refused += 1;
                    }
                }
                Step::End(at) if !running.is_empty() => {
                    let run = running.remove(at % running.len());
                    prop_assert!(leases.end(run.id).is_some());
                    prop_assert!(ended.insert(run.id));
                }
                Step::Withdraw(at) => {
                    if let Some(wish) = leases.withdraw(at as u64) {
                        prop_assert!(ended.insert(wish.id));
                    }
                }
                Step::Outside => {
                    if let Some(wish) = leases.start_next(now) {
                        leases.held_outside(wish.id, BREAKPOINTS, now + 100);
                    }
                }
                Step::Pass(ms) => now += ms,
                Step::End(_) => {}
            }
            for late in leases.expire(now) {
                prop_assert!(late.latest_ms <= now && ended.insert(late.id));
            }
            while let Some(started) = leases.start_next(now) {
                prop_assert!(started.latest_ms > now);
                for run in &running {
                    let excluded = started.not_with.contains(&run.profiler) || run.not_with.contains(&started.profiler);
                    prop_assert!(!excluded);
                }
                running.push(started);
            }
            for (resource, there) in [(BREAKPOINTS, 4), (COUNTERS, 2)] {
                let held: u32 = running.iter().filter_map(|run| run.needs.get(resource)).sum();
                prop_assert!(held <= there);
            }
            prop_assert!(running.len() <= PLACES && running.len() == leases.running());
            prop_assert_eq!(leases.running() + leases.waiting() + ended.len() + refused, next_id as usize);
        }
        // Nobody waits for ever: once runs end, everything that is not late starts.
        for _ in 0..2 * WAITING_MAX {
            for run in running.drain(..) {
                leases.end(run.id);
            }
            leases.expire(now);
            now += 101;
            while let Some(started) = leases.start_next(now) {
                running.push(started);
            }
        }
        leases.expire(now);
        prop_assert_eq!(leases.waiting(), 0);
    }
}
