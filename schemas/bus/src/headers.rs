//! Headers: what every message says of itself outside its value, so that even an unreadable one is counted.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use strobe_event::{Identity, RunId};

/// The host whose spool gave the identity.
pub const HOST: &str = "strobe-host";
/// The epoch, 32 hexadecimal digits.
pub const EPOCH: &str = "strobe-epoch";
/// The sequence within the epoch, decimal.
pub const SEQUENCE: &str = "strobe-sequence";
/// The part of a split batch, decimal.
pub const PART: &str = "strobe-part";
/// The run, 32 hexadecimal digits.
pub const RUN: &str = "strobe-run";
/// How many samples the value holds, decimal.
pub const SAMPLES: &str = "strobe-samples";

/// The headers of one message, in order; a name may come more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    entries: Vec<(String, Option<Bytes>)>,
    unreadable: u32,
}

impl Headers {
    /// Returns headers without an entry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        self.entries.push((name.into(), Some(value.into())));
    }

    /// Adds an entry that may have no value at the end.
    pub fn push_optional(&mut self, name: impl Into<String>, value: Option<Bytes>) {
        self.entries.push((name.into(), value));
    }

    /// Returns the value of the last entry of that name: Kafka's own rule when a name comes twice.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries
            .iter()
            .rev()
            .find(|(have, _)| have == name)
            .and_then(|(_, value)| value.as_deref())
    }

    /// Returns the value of `name` as text, when it is there and is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Returns the value of `name` read as `T`, when it is there and can be read.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    /// Keeps the entries whose name passes.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.entries.retain(|(name, _)| keep(name));
    }

    /// Returns the entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&Bytes>)> {
        self.entries
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_ref()))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns how many entries could not be taken over because their name is not UTF-8: only foreign messages
    /// have such.
    pub fn unreadable(&self) -> u32 {
        self.unreadable
    }

    pub(crate) fn set_unreadable(&mut self, count: u32) {
        self.unreadable = count;
    }

    pub(crate) fn cost(&self) -> usize {
        self.entries
            .iter()
            .map(|(name, value)| name.len() + value.as_ref().map_or(0, Bytes::len) + 64)
            .sum()
    }
}

/// What the headers of every message say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The identity that the spool gave.
    pub identity: Identity,
    /// The run it belongs to.
    pub run: RunId,
    /// How many samples the value holds; 0 for the events of a run.
    pub samples: u64,
}

/// A header of the bus that is missing, or that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header `{name}` {problem}")]
pub struct HeaderError {
    /// The header.
    pub name: &'static str,
    /// What is wrong with it.
    pub problem: HeaderProblem,
}

/// What is wrong with a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderProblem {
    /// It is not there.
    Missing,
    /// It is not text, or not text of the right form; the first bytes of what was there.
    Invalid(String),
}

/// Bytes of a bad header that an error shows: enough to recognize it, too few to flood a log.
const SHOWN_BYTES_MAX: usize = 64;

impl fmt::Display for HeaderProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Invalid(text) => write!(f, "is invalid: `{}`", text.escape_debug()),
        }
    }
}

impl Meta {
    /// Returns the headers that say it.
    pub fn to_headers(&self) -> Headers {
        let mut headers = Headers {
            entries: Vec::with_capacity(6),
            unreadable: 0,
        };
        headers.push(HOST, self.identity.host.clone());
        headers.push(EPOCH, self.identity.epoch.to_string());
        headers.push(SEQUENCE, self.identity.sequence.to_string());
        headers.push(PART, self.identity.part.to_string());
        headers.push(RUN, self.run.to_string());
        headers.push(SAMPLES, self.samples.to_string());
        headers
    }

    /// Returns what the headers say; the error names the one that does not.
    pub fn from_headers(headers: &Headers) -> Result<Self, HeaderError> {
        let host = text(headers, HOST)?;
        if host.is_empty() {
            return Err(HeaderError {
                name: HOST,
                problem: HeaderProblem::Invalid(String::new()),
            });
        }
        Ok(Self {
            identity: Identity {
                host: host.to_owned(),
                epoch: parse(headers, EPOCH)?,
                sequence: parse(headers, SEQUENCE)?,
                part: parse(headers, PART)?,
            },
            run: parse(headers, RUN)?,
            samples: parse(headers, SAMPLES)?,
        })
    }
}

fn text<'a>(headers: &'a Headers, name: &'static str) -> Result<&'a str, HeaderError> {
    let value = headers.get(name).ok_or(HeaderError {
        name,
        problem: HeaderProblem::Missing,
    })?;
    std::str::from_utf8(value).map_err(|_| invalid(name, value))
}

fn parse<T: FromStr>(headers: &Headers, name: &'static str) -> Result<T, HeaderError> {
    let value = text(headers, name)?;
    value.parse().map_err(|_| invalid(name, value.as_bytes()))
}

fn invalid(name: &'static str, value: &[u8]) -> HeaderError {
    let shown = &value[..value.len().min(SHOWN_BYTES_MAX)];
    HeaderError {
        name,
        problem: HeaderProblem::Invalid(String::from_utf8_lossy(shown).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use strobe_event::Epoch;

    use super::*;

    fn meta() -> Meta {
        let identity = Identity {
            host: "höst".into(),
            epoch: Epoch([0xab; 16]),
            sequence: u64::MAX,
            part: 3,
        };
        Meta {
            identity,
            run: RunId([1; 16]),
            samples: 8_192,
        }
    }

    /// Checks that what a message says of itself survives its headers.
    #[test]
    fn meta_round_trips() {
        assert_eq!(Meta::from_headers(&meta().to_headers()), Ok(meta()));
    }

    /// Checks that each missing and each damaged header is named by the error.
    #[test]
    fn a_bad_header_is_named() {
        for name in [HOST, EPOCH, SEQUENCE, PART, RUN, SAMPLES] {
            let mut missing = meta().to_headers();
            missing.retain(|have| have != name);
            assert_eq!(
                Meta::from_headers(&missing),
                Err(HeaderError {
                    name,
                    problem: HeaderProblem::Missing
                })
            );
            for bad in [&b"\xff\xfe"[..], b"", b"-1\n"] {
                let mut damaged = meta().to_headers();
                damaged.push(name, bad);
                let outcome = Meta::from_headers(&damaged);
                if name == HOST && bad == b"-1\n" {
                    assert!(outcome.is_ok(), "a host may be called anything");
                } else {
                    assert_eq!(outcome.map_err(|error| error.name), Err(name), "{bad:?}");
                }
            }
        }
    }
}
