//! The publishing thread: the spool → the bus. Stage 9.
//!
//! What the broker has acknowledged is freed, and nothing else is: a crash between the two sends a batch again, which is
//! harmless; the other way round it would lose one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strobe_bus::{
    BusSettings, Meta, Outcome, Outgoing, ResendingProducer, Shutdown, Topic, WindowFull, WindowLimits,
    failpoint,
};
use strobe_event::codec;
use strobe_event::{CoverageRecord, DropCount, DropReason, Epoch, Identity, RawBatch, RunEvent, RunState};
use strobe_spool::{Position, Reader, Record};

use crate::envelope;
use crate::error::AgentError;
use crate::status::Status;

/// Bytes under way to the broker: 16 full batches of a fleet's host, and little memory.
const WINDOW_BYTES: usize = 4 << 20;
/// Messages under way.
const WINDOW_MESSAGES: usize = 512;
/// Longest wait for new records: they end it at once, only the wish to stop does not.
const WAIT: Duration = Duration::from_millis(500);
/// Pause between two looks for acknowledgements, which nobody waits for: the spool has room. Asking librdkafka to wait for them
/// would cost more: it spins through the last part of a millisecond.
const ACKNOWLEDGED_WAIT: Duration = Duration::from_millis(50);
/// The same while the window is full: 4 MiB in 10 ms are more than a host ever samples.
const WINDOW_WAIT: Duration = Duration::from_millis(10);
/// Time for which what is left is sent after the wish to stop; the rest stays in the spool.
const GRACE: Duration = Duration::from_secs(5);

struct UnderWay {
    number: u64,
    position: Position,
    samples: u64,
}

/// Names of the topics that it writes.
struct Topics {
    raw: Arc<str>,
    runs: Arc<str>,
    coverage: Arc<str>,
    hosts: Arc<str>,
    audit: Arc<str>,
}

/// The thread's state.
pub struct Publishing {
    reader: Reader,
    producer: ResendingProducer,
    topics: Topics,
    under_way: VecDeque<UnderWay>,
    /// Handed over next; in the order of `under_way`.
    waiting: VecDeque<(u64, Outgoing)>,
    next: u64,
    status: Arc<Status>,
}

impl Publishing {
    /// Returns the thread's state. The broker need not be there.
    ///
    /// # Errors
    /// [`AgentError::Bus`] where an option of the bus is wrong.
    pub fn new(reader: Reader, bus: &BusSettings, status: Arc<Status>) -> Result<Self, AgentError> {
        let limits = WindowLimits {
            bytes: WINDOW_BYTES,
            messages: WINDOW_MESSAGES,
        };
        Ok(Self {
            reader,
            producer: ResendingProducer::new(bus, limits)?,
            topics: Topics {
                raw: bus.topic(Topic::StacksRaw).into(),
                runs: bus.topic(Topic::Runs).into(),
                coverage: bus.topic(Topic::Coverage).into(),
                hosts: bus.topic(Topic::Hosts).into(),
                audit: bus.topic(Topic::Audit).into(),
            },
            under_way: VecDeque::new(),
            waiting: VecDeque::new(),
            next: 0,
            status,
        })
    }

    /// Sends until the wish to stop, then what is left, for a bounded time.
    ///
    /// # Errors
    /// [`AgentError::Spool`] where the spool can no longer be read.
    pub fn run(mut self, shutdown: &Shutdown) -> Result<(), AgentError> {
        let mut stop_at = None;
        loop {
            // Asked before the spool is: what was appended before the end is then in what is read behind it.
            let complete = self.status.has_spooling_ended();
            let drained = self.fill()?;
            self.take_outcomes();
            self.status.unsent(self.reader.usage().unacknowledged_records);
            let done = drained && self.under_way.is_empty();
            if shutdown.is_requested() {
                let stop_at = *stop_at.get_or_insert_with(|| Instant::now() + GRACE);
                if (done && complete) || Instant::now() >= stop_at {
                    return Ok(());
                }
            }
            if !drained {
                std::thread::sleep(WINDOW_WAIT);
            } else {
                self.reader.wait(if done { WAIT } else { ACKNOWLEDGED_WAIT });
            }
        }
    }

    /// Moves records from the spool into the producer's window; returns whether the spool has no more.
    fn fill(&mut self) -> Result<bool, AgentError> {
        loop {
            while let Some((number, message)) = self.waiting.pop_front() {
                if let Err(WindowFull(message)) = self.producer.push(number, message) {
                    self.waiting.push_front((number, message));
                    return Ok(false);
                }
            }
            let record = match self.reader.next() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(true),
                Err(error) if error.is_transient() => return Ok(false),
                // The reader passes over what stays unreadable at the third try, and counts it.
                Err(error @ strobe_spool::Error::Io { .. }) => {
                    tracing::warn!(%error, "the spool cannot be read; trying again");
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            self.admit(record);
        }
    }

    fn admit(&mut self, record: Record) {
        let identity = Identity {
            host: record.identity.host.to_string(),
            epoch: Epoch(record.identity.epoch.0),
            sequence: record.identity.sequence,
            part: 0,
        };
        let position = record.position;
        let Some(opened) = envelope::open(&record.payload) else {
            tracing::error!(%identity, "a record of the spool is none of ours");
            self.status.dropped(DropReason::Undecodable, 0);
            self.free(position);
            return;
        };
        let samples = opened.samples;
        let meta = Meta {
            identity,
            run: opened.run,
            samples,
        };
        let message = match self.reader.is_too_old(&record) && opened.topic == Topic::StacksRaw {
            true => {
                self.status.dropped(DropReason::TooOld, samples);
                self.lost(meta, opened.value, DropReason::TooOld)
            }
            false => {
                let topic = match opened.topic {
                    Topic::Runs => &self.topics.runs,
                    Topic::Coverage => &self.topics.coverage,
                    Topic::Hosts => &self.topics.hosts,
                    Topic::Audit => &self.topics.audit,
                    _ => &self.topics.raw,
                };
                // All of a service's coverage is one partition, so that one tuner has all of its hosts.
                let service = (opened.topic == Topic::Coverage)
                    .then(|| codec::decode_framed::<CoverageRecord>(opened.value).ok())
                    .flatten()
                    .map(|record| record.service);
                let key = service.unwrap_or_else(|| meta.identity.host.clone());
                Some(Outgoing {
                    topic: Arc::clone(topic),
                    key: Some(key.into()),
                    headers: meta.to_headers(),
                    payload: Some(opened.value.to_vec().into()),
                })
            }
        };
        let Some(message) = message else {
            self.free(position);
            return;
        };
        self.send(position, samples, message);
    }

    fn send(&mut self, position: Position, samples: u64, message: Outgoing) {
        self.next += 1;
        self.under_way.push_back(UnderWay {
            number: self.next,
            position,
            samples,
        });
        self.waiting.push_back((self.next, message));
    }

    /// Returns the event that accounts for a batch that will not be sent; it has the batch's identity, so that it counts
    /// once however often it is told.
    fn lost(&self, meta: Meta, value: &[u8], reason: DropReason) -> Option<Outgoing> {
        let batch: RawBatch = codec::decode_framed(value).ok()?;
        let event = RunEvent {
            state: RunState::Lost as u8,
            time_us: batch.end_us,
            detail: format!("batch {} of the run", batch.index),
            taken: 0,
            spooled: 0,
            idle: 0,
            batches: 0,
            drops: vec![DropCount {
                reason: reason as u8,
                samples: meta.samples,
            }],
            done_us: 0,
            run: batch.run,
        };
        let payload = codec::encode_framed(&event).ok()?;
        Some(Outgoing {
            topic: Arc::clone(&self.topics.runs),
            key: Some(meta.identity.host.clone().into()),
            headers: Meta { samples: 0, ..meta }.to_headers(),
            payload: Some(payload.into()),
        })
    }

    fn take_outcomes(&mut self) {
        for outcome in self.producer.poll(Duration::ZERO) {
            // Outcomes come in the order in which messages were pushed.
            let Some(done) = self.under_way.pop_front() else {
                break;
            };
            debug_assert_eq!(done.number, outcome.opaque());
            match outcome {
                Outcome::Acknowledged { .. } => {
                    failpoint::hit("publish.acked_before_free");
                    self.status.sent(done.samples);
                }
                Outcome::Refused { reason, message, .. } => {
                    tracing::error!(
                        reason,
                        samples = done.samples,
                        "the broker refuses a batch for good"
                    );
                    self.status.dropped(DropReason::Rejected, done.samples);
                    // An event that is refused accounts for no samples of its own.
                    if let (Ok(meta), Some(value), true) = (
                        Meta::from_headers(&message.headers),
                        &message.payload,
                        message.topic == self.topics.raw,
                    ) && let Some(event) = self.lost(meta, value, DropReason::Rejected)
                    {
                        // The spool frees the batch when the broker has the event.
                        self.send(done.position, 0, event);
                        continue;
                    }
                }
            }
            self.free(done.position);
        }
    }

    /// Lets the spool free a record. A checkpoint that cannot be written now is written with the next one; until then a crash
    /// would send the record again, which is harmless.
    fn free(&mut self, position: Position) {
        if let Err(error) = self.reader.acknowledge(position)
            && self.status.may_complain()
        {
            tracing::warn!(%error, "the spool cannot note what was sent; it tries again");
        }
    }
}
