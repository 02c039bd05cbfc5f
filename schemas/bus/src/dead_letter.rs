//! What cannot be processed goes to `<topic>.dlq` untouched, says why, and can be put back.
//!
//! The bytes, the key and the headers are the original ones; the reason is in headers beside them, by the names that
//! Kafka Connect uses, so that tools for its dead letters work. A log cannot be picked from: what was replayed stays
//! until the retention ends, and replaying it twice is harmless, as every repeat is.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, DefaultConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::error::Error;
use crate::headers::{Headers, Meta, RUN, SAMPLES};
use crate::lag::partition_numbers;
use crate::message::{Message, Outgoing};
use crate::native;
use crate::resend::{Outcome, ResendingProducer, WindowFull, WindowLimits};
use crate::settings::BusSettings;
use crate::topics::{DEAD_LETTER_SUFFIX, dead_letter_name};

/// What the names of Kafka Connect's error headers begin with.
pub const CONNECT_PREFIX: &str = "__connect.errors.";
/// What the names of our own begin with.
pub const STROBE_PREFIX: &str = "strobe-dlq-";
/// The reason, one of [`DeadReason`]'s names.
pub const REASON: &str = "strobe-dlq-reason";
/// The size of a value that the dead-letter topic refused too.
pub const VALUE_LEFT_OUT: &str = "strobe-dlq-value-left-out";

const TOPIC: &str = "__connect.errors.topic";
const PARTITION: &str = "__connect.errors.partition";
const OFFSET: &str = "__connect.errors.offset";
const STAGE: &str = "__connect.errors.stage";
const CLASS: &str = "__connect.errors.class.name";
const EXCEPTION: &str = "__connect.errors.exception.class.name";
const EXCEPTION_MESSAGE: &str = "__connect.errors.exception.message";

/// Bytes of a complaint's text: with the names it stays far under what a dead-letter topic allows for headers.
const COMPLAINT_BYTES_MAX: usize = 1_024;

/// Why a message was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// Over our limit on messages, though under the topic's.
    Oversized,
    /// It ends before its value does.
    Truncated,
    /// It is not ours: no framing, or a schema that we do not know.
    Foreign,
    /// A header of the bus is missing or wrong.
    BadHeaders,
    /// It is framed like ours and its value cannot be read, or contradicts itself.
    Undecodable,
    /// What came of it was refused by the broker.
    Refused,
    /// The store refused it.
    Rejected,
    /// The stage panicked over it.
    Panicked,
}

impl DeadReason {
    /// Returns its name in headers and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oversized => "oversized",
            Self::Truncated => "truncated",
            Self::Foreign => "foreign",
            Self::BadHeaders => "bad_headers",
            Self::Undecodable => "undecodable",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Panicked => "panicked",
        }
    }
}

/// Why, where and what exactly.
#[derive(Debug, Clone)]
pub struct Complaint {
    /// Why.
    pub reason: DeadReason,
    /// The stage that could not process it.
    pub stage: &'static str,
    /// The module.
    pub class: &'static str,
    /// The kind of error.
    pub exception: &'static str,
    /// The error's text.
    pub message: String,
}

/// Returns the dead letter of a message.
pub fn wrap(message: &Message, complaint: &Complaint) -> Outgoing {
    let mut headers = message.headers.clone();
    let text = &complaint.message;
    headers.push(TOPIC, message.partition.topic.to_string());
    headers.push(PARTITION, message.partition.partition.to_string());
    headers.push(OFFSET, message.offset.to_string());
    headers.push(STAGE, complaint.stage);
    headers.push(CLASS, complaint.class);
    headers.push(EXCEPTION, complaint.exception);
    headers.push(
        EXCEPTION_MESSAGE,
        text[..text.floor_char_boundary(COMPLAINT_BYTES_MAX)].to_owned(),
    );
    headers.push(REASON, complaint.reason.name());
    Outgoing {
        topic: dead_letter_name(&message.partition.topic).into(),
        key: message.key.clone(),
        headers,
        payload: message.payload.clone(),
    }
}

pub(crate) fn is_dead_letter(message: &Outgoing) -> bool {
    message.topic.ends_with(DEAD_LETTER_SUFFIX) && message.headers.get(REASON).is_some()
}

/// Returns the dead letter with its value left out: better a note that it died than nothing.
pub(crate) fn without_value(mut letter: Outgoing) -> Outgoing {
    let bytes = letter.payload.take().map_or(0, |payload| payload.len());
    letter.headers.push(VALUE_LEFT_OUT, bytes.to_string());
    letter
}

/// A line in the list of dead letters.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its place in the dead-letter topic: (partition, offset).
    pub place: (i32, i64),
    /// When it was put aside, milliseconds since 1970 (UTC).
    pub timestamp_ms: Option<i64>,
    /// Bytes of its value.
    pub bytes: usize,
    /// One of [`DeadReason`]'s names, or whatever its header says.
    pub reason: String,
    /// The stage that could not process it.
    pub stage: String,
    /// The error's text.
    pub detail: String,
    /// Where it came from: topic, partition, offset.
    pub source: Option<(String, i32, i64)>,
    /// What its own headers say, when all of them can be read.
    pub meta: Option<Meta>,
    /// The samples that its own headers name, also when others cannot be read.
    pub samples: Option<u64>,
    /// The run that its own headers name, likewise.
    pub run: Option<strobe_event::RunId>,
}

impl Item {
    fn new(letter: &Message) -> Self {
        let headers = &letter.headers;
        let text = |name| headers.text(name).unwrap_or_default().to_owned();
        let source = || {
            Some((
                headers.text(TOPIC)?.to_owned(),
                headers.parsed(PARTITION)?,
                headers.parsed(OFFSET)?,
            ))
        };
        Self {
            place: (letter.partition.partition, letter.offset),
            timestamp_ms: letter.timestamp_ms,
            bytes: letter.bytes().len(),
            reason: text(REASON),
            stage: text(STAGE),
            detail: text(EXCEPTION_MESSAGE),
            source: source(),
            meta: Meta::from_headers(headers).ok(),
            samples: headers.parsed(SAMPLES),
            run: headers.parsed(RUN),
        }
    }
}

/// Which dead letters of a topic.
#[derive(Debug, Clone)]
pub enum Selection {
    /// All that are there when the call begins.
    All,
    /// Those at these places: (partition, offset) in the dead-letter topic.
    Places(BTreeSet<(i32, i64)>),
}

impl Selection {
    fn takes(&self, letter: &Message) -> bool {
        match self {
            Self::All => true,
            Self::Places(places) => places.contains(&(letter.partition.partition, letter.offset)),
        }
    }
}

/// What a replay did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Messages that are back on their topic, acknowledged.
    pub count: u64,
    /// Dead letters whose value could not be kept when they died: they were left where they are.
    pub without_value: u64,
    /// Places that were asked for and hold no dead letter.
    pub missing: BTreeSet<(i32, i64)>,
}

/// How long reading or writing dead letters may stand still.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Returns the dead letters of `topic` (its plain name), oldest first, at most `limit`.
pub fn list(settings: &BusSettings, topic: &str, limit: usize) -> Result<Vec<Item>, Error> {
    let mut items = Vec::new();
    scan(settings, topic, |letter| {
        if items.len() >= limit {
            return Ok(ControlFlow::Break(()));
        }
        items.push(Item::new(&letter));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(items)
}

/// Returns one dead letter of `topic`, with its bytes, key and headers.
pub fn show(
    settings: &BusSettings,
    topic: &str,
    place: (i32, i64),
) -> Result<Option<(Item, Message)>, Error> {
    let mut found = None;
    scan(settings, topic, |letter| {
        if (letter.partition.partition, letter.offset) != place {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some((Item::new(&letter), letter));
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Puts dead letters back on their topic, with their original bytes, key and headers, and waits until the broker has
/// them.
pub fn replay(settings: &BusSettings, topic: &str, selection: &Selection) -> Result<Replayed, Error> {
    let mut producer = ResendingProducer::new(settings, WindowLimits::default())?;
    let mut replayed = Replayed::default();
    if let Selection::Places(places) = selection {
        replayed.missing.clone_from(places);
    }
    let mut sent = 0;
    scan(settings, topic, |letter| {
        if !selection.takes(&letter) {
            return Ok(ControlFlow::Continue(()));
        }
        replayed
            .missing
            .remove(&(letter.partition.partition, letter.offset));
        if letter.headers.get(VALUE_LEFT_OUT).is_some() {
            replayed.without_value += 1;
            return Ok(ControlFlow::Continue(()));
        }
        let mut outgoing = unwrap(topic, letter);
        let deadline = Instant::now() + STANDSTILL;
        while let Err(WindowFull(back)) = producer.push(sent, outgoing) {
            outgoing = back;
            let outcomes = producer.poll(Duration::from_millis(100));
            replayed.count += acknowledged(topic, &outcomes)?;
            if outcomes.is_empty() && Instant::now() >= deadline {
                return Err(standstill());
            }
        }
        sent += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    replayed.count += acknowledged(topic, &producer.flush(STANDSTILL))?;
    if producer.under_way() > 0 {
        return Err(standstill());
    }
    Ok(replayed)
}

fn standstill() -> Error {
    Error::TimedOut {
        doing: "putting dead letters back",
        seconds: STANDSTILL.as_secs(),
    }
}

fn acknowledged(topic: &str, outcomes: &[Outcome]) -> Result<u64, Error> {
    for outcome in outcomes {
        if let Outcome::Refused { opaque, reason, .. } = outcome {
            return Err(Error::Refused {
                topic: topic.to_owned(),
                opaque: *opaque,
                reason: reason.clone(),
            });
        }
    }
    Ok(outcomes.len() as u64)
}

/// Returns the message as it was before it died.
fn unwrap(topic: &str, letter: Message) -> Outgoing {
    let mut headers: Headers = letter.headers;
    headers.retain(|name| !name.starts_with(CONNECT_PREFIX) && !name.starts_with(STROBE_PREFIX));
    Outgoing {
        topic: topic.into(),
        key: letter.key,
        headers,
        payload: letter.payload,
    }
}

/// Reads the dead letters of `topic` that are there now, in order within each partition, until told to stop.
fn scan(
    settings: &BusSettings,
    topic: &str,
    mut visit: impl FnMut(Message) -> Result<ControlFlow<()>, Error>,
) -> Result<(), Error> {
    let dead = dead_letter_name(topic);
    let doing = "reading dead letters";
    // A group is named because librdkafka wants one; it is never joined and nothing is committed.
    let mut config = settings.consumer(Some("strobe-dlq"));
    config.set("enable.partition.eof", "true");
    let base: BaseConsumer<DefaultConsumerContext> =
        config.create().map_err(Error::kafka("making a consumer"))?;
    let mut from = TopicPartitionList::new();
    let mut unread = std::collections::BTreeMap::new();
    for partition in partition_numbers(&base, settings, &dead, STANDSTILL)? {
        let (start, end) = base
            .fetch_watermarks(&dead, partition, STANDSTILL)
            .map_err(Error::kafka(doing))?;
        if start < end {
            from.add_partition_offset(&dead, partition, Offset::Offset(start))
                .map_err(Error::kafka(doing))?;
            unread.insert(partition, end);
        }
    }
    base.assign(&from).map_err(Error::kafka(doing))?;
    let mut topic = None;
    let mut deadline = Instant::now() + STANDSTILL;
    while !unread.is_empty() {
        match base.poll(Duration::from_millis(100)) {
            None if Instant::now() >= deadline => {
                return Err(Error::TimedOut {
                    doing,
                    seconds: STANDSTILL.as_secs(),
                });
            }
            None => {}
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                unread.remove(&partition);
            }
            Some(Err(error)) => tracing::warn!(%error, "reading dead letters goes on after an error"),
            Some(Ok(message)) => {
                deadline = Instant::now() + STANDSTILL;
                let letter = native::take(&message, &mut topic);
                let (partition, offset) = (letter.partition.partition, letter.offset);
                let Some(end) = unread.get(&partition).copied() else {
                    continue;
                };
                if offset < end && visit(letter)?.is_break() {
                    return Ok(());
                }
                if offset + 1 >= end {
                    unread.remove(&partition);
                }
            }
        }
    }
    Ok(())
}
