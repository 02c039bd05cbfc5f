//! Consumer groups: commits, fencing, members that come, go, stop and are killed.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use strobe_bus::telemetry::DriveTelemetry;
use strobe_bus::{
    CommitError, Consumer, DriveSettings, Event, Message, Meta, Partition, ResendingProducer, Shutdown,
    WindowLimits, drive,
};

use crate::common::{
    Broker, assert_whole, child, create_topic, first_seen, read_all, settings, skipped, wait_until,
};
use crate::stage::{Driven, StopOnDrop, lag, next_message, produce, stage};
use crate::{PORT, QUICK, broker};

/// Checks that offset and text of a commit come back to whoever takes over, and that seek, pause and lag work.
#[test]
fn a_commit_carries_its_text_to_the_successor() {
    let broker = broker!("a_commit_carries_its_text_to_the_successor");
    let bootstrap = broker.bootstrap();
    let bus = settings(&bootstrap, &QUICK);
    create_topic(&bootstrap, "text", 1, &[]);
    produce(&bus, "text", &["a"], 0..10);
    let partition = Partition {
        topic: "text".into(),
        partition: 0,
    };
    let mut first = Consumer::new(&bus, "text-group", &["text"]).unwrap();
    assert_eq!(next_message(&mut first).offset, 0);
    assert_eq!(first.committed(&partition).unwrap(), None);
    first.commit(&partition, 4, "until 7").unwrap();
    assert_eq!(first.lag().unwrap()[0].messages(), 6);
    first.seek(&partition, 8).unwrap();
    assert_eq!(next_message(&mut first).offset, 8);
    first.pause(std::slice::from_ref(&partition)).unwrap();
    assert!(matches!(
        first.poll(Duration::from_millis(500)).unwrap(),
        Event::Idle
    ));
    first.resume(std::slice::from_ref(&partition)).unwrap();
    assert_eq!(next_message(&mut first).offset, 9);
    first.stop();
    let mut second = Consumer::new(&bus, "text-group", &["text"]).unwrap();
    assert_eq!(next_message(&mut second).offset, 4);
    assert_eq!(second.committed(&partition).unwrap(), Some((4, "until 7".into())));
    second.commit(&partition, 4, "").unwrap();
    assert_eq!(second.committed(&partition).unwrap(), Some((4, String::new())));
}

/// Checks that a consumer that did not poll for too long is fenced: while a successor holds the partition, and also
/// when the successor has come and gone and the group is empty.
#[test]
fn a_commit_after_the_poll_interval_is_fenced() {
    let broker = broker!("a_commit_after_the_poll_interval_is_fenced");
    let bootstrap = broker.bootstrap();
    let bus = settings(&bootstrap, &QUICK);
    let lazy = [
        ("session.timeout.ms", "1500"),
        ("heartbeat.interval.ms", "300"),
        ("max.poll.interval.ms", "1500"),
    ];
    create_topic(&bootstrap, "lazy", 1, &[]);
    produce(&bus, "lazy", &["a"], 0..10);
    let partition = Partition {
        topic: "lazy".into(),
        partition: 0,
    };
    for (successor_stays, position) in [(true, 6), (false, 8)] {
        let mut stopped = Consumer::new(&settings(&bootstrap, &lazy), "lazy-group", &["lazy"]).unwrap();
        let read = next_message(&mut stopped).offset;
        std::thread::sleep(Duration::from_secs(3));
        let mut successor = Consumer::new(&bus, "lazy-group", &["lazy"]).unwrap();
        assert_eq!(
            next_message(&mut successor).offset,
            read,
            "nothing was committed: the successor reads the same"
        );
        successor.commit(&partition, position, "successor").unwrap();
        let successor = successor_stays.then_some(successor);
        let outcome = stopped.commit(&partition, read + 1, "stopped");
        assert!(matches!(outcome, Err(CommitError::Fenced { .. })), "{outcome:?}");
        assert!(!outcome.unwrap_err().is_transient());
        let lost =
            (0..100).any(|_| matches!(stopped.poll(Duration::from_millis(50)).unwrap(), Event::Lost(_)));
        assert!(lost, "the loss is told by a poll");
        assert_eq!(
            stopped.committed(&partition).unwrap(),
            Some((position, "successor".into()))
        );
        drop((successor, stopped));
    }
}

/// The other process of the test below: reads one message, says so, and commits as soon as it is told, without a poll
/// in between.
#[test]
#[ignore = "runs as a process of its own"]
fn child_reads_then_commits() {
    let Ok(bootstrap) = std::env::var("BUS_TEST_BOOTSTRAP") else {
        return;
    };
    let mut consumer = Consumer::new(&settings(&bootstrap, &QUICK), "stop-group", &["stop"]).unwrap();
    let message = next_message(&mut consumer);
    println!("read {}", message.offset);
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let outcome = match consumer.commit(&message.partition, message.offset + 1, "stopped") {
        Ok(()) => "made".to_owned(),
        Err(error) => format!("{error:?}"),
    };
    println!("commit {outcome}");
}

/// Checks that a process that was stopped past its session timeout (SIGSTOP), while another took over, and that
/// commits first thing when it is continued, is fenced.
#[test]
fn a_stopped_process_is_fenced() {
    let broker = broker!("a_stopped_process_is_fenced");
    let bootstrap = broker.bootstrap();
    let bus = settings(&bootstrap, &QUICK);
    create_topic(&bootstrap, "stop", 1, &[]);
    produce(&bus, "stop", &["a"], 0..10);
    let partition = Partition {
        topic: "stop".into(),
        partition: 0,
    };
    for position in [3, 6] {
        let mut child = child(
            "groups::child_reads_then_commits",
            &[("BUS_TEST_BOOTSTRAP", &bootstrap)],
        );
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        assert!(lines.any(|line| line.contains("read ")));
        kill_process(pid, Signal::STOP).unwrap();
        // Its order to commit waits for it: the commit is the first thing it does.
        child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        let mut successor = Consumer::new(&bus, "stop-group", &["stop"]).unwrap();
        next_message(&mut successor);
        successor.commit(&partition, position, "successor").unwrap();
        // The second time the successor has left: the group is empty, and still the commit must not count as made.
        let successor = (position == 3).then_some(successor);
        kill_process(pid, Signal::CONT).unwrap();
        let verdict = lines.find(|line| line.contains("commit ")).unwrap();
        assert!(verdict.contains("Fenced"), "{verdict}");
        assert!(child.wait().unwrap().success());
        drop(successor);
    }
}

/// Checks that consumers that join and leave in order make no repeat and no loss.
#[test]
fn members_come_and_go_without_repeats() {
    let broker = broker!("members_come_and_go_without_repeats");
    let bootstrap = broker.bootstrap();
    let bus = settings(&bootstrap, &QUICK);
    create_topic(&bootstrap, "go", 4, &[]);
    create_topic(&bootstrap, "go.out", 4, &[]);
    let hosts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let first = Driven::start(&bus, "go-group", "go", "go.out");
    let feed = {
        let bus = bus.clone();
        std::thread::spawn(move || {
            for round in 0..40 {
                produce(&bus, "go", &hosts, round * 25..round * 25 + 25);
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    };
    wait_until("the first reads", 30, || first.telemetry.messages_in.get() > 500);
    let second = Driven::start(&bus, "go-group", "go", "go.out");
    wait_until("the second reads", 30, || {
        second.telemetry.messages_in.get() > 200
    });
    first.stop();
    feed.join().unwrap();
    wait_until("everything is committed", 60, || lag(&bus, "go-group", "go") == 0);
    assert_eq!(second.telemetry.commits_fenced.get(), 0);
    second.stop();
    let (seen, repeats) = first_seen(&read_all(&bootstrap, "go.out"));
    assert_whole(&seen, &hosts, 1_000);
    assert_eq!(repeats, 0);
}

/// The other process of the test below: drives the stage and never commits, until it is killed.
#[test]
#[ignore = "runs as a process of its own"]
fn child_drives_without_commit() {
    let Ok(bootstrap) = std::env::var("BUS_TEST_BOOTSTRAP") else {
        return;
    };
    let bus = settings(&bootstrap, &QUICK);
    let consumer = Consumer::new(&bus, "killed-group", &["killed"]).unwrap();
    let producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    // The first commit finds nothing to do; the second would come in an hour.
    let driven = DriveSettings {
        commit_every: Duration::from_secs(3_600),
        ..DriveSettings::new("test")
    };
    let telemetry = DriveTelemetry::default();
    drive(
        &driven,
        consumer,
        producer,
        &telemetry,
        &Shutdown::new(),
        stage("killed.out"),
    )
    .unwrap();
}

/// Checks that a process killed after the broker took its output and before its commit repeats, and loses nothing.
#[test]
fn killed_between_acknowledgement_and_commit_repeats() {
    let broker = broker!("killed_between_acknowledgement_and_commit_repeats");
    let bootstrap = broker.bootstrap();
    let bus = settings(&bootstrap, &QUICK);
    create_topic(&bootstrap, "killed", 2, &[]);
    create_topic(&bootstrap, "killed.out", 2, &[]);
    let hosts = ["a", "b", "c"];
    produce(&bus, "killed", &hosts, 0..100);
    let mut child = child(
        "groups::child_drives_without_commit",
        &[("BUS_TEST_BOOTSTRAP", &bootstrap)],
    );
    wait_until("the output is written", 60, || {
        read_all(&bootstrap, "killed.out").len() == 300
    });
    assert_eq!(lag(&bus, "killed-group", "killed"), 300, "nothing was committed");
    child.kill().unwrap();
    child.wait().unwrap();
    produce(&bus, "killed", &hosts, 100..200);
    let driven = Driven::start(&bus, "killed-group", "killed", "killed.out");
    wait_until("everything is committed", 60, || {
        lag(&bus, "killed-group", "killed") == 0
    });
    driven.stop();
    let (seen, repeats) = first_seen(&read_all(&bootstrap, "killed.out"));
    assert_whole(&seen, &hosts, 200);
    assert_eq!(repeats, 300);
}

/// Checks that a slow stage and a small window pause reading, keep the consumer in its group past the poll interval,
/// and never hold more than the window.
#[test]
fn a_slow_stage_is_not_fenced() {
    let broker = broker!("a_slow_stage_is_not_fenced");
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "slow", 2, &[]);
    create_topic(&bootstrap, "slow.out", 2, &[]);
    let lazy = [
        ("session.timeout.ms", "1500"),
        ("heartbeat.interval.ms", "300"),
        ("max.poll.interval.ms", "1500"),
    ];
    let bus = settings(&bootstrap, &lazy);
    produce(&bus, "slow", &["a", "b"], 0..30);
    let driven = DriveSettings {
        window_messages: 8,
        ..DriveSettings::new("test")
    };
    let (shutdown, telemetry, seen_at_once) = (
        Shutdown::new(),
        Arc::<DriveTelemetry>::default(),
        AtomicU64::new(0),
    );
    let consumer = Consumer::new(&bus, "slow-group", &["slow"]).unwrap();
    let producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    let mut inner = stage("slow.out");
    let mut calls = HashMap::<String, u64>::new();
    std::thread::scope(|scope| {
        let handle = scope.spawn(|| {
            drive(
                &driven,
                consumer,
                producer,
                &telemetry,
                &shutdown,
                |input: &Message| {
                    let meta = Meta::from_headers(&input.headers).unwrap();
                    *calls.entry(meta.identity.host).or_default() += 1;
                    // Longer than the poll interval, once; then slow.
                    let nap = if meta.identity.sequence == 3 { 2_500 } else { 20 };
                    std::thread::sleep(Duration::from_millis(nap));
                    let under_way = telemetry.messages_in.get() - telemetry.messages_out.get();
                    seen_at_once.fetch_max(under_way, Ordering::Relaxed);
                    inner(input)
                },
            )
        });
        // A failed wait must not leave the scope waiting for the loop.
        let stop = StopOnDrop(&shutdown);
        wait_until("everything is committed", 60, || {
            lag(&bus, "slow-group", "slow") == 0
        });
        drop(stop);
        handle.join().unwrap().unwrap();
    });
    assert_whole(&first_seen(&read_all(&bootstrap, "slow.out")).0, &["a", "b"], 30);
    assert_eq!(
        telemetry.assignments_lost.get() + telemetry.commits_fenced.get(),
        0
    );
    assert_eq!(calls.values().sum::<u64>(), 60, "nothing was done twice");
    assert!(telemetry.pauses.get() >= 3);
    assert!(seen_at_once.load(Ordering::Relaxed) <= 8, "{seen_at_once:?}");
}
