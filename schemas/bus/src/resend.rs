//! A window of messages that nobody gives up on: restarts from the first unacknowledged one.
//!
//! An idempotent producer that fails one message goes on with the later ones, so the order is lost unless somebody
//! starts again. This does: on any failure the producer is thrown away and everything from the first unacknowledged
//! message on is sent once more, in order. That repeats messages, which is harmless; it never skips one.
//!
//! A message that the broker refuses must not hold up the others. A refusal is believed only when the message was
//! sent alone: brokers judge whole record batches, and an innocent message may share one with a large neighbour.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::message::Outgoing;
use crate::producer::{Failure, Producer};
use crate::settings::BusSettings;
use crate::telemetry::ProducerTelemetry;

/// How much may be under way.
#[derive(Debug, Clone, Copy)]
pub struct WindowLimits {
    /// Bytes of the messages, with what they cost beside their values.
    pub bytes: usize,
    /// Messages.
    pub messages: usize,
}

impl Default for WindowLimits {
    /// 32 MiB: a second of what one broker on a small machine takes. 4,096 messages: as many of 8 KiB.
    fn default() -> Self {
        Self {
            bytes: 32 << 20,
            messages: 4_096,
        }
    }
}

/// What became of a message, reported in the order of [`ResendingProducer::push`].
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The broker has it.
    Acknowledged {
        /// What the sender called it.
        opaque: u64,
    },
    /// The broker will never take it. The others went on.
    Refused {
        /// What the sender called it.
        opaque: u64,
        /// Why.
        reason: String,
        /// The message, to be put aside or counted.
        message: Outgoing,
    },
}

impl Outcome {
    /// Returns what the sender called the message.
    pub fn opaque(&self) -> u64 {
        match self {
            Self::Acknowledged { opaque } | Self::Refused { opaque, .. } => *opaque,
        }
    }
}

/// The window has no room; the message comes back. Poll, then push again.
#[derive(Debug)]
pub struct WindowFull(pub Outgoing);

#[derive(Debug)]
enum State {
    Waiting,
    Sent,
    Acknowledged,
    Refused(String),
}

struct Entry {
    opaque: u64,
    message: Outgoing,
    state: State,
}

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_LAST: Duration = Duration::from_secs(10);

/// A producer with a window in front, bounded, in order, that starts again by itself.
pub struct ResendingProducer {
    settings: BusSettings,
    limits: WindowLimits,
    telemetry: Arc<ProducerTelemetry>,
    producer: Option<Producer>,
    window: VecDeque<Entry>,
    /// Number of the first entry of the window; numbers go up by one per push and are librdkafka's opaque values.
    first: u64,
    /// Number of the first entry not handed to the producer.
    unsent: u64,
    bytes: usize,
    /// The message that was refused in company and must be tried alone.
    suspect: Option<u64>,
    retry_at: Instant,
    backoff: Duration,
}

impl ResendingProducer {
    /// Returns a producer with an empty window; a mistake in the options shows here.
    pub fn new(settings: &BusSettings, limits: WindowLimits) -> Result<Self, Error> {
        Ok(Self {
            settings: settings.clone(),
            limits,
            telemetry: Arc::default(),
            producer: Some(Producer::new(settings)?),
            window: VecDeque::new(),
            first: 0,
            unsent: 0,
            bytes: 0,
            suspect: None,
            retry_at: Instant::now(),
            backoff: BACKOFF_FIRST,
        })
    }

    /// Returns the counters, which go on by themselves.
    pub fn telemetry(&self) -> Arc<ProducerTelemetry> {
        Arc::clone(&self.telemetry)
    }

    /// Takes a message into the window, or gives it back when there is no room. An empty window takes any message.
    pub fn push(&mut self, opaque: u64, message: Outgoing) -> Result<(), WindowFull> {
        let cost = message.cost();
        let full = self.window.len() >= self.limits.messages || self.bytes + cost > self.limits.bytes;
        if full && !self.window.is_empty() {
            return Err(WindowFull(message));
        }
        self.bytes += cost;
        self.window.push_back(Entry {
            opaque,
            message,
            state: State::Waiting,
        });
        self.feed();
        Ok(())
    }

    /// Returns how many messages are under way.
    pub fn under_way(&self) -> usize {
        self.window.len()
    }

    /// Returns the bytes under way.
    pub fn bytes_under_way(&self) -> usize {
        self.bytes
    }

    /// Sends, takes reports, starts again where needed; returns what was decided, in the order of the pushes. Waits
    /// for the first report at most `timeout`.
    pub fn poll(&mut self, timeout: Duration) -> Vec<Outcome> {
        let deadline = Instant::now() + timeout;
        loop {
            self.feed();
            let left = deadline.saturating_duration_since(Instant::now());
            match &self.producer {
                // Nobody will report anything: only serve the client's events.
                Some(producer) if self.window.is_empty() => drop(producer.poll(Duration::ZERO)),
                Some(producer) => {
                    let deliveries = producer.poll(left);
                    for delivery in deliveries {
                        match delivery.result {
                            Ok(()) => self.acknowledge(delivery.opaque),
                            Err(failure) => {
                                self.fail(delivery.opaque, failure);
                                // The rest of this report speaks of a producer that is gone.
                                break;
                            }
                        }
                    }
                }
                None => std::thread::sleep(left.min(self.retry_at.saturating_duration_since(Instant::now()))),
            }
            let outcomes = self.pop();
            if !outcomes.is_empty() || self.window.is_empty() || Instant::now() >= deadline {
                self.feed();
                return outcomes;
            }
        }
    }

    /// Polls until nothing is under way, at most `timeout`; returns all outcomes. What is left stays in the window.
    pub fn flush(&mut self, timeout: Duration) -> Vec<Outcome> {
        let deadline = Instant::now() + timeout;
        let mut outcomes = Vec::new();
        while !self.window.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            outcomes.extend(self.poll(left));
        }
        outcomes
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let index = number.checked_sub(self.first)?;
        self.window.get_mut(usize::try_from(index).ok()?)
    }

    /// Hands waiting messages to the producer, in order, as far as it and a suspect allow.
    fn feed(&mut self) {
        if self.producer.is_none() && Instant::now() >= self.retry_at {
            match Producer::new(&self.settings) {
                Ok(producer) => self.producer = Some(producer),
                // The same settings made one before: memory or file descriptors ran out, which may pass.
                Err(error) => self.restart(&error.to_string(), true),
            }
        }
        loop {
            let index = (self.unsent - self.first) as usize;
            let (Some(producer), Some(entry)) = (&self.producer, self.window.get_mut(index)) else {
                return;
            };
            if let Some(suspect) = self.suspect
                && (self.unsent > suspect || self.unsent == suspect && index > 0)
            {
                // Alone means: everything before it was acknowledged, and nothing after it was sent.
                return;
            }
            if matches!(entry.state, State::Waiting) {
                match producer.send(&entry.message, self.unsent) {
                    Ok(()) => entry.state = State::Sent,
                    Err(Error::QueueFull) => return,
                    // Decided here, without the broker: nobody else is to blame.
                    Err(error @ Error::TooLarge { .. }) => {
                        entry.state = State::Refused(error.to_string());
                        self.telemetry.refused.add(1);
                    }
                    Err(error) => return self.restart(&error.to_string(), true),
                }
            }
            self.unsent += 1;
        }
    }

    fn acknowledge(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            entry.state = State::Acknowledged;
        }
        if self.suspect == Some(number) {
            self.suspect = None;
        }
        self.backoff = BACKOFF_FIRST;
    }

    fn fail(&mut self, number: u64, failure: Failure) {
        match failure {
            Failure::Message(reason) if self.suspect == Some(number) => {
                self.suspect = None;
                self.telemetry.refused.add(1);
                if let Some(entry) = self.entry(number) {
                    entry.state = State::Refused(reason);
                }
            }
            Failure::Message(reason) => {
                // A later refusal may be a consequence of an earlier one: the first is tried first.
                self.suspect = Some(self.suspect.map_or(number, |suspect| suspect.min(number)));
                self.restart(&reason, false);
            }
            Failure::Producer(reason) => self.restart(&reason, true),
        }
    }

    /// Throws the producer away; everything in the window will be sent again, in order.
    fn restart(&mut self, reason: &str, wait: bool) {
        let again = (self.unsent - self.first) as usize;
        tracing::warn!(
            reason,
            again,
            "the producer starts again from the first unacknowledged message"
        );
        self.telemetry.restarts.add(1);
        self.telemetry.resent.add(again as u64);
        self.producer = None;
        self.unsent = self.first;
        for entry in &mut self.window {
            if !matches!(entry.state, State::Refused(_)) {
                entry.state = State::Waiting;
            }
        }
        if wait {
            self.retry_at = Instant::now() + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_LAST);
        } else {
            self.retry_at = Instant::now();
        }
    }

    /// Takes what is decided off the front of the window.
    fn pop(&mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while let Some(entry) = self.window.pop_front() {
            let opaque = entry.opaque;
            let cost = entry.message.cost();
            match entry.state {
                State::Waiting | State::Sent => {
                    self.window.push_front(entry);
                    break;
                }
                State::Acknowledged => {
                    self.telemetry.acknowledged.add(1);
                    outcomes.push(Outcome::Acknowledged { opaque });
                }
                State::Refused(reason) => {
                    tracing::warn!(topic = &*entry.message.topic, reason, "a message was refused");
                    outcomes.push(Outcome::Refused {
                        opaque,
                        reason,
                        message: entry.message,
                    });
                }
            }
            self.bytes -= cost;
            self.first += 1;
        }
        self.unsent = self.unsent.max(self.first);
        outcomes
    }
}
