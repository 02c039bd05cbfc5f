//! Whoever keeps a store: makes the symbol file of each binary once, whoever else keeps the same store.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use strobe_event::Reason;
use strobe_store::index::now;
use strobe_store::{BinaryKey, Failure, State, StoreError, Wanted};
use tokio::runtime::Runtime;

use crate::converter::{Conversion, ConvertSources, Converter};
use crate::error::SymbolsError;
use crate::fetch::{Binaries, Found};
use crate::file::{Facts, Sizes, VERSION};

/// Hints that may wait. Beyond, they are lost: a scan finds the same binaries.
pub const HINTS: usize = 256;

/// Time between two scans of the store for binaries that nobody has asked about yet.
const SCAN_TIME: Duration = Duration::from_secs(30);

/// Longest pause between two looks at whether it is time to stop.
const WAIT: Duration = Duration::from_millis(500);

/// Beyond the limit on its time, an attempt that has not ended is taken for dead after so long.
const CLAIM_SLACK: Duration = Duration::from_secs(60);

/// What is said to a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// Frames of a binary are looked up that has no symbol file.
    Convert(BinaryKey),
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
    scanned: Option<Instant>,
}

impl Keeper {
    /// Returns a keeper of the store behind `binaries`, which writes files into the folder `scratch` first.
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
            scanned: None,
        })
    }

    /// Makes what is asked for, and in between whatever a scan finds, until `stop` says so. Trouble is logged: it is
    /// met again with the next hint.
    pub fn run(&mut self, hints: &Receiver<Hint>, stop: impl Fn() -> bool) {
        while !stop() {
            let result = match hints.recv_timeout(WAIT) {
                Ok(Hint::Convert(key)) => self.attempt(&key).map(drop),
                Ok(Hint::Missing { key, path, host }) => self.miss(&key, path, host),
                Err(RecvTimeoutError::Timeout) => self.scan(&stop),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(error) = result {
                tracing::warn!(error = &error as &dyn std::error::Error, "symbol store");
            }
        }
    }

    /// Records that a binary is missing.
    fn miss(&self, key: &BinaryKey, path: String, host: String) -> Result<(), SymbolsError> {
        let wanted = Wanted {
            since: now(),
            path,
            host,
        };
        Ok(self
            .runtime
            .block_on(self.binaries.store().set_wanted(key, &wanted))?)
    }

    /// Makes the symbol files of all binaries that wait for theirs, where it is time to look.
    ///
    /// # Errors
    /// The first trouble; see [`Keeper::attempt`].
    pub fn scan(&mut self, stop: &impl Fn() -> bool) -> Result<(), SymbolsError> {
        if self.scanned.is_some_and(|last| last.elapsed() < SCAN_TIME) {
            return Ok(());
        }
        self.scanned = Some(Instant::now());
        let holdings = self.runtime.block_on(self.binaries.store().holdings(VERSION))?;
        for (key, holding) in holdings {
            let state = holding.state(now(), self.stale());
            if matches!(state, State::Uploaded | State::Failed) && !stop() {
                self.attempt(&key)?;
            }
        }
        Ok(())
    }

    /// Makes the symbol file of a binary, unless it is there or somebody else is at it.
    ///
    /// # Errors
    /// [`SymbolsError`] where the store does not answer or no worker can be started: nothing that the binary is to blame
    /// for.
    pub fn attempt(&mut self, key: &BinaryKey) -> Result<Outcome, SymbolsError> {
        if self.settled.contains(key) {
            return Ok(Outcome::AlreadyThere);
        }
        let store = self.binaries.store().clone();
        let holding = self.runtime.block_on(store.holding(key, VERSION))?;
        match holding.state(now(), self.stale()) {
            State::Ready => {
                self.settled.insert(key.clone());
                return Ok(Outcome::AlreadyThere);
            }
            State::Converting => return Ok(Outcome::Busy),
            State::Wanted => return Ok(Outcome::Missing),
            State::Uploaded | State::Failed => {}
        }
        let before = self.runtime.block_on(store.failure(key))?;
        if let Some(failure) = before.clone().filter(|failure| now() < failure.retry_at) {
            return Ok(Outcome::NotDue(failure));
        }
        let last = holding.claim.map(|(number, _)| number);
        if !self.runtime.block_on(store.claim(key, last, &self.owner))? {
            return Ok(Outcome::Busy);
        }
        let start = Instant::now();
        let made = self.make(key)?;
        let took = start.elapsed();
        match made {
            Some(Conversion::Made { facts, sizes }) => {
                tracing::info!(
                    build_id = %key.id,
                    bytes = sizes.file,
                    functions = facts.functions,
                    seconds = took.as_secs_f64(),
                    "symbol file made"
                );
                self.settled.insert(key.clone());
                Ok(Outcome::Made { facts, sizes, took })
            }
            Some(Conversion::Failed { reason, detail }) => {
                let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
                let at = now();
                let failure = Failure {
                    reason: reason.name().to_owned(),
                    detail,
                    attempts,
                    at,
                    retry_at: at.saturating_add(retry_after(reason, attempts).as_secs()),
                };
                tracing::warn!(build_id = %key.id, reason = failure.reason, detail = failure.detail, "no symbol file");
                self.runtime.block_on(store.set_failure(key, &failure))?;
                Ok(Outcome::Failed(failure))
            }
            None => Ok(Outcome::Missing),
        }
    }

    /// Makes and stores the symbol file; nothing where the binary has gone meanwhile.
    fn make(&self, key: &BinaryKey) -> Result<Option<Conversion>, SymbolsError> {
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
            return Ok(too_big.then_some(Conversion::Failed {
                reason: Reason::OverLimit,
                detail,
            }));
        }
        let sources = ConvertSources {
            binary: binary.as_deref(),
            debug: debug.as_deref(),
            package: package.as_deref(),
        };
        let place = self
            .scratch
            .join(format!("{}-{}.symbols", std::process::id(), key.id));
        let made = self.converter.convert(sources, &place)?;
        if let Conversion::Made { .. } = made {
            let stored = File::open(&place).map_err(SymbolsError::from).and_then(|file| {
                let object = key.symbols(VERSION);
                let put = self.binaries.store().put_object(&object, file, None);
                Ok(self.runtime.block_on(put)?)
            });
            // Kept or not, the scratch file has done its duty.
            let _ = fs::remove_file(&place);
            stored?;
        }
        Ok(Some(made))
    }

    /// Returns the age at which an attempt that has not ended is taken for dead.
    fn stale(&self) -> Duration {
        self.converter.limits.time + CLAIM_SLACK
    }
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
}
