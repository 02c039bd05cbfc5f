//! The idempotent producer: sends without blocking, reports deliveries in bulk.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;

use crate::error::Error;
use crate::message::Outgoing;
use crate::native::{Logs, to_native};
use crate::settings::{BusSettings, CLIENT_MESSAGE_BYTES_MAX};
use crate::shutdown::lock;

/// What became of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What the sender called it.
    pub opaque: u64,
    /// Whether the broker has it.
    pub result: Result<(), Failure>,
}

/// Why a message was not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The broker will never take this message: too large, or not what the topic accepts.
    Message(String),
    /// The producer, the topic or the cluster is at fault; the message may or may not have been written. Make a new
    /// producer and send again from the first unacknowledged message.
    Producer(String),
}

/// Longest sleep inside [`Producer::poll`] while something is under way. An acknowledgement takes the linger time and
/// a round trip, 50 ms and more; a tenth of that costs 100 wake-ups per second and only then.
const POLL_SLICE: Duration = Duration::from_millis(10);

/// Events taken between two looks at the clock; each may be a bundle of deliveries.
const EVENTS_PER_TURN: usize = 64;

/// One producer. It promises order per partition until the first failure; then it is to be replaced.
pub struct Producer {
    base: BaseProducer<Reports>,
}

#[derive(Default)]
struct Reports {
    logs: Logs,
    // As long as what is in librdkafka's queue, which has a bound.
    deliveries: Mutex<Vec<Delivery>>,
    /// Messages sent and not reported. librdkafka's own count takes in log lines and errors that wait to be served.
    under_way: AtomicUsize,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.logs.log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.logs.error(error, reason);
    }

    fn stats(&self, _: Statistics) {}
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let result = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(classify(error)),
        };
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        lock(&self.deliveries).push(Delivery {
            opaque: opaque as u64,
            result,
        });
    }
}

/// Opaque values travel through librdkafka as pointers.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

fn classify(error: &KafkaError) -> Failure {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp,
        ) => Failure::Message(error.to_string()),
        _ => Failure::Producer(error.to_string()),
    }
}

impl Producer {
    /// Returns a producer; the connection is made later, in the background.
    pub fn new(settings: &BusSettings) -> Result<Self, Error> {
        let base = BaseProducer::from_config_and_context(&settings.producer(), Reports::default())
            .map_err(Error::kafka("making a producer"))?;
        Ok(Self { base })
    }

    /// Puts a message into the queue and returns at once; what becomes of it is told by [`Producer::poll`].
    pub fn send(&self, message: &Outgoing, opaque: u64) -> Result<(), Error> {
        let mut record = BaseRecord::with_opaque_to(&message.topic, opaque as usize);
        record.key = message.key.as_deref();
        record.payload = message.payload.as_deref();
        record.headers = to_native(&message.headers);
        // Before the call: another thread may take the report before this one is back.
        self.base.context().under_way.fetch_add(1, Ordering::Relaxed);
        let Err((error, _)) = self.base.send::<[u8], [u8]>(record) else {
            return Ok(());
        };
        self.base.context().under_way.fetch_sub(1, Ordering::Relaxed);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => Err(Error::QueueFull),
            Some(RDKafkaErrorCode::MessageSizeTooLarge) => Err(Error::TooLarge {
                bytes: message.payload.as_ref().map_or(0, |payload| payload.len()),
                limit: CLIENT_MESSAGE_BYTES_MAX,
            }),
            _ => {
                let fatal = self.base.client().fatal_error().map(|(_, reason)| reason);
                Err(Error::ProducerBroken {
                    reason: fatal.unwrap_or_else(|| error.to_string()),
                })
            }
        }
    }

    /// Returns the deliveries that were reported, in the order of each partition; waits for the first at most
    /// `timeout`.
    pub fn poll(&self, timeout: Duration) -> Vec<Delivery> {
        let deadline = Instant::now() + timeout;
        loop {
            for _ in 0..EVENTS_PER_TURN {
                let before = lock(&self.base.context().deliveries).len();
                self.base.poll(Duration::ZERO);
                if lock(&self.base.context().deliveries).len() == before {
                    break;
                }
            }
            let deliveries = std::mem::take(&mut *lock(&self.base.context().deliveries));
            let left = deadline.saturating_duration_since(Instant::now());
            if !deliveries.is_empty() || left.is_zero() {
                return deliveries;
            }
            // rdkafka's own poll sleeps through the whole of its timeout, deliveries or not.
            self.base.poll(left.min(POLL_SLICE));
        }
    }

    /// Returns how many messages were sent and not yet reported.
    pub fn under_way(&self) -> usize {
        self.base.context().under_way.load(Ordering::Relaxed)
    }
}
