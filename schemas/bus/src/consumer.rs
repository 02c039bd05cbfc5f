//! A member of a consumer group that commits by hand.
//!
//! **Who sees a rebalance, and when.** librdkafka's threads heartbeat in the background, but an assignment changes only
//! inside [`Consumer::poll`], on the caller's thread. After [`Event::Revoked`] the partitions are still ours until the
//! next poll: the broker waits, the old generation is still good, and the caller has its chance to finish and commit.
//! So between two polls the generation cannot move on, and a commit by a consumer that was stopped past its session
//! timeout, while another took over, is answered with "unknown member" or "illegal generation":
//! [`CommitError::Fenced`].
//!
//! One hole is closed here: when librdkafka itself notices first that it was expelled, it forgets its generation, and
//! a commit without one is *accepted* by a group that happens to have no member at that moment. So a commit is
//! reported as made only if the assignment was ours before it and still after it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;

use crate::error::{Error, is_transient_code};
use crate::message::{Message, Partition};
use crate::native::{self, Logs};
use crate::settings::BusSettings;
use crate::shutdown::lock;

/// What a poll brought.
#[derive(Debug)]
pub enum Event {
    /// A message.
    Message(Message),
    /// These partitions are ours now; nothing of them was read before, and none is paused.
    Assigned(Vec<Partition>),
    /// These partitions go at the next poll. Until then commits are good.
    Revoked(Vec<Partition>),
    /// These partitions are gone already; commits would be fenced. Forget what is under way.
    Lost(Vec<Partition>),
    /// Nothing within the timeout.
    Idle,
}

/// Why a commit was not made, or not for certain.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The partition belongs to somebody else, or will in a moment: what was read must not be acted upon.
    #[error("commit of {partition} at {offset} came too late: {reason}")]
    Fenced {
        /// The partition.
        partition: Partition,
        /// The offset that was to be committed.
        offset: i64,
        /// What the broker or librdkafka says.
        reason: String,
    },
    /// No answer: it may or may not have been made. Commit again.
    #[error("commit of {partition} at {offset} had no answer: {source}")]
    Unanswered {
        /// The partition.
        partition: Partition,
        /// The offset that was to be committed.
        offset: i64,
        /// What librdkafka says.
        source: KafkaError,
    },
    /// Refused for good: rights, or a metadata text over the broker's limit.
    #[error("commit of {partition} at {offset} was refused: {source}")]
    Refused {
        /// The partition.
        partition: Partition,
        /// The offset that was to be committed.
        offset: i64,
        /// What the broker says.
        source: KafkaError,
    },
}

impl CommitError {
    /// Returns whether the same commit can succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }
}

/// How far a partition has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    /// The partition.
    pub partition: Partition,
    /// The first offset that was not committed; `None`: nothing was ever committed.
    pub committed: Option<i64>,
    /// The first offset that still exists.
    pub start: i64,
    /// The offset that the next message will get.
    pub end: i64,
}

impl Lag {
    /// Returns how many messages have not been committed.
    pub fn messages(&self) -> u64 {
        let from = self.committed.unwrap_or(self.start).max(self.start);
        u64::try_from(self.end.saturating_sub(from)).unwrap_or(0)
    }
}

/// How long a question to the broker may take.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Assignments {
    logs: Logs,
    // At most one entry per served rebalance; each poll serves one and takes one.
    events: Mutex<VecDeque<Event>>,
    closing: AtomicBool,
}

impl ClientContext for Assignments {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.logs.log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.logs.error(error, reason);
    }

    fn stats(&self, _: Statistics) {}
}

impl ConsumerContext for Assignments {
    fn rebalance(&self, base: &BaseConsumer<Self>, err: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let partitions = partitions(list);
        if err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            if let Err(error) = base.assign(list) {
                tracing::error!(%error, "partitions could not be taken");
            }
            // librdkafka remembers over a rebalance what the application paused: what was given up while it was paused would
            // stay silent when it comes back.
            if let Err(error) = base.resume(list) {
                tracing::error!(%error, "partitions could not be resumed");
            }
            lock(&self.events).push_back(Event::Assigned(partitions));
        } else if self.closing.load(Ordering::Relaxed) {
            release(base);
        } else if base.assignment_lost() {
            lock(&self.events).push_back(Event::Lost(partitions));
        } else {
            // Not given up here: the caller finishes and commits first; the next poll gives them up.
            lock(&self.events).push_back(Event::Revoked(partitions));
        }
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    let elements = list.elements();
    elements
        .iter()
        .map(|element| Partition {
            topic: Arc::from(element.topic()),
            partition: element.partition(),
        })
        .collect()
}

fn release(base: &BaseConsumer<Assignments>) {
    if let Err(error) = base.unassign() {
        tracing::error!(%error, "partitions could not be given up");
    }
}

/// One member of a group.
pub struct Consumer {
    base: BaseConsumer<Assignments>,
    last_topic: Option<Arc<str>>,
    /// The caller has seen that its partitions go, and is about to poll again.
    release_due: bool,
}

impl Consumer {
    /// Returns a member of `group` that reads `topics`. It joins in the first polls.
    pub fn new(settings: &BusSettings, group: &str, topics: &[&str]) -> Result<Self, Error> {
        let config = settings.consumer(Some(group));
        let base = BaseConsumer::from_config_and_context(&config, Assignments::default())
            .map_err(Error::kafka("making a consumer"))?;
        base.subscribe(topics).map_err(Error::kafka("subscribing"))?;
        Ok(Self {
            base,
            last_topic: None,
            release_due: false,
        })
    }

    /// Returns what comes within `timeout`. Call it at least every `max.poll.interval.ms`, also while paused; partitions
    /// that the event before revoked are given up here. An error is one that polling again will not heal.
    pub fn poll(&mut self, timeout: Duration) -> Result<Event, Error> {
        if std::mem::take(&mut self.release_due) {
            release(&self.base);
        }
        let event = match self.base.poll(timeout) {
            Some(Ok(message)) => Event::Message(native::take(&message, &mut self.last_topic)),
            Some(Err(error)) => Trouble::of(error).map(|()| Event::Idle)?,
            None => Event::Idle,
        };
        // A poll that served a rebalance brings no message: rdkafka returns right after the callback.
        let event = match (event, lock(&self.base.context().events).pop_front()) {
            (Event::Idle, Some(served)) => served,
            (event, None) => event,
            (event, Some(served)) => {
                lock(&self.base.context().events).push_front(served);
                event
            }
        };
        self.release_due = matches!(event, Event::Revoked(_) | Event::Lost(_));
        Ok(event)
    }

    /// Returns the offset that was committed last for a partition, and the text beside it.
    pub fn committed(&self, partition: &Partition) -> Result<Option<(i64, String)>, Error> {
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition(&partition.topic, partition.partition);
        let doing = "reading a committed offset";
        let list = self
            .base
            .committed_offsets(list, ANSWER_WAIT)
            .map_err(Error::kafka(doing))?;
        let elements = list.elements();
        let Some(element) = elements.first() else {
            return Ok(None);
        };
        element.error().map_err(Error::kafka(doing))?;
        Ok(match element.offset() {
            Offset::Offset(offset) => Some((offset, element.metadata().to_owned())),
            _ => None,
        })
    }

    /// Commits the offset to read next, with a text beside it, and waits for the broker's answer. While the broker is
    /// away it waits up to the session timeout.
    pub fn commit(&self, partition: &Partition, next: i64, metadata: &str) -> Result<(), CommitError> {
        let fenced = |reason: String| {
            Err(CommitError::Fenced {
                partition: partition.clone(),
                offset: next,
                reason,
            })
        };
        if self.base.assignment_lost() {
            return fenced("the assignment was lost".into());
        }
        let made = self.commit_list(partition, next, metadata);
        if made.is_ok() && self.base.assignment_lost() {
            // See the head of this file: the broker may have taken it from nobody in particular.
            return fenced("the assignment was lost meanwhile".into());
        }
        use RDKafkaErrorCode as Code;
        let Err(source) = made else { return Ok(()) };
        match source.rdkafka_error_code() {
            Some(
                Code::IllegalGeneration
                | Code::UnknownMemberId
                | Code::RebalanceInProgress
                | Code::FencedInstanceId
                | Code::FencedMemberEpoch
                | Code::StaleMemberEpoch
                | Code::AssignmentLost,
            ) => fenced(source.to_string()),
            Some(code) if !is_transient_code(code) => Err(CommitError::Refused {
                partition: partition.clone(),
                offset: next,
                source,
            }),
            _ => Err(CommitError::Unanswered {
                partition: partition.clone(),
                offset: next,
                source,
            }),
        }
    }

    fn commit_list(&self, partition: &Partition, next: i64, metadata: &str) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(1);
        {
            let mut element = list.add_partition(&partition.topic, partition.partition);
            element.set_offset(Offset::Offset(next))?;
            if !metadata.is_empty() {
                element.set_metadata(metadata);
            }
        }
        // A list of one: the answer as a whole is the answer for this partition.
        self.base.commit(&list, CommitMode::Sync)
    }

    /// Stops reading partitions; polling must go on.
    pub fn pause(&self, partitions: &[Partition]) -> Result<(), Error> {
        self.base
            .pause(&list(partitions))
            .map_err(Error::kafka("pausing"))
    }

    /// Reads partitions again.
    pub fn resume(&self, partitions: &[Partition]) -> Result<(), Error> {
        self.base
            .resume(&list(partitions))
            .map_err(Error::kafka("resuming"))
    }

    /// Continues a partition of ours at `offset`.
    pub fn seek(&self, partition: &Partition, offset: i64) -> Result<(), Error> {
        self.base
            .seek(
                &partition.topic,
                partition.partition,
                Offset::Offset(offset),
                ANSWER_WAIT,
            )
            .map_err(Error::kafka("seeking"))
    }

    /// Returns the first offset of a partition whose message is not older than `time_ms`, milliseconds since 1970; the end
    /// of the partition where all are.
    pub fn offset_at(&self, partition: &Partition, time_ms: i64) -> Result<i64, Error> {
        let doing = "looking for an offset by time";
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition_offset(
            &partition.topic,
            partition.partition,
            Offset::Offset(time_ms.max(0)),
        )
        .map_err(Error::kafka(doing))?;
        let found = self
            .base
            .offsets_for_times(list, ANSWER_WAIT)
            .map_err(Error::kafka(doing))?;
        if let Some(Offset::Offset(offset)) = found.elements().first().map(|found| found.offset()) {
            return Ok(offset);
        }
        let (_, end) = self
            .base
            .fetch_watermarks(&partition.topic, partition.partition, ANSWER_WAIT)
            .map_err(Error::kafka(doing))?;
        Ok(end)
    }

    /// Returns the partitions that are ours.
    pub fn assignment(&self) -> Result<Vec<Partition>, Error> {
        let list = self
            .base
            .assignment()
            .map_err(Error::kafka("reading the assignment"))?;
        Ok(partitions(&list))
    }

    /// Returns how far each partition of ours has been committed and how far it goes.
    pub fn lag(&self) -> Result<Vec<Lag>, Error> {
        let list = self
            .base
            .assignment()
            .map_err(Error::kafka("reading the assignment"))?;
        lags(&self.base, list)
    }

    /// Leaves the group, so that the others take over at once.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // From here on nobody is there to be asked: the callback gives partitions up by itself.
        self.base.context().closing.store(true, Ordering::Relaxed);
        if self.release_due {
            release(&self.base);
        }
    }
}

/// Returns how far each partition of the list has been committed and how far it goes.
pub(crate) fn lags<C: ConsumerContext>(
    base: &BaseConsumer<C>,
    list: TopicPartitionList,
) -> Result<Vec<Lag>, Error> {
    let committed = base
        .committed_offsets(list, ANSWER_WAIT)
        .map_err(Error::kafka("reading the committed offsets"))?;
    let elements = committed.elements();
    let lag = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        let (start, end) = base
            .fetch_watermarks(element.topic(), element.partition(), ANSWER_WAIT)
            .map_err(Error::kafka("reading the ends of a partition"))?;
        let partition = Partition {
            topic: Arc::from(element.topic()),
            partition: element.partition(),
        };
        let committed = match element.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        };
        Ok(Lag {
            partition,
            committed,
            start,
            end,
        })
    };
    elements.iter().map(lag).collect()
}

fn list(partitions: &[Partition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(&partition.topic, partition.partition);
    }
    list
}

/// Trouble while polling.
pub(crate) struct Trouble;

impl Trouble {
    /// Tells an error that polling will heal, which is logged, from one that it will not.
    pub(crate) fn of(error: KafkaError) -> Result<(), Error> {
        use RDKafkaErrorCode as Code;
        let fatal = match &error {
            KafkaError::MessageConsumptionFatal(_) => true,
            other => matches!(
                other.rdkafka_error_code(),
                Some(
                    Code::TopicAuthorizationFailed
                        | Code::GroupAuthorizationFailed
                        | Code::ClusterAuthorizationFailed
                        | Code::SaslAuthenticationFailed
                        | Code::Authentication
                        | Code::Fatal
                )
            ),
        };
        if fatal {
            return Err(Error::Kafka {
                doing: "reading",
                source: error,
            });
        }
        if let Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) = error.rdkafka_error_code() {
            tracing::warn!(%error, "a topic is missing: `strobe topics apply` makes it; reading goes on when it is there");
            return Ok(());
        }
        // That brokers are away is said by the client's log, now and then.
        if !native::is_away(&error) {
            tracing::warn!(%error, "reading goes on after an error");
        }
        Ok(())
    }
}
