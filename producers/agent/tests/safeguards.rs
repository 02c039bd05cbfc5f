//! What ends or slows profiling from outside: the stop file, and the budget of the agent as a whole.
#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::inside::{Inside, Victim, ask, end_of, wait_for_start};
use common::{Place, Spooled};
use strobe_agent::runner::How;
use strobe_event::{AuditAction, AuditRecord, RunEvent, RunState};

/// Runs `strobe-agent stop` or `start`, as somebody would beside an agent that may or may not run.
fn say(place: &Place, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_strobe-agent"))
        .args(arguments)
        .args(["--no-publish", "--state-dir"])
        .arg(place.path("state"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn events(place: &Place) -> Vec<RunEvent> {
    let events = place.spooled().into_iter().filter_map(|(_, _, what)| match what {
        Spooled::Event(event) => Some(*event),
        _ => None,
    });
    events.collect()
}

fn audited(place: &Place) -> Vec<AuditRecord> {
    let records = place.spooled().into_iter().filter_map(|(_, _, what)| match what {
        Spooled::Audit(record) => Some(*record),
        _ => None,
    });
    records.collect()
}

/// Checks that `strobe-agent stop` ends what runs within a second, whoever asked for it, and lets nothing begin; that this outlasts a
/// restart and is audited; and that `strobe-agent start` lets it go on. No bus is there all the while.
#[test]
fn stop_ends_all_profiling_within_a_second_and_outlasts_a_restart() {
    let _alone = common::alone();
    if common::skipped("stop_ends_all_profiling_within_a_second_and_outlasts_a_restart") {
        return;
    }
    let place = Place::new();
    let _busy = Victim::start(&place, "victim-stop");
    let agent = Inside::start(&place);
    let ticket = agent.runner.ask(ask("cpu", 60)).unwrap();
    wait_for_start(&ticket);
    let said = say(&place, &["stop", "--reason", "checkout is slow"]);
    let at = Instant::now();
    assert!(
        said.contains("stopped") && said.contains("`strobe-agent start`"),
        "{said}"
    );
    let ending = end_of(&ticket);
    assert!(at.elapsed() < Duration::from_secs(1), "{:?}", at.elapsed());
    assert_eq!(ending.how, How::Stopped);
    assert!(ending.why.contains("checkout is slow"), "{}", ending.why);
    let refusal = agent.runner.ask(ask("cpu", 1)).unwrap_err();
    assert_eq!(refusal.code(), "stopped");
    thread::sleep(Duration::from_secs(1));
    agent.end();
    let ended = events(&place);
    let continuous: Vec<&RunEvent> = ended
        .iter()
        .filter(|event| event.run.id != ticket.run())
        .collect();
    assert_eq!(continuous.len(), 2, "one run, and none after it");
    assert_eq!(continuous[1].state, RunState::Finished as u8);
    assert!(
        continuous[1].detail.contains("checkout is slow"),
        "{}",
        continuous[1].detail
    );
    let said: Vec<u8> = audited(&place).iter().map(|record| record.action).collect();
    assert_eq!(said, [AuditAction::Stop as u8]);
    let before = place.batches().len();

    let again = Inside::start(&place);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(again.runner.ask(ask("cpu", 1)).unwrap_err().code(), "stopped");
    again.end();
    assert_eq!(
        (events(&place).len(), place.batches().len()),
        (ended.len(), before)
    );

    let again = Inside::start(&place);
    // Once it has seen that it is stopped: what was taken away before is not known to it.
    thread::sleep(Duration::from_secs(1));
    assert!(say(&place, &["start"]).contains("goes on"));
    thread::sleep(Duration::from_millis(1_500));
    again.end();
    assert!(place.batches().len() > before);
    assert!(say(&place, &["start"]).contains("was not stopped"));
    let said: Vec<u8> = audited(&place).iter().map(|record| record.action).collect();
    assert_eq!(said.last(), Some(&(AuditAction::Start as u8)));
}

/// Checks, with two busy CPUs sampled 4,999 times a second and a budget of half a per cent of one, that the agent samples more slowly
/// before a second is over, and says why.
#[test]
fn an_agent_over_its_budget_backs_off_within_a_second() {
    let _alone = common::alone();
    if common::skipped("an_agent_over_its_budget_backs_off_within_a_second") {
        return;
    }
    let place = Place::new();
    let _busy = [
        Victim::start(&place, "victim-a"),
        Victim::start(&place, "victim-b"),
    ];
    place.configure("[budget]\ncpus = 0.005\n");
    let agent = place.start_with(|command| {
        command.env("STROBE_FREQUENCY", "4999");
    });
    thread::sleep(Duration::from_secs(3));
    let log = agent.end();
    let events = events(&place);
    let first = events
        .iter()
        .find(|event| event.state == RunState::Finished as u8)
        .unwrap();
    assert!(
        first.detail.starts_with("over the budget: the agent used"),
        "{}",
        first.detail
    );
    assert!(first.done_us < 1_000_000, "{first:?}");
    let later = events.iter().find(|event| event.run.id != first.run.id);
    // It may be that no rate is low enough: to follow processes alone takes more.
    match later {
        Some(later) => assert!(later.run.period >= 2 * first.run.period, "{later:?}"),
        None => assert!(log.contains("sampling stops until"), "{log}"),
    }
    let thinner_by = place.status()["thinner_by"].as_u64().unwrap();
    assert_ne!(thinner_by, 1);
}
