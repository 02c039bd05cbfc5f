//! The header of a symbol file: what it holds, and where.

use crc32fast::hash;

use super::CHAIN_MAX;
use crate::error::SymbolsError;

/// First bytes of every symbol file.
const MAGIC: &[u8; 8] = b"strobsym";
/// Changed with any change of the format; a file of another version is made anew.
pub const VERSION: u32 = 2;
/// Bytes of the header; its last four are their checksum.
pub(crate) const HEADER_BYTES: usize = 512;

/// Names of the sections, in their order.
pub(crate) const SECTIONS: [&str; 7] = ["pages", "blocks", "rows", "scopes", "files", "raw", "names"];
pub(crate) const PAGES: usize = 0;
pub(crate) const BLOCKS: usize = 1;
pub(crate) const ROWS: usize = 2;
pub(crate) const SCOPES: usize = 3;
pub(crate) const FILES: usize = 4;
pub(crate) const RAW: usize = 5;
pub(crate) const NAMES: usize = 6;

/// Where a section lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub offset: u64,
    pub bytes: u64,
    pub crc: u32,
}

/// What a symbol file was made of, and what could not be read on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// It was made of debug information.
    pub debug_info: bool,
    /// The binary has a full symbol table, not only the names that it exports.
    pub symbol_table: bool,
    /// It was made of the table that Go's runtime carries.
    pub go_table: bool,
    /// Names came from a compressed symbol table, `.gnu_debugdata`.
    pub mini_debug_info: bool,
    /// A separate file, or the debug information, was there and could not be read: it was left out.
    pub parts_refused: bool,
    /// Compilation units read.
    pub units: u32,
    /// Compilation units that could not be read.
    pub units_damaged: u32,
    /// Compilation units whose debug information lies in other files that were not there.
    pub units_elsewhere: u32,
    /// Rows: stretches of code with an answer of their own.
    pub rows: u32,
    /// Calls that were inlined, and functions.
    pub scopes: u32,
    /// Distinct functions.
    pub functions: u32,
    /// Distinct source files.
    pub files: u32,
}

/// Bytes of the parts of a symbol file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Everything.
    pub file: u64,
    /// Rows with their index.
    pub rows: u64,
    /// Functions and inlined calls.
    pub scopes: u64,
    /// Paths of source files.
    pub files: u64,
    /// Names as linkers have them.
    pub raw: u64,
    /// Names as people read them, with their parts.
    pub names: u64,
}

/// Bytes of each number of a record in `scopes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Widths {
    pub parent: u8,
    pub function: u8,
    pub file: u8,
    pub line: u8,
}

impl Widths {
    pub(crate) fn record(self) -> usize {
        [self.parent, self.function, self.file, self.line]
            .iter()
            .map(|&width| usize::from(width))
            .sum()
    }
}

/// The header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub facts: Facts,
    /// Address of the image's first byte: that of its first loadable segment.
    pub image_base: u64,
    pub base: u64,
    pub span: u32,
    pub shift: u8,
    pub blocks: u32,
    pub widths: Widths,
    pub sections: [Section; SECTIONS.len()],
}

impl Facts {
    /// Returns how good the file is, to be compared with another one of the same binary: debug information before Go's
    /// table before symbols, and then by how much of it could be read.
    pub fn rank(&self) -> (bool, bool, bool, u32, u32) {
        (
            self.debug_info && self.units > 0,
            self.go_table,
            self.symbol_table || self.mini_debug_info,
            self.units
                .saturating_sub(self.units_damaged.saturating_add(self.units_elsewhere)),
            self.functions,
        )
    }
}

impl Header {
    /// Returns the header's bytes.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(MAGIC);
        let facts = &self.facts;
        let flags = u32::from(facts.debug_info)
            | u32::from(facts.symbol_table) << 1
            | u32::from(facts.go_table) << 2
            | u32::from(facts.mini_debug_info) << 3
            | u32::from(facts.parts_refused) << 4;
        for number in [
            VERSION,
            flags,
            facts.units,
            facts.units_damaged,
            facts.units_elsewhere,
            facts.rows,
            facts.scopes,
            facts.functions,
            facts.files,
            self.span,
            self.blocks,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let widths = self.widths;
        out.extend_from_slice(&[
            self.shift,
            widths.parent,
            widths.function,
            widths.file,
            widths.line,
            0,
            0,
            0,
        ]);
        out.extend_from_slice(&self.base.to_le_bytes());
        for section in self.sections {
            out.extend_from_slice(&section.offset.to_le_bytes());
            out.extend_from_slice(&section.bytes.to_le_bytes());
            out.extend_from_slice(&section.crc.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
        }
        out.extend_from_slice(&self.image_base.to_le_bytes());
        let mut bytes = [0; HEADER_BYTES];
        bytes[..out.len()].copy_from_slice(&out);
        let crc = hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the header that `bytes` hold, of a file of `length` bytes.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] names what does not hold together.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], length: u64) -> Result<Self, SymbolsError> {
        let damaged = |what| SymbolsError::Damaged { what };
        let (body, crc) = bytes.split_at(HEADER_BYTES - 4);
        let mut rest = Fields(body);
        if rest.take::<8>() != *MAGIC {
            return Err(damaged("it is no symbol file"));
        }
        if rest.u32() != VERSION {
            return Err(damaged("it has another version"));
        }
        if hash(body).to_le_bytes() != crc {
            return Err(damaged("the header's checksum"));
        }
        let flags = rest.u32();
        let facts = Facts {
            debug_info: flags & 1 != 0,
            symbol_table: flags & 2 != 0,
            go_table: flags & 4 != 0,
            mini_debug_info: flags & 8 != 0,
            parts_refused: flags & 16 != 0,
            units: rest.u32(),
            units_damaged: rest.u32(),
            units_elsewhere: rest.u32(),
            rows: rest.u32(),
            scopes: rest.u32(),
            functions: rest.u32(),
            files: rest.u32(),
        };
        let (span, blocks) = (rest.u32(), rest.u32());
        let [shift, parent, function, file, line, ..] = rest.take::<8>();
        let widths = Widths {
            parent,
            function,
            file,
            line,
        };
        let base = rest.u64();
        let mut sections = [Section::default(); SECTIONS.len()];
        for section in &mut sections {
            *section = Section {
                offset: rest.u64(),
                bytes: rest.u64(),
                crc: rest.u32(),
            };
            rest.u32();
            if section
                .offset
                .checked_add(section.bytes)
                .is_none_or(|end| end > length)
            {
                return Err(damaged("a section ends outside of the file"));
            }
        }
        let image_base = rest.u64();
        if shift > 31 || [parent, function, file, line].iter().any(|&width| width > 4) {
            return Err(damaged("the widths of its numbers"));
        }
        let header = Self {
            facts,
            image_base,
            base,
            span,
            shift,
            blocks,
            widths,
            sections,
        };
        let pages = (u64::from(span >> shift) + 2) * 4;
        let fits = (blocks > 0 || span == 0)
            && sections[PAGES].bytes >= pages
            && sections[BLOCKS].bytes == (u64::from(blocks) + 1) * 8
            && sections[SCOPES].bytes >= u64::from(facts.scopes) * widths.record() as u64;
        fits.then_some(header).ok_or(damaged("the sizes of its tables"))
    }

    /// Returns the bytes of the parts.
    pub(crate) fn sizes(&self, file: u64) -> Sizes {
        let of = |index: usize| self.sections[index].bytes;
        Sizes {
            file,
            rows: of(PAGES) + of(BLOCKS) + of(ROWS),
            scopes: of(SCOPES),
            files: of(FILES),
            raw: of(RAW),
            names: of(NAMES),
        }
    }
}

const _: () = assert!(8 + 11 * 4 + 8 + 8 + SECTIONS.len() * 24 + 8 + 4 <= HEADER_BYTES);
const _: () = assert!(CHAIN_MAX < u16::MAX as usize);

/// Reads fields from the front of a header, which is long enough for all of them.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.0 = rest;
                *taken
            }
            None => [0; N],
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a header comes back as it was, and that one which has code without a single block is refused: every look-up
    /// would read what lies behind the index.
    #[test]
    fn code_without_blocks_is_refused() {
        let mut header = Header {
            span: 64,
            shift: 8,
            blocks: 1,
            ..Header::default()
        };
        header.sections[PAGES].bytes = 8;
        header.sections[BLOCKS].bytes = 16;
        assert_eq!(Header::decode(&header.encode(), 4_096).unwrap(), header);
        header.blocks = 0;
        header.sections[BLOCKS].bytes = 8;
        assert!(matches!(
            Header::decode(&header.encode(), 4_096),
            Err(SymbolsError::Damaged { .. })
        ));
    }
}
