//! What is known of each binary as a whole: its symbol file, and the better one that takes its place; a verdict; what was
//! said of it to whoever keeps the store.

use std::time::Instant;

use strobe_event::{BinaryKind, BuildId, RawBatch, Reason};
use strobe_store::BinaryKey;

use super::{Symbolizer, Target};
use crate::error::SymbolsError;
use crate::fetch::{Found, Stamp};
use crate::file::VERSION;
use crate::keeper::Hint;

/// What is known of a binary as a whole.
#[derive(Debug)]
pub(super) struct BinaryState {
    pub(super) key: BinaryKey,
    pub(super) strikes: u8,
    pub(super) verdict: Option<Verdict>,
    /// When to look next whether there is a symbol file, or a better one.
    pub(super) look_at: Instant,
    /// The symbol file that was opened last.
    pub(super) file: Option<Stamp>,
    /// Its symbol file does not hold together.
    pub(super) damaged: bool,
    /// The worker was asked about it: what it said is not the last word.
    pub(super) asked: bool,
    /// That it is missing was said.
    pub(super) said: bool,
}

impl BinaryState {
    pub(super) fn new(key: BinaryKey, now: Instant) -> Self {
        Self {
            key,
            strikes: 0,
            verdict: None,
            look_at: now,
            file: None,
            damaged: false,
            asked: false,
            said: false,
        }
    }
}

/// The same reason for every address of a binary, for a time or for good.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    pub(super) reason: Reason,
    pub(super) until: Option<Instant>,
}

impl Symbolizer {
    /// Returns where addresses of a binary are looked up.
    pub(super) fn target(
        &mut self,
        kind: BinaryKind,
        id: &BuildId,
        now: Instant,
    ) -> Result<Target, SymbolsError> {
        if matches!(kind, BinaryKind::Kernel | BinaryKind::KernelModule) {
            return Ok(Target::Host);
        }
        let known = self.numbers.get(&kind).and_then(|numbers| numbers.get(id));
        let number = match known {
            Some(&number) => number,
            None => self.add(BinaryState::new(BinaryKey { kind, id: id.clone() }, now)),
        };
        let Some(state) = self.binaries.get_mut(number as usize) else {
            return Ok(Target::Host);
        };
        // A verdict is looked at once per batch and binary, not per frame.
        state.verdict = state
            .verdict
            .filter(|verdict| verdict.until.is_none_or(|until| now < until));
        Ok(Target::Memo(match now < state.look_at {
            true => number,
            false => self.look(number, now)?,
        }))
    }

    /// Looks whether a binary has a symbol file, or another one than before, and opens it; returns the binary's number, which
    /// is a new one where what the memo knows under the old one has been overtaken.
    fn look(&mut self, number: u32, now: Instant) -> Result<u32, SymbolsError> {
        let Some(state) = self.binaries.get_mut(number as usize) else {
            return Ok(number);
        };
        let path = match self.settings.binaries.object(&state.key.symbols(VERSION))? {
            Found::At(path) => path,
            // One that is open stays good, whatever has become of it.
            Found::Missing | Found::TooBig => {
                state.look_at = now + self.settings.limits.missing_time;
                return Ok(number);
            }
        };
        state.look_at = now + self.settings.limits.renew_time;
        let stamp = Stamp::of(&path);
        if stamp == state.file {
            return Ok(number);
        }
        let overtaken = state.asked || state.file.is_some();
        state.file = stamp;
        let number = if overtaken {
            self.renew(number, now)
        } else {
            number
        };
        match self.library.open(number, &path) {
            Ok(()) => {
                if let Some(state) = self.binaries.get_mut(number as usize) {
                    // Whatever stands in the way of the binary itself, there is a file that answers.
                    (state.verdict, state.damaged, state.said) = (None, false, false);
                }
            }
            Err(SymbolsError::Damaged { what }) => self.damaged(number, what),
            Err(error) => return Err(error),
        }
        Ok(number)
    }

    /// Gives a binary a new number, under which nothing is remembered; what was under the old one is forgotten with the
    /// memo's turns.
    fn renew(&mut self, number: u32, now: Instant) -> u32 {
        self.library.close(number);
        let Some(old) = self.binaries.get_mut(number as usize) else {
            return number;
        };
        let fresh = BinaryState::new(old.key.clone(), now);
        let state = std::mem::replace(old, fresh);
        self.telemetry.files_renewed += 1;
        self.add(BinaryState {
            asked: false,
            ..state
        })
    }

    /// Sets a verdict on a binary.
    pub(super) fn judge(&mut self, binary: u32, reason: Reason, until: Option<Instant>) {
        if let Some(state) = self.binaries.get_mut(binary as usize) {
            state.verdict = Some(Verdict { reason, until });
        }
    }

    /// Leaves a symbol file alone until another one is there. What is asked of it is asked of the worker instead.
    pub(super) fn damaged(&mut self, binary: u32, what: &'static str) {
        self.library.close(binary);
        self.telemetry.files_damaged += 1;
        if let Some(state) = self.binaries.get_mut(binary as usize) {
            state.damaged = true;
            state.look_at = Instant::now() + self.settings.limits.missing_time;
            tracing::warn!(build_id = %state.key.id, what, "a symbol file is damaged and not used");
        }
    }

    /// Says something to whoever keeps the store, and returns whether it was heard. Who keeps it may be too busy: it is said
    /// again, or found by a scan.
    pub(super) fn hint(&self, hint: Hint) -> bool {
        let hints = self.settings.hints.as_ref();
        hints.is_some_and(|hints| hints.try_send(hint).is_ok())
    }

    /// Says which binaries of a batch are missing, each once.
    pub(super) fn say_missing(&mut self, batch: &RawBatch, targets: &[Target]) {
        if self.settings.hints.is_none() {
            return;
        }
        for (binary, target) in batch.binaries.iter().zip(targets) {
            let Target::Memo(number) = target else { continue };
            let Some(state) = self.binaries.get(*number as usize) else {
                continue;
            };
            let missing = state
                .verdict
                .is_some_and(|verdict| verdict.reason == Reason::MissingBinary);
            if missing && !state.said {
                let hint = Hint::Missing {
                    key: state.key.clone(),
                    path: batch
                        .strings
                        .get(binary.path as usize)
                        .cloned()
                        .unwrap_or_default(),
                    host: batch.run.host.clone(),
                };
                let said = self.hint(hint);
                if let Some(state) = self.binaries.get_mut(*number as usize) {
                    state.said = said;
                }
            }
        }
    }
}
