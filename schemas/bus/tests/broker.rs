//! Delivery against a real broker: fencing, dead letters, rebalances, kills.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{
    Broker, Record, assert_whole, child, create_topic, first_seen, message, noise, read_all, skipped,
};
use common::{settings, wait_until};
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rustix::process::{Pid, Signal, kill_process};
use strobe_bus::dead_letter::{self, Selection};
use strobe_bus::lag::group_lag;
use strobe_bus::telemetry::DriveTelemetry;
use strobe_bus::{
    BusSettings, CommitError, Compacted, Complaint, Consumer, DeadReason, DriveSettings, Event, Message,
    Meta, Outcome, Outgoing, Partition, ResendingProducer, Shutdown, StageResult, TopicAction, WindowLimits,
    admin, drive,
};

const PORT: u16 = 18_310;
const QUICK: [(&str, &str); 3] = [
    ("session.timeout.ms", "2000"),
    ("heartbeat.interval.ms", "300"),
    ("max.poll.interval.ms", "300000"),
];

macro_rules! broker {
    ($test:literal) => {
        match Broker::shared(PORT) {
            Ok(broker) => broker,
            Err(reason) => return skipped($test, &reason),
        }
    };
}

fn produce(bus: &BusSettings, topic: &str, hosts: &[&str], sequences: std::ops::Range<u64>) {
    let mut producer = ResendingProducer::new(bus, WindowLimits::default()).unwrap();
    let mut acknowledged = 0;
    let total = (sequences.end - sequences.start) as usize * hosts.len();
    for sequence in sequences {
        for host in hosts {
            let mut outgoing = message(topic, host, sequence);
            while let Err(strobe_bus::WindowFull(back)) = producer.push(sequence, outgoing) {
                outgoing = back;
                acknowledged += producer.poll(Duration::from_millis(100)).len();
            }
        }
    }
    acknowledged += producer.flush(Duration::from_secs(60)).len();
    assert_eq!(acknowledged, total);
}

/// What a stage of the real pipeline does, in small: one message in, one out, same identity; what is not framed like
/// ours is put aside.
fn stage(output: &str) -> impl FnMut(&Message) -> StageResult + Send + use<> {
    let output: Arc<str> = output.into();
    move |input| {
        let complain = |reason, message: &str| {
            StageResult::DeadLetter(Complaint {
                reason,
                stage: "test",
                class: "broker::stage",
                exception: "Framing",
                message: message.into(),
            })
        };
        match input.bytes() {
            [0, _, _, ..] => StageResult::Output(vec![Outgoing {
                topic: Arc::clone(&output),
                key: input.key.clone(),
                headers: input.headers.clone(),
                payload: input.payload.clone(),
            }]),
            [0, ..] => complain(DeadReason::Truncated, "ends early"),
            b"panic" => panic!("a stage that does not expect this"),
            _ => complain(DeadReason::Foreign, "no magic byte"),
        }
    }
}

/// Drives the stage in a thread of its own until told to stop.
struct Driven {
    shutdown: Shutdown,
    telemetry: Arc<DriveTelemetry>,
    thread: std::thread::JoinHandle<Result<(), strobe_bus::Error>>,
}

impl Driven {
    fn start(bus: &BusSettings, group: &str, input: &str, output: &str) -> Self {
        let (shutdown, telemetry) = (Shutdown::new(), Arc::<DriveTelemetry>::default());
        let consumer = Consumer::new(bus, group, &[input]).unwrap();
        let producer = ResendingProducer::new(bus, WindowLimits::default()).unwrap();
        let (token, counters, stage) = (shutdown.clone(), Arc::clone(&telemetry), stage(output));
        let thread = std::thread::spawn(move || {
            drive(
                &DriveSettings::new("test"),
                consumer,
                producer,
                &counters,
                &token,
                stage,
            )
        });
        Self {
            shutdown,
            telemetry,
            thread,
        }
    }

    fn stop(self) {
        self.shutdown.request();
        self.thread.join().unwrap().unwrap();
    }
}

struct StopOnDrop<'a>(&'a Shutdown);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.request();
    }
}

fn lag(bus: &BusSettings, group: &str, topic: &str) -> u64 {
    let lags = group_lag(bus, group, topic, Duration::from_secs(10)).unwrap();
    lags.iter().map(strobe_bus::consumer::Lag::messages).sum()
}

/// Polls until a message or the end of the bound; assignments on the way are noted.
fn next_message(consumer: &mut Consumer) -> Message {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if let Event::Message(message) = consumer.poll(Duration::from_millis(100)).unwrap() {
            return message;
        }
    }
    panic!("no message within 30 s");
}

/// Checks that topics are created as specified, that a second run changes nothing, that a foreign setting survives an
/// alteration, and that the partitions of a keyed topic stay.
#[test]
fn topics_apply_is_idempotent_and_keeps_partitions() {
    let broker = broker!("topics_apply_is_idempotent_and_keeps_partitions");
    let mut bus = strobe_bus::Bus {
        bootstrap: broker.bootstrap(),
        topic_prefix: "apply.".into(),
        ..Default::default()
    };
    let run = |bus: &strobe_bus::Bus, dry: bool| admin::apply(&bus.clone().validate().unwrap(), dry).unwrap();
    let planned = run(&bus, true);
    assert_eq!(planned.len(), 15);
    assert!(
        planned
            .iter()
            .all(|change| matches!(change.action, TopicAction::Created { .. })),
        "{planned:?}"
    );
    assert_eq!(run(&bus, false), planned, "the dry run created nothing");
    assert!(
        run(&bus, false)
            .iter()
            .all(|change| change.action == TopicAction::Unchanged)
    );

    let admin: rdkafka::admin::AdminClient<rdkafka::client::DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .create()
        .unwrap();
    let topic = rdkafka::admin::ResourceSpecifier::Topic("apply.samples");
    let foreign = rdkafka::admin::AlterConfig::new(topic)
        .set("retention.ms", "5000")
        .set("segment.ms", "3600000");
    futures::executor::block_on(admin.alter_configs([&foreign], &Default::default())).unwrap()[0]
        .as_ref()
        .unwrap();
    let value = |name: &str| {
        let topic = rdkafka::admin::ResourceSpecifier::Topic("apply.samples");
        let described = futures::executor::block_on(admin.describe_configs(&[topic], &Default::default()));
        described
            .unwrap()
            .remove(0)
            .unwrap()
            .get(name)
            .unwrap()
            .value
            .clone()
            .unwrap()
    };
    wait_until("the foreign settings show", 20, || {
        value("retention.ms") == "5000"
    });
    bus.partitions = 3;
    let changes = run(&bus, false);
    let of = |topic: &str| -> Vec<&TopicAction> {
        changes
            .iter()
            .filter(|change| change.topic == topic)
            .map(|change| &change.action)
            .collect()
    };
    assert!(of("apply.samples").into_iter().any(|action| matches!(action, TopicAction::Altered(altered)
        if altered.iter().any(|(name, before, after)| name == "retention.ms" && before == "5000" && after == "259200000"))));
    for topic in ["apply.stacks.raw", "apply.samples", "apply.runs"] {
        assert!(
            of(topic).into_iter().any(|action| *action
                == TopicAction::PartitionsKept {
                    have: 8,
                    configured: 3
                }),
            "{changes:?}"
        );
    }
    assert_eq!(value("segment.ms"), "3600000", "somebody else's setting stays");
    assert_eq!(
        (value("max.message.bytes"), value("retention.ms")),
        ("4194304".into(), "259200000".into())
    );
}

/// Checks that truncated, foreign, oversized and panicking messages reach the dead letters with every header, that the
/// partition goes on, and that a replay puts back the very same bytes, key and headers.
#[test]
fn bad_messages_go_aside_and_come_back_byte_equal() {
    let broker = broker!("bad_messages_go_aside_and_come_back_byte_equal");
    let bootstrap = broker.bootstrap();
    let bus = settings(&bootstrap, &QUICK);
    let large = [("max.message.bytes", "4194304")];
    create_topic(&bootstrap, "bad", 1, &large);
    create_topic(&bootstrap, "bad.out", 1, &large);
    create_topic(&bootstrap, "bad.dlq", 1, &[("max.message.bytes", "4259840")]);
    let plain: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &bootstrap)
        .set("message.max.bytes", "8000000")
        .create()
        .unwrap();
    let oversized = [vec![0], noise(1, 3 << 20)].concat();
    let bad: [(&str, Vec<u8>, &str); 5] = [
        ("truncated", vec![0], "truncated"),
        ("empty", vec![], "foreign"),
        ("foreign", b"{\"json\":1}".to_vec(), "foreign"),
        ("oversized", oversized, "oversized"),
        ("panic", b"panic".to_vec(), "panicked"),
    ];
    produce(&bus, "bad", &["a"], 0..5);
    for (key, payload, _) in &bad {
        let headers = OwnedHeaders::new()
            .insert(Header {
                key: "strobe-samples",
                value: Some("77"),
            })
            .insert(Header {
                key: "theirs",
                value: Some(&[0xff_u8, 0][..]),
            })
            .insert(Header::<&[u8]> {
                key: "none",
                value: None,
            });
        let record = BaseRecord::<str, Vec<u8>>::to("bad")
            .key(*key)
            .payload(payload)
            .headers(headers);
        plain.send(record).map_err(|(error, _)| error).unwrap();
    }
    plain.flush(Duration::from_secs(30)).unwrap();
    produce(&bus, "bad", &["a"], 5..10);

    let driven = Driven::start(&bus, "bad-group", "bad", "bad.out");
    wait_until("everything is committed", 60, || {
        lag(&bus, "bad-group", "bad") == 0
    });
    assert_eq!(
        (
            driven.telemetry.dead_letters.get(),
            driven.telemetry.dead_letter_samples.get()
        ),
        (5, 5 * 77)
    );
    assert_eq!(driven.telemetry.messages_out.get(), 10);
    driven.stop();
    assert_whole(&first_seen(&read_all(&bootstrap, "bad.out")).0, &["a"], 10);

    let sources = read_all(&bootstrap, "bad");
    let letters = read_all(&bootstrap, "bad.dlq");
    assert_eq!(letters.len(), bad.len());
    let by_key = |records: &[Record], key: &str| -> Vec<Record> {
        records
            .iter()
            .filter(|record| record.key.as_deref() == Some(key.as_bytes()))
            .cloned()
            .collect()
    };
    for (key, payload, reason) in &bad {
        let (source, letter) = (&by_key(&sources, key)[0], &by_key(&letters, key)[0]);
        assert_eq!(letter.payload.as_ref().unwrap(), payload);
        assert_eq!(
            letter.headers[..3],
            source.headers[..],
            "the original headers stay, in front"
        );
        let header = |name: &str| letter.header(name).unwrap();
        assert_eq!(header("__connect.errors.topic"), "bad");
        assert_eq!(header("__connect.errors.partition"), source.partition.to_string());
        assert_eq!(header("__connect.errors.offset"), source.offset.to_string());
        for name in ["stage", "class.name", "exception.class.name", "exception.message"] {
            assert!(
                !header(&format!("__connect.errors.{name}")).is_empty(),
                "{key}: {name}"
            );
        }
        assert_eq!(header("strobe-dlq-reason"), *reason, "{key}");
    }

    let items = dead_letter::list(&bus, "bad", 100).unwrap();
    assert_eq!(items.len(), 5);
    assert!(
        items
            .iter()
            .all(|item| item.samples == Some(77) && item.meta.is_none())
    );
    let item = |reason: &str| items.iter().find(|item| item.reason == reason).unwrap();
    for key in ["truncated", "oversized", "panicked"] {
        let source = &by_key(&sources, if key == "panicked" { "panic" } else { key })[0];
        assert_eq!(item(key).source, Some(("bad".into(), 0, source.offset)));
    }
    let (shown, letter) = dead_letter::show(&bus, "bad", item("oversized").place)
        .unwrap()
        .unwrap();
    assert_eq!(
        (shown.reason.as_str(), letter.bytes()),
        ("oversized", &bad[3].1[..])
    );

    let some = Selection::Places(BTreeSet::from([item("truncated").place, item("oversized").place]));
    assert_eq!(dead_letter::replay(&bus, "bad", &some).unwrap().count, 2);
    let replayed = read_all(&bootstrap, "bad");
    assert_eq!(replayed.len(), sources.len() + 2);
    for key in ["truncated", "oversized"] {
        let [first, again] = &by_key(&replayed, key)[..] else {
            panic!("{key} is not there twice")
        };
        assert_eq!(
            (&first.payload, &first.headers),
            (&again.payload, &again.headers),
            "{key}"
        );
    }
    assert_eq!(
        dead_letter::replay(&bus, "bad", &Selection::All).unwrap().count,
        5
    );
}

/// Checks that a foreign header whose name is not UTF-8 does not take a consumer down. `kcat` can make one.
#[test]
fn a_header_that_is_not_text_is_left_out_and_counted() {
    let broker = broker!("a_header_that_is_not_text_is_left_out_and_counted");
    use std::os::unix::ffi::OsStrExt as _;
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "strange", 1, &[]);
    let header = std::ffi::OsStr::from_bytes(b"na\xffme=1");
    let kcat = std::process::Command::new("kcat")
        .args(["-P", "-b", &bootstrap, "-t", "strange", "-H"])
        .arg(header)
        .args(["-H", "good=2"])
        .stdin(std::process::Stdio::piped())
        .spawn();
    let Ok(mut kcat) = kcat else {
        return skipped(
            "a_header_that_is_not_text_is_left_out_and_counted",
            "kcat is not installed",
        );
    };
    kcat.stdin.take().unwrap().write_all(b"value").unwrap();
    assert!(kcat.wait().unwrap().success());
    let mut consumer = Consumer::new(&settings(&bootstrap, &QUICK), "strange-group", &["strange"]).unwrap();
    let message = next_message(&mut consumer);
    assert_eq!(
        (message.bytes(), message.headers.unreadable()),
        (&b"value"[..], 1)
    );
    assert_eq!(message.headers.text("good"), Some("2"));
}

/// Checks that a table that is to catch up holds, each time, everything that the broker had acknowledged before, of every partition:
/// whoever takes over goes on from the newest state, not from one that was newest a moment ago.
#[test]
fn a_table_catches_up_with_all_that_was_acknowledged() {
    let broker = broker!("a_table_catches_up_with_all_that_was_acknowledged");
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "table", 4, &[("cleanup.policy", "compact")]);
    let bus = settings(&bootstrap, &[]).prompt();
    let hosts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    produce(&bus, "table", &hosts, 0..1);
    let mut table = Compacted::open(&bus, "table").unwrap();
    let mut newest = HashMap::new();
    for round in 0..24 {
        produce(&bus, "table", &hosts[(round % 8) as usize..], round..round + 1);
        let take = |message: Message| {
            newest.insert(message.key.unwrap(), message.payload.unwrap());
        };
        table.catch_up_now(take).unwrap();
        for host in &hosts[(round % 8) as usize..] {
            let value = newest[host.as_bytes()].as_ref();
            assert_eq!(value, format!("\0{host} {round}").as_bytes(), "round {round}");
        }
    }
}

/// Checks that a broker's refusal of one message, by the topic's own limit, holds up nobody and reorders nothing.
#[test]
fn the_broker_refuses_one_message_and_takes_the_others() {
    let broker = broker!("the_broker_refuses_one_message_and_takes_the_others");
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "small", 1, &[("max.message.bytes", "20000")]);
    let bus = settings(&bootstrap, &[]);
    let mut producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    for sequence in 0..30 {
        let mut outgoing = message("small", "a", sequence);
        // Each fits alone; all thirty in one batch would not. Two never fit.
        let bytes = if sequence == 7 || sequence == 20 {
            50_000
        } else {
            5_000
        };
        outgoing.payload = Some(noise(sequence + 1, bytes).into());
        producer.push(sequence, outgoing).unwrap();
    }
    let outcomes = producer.flush(Duration::from_secs(60));
    let refused: Vec<_> = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Refused { .. }))
        .map(Outcome::opaque)
        .collect();
    assert_eq!(refused, [7, 20]);
    assert_eq!(
        outcomes.iter().map(Outcome::opaque).collect::<Vec<_>>(),
        (0..30).collect::<Vec<_>>()
    );
    let (hosts, _) = first_seen(&read_all(&bootstrap, "small"));
    let mut seen = hosts["a"].clone();
    seen.sort_unstable();
    assert_eq!(
        seen,
        (0..30)
            .filter(|sequence| ![7, 20].contains(sequence))
            .collect::<Vec<_>>()
    );
}

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
        let mut child = child("child_reads_then_commits", &[("BUS_TEST_BOOTSTRAP", &bootstrap)]);
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
        "child_drives_without_commit",
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
