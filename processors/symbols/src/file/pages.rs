//! Bytes of a symbol file, read where they are needed, in pieces that are kept within a budget.
//!
//! No mapping: a file that is cut short under a mapping ends the process that reads it, the memory it takes cannot be
//! bounded from here, and a remote object has none. Pieces are read by offset, from a local file or by ranges of a
//! remote object alike.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a piece.
const PIECE_BYTES: usize = 1 << PIECE_SHIFT;
const PIECE_SHIFT: u32 = 14;

/// Bytes of the next piece that each piece holds too, so that no small read has to be put together: see [`Pages::at`].
const OVERLAP_BYTES: usize = 512;

/// Something that bytes can be read from by offset.
pub trait ReadAt: Send + std::fmt::Debug {
    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// What the system said; [`io::ErrorKind::UnexpectedEof`] where there are fewer.
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, out, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(out.len())?));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Slot {
    bytes: Box<[u8]>,
    used: bool,
}

/// The pieces of one file.
#[derive(Debug)]
pub(crate) struct Pages {
    source: Box<dyn ReadAt>,
    length: u64,
    slots: Vec<Slot>,
    bytes: usize,
    bytes_max: usize,
    hand: usize,
}

impl Pages {
    /// Returns the pieces of a file of `length` bytes, of which at most `bytes_max` are kept.
    pub(crate) fn new(source: Box<dyn ReadAt>, length: u64, bytes_max: usize) -> Self {
        let slots = length.div_ceil(PIECE_BYTES as u64) as usize;
        Self {
            source,
            length,
            slots: std::iter::repeat_with(Slot::default).take(slots).collect(),
            bytes: 0,
            bytes_max: bytes_max.max(8 * (PIECE_BYTES + OVERLAP_BYTES)),
            hand: 0,
        }
    }

    /// Returns the bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the bytes held.
    pub(crate) fn held(&self) -> usize {
        self.bytes
    }

    /// Lets go of all bytes.
    pub(crate) fn release(&mut self) {
        for slot in &mut self.slots {
            *slot = Slot::default();
        }
        self.bytes = 0;
    }

    /// Returns at least `least` bytes from `offset` on, and what happens to lie behind them.
    ///
    /// # Errors
    /// What the source said; [`io::ErrorKind::UnexpectedEof`] for what lies outside of the file.
    ///
    /// # Panics
    /// Never: a `least` above 512 gives an error.
    #[inline]
    pub(crate) fn at(&mut self, offset: u64, least: usize) -> io::Result<&[u8]> {
        let index = (offset >> PIECE_SHIFT) as usize;
        if self.slots.get(index).is_none_or(|slot| slot.bytes.is_empty()) {
            self.load(index)?;
        }
        let slot = self.slots.get_mut(index).ok_or(io::ErrorKind::UnexpectedEof)?;
        slot.used = true;
        let within = offset as usize & (PIECE_BYTES - 1);
        match slot.bytes.get(within..) {
            Some(found) if found.len() >= least => Ok(found),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns a copy of the bytes of a range, past the pieces: for what is unpacked anyway.
    ///
    /// # Errors
    /// As [`Pages::at`].
    pub(crate) fn copy(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        if offset
            .checked_add(length as u64)
            .is_none_or(|end| end > self.length)
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut out = vec![0; length];
        self.source.read_exact_at(&mut out, offset)?;
        Ok(out)
    }

    #[cold]
    fn load(&mut self, index: usize) -> io::Result<()> {
        let offset = (index as u64) << PIECE_SHIFT;
        let length = self.length.saturating_sub(offset);
        let length = length.min((PIECE_BYTES + OVERLAP_BYTES) as u64) as usize;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.make_room(length);
        let bytes = self.copy(offset, length)?.into_boxed_slice();
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot { bytes, used: true };
            self.bytes += length;
        }
        Ok(())
    }

    /// Lets go of pieces that were not used since the last time round, until `length` more bytes fit.
    fn make_room(&mut self, length: usize) {
        // Twice round: the first may do no more than unmark.
        for _ in 0..2 * self.slots.len() {
            if self.bytes + length <= self.bytes_max {
                return;
            }
            let slot = &mut self.slots[self.hand];
            if slot.used {
                slot.used = false;
            } else {
                self.bytes -= slot.bytes.len();
                slot.bytes = Box::default();
            }
            self.hand = (self.hand + 1) % self.slots.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Vec<u8> {
        (0..10 * PIECE_BYTES + 77)
            .map(|at| (at * 7 + at / 251) as u8)
            .collect()
    }

    /// Checks that every place reads as it is, whatever was let go of before, and that the budget holds.
    #[test]
    fn every_place_reads_as_it_is_within_the_budget() {
        let content = content();
        let length = content.len() as u64;
        let mut pages = Pages::new(Box::new(content.clone()), length, 0);
        let budget = pages.bytes_max;
        for step in [1_001, 16_383, 50_021] {
            for at in (0..content.len() - 300).step_by(step) {
                assert_eq!(pages.at(at as u64, 300).unwrap()[..300], content[at..at + 300]);
                assert!(pages.held() <= budget);
            }
        }
        assert_eq!(pages.copy(5, 40_000).unwrap(), content[5..40_005]);
        pages.release();
        assert_eq!(pages.held(), 0);
        assert_eq!(pages.at(length - 1, 1).unwrap(), &content[content.len() - 1..]);
    }

    /// Checks that what lies outside of the file is an error, not a panic.
    #[test]
    fn outside_of_the_file_is_an_error() {
        let content = content();
        let length = content.len() as u64;
        let mut pages = Pages::new(Box::new(content), length, 1 << 20);
        for (offset, least) in [(length, 1), (length - 3, 4), (u64::MAX, 1), (0, PIECE_BYTES * 2)] {
            assert!(pages.at(offset, least).is_err(), "{offset} {least}");
        }
        assert!(pages.copy(length - 1, 2).is_err() && pages.copy(u64::MAX, 2).is_err());
    }
}
