//! Reading numbers from bytes that nobody has checked.

/// A position in some bytes. Every read is checked; past the end there is nothing.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Starts at an offset, which may lie past the end.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub fn offset(&self) -> usize {
        self.at
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes.get(self.at..)?.first_chunk::<N>()?;
        self.at += N;
        Some(array)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    pub fn uleb(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first & 0x80 == 0 {
            return Some(u64::from(first));
        }
        let (mut value, mut shift) = (u64::from(first & 0x7f), 7_u32);
        loop {
            let byte = self.u8()?;
            // Bits that no longer fit are lost, as everywhere; the bytes are finite.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift = shift.saturating_add(7);
        }
    }

    #[inline]
    pub fn sleb(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                if byte & 0x40 != 0 {
                    value |= u64::MAX.checked_shl(shift).unwrap_or(0);
                }
                return Some(value as i64);
            }
        }
    }

    /// Reads up to and including a zero byte; returns what stands before it.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        self.at += end + 1;
        rest.get(..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the examples of the DWARF standard (5, tables 7.7 and 7.8).
    #[test]
    fn leb_numbers_are_those_of_the_standard() {
        for (bytes, value) in [(&[0x7f][..], 127), (&[0x80, 1], 128), (&[0xb9, 0x64], 12857)] {
            assert_eq!(Reader::new(bytes).uleb(), Some(value));
        }
        for (bytes, value) in [
            (&[2][..], 2),
            (&[0x7e], -2),
            (&[0xff, 0], 127),
            (&[0x81, 0x7f], -127),
            (&[0x80, 0x7f], -128),
        ] {
            assert_eq!(Reader::new(bytes).sleb(), Some(value));
        }
    }

    /// Checks that numbers that never end, and reads past the end, are nothing.
    #[test]
    fn nothing_is_read_past_the_end() {
        assert_eq!(Reader::new(&[0xff; 64]).uleb(), None);
        assert_eq!(Reader::new(&[0xff; 64]).sleb(), None);
        assert_eq!(Reader::at(&[1, 2, 3], usize::MAX).u32(), None);
        assert_eq!(Reader::new(&[1, 2, 3]).take(usize::MAX), None);
        assert_eq!(Reader::new(&[1, 2, 3]).string(), None);
    }
}
