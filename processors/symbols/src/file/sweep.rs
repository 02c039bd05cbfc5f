//! Looking many addresses up at once, in their order: each block of rows is found and read once.
//!
//! An answer is numbers: the innermost scope, file and line. The chain of a scope is the same wherever it is met, so that its
//! levels are read once for all addresses in it ([`SymbolFile::level`]), and text once for all levels.

use super::read::{Block, Row, SymbolFile};
use super::varint::{take, take_signed};
use crate::error::SymbolsError;

/// What holds at an address, in numbers of its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Hit {
    /// The innermost function or inlined call; 0 where there is none.
    pub scope: u32,
    /// The source file; 0 if not known.
    pub file: u32,
    /// The source line; 0 if not known.
    pub line: u32,
}

/// A scope: a function, or a call that was inlined into another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Level {
    /// The scope that it was inlined into; 0 if it was not.
    pub parent: u32,
    /// The function.
    pub function: u32,
    /// The source file of the call; 0 if not known.
    pub call_file: u32,
    /// The source line of the call; 0 if not known.
    pub call_line: u32,
}

/// The rows of a block, read up to some row.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Bytes read, and where the last row that was read begins, from the block's start.
    read: usize,
    at: u64,
    row: Row,
}

impl Sweep {
    /// Reads on to the row that holds `distance` bytes behind the block's start, which must not lie before the last one;
    /// nothing where the block is damaged.
    #[inline]
    pub(super) fn advance(&mut self, block: &[u8], distance: u32) -> Option<()> {
        let mut rest = block.get(self.read..)?;
        while !rest.is_empty() {
            let head = take(&mut rest)?;
            let next = self.at + (head >> 2);
            if next > u64::from(distance) {
                break;
            }
            self.at = next;
            let row = &mut self.row;
            row.line = row.line.wrapping_add(take_signed(&mut rest)? as u32);
            if head & 2 != 0 {
                row.scope = row.scope.wrapping_add(take_signed(&mut rest)? as u32);
            }
            if head & 1 != 0 {
                row.file = row.file.wrapping_add(take_signed(&mut rest)? as u32);
            }
            self.read = block.len() - rest.len();
        }
        Some(())
    }

    /// Returns the last row that was read. One without a file has no line either; the number stands still there to save bytes.
    #[inline]
    pub(super) fn row(&self) -> Row {
        match self.row.file {
            0 => Row { line: 0, ..self.row },
            _ => self.row,
        }
    }
}

impl SymbolFile {
    /// Calls `see` with what holds at each of some addresses, in their order. They are best sorted: each block of rows is
    /// then read once. In any order the answers are the same.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where the file does not hold together, or what the source said.
    pub fn find_all(&mut self, addresses: &[u64], mut see: impl FnMut(Hit)) -> Result<(), SymbolsError> {
        let mut present: Option<(Block, Sweep)> = None;
        let mut reached = 0;
        for &address in addresses {
            let Some(relative) = self.relative(address) else {
                see(Hit::default());
                continue;
            };
            let (block, sweep) = match &mut present {
                Some(present) if (reached..present.0.next).contains(&relative) => present,
                _ => present.insert((self.block(relative)?, Sweep::default())),
            };
            if block.start > relative {
                see(Hit::default());
                present = None;
                continue;
            }
            reached = relative;
            let bytes = self.pages.at(block.place, block.length)?;
            sweep
                .advance(&bytes[..block.length], relative - block.start)
                .ok_or(SymbolsError::Damaged { what: "rows" })?;
            let Row { scope, file, line } = sweep.row();
            see(match scope {
                0 => Hit::default(),
                scope => Hit { scope, file, line },
            });
        }
        Ok(())
    }
}
