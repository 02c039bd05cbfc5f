//! What each kind of profiler takes, against what the kernel and the victims themselves counted; and scarce hardware, against real
//! holders.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::Place;
use common::doer::{Doer, range_of, share_through, total};
use common::inside::{Inside, PATIENCE, ask, end_of, of_run, wait_for_start};
use strobe_agent::profilers::Rate;
use strobe_agent::runner::{Ask, How, Refusal, Standing, Target, Ticket};
use strobe_event::Cause;

/// Checks three profilers at once, each against what was done: page faults against the kernel's account of the process, system calls
/// against how many the program made, and bytes written, by a profiler that is a file of this test, against how many it wrote.
/// And that their stacks run through the functions that did it.
#[test]
fn counted_events_add_up_to_what_was_done() {
    let _alone = common::alone();
    if common::skipped("counted_events_add_up_to_what_was_done") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("profilers")).unwrap();
    fs::write(
        place.path("profilers").join("written.toml"),
        "name = \"written\"\nabout = \"Who writes\"\nevent = { tracepoint = { name = \"syscalls:sys_enter_write\", value = \"count\" } }\n\
         unit = \"bytes\"\nrate = { period = 10000 }\nduration = \"1s\"\ncost_us = 10\n[limits]\nduration_max = \"1m\"\n",
    )
    .unwrap();
    let mut doer = Doer::start(&place);
    let agent = Inside::start_with(&place, |config| config.profilers = place.path("profilers"));
    let target = Target::Pids(vec![doer.pid()]);
    let start = |ask: Ask| {
        let ticket = agent.runner.ask(ask).unwrap();
        wait_for_start(&ticket);
        ticket
    };
    let faults = start(Ask {
        rate: Some(Rate::Period(1)),
        target: target.clone(),
        ..ask("minor-faults", 60)
    });
    let calls = start(Ask {
        rate: Some(Rate::Period(20)),
        target: target.clone(),
        parameters: BTreeMap::from([("tracepoint".to_owned(), "syscalls:sys_enter_getppid".to_owned())]),
        ..ask("tracepoint", 60)
    });
    let written = start(Ask {
        target,
        ..ask("written", 60)
    });
    let before = doer.minor_faults();
    doer.does("pages", 2_000);
    let faulted = doer.minor_faults() - before;
    doer.does("calls", 10_000);
    doer.does("writes", 5_000);
    for ticket in [&faults, &calls, &written] {
        ticket.stop("enough");
        let ending = end_of(ticket);
        assert_eq!(
            (ending.how, ending.kept),
            (How::Stopped, ending.taken),
            "{ending:?}"
        );
    }
    let done = |ticket: &Ticket| of_run(&place, ticket.run()).0;
    agent.end();
    // What has not filled a period on each CPU is not told.
    let cpus = thread::available_parallelism().unwrap().get() as u64;
    assert!(faulted >= 2_000, "{faulted}");
    for (what, ticket, expected, period, function) in [
        ("faults", &faults, faulted, 1, "touch_pages"),
        ("calls", &calls, 10_000, 20, "call_kernel"),
        ("bytes", &written, 5_000_000, 10_000 + 1_000, "write_bytes"),
    ] {
        let batches = done(ticket);
        let total = total(&batches);
        assert!(
            total.abs_diff(expected) <= cpus * period,
            "{what}: {total} of {expected}"
        );
        let range = range_of(&place.path("doer"), function);
        let share = share_through(&batches, "doer", range);
        assert!(share > 0.95, "{what}: {share} through {function}");
        assert!(
            batches
                .iter()
                .all(|batch| batch.run.cause == Cause::OnDemand as u8)
        );
    }
}

/// Checks that each touch of a watched address is seen, once, with the stack of whoever touched it.
#[test]
fn each_touch_of_a_watched_address_is_seen() {
    let _alone = common::alone();
    if common::skipped("each_touch_of_a_watched_address_is_seen") {
        return;
    }
    let place = Place::new();
    let mut doer = Doer::start(&place);
    let agent = Inside::start(&place);
    let ticket = agent.runner.ask(doer.watch(0, 60)).unwrap();
    wait_for_start(&ticket);
    doer.does("data", 500);
    ticket.stop("enough");
    let ending = end_of(&ticket);
    agent.end();
    assert_eq!((ending.taken, ending.kept), (500, 500), "{ending:?}");
    let (batches, _) = of_run(&place, ticket.run());
    let share = share_through(&batches, "doer", range_of(&place.path("doer"), "touch_data"));
    assert_eq!(share, 1.0);
}

/// Checks, on real breakpoints, that two runs never hold the same one: of those that the CPU has, one more waits, says behind whom,
/// and starts when one is given back.
#[test]
fn one_more_than_the_cpu_has_waits_for_one_of_ours() {
    let _alone = common::alone();
    if common::skipped("one_more_than_the_cpu_has_waits_for_one_of_ours") {
        return;
    }
    let place = Place::new();
    let doer = Doer::start(&place);
    let agent = Inside::start(&place);
    let there = strobe_agent::capacity::of_this_host()["breakpoint"];
    let watch = |seconds| {
        let ask = doer.watch(0, seconds);
        agent.runner.ask(ask).unwrap()
    };
    // Different durations: equal asks would share a run.
    let held: Vec<Ticket> = (0..u64::from(there)).map(|at| watch(60 + at)).collect();
    held.iter().for_each(wait_for_start);
    let more = watch(30);
    let Standing::Queued { behind, place: 1 } = more.wait(&more.standing(), Duration::from_secs(1)) else {
        panic!("{:?}", more.standing());
    };
    assert_eq!(behind.len(), there as usize);
    assert!(behind[0].starts_with("data-watch run "), "{behind:?}");
    held[0].stop("enough");
    assert_eq!(end_of(&held[0]).how, How::Stopped);
    wait_for_start(&more);
    agent.end();
}

/// Checks that a breakpoint that `perf record` holds is respected and its holder named, that the run starts when perf is gone, and that
/// one that would be too late by then is refused, and recorded.
#[test]
fn what_perf_holds_is_respected_and_perf_is_named() {
    let _alone = common::alone();
    if common::skipped("what_perf_holds_is_respected_and_perf_is_named") {
        return;
    }
    if Command::new("perf").arg("--version").output().is_err() {
        println!(
            "skipped: what_perf_holds_is_respected_and_perf_is_named: no perf: install the Debian package `linux-perf`"
        );
        return;
    }
    let place = Place::new();
    let doer = Doer::start(&place);
    let agent = Inside::start(&place);
    let there = u64::from(strobe_agent::capacity::of_this_host()["breakpoint"]);
    let mut perf = Command::new("perf")
        .args([
            "record",
            "-a",
            "-e",
            &format!("mem:{:#x}:w", doer.address + 24),
            "-o",
        ])
        .arg(place.path("perf.data"))
        .args(["sleep", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while strobe_agent::capacity::of_this_host()["breakpoint"] == there as u32 {
        assert!(Instant::now() < until, "perf does not begin");
        thread::sleep(Duration::from_millis(20));
    }
    let held: Vec<Ticket> = (0..there - 1)
        .map(|at| agent.runner.ask(doer.watch(0, 60 + at)).unwrap())
        .collect();
    held.iter().for_each(wait_for_start);
    let waiting = agent.runner.ask(doer.watch(0, 30)).unwrap();
    let impatient = agent
        .runner
        .ask(Ask {
            start_within: Duration::from_secs(1),
            ..doer.watch(0, 31)
        })
        .unwrap();
    let ending = end_of(&impatient);
    assert_eq!(ending.how, How::Refused);
    let name = format!("perf (pid {})", perf.id());
    let Standing::Queued { behind, .. } = waiting.standing() else {
        panic!("{:?}", waiting.standing());
    };
    assert!(behind.contains(&name), "{behind:?}");
    perf.kill().unwrap();
    perf.wait().unwrap();
    wait_for_start(&waiting);
    agent.end();
    let (_, events) = of_run(&place, impatient.run());
    assert_eq!(events.len(), 1);
    assert!(
        events[0].detail.starts_with("refused: it waited for 1s"),
        "{}",
        events[0].detail
    );
}

/// Checks that a run over its profiler's limit takes fewer samples, which together still stand for all that was done; and that a watched
/// address, where fewer samples would spare nobody, ends the run. Both say why.
#[test]
fn a_run_over_its_limit_is_thinned_or_ended() {
    let _alone = common::alone();
    if common::skipped("a_run_over_its_limit_is_thinned_or_ended") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("profilers")).unwrap();
    for (name, event, resources) in [
        ("data-watch", "{ breakpoint = {} }", "{ breakpoint = 1 }"),
        (
            "calls",
            "{ tracepoint = { name = \"syscalls:sys_enter_getppid\" } }",
            "{}",
        ),
    ] {
        let text = format!(
            "name = \"{name}\"\nabout = \"Few samples\"\nevent = {event}\nunit = \"counts\"\nrate = {{ period = 1 }}\n\
             duration = \"1s\"\nresources = {resources}\ncost_us = 10\n[limits]\nduration_max = \"1m\"\nsamples_per_second_max = 200\n"
        );
        fs::write(place.path("profilers").join(format!("{name}.toml")), text).unwrap();
    }
    let mut doer = Doer::start(&place);
    let agent = Inside::start_with(&place, |config| config.profilers = place.path("profilers"));
    let watched = agent.runner.ask(doer.watch(0, 60)).unwrap();
    wait_for_start(&watched);
    doer.does("data", 3_000);
    let ending = end_of(&watched);
    assert_eq!(ending.how, How::Stopped);
    assert!(ending.why.starts_with("the address is touched"), "{}", ending.why);
    let calls = agent
        .runner
        .ask(Ask {
            target: Target::Pids(vec![doer.pid()]),
            ..ask("calls", 4)
        })
        .unwrap();
    wait_for_start(&calls);
    for _ in 0..6 {
        doer.does("calls", 5_000);
        thread::sleep(Duration::from_millis(300));
    }
    let ending = end_of(&calls);
    agent.end();
    assert_eq!(ending.how, How::Done);
    assert!(ending.why.starts_with("its period was made"), "{}", ending.why);
    assert!(ending.taken < 20_000, "{ending:?}");
    let (batches, _) = of_run(&place, calls.run());
    let longest = batches.iter().map(|batch| batch.run.period).max().unwrap();
    let cpus = thread::available_parallelism().unwrap().get() as u64;
    let total = total(&batches);
    assert!(total.abs_diff(30_000) <= cpus * longest, "{total}, {longest}");
}

/// Checks that a profiler whose hardware is not here is refused at once and says why; where it is here, this checks nothing.
#[test]
fn counters_that_are_not_here_are_refused_with_the_reason() {
    let _alone = common::alone();
    if common::skipped("counters_that_are_not_here_are_refused_with_the_reason") {
        return;
    }
    if strobe_agent::capacity::of_this_host().contains_key("pmu-counter") {
        println!(
            "skipped: counters_that_are_not_here_are_refused_with_the_reason: this machine has counters"
        );
        return;
    }
    let place = Place::new();
    let agent = Inside::start(&place);
    let refusal = agent.runner.ask(ask("cycles", 1)).unwrap_err();
    assert!(matches!(refusal, Refusal::Unavailable { .. }));
    assert!(refusal.to_string().contains("PMU"), "{refusal}");
    agent.end();
}
