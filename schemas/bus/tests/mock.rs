//! Faults that librdkafka's own mock cluster can play: no Java, no ports, a few seconds.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

mod common;

use std::time::{Duration, Instant};

use common::{assert_whole, first_seen, message, read_all, settings};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use strobe_bus::{Error, Outcome, Producer, ResendingProducer, WindowFull, WindowLimits};

const TOPIC: &str = "t";

fn push(producer: &mut ResendingProducer, opaque: u64, mut outgoing: strobe_bus::Outgoing) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while let Err(WindowFull(back)) = producer.push(opaque, outgoing) {
        outgoing = back;
        outcomes.extend(producer.poll(Duration::from_millis(100)));
    }
    outcomes
}

/// Checks that while one of three brokers is away for two seconds nothing is lost, nothing overtakes, and the
/// acknowledgements come in the order of the pushes.
#[test]
fn a_broker_away_loses_nothing() {
    let cluster = MockCluster::new(3).unwrap();
    cluster.create_topic(TOPIC, 4, 3).unwrap();
    let bus = settings(
        &cluster.bootstrap_servers(),
        &[("linger.ms", "5"), ("batch.size", "10000")],
    );
    let limits = WindowLimits {
        bytes: 1 << 20,
        messages: 500,
    };
    let mut producer = ResendingProducer::new(&bus, limits).unwrap();
    const COUNT: u64 = 5_000;
    let names = ["a", "b", "c", "d"];
    let mut outcomes = Vec::new();
    let mut back_at = None;
    for sequence in 0..COUNT {
        if sequence == 1_000 {
            cluster.broker_down(1).unwrap();
            back_at = Some(Instant::now() + Duration::from_secs(2));
        }
        for (index, host) in names.iter().enumerate() {
            let opaque = sequence * names.len() as u64 + index as u64;
            let mut outgoing = message(TOPIC, host, sequence);
            while let Err(WindowFull(back)) = producer.push(opaque, outgoing) {
                outgoing = back;
                assert!(producer.under_way() <= limits.messages);
                outcomes.extend(producer.poll(Duration::from_millis(50)));
                if back_at.is_some_and(|at| Instant::now() >= at) {
                    cluster.broker_up(1).unwrap();
                    back_at = None;
                }
            }
        }
    }
    if back_at.is_some() {
        cluster.broker_up(1).unwrap();
    }
    outcomes.extend(producer.flush(Duration::from_secs(60)));
    let opaques: Vec<_> = outcomes.iter().map(Outcome::opaque).collect();
    assert_eq!(opaques, (0..COUNT * names.len() as u64).collect::<Vec<_>>());
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Acknowledged { .. }))
    );
    let (hosts, repeats) = first_seen(&read_all(&cluster.bootstrap_servers(), TOPIC));
    assert_whole(&hosts, &names, COUNT);
    // The mock cluster checks sequences of producers like a real broker: retries by the same producer do not double.
    assert_eq!(repeats as u64, producer.telemetry().resent.get());
}

/// Checks that a batch that was refused once is not the end of its messages: each is tried again before it is given up.
#[test]
fn a_refusal_in_company_is_not_believed() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let bus = settings(&cluster.bootstrap_servers(), &[]);
    let mut producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE],
    );
    for sequence in 0..10 {
        producer.push(sequence, message(TOPIC, "a", sequence)).unwrap();
    }
    let outcomes = producer.flush(Duration::from_secs(30));
    assert_eq!(outcomes.len(), 10);
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Acknowledged { .. })),
        "{outcomes:?}"
    );
    assert_eq!(
        (
            producer.telemetry().restarts.get(),
            producer.telemetry().refused.get()
        ),
        (1, 0)
    );
    assert_whole(
        &first_seen(&read_all(&cluster.bootstrap_servers(), TOPIC)).0,
        &["a"],
        10,
    );
}

/// Checks that a message refused alone comes back with its reason, and that the others are delivered in order.
#[test]
fn a_refused_message_holds_up_nobody() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let bus = settings(&cluster.bootstrap_servers(), &[]);
    let mut producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    // The batch, then its first message alone.
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 2],
    );
    for sequence in 0..10 {
        producer.push(sequence, message(TOPIC, "a", sequence)).unwrap();
    }
    // Over what the client sends: refused without asking.
    let mut huge = message(TOPIC, "a", 10);
    huge.payload = Some(vec![0; 40 << 20].into());
    let early = push(&mut producer, 10, huge);
    let late = push(&mut producer, 11, message(TOPIC, "a", 11));
    let outcomes: Vec<_> = [early, late, producer.flush(Duration::from_secs(30))].concat();
    let refused: Vec<_> = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Refused { .. }))
        .map(Outcome::opaque)
        .collect();
    assert_eq!((outcomes.len(), refused), (12, vec![0, 10]));
    assert_eq!(producer.bytes_under_way(), 0);
    let (hosts, _) = first_seen(&read_all(&cluster.bootstrap_servers(), TOPIC));
    assert_eq!(hosts["a"], [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]);
}

/// Checks that a failure of the producer itself, an unknown error for one batch, starts again from the first
/// unacknowledged message, and that nothing is missing afterwards.
#[test]
fn a_broken_producer_is_replaced() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let bus = settings(
        &cluster.bootstrap_servers(),
        &[("linger.ms", "0"), ("batch.num.messages", "1")],
    );
    let mut producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
        ],
    );
    for sequence in 0..50 {
        producer.push(sequence, message(TOPIC, "a", sequence)).unwrap();
    }
    let outcomes = producer.flush(Duration::from_secs(30));
    assert_eq!(
        outcomes.iter().map(Outcome::opaque).collect::<Vec<_>>(),
        (0..50).collect::<Vec<_>>()
    );
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Acknowledged { .. }))
    );
    assert!(producer.telemetry().restarts.get() >= 1);
    let records = read_all(&cluster.bootstrap_servers(), TOPIC);
    let (hosts, _) = first_seen(&records);
    let mut seen = hosts["a"].clone();
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

/// Checks that both bounds hold while no broker answers, and say so in a way that a caller can act upon.
#[test]
fn full_queues_say_so() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    cluster.broker_down(1).unwrap();
    let bus = settings(
        &cluster.bootstrap_servers(),
        &[("queue.buffering.max.messages", "10")],
    );
    let producer = Producer::new(&bus).unwrap();
    let sent = (0..11).map(|sequence| producer.send(&message(TOPIC, "a", sequence), sequence));
    let refused: Vec<_> = sent.filter_map(Result::err).collect();
    assert!(matches!(refused[..], [Error::QueueFull]), "{refused:?}");
    assert!(refused[0].is_transient());
    assert_eq!(producer.under_way(), 10);

    let limits = WindowLimits {
        bytes: 1 << 20,
        messages: 25,
    };
    let mut window = ResendingProducer::new(&bus, limits).unwrap();
    let full = (0..30)
        .filter(|sequence| window.push(*sequence, message(TOPIC, "a", *sequence)).is_err())
        .count();
    assert_eq!((full, window.under_way()), (5, 25));
    cluster.broker_up(1).unwrap();
    assert_eq!(window.flush(Duration::from_secs(30)).len(), 25);
}
