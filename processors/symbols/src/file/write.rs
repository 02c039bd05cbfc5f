//! Writing a symbol file.

use std::io::{self, Write};

use super::header::{
    BLOCKS, FILES, HEADER_BYTES, Header, NAMES, PAGES, RAW, ROWS, SCOPES, SECTIONS, Section, Widths,
};
use super::parts::Parts;
use super::read::RECORD_READ_BYTES;
use super::varint::{put, put_signed};
use super::{BLOCK_ROWS, Facts, TEXT_BYTES_MAX, text};

/// A function, or a call that was inlined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    /// Number of the function that it was inlined into; 0 if it was not.
    pub parent: u32,
    /// Number of the function.
    pub function: u32,
    /// File of the call; 0 if not known.
    pub call_file: u32,
    /// Line of the call; 0 if not known.
    pub call_line: u32,
}

/// What holds from an address on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// Address, from the table's base.
    pub start: u32,
    /// Number of the innermost scope; 0 for none.
    pub scope: u32,
    /// File; 0 if not known.
    pub file: u32,
    /// Line; 0 if not known.
    pub line: u32,
}

/// The rows of a file while they are written, in the order of their addresses.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    blocks: Vec<(u32, u32)>,
    in_block: usize,
    last: Option<Row>,
    /// Start of the row that was encoded last.
    encoded: u32,
    /// What the next differences are from.
    state: (u32, u32, u32),
    count: u32,
}

impl Rows {
    /// Adds a row, unless it says what the one before says. Each starts behind the one before, or takes its place.
    pub(crate) fn push(&mut self, row: Row) {
        // Without a function there is no answer, and without a file no line.
        let row = match (row.scope, row.file) {
            (0, _) => Row {
                file: 0,
                line: 0,
                ..row
            },
            (_, 0) => Row { line: 0, ..row },
            _ => row,
        };
        let says = |row: Row| (row.scope, row.file, row.line);
        match self.last {
            Some(last) if last.start == row.start => self.last = Some(row),
            Some(last) if says(last) == says(row) => {}
            Some(last) => {
                self.encode(last);
                self.last = Some(row);
            }
            None => self.last = Some(row),
        }
    }

    fn encode(&mut self, row: Row) {
        let (scope, file, line) = (row.scope, row.file, row.line);
        if self.in_block == 0 {
            self.blocks.push((row.start, self.bytes.len() as u32));
            self.state = (0, 0, 0);
        }
        let (old_scope, old_file, old_line) = self.state;
        let (scope_changes, file_changes) = (scope != old_scope, file != old_file);
        let distance = if self.in_block == 0 {
            0
        } else {
            row.start - self.encoded
        };
        put(
            &mut self.bytes,
            u64::from(distance) << 2 | u64::from(scope_changes) << 1 | u64::from(file_changes),
        );
        // Where nothing is said of the line, it stays what it was: a jump to 0 and back would cost bytes.
        let line = if file == 0 { old_line } else { line };
        put_signed(&mut self.bytes, i64::from(line) - i64::from(old_line));
        if scope_changes {
            put_signed(&mut self.bytes, i64::from(scope) - i64::from(old_scope));
        }
        if file_changes {
            put_signed(&mut self.bytes, i64::from(file) - i64::from(old_file));
        }
        self.state = (scope, file, line);
        self.encoded = row.start;
        self.count += 1;
        self.in_block = (self.in_block + 1) % BLOCK_ROWS;
    }
}

/// All that a symbol file is written of.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    pub facts: Facts,
    /// Address of the image's first byte.
    pub image_base: u64,
    /// What the rows' addresses are counted from.
    pub base: u64,
    /// Bytes from the base to the end of the code.
    pub span: u32,
    pub rows: Rows,
    pub scopes: Vec<Scope>,
    pub files: Vec<String>,
    /// Raw and demangled names; the latter `None` where it is the raw one.
    pub functions: Vec<(&'a [u8], Option<String>)>,
}

impl Table<'_> {
    /// Writes the symbol file.
    ///
    /// # Errors
    /// What `out` said.
    pub(crate) fn write(mut self, out: &mut impl Write) -> io::Result<()> {
        if let Some(last) = self.rows.last {
            self.rows.encode(last);
        }
        let span = self.span;
        let Rows {
            bytes: rows,
            blocks,
            count,
            ..
        } = self.rows;
        let mut header = Header {
            facts: Facts {
                rows: count,
                scopes: self.scopes.len() as u32,
                functions: self.functions.len() as u32,
                files: self.files.len() as u32,
                ..self.facts
            },
            image_base: self.image_base,
            base: self.base,
            span: if blocks.is_empty() { 0 } else { span },
            blocks: blocks.len() as u32,
            ..Header::default()
        };
        header.shift = shift(header.span, blocks.len());
        header.widths = widths(&self.scopes);
        let pages = pages(&blocks, header.span, header.shift);
        let mut index = Vec::with_capacity(8 * blocks.len() + 8);
        for (start, place) in blocks.iter().copied().chain([(u32::MAX, rows.len() as u32)]) {
            index.extend_from_slice(&start.to_le_bytes());
            index.extend_from_slice(&place.to_le_bytes());
        }
        drop(blocks);
        let scopes = scopes(&self.scopes, header.widths);
        self.scopes = Vec::new();
        let files = text::encode(self.files.iter().map(|path| cut(path).as_bytes()))?;
        let raw = text::encode(
            self.functions
                .iter()
                .map(|(raw, _)| &raw[..raw.len().min(TEXT_BYTES_MAX)]),
        )?;
        let names = names(&self.functions)?;
        let sections: [Vec<u8>; SECTIONS.len()] = [pages, index, rows, scopes, files, raw, names];
        let mut offset = HEADER_BYTES as u64;
        for (section, bytes) in header.sections.iter_mut().zip(&sections) {
            *section = Section {
                offset,
                bytes: bytes.len() as u64,
                crc: crc32fast::hash(bytes),
            };
            offset += (bytes.len() as u64).next_multiple_of(8);
        }
        const _: () = assert!(
            PAGES < BLOCKS && BLOCKS < ROWS && ROWS < SCOPES && SCOPES < FILES && FILES < RAW && RAW < NAMES
        );
        out.write_all(&header.encode())?;
        for bytes in &sections {
            out.write_all(bytes)?;
            out.write_all(&[0; 8][..bytes.len().next_multiple_of(8) - bytes.len()])?;
        }
        // The last record of a table is read with what lies behind it.
        out.write_all(&[0; RECORD_READ_BYTES])
    }
}

/// Returns a shift with which there are about as many pages as blocks.
fn shift(span: u32, blocks: usize) -> u8 {
    let mut shift = 8;
    while shift < 31 && (span >> shift) as usize > 2 * blocks {
        shift += 1;
    }
    shift
}

fn pages(blocks: &[(u32, u32)], span: u32, shift: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = 0;
    for page in 0..u64::from(span >> shift) + 2 {
        while blocks
            .get(block + 1)
            .is_some_and(|next| u64::from(next.0) <= page << shift)
        {
            block += 1;
        }
        out.extend_from_slice(&(block as u32).to_le_bytes());
    }
    out
}

fn widths(scopes: &[Scope]) -> Widths {
    let width = |value: u32| ((32 - value.leading_zeros()).div_ceil(8)) as u8;
    let mut widths = Widths::default();
    for (at, scope) in scopes.iter().enumerate() {
        let distance = if scope.parent == 0 {
            0
        } else {
            at as u32 + 1 - scope.parent
        };
        widths.parent = widths.parent.max(width(distance));
        widths.function = widths.function.max(width(scope.function));
        widths.file = widths.file.max(width(scope.call_file));
        widths.line = widths.line.max(width(scope.call_line));
    }
    widths
}

fn scopes(scopes: &[Scope], widths: Widths) -> Vec<u8> {
    let mut out = Vec::with_capacity(scopes.len() * widths.record());
    for (at, scope) in scopes.iter().enumerate() {
        let distance = if scope.parent == 0 {
            0
        } else {
            at as u32 + 1 - scope.parent
        };
        for (value, width) in [
            (distance, widths.parent),
            (scope.function, widths.function),
            (scope.call_file, widths.file),
            (scope.call_line, widths.line),
        ] {
            out.extend_from_slice(&value.to_le_bytes()[..usize::from(width)]);
        }
    }
    out
}

/// Returns the section with demangled names and their parts.
fn names(functions: &[(&[u8], Option<String>)]) -> io::Result<Vec<u8>> {
    let mut entries = Vec::new();
    let mut ends = Vec::with_capacity(functions.len());
    for (raw, demangled) in functions {
        let name = match demangled {
            Some(name) => Some(cut(name)),
            None => std::str::from_utf8(raw).ok().map(cut),
        };
        if let Some(name) = name {
            let parts = Parts::of(name);
            if demangled.is_some() || !parts.is_plain(name) {
                for place in [parts.scope, parts.name, parts.name_end, parts.parameters] {
                    put(&mut entries, place.into());
                }
                entries.extend_from_slice(name.as_bytes());
            }
        }
        ends.push(entries.len());
    }
    let mut start = 0;
    text::encode(
        ends.iter()
            .map(|&end| &entries[std::mem::replace(&mut start, end)..end]),
    )
}

/// Returns `text` up to the limit, whole characters only.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::super::{Place, SymbolFile};
    use super::*;
    use proptest::prelude::*;

    fn written(table: Table<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        table.write(&mut bytes).unwrap();
        bytes
    }

    fn open(bytes: Vec<u8>) -> SymbolFile {
        let length = bytes.len() as u64;
        SymbolFile::open(Box::new(bytes), length, 1 << 20).unwrap()
    }

    fn table(rows: &[Row], scopes: Vec<Scope>) -> Table<'static> {
        let mut encoded = Rows::default();
        rows.iter().for_each(|&row| encoded.push(row));
        Table {
            facts: Facts::default(),
            image_base: 0,
            base: 0x1000,
            span: rows.last().map_or(0, |row| row.start + 16),
            rows: encoded,
            scopes,
            files: vec!["/a.c".to_owned(), "/b.c".to_owned()],
            functions: vec![
                (b"_Z1fi".as_slice(), Some("f(int)".to_owned())),
                (b"plain".as_slice(), None),
            ],
        }
    }

    fn arbitrary() -> impl Strategy<Value = (Vec<Row>, Vec<Scope>)> {
        let scope = (0_u32..1_000, 1_u32..3, 0_u32..3, 0_u32..70_000);
        let scopes = proptest::collection::vec(scope, 1..200).prop_map(|drawn| {
            let scope =
                |(at, (parent, function, call_file, call_line)): (usize, (u32, u32, u32, u32))| Scope {
                    parent: if at == 0 { 0 } else { parent % at as u32 },
                    function,
                    call_file,
                    call_line,
                };
            drawn.into_iter().enumerate().map(scope).collect::<Vec<_>>()
        });
        let row = (1_u32..5_000, 0_u32..201, 0_u32..3, 0_u32..1_000_000);
        (proptest::collection::vec(row, 1..300), scopes).prop_map(|(drawn, scopes)| {
            let mut start = 0;
            let rows = drawn.into_iter().map(|(step, scope, file, line)| {
                start += step;
                Row {
                    start,
                    scope: scope % (scopes.len() as u32 + 1),
                    file,
                    line,
                }
            });
            (rows.collect(), scopes)
        })
    }

    proptest! {
        /// Checks that every address is answered by its row and the scopes above it, as a search through all of them
        /// answers it.
        #[test]
        fn every_address_is_answered_by_its_row((rows, scopes) in arbitrary()) {
            let mut file = open(written(table(&rows, scopes.clone())));
            file.verify().unwrap();
            let end = rows.last().map_or(0, |row| row.start);
            for address in (0..end + 20).step_by(7).chain(rows.iter().flat_map(|row| [row.start, row.start - 1])) {
                let mut expected = Vec::new();
                let row = rows.iter().rev().find(|row| row.start <= address);
                if let Some(row) = row.filter(|row| row.scope != 0 && address < end + 16) {
                    let line = if row.file == 0 { 0 } else { row.line };
                    let (mut scope, mut file, mut line) = (row.scope, row.file, line);
                    while scope != 0 {
                        let found = scopes[scope as usize - 1];
                        expected.push(Place { function: found.function, file, line });
                        (scope, file, line) = (found.parent, found.call_file, found.call_line);
                    }
                    expected.truncate(super::super::CHAIN_MAX);
                    expected.reverse();
                }
                let mut found = Vec::new();
                file.find(0x1000 + u64::from(address), &mut found).unwrap();
                prop_assert_eq!(found, expected, "{}", address);
            }
        }

        /// Checks that many addresses at once, sorted or not, are answered as one after the other.
        #[test]
        fn addresses_at_once_are_answered_as_one_by_one(
            (rows, scopes) in arbitrary(),
            mut addresses in proptest::collection::vec(0xf00_u64..0x20_0000, 0..400),
            sorted: bool,
        ) {
            let mut file = open(written(table(&rows, scopes)));
            let starts = rows.iter().map(|row| 0x1000 + u64::from(row.start));
            addresses.extend(starts.flat_map(|start| [start, start + 1]));
            if sorted {
                addresses.sort_unstable();
            }
            let mut hits = Vec::new();
            file.find_all(&addresses, |hit| hits.push(hit)).unwrap();
            prop_assert_eq!(hits.len(), addresses.len());
            for (&address, hit) in addresses.iter().zip(&hits) {
                let mut places = Vec::new();
                let found = file.find(address, &mut places).unwrap();
                prop_assert_eq!(found, hit.scope != 0);
                if let Some(innermost) = places.last() {
                    let level = file.level(hit.scope).unwrap();
                    prop_assert_eq!((innermost.function, innermost.file, innermost.line), (level.function, hit.file, hit.line));
                }
            }
        }

        /// Checks that a file with damaged bytes is refused, or answers something, and never does worse; and that its
        /// checksums notice.
        #[test]
        fn damaged_files_do_no_harm(
            (rows, scopes) in arbitrary(),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), 1_u8..), 1..8),
        ) {
            let mut bytes = written(table(&rows, scopes));
            for (at, change) in damage {
                let at = at.index(bytes.len());
                bytes[at] ^= change;
            }
            let length = bytes.len() as u64;
            // The header's own checksum would stop nearly all of it at the door: a hostile writer makes that right.
            let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
            bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
            if let Ok(mut file) = SymbolFile::open(Box::new(bytes), length, 1 << 20) {
                let mut out = Vec::new();
                for address in (0x1000..0x1000 + 300_000).step_by(997) {
                    let _ = file.find(address, &mut out);
                }
                for place in out {
                    let _ = file.function(place.function);
                    let _ = file.with_file(place.file, str::len);
                }
                let _ = file.verify();
            }
        }
    }

    /// Checks names with their parts, and that a plain name is its own.
    #[test]
    fn functions_have_their_names() {
        let scope = Scope {
            parent: 0,
            function: 1,
            call_file: 0,
            call_line: 0,
        };
        let row = Row {
            start: 0,
            scope: 1,
            file: 2,
            line: 7,
        };
        let mut file = open(written(table(&[row], vec![scope])));
        let name = file.function(1).unwrap();
        assert_eq!((name.name.as_str(), name.raw.as_str()), ("f(int)", "_Z1fi"));
        assert_eq!(name.parts.parameters(&name.name), "(int)");
        assert_eq!(file.function(2).unwrap().name, "plain");
        assert_eq!(file.with_file(2, str::to_owned).unwrap(), "/b.c");
        assert!(file.function(3).is_err() && file.with_file(0, str::len).is_err());
    }

    /// Checks that a file of a binary without any code opens, and answers nothing.
    #[test]
    fn an_empty_file_answers_nothing() {
        let mut file = open(written(table(&[], Vec::new())));
        for address in [0, 0x1000, u64::MAX] {
            assert!(!file.find(address, &mut Vec::new()).unwrap());
        }
    }
}
