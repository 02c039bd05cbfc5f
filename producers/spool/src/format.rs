//! The bytes of a segment: its header and its records. The layout is in the crate's documentation.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::disk::{DiskFile, read_full};

const MAGIC: [u8; 8] = *b"STRBSPL\n";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 44;
const CHECKSUM_BYTES: usize = 4;

/// The longest host: one length byte's worth, four times what a host name may have.
pub(crate) const HOST_BYTES_MAX: usize = 255;
/// The longest segment header.
pub(crate) const SEGMENT_HEADER_BYTES_MAX: usize = FIXED_BYTES + HOST_BYTES_MAX + CHECKSUM_BYTES;
/// What stands before each payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
/// The largest payload: 8 times the 1 MiB that a message on the bus may have, so that the bus's limit is the one
/// met first; small enough that a reader can hold one whatever a damaged length says.
pub const RECORD_BYTES_MAX: usize = 8 << 20;

/// 128 random bits that tell one opening of a spool from every other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub [u8; 16]);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

/// The name of one record, unlike that of any other record of any spool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The owner of the spool when the record was appended.
    pub host: Arc<str>,
    /// The opening in which it was appended.
    pub epoch: Epoch,
    /// Its place among the records of that epoch, from 0.
    pub sequence: u64,
}

/// What a segment says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub host: Arc<str>,
    pub epoch: Epoch,
    pub first_sequence: u64,
    pub created_ns: u64,
}

/// Why a file is no readable segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotASegment {
    /// It was one, or was about to become one.
    Damaged,
    /// Some other file, or a format of another version: not ours to delete.
    Foreign,
}

impl SegmentHeader {
    /// Returns the header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES_MAX);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.host.len() as u16).to_le_bytes());
        bytes.extend(self.epoch.0);
        bytes.extend(self.first_sequence.to_le_bytes());
        bytes.extend(self.created_ns.to_le_bytes());
        bytes.extend(self.host.as_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Returns the header that `bytes`, the beginning of a file, hold, and its length.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64), NotASegment> {
        let magic = bytes.get(..MAGIC.len()).ok_or(NotASegment::Damaged)?;
        if magic != MAGIC {
            // Zeros are what a power cut leaves of a file whose length reached the disk before its bytes did.
            let torn = magic.iter().all(|&byte| byte == 0);
            return Err(if torn {
                NotASegment::Damaged
            } else {
                NotASegment::Foreign
            });
        }
        if u16_at(bytes, 8).ok_or(NotASegment::Damaged)? != VERSION {
            return Err(NotASegment::Foreign);
        }
        Self::decode_body(bytes).ok_or(NotASegment::Damaged)
    }

    fn decode_body(bytes: &[u8]) -> Option<(Self, u64)> {
        let host_end = FIXED_BYTES + usize::from(u16_at(bytes, 10)?);
        let body = bytes.get(..host_end)?;
        if u32_at(bytes, host_end)? != crc32fast::hash(body) {
            return None;
        }
        let header = Self {
            host: str::from_utf8(bytes.get(FIXED_BYTES..host_end)?).ok()?.into(),
            epoch: Epoch(bytes.get(12..28)?.try_into().ok()?),
            first_sequence: u64_at(bytes, 28)?,
            created_ns: u64_at(bytes, 36)?,
        };
        Some((header, (host_end + CHECKSUM_BYTES) as u64))
    }
}

/// Returns what goes before `payload`.
pub(crate) fn record_header(
    epoch: Epoch,
    sequence: u64,
    appended_ns: u64,
    payload: &[u8],
) -> [u8; RECORD_HEADER_BYTES] {
    let mut header = [0; RECORD_HEADER_BYTES];
    header[0..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..24].copy_from_slice(&appended_ns.to_le_bytes());
    let checksum = record_checksum(epoch, &header, payload);
    header[4..8].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn record_checksum(epoch: Epoch, header: &[u8; RECORD_HEADER_BYTES], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&epoch.0);
    hasher.update(&header[0..4]);
    hasher.update(&header[8..]);
    hasher.update(payload);
    hasher.finalize()
}

/// The piece of a segment in which to look for the next record.
pub(crate) struct Place {
    pub epoch: Epoch,
    pub offset: u64,
    /// Where the segment's records end.
    pub end: u64,
    /// Records of a lower sequence are not what comes next.
    pub least_sequence: u64,
}

/// What is found at a place.
pub(crate) enum Found {
    /// A whole record.
    Record {
        sequence: u64,
        appended_ns: u64,
        payload: Vec<u8>,
        next: u64,
    },
    /// A damaged record whose length can be true.
    Damaged { next: u64 },
    /// Nothing that tells where another record begins.
    End,
}

/// Returns what `file` has at `place`. Every answer but [`Found::End`] moves on by at least a record header, so
/// that reading a segment takes time in its length, whatever it holds.
pub(crate) fn read_record(file: &dyn DiskFile, place: &Place) -> io::Result<Found> {
    let room = place.end.saturating_sub(place.offset);
    let mut header = [0; RECORD_HEADER_BYTES];
    if room < RECORD_HEADER_BYTES as u64 || read_full(file, place.offset, &mut header)? < RECORD_HEADER_BYTES
    {
        return Ok(Found::End);
    }
    let length = u32_at(&header, 0).unwrap_or(0) as usize;
    let whole = (RECORD_HEADER_BYTES + length) as u64;
    if length == 0 || length > RECORD_BYTES_MAX || whole > room {
        return Ok(Found::End);
    }
    let mut payload = vec![0; length];
    if read_full(file, place.offset + RECORD_HEADER_BYTES as u64, &mut payload)? < length {
        return Ok(Found::End);
    }
    let next = place.offset + whole;
    let sequence = u64_at(&header, 8).unwrap_or(0);
    if u32_at(&header, 4) != Some(record_checksum(place.epoch, &header, &payload))
        || sequence < place.least_sequence
    {
        return Ok(Found::Damaged { next });
    }
    let appended_ns = u64_at(&header, 16).unwrap_or(0);
    Ok(Found::Record {
        sequence,
        appended_ns,
        payload,
        next,
    })
}

/// Writes `parts`, one after the other, at `offset`; normally in one call to the disk.
pub(crate) fn write_whole(file: &dyn DiskFile, offset: u64, parts: &[&[u8]; 2]) -> io::Result<()> {
    let total = parts[0].len() + parts[1].len();
    let mut done = 0;
    while done < total {
        let first = &parts[0][done.min(parts[0].len())..];
        let second = &parts[1][done.saturating_sub(parts[0].len())..];
        match file.write_at(offset + done as u64, &[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns Unix time in ns; 0 for a clock before 1970.
pub(crate) fn to_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time that [`to_ns`] was given.
pub(crate) fn from_ns(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a header reads back as written, and that no flipped bit and no shorter piece of it does.
    #[test]
    fn header_survives_only_whole() {
        let header = SegmentHeader {
            host: "höst-7".into(),
            epoch: Epoch([7; 16]),
            first_sequence: 1 << 40,
            created_ns: 1_700_000_000_000_000_000,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok((header, bytes.len() as u64)));
        for cut in 0..bytes.len() {
            assert_eq!(
                SegmentHeader::decode(&bytes[..cut]),
                Err(NotASegment::Damaged),
                "cut at {cut}"
            );
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    /// Checks the offsets that the documentation promises to other readers of the format.
    #[test]
    fn layout_is_as_documented() {
        let header = SegmentHeader {
            host: "ab".into(),
            epoch: Epoch([9; 16]),
            first_sequence: 0x0102,
            created_ns: 3,
        };
        let mut expected = b"STRBSPL\n\x01\0\x02\0".to_vec();
        expected.extend([9; 16]);
        expected.extend([2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
        expected.extend(crc32fast::hash(&expected).to_le_bytes());
        assert_eq!(header.encode(), expected);

        let record = record_header(Epoch([9; 16]), 5, 6, b"xyz");
        let mut summed = vec![9; 16];
        summed.extend([
            3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, b'x', b'y', b'z',
        ]);
        assert_eq!(record[..4], [3, 0, 0, 0]);
        assert_eq!(record[4..8], crc32fast::hash(&summed).to_le_bytes());
        assert_eq!(record[8..], [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    }
}
