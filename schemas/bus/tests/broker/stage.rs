//! A stage in small that is driven beside the test, and what it reads and writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strobe_bus::lag::group_lag;
use strobe_bus::telemetry::DriveTelemetry;
use strobe_bus::{
    BusSettings, Complaint, Consumer, DeadReason, DriveSettings, Event, Message, Outgoing, ResendingProducer,
    Shutdown, StageResult, WindowLimits, drive,
};

use crate::common::message;

/// Sends a message of each host for each sequence, and waits until the broker has all.
pub fn produce(bus: &BusSettings, topic: &str, hosts: &[&str], sequences: std::ops::Range<u64>) {
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
pub fn stage(output: &str) -> impl FnMut(&Message) -> StageResult + Send + use<> {
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
pub struct Driven {
    shutdown: Shutdown,
    pub telemetry: Arc<DriveTelemetry>,
    thread: std::thread::JoinHandle<Result<(), strobe_bus::Error>>,
}

impl Driven {
    pub fn start(bus: &BusSettings, group: &str, input: &str, output: &str) -> Self {
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

    pub fn stop(self) {
        self.shutdown.request();
        self.thread.join().unwrap().unwrap();
    }
}

pub struct StopOnDrop<'a>(pub &'a Shutdown);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.request();
    }
}

pub fn lag(bus: &BusSettings, group: &str, topic: &str) -> u64 {
    let lags = group_lag(bus, group, topic, Duration::from_secs(10)).unwrap();
    lags.iter().map(strobe_bus::consumer::Lag::messages).sum()
}

/// Polls until a message or the end of the bound; assignments on the way are noted.
pub fn next_message(consumer: &mut Consumer) -> Message {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if let Event::Message(message) = consumer.poll(Duration::from_millis(100)).unwrap() {
            return message;
        }
    }
    panic!("no message within 30 s");
}
