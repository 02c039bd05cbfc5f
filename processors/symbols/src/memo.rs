//! What is known already: (binary, address) → locations, within a budget of bytes.
//!
//! Two halves. Answers go into the younger one; when it holds half of the budget it becomes the older one, and what
//! the older one held is forgotten, text and all. An answer found in the older half moves to the younger. So what is
//! used stays, and nothing has to be freed piece by piece. A half turns only between batches ([`Memo::turn`]): ids
//! handed out during a batch stay valid, and the budget may be passed by what one batch adds.

use std::mem;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use strobe_event::Reason;

/// Bytes that a distinct text costs beside its own: counts, two pointers, a place in the index.
const TEXT_OVERHEAD_BYTES: usize = 80;
/// Bytes of an answer's place in its index, free places included.
const ANSWER_BYTES: usize = 32;

/// One location: indexes into the younger half's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoLocation {
    pub function: u32,
    pub file: u32,
    pub line: u32,
}

/// An answer: `count` locations from `start`, or none and the code of a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub start: u32,
    pub count: u16,
    pub reason: u8,
}

impl Entry {
    /// Returns the answer that a frame has no name.
    pub(crate) fn unknown(reason: Reason) -> Self {
        Self {
            start: 0,
            count: 0,
            reason: reason as u8,
        }
    }
}

#[derive(Debug)]
struct Half {
    index: FxHashMap<Arc<str>, u32>,
    text: Vec<Arc<str>>,
    locations: Vec<MemoLocation>,
    /// By binary, then by address.
    answers: Vec<FxHashMap<u64, Entry>>,
    bytes: usize,
}

impl Half {
    fn new() -> Self {
        // The first text is empty and stands for "not known".
        let empty: Arc<str> = Arc::from("");
        let mut index = FxHashMap::default();
        index.insert(Arc::clone(&empty), 0);
        Self {
            index,
            text: vec![empty],
            locations: Vec::new(),
            answers: Vec::new(),
            bytes: 0,
        }
    }

    fn get(&self, binary: u32, address: u64) -> Option<Entry> {
        self.answers.get(binary as usize)?.get(&address).copied()
    }

    fn intern(&mut self, text: &Arc<str>) -> u32 {
        if let Some(&id) = self.index.get(text) {
            return id;
        }
        let id = self.text.len() as u32;
        self.index.insert(Arc::clone(text), id);
        self.text.push(Arc::clone(text));
        self.bytes += text.len() + TEXT_OVERHEAD_BYTES;
        id
    }

    fn insert(&mut self, binary: u32, address: u64, entry: Entry) {
        let binary = binary as usize;
        if self.answers.len() <= binary {
            self.answers.resize_with(binary + 1, FxHashMap::default);
        }
        if self.answers[binary].insert(address, entry).is_none() {
            self.bytes += ANSWER_BYTES;
        }
    }
}

/// The memo.
#[derive(Debug)]
pub(crate) struct Memo {
    younger: Half,
    older: Half,
    bytes_max: usize,
    turns: u64,
}

impl Memo {
    /// Returns an empty memo.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            younger: Half::new(),
            older: Half::new(),
            bytes_max,
            turns: 0,
        }
    }

    /// Returns how often ids of text have become invalid.
    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }

    /// Returns the bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.younger.bytes + self.older.bytes
    }

    /// Forgets the older half if the younger one has reached half of the budget, and says so.
    pub(crate) fn turn(&mut self) -> bool {
        let full = self.younger.bytes > self.bytes_max / 2;
        if full {
            self.older = mem::replace(&mut self.younger, Half::new());
            self.turns += 1;
        }
        full
    }

    /// Returns the answer for an address, if it is known.
    #[inline]
    pub(crate) fn get(&mut self, binary: u32, address: u64) -> Option<Entry> {
        match self.younger.get(binary, address) {
            Some(entry) => Some(entry),
            None => self.bring_over(binary, address),
        }
    }

    fn bring_over(&mut self, binary: u32, address: u64) -> Option<Entry> {
        let old = self.older.get(binary, address)?;
        let start = self.younger.locations.len() as u32;
        for at in old.start..old.start + u32::from(old.count) {
            let location = self.older.locations[at as usize];
            let function = self.younger.intern(&self.older.text[location.function as usize]);
            let file = self.younger.intern(&self.older.text[location.file as usize]);
            self.push(MemoLocation {
                function,
                file,
                line: location.line,
            });
        }
        let entry = if old.count == 0 {
            old
        } else {
            Entry { start, ..old }
        };
        self.younger.insert(binary, address, entry);
        Some(entry)
    }

    fn push(&mut self, location: MemoLocation) {
        self.younger.locations.push(location);
        self.younger.bytes += size_of::<MemoLocation>();
    }

    /// Returns the id of a text.
    pub(crate) fn intern(&mut self, text: &str) -> u32 {
        match self.younger.index.get(text) {
            Some(&id) => id,
            None => self.younger.intern(&Arc::from(text)),
        }
    }

    /// Remembers the answer for an address.
    pub(crate) fn insert(
        &mut self,
        binary: u32,
        address: u64,
        answer: Result<impl Iterator<Item = MemoLocation>, Reason>,
    ) {
        let entry = match answer {
            Err(reason) => Entry::unknown(reason),
            Ok(locations) => {
                let start = self.younger.locations.len();
                locations.for_each(|location| self.push(location));
                let count = self.younger.locations.len() - start;
                // A worker's answer counts locations in 16 bits.
                Entry {
                    start: start as u32,
                    count: count as u16,
                    reason: 0,
                }
            }
        };
        self.younger.insert(binary, address, entry);
    }

    /// Returns the locations of an answer that was given since the last turn, outermost first.
    pub(crate) fn locations(&self, entry: Entry) -> &[MemoLocation] {
        let start = entry.start as usize;
        self.younger
            .locations
            .get(start..start + usize::from(entry.count))
            .unwrap_or_default()
    }

    /// Returns the text of an id.
    pub(crate) fn text(&self, id: u32) -> &Arc<str> {
        self.younger
            .text
            .get(id as usize)
            .unwrap_or(&self.younger.text[0])
    }

    /// Returns how many texts have an id.
    pub(crate) fn texts(&self) -> usize {
        self.younger.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remember(memo: &mut Memo, address: u64) {
        let function = memo.intern(&format!("function {address}"));
        let file = memo.intern("file.c");
        let location = MemoLocation {
            function,
            file,
            line: address as u32,
        };
        memo.insert(3, address, Ok([location].into_iter()));
    }

    fn recall(memo: &mut Memo, address: u64) -> Option<(String, u32)> {
        let entry = memo.get(3, address)?;
        let location = memo.locations(entry)[0];
        assert_eq!(&**memo.text(location.file), "file.c");
        Some((memo.text(location.function).to_string(), location.line))
    }

    /// Checks that the budget holds, that what is used stays, and that what is not is forgotten.
    #[test]
    fn what_is_used_stays_within_the_budget() {
        let mut memo = Memo::new(64 << 10);
        remember(&mut memo, 0);
        memo.insert(3, u64::MAX, Err::<std::iter::Empty<_>, _>(Reason::MissingSymbols));
        let mut turns = 0;
        for address in 1..10_000 {
            turns += usize::from(memo.turn());
            remember(&mut memo, address);
            assert_eq!(recall(&mut memo, 0), Some(("function 0".to_owned(), 0)));
            assert_eq!(
                memo.get(3, u64::MAX),
                Some(Entry::unknown(Reason::MissingSymbols))
            );
            assert!(memo.bytes() <= (64 << 10) + 1_024, "{} bytes", memo.bytes());
        }
        assert!(turns > 10);
        assert_eq!(recall(&mut memo, 1), None);
        assert_eq!(
            recall(&mut memo, 9_999),
            Some(("function 9999".to_owned(), 9_999))
        );
    }
}
