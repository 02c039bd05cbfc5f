//! A compacted topic as a table: the newest message of each key, from the start and on.
//!
//! Whoever reads it needs all of it, so nobody shares partitions and nothing is committed: each reader begins at the start.
//! What a key's newest message says is true until another comes; a message without a value ends the key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::consumer::Trouble;
use crate::error::Error;
use crate::lag::partition_numbers;
use crate::message::Message;
use crate::native::{self, Logs};
use crate::settings::BusSettings;

/// How long the broker may take to say which partitions there are.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest pause between two messages while all of a topic is read.
const STANDSTILL: Duration = Duration::from_secs(10);
/// Most messages handed over at a time: what a caller holds.
const MESSAGES_PER_POLL: usize = 1_024;

/// A reader of one compacted topic.
pub struct Compacted {
    base: BaseConsumer<Logs>,
    /// Partitions whose end, as it was at the start, has not been reached.
    unread: BTreeSet<i32>,
    topic: Option<Arc<str>>,
}

impl Compacted {
    /// Returns a reader that stands at the topic's start.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::TopicMissing`], which may heal: try again.
    pub fn open(settings: &BusSettings, topic: &str) -> Result<Self, Error> {
        Self::open_at(settings, topic, |_, from| {
            from.set_all_offsets(Offset::Beginning)
                .map_err(Error::kafka("reading a compacted topic"))
        })
    }

    /// Returns a reader that stands where `place` puts it.
    pub(crate) fn open_at(
        settings: &BusSettings,
        topic: &str,
        place: impl FnOnce(&BaseConsumer<Logs>, &mut TopicPartitionList) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let doing = "reading a topic";
        // A group is named because librdkafka wants one; it is never joined and nothing is committed.
        let mut config = settings.consumer(Some("strobe-compacted"));
        config.set("enable.partition.eof", "true");
        let base = BaseConsumer::from_config_and_context(&config, Logs::default())
            .map_err(Error::kafka("making a consumer"))?;
        let unread: BTreeSet<i32> = partition_numbers(&base, settings, topic, ANSWER_WAIT)?
            .into_iter()
            .collect();
        let mut from = TopicPartitionList::new();
        for &partition in &unread {
            from.add_partition(topic, partition);
        }
        place(&base, &mut from)?;
        base.assign(&from).map_err(Error::kafka(doing))?;
        Ok(Self {
            base,
            unread,
            topic: None,
        })
    }

    /// Returns whether everything that was there when the reader was opened has been handed over.
    pub fn is_caught_up(&self) -> bool {
        self.unread.is_empty()
    }

    /// Hands over what comes within `timeout`, in the order of each partition; returns after the first pause.
    ///
    /// # Errors
    /// One that reading on will not heal: missing rights.
    pub fn poll(&mut self, timeout: Duration, mut take: impl FnMut(Message)) -> Result<(), Error> {
        let mut wait = timeout;
        for _ in 0..MESSAGES_PER_POLL {
            match self.base.poll(wait) {
                None => break,
                Some(Ok(message)) => take(native::take(&message, &mut self.topic)),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    self.unread.remove(&partition);
                }
                Some(Err(error)) => Trouble::of(error)?,
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }

    /// Reads on until everything that was there is handed over.
    ///
    /// # Errors
    /// [`Error::TimedOut`] where the broker stands still, and those of [`Compacted::poll`].
    pub fn catch_up(&mut self, mut take: impl FnMut(Message)) -> Result<(), Error> {
        let mut deadline = Instant::now() + STANDSTILL;
        while !self.is_caught_up() {
            let before = self.unread.len();
            let mut came = false;
            self.poll(Duration::from_millis(100), |message| {
                came = true;
                take(message);
            })?;
            if came || self.unread.len() < before {
                deadline = Instant::now() + STANDSTILL;
            } else if Instant::now() >= deadline {
                return Err(Error::TimedOut {
                    doing: "reading a compacted topic",
                    seconds: STANDSTILL.as_secs(),
                });
            }
        }
        Ok(())
    }
}

/// Returns the newest value of each key of a compacted topic, as it is now.
///
/// # Errors
/// As [`Compacted::open`] and [`Compacted::catch_up`].
pub fn read_all(settings: &BusSettings, topic: &str) -> Result<BTreeMap<Bytes, Bytes>, Error> {
    let mut table = BTreeMap::new();
    Compacted::open(settings, topic)?.catch_up(|message| {
        let key = message.key.unwrap_or_default();
        match message.payload {
            Some(value) => table.insert(key, value),
            None => table.remove(&key),
        };
    })?;
    Ok(table)
}
