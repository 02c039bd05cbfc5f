//! Reading Avro that somebody else wrote: every length is checked before it is believed.

use super::TEXT_BYTES_MAX;
use super::error::{DecodeError, Fault};
use super::sealed::Fields;

/// Reads Avro from a slice.
pub struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// One block of an array.
struct Block {
    /// Items in it.
    count: usize,
    /// Where its items start, and the length that it states, if it states one.
    stated: Option<(usize, usize)>,
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Proves that nothing is left over.
    pub(super) fn finish(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            bytes => Err(self.fault("end", self.at, Fault::LeftOver { bytes })),
        }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[cold]
    pub(super) fn fault(&self, field: &'static str, at: usize, fault: Fault) -> DecodeError {
        DecodeError::Malformed { field, at, fault }
    }

    /// Returns where the next byte is.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn take(&mut self, field: &'static str, length: usize) -> Result<&'b [u8], DecodeError> {
        let left = self.left();
        if length > left {
            return Err(self.fault(
                field,
                self.at,
                Fault::Truncated {
                    needed: length as u64,
                    left,
                },
            ));
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    /// Reads groups of 7 bits, the lowest first: one and two of them, which most numbers have, without a loop.
    #[inline(always)]
    fn bits(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        match self.bytes[self.at..] {
            [a, ..] if a < 0x80 => {
                self.at += 1;
                Ok(u64::from(a))
            }
            [a, b, ..] if b < 0x80 => {
                self.at += 2;
                Ok(u64::from(a & 0x7f) | u64::from(b) << 7)
            }
            _ => self.long_bits(field),
        }
    }

    #[inline(never)]
    fn long_bits(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let start = self.at;
        let rest = &self.bytes[start..];
        let mut bits = 0_u64;
        for (group, &byte) in rest.iter().take(10).enumerate() {
            // The tenth group has room for one bit only.
            if group == 9 && byte > 1 {
                break;
            }
            bits |= u64::from(byte & 0x7f) << (7 * group);
            if byte < 0x80 {
                self.at = start + group + 1;
                return Ok(bits);
            }
        }
        Err(match rest.len() {
            left @ 0..10 => self.fault(
                field,
                start,
                Fault::Truncated {
                    needed: left as u64 + 1,
                    left,
                },
            ),
            _ => self.fault(field, start, Fault::Overlong),
        })
    }

    /// Reads a `long`, whose bits are the value.
    #[inline(always)]
    pub(super) fn long(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.bits(field).map(unzigzag)
    }

    /// Reads an `int` from 0 to `limit`.
    #[inline(always)]
    fn bounded(&mut self, field: &'static str, limit: u32) -> Result<u32, DecodeError> {
        let start = self.at;
        let bits = self.bits(field)?;
        // The lowest bit is the sign; limit is at most 2³¹ - 1, so that twice the limit fits.
        if bits & 1 == 0 && bits <= u64::from(limit) << 1 {
            return Ok((bits >> 1) as u32);
        }
        Err(self.fault(
            field,
            start,
            Fault::OutOfRange {
                value: unzigzag(bits) as i64,
                limit,
            },
        ))
    }

    /// Reads an `int` that is not negative.
    #[inline(always)]
    pub(super) fn int(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.bounded(field, i32::MAX as u32)
    }

    /// Reads a code.
    #[inline(always)]
    pub(super) fn code(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        // Bounded by 255, so that it fits.
        self.bounded(field, u32::from(u8::MAX)).map(|code| code as u8)
    }

    /// Reads a number of 16 bits.
    #[inline(always)]
    pub(super) fn short(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        // Bounded by 65,535, so that it fits.
        self.bounded(field, u32::from(u16::MAX))
            .map(|number| number as u16)
    }

    /// Reads a `boolean`.
    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let start = self.at;
        match self.take(field, 1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            other => Err(self.fault(
                field,
                start,
                Fault::OutOfRange {
                    value: other.iter().copied().map(i64::from).sum(),
                    limit: 1,
                },
            )),
        }
    }

    /// Reads a `double`.
    pub(super) fn double(&mut self, field: &'static str) -> Result<f64, DecodeError> {
        self.fixed(field).map(f64::from_le_bytes)
    }

    /// Reads a `fixed` of `N` bytes.
    pub(super) fn fixed<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut fixed = [0; N];
        fixed.copy_from_slice(self.take(field, N)?);
        Ok(fixed)
    }

    /// Reads `bytes` of at most `limit`.
    pub(super) fn bytes(&mut self, field: &'static str, limit: usize) -> Result<&'b [u8], DecodeError> {
        let start = self.at;
        let length = self.long(field)? as i64;
        match usize::try_from(length) {
            Ok(fits) if fits <= limit => self.take(field, fits),
            _ => Err(self.fault(field, start, Fault::Length { length, limit })),
        }
    }

    /// Reads a `string`.
    pub(super) fn text(&mut self, field: &'static str) -> Result<String, DecodeError> {
        let start = self.at;
        let bytes = self.bytes(field, TEXT_BYTES_MAX)?;
        match str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.fault(field, start, Fault::NotUtf8)),
        }
    }

    /// Reads an array of `string`.
    pub(super) fn texts(&mut self, field: &'static str) -> Result<Vec<String>, DecodeError> {
        self.array(field, 1, |reader| reader.text(field))
    }

    /// Reads an array of records that take at least `least` bytes each.
    pub(super) fn records<T: Fields>(
        &mut self,
        field: &'static str,
        least: usize,
    ) -> Result<Vec<T>, DecodeError> {
        self.array(field, least, T::read)
    }

    /// Reads an array of `long`.
    pub(super) fn longs(&mut self, field: &'static str) -> Result<Vec<u64>, DecodeError> {
        self.array(field, 1, |reader| reader.long(field))
    }

    /// Reads an array of `int`, none negative.
    pub(super) fn ints(&mut self, field: &'static str) -> Result<Vec<u32>, DecodeError> {
        self.array(field, 1, |reader| reader.int(field))
    }

    /// Reads an array of codes.
    pub(super) fn codes(&mut self, field: &'static str) -> Result<Vec<u8>, DecodeError> {
        self.array(field, 1, |reader| reader.code(field))
    }

    /// Reads an array, whose items take at least `least` bytes each: blocks until an empty one.
    #[inline(always)]
    fn array<T>(
        &mut self,
        field: &'static str,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let mut items = Vec::new();
        while let Some(block) = self.block(field, least)? {
            // Room for what the bytes left can hold at most: `block` proved it.
            match items.is_empty() {
                true => items.reserve_exact(block.count),
                false => items.reserve(block.count),
            }
            for _ in 0..block.count {
                items.push(read(self)?);
            }
            if let Some((start, stated)) = block.stated
                && self.at - start != stated
            {
                let taken = self.at - start;
                return Err(self.fault(field, start, Fault::BlockLength { stated, taken }));
            }
        }
        Ok(items)
    }

    /// Reads the head of a block; nothing for the empty one that ends an array.
    fn block(&mut self, field: &'static str, least: usize) -> Result<Option<Block>, DecodeError> {
        let start = self.at;
        let count = self.long(field)? as i64;
        if count == 0 {
            return Ok(None);
        }
        // A negative count says that the block's length in bytes follows.
        let mut room = self.left();
        let mut stated = None;
        if count < 0 {
            let length = self.long(field)? as i64;
            let left = self.left();
            match usize::try_from(length) {
                Ok(fits) if fits <= left => room = fits,
                _ => return Err(self.fault(field, start, Fault::Length { length, limit: left })),
            }
            stated = Some((self.at, room));
        }
        match usize::try_from(count.unsigned_abs()) {
            Ok(fits) if fits <= room / least => Ok(Some(Block { count: fits, stated })),
            _ => Err(self.fault(
                field,
                start,
                Fault::TooManyItems {
                    count: count.unsigned_abs(),
                    left: room,
                },
            )),
        }
    }
}

/// Returns the bits of the signed number whose sign is in the lowest bit.
#[inline(always)]
fn unzigzag(bits: u64) -> u64 {
    (bits >> 1) ^ (bits & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longs(bytes: &[u8]) -> Result<Vec<u64>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let read = reader.longs("f")?;
        reader.finish()?;
        Ok(read)
    }

    fn wrong(at: usize, fault: Fault) -> DecodeError {
        DecodeError::Malformed {
            field: "f",
            at,
            fault,
        }
    }

    /// Checks that arrays in several blocks, with and without their lengths, are read.
    #[test]
    fn arrays_in_blocks_are_read() {
        assert_eq!(longs(&[0]), Ok(vec![]));
        assert_eq!(longs(&[4, 2, 4, 0]), Ok(vec![1, 2]));
        assert_eq!(longs(&[2, 2, 2, 4, 0]), Ok(vec![1, 2]));
        // Two items in 3 bytes, then one without a length.
        assert_eq!(longs(&[3, 6, 2, 0x80, 1, 2, 6, 0]), Ok(vec![1, 64, 3]));
    }

    /// Checks that a block whose length is not that of its items is refused.
    #[test]
    fn blocks_of_another_length_are_refused() {
        assert_eq!(
            longs(&[1, 4, 2, 4, 0]),
            Err(wrong(2, Fault::BlockLength { stated: 2, taken: 1 }))
        );
        assert_eq!(
            longs(&[1, 1, 2, 0]),
            Err(wrong(0, Fault::Length { length: -1, limit: 2 }))
        );
        assert_eq!(
            longs(&[1, 100, 2, 0]),
            Err(wrong(0, Fault::Length { length: 50, limit: 2 }))
        );
    }

    /// Checks that a few bytes cannot claim many items, in either form, at either end of 64 bits.
    #[test]
    fn few_bytes_cannot_claim_many_items() {
        let many = [0x80, 0x80, 0x80, 0x80, 0x40, 0];
        assert_eq!(
            longs(&many),
            Err(wrong(
                0,
                Fault::TooManyItems {
                    count: 1 << 33,
                    left: 1
                }
            ))
        );
        let most_negative = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0];
        assert_eq!(
            longs(&most_negative),
            Err(wrong(
                0,
                Fault::TooManyItems {
                    count: 1 << 63,
                    left: 0
                }
            ))
        );
        let mut reader = Reader::new(&[8, 0, 0, 0, 0, 0]);
        let records = reader.array("f", 2, |reader| reader.fixed::<2>("f"));
        assert_eq!(records, Err(wrong(0, Fault::TooManyItems { count: 4, left: 5 })));
    }

    /// Checks that numbers end where 64 bits do, and that what is cut is said to be cut.
    #[test]
    fn numbers_end_where_64_bits_do() {
        let long = |bytes: &[u8]| Reader::new(bytes).long("f");
        assert_eq!(
            long(&[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Ok(i64::MAX as u64)
        );
        assert_eq!(
            long(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Ok(i64::MIN as u64)
        );
        assert_eq!(
            long(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
            Err(wrong(0, Fault::Overlong))
        );
        assert_eq!(long(&[0x80; 11]), Err(wrong(0, Fault::Overlong)));
        assert_eq!(long(&[]), Err(wrong(0, Fault::Truncated { needed: 1, left: 0 })));
        assert_eq!(
            long(&[0x80, 0x80]),
            Err(wrong(0, Fault::Truncated { needed: 3, left: 2 }))
        );
    }

    /// Checks that ints and codes keep to their ranges.
    #[test]
    fn ints_and_codes_keep_to_their_ranges() {
        let int = |bytes: &[u8]| Reader::new(bytes).int("f");
        assert_eq!(int(&[0xfe, 0xff, 0xff, 0xff, 0x0f]), Ok(i32::MAX as u32));
        let above = Fault::OutOfRange {
            value: 1 << 31,
            limit: i32::MAX as u32,
        };
        assert_eq!(int(&[0x80, 0x80, 0x80, 0x80, 0x10]), Err(wrong(0, above)));
        assert_eq!(
            int(&[1]),
            Err(wrong(
                0,
                Fault::OutOfRange {
                    value: -1,
                    limit: i32::MAX as u32
                }
            ))
        );
        let code = |bytes: &[u8]| Reader::new(bytes).code("f");
        assert_eq!(code(&[0xfe, 0x03]), Ok(255));
        assert_eq!(
            code(&[0x80, 0x04]),
            Err(wrong(
                0,
                Fault::OutOfRange {
                    value: 256,
                    limit: 255
                }
            ))
        );
    }

    /// Checks that text is bounded, whole and UTF-8.
    #[test]
    fn text_is_bounded_whole_and_utf8() {
        let text = |bytes: &[u8]| Reader::new(bytes).text("f");
        assert_eq!(text(&[4, b'o', b'k']), Ok("ok".to_owned()));
        assert_eq!(
            text(&[4, b'o']),
            Err(wrong(1, Fault::Truncated { needed: 2, left: 1 }))
        );
        assert_eq!(text(&[4, 0xc3, 0x28]), Err(wrong(0, Fault::NotUtf8)));
        assert_eq!(
            text(&[1]),
            Err(wrong(
                0,
                Fault::Length {
                    length: -1,
                    limit: TEXT_BYTES_MAX
                }
            ))
        );
        let mut long = Vec::new();
        super::super::encode::Writer::new(&mut long).bytes(&vec![b'x'; TEXT_BYTES_MAX + 1]);
        let length = TEXT_BYTES_MAX as i64 + 1;
        assert_eq!(
            text(&long),
            Err(wrong(
                0,
                Fault::Length {
                    length,
                    limit: TEXT_BYTES_MAX
                }
            ))
        );
    }

    /// Checks that bytes behind the value are refused.
    #[test]
    fn bytes_left_over_are_refused() {
        let refused = longs(&[0, 7]);
        let fault = Fault::LeftOver { bytes: 1 };
        assert_eq!(
            refused,
            Err(DecodeError::Malformed {
                field: "end",
                at: 1,
                fault
            })
        );
    }
}
