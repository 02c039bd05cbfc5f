//! The broker is killed in the middle of a stream and comes back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    Broker, assert_whole, create_topic, first_seen, message, read_all, settings, skipped, wait_until,
};
use strobe_bus::lag::group_lag;
use strobe_bus::telemetry::DriveTelemetry;
use strobe_bus::{
    Consumer, DriveSettings, Message, Outcome, Outgoing, ResendingProducer, Shutdown, StageResult,
    WindowFull, WindowLimits, drive,
};

/// Checks that a broker killed twice in the middle of a stream, away longer than the session timeout, loses nothing and
/// reorders nothing, neither before nor behind a stage.
#[test]
fn a_killed_broker_loses_nothing() {
    let broker = match Broker::start(18_320) {
        Ok(broker) => broker,
        Err(reason) => return skipped("a_killed_broker_loses_nothing", &reason),
    };
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "in", 2, &[]);
    create_topic(&bootstrap, "out", 2, &[]);
    let quick = [
        ("session.timeout.ms", "2000"),
        ("heartbeat.interval.ms", "300"),
        ("linger.ms", "5"),
    ];
    let bus = settings(&bootstrap, &quick);
    let (shutdown, telemetry) = (Shutdown::new(), Arc::<DriveTelemetry>::default());
    let (consumer, producer) = (
        Consumer::new(&bus, "g", &["in"]).unwrap(),
        ResendingProducer::new(&bus, WindowLimits::default()).unwrap(),
    );
    let driven = {
        let (shutdown, telemetry) = (shutdown.clone(), Arc::clone(&telemetry));
        std::thread::spawn(move || {
            drive(
                &DriveSettings::new("copy"),
                consumer,
                producer,
                &telemetry,
                &shutdown,
                |input: &Message| {
                    StageResult::Output(vec![Outgoing {
                        topic: "out".into(),
                        key: input.key.clone(),
                        headers: input.headers.clone(),
                        payload: input.payload.clone(),
                    }])
                },
            )
        })
    };
    const COUNT: u64 = 6_000;
    let hosts = ["a", "b", "c"];
    let feed = std::thread::spawn(move || {
        let limits = WindowLimits {
            bytes: 1 << 20,
            messages: 300,
        };
        let mut producer = ResendingProducer::new(&bus, limits).unwrap();
        let mut outcomes: Vec<Outcome> = Vec::new();
        for sequence in 0..COUNT {
            for host in hosts {
                let mut outgoing = message("in", host, sequence);
                while let Err(WindowFull(back)) = producer.push(sequence, outgoing) {
                    outgoing = back;
                    outcomes.extend(producer.poll(Duration::from_millis(100)));
                }
            }
            if sequence % 10 == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        outcomes.extend(producer.flush(Duration::from_secs(90)));
        outcomes
    });
    for (read, away) in [
        (2_000, Duration::from_millis(300)),
        (8_000, Duration::from_secs(4)),
    ] {
        wait_until("the stream flows", 60, || telemetry.messages_in.get() > read);
        broker.run("kill");
        std::thread::sleep(away);
        broker.run("start");
    }
    let outcomes = feed.join().unwrap();
    assert_eq!(outcomes.len() as u64, COUNT * hosts.len() as u64);
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Acknowledged { .. }))
    );
    let bus = settings(&bootstrap, &[]);
    wait_until("everything is committed", 90, || {
        let lags = group_lag(&bus, "g", "in", Duration::from_secs(10));
        lags.is_ok_and(|lags| lags.iter().all(|lag| lag.messages() == 0))
    });
    shutdown.request();
    driven.join().unwrap().unwrap();
    for topic in ["in", "out"] {
        let (seen, repeats) = first_seen(&read_all(&bootstrap, topic));
        assert_whole(&seen, &hosts, COUNT);
        println!("{topic}: {repeats} repeats");
    }
}
