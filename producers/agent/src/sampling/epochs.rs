//! When the kernel sends its stacks anew, and what is forgotten then.

use super::*;

/// Shortest time between two epochs: each makes the kernel send every stack once more.
const EPOCH_NS: u64 = 1_000_000_000;
/// Stacks kept before those of older epochs are dropped: half as much again as the kernel remembers as sent.
const STACKS_MAX: usize = 24_576;

/// When the kernel is to send its stacks anew.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// Something changed what stacks mean.
    pub(super) wanted: bool,
    /// Too many stacks, frames or files are kept.
    pub(super) crowded: bool,
    pub(super) advanced_ns: u64,
    /// What is kept of older epochs goes once records of them that are under way have been read: at the next reading.
    pub(super) forgetting: bool,
}

impl Settler {
    /// Begins an epoch where one is due, and forgets what is no longer needed where too much is known. Called once for each
    /// reading of the ring, so that what refers to an older epoch has been settled when its stacks are dropped.
    pub(super) fn tidy_stacks(&mut self, flow: &mut Flow, asked: &mut [Asked], now_ns: u64) {
        if std::mem::take(&mut self.epochs.forgetting) {
            // Only between two batches: numbers given before mean nothing afterwards.
            self.forget(flow, asked, now_ns);
        }
        self.epochs.wanted |= self.images.was_scanned_late();
        let stacks = asked.iter().map(|asked| asked.flow.stacks.len()).max();
        self.epochs.crowded = flow.stacks.len().max(stacks.unwrap_or(0)) > STACKS_MAX
            || self.vocabulary.is_full()
            || self.files.is_full();
        let due = now_ns.saturating_sub(self.epochs.advanced_ns) >= EPOCH_NS;
        if (self.epochs.wanted && due) || self.epochs.crowded {
            flow.advance_epoch();
            asked.iter_mut().for_each(|asked| asked.flow.advance_epoch());
            self.epochs.advanced_ns = now_ns;
            self.epochs.wanted = false;
            self.epochs.forgetting = self.epochs.crowded;
        }
    }

    /// Forgets what is no longer needed: the stacks of older epochs, and what only they had.
    fn forget(&mut self, flow: &mut Flow, asked: &mut [Asked], now_ns: u64) {
        let mut flows: Vec<&mut Flow> = asked.iter_mut().map(|asked| &mut asked.flow).collect();
        flows.push(flow);
        for flow in &mut flows {
            self.close(flow, now_ns);
            flow.forget();
        }
        if self.vocabulary.is_full() {
            let old = std::mem::take(&mut self.vocabulary);
            let new = &mut self.vocabulary;
            for flow in &mut flows {
                flow.stacks.renumber(|frame| new.adopt(&old, frame));
            }
            self.normalizer.forget();
        }
        if self.files.is_full() {
            if let Some(unwinding) = &mut self.unwinding {
                complain(&self.status, unwinding.forget());
            }
            self.files.forget();
            self.images.forget();
            self.normalizer.forget();
        }
    }
}
