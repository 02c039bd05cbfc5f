//! What stands beside a committed offset: which range its owner is about to insert, and how.
//!
//! The text is `1 a<attempt> [l<last> [u] [s<skipped>] [c<cut>]]`, numbers decimal, offsets relative to the first of
//! the range: `1 a0 l120 s3-5,9 c17:4.10` names the range up to offset first + 120, of which messages 3, 4, 5 and 9 are
//! not inserted, and of message 17 only parts 4 and 10. `u` says that the range was refused and its totals are being
//! taken back. Text of an unknown version is an error that stops the sink: guessing would double samples.

use std::collections::BTreeMap;
use std::fmt;

/// Kafka's own default limit on the text (`offset.metadata.max.bytes`).
pub const TEXT_BYTES_MAX: usize = 4_096;

/// Room for what a range may still add after it was measured: the mark `u` and a longer number of attempts.
const RESERVE_BYTES: usize = 32;

/// One range under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// First offset: the one committed.
    pub first: i64,
    /// Last offset.
    pub last: i64,
    /// How often ranges that start here were refused and taken back; part of the tokens.
    pub attempt: u32,
    /// Whether it was refused, and its totals are being taken back.
    pub undo: bool,
    /// Offsets that are not inserted, as inclusive ranges in order.
    pub skipped: Vec<(i64, i64)>,
    /// Messages of which only some parts are inserted: the numbers of the parts.
    pub cut: BTreeMap<i64, Vec<u32>>,
}

/// What a text says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Nothing is under way.
    Free {
        /// The attempt that the next range from here is.
        attempt: u32,
    },
    /// A range is.
    Pending(Pending),
}

/// Text that this version does not understand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` beside a committed offset is not of this version: finish with the sink that wrote it")]
pub struct Unreadable(pub String);

impl Pending {
    /// Returns an empty range that begins at `first`.
    pub fn new(first: i64, attempt: u32) -> Self {
        Self {
            first,
            last: first,
            attempt,
            undo: false,
            skipped: Vec::new(),
            cut: BTreeMap::new(),
        }
    }

    /// Notes that the message at `offset`, behind all noted before, is not inserted.
    pub fn skip(&mut self, offset: i64) {
        match self.skipped.last_mut() {
            Some((_, end)) if *end + 1 == offset => *end = offset,
            _ => self.skipped.push((offset, offset)),
        }
    }

    /// Returns whether the message at `offset` is not inserted.
    pub fn skips(&self, offset: i64) -> bool {
        let at = self.skipped.partition_point(|&(_, end)| end < offset);
        self.skipped.get(at).is_some_and(|&(start, _)| start <= offset)
    }

    /// Returns whether the text fits beside an offset.
    pub fn fits(&self) -> bool {
        // An estimate from above is cheap and enough: numbers relative to the first are short.
        let digits = |number: i64| number.max(1).ilog10() as usize + 1;
        let relative = |offset: i64| digits(offset - self.first);
        let skipped: usize = self
            .skipped
            .iter()
            .map(|&(a, b)| relative(a) + relative(b) + 2)
            .sum();
        let cut: usize = self
            .cut
            .iter()
            .map(|(&offset, parts)| {
                relative(offset) + 2 + parts.iter().map(|&part| digits(part.into()) + 1).sum::<usize>()
            })
            .sum();
        RESERVE_BYTES + 20 + relative(self.last) + skipped + cut <= TEXT_BYTES_MAX
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free { attempt: 0 } => Ok(()),
            Self::Free { attempt } => write!(f, "1 a{attempt}"),
            Self::Pending(pending) => pending.fmt(f),
        }
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 a{} l{}", self.attempt, self.last - self.first)?;
        if self.undo {
            f.write_str(" u")?;
        }
        for (index, &(start, end)) in self.skipped.iter().enumerate() {
            f.write_str(if index == 0 { " s" } else { "," })?;
            write!(f, "{}", start - self.first)?;
            if end > start {
                write!(f, "-{}", end - self.first)?;
            }
        }
        for (index, (offset, parts)) in self.cut.iter().enumerate() {
            f.write_str(if index == 0 { " c" } else { "," })?;
            write!(f, "{}", offset - self.first)?;
            for (index, part) in parts.iter().enumerate() {
                write!(f, "{}{part}", if index == 0 { ':' } else { '.' })?;
            }
        }
        Ok(())
    }
}

impl Note {
    /// Returns what `text` beside the committed offset `first` says.
    ///
    /// # Errors
    /// [`Unreadable`] holds the text.
    pub fn parse(first: i64, text: &str) -> Result<Self, Unreadable> {
        if text.is_empty() {
            return Ok(Self::Free { attempt: 0 });
        }
        read(first, text).ok_or_else(|| Unreadable(text.to_owned()))
    }
}

fn read(first: i64, text: &str) -> Option<Note> {
    let mut words = text.split(' ');
    if words.next() != Some("1") {
        return None;
    }
    let attempt = words.next()?.strip_prefix('a')?.parse().ok()?;
    let Some(word) = words.next() else {
        return Some(Note::Free { attempt });
    };
    let offset = |text: &str| first.checked_add(text.parse::<u32>().ok()?.into());
    let mut pending = Pending::new(first, attempt);
    pending.last = offset(word.strip_prefix('l')?)?;
    for word in words {
        let (kind, rest) = word.split_at_checked(1)?;
        match kind {
            "u" if rest.is_empty() => pending.undo = true,
            "s" => {
                for range in rest.split(',') {
                    let (start, end) = range.split_once('-').unwrap_or((range, range));
                    pending.skipped.push((offset(start)?, offset(end)?));
                }
            }
            "c" => {
                for entry in rest.split(',') {
                    let (at, parts) = entry.split_once(':')?;
                    let parts: Option<Vec<u32>> = parts.split('.').map(|part| part.parse().ok()).collect();
                    pending.cut.insert(offset(at)?, parts?);
                }
            }
            _ => return None,
        }
    }
    Some(Note::Pending(pending))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks the text itself, which a sink of the next version must still read.
    #[test]
    fn the_text_is_frozen() {
        let mut pending = Pending::new(1_000, 0);
        pending.last = 1_120;
        [1_003, 1_004, 1_005, 1_009]
            .into_iter()
            .for_each(|offset| pending.skip(offset));
        pending.cut.insert(1_017, vec![4, 10]);
        assert_eq!(pending.to_string(), "1 a0 l120 s3-5,9 c17:4.10");
        assert!(
            pending.skips(1_004) && pending.skips(1_009) && !pending.skips(1_006) && !pending.skips(1_002)
        );
        assert_eq!(
            Note::parse(1_000, "1 a0 l120 s3-5,9 c17:4.10"),
            Ok(Note::Pending(pending))
        );
        assert_eq!(Note::parse(7, ""), Ok(Note::Free { attempt: 0 }));
        for bad in [
            "2 a0",
            "1",
            "1 b0",
            "1 a0 l",
            "1 a0 l5 x",
            "1 a0 l5 s",
            "1 a0 l5 c3",
            "1 a0 l-5",
            "hello",
        ] {
            assert!(Note::parse(7, bad).is_err(), "{bad}");
        }
    }

    proptest! {
        /// Checks that what is written is what is read, and that what is said to fit does.
        #[test]
        fn notes_round_trip(
            first in 0_i64..i64::MAX / 2, length in 0_i64..2_000, attempt in 0_u32..5, undo: bool,
            skipped in proptest::collection::btree_set(0_i64..2_000, 0..900),
            cut in proptest::collection::btree_map(0_i64..2_000, proptest::collection::vec(2_u32.., 1..6), 0..40),
        ) {
            let mut pending = Pending { undo, last: first + length, ..Pending::new(first, attempt) };
            skipped.iter().for_each(|offset| pending.skip(first + offset));
            pending.cut = cut.into_iter().map(|(offset, parts)| (first + offset, parts)).collect();
            let text = pending.to_string();
            prop_assert_eq!(Note::parse(first, &text), Ok(Note::Pending(pending.clone())));
            prop_assert!(!pending.fits() || text.len() <= TEXT_BYTES_MAX);
            prop_assert!((0..2_000).all(|offset| pending.skips(first + offset) == skipped.contains(&offset)));
        }
    }
}
