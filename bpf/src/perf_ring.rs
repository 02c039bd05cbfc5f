//! The buffer that the kernel fills for one perf event: its records, each in one piece.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::mapping::{Access, Mapping, page_bytes};

/// Where in the first page the kernel keeps its position and the reader's (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Type, flags, and the size of the whole in the last two bytes (`struct perf_event_header`).
pub const RECORD_HEADER_BYTES: usize = 8;

/// The reading side, and the event that keeps it filled.
#[derive(Debug)]
pub struct PerfRing {
    event: OwnedFd,
    memory: Mapping,
    page: usize,
    bytes: usize,
    /// A record that runs over the end is put together here: at most 64 KiB, as its size has 16 bits.
    split: Vec<u8>,
}

impl PerfRing {
    /// Maps `bytes`, a power of two, for `event`. Gives the event back with the error, to try with less.
    pub fn new(event: OwnedFd, bytes: usize) -> Result<Self, (OwnedFd, std::io::Error)> {
        let page = page_bytes();
        match Mapping::new(event.as_fd(), 0, page + bytes, Access::ReadWrite) {
            Ok(memory) => Ok(Self {
                event,
                memory,
                page,
                bytes,
                split: Vec::new(),
            }),
            Err(error) => Err((event, error)),
        }
    }

    /// Returns the event.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Hands each record that is there at the time of the call to `read`.
    pub fn read(&mut self, mut read: impl FnMut(&[u8])) -> Result<(), Error> {
        let head = self.position(DATA_HEAD)?.load(Ordering::Acquire) as usize;
        let mut tail = self.position(DATA_TAIL)?.load(Ordering::Relaxed) as usize;
        let mut result = Ok(());
        while tail != head {
            let unread = head.wrapping_sub(tail);
            let mut header = [0; RECORD_HEADER_BYTES];
            let whole = unread <= self.bytes && unread >= header.len() && self.copy(tail, &mut header);
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if !whole || size < header.len() || size > unread {
                // Without a size there is no way to the next record: what is there is given up.
                result = Err(Error::RingCorrupt { position: tail });
                tail = head;
                break;
            }
            let at = tail & (self.bytes - 1);
            if at + size <= self.bytes {
                if let Some(start) = self.memory.at(self.page + at) {
                    // SAFETY: within the mapping, and between tail and head, where the kernel does not write until the
                    // tail is stored below; `read` cannot keep the slice.
                    read(unsafe { std::slice::from_raw_parts(start, size) });
                }
            } else {
                let mut split = std::mem::take(&mut self.split);
                split.resize(size, 0);
                if self.copy(tail, &mut split) {
                    read(&split);
                }
                self.split = split;
            }
            tail = tail.wrapping_add(size);
        }
        // Only now: from here on the kernel may overwrite what was read.
        self.position(DATA_TAIL)?.store(tail as u64, Ordering::Release);
        result
    }

    /// Copies from `position` on, over the end if need be. False where that cannot be.
    fn copy(&self, position: usize, into: &mut [u8]) -> bool {
        let at = position & (self.bytes - 1);
        let first = into.len().min(self.bytes - at);
        let (Some(begin), Some(start)) = (self.memory.at(self.page + at), self.memory.at(self.page)) else {
            return false;
        };
        if into.len() - first > self.bytes {
            return false;
        }
        // SAFETY: `first` bytes end at or before the end of the data, the rest is no more than all of it; `into` is our
        // own memory.
        unsafe {
            std::ptr::copy_nonoverlapping(begin, into.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(start, into[first..].as_mut_ptr(), into.len() - first);
        }
        true
    }

    fn position(&self, offset: usize) -> Result<&AtomicU64, Error> {
        let at = self
            .memory
            .at(offset)
            .ok_or(Error::RingCorrupt { position: offset })?;
        // SAFETY: aligned, in a page that stays mapped as long as `self`; the kernel accesses it in one piece.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 4096;

    /// A ring whose kernel is this test, in a file.
    fn ring(data: &[u8], tail: u64, head: u64) -> PerfRing {
        let file: File = tempfile::tempfile().unwrap();
        file.set_len((2 * PAGE) as u64).unwrap();
        file.write_all_at(data, PAGE as u64).unwrap();
        file.write_all_at(&head.to_ne_bytes(), DATA_HEAD as u64).unwrap();
        file.write_all_at(&tail.to_ne_bytes(), DATA_TAIL as u64).unwrap();
        PerfRing::new(file.into(), PAGE).unwrap_or_else(|(_, error)| panic!("{error}"))
    }

    fn record(size: u16, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; usize::from(size)];
        bytes[..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, size.to_ne_bytes()[0], size.to_ne_bytes()[1]]);
        bytes
    }

    /// Checks that a record over the end of the buffer comes in one piece, at every place where it can be cut.
    #[test]
    fn a_record_over_the_end_comes_whole() {
        let written = record(64, 7);
        for before_end in (8..64).step_by(8) {
            let mut data = vec![0; PAGE];
            let start = PAGE - before_end;
            data[start..].copy_from_slice(&written[..before_end]);
            data[..64 - before_end].copy_from_slice(&written[before_end..]);
            let mut ring = ring(&data, start as u64, (start + 64) as u64);
            let mut seen = Vec::new();
            ring.read(|bytes| seen.push(bytes.to_vec())).unwrap();
            assert_eq!(
                seen,
                std::slice::from_ref(&written),
                "{before_end} bytes before the end"
            );
            ring.read(|_| panic!("read twice")).unwrap();
        }
    }

    /// Checks that a size of nothing, or past what was written, ends the reading instead of looping or overrunning.
    #[test]
    fn a_senseless_size_gives_up_what_is_there() {
        for size in [0, 7, 72] {
            let mut data = vec![0; PAGE];
            data[..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, size, 0]);
            let mut ring = ring(&data, 0, 64);
            assert!(
                ring.read(|_| panic!("no record is there")).is_err(),
                "size {size}"
            );
            assert!(ring.read(|_| panic!("no record is there")).is_ok(), "size {size}");
        }
    }

    /// Checks that positions further apart than the buffer is long are not believed.
    #[test]
    fn positions_too_far_apart_are_refused() {
        let mut ring = ring(&record(64, 1), 0, 2 * PAGE as u64);
        assert!(ring.read(|_| panic!("no record is there")).is_err());
    }
}
