//! A message as it was read, and one as it will be sent.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::headers::Headers;

/// One partition of one topic.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The topic, by its full name.
    pub topic: Arc<str>,
    /// The partition's number.
    pub partition: i32,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A message that was read. Cheap to clone: its bytes are copied once, out of librdkafka's memory.
#[derive(Debug, Clone)]
pub struct Message {
    /// Where it lay.
    pub partition: Partition,
    /// Its offset there.
    pub offset: i64,
    /// Milliseconds since 1970 (UTC), when known.
    pub timestamp_ms: Option<i64>,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its headers.
    pub headers: Headers,
    /// Its value; `None` is a tombstone, which is not the same as an empty value.
    pub payload: Option<Bytes>,
}

impl Message {
    /// Returns the value's bytes; those of a tombstone are none.
    pub fn bytes(&self) -> &[u8] {
        self.payload.as_deref().unwrap_or_default()
    }

    /// Returns when the broker took it, microseconds since 1970 (UTC); 0 where that is not known.
    pub fn taken_us(&self) -> u64 {
        self.timestamp_ms.map_or(0, |ms| ms.max(0) as u64 * 1_000)
    }

    /// Returns about how much memory it holds.
    pub fn cost(&self) -> usize {
        cost(&self.key, &self.headers, &self.payload)
    }
}

/// A message that will be sent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The topic, by its full name.
    pub topic: Arc<str>,
    /// The key, which decides the partition; without one librdkafka spreads messages.
    pub key: Option<Bytes>,
    /// The headers.
    pub headers: Headers,
    /// The value; `None` is a tombstone.
    pub payload: Option<Bytes>,
}

impl Outgoing {
    /// Returns about how much memory it holds.
    pub fn cost(&self) -> usize {
        cost(&self.key, &self.headers, &self.payload)
    }
}

/// Bookkeeping of one message beside its bytes: the entry in a window and the headers' vector.
const MESSAGE_OVERHEAD_BYTES: usize = 256;

fn cost(key: &Option<Bytes>, headers: &Headers, payload: &Option<Bytes>) -> usize {
    MESSAGE_OVERHEAD_BYTES
        + key.as_ref().map_or(0, Bytes::len)
        + headers.cost()
        + payload.as_ref().map_or(0, Bytes::len)
}
