//! A rebalance while the window is full.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Broker, create_topic, message, settings, skipped, wait_until};
use strobe_bus::lag::group_lag;
use strobe_bus::telemetry::DriveTelemetry;
use strobe_bus::{
    Consumer, DriveSettings, Message, ResendingProducer, Shutdown, StageResult, WindowLimits, drive,
};

/// Checks that a member whose window is full, and whose partitions are therefore paused, reads on after another has joined
/// and left: librdkafka keeps a pause over a rebalance.
#[test]
fn partitions_that_were_paused_are_read_again_after_a_rebalance() {
    const TEST: &str = "partitions_that_were_paused_are_read_again_after_a_rebalance";
    let broker = match Broker::start(18_350) {
        Ok(broker) => broker,
        Err(reason) => return skipped(TEST, &reason),
    };
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "in", 2, &[]);
    let bus = settings(
        &bootstrap,
        &[("heartbeat.interval.ms", "300"), ("linger.ms", "5")],
    );
    const COUNT: u64 = 3_000;
    let mut producer = ResendingProducer::new(&bus, WindowLimits::default()).unwrap();
    for sequence in 0..COUNT / 2 {
        for host in ["a", "b"] {
            producer.push(sequence, message("in", host, sequence)).unwrap();
        }
    }
    assert_eq!(producer.flush(Duration::from_secs(60)).len() as u64, COUNT);
    let (shutdown, telemetry) = (Shutdown::new(), Arc::<DriveTelemetry>::default());
    let consumer = Consumer::new(&bus, "g", &["in"]).unwrap();
    let driven = {
        let (shutdown, telemetry) = (shutdown.clone(), Arc::clone(&telemetry));
        let window = DriveSettings {
            window_messages: 8,
            ..DriveSettings::new("slow")
        };
        // Slower than the broker: the window is full from the first message to the last.
        let slow = |_: &Message| {
            std::thread::sleep(Duration::from_millis(5));
            StageResult::Skip
        };
        std::thread::spawn(move || drive(&window, consumer, producer, &telemetry, &shutdown, slow))
    };
    for round in 0..3 {
        let before = telemetry.skipped.get();
        wait_until("the window is full", 30, || {
            telemetry.pauses.get() > 0 && telemetry.skipped.get() > before + 20
        });
        let mut other = Consumer::new(&bus, "g", &["in"]).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while other.assignment().unwrap().is_empty() {
            assert!(
                Instant::now() < until,
                "round {round}: the other never got a partition"
            );
            let _event = other.poll(Duration::from_millis(50)).unwrap();
        }
        other.stop();
    }
    wait_until("everything is read and committed", 90, || {
        let lags = group_lag(&bus, "g", "in", Duration::from_secs(10));
        lags.is_ok_and(|lags| lags.iter().all(|lag| lag.messages() == 0))
    });
    shutdown.request();
    driven.join().unwrap().unwrap();
}
