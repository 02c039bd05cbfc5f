//! The memory of unwind tables: user space's side of `progs/tables.h`.
//!
//! An address counts bytes through all segments, 1 MiB each, which are made when they are needed. What is written is not yet
//! referred to, and what is freed is written again only after [`QUARANTINE`], when no program can still be reading it: so
//! programs need no lock, and never see half of anything.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::error::Error;
use crate::mapping::{Access, Mapping, page_bytes};
use crate::places::FilePlaces;

/// `SEGMENT_BYTES` in `progs/tables.h`.
const SEGMENT_BYTES: u32 = 1 << 20;
/// `SEGMENTS_MAX` there: a gigabyte.
const SEGMENTS_MAX: u32 = 1_024;
/// `PROCESSES_MAX` there.
pub const PROCESSES_MAX: usize = 16_384;
/// Mappings in one list: as many as `MAPPING_STEPS` halvings tell apart.
pub const MAPPINGS_MAX: usize = 8_191;
/// [`MappingEntry::pages`] without rows: the table is not there yet.
pub const PAGES_NOT_YET: u32 = 1;
/// `PAGES_OF_JVM` in `progs/table_types.h`.
const PAGES_OF_JVM: u32 = 2;
/// `struct mapping`.
const MAPPING_BYTES: usize = 48;
/// `struct process`.
const PROCESS_BYTES: usize = 32;
/// Every block begins at a multiple of it: a cache line, which tables' headers and lists rely on.
const ALIGNMENT: u32 = 64;
/// How long a freed block is left alone. A tick lasts some µs, with interrupts off.
const QUARANTINE: Duration = Duration::from_secs(1);
/// What the creation of a map calls itself: shown by `bpftool map`.
const SEGMENT_NAME: &str = "strobe_tables";
const _: () = assert!(1 << 13 > MAPPINGS_MAX);

/// A piece of the memory. Freed by [`TableMemory::free`], not by dropping it.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    address: u32,
    bytes: u32,
    /// What was written here: never the number of anything else.
    number: u64,
}

impl Block {
    /// Returns its address, as programs count it.
    pub fn address(&self) -> u32 {
        self.address
    }

    /// Returns its size, the rounding included.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// One executable mapping of a process, as programs see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MappingEntry {
    /// First address.
    pub start: u64,
    /// Behind the last address.
    pub end: u64,
    /// What is taken off an address to get the one that rows count by.
    pub offset: u64,
    /// Address of the table's rows.
    pub rows_at: u32,
    /// Rows; 0: there is no table.
    pub rows: u32,
    /// Address of the table's directory.
    pub directory_at: u32,
    /// Pages; where there are no rows, 0, or [`PAGES_NOT_YET`].
    pub pages: u32,
    /// Address of the table's rules.
    pub rules_at: u32,
    /// A page is 2 to this many bytes.
    pub page_shift: u32,
}

impl MappingEntry {
    fn encode(&self, into: &mut Vec<u8>) {
        for word in [self.start, self.end, self.offset] {
            into.extend(word.to_ne_bytes());
        }
        self.encode_table(into);
    }

    /// Appends what it says of the table.
    pub(crate) fn encode_table(&self, into: &mut Vec<u8>) {
        for half in [
            self.rows_at,
            self.rows,
            self.directory_at,
            self.pages,
            self.rules_at,
            self.page_shift,
        ] {
            into.extend(half.to_ne_bytes());
        }
    }
}

/// Where a JVM's blocks of code say what they are: offsets from a block's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JvmBlock {
    /// The size of its frames in words, 32 bits.
    pub frame_size: u8,
    /// From which byte of its code on a frame is complete, 32 bits.
    pub frame_complete: u8,
    /// Where its code begins, an address.
    pub code_begin: u8,
    /// Its name, an address.
    pub name: u8,
}

impl MappingEntry {
    /// Returns the entry of a heap of code that a JVM generates: its addresses, the address of its map of segments, how large a
    /// segment is as a power of two, and how blocks are laid out. See `progs/jvm_walk.h`.
    pub fn jvm_heap(
        addresses: std::ops::Range<u64>,
        segments: u64,
        segment_shift: u32,
        block: JvmBlock,
    ) -> Self {
        Self {
            start: addresses.start,
            end: addresses.end,
            offset: segments,
            rows_at: u32::from_le_bytes([
                block.frame_size,
                block.frame_complete,
                block.code_begin,
                block.name,
            ]),
            pages: PAGES_OF_JVM,
            page_shift: segment_shift,
            ..Self::default()
        }
    }
}

/// An image of a process: what a sample says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageIdentity {
    /// Process.
    pub tgid: u32,
    /// Its start, `CLOCK_BOOTTIME`.
    pub start_time_ns: u64,
    /// Execs so far.
    pub exec_id: u32,
}

/// The memory of tables, and which process has which.
#[derive(Debug)]
pub struct TableMemory {
    /// Which files have which tables, wherever they are mapped. What is said there is a reference as any other.
    pub places: FilePlaces,
    outer: MapHandle,
    processes: MapHandle,
    segments: Vec<MapHandle>,
    segments_max: u32,
    /// Free pieces: beginning → length. Neighbours are one.
    free: BTreeMap<u32, u32>,
    /// Freed, and left alone until then.
    waiting: VecDeque<(Instant, Block)>,
    used: u64,
    /// How often something was written.
    stored: u64,
}

fn failed(map: &'static str, error: &libbpf_rs::Error) -> Error {
    Error::WriteMap {
        map,
        message: error.to_string(),
    }
}

impl TableMemory {
    pub(crate) fn new(outer: MapHandle, processes: MapHandle, places: FilePlaces, bytes_max: u64) -> Self {
        let segments_max = (bytes_max / u64::from(SEGMENT_BYTES)).min(SEGMENTS_MAX.into()) as u32;
        Self {
            places,
            outer,
            processes,
            segments: Vec::new(),
            segments_max,
            free: BTreeMap::new(),
            waiting: VecDeque::new(),
            used: 0,
            stored: 0,
        }
    }

    /// Returns the bytes in use, those that wait to be free included.
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Returns the bytes that the kernel holds for tables.
    pub fn held_bytes(&self) -> u64 {
        self.segments.len() as u64 * u64::from(SEGMENT_BYTES)
    }

    /// Returns the most bytes that there may be.
    pub fn limit_bytes(&self) -> u64 {
        u64::from(self.segments_max) * u64::from(SEGMENT_BYTES)
    }

    /// Writes something to where programs can read it; `None` when there is no room for it.
    ///
    /// # Errors
    /// [`Error::WriteMap`] and [`Error::Map`] where the kernel gives no memory.
    pub fn store(&mut self, content: &[u8]) -> Result<Option<Block>, Error> {
        let Some(bytes) = u32::try_from(content.len())
            .ok()
            .and_then(|bytes| bytes.max(1).checked_next_multiple_of(ALIGNMENT))
        else {
            return Ok(None);
        };
        self.release_waiting();
        let Some(block) = self.allocate(bytes)? else {
            return Ok(None);
        };
        if let Err(error) = self.write(block.address, content) {
            self.give_back(block);
            return Err(error);
        }
        Ok(Some(block))
    }

    /// Writes a list of mappings, ascending; those beyond [`MAPPINGS_MAX`] are left out.
    ///
    /// # Errors
    /// As [`TableMemory::store`].
    pub fn store_mappings(&mut self, mappings: &[MappingEntry]) -> Result<Option<Block>, Error> {
        let mut content = Vec::with_capacity(mappings.len() * MAPPING_BYTES);
        mappings
            .iter()
            .take(MAPPINGS_MAX)
            .for_each(|mapping| mapping.encode(&mut content));
        self.store(&content)
    }

    /// Takes back what [`TableMemory::store`] gave. Nothing may refer to it any more.
    pub fn free(&mut self, block: Block) {
        self.waiting.push_back((Instant::now() + QUARANTINE, block));
    }

    /// Says which mappings an image has, from its next tick on.
    ///
    /// # Errors
    /// [`Error::WriteMap`]: also when [`PROCESSES_MAX`] are there already.
    pub fn set_process(&self, image: &ImageIdentity, list: &Block, mappings: usize) -> Result<(), Error> {
        let mut value = Vec::with_capacity(PROCESS_BYTES);
        value.extend(image.start_time_ns.to_ne_bytes());
        let mappings = mappings.min(MAPPINGS_MAX) as u32;
        // The number once more, in front of what it vouches for: see `struct process`.
        for half in [image.exec_id, list.number as u32, list.address, mappings] {
            value.extend(half.to_ne_bytes());
        }
        value.extend(list.number.to_ne_bytes());
        self.processes
            .update(&image.tgid.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|error| failed("processes", &error))
    }

    /// Forgets a process: its stacks are walked by frame pointers from its next tick on.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn remove_process(&self, tgid: u32) -> Result<(), Error> {
        match self.processes.delete(&tgid.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(failed("processes", &error)),
            _ => Ok(()),
        }
    }

    /// Makes what has waited long enough free, and gives segments back to the kernel that nothing lies in any more.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn tidy(&mut self) -> Result<(), Error> {
        self.release_waiting();
        while let Some(last) = self.segments.len().checked_sub(1) {
            let start = first_of(last as u32);
            let end = start + (SEGMENT_BYTES - if last == 0 { ALIGNMENT } else { 0 });
            let Some((&from, &bytes)) = self.free.range(..=start).next_back() else {
                break;
            };
            if from + bytes < end {
                break;
            }
            self.outer
                .delete(&(last as u32).to_ne_bytes())
                .map_err(|error| failed("segments", &error))?;
            self.segments.pop();
            if from == start {
                self.free.remove(&from);
            } else {
                self.free.insert(from, start - from);
            }
        }
        Ok(())
    }

    fn release_waiting(&mut self) {
        let now = Instant::now();
        while self.waiting.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, block)) = self.waiting.pop_front() {
                self.give_back(block);
            }
        }
    }

    fn allocate(&mut self, bytes: u32) -> Result<Option<Block>, Error> {
        loop {
            let found = self
                .free
                .iter()
                .find(|(_, free)| **free >= bytes)
                .map(|(&at, &free)| (at, free));
            if let Some((address, free)) = found {
                self.free.remove(&address);
                if free > bytes {
                    self.free.insert(address + bytes, free - bytes);
                }
                self.used += u64::from(bytes);
                self.stored += 1;
                return Ok(Some(Block {
                    address,
                    bytes,
                    number: self.stored,
                }));
            }
            if !self.add_segment()? {
                return Ok(None);
            }
        }
    }

    fn give_back(&mut self, block: Block) {
        self.used -= u64::from(block.bytes);
        self.insert_free(block.address, block.bytes);
    }

    fn insert_free(&mut self, address: u32, bytes: u32) {
        let (mut address, mut bytes) = (address, bytes);
        if let Some((&before, &length)) = self.free.range(..address).next_back()
            && before + length == address
        {
            self.free.remove(&before);
            (address, bytes) = (before, length + bytes);
        }
        if let Some(length) = self.free.remove(&(address + bytes)) {
            bytes += length;
        }
        self.free.insert(address, bytes);
    }

    /// Makes one more segment; returns whether there may be one.
    fn add_segment(&mut self) -> Result<bool, Error> {
        let index = self.segments.len() as u32;
        if index >= self.segments_max {
            return Ok(false);
        }
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_rs::libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some(SEGMENT_NAME), 4, SEGMENT_BYTES, 1, &options)
            .map_err(|error| failed("segment", &error))?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&map.as_fd());
        self.outer
            .update(&index.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| failed("segments", &error))?;
        self.segments.push(map);
        // Address 0 stays free for ever: it means nothing.
        let kept = if index == 0 { ALIGNMENT } else { 0 };
        self.insert_free(first_of(index), SEGMENT_BYTES - kept);
        Ok(true)
    }

    /// Writes through a mapping that lives as long as the write: mapped memory would count as the agent's own.
    fn write(&self, address: u32, content: &[u8]) -> Result<(), Error> {
        let (mut address, mut rest) = (address, content);
        while !rest.is_empty() {
            let (segment, within) = (address / SEGMENT_BYTES, address % SEGMENT_BYTES);
            let count = rest.len().min((SEGMENT_BYTES - within) as usize);
            let (now, later) = rest.split_at(count);
            // Only the pages that are written: of each one that is mapped the kernel makes an entry.
            let first = within as usize & !(page_bytes() - 1);
            let bytes = (within as usize + count).next_multiple_of(page_bytes()) - first;
            let unmapped = |source| Error::Map {
                buffer: "memory of tables",
                bytes,
                source,
            };
            let map = self
                .segments
                .get(segment as usize)
                .ok_or_else(|| unmapped(io::Error::from(io::ErrorKind::NotFound)))?;
            let mapping = Mapping::new(map.as_fd(), first, bytes, Access::ReadWrite).map_err(unmapped)?;
            if let Some(to) = mapping.at(within as usize - first) {
                // SAFETY: `count` bytes from `within` end inside of the mapped pages; the source is other memory; programs that may
                // read the place at the same time use nothing of it, by the quarantine.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, count) };
            }
            (address, rest) = (address + count as u32, later);
        }
        Ok(())
    }
}

/// Returns the first address of a segment that may be given out.
fn first_of(segment: u32) -> u32 {
    segment * SEGMENT_BYTES + if segment == 0 { ALIGNMENT } else { 0 }
}
