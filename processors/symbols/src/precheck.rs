//! A look at a binary's headers before anything parses it: is it an ELF file, and would unpacking it be a bomb.
//!
//! Seen: a section header that claims 2⁴⁶ bytes ends a process that believes it, and 3 MB that unpack to 3 GiB cost
//! what they claim. Limits on memory catch both, but only by the worker's death; this catches them by an answer.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use object::elf::PF_X;
use object::{
    CompressionFormat, Object, ObjectSection, ObjectSegment, ObjectSymbolTable, ReadCache, SegmentFlags,
};
use strobe_event::Reason;

/// Most bytes that a byte of a compressed section may stand for, as in compilers' output by a wide margin (2 to 10).
const RATIO_MAX: u64 = 100;

/// Sections that unpack to less are not held against their ratio: a few pages of zeros are no bomb.
const RATIO_FREE_BYTES: u64 = 16 << 20;

/// Most sections looked at. Compilers that give each function one reach some 100,000 in objects, few in programs.
const SECTIONS_MAX: usize = 1 << 20;

/// Most executable segments looked at: linkers make one, with huge-page tricks a handful.
const SEGMENTS_MAX: usize = 256;

/// What the headers of a binary say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Its length.
    pub bytes: u64,
    /// Whether it has a symbol table or debug information. One with neither may still name what it exports.
    pub has_symbols: bool,
    /// Addresses of its executable segments; empty for a file without any, of which nothing can be said.
    pub code: Vec<Range<u64>>,
}

impl Checked {
    /// Returns whether code lies at an address, as far as the headers tell.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.code.is_empty() || self.code.iter().any(|code| code.contains(&address))
    }

    /// Returns whether a symbol without a size may name `address`: both must lie in the same executable segment.
    ///
    /// Such a symbol is taken to reach up to the next one, and the last of a file, often `_end`, for ever.
    pub(crate) fn may_reach(&self, symbol: u64, address: u64) -> bool {
        self.code.is_empty()
            || self
                .code
                .iter()
                .any(|code| code.contains(&symbol) && code.contains(&address))
    }
}

/// Looks at the headers of the binary at `path`.
///
/// # Errors
/// The reason for which it must not be parsed.
pub(crate) fn check(path: &Path, binary_bytes_max: u64, unpacked_bytes_max: u64) -> Result<Checked, Reason> {
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Reason::MissingBinary,
        _ => Reason::Unreadable,
    })?;
    let meta = file.metadata().map_err(|_| Reason::Unreadable)?;
    if !meta.is_file() {
        return Err(Reason::Damaged);
    }
    if meta.len() > binary_bytes_max {
        return Err(Reason::OverLimit);
    }
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).map_err(|_| Reason::Damaged)?;
    if elf.format() != object::BinaryFormat::Elf {
        return Err(Reason::Damaged);
    }
    let mut has_symbols = elf
        .symbol_table()
        .is_some_and(|table| table.symbols().next().is_some());
    let mut unpacked = 0_u64;
    for (index, section) in elf.sections().enumerate() {
        if index >= SECTIONS_MAX {
            return Err(Reason::OverLimit);
        }
        has_symbols |= section
            .name()
            .is_ok_and(|name| name == ".debug_info" || name == ".zdebug_info");
        let Ok(range) = section.compressed_file_range() else {
            continue;
        };
        if range.format == CompressionFormat::None {
            continue;
        }
        let free = range.uncompressed_size <= RATIO_FREE_BYTES;
        if !free && range.uncompressed_size / RATIO_MAX > range.compressed_size {
            return Err(Reason::OverLimit);
        }
        unpacked = unpacked.saturating_add(range.uncompressed_size);
        if unpacked > unpacked_bytes_max {
            return Err(Reason::OverLimit);
        }
    }
    let executable = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
    let code = elf
        .segments()
        .filter(|segment| executable(segment.flags()))
        .take(SEGMENTS_MAX);
    let code = code
        .map(|segment| segment.address()..segment.address().saturating_add(segment.size()))
        .collect();
    Ok(Checked {
        bytes: meta.len(),
        has_symbols,
        code,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what is no ELF file is told apart from what is missing and from what is too big.
    #[test]
    fn what_cannot_be_parsed_gets_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, b"#!/bin/sh\nexit 0\n").unwrap();
        assert_eq!(check(&text, 1 << 20, 1 << 20), Err(Reason::Damaged));
        assert_eq!(check(&text, 4, 1 << 20), Err(Reason::OverLimit));
        assert_eq!(
            check(&folder.path().join("none"), 4, 4),
            Err(Reason::MissingBinary)
        );
        assert_eq!(check(folder.path(), 1 << 20, 4), Err(Reason::Damaged));
    }

    /// Checks that this test's own executable passes, with symbols.
    #[test]
    fn an_honest_binary_passes() {
        let own = std::env::current_exe().unwrap();
        assert!(
            check(&own, 1 << 30, 1 << 30)
                .is_ok_and(|checked| checked.has_symbols && !checked.code.is_empty())
        );
    }
}
