//! Text by number: packed in blocks, each unpacked when one of its texts is first asked for.

use std::io;

use super::TEXT_BYTES_MAX;
use super::pages::Pages;
use super::varint;
use crate::error::SymbolsError;

/// Bytes of text after which a block is closed. Larger ones pack better; one is unpacked in some 20 µs.
const BLOCK_BYTES: usize = 16 << 10;

/// Most bytes of an unpacked block: a text may begin just below the end, and three numbers may stand before it.
const UNPACKED_BYTES_MAX: usize = BLOCK_BYTES + TEXT_BYTES_MAX + 64;

/// Bytes of a block's entry in the index.
const ENTRY_BYTES: u64 = 12;

/// Level of zstd. Higher ones gain a few per cent, and cost conversions a multiple.
const LEVEL: i32 = 3;

/// Unpacked blocks kept for each section: names are asked for in the order of addresses, which is the texts' own.
const KEPT: usize = 8;

/// Returns a text section with all of `texts`, whose numbers are their places, from 1.
///
/// # Errors
/// What the packer said, which is that memory is out.
pub(crate) fn encode<'a>(texts: impl Iterator<Item = &'a [u8]>) -> io::Result<Vec<u8>> {
    let mut packer = zstd::bulk::Compressor::new(LEVEL)?;
    let (mut index, mut data) = (Vec::new(), Vec::new());
    let mut block = Vec::with_capacity(UNPACKED_BYTES_MAX);
    let (mut count, mut first, mut blocks) = (0_u32, 0_u32, 0_u32);
    let mut close = |block: &mut Vec<u8>, first: u32| -> io::Result<()> {
        for number in [first, data.len() as u32, block.len() as u32] {
            index.extend_from_slice(&number.to_le_bytes());
        }
        data.extend_from_slice(&packer.compress(block)?);
        block.clear();
        Ok(())
    };
    for text in texts {
        varint::put(&mut block, text.len() as u64);
        block.extend_from_slice(text);
        count += 1;
        if block.len() >= BLOCK_BYTES {
            close(&mut block, first)?;
            (first, blocks) = (count, blocks + 1);
        }
    }
    if !block.is_empty() {
        close(&mut block, first)?;
        blocks += 1;
    }
    let mut out = Vec::with_capacity(8 + index.len() + data.len());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&blocks.to_le_bytes());
    out.extend_from_slice(&index);
    out.extend_from_slice(&data);
    Ok(out)
}

/// An unpacked block.
#[derive(Debug)]
struct Block {
    first: u32,
    bytes: Vec<u8>,
    /// Where each text lies.
    texts: Vec<(u32, u32)>,
}

/// A text section of a file that is being read.
#[derive(Debug)]
pub(crate) struct Texts {
    offset: u64,
    bytes: u64,
    count: u32,
    blocks: u32,
    kept: Vec<Block>,
}

impl Texts {
    /// Returns the section at `offset`.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where it does not hold its own index, or what the source said.
    pub(crate) fn open(pages: &mut Pages, offset: u64, bytes: u64) -> Result<Self, SymbolsError> {
        let damaged = SymbolsError::Damaged {
            what: "the index of a text section",
        };
        if bytes < 8 {
            return Err(damaged);
        }
        let head = pages.at(offset, 8)?;
        let (count, blocks) = (number(head, 0), number(head, 4));
        if 8 + u64::from(blocks) * ENTRY_BYTES > bytes {
            return Err(damaged);
        }
        Ok(Self {
            offset,
            bytes,
            count,
            blocks,
            kept: Vec::new(),
        })
    }

    /// Lets go of what is unpacked.
    pub(crate) fn release(&mut self) {
        self.kept = Vec::new();
    }

    /// Returns the bytes held.
    pub(crate) fn held(&self) -> usize {
        self.kept
            .iter()
            .map(|block| block.bytes.capacity() + block.texts.capacity() * 8)
            .sum()
    }

    /// Returns the text of a number from 1.
    ///
    /// # Errors
    /// [`SymbolsError::Damaged`] where there is no such text, or what the source said.
    pub(crate) fn get(&mut self, pages: &mut Pages, id: u32) -> Result<&[u8], SymbolsError> {
        let damaged = || SymbolsError::Damaged { what: "a text" };
        let text = id
            .checked_sub(1)
            .filter(|&text| text < self.count)
            .ok_or_else(damaged)?;
        let holds = |block: &Block| {
            text.checked_sub(block.first)
                .is_some_and(|within| (within as usize) < block.texts.len())
        };
        let at = match self.kept.iter().rposition(holds) {
            Some(at) => at,
            None => {
                let block = self.unpack(pages, text)?;
                if self.kept.len() >= KEPT {
                    self.kept.remove(0);
                }
                self.kept.push(block);
                self.kept.len() - 1
            }
        };
        let block = &self.kept[at];
        let (start, length) = text
            .checked_sub(block.first)
            .and_then(|within| block.texts.get(within as usize))
            .ok_or_else(damaged)?;
        Ok(&block.bytes[*start as usize..][..*length as usize])
    }

    /// Unpacks the block with a text.
    fn unpack(&self, pages: &mut Pages, text: u32) -> Result<Block, SymbolsError> {
        let damaged = || SymbolsError::Damaged {
            what: "a block of text",
        };
        // The last block whose first text is not behind this one.
        let (mut low, mut high) = (0, self.blocks);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.entry(pages, middle)?.0 <= text {
                low = middle;
            } else {
                high = middle;
            }
        }
        let (first, place, unpacked) = self.entry(pages, low)?;
        let data = self.offset + 8 + u64::from(self.blocks) * ENTRY_BYTES;
        let end = if low + 1 < self.blocks {
            data + u64::from(self.entry(pages, low + 1)?.1)
        } else {
            self.offset + self.bytes
        };
        let packed = end
            .checked_sub(data + u64::from(place))
            .filter(|&bytes| bytes <= UNPACKED_BYTES_MAX as u64 * 2)
            .ok_or_else(damaged)?;
        if unpacked as usize > UNPACKED_BYTES_MAX {
            return Err(damaged());
        }
        let packed = pages.copy(data + u64::from(place), packed as usize)?;
        let bytes = zstd::bulk::decompress(&packed, unpacked as usize).map_err(|_| damaged())?;
        let mut texts = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let length = varint::take(&mut rest).ok_or_else(damaged)? as usize;
            let start = bytes.len() - rest.len();
            rest = rest.get(length..).ok_or_else(damaged)?;
            texts.push((start as u32, length as u32));
        }
        Ok(Block { first, bytes, texts })
    }

    /// Returns a block's first text, its place and its unpacked length.
    fn entry(&self, pages: &mut Pages, block: u32) -> io::Result<(u32, u32, u32)> {
        let bytes = pages.at(
            self.offset + 8 + u64::from(block) * ENTRY_BYTES,
            ENTRY_BYTES as usize,
        )?;
        Ok((number(bytes, 0), number(bytes, 4), number(bytes, 8)))
    }
}

/// Returns the number at a place of `bytes`; 0 where they do not reach, which every caller has ruled out.
#[inline]
pub(crate) fn number(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every text comes back under its number, in any order, and that none comes under another.
    #[test]
    fn texts_come_back_under_their_numbers() {
        let texts: Vec<Vec<u8>> = (0..20_000_usize)
            .map(|at| {
                format!("namespace::module::function_{at}")
                    .repeat(at % 7)
                    .into_bytes()
            })
            .collect();
        let section = encode(texts.iter().map(Vec::as_slice)).unwrap();
        assert!(section.len() * 8 < texts.iter().map(Vec::len).sum::<usize>());
        let bytes = section.len() as u64;
        let mut pages = Pages::new(Box::new(section), bytes, 1 << 20);
        let mut section = Texts::open(&mut pages, 0, bytes).unwrap();
        for step in [1, 7_919] {
            for at in (0..texts.len()).map(|at| at * step % texts.len()) {
                assert_eq!(section.get(&mut pages, at as u32 + 1).unwrap(), texts[at]);
            }
        }
        for id in [0, 20_001, u32::MAX] {
            assert!(section.get(&mut pages, id).is_err());
        }
    }
}
