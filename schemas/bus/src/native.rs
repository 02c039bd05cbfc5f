//! Between our types and librdkafka's: logs, headers, messages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::statistics::Statistics;

use crate::headers::Headers;
use crate::message::{Message, Partition};
use crate::shutdown::lock;

/// Sends librdkafka's log lines and errors to ours.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// When it was last said that brokers are away.
    away: Mutex<Option<Instant>>,
}

/// Time between two lines that say that brokers are away: librdkafka says so at each attempt to connect, 20 per second.
const AWAY_EVERY: Duration = Duration::from_secs(10);

impl Logs {
    fn may_say_away(&self) -> bool {
        let mut said = lock(&self.away);
        let due = said.is_none_or(|at| at.elapsed() >= AWAY_EVERY);
        if due {
            *said = Some(Instant::now());
        }
        due
    }
}

/// Returns whether an error says that brokers cannot be reached, which heals by itself.
pub(crate) fn is_away(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let away = [Code::BrokerTransportFailure, Code::AllBrokersDown, Code::Resolve];
    error
        .rdkafka_error_code()
        .is_some_and(|code| away.contains(&code))
}

impl ClientContext for Logs {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        use RDKafkaLogLevel as Level;
        match level {
            // The error that goes with it says the same.
            _ if facility == "FAIL" => tracing::debug!(target: "librdkafka", facility, "{text}"),
            // librdkafka retries whatever can be retried; what cannot comes back as an error of the call.
            Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning => {
                tracing::warn!(target: "librdkafka", facility, "{text}");
            }
            Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{text}"),
            Level::Debug => tracing::debug!(target: "librdkafka", facility, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Only who asks for the ends of partitions is told of them, and takes them from its poll.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        if !is_away(&error) || self.may_say_away() {
            tracing::warn!(target: "librdkafka", %error, "{reason}");
        }
    }

    fn stats(&self, _: Statistics) {}
}

impl ConsumerContext for Logs {}

/// Returns librdkafka's form of the headers, or none when there are none.
pub(crate) fn to_native(headers: &Headers) -> Option<OwnedHeaders> {
    if headers.is_empty() {
        return None;
    }
    let mut native = OwnedHeaders::new_with_capacity(headers.len());
    for (key, value) in headers.iter() {
        native = native.insert(Header {
            key,
            value: value.map(|value| &value[..]),
        });
    }
    Some(native)
}

/// Returns our form of the headers.
fn from_native(native: &BorrowedHeaders) -> Headers {
    let mut headers = Headers::new();
    let mut unreadable = 0;
    for index in 0..native.count() {
        // rdkafka panics on a name that is not UTF-8, and a foreign message can have one: such an entry is left out
        // and counted, and does not take the service down.
        match catch_unwind(AssertUnwindSafe(|| native.try_get(index))) {
            Ok(Some(entry)) => headers.push_optional(entry.key, entry.value.map(Bytes::copy_from_slice)),
            Ok(None) => {}
            Err(_) => unreadable += 1,
        }
    }
    headers.set_unreadable(unreadable);
    headers
}

/// Returns the message in memory of our own. `last` is the topic of the message before: most often the same one.
pub(crate) fn take(native: &BorrowedMessage<'_>, last: &mut Option<Arc<str>>) -> Message {
    let name = native.topic();
    let topic = match last {
        Some(topic) if **topic == *name => Arc::clone(topic),
        _ => Arc::clone(last.insert(Arc::from(name))),
    };
    Message {
        partition: Partition {
            topic,
            partition: native.partition(),
        },
        offset: native.offset(),
        timestamp_ms: native.timestamp().to_millis(),
        key: native.key().map(Bytes::copy_from_slice),
        headers: native.headers().map(from_native).unwrap_or_default(),
        payload: native.payload().map(Bytes::copy_from_slice),
    }
}
