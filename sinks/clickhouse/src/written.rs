//! Which rows of `frames`, `stacks` and `tags` this process has written already.
//!
//! Such a row is written again once per day of use, and when its content changed. Nothing is wrong with writing one too
//! often, so that forgetting is harmless: two generations, the older of which goes when the younger is full.

use rustc_hash::FxHashMap;

/// Rows of a generation. Both of them, of three tables, take up to 160 MiB.
const ROWS_MAX: usize = 1 << 19;

/// A row: (day, key).
pub type RowKey = (u16, u64);

/// The rows written to one table, with a hash of their content.
#[derive(Default)]
pub struct Written {
    young: FxHashMap<RowKey, u64>,
    old: FxHashMap<RowKey, u64>,
}

impl Written {
    /// Returns the hash of the content that was written last, if it is remembered.
    pub fn content(&self, row: &RowKey) -> Option<u64> {
        self.young.get(row).or_else(|| self.old.get(row)).copied()
    }

    /// Notes that rows are stored.
    pub fn add(&mut self, rows: impl IntoIterator<Item = (RowKey, u64)>) {
        for (row, content) in rows {
            if self.young.len() >= ROWS_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(row, content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that memory stays bounded and the last generation is remembered.
    #[test]
    fn the_last_generation_is_remembered() {
        let mut written = Written::default();
        let rows = 3 * ROWS_MAX as u64;
        written.add((0..rows).map(|key| ((1, key), key)));
        assert!(written.young.len() + written.old.len() <= 2 * ROWS_MAX);
        assert_eq!(written.content(&(1, 0)), None);
        assert!((rows - ROWS_MAX as u64..rows).all(|key| written.content(&(1, key)) == Some(key)));
        written.add([((1, 5), 77)]);
        assert_eq!(written.content(&(1, 5)), Some(77));
    }
}
