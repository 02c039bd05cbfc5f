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
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::consumer::Trouble;
use crate::error::Error;
use crate::lag::partition_numbers;
use crate::message::Message;
use crate::native::{self, Logs};
use crate::settings::BusSettings;

/// How long the broker may take to say which partitions there are, and how far one goes.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Pause before the same is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Longest pause between two messages while all of a topic is read.
const STANDSTILL: Duration = Duration::from_secs(10);
/// Most messages handed over at a time: what a caller holds.
const MESSAGES_PER_POLL: usize = 1_024;

/// A reader of one compacted topic.
pub struct Compacted {
    base: BaseConsumer<Logs>,
    name: String,
    /// Another client, which asks how far the topic goes: a broker answers a connection in order, and a question would wait behind
    /// the reader's own fetch. Made when it is needed first.
    asker: Option<BaseConsumer<Logs>>,
    settings: BusSettings,
    /// Partitions whose end, as it was at the start, has not been reached.
    unread: BTreeSet<i32>,
    /// Each partition's end, as it was before anything was read.
    ends: BTreeMap<i32, i64>,
    /// Up to where each partition was handed over.
    next: BTreeMap<i32, i64>,
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
        // Before anything is fetched: the first end of a partition that is reached lies there or later.
        let ends = ends(&base, topic, &unread)?;
        base.assign(&from).map_err(Error::kafka(doing))?;
        Ok(Self {
            base,
            name: topic.to_owned(),
            asker: None,
            settings: settings.clone(),
            unread,
            ends,
            next: BTreeMap::new(),
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
                Some(Ok(message)) => {
                    self.next.insert(message.partition(), message.offset() + 1);
                    take(native::take(&message, &mut self.topic));
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if self.unread.remove(&partition) {
                        // The last offsets may bear no message: what they had was compacted away.
                        let end = self.ends.get(&partition).copied().unwrap_or(0);
                        let next = self.next.entry(partition).or_default();
                        *next = end.max(*next);
                    }
                }
                Some(Err(error)) => Trouble::of(error)?,
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }

    /// Reads on until everything that was there when the reader was opened is handed over.
    ///
    /// # Errors
    /// [`Error::TimedOut`] where the broker stands still, and those of [`Compacted::poll`].
    pub fn catch_up(&mut self, take: impl FnMut(Message)) -> Result<(), Error> {
        self.read_until(Self::is_caught_up, take)
    }

    /// Reads on until everything that is there now is handed over: whatever the broker had taken before this was called.
    ///
    /// # Errors
    /// As [`Compacted::catch_up`], and where the broker does not say how far the topic goes.
    pub fn catch_up_now(&mut self, mut take: impl FnMut(Message)) -> Result<(), Error> {
        self.catch_up(&mut take)?;
        if self.asker.is_none() {
            let config = self.settings.administrator();
            let asker = BaseConsumer::from_config_and_context(&config, Logs::default())
                .map_err(Error::kafka("making a consumer"))?;
            self.asker = Some(asker);
        }
        let partitions = self.next.keys().copied().collect();
        let ends = match &self.asker {
            Some(asker) => ends(asker, &self.name, &partitions)?,
            None => BTreeMap::new(),
        };
        let is_read =
            |reader: &Self| (ends.iter()).all(|(partition, end)| reader.next.get(partition) >= Some(end));
        self.read_until(is_read, take)
    }

    fn read_until(
        &mut self,
        is_done: impl Fn(&Self) -> bool,
        mut take: impl FnMut(Message),
    ) -> Result<(), Error> {
        let mut deadline = Instant::now() + STANDSTILL;
        while !is_done(self) {
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

/// Returns the offset that each partition's next message will get. Of a topic that was just made, the broker may not yet lead a
/// partition: it is asked again.
fn ends(
    base: &BaseConsumer<Logs>,
    topic: &str,
    partitions: &BTreeSet<i32>,
) -> Result<BTreeMap<i32, i64>, Error> {
    let deadline = Instant::now() + ANSWER_WAIT;
    let end = |&partition: &i32| loop {
        let asked = base
            .fetch_watermarks(topic, partition, ANSWER_WAIT)
            .map_err(Error::kafka("reading the end of a topic"));
        match asked {
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                std::thread::sleep(ASK_AGAIN);
            }
            other => return Ok((partition, other?.1)),
        }
    };
    partitions.iter().map(end).collect()
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
