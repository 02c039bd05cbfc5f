//! The columns of a table's block, in the order of the table.

use crate::native::{Block, Lists, Maps, TextLists, TextMaps, Texts};
use crate::tables::Table;

/// Columns of a table, appended in its order.
pub(super) struct Columns {
    block: Block,
    rows: usize,
    left: std::slice::Iter<'static, (&'static str, &'static str)>,
}

impl Columns {
    pub(super) fn new(table: Table, rows: usize, capacity: usize) -> Self {
        let columns = table.columns();
        Self {
            block: Block::new(columns.len(), rows, if rows == 0 { 0 } else { capacity }),
            rows,
            left: columns.iter(),
        }
    }

    fn next(&mut self) -> (&'static str, &'static str) {
        self.left.next().copied().unwrap_or_default()
    }

    pub(super) fn plain(&mut self, values: &[u8]) {
        let (name, kind) = self.next();
        self.block.plain(name, kind, values);
    }

    pub(super) fn lists(&mut self, lists: &Lists) {
        let (name, kind) = self.next();
        self.block.lists(name, kind, lists);
    }

    pub(super) fn text_lists(&mut self, lists: &TextLists) {
        let (name, _) = self.next();
        self.block.text_lists(name, lists);
    }

    pub(super) fn text_maps(&mut self, maps: &TextMaps) {
        let (name, _) = self.next();
        self.block.text_maps(name, maps);
    }

    pub(super) fn maps(&mut self, maps: &Maps) {
        let (name, _) = self.next();
        self.block.maps(name, maps);
    }

    pub(super) fn texts(&mut self, texts: &Texts) {
        self.texts_of(texts, texts.rows.iter().copied());
    }

    pub(super) fn texts_of(&mut self, texts: &Texts, rows: impl ExactSizeIterator<Item = u32>) {
        let (name, _) = self.next();
        self.block.texts(name, texts, rows);
    }

    pub(super) fn fixed<const N: usize>(&mut self, values: impl ExactSizeIterator<Item = [u8; N]>) {
        let (name, kind) = self.next();
        self.block.fixed(name, kind, values);
    }

    pub(super) fn chosen(&mut self, keys: &[u8], size: usize, rows: impl ExactSizeIterator<Item = u32>) {
        let (name, kind) = self.next();
        self.block
            .low_cardinality(name, kind, keys.len() / size, keys, rows);
    }

    pub(super) fn runs(&mut self, keys: &[u8], count: usize, runs: &[(u32, usize)]) {
        let (name, kind) = self.next();
        self.block.low_cardinality_runs(name, kind, count, keys, runs);
    }

    pub(super) fn text_runs(&mut self, texts: &Texts, runs: &[(u32, usize)]) {
        let (name, kind) = self.next();
        self.block
            .low_cardinality_runs(name, kind, texts.count(), texts.bytes(), runs);
    }

    pub(super) fn finish(self) -> (usize, Vec<u8>) {
        (self.rows, self.block.finish())
    }
}
