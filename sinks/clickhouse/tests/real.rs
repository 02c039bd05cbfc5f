//! The sink with a real broker and a real engine: whatever dies in between, every sample is stored exactly once.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod support;

use strobe_bus::{Meta, Topic, dead_letter};
use strobe_event::{Identity, Locations, Part, Reason, StackOutcome, split};

use support::proxy::{self, Fate};
use support::{Rig, skipped, wait_until};

macro_rules! rig {
    ($test:expr, $partitions:expr) => {
        match Rig::new(concat!("sink_", $test), $partitions) {
            Ok(rig) => rig,
            Err(reason) => return skipped($test, &reason),
        }
    };
}

/// Not a test: the process that the tests start and kill.
#[test]
#[ignore = "started by the tests"]
fn a_sink_as_a_process() {
    support::run_as_process();
}

/// Checks a kill at every step of the protocol, at its first and at a later passage, with other ranges afterwards.
#[test]
fn a_kill_at_any_step_neither_loses_nor_doubles() {
    let mut rig = rig!("kills", 2);
    let points = [
        "sink.pending_committed",
        "sink.after_insert.frames",
        "sink.after_insert.stacks",
        "sink.after_insert.totals_hourly",
        "sink.after_insert.batches",
        "sink.after_insert.samples",
        "sink.before_commit",
    ];
    for (round, point) in points.into_iter().enumerate() {
        rig.produce(&["a", "b", "c"], 6);
        for passage in [1, 3] {
            let at = format!("{point}:{passage}");
            // The next owner cuts its ranges otherwise.
            let size = [700, 1_300, 5_000][(round + passage) % 3].to_string();
            let sink = rig.sink(&[("STROBE_FAIL_AT", &at), ("SINK_RANGE_SAMPLES", &size)]);
            if passage == 1 {
                assert!(sink.died(60), "{at} was not passed");
            } else {
                // More comes while it works, so that the point is passed often enough.
                rig.produce(&["a", "b", "c"], 3);
                sink.died(20);
            }
        }
    }
    let sink = rig.sink(&[]);
    rig.assert_exactly_once();
    sink.stop();
}

/// Checks that batches which come again, whole, in parts or in other parts than before, are stored once.
#[test]
fn repeats_are_stored_once_however_they_are_split() {
    let mut rig = rig!("repeats", 2);
    let sink = rig.sink(&[]);
    for round in 0..12_u32 {
        let (meta, batch) = rig.batch("a");
        rig.expect(&meta, &batch);
        let part = |rig: &mut Rig, of: u32, index: u32| {
            let piece = &split::split(&batch, of as usize)[index as usize];
            let number = Part { of, index }.number();
            let identity = Identity {
                part: number,
                ..meta.identity.clone()
            };
            rig.send(
                &Meta {
                    identity,
                    samples: piece.raw.samples.len() as u64,
                    ..meta.clone()
                },
                piece,
            );
        };
        if round % 3 == 0 {
            rig.send(&meta, &batch);
        }
        part(&mut rig, 2, round % 2);
        part(&mut rig, 4, (round + 1) % 4);
        if round % 2 == 0 {
            rig.flush();
            wait_until("something is stored", 60, || rig.stored() > 0);
        }
        rig.send(&meta, &batch);
        part(&mut rig, 4, 3);
    }
    rig.flush();
    rig.assert_exactly_once();
    sink.stop();
}

/// Checks that sinks which join, leave and die share the partitions without loss or repeat.
#[test]
fn sinks_join_leave_and_die() {
    let mut rig = rig!("group", 4);
    let hosts = ["a", "b", "c", "d", "e", "f"];
    let first = rig.sink(&[]);
    rig.produce(&hosts, 10);
    wait_until("the first works", 60, || rig.stored() > 0);
    let second = rig.sink(&[]);
    rig.produce(&hosts, 20);
    std::thread::sleep(std::time::Duration::from_secs(3));
    rig.produce(&hosts, 20);
    second.stop();
    let third = rig.sink(&[]);
    rig.produce(&hosts, 20);
    std::thread::sleep(std::time::Duration::from_secs(2));
    first.kill();
    rig.produce(&hosts, 10);
    rig.assert_exactly_once();
    third.stop();
}

/// Checks that a sink which is stopped past its session timeout, anywhere in a range, does no harm when it goes on.
#[test]
fn a_sink_that_slept_through_its_session_does_no_harm() {
    let mut rig = rig!("sleeper", 1);
    let sleeper = rig.sink(&[("SINK_RANGE_SAMPLES", "1000")]);
    rig.produce(&["a", "b"], 3);
    wait_until("it works", 60, || rig.stored() > 0);
    for pause in [0, 37, 83] {
        rig.produce(&["a", "b"], 40);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        sleeper.signal("-STOP");
        let successor = rig.sink(&[("SINK_RANGE_SAMPLES", "2500")]);
        rig.assert_exactly_once();
        sleeper.signal("-CONT");
        rig.produce(&["a", "b"], 10);
        rig.assert_exactly_once();
        successor.stop();
        rig.produce(&["a", "b"], 5);
        rig.assert_exactly_once();
    }
    sleeper.stop();
}

/// Checks that the engine may die in the middle of an insert, stay away, and come back.
#[test]
fn the_engine_dies_and_comes_back() {
    let mut rig = rig!("engine", 2);
    let sink = rig.sink(&[("SINK_RANGE_SAMPLES", "1000")]);
    rig.produce(&["a", "b"], 5);
    wait_until("it works", 60, || rig.stored() > 0);
    for _ in 0..3 {
        rig.produce(&["a", "b"], 30);
        std::thread::sleep(std::time::Duration::from_millis(150));
        rig.stack.engine("kill");
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        rig.stack.engine("start");
    }
    rig.assert_exactly_once();
    sink.stop();
}

/// Checks that what ClickHouse refuses is found among others and put aside, and that nothing else suffers: neither the
/// neighbours nor the totals, which had been inserted before the refusal. The refusal is a proxy's: the embedded engine
/// says of rows that violate a constraint that they are stored.
#[test]
fn a_refused_batch_is_put_aside_alone() {
    let mut rig = rig!("refused", 1);
    let is_insert = |head: &str| head.contains("INSERT") && head.contains("samples");
    let port = proxy::start(move |head, body| {
        match is_insert(head) && body.windows(7).any(|seven| seven == b"unlucky") {
            true => Fate::Refused,
            false => Fate::Answered,
        }
    });
    let port = port.to_string();
    rig.produce(&["a"], 3);
    let (bad, batch) = rig.batch("unlucky");
    rig.send(&bad, &batch);
    rig.produce(&["a", "b"], 4);
    let variables = [
        ("SINK_STORE_PORT", port.as_str()),
        ("SINK_RANGE_SAMPLES", "50000"),
    ];
    for point in ["sink.undo_committed", "sink.after_undo"] {
        let sink = rig.sink(&[variables[0], variables[1], ("STROBE_FAIL_AT", point)]);
        assert!(sink.died(60), "{point}");
    }
    let sink = rig.sink(&variables);
    wait_until("it is put aside", 60, || {
        dead_letter::list(&rig.bus, &rig.bus.topic(Topic::Samples), 10)
            .is_ok_and(|letters| !letters.is_empty())
    });
    wait_until("the rest is stored", 60, || rig.stored() == 11 * 600);
    // Its row among the batches came before the refusal.
    rig.execute("DELETE FROM batches WHERE host = 'unlucky'");
    rig.assert_exactly_once();
    let letters = dead_letter::list(&rig.bus, &rig.bus.topic(Topic::Samples), 10).unwrap();
    let seen: Vec<_> = letters
        .iter()
        .map(|letter| (letter.reason.as_str(), letter.meta.clone()))
        .collect();
    assert_eq!(seen, [("rejected", Some(bad))]);
    sink.stop();
}

/// Checks that inserts which were carried out, but whose answer was lost, are repeated without doubling.
#[test]
fn an_answer_that_is_lost_doubles_nothing() {
    let mut rig = rig!("unheard", 2);
    let inserts = std::sync::atomic::AtomicU64::new(0);
    let port = proxy::start(move |head, _| {
        let is_unheard = head.contains("INSERT")
            && inserts
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                .is_multiple_of(3);
        if is_unheard { Fate::Unheard } else { Fate::Answered }
    });
    rig.produce(&["a", "b", "c"], 15);
    let sink = rig.sink(&[("SINK_STORE_PORT", &port.to_string())]);
    rig.assert_exactly_once();
    sink.stop();
}

/// Checks that each kind of message that cannot be stored is put aside with its reason, and the partition goes on.
#[test]
fn what_cannot_be_stored_is_put_aside_with_its_reason() {
    let mut rig = rig!("letters", 1);
    let sink = rig.sink(&[]);
    rig.produce(&["a"], 2);
    let (meta, batch) = rig.batch("bad");
    let whole = strobe_event::codec::encode_framed(&batch).unwrap();
    for topic in [Topic::Samples, Topic::Runs] {
        rig.send_bytes(topic, &meta, b"hello".to_vec());
        rig.send_bytes(topic, &meta, vec![0; (1 << 20) + 1]);
    }
    rig.send_bytes(Topic::Samples, &meta, whole[..whole.len() / 2].to_vec());
    rig.send(
        &Meta {
            samples: meta.samples + 1,
            ..meta.clone()
        },
        &batch,
    );
    for days in [-31_i64, 1] {
        let mut shifted = batch.clone();
        shifted.raw.start_us = shifted.raw.start_us.wrapping_add_signed(days * 86_400_000_000);
        shifted.raw.end_us = shifted.raw.start_us + 1_000_000;
        rig.send(&meta, &shifted);
    }
    rig.produce(&["a"], 2);
    rig.assert_exactly_once();
    let reasons = |topic| {
        let letters = dead_letter::list(&rig.bus, &rig.bus.topic(topic), 100).unwrap();
        let mut reasons: Vec<_> = letters.into_iter().map(|letter| letter.reason).collect();
        reasons.sort();
        reasons
    };
    assert_eq!(
        reasons(Topic::Samples),
        [
            "foreign",
            "future",
            "oversized",
            "too_old",
            "truncated",
            "undecodable"
        ]
    );
    assert_eq!(reasons(Topic::Runs), ["foreign", "oversized"]);
    sink.stop();
}

/// Checks that an event of a run arrives as it was sent, once however often it comes.
#[test]
fn events_of_runs_are_stored() {
    let mut rig = rig!("events", 1);
    let sink = rig.sink(&[]);
    let (meta, batch) = rig.batch("a");
    let event = Meta {
        samples: 0,
        ..meta.clone()
    };
    (0..3).for_each(|_| rig.send_event(&event, &batch));
    rig.flush();
    rig.assert_exactly_once();
    let as_sent = "SELECT count() FROM (SELECT * FROM runs FINAL) WHERE host = 'a' AND state = 'finished' AND idle = 3 \
         AND detail = 'as planned' AND drops = map('ring_full', 5) AND taken = spooled + 5 AND batches = 1";
    assert_eq!(rig.number(as_sent), 1);
    assert_eq!(rig.number("SELECT count() FROM (SELECT * FROM runs FINAL)"), 1);
    sink.stop();
}

/// Checks that what a processor says that found no names replaces neither names nor tags that are made of more, however much
/// later it comes, and that what is newer and made of as many does.
#[test]
fn fewer_names_replace_nothing() {
    let mut rig = rig!("fewer_names", 1);
    let sink = rig.sink(&[]);
    let (_, first) = rig.batch("a");
    let mut send = |batch: &strobe_event::SamplesBatch| {
        let (meta, _) = rig.batch("a");
        let meta = Meta {
            samples: batch.raw.samples.len() as u64,
            ..meta
        };
        rig.expect(&meta, batch);
        rig.send(&meta, batch);
        rig.flush();
        rig.assert_exactly_once();
        let count = |what: &str| rig.number(what);
        (
            count("SELECT count() FROM (SELECT * FROM frames FINAL) WHERE notEmpty(functions)"),
            count("SELECT count() FROM (SELECT * FROM tags FINAL) WHERE has(tags, 'of-fewer')"),
            count("SELECT count() FROM (SELECT * FROM tags FINAL) WHERE has(tags, 'of-as-many')"),
            count("SELECT count() FROM (SELECT * FROM tags FINAL)"),
        )
    };
    let (named, fewer, many, pairs) = send(&first);
    assert!(named > 0 && pairs > 0 && fewer == 0 && many == 0);

    let tagged = |tag: &str, later_s: u64| {
        let mut batch = first.clone();
        batch.generation += later_s * 1_000_000;
        batch.tags.text.push(tag.to_owned());
        let tag = (batch.tags.text.len() - 1) as u32;
        for outcome in &mut batch.tags.outcomes {
            *outcome = StackOutcome {
                tags: vec![tag],
                ..StackOutcome::default()
            };
        }
        batch
    };
    let mut without_names = tagged("of-fewer", 3_600);
    let frames = without_names.raw.frames.len();
    without_names.locations = Locations {
        count: vec![0; frames],
        reason: vec![Reason::MissingBinary as u8; frames],
        text: vec![String::new()],
        ..Locations::default()
    };
    assert_eq!(send(&without_names), (named, 0, 0, pairs));
    assert_eq!(send(&tagged("of-as-many", 7_200)), (named, 0, pairs, pairs));
    // Neither does it once more, now that its own content was written before.
    without_names.generation += 7_200 * 1_000_000;
    assert_eq!(send(&without_names), (named, 0, pairs, pairs));
    sink.stop();
}
