//! The end of a topic, from some time on: what everybody who follows it reads for himself.
//!
//! Like a table ([`crate::Compacted`]) it has no group and commits nothing; unlike one, it need not be read from its start.

use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::Offset;

use crate::compacted::Compacted;
use crate::error::Error;
use crate::message::Message;
use crate::settings::BusSettings;

/// How long the broker may take to say where a time lies.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// A reader of one topic from some time on.
pub struct Tail {
    reader: Compacted,
}

impl Tail {
    /// Returns a reader whose first messages are the oldest that are not older than `since_ms`, milliseconds since 1970 by the
    /// topic's time.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::TopicMissing`], which may heal: try again.
    pub fn open(settings: &BusSettings, topic: &str, since_ms: i64) -> Result<Self, Error> {
        let doing = "looking for an offset by time";
        let reader = Compacted::open_at(settings, topic, |base, from| {
            let mut times = from.clone();
            times
                .set_all_offsets(Offset::Offset(since_ms.max(0)))
                .map_err(Error::kafka(doing))?;
            let found = base
                .offsets_for_times(times, ANSWER_WAIT)
                .map_err(Error::kafka(doing))?;
            for element in found.elements() {
                // Nothing is that young: what comes next is the first.
                let offset = match element.offset() {
                    Offset::Offset(offset) => offset,
                    _ => {
                        let (_, end) = base
                            .fetch_watermarks(topic, element.partition(), ANSWER_WAIT)
                            .map_err(Error::kafka(doing))?;
                        end
                    }
                };
                from.set_partition_offset(topic, element.partition(), Offset::Offset(offset))
                    .map_err(Error::kafka(doing))?;
            }
            Ok(())
        })?;
        Ok(Self { reader })
    }

    /// Returns whether everything that was there when the reader was opened has been handed over.
    pub fn is_caught_up(&self) -> bool {
        self.reader.is_caught_up()
    }

    /// Hands over what comes within `timeout`, in the order of each partition; returns after the first pause.
    ///
    /// # Errors
    /// One that reading on will not heal: missing rights.
    pub fn poll(&mut self, timeout: Duration, take: impl FnMut(Message)) -> Result<(), Error> {
        self.reader.poll(timeout, take)
    }

    /// Reads on until everything that was there is handed over.
    ///
    /// # Errors
    /// [`Error::TimedOut`] where the broker stands still, and those of [`Tail::poll`].
    pub fn catch_up(&mut self, take: impl FnMut(Message)) -> Result<(), Error> {
        self.reader.catch_up(take)
    }
}
