//! Writing Avro: the primitives, and columns in bulk.

use super::TEXT_BYTES_MAX;
use super::error::EncodeError;
use super::sealed::Fields;

/// Bytes of the longest `long`: ten groups of 7 bits.
const LONG_BYTES_MAX: usize = 10;

/// Bytes of the longest `int` that is not negative: five groups of 7 bits.
const INT_BYTES_MAX: usize = 5;

/// Items written between two appends: few enough to stay in the first-level cache, many enough to hide the append.
const CHUNK_ITEMS: usize = 64;

/// Appends Avro to a buffer.
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> Writer<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Appends a `long`.
    pub(super) fn long(&mut self, value: u64) {
        let mut buffer = [0; LONG_BYTES_MAX];
        let end = put(&mut buffer, 0, zigzag(value));
        self.out.extend_from_slice(&buffer[..end]);
    }

    /// Appends an `int` that is not negative.
    pub(super) fn int(&mut self, field: &'static str, value: u32) -> Result<(), EncodeError> {
        if value > i32::MAX as u32 {
            return Err(EncodeError::NumberTooLarge { field, value });
        }
        self.long(u64::from(value));
        Ok(())
    }

    /// Appends a code as an `int`.
    pub(super) fn code(&mut self, code: u8) {
        self.long(u64::from(code));
    }

    /// Appends a `boolean`.
    pub(super) fn flag(&mut self, flag: bool) {
        self.out.push(flag.into());
    }

    /// Appends a `double`.
    pub(super) fn double(&mut self, value: f64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a `fixed`.
    pub(super) fn fixed(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends `bytes`.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.long(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    /// Appends `bytes` of at most `limit`.
    pub(super) fn limited(
        &mut self,
        field: &'static str,
        bytes: &[u8],
        limit: usize,
    ) -> Result<(), EncodeError> {
        if bytes.len() > limit {
            return Err(EncodeError::TextTooLong {
                field,
                bytes: bytes.len(),
                limit,
            });
        }
        self.bytes(bytes);
        Ok(())
    }

    /// Appends a `string`.
    pub(super) fn text(&mut self, field: &'static str, text: &str) -> Result<(), EncodeError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(EncodeError::TextTooLong {
                field,
                bytes: text.len(),
                limit: TEXT_BYTES_MAX,
            });
        }
        self.bytes(text.as_bytes());
        Ok(())
    }

    /// Appends an array of `string`.
    pub(super) fn texts(&mut self, field: &'static str, texts: &[String]) -> Result<(), EncodeError> {
        self.array(texts, |writer, text| writer.text(field, text))
    }

    /// Appends an array of records.
    pub(super) fn records<T: Fields>(&mut self, items: &[T]) -> Result<(), EncodeError> {
        self.array(items, |writer, item| item.write(writer))
    }

    /// Appends an array of `long`.
    pub(super) fn longs(&mut self, column: &[u64]) {
        self.column::<{ LONG_BYTES_MAX * CHUNK_ITEMS }, _>(column, |&value| zigzag(value));
    }

    /// Appends an array of `int`, none negative.
    pub(super) fn ints(&mut self, field: &'static str, column: &[u32]) -> Result<(), EncodeError> {
        // One pass without branches, which vectorizes, instead of a check per item.
        if column.iter().fold(0, |all, &value| all | value) > i32::MAX as u32 {
            let value = column.iter().copied().max().unwrap_or_default();
            return Err(EncodeError::NumberTooLarge { field, value });
        }
        self.column::<{ INT_BYTES_MAX * CHUNK_ITEMS }, _>(column, |&value| u64::from(value) << 1);
        Ok(())
    }

    /// Appends codes as an array of `int`.
    pub(super) fn codes(&mut self, column: &[u8]) {
        self.column::<{ INT_BYTES_MAX * CHUNK_ITEMS }, _>(column, |&code| u64::from(code) << 1);
    }

    /// Appends one block with all items, as `apache-avro` does, then the empty block that ends an array.
    fn array<T>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        if !items.is_empty() {
            self.long(items.len() as u64);
            for item in items {
                write(self, item)?;
            }
        }
        self.out.push(0);
        Ok(())
    }

    /// Appends an array of numbers, which `bits` gives as they are to be written.
    fn column<const CHUNK_BYTES: usize, T>(&mut self, column: &[T], bits: impl Fn(&T) -> u64) {
        if !column.is_empty() {
            self.long(column.len() as u64);
            let mut buffer = [0; CHUNK_BYTES];
            for chunk in column.chunks(CHUNK_ITEMS) {
                let mut at = 0;
                for value in chunk {
                    at = put(&mut buffer, at, bits(value));
                }
                self.out.extend_from_slice(&buffer[..at]);
            }
        }
        self.out.push(0);
    }
}

/// Returns the 64 bits, read as a signed number, with their sign moved to the lowest bit.
fn zigzag(value: u64) -> u64 {
    (value << 1) ^ ((value as i64 >> 63) as u64)
}

/// Writes `bits` in groups of 7, the lowest first, and returns where they end.
#[inline(always)]
fn put(buffer: &mut [u8], mut at: usize, mut bits: u64) -> usize {
    while bits >= 0x80 {
        buffer[at] = bits as u8 | 0x80;
        bits >>= 7;
        at += 1;
    }
    buffer[at] = bits as u8;
    at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks numbers against the examples of the Avro specification, and both ends of 64 bits.
    #[test]
    fn longs_are_those_of_the_specification() {
        for (value, expected) in [
            (0_i64, &[0x00_u8][..]),
            (-1, &[0x01]),
            (1, &[0x02]),
            (-2, &[0x03]),
            (-64, &[0x7f]),
            (64, &[0x80, 0x01]),
            (
                i64::MAX,
                &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            ),
            (
                i64::MIN,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            ),
        ] {
            let mut out = Vec::new();
            Writer::new(&mut out).long(value as u64);
            assert_eq!(out, expected, "{value}");
        }
    }

    /// Checks that a number that an int cannot hold is refused, alone and within a column.
    #[test]
    fn large_numbers_are_refused() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        let refused = Err(EncodeError::NumberTooLarge {
            field: "f",
            value: 1 << 31,
        });
        assert_eq!(writer.int("f", 1 << 31), refused);
        assert_eq!(writer.ints("f", &[1, 1 << 31, 2]), refused);
        assert_eq!(writer.int("f", i32::MAX as u32), Ok(()));
        assert_eq!(writer.ints("f", &[i32::MAX as u32]), Ok(()));
    }

    /// Checks that text over the bound is refused.
    #[test]
    fn long_text_is_refused() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        assert_eq!(writer.text("f", &"x".repeat(TEXT_BYTES_MAX)), Ok(()));
        let bytes = TEXT_BYTES_MAX + 1;
        let refused = Err(EncodeError::TextTooLong {
            field: "f",
            bytes,
            limit: TEXT_BYTES_MAX,
        });
        assert_eq!(writer.text("f", &"x".repeat(bytes)), refused);
    }
}
