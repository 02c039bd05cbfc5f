//! Stage 3: the BPF ring buffer → the bytes of each record, in place.
//!
//! Our own reader, not libbpf's: a record can be borrowed for the length of a call, the reader's position is published
//! once per some records instead of after each (the line is shared with every CPU that writes), and what the positions
//! claim is checked before it is believed.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::error::Error;
use crate::mapping::{Access, Mapping, page_bytes};

/// Set while a CPU still writes the record: nothing behind it can be read yet, either.
const BUSY: u32 = 1 << 31;
/// The record was given up.
const DISCARDED: u32 = 1 << 30;
/// Length and page offset.
const RECORD_HEADER_BYTES: usize = 8;
/// Records read before their room is given back: few enough that a writer never waits for it, at most 128 KiB.
const PUBLISH_EVERY: usize = 64;

/// The reading side of one ring buffer. Only one may exist per ring.
#[derive(Debug)]
pub struct Ring {
    /// The reader's position, written by us.
    consumer: Mapping,
    /// The writers' position, one page; then the data, mapped twice in a row, so that no record is ever split.
    producer: Mapping,
    page: usize,
    bytes: usize,
}

impl Ring {
    /// Maps the ring of `bytes`, which is a power of two.
    pub fn new(map: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        let page = page_bytes();
        let failed = |source| Error::Map {
            buffer: "ring buffer of samples",
            bytes,
            source,
        };
        let consumer = Mapping::new(map, 0, page, Access::ReadWrite).map_err(failed)?;
        let producer = Mapping::new(map, page, page + 2 * bytes, Access::Read).map_err(failed)?;
        Ok(Self {
            consumer,
            producer,
            page,
            bytes,
        })
    }

    /// Hands each record to `read` until the ring is empty, or `limit` bytes further on: writers that keep up with the
    /// reader cannot hold it here for ever. Returns how many records there were.
    pub fn read(&mut self, mut read: impl FnMut(&[u8])) -> Result<usize, Error> {
        let consumer_position = self.position(&self.consumer)?;
        let mut position = consumer_position.load(Ordering::Relaxed);
        let limit = position.wrapping_add(self.bytes);
        let mut records = 0;
        let result = loop {
            let written = self.position(&self.producer)?.load(Ordering::Acquire);
            let unread = written.wrapping_sub(position);
            if unread == 0 || position == limit || limit.wrapping_sub(position) > self.bytes {
                break Ok(records);
            }
            let offset = self.page + (position & (self.bytes - 1));
            let Some(header) = self
                .producer
                .at(offset)
                .filter(|_| unread <= self.bytes && position % 8 == 0)
            else {
                break Err(Error::RingCorrupt { position });
            };
            // SAFETY: `offset` lies in the mapping and is a multiple of 8, as page and position are. The kernel writes
            // the word atomically, and last.
            let length_and_flags = unsafe { AtomicU32::from_ptr(header.cast()) }.load(Ordering::Acquire);
            if length_and_flags & BUSY != 0 {
                break Ok(records);
            }
            let length = (length_and_flags & !DISCARDED) as usize;
            let taken = (RECORD_HEADER_BYTES + length).next_multiple_of(8);
            if taken > unread {
                break Err(Error::RingCorrupt { position });
            }
            if length_and_flags & DISCARDED == 0 {
                // SAFETY: header and record are within `unread` of `position`, so within the data as it is mapped twice.
                // The kernel does not write there again before `consumer_position` has passed it, which needs this
                // borrow of `self` to go on; and `read` cannot keep the slice.
                read(unsafe { std::slice::from_raw_parts(header.add(RECORD_HEADER_BYTES), length) });
                records += 1;
            }
            position = position.wrapping_add(taken);
            if records % PUBLISH_EVERY == 0 {
                // Only now: from here on the kernel may overwrite what was read.
                consumer_position.store(position, Ordering::Release);
            }
        };
        consumer_position.store(position, Ordering::Release);
        result
    }

    fn position<'a>(&self, page: &'a Mapping) -> Result<&'a AtomicUsize, Error> {
        let at = page.at(0).ok_or(Error::RingCorrupt { position: 0 })?;
        // SAFETY: the first word of a page that stays mapped as long as `page`; kernel and reader both access it
        // atomically.
        Ok(unsafe { AtomicUsize::from_ptr(at.cast()) })
    }
}
