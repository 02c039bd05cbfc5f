//! One partition of ours: the messages that wait, and where its owner stands.

use std::collections::VecDeque;
use std::time::Instant;

use strobe_bus::headers::SAMPLES;
use strobe_bus::{Message, Partition};

use crate::pending::Pending;
use crate::settings::Settings;

/// Messages of a range at most. Tiny batches alone reach it; the note of a range is measured once per message.
pub const RANGE_MESSAGES_MAX: usize = 4_096;

/// What a topic carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Batches of samples.
    Samples,
    /// Events of runs.
    Runs,
    /// What became of slots.
    Coverage,
    /// Who asked for what, and who was refused.
    Audit,
}

/// Where the owner of a partition stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// What is committed has not been read yet.
    Unknown,
    /// A predecessor named this range, and it comes first.
    TakeOver(Pending),
    /// Ranges are cut as messages come; the next one is this attempt.
    Free {
        /// How often a range from here was refused.
        attempt: u32,
    },
}

/// A message that waits.
pub struct Waiting {
    /// The message.
    pub message: Message,
    /// The samples that its headers name.
    pub samples: u64,
    since: Instant,
    cost: usize,
}

/// One partition of ours.
pub struct Lane {
    /// The partition.
    pub partition: Partition,
    /// What it carries.
    pub kind: Kind,
    /// Where its owner stands.
    pub stand: Stand,
    /// Whether reading is paused.
    pub paused: bool,
    /// Messages of the next range at most: halved when a range is refused, until the one to blame stands alone.
    pub messages_max: usize,
    queue: VecDeque<Waiting>,
    bytes: usize,
    samples: u64,
}

impl Lane {
    /// Returns a partition of which nothing was read.
    pub fn new(partition: Partition, kind: Kind) -> Self {
        Self {
            partition,
            kind,
            stand: Stand::Unknown,
            paused: false,
            messages_max: RANGE_MESSAGES_MAX,
            queue: VecDeque::new(),
            bytes: 0,
            samples: 0,
        }
    }

    /// Takes in a message.
    pub fn push(&mut self, message: Message, now: Instant) {
        let (samples, cost) = (message.headers.parsed(SAMPLES).unwrap_or(0), message.cost());
        self.bytes += cost;
        self.samples = self.samples.saturating_add(samples);
        self.queue.push_back(Waiting {
            message,
            samples,
            since: now,
            cost,
        });
    }

    /// Forgets the first messages: they are behind the committed position.
    pub fn pop(&mut self, count: usize) {
        for waiting in self.queue.drain(..count.min(self.queue.len())) {
            self.bytes -= waiting.cost;
            self.samples = self.samples.saturating_sub(waiting.samples);
        }
    }

    /// Returns the messages that wait, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.queue.iter()
    }

    /// Returns the bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns since when the first message has waited, where a range can be stored now.
    pub fn ready(&self, settings: &Settings, now: Instant) -> Option<Instant> {
        let first = self.queue.front()?;
        let ready = match &self.stand {
            Stand::Unknown => false,
            Stand::TakeOver(pending) => self.queue.back()?.message.offset >= pending.last,
            Stand::Free { .. } => {
                self.samples >= settings.range_samples
                    || self.bytes >= settings.range_bytes
                    || self.queue.len() >= self.messages_max
                    || now.duration_since(first.since) >= settings.range_time
            }
        };
        ready.then_some(first.since)
    }

    /// Returns whether reading should be paused, with so many bytes waiting in all partitions.
    pub fn wants_pause(&self, settings: &Settings, all_bytes: usize) -> bool {
        // A range that must be read whole before anything else can happen is never held up.
        if matches!(self.stand, Stand::TakeOver(_)) {
            return false;
        }
        // Two limits for each, so that reading does not stop and start with every message.
        let (own, all) = if self.paused {
            (settings.range_bytes, settings.window_bytes / 2)
        } else {
            (2 * settings.range_bytes, settings.window_bytes)
        };
        !self.queue.is_empty() && (self.bytes >= own || all_bytes >= all)
    }
}
