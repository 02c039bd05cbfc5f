//! Looking many addresses up at once, in their order: each block of rows is found and read once.
//!
//! An answer is numbers: the innermost scope, file and line. The chain of a scope is the same wherever it is met, so that its
//! levels are read once for all addresses in it ([`SymbolFile::level`]), and text once for all levels.

use super::CHAIN_MAX;
use super::read::{Block, Row, SymbolFile};
use super::varint::{take, take_signed};
use crate::error::SymbolsError;

/// Most blocks looked through for the beginning of a function: 64,000 rows, as the largest ones of generated code have.
const BLOCKS_BACK_MAX: usize = 4_096;

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

    /// Returns where the stretch of code around an address begins that belongs to the same outermost function; nothing where
    /// none does, or where it begins too far away.
    ///
    /// # Errors
    /// As [`SymbolFile::find_all`].
    pub fn stretch_start(&mut self, address: u64) -> Result<Option<u64>, SymbolsError> {
        let Some(relative) = self.relative(address) else {
            return Ok(None);
        };
        let base = address - u64::from(relative);
        let (mut wanted, mut start, mut at) = (None, relative, relative);
        // Of a run of rows in one scope the outermost function is looked up once.
        let mut last = (0, 0);
        for _ in 0..BLOCKS_BACK_MAX {
            let block = self.block(at)?;
            for (row_start, scope) in self.rows_up_to(&block, at)?.into_iter().rev() {
                if scope != last.0 {
                    last = (scope, self.outermost(scope)?);
                }
                match *wanted.get_or_insert(last.1) {
                    0 => return Ok(None),
                    wanted if wanted != last.1 => return Ok(Some(base + u64::from(start))),
                    _ => start = row_start,
                }
            }
            match block.start.checked_sub(1) {
                Some(before) if block.start <= at => at = before,
                _ => return Ok(wanted.map(|_| base + u64::from(start))),
            }
        }
        Ok(None)
    }

    /// Returns start and scope of the rows of a block that begin at or before an address.
    fn rows_up_to(&mut self, block: &Block, most: u32) -> Result<Vec<(u32, u32)>, SymbolsError> {
        let bytes = self.pages.at(block.place, block.length)?;
        let bytes = &bytes[..block.length];
        let damaged = || SymbolsError::Damaged { what: "rows" };
        let (mut rows, mut rest) = (Vec::new(), bytes);
        let (mut at, mut scope) = (u64::from(block.start), 0_u32);
        while !rest.is_empty() {
            let head = take(&mut rest).ok_or_else(damaged)?;
            at += head >> 2;
            if at > u64::from(most) {
                break;
            }
            take_signed(&mut rest).ok_or_else(damaged)?;
            if head & 2 != 0 {
                scope = scope.wrapping_add(take_signed(&mut rest).ok_or_else(damaged)? as u32);
            }
            if head & 1 != 0 {
                take_signed(&mut rest).ok_or_else(damaged)?;
            }
            rows.push((at as u32, scope));
        }
        Ok(rows)
    }

    /// Returns the function that a scope lies in, in the end; 0 of no scope.
    fn outermost(&mut self, mut scope: u32) -> Result<u32, SymbolsError> {
        // Each parent has a smaller number, so the end comes; a hostile file must not make it come late.
        for _ in 0..4 * CHAIN_MAX {
            match scope {
                0 => return Ok(0),
                _ => match self.level(scope)?.parent {
                    0 => return Ok(scope),
                    parent => scope = parent,
                },
            }
        }
        Err(SymbolsError::Damaged { what: "scopes" })
    }
}
