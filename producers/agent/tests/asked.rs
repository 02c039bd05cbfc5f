//! Runs that somebody asks for, beside the continuous one: on a real agent, in this process.

mod common;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use common::inside::{Inside, Victim, ask, end_of, of_run, wait_for_start};
use common::{Place, Spooled};
use strobe_agent::profilers::Rate;
use strobe_agent::runner::{Ask, How, Refusal, Standing, Target};
use strobe_event::{Cause, RunState};

/// Checks that a CPU profile that is asked for runs beside the continuous one, at its own rate, of the named process alone; that
/// its account adds up; and that the continuous run loses nothing by it.
#[test]
fn a_profile_on_demand_runs_beside_the_continuous_one() {
    let _alone = common::alone();
    if common::skipped("a_profile_on_demand_runs_beside_the_continuous_one") {
        return;
    }
    let place = Place::new();
    let victim = Victim::start(&place, "victim-asked");
    let agent = Inside::start(&place);
    let ticket = agent
        .runner
        .ask(Ask {
            rate: Some(Rate::Hz(499)),
            target: Target::Pids(vec![victim.0.id()]),
            ..ask("cpu", 2)
        })
        .unwrap();
    wait_for_start(&ticket);
    let before = victim.cpu_seconds();
    let ending = end_of(&ticket);
    let used = victim.cpu_seconds() - before;
    agent.end();
    assert_eq!((ending.how, ending.why.as_str()), (How::Done, ""));
    assert!((2_000_000..3_000_000).contains(&ending.done_us), "{ending:?}");
    let (batches, events) = of_run(&place, ticket.run());
    let mut kept = 0;
    for batch in &batches {
        assert_eq!(batch.validate(), Ok(()));
        assert_eq!(
            (batch.run.profiler.as_str(), batch.run.cause),
            ("cpu", Cause::OnDemand as u8)
        );
        assert_eq!(batch.run.period, 1_000_000_000 / 499);
        assert!(batch.processes.iter().all(|process| process.pid == victim.0.id()));
        kept += batch.samples.len() as u64;
    }
    assert_eq!((kept, ending.kept), (ending.kept, ending.taken));
    // By the kernel's own account of the victim; the two are not read at the same moments.
    let sampled = kept as f64 / 499.0;
    assert!(
        (sampled - used).abs() < 0.15 * used + 0.05,
        "{sampled} s of {used} s"
    );
    let ticks = 499.0 * ending.done_us as f64 / 1e6;
    let all: u64 = batches
        .iter()
        .flat_map(|batch| &batch.cpus)
        .map(|cpu| cpu.taken + cpu.idle)
        .sum();
    let cpus = thread::available_parallelism().unwrap().get() as f64;
    assert!(
        (0.9..1.02).contains(&(all as f64 / (ticks * cpus))),
        "{all} ticks of {}",
        ticks * cpus
    );
    let states: Vec<u8> = events.iter().map(|event| event.state).collect();
    assert_eq!(states, [RunState::Started as u8, RunState::Finished as u8]);
    assert_eq!((events[1].taken, events[1].spooled), (ending.taken, kept));
    let continuous: u64 = place
        .spooled()
        .iter()
        .filter_map(|(_, _, what)| match what {
            Spooled::Batch(batch) if batch.run.cause == Cause::Continuous as u8 => {
                Some(batch.drops.iter().map(|count| count.samples).sum::<u64>())
            }
            _ => None,
        })
        .sum();
    assert_eq!(continuous, 0, "dropped of the continuous run");
}

/// Checks that equal asks share a run, that it ends when the last of them no longer wants it, within a second, and that the same run
/// asked for twice runs once.
#[test]
fn equal_asks_share_a_run() {
    let _alone = common::alone();
    if common::skipped("equal_asks_share_a_run") {
        return;
    }
    let place = Place::new();
    let agent = Inside::start(&place);
    let first = ask("cpu", 60);
    let one = agent.runner.ask(first.clone()).unwrap();
    let two = agent.runner.ask(ask("cpu", 60)).unwrap();
    let again = agent.runner.ask(first).unwrap();
    assert_eq!((one.joined(), two.joined(), again.joined()), (false, true, false));
    assert!(one.run() == two.run() && one.run() == again.run());
    wait_for_start(&one);
    one.stop("the first left");
    thread::sleep(Duration::from_millis(500));
    assert!(
        matches!(two.standing(), Standing::Running { .. }),
        "{:?}",
        two.standing()
    );
    let stopped = Instant::now();
    two.stop("nobody wants it");
    let ending = end_of(&two);
    assert!(
        stopped.elapsed() < Duration::from_secs(1),
        "{:?}",
        stopped.elapsed()
    );
    assert_eq!(
        (ending.how, ending.why.as_str()),
        (How::Stopped, "nobody wants it")
    );
    agent.end();
}

/// Checks that what cannot be run is refused at once, and says what to do.
#[test]
fn what_cannot_run_is_refused_with_a_remedy() {
    let _alone = common::alone();
    if common::skipped("what_cannot_run_is_refused_with_a_remedy") {
        return;
    }
    let place = Place::new();
    let agent = Inside::start(&place);
    let refused = |ask: Ask| agent.runner.ask(ask).unwrap_err();
    let refusal = refused(ask("cpuu", 1));
    assert_eq!(refusal.code(), "unknown_profiler");
    assert!(refusal.to_string().contains("did you mean `cpu`?"), "{refusal}");
    let refusal = refused(ask("cpu", 86_400));
    assert!(matches!(refusal, Refusal::Limit(_)), "{refusal}");
    let refusal = refused(Ask {
        target: Target::Pids(vec![u32::MAX]),
        ..ask("cpu", 1)
    });
    assert_eq!(refusal.code(), "target");
    let refusal = refused(Ask {
        parameters: BTreeMap::from([("adress".to_owned(), "0".to_owned())]),
        ..ask("cpu", 1)
    });
    assert_eq!(refusal.code(), "parameter");
    agent.end();
}
