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
const ANSWER_BYTES: usize = 48;
/// Bytes of a chain's place in the index of those that were brought over.
const MOVED_BYTES: usize = 32;

/// One location: indexes into the younger half's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoLocation {
    pub function: u32,
    pub file: u32,
    pub line: u32,
}

/// A chain of functions: `count` locations from `start`, or none and the code of a reason. Answers share it; each says itself
/// where in the innermost function it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    pub start: u32,
    pub count: u16,
    pub reason: u8,
}

/// An answer: a chain, and the innermost function's file and line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub chain: Chain,
    pub file: u32,
    pub line: u32,
}

impl Entry {
    /// Returns the answer that a frame has no name.
    pub(crate) fn unknown(reason: Reason) -> Self {
        let chain = Chain {
            start: 0,
            count: 0,
            reason: reason as u8,
        };
        Self {
            chain,
            file: 0,
            line: 0,
        }
    }

    /// Returns whether there is no name.
    pub(crate) fn is_unknown(&self) -> bool {
        self.chain.count == 0
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
    /// Chains of the older half that are in the younger one already.
    moved: FxHashMap<u32, Chain>,
    bytes_max: usize,
    turns: u64,
}

impl Memo {
    /// Returns an empty memo.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            younger: Half::new(),
            older: Half::new(),
            moved: FxHashMap::default(),
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
            self.moved = FxHashMap::default();
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
        let entry = match old.is_unknown() {
            true => old,
            false => Entry {
                chain: self.bring_chain(old.chain),
                file: self.younger.intern(&self.older.text[old.file as usize]),
                line: old.line,
            },
        };
        self.younger.insert(binary, address, entry);
        Some(entry)
    }

    fn bring_chain(&mut self, old: Chain) -> Chain {
        if let Some(&chain) = self.moved.get(&old.start) {
            return chain;
        }
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
        let chain = Chain { start, ..old };
        self.moved.insert(old.start, chain);
        self.younger.bytes += MOVED_BYTES;
        chain
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

    /// Remembers a chain of locations, outermost first; file and line of the innermost are each answer's own.
    pub(crate) fn chain(&mut self, locations: impl Iterator<Item = MemoLocation>) -> Chain {
        let start = self.younger.locations.len();
        locations.for_each(|location| self.push(location));
        // A worker's answer counts locations in 16 bits, and a file's chains are shorter.
        let count = self.younger.locations.len() - start;
        Chain {
            start: start as u32,
            count: count as u16,
            reason: 0,
        }
    }

    /// Remembers the answer for an address.
    pub(crate) fn insert(&mut self, binary: u32, address: u64, entry: Entry) {
        self.younger.insert(binary, address, entry);
    }

    /// Returns the locations of an answer that was given since the last turn, outermost first.
    #[inline]
    pub(crate) fn locations(&self, entry: Entry) -> impl Iterator<Item = MemoLocation> {
        let start = entry.chain.start as usize;
        let chain = self
            .younger
            .locations
            .get(start..start + usize::from(entry.chain.count));
        let (innermost, around) = chain.and_then(<[_]>::split_last).unzip();
        let innermost = innermost.map(|innermost: &MemoLocation| MemoLocation {
            function: innermost.function,
            file: entry.file,
            line: entry.line,
        });
        let around: &[MemoLocation] = around.unwrap_or_default();
        around.iter().copied().chain(innermost)
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
        let chain = memo.chain([location].into_iter());
        let entry = Entry {
            chain,
            file,
            line: address as u32,
        };
        memo.insert(3, address, entry);
    }

    fn recall(memo: &mut Memo, address: u64) -> Option<(String, u32)> {
        let entry = memo.get(3, address)?;
        let location = memo.locations(entry).next().unwrap();
        assert_eq!(&**memo.text(location.file), "file.c");
        Some((memo.text(location.function).to_string(), location.line))
    }

    /// Checks that the budget holds, that what is used stays, and that what is not is forgotten.
    #[test]
    fn what_is_used_stays_within_the_budget() {
        let mut memo = Memo::new(64 << 10);
        remember(&mut memo, 0);
        memo.insert(3, u64::MAX, Entry::unknown(Reason::MissingSymbols));
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
