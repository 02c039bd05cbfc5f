//! Looking up addresses in a symbol file.

use std::io;

use super::header::{
    BLOCKS, FILES, HEADER_BYTES, Header, NAMES, PAGES, RAW, ROWS, SCOPES, SECTIONS, Section,
};
use super::pages::{Pages, ReadAt};
use super::sweep::{Level, Sweep};
use super::text::{Texts, number};
use super::varint::take;
use super::{BLOCK_BYTES_MAX, CHAIN_MAX, Facts, Parts, Sizes};
use crate::error::SymbolsError;

/// Bytes that a record of `scopes` is read with: the largest one, and the file ends with as many.
pub(crate) const RECORD_READ_BYTES: usize = 16;

/// Bytes checked at once by [`SymbolFile::verify`].
const VERIFY_BYTES: usize = 256 << 10;

/// One function at an address, in numbers of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The function.
    pub function: u32,
    /// The source file; 0 if not known.
    pub file: u32,
    /// The source line; 0 if not known.
    pub line: u32,
}

/// What a function is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionName {
    /// As people read it.
    pub name: String,
    /// As linkers have it.
    pub raw: String,
    /// Where the parts of `name` lie.
    pub parts: Parts,
}

/// A symbol file that is open. What it holds in memory has a bound, whatever is asked of it.
#[derive(Debug)]
pub struct SymbolFile {
    pub(super) pages: Pages,
    pub(super) header: Header,
    files: Texts,
    raw: Texts,
    names: Texts,
}

/// A row: scope, file, line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) scope: u32,
    pub(super) file: u32,
    pub(super) line: u32,
}

/// A block of rows: where it starts, where the next one does, where its bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) start: u32,
    pub(super) next: u32,
    pub(super) place: u64,
    pub(super) length: usize,
}

impl SymbolFile {
    /// Opens a symbol file of `length` bytes, of which at most about `bytes_max` are kept in memory.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where it is none, or of another version; [`SymbolsError::File`] says what the source said.
    pub fn open(source: Box<dyn ReadAt>, length: u64, bytes_max: usize) -> Result<Self, SymbolsError> {
        let mut pages = Pages::new(source, length, bytes_max);
        let bytes = pages.at(0, HEADER_BYTES)?;
        let bytes = bytes
            .first_chunk::<HEADER_BYTES>()
            .ok_or(SymbolsError::Damaged { what: "the header" })?;
        let header = Header::decode(bytes, length)?;
        let mut text = |index: usize| {
            let Section { offset, bytes, .. } = header.sections[index];
            Texts::open(&mut pages, offset, bytes)
        };
        let (files, raw, names) = (text(FILES)?, text(RAW)?, text(NAMES)?);
        Ok(Self {
            pages,
            header,
            files,
            raw,
            names,
        })
    }

    /// Returns what the file was made of.
    pub fn facts(&self) -> Facts {
        self.header.facts
    }

    /// Returns the sizes of its parts.
    pub fn sizes(&self) -> Sizes {
        self.header.sizes(self.pages.length())
    }

    /// Returns the address of the image's first byte: what module-relative addresses count from.
    pub fn image_base(&self) -> u64 {
        self.header.image_base
    }

    /// Returns the bytes of it that are in memory.
    pub fn held(&self) -> usize {
        self.pages.held() + self.files.held() + self.raw.held() + self.names.held()
    }

    /// Lets go of all that is in memory; it is read again where it is needed.
    pub fn release(&mut self) {
        self.pages.release();
        self.files.release();
        self.raw.release();
        self.names.release();
    }

    /// Reads the whole file once and compares it with its checksums.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] names the section that differs.
    pub fn verify(&self) -> Result<(), SymbolsError> {
        for (section, name) in self.header.sections.iter().zip(SECTIONS) {
            let mut hasher = crc32fast::Hasher::new();
            let mut at = 0;
            while at < section.bytes {
                let length = (section.bytes - at).min(VERIFY_BYTES as u64) as usize;
                hasher.update(&self.pages.copy(section.offset + at, length)?);
                at += length as u64;
            }
            if hasher.finalize() != section.crc {
                return Err(SymbolsError::Damaged { what: name });
            }
        }
        Ok(())
    }

    /// Appends the functions at an ELF virtual address to `out`, outermost first; returns whether there are any.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where the file does not hold together, or what the source said.
    pub fn find(&mut self, address: u64, out: &mut Vec<Place>) -> Result<bool, SymbolsError> {
        let Some(relative) = self.relative(address) else {
            return Ok(false);
        };
        let row = self.row(relative)?;
        if row.scope == 0 {
            return Ok(false);
        }
        let first = out.len();
        let (mut scope, mut file, mut line) = (row.scope, row.file, row.line);
        loop {
            let level = self.level(scope)?;
            out.push(Place {
                function: level.function,
                file,
                line,
            });
            // Each parent has a smaller number, so the end comes; a chain that is too long for its message is cut.
            if level.parent == 0 || out.len() - first >= CHAIN_MAX {
                break;
            }
            (scope, file, line) = (level.parent, level.call_file, level.call_line);
        }
        out[first..].reverse();
        Ok(true)
    }

    /// Returns an address as it is counted in the file; nothing where no code lies there.
    #[inline]
    pub(super) fn relative(&self, address: u64) -> Option<u32> {
        let relative = u32::try_from(address.checked_sub(self.header.base)?).ok()?;
        (relative < self.header.span).then_some(relative)
    }

    /// Returns the row that holds at an address.
    fn row(&mut self, relative: u32) -> Result<Row, SymbolsError> {
        let block = self.block(relative)?;
        if block.start > relative {
            return Ok(Row::default());
        }
        let bytes = self.pages.at(block.place, block.length)?;
        decode(&bytes[..block.length], relative - block.start).ok_or(SymbolsError::Damaged { what: "rows" })
    }

    /// Returns the block with the row that holds at an address, or the first one, before which there is nothing.
    #[inline]
    pub(super) fn block(&mut self, relative: u32) -> Result<Block, SymbolsError> {
        let header = &self.header;
        let (pages, blocks, rows) = (
            header.sections[PAGES],
            header.sections[BLOCKS],
            header.sections[ROWS],
        );
        let page = u64::from(relative >> header.shift);
        let bytes = self.pages.at(pages.offset + page * 4, 8)?;
        let (mut low, last) = (
            number(bytes, 0),
            number(bytes, 4).min(header.blocks.wrapping_sub(1)),
        );
        if low > last {
            return Err(SymbolsError::Damaged { what: "pages" });
        }
        let mut high = last.saturating_add(1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let bytes = self.pages.at(blocks.offset + u64::from(middle) * 8, 4)?;
            if number(bytes, 0) <= relative {
                low = middle;
            } else {
                high = middle;
            }
        }
        let bytes = self.pages.at(blocks.offset + u64::from(low) * 8, 16)?;
        let (start, place) = (number(bytes, 0), number(bytes, 4));
        let (next, end) = (number(bytes, 8), number(bytes, 12));
        let length = end.wrapping_sub(place) as usize;
        if length > BLOCK_BYTES_MAX || u64::from(end) > rows.bytes {
            return Err(SymbolsError::Damaged { what: "blocks" });
        }
        Ok(Block {
            start,
            next,
            place: rows.offset + u64::from(place),
            length,
        })
    }

    /// Returns what a scope is: a function, or a call that was inlined.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where there is no such scope, or what the source said.
    #[inline]
    pub fn level(&mut self, scope: u32) -> Result<Level, SymbolsError> {
        let damaged = || SymbolsError::Damaged { what: "scopes" };
        let header = &self.header;
        if scope == 0 || scope > header.facts.scopes {
            return Err(damaged());
        }
        let widths = header.widths;
        let place = header.sections[SCOPES].offset + u64::from(scope - 1) * widths.record() as u64;
        let bytes = self.pages.at(place, RECORD_READ_BYTES)?;
        let Some(bytes) = bytes.first_chunk::<RECORD_READ_BYTES>() else {
            return Err(damaged());
        };
        let mut rest = u128::from_le_bytes(*bytes);
        let mut field = |width: u8| {
            let bits = u32::from(width) * 8;
            let value = (rest as u64 & ((1_u64 << bits) - 1)) as u32;
            rest >>= bits;
            value
        };
        let distance = field(widths.parent);
        let (function, call_file, call_line) =
            (field(widths.function), field(widths.file), field(widths.line));
        let parent = match distance {
            0 => 0,
            _ => scope
                .checked_sub(distance)
                .filter(|&parent| parent > 0)
                .ok_or_else(damaged)?,
        };
        Ok(Level {
            parent,
            function,
            call_file,
            call_line,
        })
    }

    /// Returns what a function is called.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where the file does not hold together, or what the source said.
    pub fn function(&mut self, function: u32) -> Result<FunctionName, SymbolsError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let raw = text(self.raw.get(&mut self.pages, function)?);
        let (parts, name) = split_name(self.names.get(&mut self.pages, function)?)?;
        Ok(match parts {
            Some(parts) => FunctionName {
                name: text(name),
                raw,
                parts,
            },
            None => FunctionName {
                name: raw.clone(),
                parts: Parts::of(&raw),
                raw,
            },
        })
    }

    /// Calls `see` with what people call a function.
    ///
    /// # Errors
    /// As [`SymbolFile::function`].
    pub fn with_name<T>(&mut self, function: u32, see: impl FnOnce(&str) -> T) -> Result<T, SymbolsError> {
        let (parts, name) = split_name(self.names.get(&mut self.pages, function)?)?;
        let name = match parts {
            Some(_) => name,
            None => self.raw.get(&mut self.pages, function)?,
        };
        Ok(see(&String::from_utf8_lossy(name)))
    }

    /// Calls `see` with the path of a source file.
    ///
    /// # Errors
    /// As [`SymbolFile::function`].
    pub fn with_file<T>(&mut self, file: u32, see: impl FnOnce(&str) -> T) -> Result<T, SymbolsError> {
        Ok(see(&String::from_utf8_lossy(
            self.files.get(&mut self.pages, file)?,
        )))
    }
}

/// Returns the parts and the name of an entry of `names`; nothing before an empty name.
fn split_name(entry: &[u8]) -> Result<(Option<Parts>, &[u8]), SymbolsError> {
    if entry.is_empty() {
        return Ok((None, entry));
    }
    let damaged = || SymbolsError::Damaged { what: "names" };
    let mut rest = entry;
    let mut place = || take(&mut rest).and_then(|place| u32::try_from(place).ok());
    let (scope, name, name_end, parameters) = match (place(), place(), place(), place()) {
        (Some(scope), Some(name), Some(name_end), Some(parameters)) => (scope, name, name_end, parameters),
        _ => return Err(damaged()),
    };
    let parts = Parts {
        scope,
        name,
        name_end,
        parameters,
    };
    Ok((Some(parts), rest))
}

/// Returns the row that holds `distance` bytes behind the start of a block.
fn decode(bytes: &[u8], distance: u32) -> Option<Row> {
    let mut sweep = Sweep::default();
    sweep.advance(bytes, distance)?;
    Some(sweep.row())
}

impl From<io::Error> for SymbolsError {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged {
                what: "it ends too early",
            },
            _ => Self::File { source },
        }
    }
}
