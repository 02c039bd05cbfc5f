//! The symbol files that are open, within a budget of bytes and a number.

use std::fs::File;
use std::path::Path;

use rustc_hash::FxHashMap;
use strobe_event::Reason;

use crate::error::SymbolsError;
use crate::file::{Place, SymbolFile};
use crate::memo::{Memo, MemoLocation};

/// Files open at once: a quarter of the usual limit on descriptors. The least recently used is closed.
const FILES_MAX: usize = 256;

/// Memo's ids of text, by the file's numbers.
type Ids = FxHashMap<u32, u32>;

#[derive(Debug)]
struct Opened {
    file: SymbolFile,
    functions: Ids,
    files: Ids,
    /// The memo's turn for which the ids hold.
    turn: u64,
    used: u64,
}

/// Open symbol files, by the numbers of their binaries.
#[derive(Debug)]
pub(crate) struct Library {
    opened: FxHashMap<u32, Opened>,
    bytes_max: usize,
    clock: u64,
    places: Vec<Place>,
    /// Times that bytes were let go of.
    pub evictions: u64,
}

impl Library {
    /// Returns a library of no files, which will keep at most `bytes_max` of them in memory, and half as much again while
    /// addresses of one binary are named.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            opened: FxHashMap::default(),
            bytes_max,
            clock: 0,
            places: Vec::new(),
            evictions: 0,
        }
    }

    /// Returns the number of open files.
    pub(crate) fn len(&self) -> usize {
        self.opened.len()
    }

    /// Returns the bytes in memory.
    pub(crate) fn held(&self) -> usize {
        self.opened.values().map(|opened| opened.file.held()).sum()
    }

    /// Returns whether a binary's file is open.
    pub(crate) fn has(&self, binary: u32) -> bool {
        self.opened.contains_key(&binary)
    }

    /// Opens a binary's file.
    ///
    /// # Errors
    /// As [`SymbolFile::open`].
    pub(crate) fn open(&mut self, binary: u32, path: &Path) -> Result<(), SymbolsError> {
        let source = File::open(path)?;
        let length = source.metadata()?.len();
        let file = SymbolFile::open(Box::new(source), length, self.bytes_max / 2)?;
        if self.opened.len() >= FILES_MAX
            && let Some(oldest) = self.oldest(|_| true)
        {
            self.opened.remove(&oldest);
        }
        let opened = Opened {
            file,
            functions: Ids::default(),
            files: Ids::default(),
            turn: 0,
            used: 0,
        };
        self.opened.insert(binary, opened);
        Ok(())
    }

    /// Closes a binary's file.
    pub(crate) fn close(&mut self, binary: u32) {
        self.opened.remove(&binary);
    }

    /// Lets go of bytes until the budget holds: those of the files that were used longest ago.
    pub(crate) fn trim(&mut self) {
        while self.held() > self.bytes_max {
            let Some(oldest) = self.oldest(|opened| opened.file.held() > 0) else {
                return;
            };
            if let Some(opened) = self.opened.get_mut(&oldest) {
                opened.file.release();
                opened.functions = Ids::default();
                opened.files = Ids::default();
                self.evictions += 1;
            }
        }
    }

    fn oldest(&self, which: impl Fn(&Opened) -> bool) -> Option<u32> {
        let candidates = self.opened.iter().filter(|(_, opened)| which(opened));
        candidates
            .min_by_key(|(_, opened)| opened.used)
            .map(|(&binary, _)| binary)
    }

    /// Puts the answers for addresses of a binary whose file is open into the memo; returns whether it is.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where the file does not hold together, or what reading it said.
    pub(crate) fn fill(
        &mut self,
        binary: u32,
        addresses: &[u64],
        memo: &mut Memo,
    ) -> Result<bool, SymbolsError> {
        self.clock += 1;
        let Some(opened) = self.opened.get_mut(&binary) else {
            return Ok(false);
        };
        opened.used = self.clock;
        if opened.turn != memo.turns() {
            opened.functions.clear();
            opened.files.clear();
            opened.turn = memo.turns();
        }
        let facts = opened.file.facts();
        // A stripped binary exports some names; that they do not cover an address says nothing of the address.
        let unknown = if facts.debug_info || facts.symbol_table || facts.go_table {
            Reason::NoSymbolAtAddress
        } else {
            Reason::MissingSymbols
        };
        for &address in addresses {
            self.places.clear();
            if !opened.file.find(address, &mut self.places)? {
                memo.insert(binary, address, Err::<std::iter::Empty<_>, _>(unknown));
                continue;
            }
            for place in &mut self.places {
                place.function = match opened.functions.get(&place.function) {
                    Some(&id) => id,
                    None => {
                        let id = opened.file.with_name(place.function, |name| memo.intern(name))?;
                        opened.functions.insert(place.function, id);
                        id
                    }
                };
                place.file = match (place.file, opened.files.get(&place.file)) {
                    (0, _) => 0,
                    (_, Some(&id)) => id,
                    (file, None) => {
                        let id = opened.file.with_file(file, |path| memo.intern(path))?;
                        opened.files.insert(file, id);
                        id
                    }
                };
            }
            let location = |place: &Place| MemoLocation {
                function: place.function,
                file: place.file,
                line: place.line,
            };
            memo.insert(binary, address, Ok(self.places.iter().map(location)));
        }
        Ok(true)
    }
}
