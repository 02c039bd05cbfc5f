//! The symbol files that are open, within a budget of bytes and a number.

use std::fs::File;
use std::path::Path;

use rustc_hash::FxHashMap;
use strobe_event::Reason;

use crate::error::SymbolsError;
use crate::file::{CHAIN_MAX, Hit, SymbolFile};
use crate::memo::{Chain, Entry, Memo, MemoLocation};

/// Files open at once: a quarter of the usual limit on descriptors. The least recently used is closed.
const FILES_MAX: usize = 256;

/// Memo's ids of text, by the file's numbers.
type Ids = FxHashMap<u32, u32>;

#[derive(Debug)]
struct Opened {
    file: SymbolFile,
    functions: Ids,
    files: Ids,
    /// The memo's chains, by the file's scopes.
    chains: FxHashMap<u32, Chain>,
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
    hits: Vec<Hit>,
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
            hits: Vec::new(),
            evictions: 0,
        }
    }

    /// Returns the number of open files.
    pub(crate) fn len(&self) -> usize {
        self.opened.len()
    }

    /// Returns the bytes in memory.
    pub(crate) fn held(&self) -> usize {
        self.opened.values().map(Opened::held).sum()
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
            chains: FxHashMap::default(),
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
            let Some(oldest) = self.oldest(|opened| opened.held() > 0) else {
                return;
            };
            if let Some(opened) = self.opened.get_mut(&oldest) {
                opened.file.release();
                opened.forget();
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
            opened.forget();
            opened.turn = memo.turns();
        }
        let facts = opened.file.facts();
        // A stripped binary exports some names; that they do not cover an address says nothing of the address.
        let unknown = if facts.debug_info || facts.symbol_table || facts.go_table {
            Reason::NoSymbolAtAddress
        } else {
            Reason::MissingSymbols
        };
        self.hits.clear();
        let hits = &mut self.hits;
        opened.file.find_all(addresses, |hit| hits.push(hit))?;
        for (&address, &hit) in addresses.iter().zip(&self.hits) {
            let entry = match hit.scope {
                0 => Entry::unknown(unknown),
                scope => Entry {
                    chain: opened.chain(scope, memo)?,
                    file: opened.path(hit.file, memo)?,
                    line: hit.line,
                },
            };
            memo.insert(binary, address, entry);
        }
        Ok(true)
    }
}

impl Opened {
    /// Lets go of the memo's ids.
    fn forget(&mut self) {
        self.functions = Ids::default();
        self.files = Ids::default();
        self.chains = FxHashMap::default();
    }

    /// Returns the bytes in memory: of the file, and of the memo's ids, whose maps may be half empty.
    fn held(&self) -> usize {
        let ids = (self.functions.capacity() + self.files.capacity()) * (size_of::<(u32, u32)>() + 1);
        self.file.held() + ids + self.chains.capacity() * (size_of::<(u32, Chain)>() + 1)
    }

    /// Returns the memo's chain of a scope.
    fn chain(&mut self, scope: u32, memo: &mut Memo) -> Result<Chain, SymbolsError> {
        if let Some(&chain) = self.chains.get(&scope) {
            return Ok(chain);
        }
        let mut levels = Vec::new();
        let (mut at, mut file, mut line) = (scope, 0, 0);
        // Each parent has a smaller number, so the end comes; a chain that is too long for its message is cut.
        while at != 0 && levels.len() < CHAIN_MAX {
            let level = self.file.level(at)?;
            levels.push(MemoLocation {
                function: self.name(level.function, memo)?,
                file: self.path(file, memo)?,
                line,
            });
            (at, file, line) = (level.parent, level.call_file, level.call_line);
        }
        let chain = memo.chain(levels.into_iter().rev());
        self.chains.insert(scope, chain);
        Ok(chain)
    }

    fn name(&mut self, function: u32, memo: &mut Memo) -> Result<u32, SymbolsError> {
        if let Some(&id) = self.functions.get(&function) {
            return Ok(id);
        }
        let id = self.file.with_name(function, |name| memo.intern(name))?;
        self.functions.insert(function, id);
        Ok(id)
    }

    fn path(&mut self, file: u32, memo: &mut Memo) -> Result<u32, SymbolsError> {
        if file == 0 {
            return Ok(0);
        }
        if let Some(&id) = self.files.get(&file) {
            return Ok(id);
        }
        let id = self.file.with_file(file, |path| memo.intern(path))?;
        self.files.insert(file, id);
        Ok(id)
    }
}
