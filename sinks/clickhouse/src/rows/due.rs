//! Which rows of `frames`, `stacks` and `tags` a range must write.

use rustc_hash::FxHashMap;

use crate::written::{RowKey, Written};

/// What a range has looked at, of one table.
#[derive(Default)]
pub(super) struct Due {
    /// Content of the rows looked at. Far smaller than what was ever written, so that it stays in the processor's cache:
    /// a range asks for most of its rows once per batch.
    seen: FxHashMap<RowKey, u64>,
    /// Content of those that are due.
    fresh: FxHashMap<RowKey, u64>,
}

impl Due {
    /// Returns whether the row must be written, and notes it.
    pub(super) fn is_due(&mut self, row: RowKey, content: u64, written: Option<&Written>) -> bool {
        if let Some(seen) = self.seen.get_mut(&row) {
            if *seen == content {
                return false;
            }
            *seen = content;
        } else {
            self.seen.insert(row, content);
            if written.and_then(|written| written.content(&row)) == Some(content) {
                return false;
            }
        }
        self.fresh.insert(row, content);
        true
    }

    /// Returns what is due, with its content.
    pub(super) fn finish(self) -> FxHashMap<RowKey, u64> {
        self.fresh
    }
}

/// Mixes `value` into a hash of content.
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
