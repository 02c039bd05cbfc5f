//! Names for frames: what the memo knows; for the rest the binary's symbol file, and where there is none yet, one request
//! to the worker.

mod known;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use strobe_event::{BinaryKind, BuildId, Locations, RawBatch, Reason};
use strobe_store::BinaryKey;

use crate::child::{Ended, Worker};
use crate::error::SymbolsError;
use crate::fetch::Found;
use crate::file::VERSION;
use crate::keeper::Hint;
use crate::library::Library;
use crate::memo::{Entry, Memo, MemoLocation};
use crate::output::Output;
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::wire::{self, ADDRESSES_MAX, Answer, Hello};
use known::BinaryState;

/// Binaries known by name at most: a fleet runs some thousands of versions at a time. Past it all but the refused
/// ones are forgotten, and met anew.
const BINARIES_MAX: usize = 65_536;

/// Times that a binary may end the worker. The first may have been bad luck, an out-of-memory killer for example.
const STRIKES_MAX: u8 = 2;

/// Time for which a verdict on a whole file holds: somebody may put a better one in its place.
const VERDICT_TIME: Duration = Duration::from_secs(10 * 60);

/// One function at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The function, demangled.
    pub function: Arc<str>,
    /// The source file; empty if not known.
    pub file: Arc<str>,
    /// The source line; 0 if not known.
    pub line: u32,
}

/// The names of one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// The outermost function, then what was inlined into it; never empty.
    Symbols(Arc<[Location]>),
    /// Why there are none.
    Unknown(Reason),
}

/// Where the frames of one of a batch's binaries are looked up.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// The host named them, or nobody does.
    Host,
    /// In the memo, under this number.
    Memo(u32),
}

/// Names frames. Calls block while the worker parses; a processor has one for each thread that symbolizes.
#[derive(Debug)]
pub struct Symbolizer {
    settings: Settings,
    hello: Hello,
    worker: Option<Worker>,
    memo: Memo,
    library: Library,
    /// Numbers of the binaries, by kind and id: nested, so that looking one up copies nothing.
    numbers: FxHashMap<BinaryKind, FxHashMap<BuildId, u32>>,
    binaries: Vec<BinaryState>,
    telemetry: Telemetry,
    /// Scratch of `locate`: for each of the memo's texts its index in the batch's text, 0 for none yet.
    placed: Vec<u32>,
}

impl Symbolizer {
    /// Returns a symbolizer after it has started its worker.
    ///
    /// # Errors
    /// [`SymbolsError`] where the worker does not start.
    pub fn new(settings: Settings) -> Result<Self, SymbolsError> {
        let hello = settings.hello();
        let mut symbolizer = Self {
            memo: Memo::new(settings.limits.memo_bytes),
            library: Library::new(settings.limits.file_bytes),
            settings,
            hello,
            worker: None,
            numbers: FxHashMap::default(),
            binaries: Vec::new(),
            telemetry: Telemetry::default(),
            placed: Vec::new(),
        };
        let worker = symbolizer.running_worker()?;
        symbolizer.worker = Some(worker);
        Ok(symbolizer)
    }

    /// Returns the counters.
    pub fn telemetry(&self) -> Telemetry {
        let bytes = self.memo.bytes() as u64;
        Telemetry {
            memo_bytes: bytes,
            files_open: self.library.len() as u64,
            file_bytes: self.library.held() as u64,
            file_evictions: self.library.evictions,
            binaries: self.binaries.len() as u64,
            ..self.telemetry.clone()
        }
    }

    /// Returns the worker's process id, while one runs.
    pub fn worker_pid(&self) -> Option<u32> {
        self.worker.as_ref().map(Worker::pid)
    }

    /// Returns the names at ELF virtual addresses of one binary, in their order.
    ///
    /// # Errors
    /// [`SymbolsError`] where the store does not answer or no worker can be started.
    pub fn resolve(
        &mut self,
        kind: BinaryKind,
        id: &BuildId,
        addresses: &[u64],
    ) -> Result<Vec<Resolved>, SymbolsError> {
        self.begin();
        let Target::Memo(binary) = self.target(kind, id, Instant::now())? else {
            return Ok(vec![Resolved::Unknown(Reason::KernelHidden); addresses.len()]);
        };
        let mut missing: Vec<u64> = addresses
            .iter()
            .copied()
            .filter(|&address| self.peek(binary, address).is_none())
            .collect();
        self.fill(binary, &mut missing)?;
        let resolved = addresses.iter().map(|&address| {
            let entry = self.found(binary, address);
            if entry.is_unknown() {
                return Resolved::Unknown(reason_of(entry));
            }
            let text = |id| Arc::clone(self.memo.text(id));
            let location = |at: MemoLocation| Location {
                function: text(at.function),
                file: text(at.file),
                line: at.line,
            };
            Resolved::Symbols(self.memo.locations(entry).map(location).collect())
        });
        let resolved: Vec<_> = resolved.collect();
        for name in &resolved {
            self.count(match name {
                Resolved::Symbols(_) => None,
                Resolved::Unknown(reason) => Some(*reason),
            });
        }
        Ok(resolved)
    }

    /// Returns the names of a validated batch's frames.
    ///
    /// # Errors
    /// [`SymbolsError`] where the store does not answer or no worker can be started. Nothing of the batch is lost:
    /// the same call can be made again, and finds in the memo what was answered before.
    pub fn locate(&mut self, batch: &RawBatch) -> Result<Locations, SymbolsError> {
        self.begin();
        let now = Instant::now();
        let targets = batch
            .binaries
            .iter()
            .map(|binary| self.target(binary.kind, &binary.id, now));
        let targets: Vec<Target> = targets.collect::<Result<_, _>>()?;
        let frames = &batch.frames;
        let target_of = |at: usize| {
            let binary = frames
                .binary
                .get(at)
                .and_then(|&binary| (binary as usize).checked_sub(1));
            binary
                .and_then(|binary| targets.get(binary).copied())
                .unwrap_or(Target::Host)
        };

        let mut missing: Vec<(u32, u64)> = Vec::new();
        let mut entries: Vec<Option<Entry>> = Vec::with_capacity(frames.len());
        for (at, &address) in frames.address.iter().enumerate() {
            entries.push(match target_of(at) {
                Target::Host => None,
                Target::Memo(binary) => {
                    let entry = self.peek(binary, address);
                    if entry.is_none() {
                        missing.push((binary, address));
                    }
                    entry
                }
            });
        }
        if !missing.is_empty() {
            missing.sort_unstable();
            for group in missing.chunk_by(|a, b| a.0 == b.0) {
                let mut addresses: Vec<u64> = group.iter().map(|&(_, address)| address).collect();
                self.fill(group[0].0, &mut addresses)?;
            }
            self.say_missing(batch, &targets);
            for (at, (entry, &address)) in entries.iter_mut().zip(&frames.address).enumerate() {
                if let (None, Target::Memo(binary)) = (&entry, target_of(at)) {
                    *entry = Some(self.found(binary, address));
                }
            }
        }

        self.placed.resize(self.memo.texts(), 0);
        let mut out = Output::new(entries.len(), batch);
        for (at, entry) in entries.into_iter().enumerate() {
            let name = frames.name.get(at).copied().unwrap_or_default();
            let unknown = match entry {
                Some(entry) if !entry.is_unknown() => {
                    out.frame(&self.memo, &mut self.placed, entry);
                    self.count(None);
                    continue;
                }
                Some(entry) => reason_of(entry),
                None if frames.binary.get(at).is_some_and(|&binary| binary != 0) => Reason::KernelHidden,
                // A frame without binary, name and reason says nothing at all of where it lay.
                None => frames
                    .reason
                    .get(at)
                    .copied()
                    .and_then(Reason::from_code)
                    .unwrap_or(Reason::NoMapping),
            };
            // The host's own name stands in wherever nothing better is known.
            let unknown = (!out.host_name(batch, name)).then_some(unknown);
            if let Some(reason) = unknown {
                out.unknown(reason);
            }
            self.count(unknown);
        }
        Ok(out.finish(&mut self.placed))
    }

    /// Turns the memo where it is time, and forgets binaries where there are too many: both change numbers and ids,
    /// so neither happens while a batch is under way.
    fn begin(&mut self) {
        self.telemetry.memo_turns += u64::from(self.memo.turn());
        self.library.trim();
        if self.binaries.len() >= BINARIES_MAX {
            let refused = |state: &BinaryState| state.verdict.is_some_and(|verdict| verdict.until.is_none());
            let kept: Vec<_> = std::mem::take(&mut self.binaries)
                .into_iter()
                .filter(refused)
                .collect();
            self.memo = Memo::new(self.settings.limits.memo_bytes);
            self.library = Library::new(self.settings.limits.file_bytes);
            self.numbers.clear();
            // Half of the places are for what is met from now on.
            for state in kept.into_iter().take(BINARIES_MAX / 2) {
                self.add(state);
            }
            tracing::warn!(
                limit = BINARIES_MAX,
                "too many binaries: all names are forgotten and looked up anew"
            );
        }
    }

    fn add(&mut self, state: BinaryState) -> u32 {
        let number = self.binaries.len() as u32;
        self.numbers
            .entry(state.key.kind)
            .or_default()
            .insert(state.key.id.clone(), number);
        self.binaries.push(state);
        number
    }

    /// Returns what is known without asking anybody.
    #[inline]
    fn peek(&mut self, binary: u32, address: u64) -> Option<Entry> {
        // Names that were found outlive a verdict on the file: the binary may have been removed since.
        if let Some(entry) = self.memo.get(binary, address) {
            self.telemetry.memo_hits += 1;
            return Some(entry);
        }
        self.verdict(binary)
    }

    fn verdict(&self, binary: u32) -> Option<Entry> {
        let verdict = self.binaries.get(binary as usize)?.verdict?;
        Some(Entry::unknown(verdict.reason))
    }

    /// Returns what is known after [`Symbolizer::fill`]: an answer or a verdict.
    fn found(&mut self, binary: u32, address: u64) -> Entry {
        let found = self.memo.get(binary, address).or_else(|| self.verdict(binary));
        found.unwrap_or(Entry::unknown(Reason::NoSymbolAtAddress))
    }

    fn count(&mut self, unknown: Option<Reason>) {
        self.telemetry.frames += 1;
        if let Some(reason) = unknown {
            self.telemetry.frames_unknown[reason as usize] += 1;
        }
    }

    /// Asks the worker for addresses of one binary, until each has an answer or the binary has a verdict.
    fn fill(&mut self, binary: u32, addresses: &mut Vec<u64>) -> Result<(), SymbolsError> {
        if addresses.is_empty() {
            return Ok(());
        }
        // In their order, since neighbours share compilation units; each once.
        addresses.sort_unstable();
        addresses.dedup();
        let Some(key) = self.binaries.get(binary as usize).map(|state| state.key.clone()) else {
            return Ok(());
        };
        if self.fill_from_file(binary, &key, addresses)? {
            return Ok(());
        }
        self.telemetry.store_lookups += 1;
        let path = match self.settings.binaries.find(&key)? {
            Found::At(path) => {
                let hint = match self.binaries.get_mut(binary as usize) {
                    Some(state) => {
                        state.asked = true;
                        // The keeper looks itself whether it is so.
                        if state.damaged {
                            Hint::Damaged(key)
                        } else {
                            Hint::Convert(key)
                        }
                    }
                    None => Hint::Convert(key),
                };
                self.hint(hint);
                path
            }
            Found::Missing => {
                self.telemetry.store_misses += 1;
                self.judge(
                    binary,
                    Reason::MissingBinary,
                    Some(Instant::now() + self.settings.limits.missing_time),
                );
                return Ok(());
            }
            Found::TooBig => {
                self.judge(binary, Reason::OverLimit, Some(Instant::now() + VERDICT_TIME));
                return Ok(());
            }
        };
        for chunk in addresses.chunks(ADDRESSES_MAX) {
            let mut request = Vec::with_capacity(64 + 8 * chunk.len());
            wire::encode_request(&mut request, &path, chunk);
            while !self.ask(binary, &path, &request, chunk)? {}
            if self.verdict(binary).is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Looks addresses up in the binary's symbol file; returns whether there is one.
    fn fill_from_file(
        &mut self,
        binary: u32,
        key: &BinaryKey,
        addresses: &[u64],
    ) -> Result<bool, SymbolsError> {
        let Some(state) = self.binaries.get(binary as usize) else {
            return Ok(false);
        };
        if !self.library.has(binary) {
            // One that was open, and was closed in favour of others.
            if state.damaged || state.file.is_none() {
                return Ok(false);
            }
            let Found::At(path) = self.settings.binaries.object(&key.symbols(VERSION))? else {
                return Ok(false);
            };
            match self.library.open(binary, &path) {
                Ok(()) => {}
                Err(SymbolsError::Damaged { what }) => {
                    self.damaged(binary, what);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.telemetry.file_lookups += addresses.len() as u64;
        let filled = self.library.fill(binary, addresses, &mut self.memo);
        // Within a batch too: one of a hundred binaries must not hold a hundred times the budget.
        self.library.trim();
        match filled {
            Ok(found) => Ok(found),
            Err(SymbolsError::Damaged { what }) => {
                self.damaged(binary, what);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes one attempt at a request. Returns whether it is settled: answered, or the binary has its verdict.
    fn ask(&mut self, binary: u32, path: &Path, request: &[u8], asked: &[u64]) -> Result<bool, SymbolsError> {
        let mut worker = self.running_worker()?;
        self.telemetry.requests += 1;
        self.telemetry.addresses_asked += asked.len() as u64;
        let ended = match worker.ask(request, self.settings.limits.request_time) {
            Ok(message) => match wire::decode_answer(message, asked.len()) {
                Some(answer) => {
                    self.take(binary, asked, &answer);
                    self.worker = Some(worker);
                    return Ok(true);
                }
                None => Ended::Nonsense,
            },
            Err(ended) => ended,
        };
        // Whatever state it is in, it is not to be used again.
        drop(worker);
        match ended {
            Ended::Late => self.telemetry.worker_timeouts += 1,
            Ended::Died | Ended::Nonsense => self.telemetry.worker_deaths += 1,
        }
        let Some(state) = self.binaries.get_mut(binary as usize) else {
            return Ok(true);
        };
        state.strikes += 1;
        let refused = state.strikes >= STRIKES_MAX;
        tracing::warn!(binary = %path.display(), ?ended, refused, "a binary ended the symbol worker");
        if refused {
            self.judge(binary, Reason::BinaryRefused, None);
            self.telemetry.binaries_refused += 1;
        }
        Ok(refused)
    }

    /// Returns the worker, started anew where there is none.
    fn running_worker(&mut self) -> Result<Worker, SymbolsError> {
        // One that was ended while idle has failed no request: nobody gets a strike for it.
        if let Some(mut worker) = self.worker.take()
            && worker.is_running()
        {
            return Ok(worker);
        }
        self.telemetry.worker_starts += 1;
        Worker::start(&self.settings.worker, &self.hello)
    }

    /// Remembers an answer.
    fn take(&mut self, binary: u32, asked: &[u64], answer: &Answer<'_>) {
        let names = match answer {
            Answer::Binary(reason) => {
                let time = match reason {
                    Reason::MissingBinary => self.settings.limits.missing_time,
                    _ => VERDICT_TIME,
                };
                return self.judge(binary, *reason, Some(Instant::now() + time));
            }
            Answer::Addresses(names) => names,
        };
        let ids: Vec<u32> = names.text.iter().map(|text| self.memo.intern(text)).collect();
        let mut rest = names.locations.as_slice();
        for (&address, &answer) in asked.iter().zip(&names.addresses) {
            let (own, behind) = rest.split_at(usize::from(answer.unwrap_or(0)).min(rest.len()));
            rest = behind;
            // `decode_answer` has proved that the indexes lie within the text.
            let location = |at: &wire::WireLocation| MemoLocation {
                function: ids[at.function as usize],
                file: ids[at.file as usize],
                line: at.line,
            };
            let entry = match (answer, own.last()) {
                (Ok(_), Some(innermost)) => Entry {
                    chain: self.memo.chain(own.iter().map(location)),
                    file: ids[innermost.file as usize],
                    line: innermost.line,
                },
                (Ok(_), None) => Entry::unknown(Reason::NoSymbolAtAddress),
                (Err(reason), _) => Entry::unknown(reason),
            };
            self.memo.insert(binary, address, entry);
        }
    }
}

fn reason_of(entry: Entry) -> Reason {
    Reason::from_code(entry.chain.reason).unwrap_or(Reason::NoSymbolAtAddress)
}
