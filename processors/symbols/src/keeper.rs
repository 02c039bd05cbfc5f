//! Whoever keeps a store: makes the symbol file of each binary once, whoever else keeps the same store.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use strobe_event::Reason;
use strobe_store::index::now;
use strobe_store::{BinaryKey, Failure, State, StoreError, Wanted};
use tokio::runtime::Runtime;

use crate::converter::{Conversion, ConvertSources, Converter};
use crate::error::SymbolsError;
use crate::fetch::{Binaries, Found};
use crate::file::{Facts, Sizes, SymbolFile, VERSION};

/// Hints that may wait. Beyond, they are lost: a scan finds the same binaries.
pub const HINTS: usize = 256;

/// Time between two scans of the store for binaries that nobody has asked about yet.
const SCAN_TIME: Duration = Duration::from_secs(30);

/// Longest pause between two looks at whether it is time to stop.
const WAIT: Duration = Duration::from_millis(500);

/// Beyond the limit on its time, an attempt that has not ended is taken for dead after so long.
const CLAIM_SLACK: Duration = Duration::from_secs(60);

/// Memory for looking a stored symbol file over.
const LOOK_BYTES: usize = 1 << 20;

/// Most binaries recorded as wanted: as many as are known by name at a time. Who invents build ids fills no more than that.
const WANTED_MAX: usize = 65_536;

/// Time after which nobody is expected to upload a wanted binary any more.
const WANTED_TIME: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Most binaries remembered as settled; past it all are looked at again.
const SETTLED_MAX: usize = 65_536;

/// What is said to a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// Frames of a binary are looked up that has no symbol file.
    Convert(BinaryKey),
    /// A binary's symbol file does not hold together.
    Damaged(BinaryKey),
    /// Frames of a binary are looked up that is not in the store.
    Missing {
        /// The binary.
        key: BinaryKey,
        /// Where a host has it.
        path: String,
        /// The host.
        host: String,
    },
}

/// How an attempt at a binary ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its symbol file was made.
    Made {
        /// What it was made of.
        facts: Facts,
        /// Its size, by parts.
        sizes: Sizes,
        /// How long it took.
        took: Duration,
    },
    /// Its symbol file is there already.
    AlreadyThere,
    /// Another keeper is at it.
    Busy,
    /// It failed before, and the next attempt is not due yet.
    NotDue(Failure),
    /// It is not in the store.
    Missing,
    /// No symbol file can be made of it.
    Failed(Failure),
}

/// What a keeper counts; it may be read meanwhile.
#[derive(Debug, Default)]
pub struct KeeperCounts {
    /// Symbol files made. Healthy: one for each new binary, in the whole fleet.
    pub made: AtomicU64,
    /// Attempts that gave none. Healthy: few; `strobe symbols list --state failed` names them.
    pub failed: AtomicU64,
    /// Damaged symbol files that were made anew. Healthy: 0.
    pub repaired: AtomicU64,
    /// Binaries that wait for their symbol file. Healthy: 0, but after many binaries came at once.
    pub waiting: AtomicU64,
    /// Binaries that are wanted and not there, as of the last scan. Healthy: few; `strobe symbols wanted` names them.
    pub wanted: AtomicU64,
    /// Wanted binaries beyond the most that are recorded. Healthy: 0. More: somebody invents build ids.
    pub wanted_refused: AtomicU64,
}

/// Keeps a store.
#[derive(Debug)]
pub struct Keeper {
    binaries: Binaries,
    converter: Converter,
    /// Where symbol files are written before they are stored.
    scratch: PathBuf,
    /// Who it is, in claims.
    owner: String,
    runtime: Runtime,
    /// Binaries that need no further look: ready, or failed until a restart.
    settled: FxHashSet<BinaryKey>,
    /// What the last scan found to do and is not done yet.
    due: VecDeque<BinaryKey>,
    wanted: usize,
    scanned: Option<Instant>,
    counts: Arc<KeeperCounts>,
}

impl Keeper {
    /// Returns a keeper of the store behind `binaries`, which writes files into the folder `scratch` first: without a name,
    /// so that nobody can lay a link in their place, and nothing is left of them whatever happens.
    ///
    /// # Errors
    /// [`SymbolsError::File`] where the folder cannot be made, or no thread can be started.
    pub fn new(
        binaries: Binaries,
        converter: Converter,
        scratch: PathBuf,
        owner: String,
    ) -> Result<Self, SymbolsError> {
        fs::create_dir_all(&scratch)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            binaries,
            converter,
            scratch,
            owner,
            runtime,
            settled: FxHashSet::default(),
            due: VecDeque::new(),
            wanted: 0,
            scanned: None,
            counts: Arc::default(),
        })
    }

    /// Returns what it counts.
    pub fn counts(&self) -> Arc<KeeperCounts> {
        Arc::clone(&self.counts)
    }

    /// Makes what is asked for and what scans find, in turns, until `stop` says so. Trouble is logged: it is met again with
    /// the next hint or scan.
    pub fn run(&mut self, hints: &Receiver<Hint>, stop: impl Fn() -> bool) {
        while !stop() {
            let hint = if self.due.is_empty() {
                hints.recv_timeout(WAIT).map(Some).or_else(|ended| match ended {
                    RecvTimeoutError::Timeout => Ok(None),
                    RecvTimeoutError::Disconnected => Err(()),
                })
            } else {
                hints.try_recv().map(Some).or_else(|ended| match ended {
                    TryRecvError::Empty => Ok(None),
                    TryRecvError::Disconnected => Err(()),
                })
            };
            let Ok(hint) = hint else { return };
            // A hint, then one that a scan has found: neither keeps the other waiting for ever.
            let heard = hint.map_or(Ok(()), |hint| self.hear(hint));
            let looked = self.look();
            let done = match self.due.pop_front() {
                Some(key) => self.attempt(&key).map(drop),
                None => Ok(()),
            };
            self.counts.waiting.store(self.due.len() as u64, Relaxed);
            for error in [heard, looked, done].into_iter().filter_map(Result::err) {
                tracing::warn!(error = &error as &dyn std::error::Error, "symbol store");
            }
        }
    }

    fn hear(&mut self, hint: Hint) -> Result<(), SymbolsError> {
        match hint {
            Hint::Convert(key) => self.attempt(&key).map(drop),
            Hint::Damaged(key) => self.repair(&key),
            Hint::Missing { key, path, host } => self.miss(&key, path, host),
        }
    }

    /// Records that a binary is missing.
    fn miss(&mut self, key: &BinaryKey, path: String, host: String) -> Result<(), SymbolsError> {
        if self.wanted >= WANTED_MAX {
            self.counts.wanted_refused.fetch_add(1, Relaxed);
            return Ok(());
        }
        let wanted = Wanted {
            since: now(),
            path,
            host,
        };
        self.runtime
            .block_on(self.binaries.store().set_wanted(key, &wanted))?;
        self.wanted += 1;
        self.counts.wanted.store(self.wanted as u64, Relaxed);
        Ok(())
    }

    /// Makes a symbol file anew that does not hold together.
    fn repair(&mut self, key: &BinaryKey) -> Result<(), SymbolsError> {
        let Found::At(path) = self.binaries.object(&key.symbols(VERSION))? else {
            return Ok(());
        };
        // Whoever says so may have met trouble of its own, or an older file.
        let Err(SymbolsError::Damaged { what }) = look_over(&path) else {
            return Ok(());
        };
        tracing::warn!(build_id = %key.id, what, "a symbol file is damaged: it is made anew");
        self.settled.remove(key);
        if let Outcome::Made { .. } = self.attempt_at(key, true)? {
            self.counts.repaired.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Makes the symbol files of all binaries that wait for theirs, where it is time to look.
    ///
    /// # Errors
    /// The first trouble; see [`Keeper::attempt`].
    pub fn scan(&mut self, stop: &impl Fn() -> bool) -> Result<(), SymbolsError> {
        self.look()?;
        while !stop() {
            let Some(key) = self.due.pop_front() else { break };
            self.attempt(&key)?;
        }
        Ok(())
    }

    /// Looks at the whole store, where it is time to, for what is to be done.
    fn look(&mut self) -> Result<(), SymbolsError> {
        if !self.due.is_empty() || self.scanned.is_some_and(|last| last.elapsed() < SCAN_TIME) {
            return Ok(());
        }
        self.scanned = Some(Instant::now());
        let store = self.binaries.store().clone();
        let holdings = self.runtime.block_on(store.holdings(VERSION))?;
        self.wanted = 0;
        for (key, holding) in holdings {
            match holding.state(now(), self.stale()) {
                State::Uploaded | State::Failed => self.due.push_back(key),
                State::Ready if holding.is_outdated() => {
                    self.settled.remove(&key);
                    self.due.push_back(key);
                }
                State::Wanted => {
                    let age = |at_ms: u64| Duration::from_millis((now() * 1_000).saturating_sub(at_ms));
                    if holding
                        .wanted
                        .is_some_and(|wanted| age(wanted.modified_ms) > WANTED_TIME)
                    {
                        self.runtime.block_on(store.unwant(&key))?;
                    } else {
                        self.wanted += 1;
                    }
                }
                _ => {}
            }
        }
        self.counts.wanted.store(self.wanted as u64, Relaxed);
        Ok(())
    }

    /// Makes the symbol file of a binary, unless it is there or somebody else is at it.
    ///
    /// # Errors
    /// [`SymbolsError`] where the store does not answer or no worker can be started: nothing that the binary is to blame
    /// for.
    pub fn attempt(&mut self, key: &BinaryKey) -> Result<Outcome, SymbolsError> {
        self.attempt_at(key, false)
    }

    fn attempt_at(&mut self, key: &BinaryKey, damaged: bool) -> Result<Outcome, SymbolsError> {
        if self.settled.contains(key) {
            return Ok(Outcome::AlreadyThere);
        }
        let store = self.binaries.store().clone();
        let holding = self.runtime.block_on(store.holding(key, VERSION))?;
        match holding.state(now(), self.stale()) {
            State::Ready if !damaged && !holding.is_outdated() => {
                self.settle(key);
                return Ok(Outcome::AlreadyThere);
            }
            State::Converting => return Ok(Outcome::Busy),
            State::Wanted => return Ok(Outcome::Missing),
            State::Ready | State::Uploaded | State::Failed => {}
        }
        let before = self.runtime.block_on(store.failure(key))?;
        if let Some(failure) = before.clone().filter(|failure| now() < failure.retry_at) {
            return Ok(Outcome::NotDue(failure));
        }
        let last = holding.claim.map(|(number, _)| number);
        if !self.runtime.block_on(store.claim(key, last, &self.owner))? {
            return Ok(Outcome::Busy);
        }
        let claim = last.map_or(0, |last| last.saturating_add(1));
        let start = Instant::now();
        let made = match self.make(key, holding.symbols.is_some() && !damaged) {
            Ok(made) => made,
            Err(error) => {
                // No fault of the binary's, so nobody need wait for this attempt's end. If that fails too, they wait.
                let _ = self.runtime.block_on(store.unclaim(key, claim));
                return Err(error);
            }
        };
        let took = start.elapsed();
        match made {
            Some((Conversion::Made { facts, sizes }, stored)) => {
                self.runtime.block_on(store.tidy(key, claim, true))?;
                self.settle(key);
                if !stored {
                    return Ok(Outcome::AlreadyThere);
                }
                self.counts.made.fetch_add(1, Relaxed);
                tracing::info!(
                    build_id = %key.id,
                    bytes = sizes.file,
                    functions = facts.functions,
                    seconds = took.as_secs_f64(),
                    "symbol file made"
                );
                Ok(Outcome::Made { facts, sizes, took })
            }
            Some((Conversion::Failed { reason, detail }, _)) => {
                let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
                let at = now();
                let failure = Failure {
                    reason: reason.name().to_owned(),
                    detail,
                    attempts,
                    at,
                    retry_at: at.saturating_add(retry_after(reason, attempts).as_secs()),
                };
                self.counts.failed.fetch_add(1, Relaxed);
                tracing::warn!(build_id = %key.id, reason = failure.reason, detail = failure.detail, "no symbol file");
                self.runtime.block_on(store.set_failure(key, &failure))?;
                self.runtime.block_on(store.tidy(key, claim, false))?;
                Ok(Outcome::Failed(failure))
            }
            None => {
                self.runtime.block_on(store.unclaim(key, claim))?;
                Ok(Outcome::Missing)
            }
        }
    }

    fn settle(&mut self, key: &BinaryKey) {
        if self.settled.len() >= SETTLED_MAX {
            self.settled.clear();
        }
        self.settled.insert(key.clone());
    }

    /// Makes and stores the symbol file, and returns whether it was stored; nothing where the binary has gone meanwhile. One
    /// that is there, if it is to be `kept`, gives way only to one that is at least as good.
    fn make(&self, key: &BinaryKey, kept: bool) -> Result<Option<(Conversion, bool)>, SymbolsError> {
        let mut too_big = false;
        let mut source = |object: String| -> Result<Option<PathBuf>, StoreError> {
            Ok(match self.binaries.object(&object)? {
                Found::At(path) => Some(path),
                Found::Missing => None,
                Found::TooBig => {
                    too_big = true;
                    None
                }
            })
        };
        let (binary, debug, package) = (
            source(key.executable())?,
            source(key.debuginfo())?,
            source(key.package())?,
        );
        if binary.is_none() && debug.is_none() {
            let detail = "it is bigger than the folder for copies of the store may hold".to_owned();
            let failed = Conversion::Failed {
                reason: Reason::OverLimit,
                detail,
            };
            return Ok(too_big.then_some((failed, false)));
        }
        let sources = ConvertSources {
            binary: binary.as_deref(),
            debug: debug.as_deref(),
            package: package.as_deref(),
        };
        let (made, file) = self.converter.convert_unnamed(sources, &self.scratch)?;
        let Conversion::Made { facts, .. } = made else {
            return Ok(Some((made, false)));
        };
        let object = key.symbols(VERSION);
        let there = match (kept, self.binaries.object(&object)?) {
            (true, Found::At(path)) => look_over(&path).ok(),
            _ => None,
        };
        // Late debug information makes a better file. What an upload damages or leaves out must not make a worse one.
        let better = there.is_none_or(|there| facts.rank() >= there.rank());
        if better {
            self.runtime
                .block_on(self.binaries.store().replace_object(&object, file))?;
        }
        Ok(Some((made, better)))
    }

    /// Returns the age at which an attempt that has not ended is taken for dead.
    fn stale(&self) -> Duration {
        self.converter.limits.time + CLAIM_SLACK
    }
}

/// Reads a symbol file from one end to the other; returns what it was made of.
fn look_over(path: &Path) -> Result<Facts, SymbolsError> {
    let source = File::open(path)?;
    let length = source.metadata()?.len();
    let file = SymbolFile::open(Box::new(source), length, LOOK_BYTES)?;
    file.verify()?;
    Ok(file.facts())
}

/// Returns how long to wait before a binary is tried again: what it contains does not change, but limits and versions do,
/// and what could not be read may be readable in a moment.
fn retry_after(reason: Reason, attempts: u32) -> Duration {
    const MINUTE: Duration = Duration::from_secs(60);
    let (first, longest) = match reason {
        Reason::Unreadable | Reason::MissingBinary => (MINUTE, 60 * MINUTE),
        // A worker that was ended may have been the victim of another process's hunger for memory.
        Reason::BinaryRefused => (10 * MINUTE, 24 * 60 * MINUTE),
        Reason::OverLimit => (6 * 60 * MINUTE, 24 * 60 * MINUTE),
        _ => (24 * 60 * MINUTE, 24 * 60 * MINUTE),
    };
    first
        .saturating_mul(1 << attempts.saturating_sub(1).min(16))
        .min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that waits grow with attempts, and that each kind of failure has its own longest.
    #[test]
    fn retries_grow_rarer() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(retry_after(Reason::Unreadable, 1), hour / 60);
        assert_eq!(retry_after(Reason::Unreadable, 2), hour / 30);
        assert_eq!(retry_after(Reason::Unreadable, u32::MAX), hour);
        assert_eq!(retry_after(Reason::BinaryRefused, 40), 24 * hour);
        assert_eq!(retry_after(Reason::Damaged, 1), 24 * hour);
    }

    /// Checks that whoever invents build ids fills no more than the bound, and that what is over it is counted.
    #[test]
    fn wanted_binaries_have_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let store = strobe_store::Store::on(Arc::new(object_store::memory::InMemory::new()));
        let converter = Converter {
            worker: Vec::new(),
            debug_folders: Vec::new(),
            limits: crate::ConvertLimits::default(),
        };
        let scratch = folder.path().to_owned();
        let binaries = Binaries::of_folder(store);
        let mut keeper = Keeper::new(binaries, converter, scratch, "keeper".to_owned()).unwrap();
        for number in 0..WANTED_MAX as u64 + 10 {
            let key = BinaryKey {
                kind: strobe_event::BinaryKind::Gnu,
                id: strobe_event::BuildId::new(&number.to_be_bytes()).unwrap(),
            };
            keeper.miss(&key, String::new(), String::new()).unwrap();
        }
        let counts = keeper.counts();
        assert_eq!(counts.wanted.load(Relaxed), WANTED_MAX as u64);
        assert_eq!(counts.wanted_refused.load(Relaxed), 10);
        // As many as are there, when they are counted anew.
        keeper.look().unwrap();
        assert_eq!(counts.wanted.load(Relaxed), WANTED_MAX as u64);
    }
}
