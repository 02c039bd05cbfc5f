//! ClickHouse's Native format, as far as the sink's tables need it: one block, columns one behind the other.
//!
//! Columns with few distinct values are sent as LowCardinality, each value once: the server then hashes a dictionary
//! instead of every row.

use rustc_hash::FxHashMap;

/// A block under way.
pub struct Block {
    bytes: Vec<u8>,
}

/// Bit of a LowCardinality column: its dictionary comes with the block. And: it is the block's own.
const OWN_DICTIONARY: u64 = (1 << 9) | (1 << 10);

impl Block {
    /// Returns a block of so many columns and rows, whose columns follow.
    pub fn new(columns: usize, rows: usize, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        length(&mut bytes, columns);
        length(&mut bytes, rows);
        Self { bytes }
    }

    /// Appends a column whose values were written one behind the other.
    pub fn plain(&mut self, name: &str, kind: &str, values: &[u8]) {
        self.head(name, kind);
        self.bytes.extend_from_slice(values);
    }

    /// Appends a column of lists.
    pub fn lists(&mut self, name: &str, kind: &str, lists: &Lists) {
        self.head(name, kind);
        self.bytes.extend_from_slice(&lists.ends);
        self.bytes.extend_from_slice(&lists.values);
    }

    /// Appends a column from text to numbers.
    pub fn maps(&mut self, name: &str, maps: &Maps) {
        self.head(name, "Map(String, UInt64)");
        self.bytes.extend_from_slice(&maps.ends);
        self.bytes.extend_from_slice(&maps.keys);
        self.bytes.extend_from_slice(&maps.values);
    }

    /// Appends a column of lists of few distinct texts.
    pub fn text_lists(&mut self, name: &str, lists: &TextLists) {
        self.head(name, "Array(LowCardinality(String))");
        let texts = &lists.texts;
        // An array's lengths stand between the dictionary's version and the dictionary.
        self.bytes.extend_from_slice(&1_u64.to_le_bytes());
        self.bytes.extend_from_slice(&lists.ends);
        if texts.rows.is_empty() {
            return;
        }
        let rows = texts.rows.iter().copied();
        match self.entries(texts.count(), texts.bytes(), rows.len()) {
            1 => put(&mut self.bytes, rows.map(|row| [row as u8])),
            2 => put(&mut self.bytes, rows.map(|row| (row as u16).to_le_bytes())),
            _ => put(&mut self.bytes, rows.map(u32::to_le_bytes)),
        }
    }

    /// Appends a column from text to text.
    pub fn text_maps(&mut self, name: &str, maps: &TextMaps) {
        self.head(name, "Map(String, String)");
        self.bytes.extend_from_slice(&maps.ends);
        self.bytes.extend_from_slice(&maps.keys);
        self.bytes.extend_from_slice(&maps.values);
    }

    /// Appends a column of values of one size.
    pub fn fixed<const N: usize>(
        &mut self,
        name: &str,
        kind: &str,
        values: impl ExactSizeIterator<Item = [u8; N]>,
    ) {
        self.head(name, kind);
        put(&mut self.bytes, values);
    }

    /// Appends a column of few distinct texts; `rows` are their numbers.
    pub fn texts(&mut self, name: &str, texts: &Texts, rows: impl ExactSizeIterator<Item = u32>) {
        self.low_cardinality(name, "LowCardinality(String)", texts.count(), texts.bytes(), rows);
    }

    /// Appends a column of which each value occurs often: `keys` has so many, the type's default first, and `rows` are
    /// their numbers.
    pub fn low_cardinality(
        &mut self,
        name: &str,
        kind: &str,
        count: usize,
        keys: &[u8],
        rows: impl ExactSizeIterator<Item = u32>,
    ) {
        self.head(name, kind);
        match self.dictionary(count, keys, rows.len()) {
            1 => put(&mut self.bytes, rows.map(|row| [row as u8])),
            2 => put(&mut self.bytes, rows.map(|row| (row as u16).to_le_bytes())),
            _ => put(&mut self.bytes, rows.map(u32::to_le_bytes)),
        }
    }

    /// The same for a column in which many rows, one behind the other, have one value: pairs of its number and how many.
    pub fn low_cardinality_runs(
        &mut self,
        name: &str,
        kind: &str,
        count: usize,
        keys: &[u8],
        runs: &[(u32, usize)],
    ) {
        self.head(name, kind);
        let rows = runs.iter().map(|&(_, rows)| rows).sum();
        let width = self.dictionary(count, keys, rows);
        for &(number, rows) in runs {
            match width {
                1 => self.bytes.resize(self.bytes.len() + rows, number as u8),
                2 => put(
                    &mut self.bytes,
                    std::iter::repeat_n((number as u16).to_le_bytes(), rows),
                ),
                _ => put(&mut self.bytes, std::iter::repeat_n(number.to_le_bytes(), rows)),
            }
        }
    }

    /// Writes what stands before the numbers of a LowCardinality column; returns the bytes that each of them takes.
    fn dictionary(&mut self, count: usize, keys: &[u8], rows: usize) -> usize {
        self.bytes.extend_from_slice(&1_u64.to_le_bytes());
        self.entries(count, keys, rows)
    }

    fn entries(&mut self, count: usize, keys: &[u8], rows: usize) -> usize {
        let width: u64 = match count {
            0..=0x100 => 0,
            0x101..=0x1_0000 => 1,
            _ => 2,
        };
        for number in [OWN_DICTIONARY | width, count as u64] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(keys);
        self.bytes.extend_from_slice(&(rows as u64).to_le_bytes());
        1 << width
    }

    fn head(&mut self, name: &str, kind: &str) {
        text(&mut self.bytes, name);
        text(&mut self.bytes, kind);
    }

    /// Returns the block.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Appends values of one size: room for all is made at once, so that the loop has nothing else to do.
pub fn put<const N: usize>(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = [u8; N]>) {
    let start = out.len();
    out.resize(start + N * values.len(), 0);
    for (room, value) in out[start..].chunks_exact_mut(N).zip(values) {
        room.copy_from_slice(&value);
    }
}

/// Appends `value` with its length before it.
pub fn text(out: &mut Vec<u8>, value: &str) {
    length(out, value.len());
    out.extend_from_slice(value.as_bytes());
}

fn length(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends 128 bits, given with the highest byte first, as ClickHouse keeps a UUID.
pub fn uuid(out: &mut Vec<u8>, bits: [u8; 16]) {
    let bits = u128::from_be_bytes(bits);
    out.extend_from_slice(&((bits >> 64) as u64).to_le_bytes());
    out.extend_from_slice(&(bits as u64).to_le_bytes());
}

/// A column of few distinct texts under way. The empty text has number 0.
#[derive(Default)]
pub struct Texts {
    numbers: FxHashMap<Box<str>, u32>,
    bytes: Vec<u8>,
    /// Number of each row's text.
    pub rows: Vec<u32>,
}

impl Texts {
    /// Returns how many there are, with the empty one.
    pub fn count(&self) -> usize {
        self.numbers.len() + 1
    }

    /// Returns them one behind the other, each with its length before it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the text's number.
    pub fn number(&mut self, value: &str) -> u32 {
        if self.bytes.is_empty() {
            // The dictionary's first entry is the type's default.
            self.bytes.push(0);
        }
        if value.is_empty() {
            return 0;
        }
        if let Some(&number) = self.numbers.get(value) {
            return number;
        }
        let number = self.numbers.len() as u32 + 1;
        self.numbers.insert(value.into(), number);
        text(&mut self.bytes, value);
        number
    }
}

/// A column of lists under way.
#[derive(Default)]
pub struct Lists {
    ends: Vec<u8>,
    count: u64,
    /// The values of all lists.
    pub values: Vec<u8>,
}

impl Lists {
    /// Ends a list to which `added` values were appended.
    pub fn end(&mut self, added: usize) {
        self.count += added as u64;
        self.ends.extend_from_slice(&self.count.to_le_bytes());
    }
}

/// A column of lists of few distinct texts under way.
#[derive(Default)]
pub struct TextLists {
    ends: Vec<u8>,
    count: u64,
    texts: Texts,
}

impl TextLists {
    /// Appends the list of one row.
    pub fn push<'a>(&mut self, list: impl Iterator<Item = &'a str>) {
        for text in list {
            self.count += 1;
            let number = self.texts.number(text);
            self.texts.rows.push(number);
        }
        self.ends.extend_from_slice(&self.count.to_le_bytes());
    }
}

/// A column from text to text under way.
#[derive(Default)]
pub struct TextMaps {
    ends: Vec<u8>,
    count: u64,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl TextMaps {
    /// Appends the map of one row.
    pub fn push<'a>(&mut self, entries: impl Iterator<Item = (&'a str, &'a str)>) {
        for (key, value) in entries {
            self.count += 1;
            text(&mut self.keys, key);
            text(&mut self.values, value);
        }
        self.ends.extend_from_slice(&self.count.to_le_bytes());
    }
}

/// A column from text to numbers under way.
#[derive(Default)]
pub struct Maps {
    ends: Vec<u8>,
    count: u64,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Maps {
    /// Appends the map of one row.
    pub fn push<'a>(&mut self, entries: impl Iterator<Item = (&'a str, u64)>) {
        for (key, value) in entries {
            self.count += 1;
            text(&mut self.keys, key);
            self.values.extend_from_slice(&value.to_le_bytes());
        }
        self.ends.extend_from_slice(&self.count.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a block byte by byte against what an engine wrote for
    /// `SELECT CAST('a' AS LowCardinality(String)) AS x, CAST(map('a', 1), 'Map(String, UInt64)') AS m`, with the empty
    /// text that an engine leaves out.
    #[test]
    fn a_block_is_what_the_engine_writes() {
        let (mut x, mut m) = (Texts::default(), Maps::default());
        let number = x.number("a");
        x.rows.push(number);
        m.push([("a", 1)].into_iter());
        let mut block = Block::new(2, 1, 0);
        block.texts("x", &x, x.rows.iter().copied());
        block.maps("m", &m);
        let mut expected =
            b"\x02\x01\x01x\x16LowCardinality(String)\x01\0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0".to_vec();
        expected.extend_from_slice(b"\x02\0\0\0\0\0\0\0\0\x01a\x01\0\0\0\0\0\0\0\x01");
        expected.extend_from_slice(b"\x01m\x13Map(String, UInt64)\x01\0\0\0\0\0\0\0\x01a\x01\0\0\0\0\0\0\0");
        assert_eq!(block.finish(), expected);
    }
}
