//! Delivery against a real broker: topics, tables, dead letters; who is fenced and what repeats is in `groups`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

#[path = "../common/mod.rs"]
mod common;
mod groups;
mod stage;

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::time::Duration;

use common::{
    Broker, Record, assert_whole, create_topic, first_seen, message, noise, read_all, settings, skipped,
    wait_until,
};
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use stage::{Driven, lag, next_message, produce};
use strobe_bus::dead_letter::{self, Selection};
use strobe_bus::{
    Compacted, Consumer, Message, Outcome, ResendingProducer, TopicAction, WindowLimits, admin,
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
use broker;

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
    assert_eq!(planned.len(), 17);
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
