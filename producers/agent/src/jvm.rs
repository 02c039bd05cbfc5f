//! Where a JVM keeps the code that it generates, and how its blocks are laid out: what the kernel's walk needs to leave that code
//! without frame pointers (`bpf/progs/jvm_walk.h`).
//!
//! HotSpot describes itself for debuggers: `gHotSpotVMStructs`, a symbol of `libjvm.so`, leads to a list of types, fields and offsets,
//! and that to the heaps of code. All of it is read from the process's memory, once for each image: what reserves of
//! addresses the heaps have never changes. From JDK 9 to 22 the list has what is needed; elsewhere there is no answer, and compiled
//! methods are left by their frame pointers, if `-XX:+PreserveFramePointer` is set.
//!
//! The memory is the process's own and hostile: what is read is bounded, and a lie costs that process its stacks and nobody else.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustc_hash::FxHashMap;
use strobe_bpf::{JvmBlock, MappingEntry};

/// The library's name.
pub const LIBRARY: &str = "libjvm.so";

/// Pages of memory that are read for one answer: the list has some 40, the names that it leads to as many.
const PAGES_MAX: usize = 512;
const PAGE_BYTES: u64 = 4_096;
/// Entries of the list: some 3,000.
const ENTRIES_MAX: u64 = 16_384;
/// Longest name that is compared.
const NAME_BYTES_MAX: usize = 64;
/// Entries of the library's dynamic section, and its program headers: some 30 and 10.
const DYNAMIC_MAX: u64 = 128;
const HEADERS_MAX: u16 = 64;
/// Symbols in one chain of the hash table.
const CHAIN_MAX: u32 = 1_024;
/// Heaps: HotSpot divides its code into three.
const HEAPS_MAX: i32 = 8;
/// The largest reserve that HotSpot accepts is 2 GB, for all of them.
const HEAP_BYTES_MAX: u64 = 2 << 30;
/// Segments have 64 or 128 bytes.
const SEGMENT_SHIFTS: Range<u32> = 4..13;
/// Addresses of user space end here.
const ADDRESS_END: u64 = 1 << 47;

/// A heap of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heap {
    /// The addresses reserved for it.
    pub addresses: Range<u64>,
    /// Address of its map of segments.
    segments: u64,
    segment_shift: u32,
}

/// What a JVM says of its generated code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jvm {
    /// Ascending.
    heaps: Vec<Heap>,
    block: JvmBlock,
}

/// The memory of a process, by pages.
struct Memory {
    file: File,
    pages: FxHashMap<u64, Box<[u8; PAGE_BYTES as usize]>>,
}

impl Memory {
    fn bytes<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let within = (at % PAGE_BYTES) as usize;
        if let Some(bytes) = self.page(at / PAGE_BYTES)?[within..].first_chunk() {
            return Some(*bytes);
        }
        let mut bytes = [0; N];
        for (offset, byte) in (0..).zip(&mut bytes) {
            let address = at.checked_add(offset)?;
            *byte = self.page(address / PAGE_BYTES)?[(address % PAGE_BYTES) as usize];
        }
        Some(bytes)
    }

    fn page(&mut self, number: u64) -> Option<&[u8; PAGE_BYTES as usize]> {
        if !self.pages.contains_key(&number) {
            if self.pages.len() >= PAGES_MAX {
                return None;
            }
            let mut page = Box::new([0; PAGE_BYTES as usize]);
            self.file
                .read_exact_at(&mut page[..], number.checked_mul(PAGE_BYTES)?)
                .ok()?;
            self.pages.insert(number, page);
        }
        self.pages.get(&number).map(Box::as_ref)
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn half(&mut self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Returns whether a string ends where `expected` does, and is the same.
    fn says(&mut self, at: u64, expected: &str) -> Option<bool> {
        for (offset, byte) in (0..).zip(expected.bytes().chain([0])) {
            if self.bytes(at.checked_add(offset)?)? != [byte] {
                return Some(false);
            }
        }
        Some(true)
    }

    fn string(&mut self, at: u64) -> Option<String> {
        let mut text = String::new();
        for offset in 0..NAME_BYTES_MAX as u64 {
            match self.bytes(at.checked_add(offset)?)? {
                [0] => break,
                [byte] => text.push(byte.into()),
            }
        }
        Some(text)
    }
}

/// The dynamic symbols of a library that is mapped.
struct Symbols {
    bias: u64,
    symbols: u64,
    names: u64,
    hash: u64,
}

impl Symbols {
    fn find(memory: &mut Memory, bias: u64) -> Option<Self> {
        let header: [u8; 64] = memory.bytes(bias)?;
        if header[..5] != *b"\x7fELF\x02" {
            return None;
        }
        let at = u64::from_le_bytes(*header[32..].first_chunk()?);
        let count = u16::from_le_bytes([header[56], header[57]]);
        let mut dynamic = None;
        for index in 0..count.min(HEADERS_MAX) {
            let program = bias.wrapping_add(at).checked_add(56 * u64::from(index))?;
            if memory.half(program)? == object::elf::PT_DYNAMIC.0 {
                dynamic = Some(bias.wrapping_add(memory.word(program.wrapping_add(16))?));
            }
        }
        let dynamic = dynamic?;
        let mut found = [None; 3];
        for index in 0..DYNAMIC_MAX {
            let entry = dynamic.checked_add(16 * index)?;
            let value = memory.word(entry.wrapping_add(8))?;
            // glibc has added the library's address already, musl has not.
            let address = if value < bias {
                value.wrapping_add(bias)
            } else {
                value
            };
            match memory.word(entry)? {
                0 => break,
                5 => found[0] = Some(address),
                6 => found[1] = Some(address),
                0x6fff_fef5 => found[2] = Some(address),
                _ => {}
            }
        }
        Some(Self {
            bias,
            names: found[0]?,
            symbols: found[1]?,
            hash: found[2]?,
        })
    }

    /// Returns the address of a symbol, by the GNU hash table.
    fn address(&self, memory: &mut Memory, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(5_381_u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(byte.into())
        });
        let (buckets, first, bloom) = (
            memory.half(self.hash)?,
            memory.half(self.hash.wrapping_add(4))?,
            memory.half(self.hash.wrapping_add(8))?,
        );
        let table = self.hash.checked_add(16 + 8 * u64::from(bloom))?;
        let chains = table.checked_add(4 * u64::from(buckets))?;
        let bucket = hash.checked_rem(buckets)?;
        let mut index = memory.half(table.wrapping_add(4 * u64::from(bucket)))?;
        for _ in 0..CHAIN_MAX {
            let of_symbol = memory.half(chains.checked_add(4 * u64::from(index.checked_sub(first)?))?)?;
            if of_symbol | 1 == hash | 1 {
                let symbol = self.symbols.checked_add(24 * u64::from(index))?;
                let at = self.names.checked_add(memory.half(symbol)?.into())?;
                if memory.says(at, name)? {
                    return Some(self.bias.wrapping_add(memory.word(symbol.wrapping_add(8))?));
                }
            }
            if of_symbol & 1 == 1 {
                break;
            }
            index = index.checked_add(1)?;
        }
        None
    }
}

/// The list of types and fields.
struct Fields(FxHashMap<(String, String), (u64, u64, String)>);

impl Fields {
    /// Types that are asked for.
    const TYPES: [&str; 7] = [
        "CodeCache",
        "CodeHeap",
        "VirtualSpace",
        "CodeBlob",
        "GrowableArrayBase",
        "GenericGrowableArray",
        "GrowableArray<int>",
    ];

    fn read(memory: &mut Memory, symbols: &Symbols) -> Option<Self> {
        let mut value = |name: &str| {
            let at = symbols.address(memory, name)?;
            memory.word(at)
        };
        let list = value("gHotSpotVMStructs")?;
        let type_at = value("gHotSpotVMStructEntryTypeNameOffset")?;
        let field_at = value("gHotSpotVMStructEntryFieldNameOffset")?;
        let string_at = value("gHotSpotVMStructEntryTypeStringOffset")?;
        let offset_at = value("gHotSpotVMStructEntryOffsetOffset")?;
        let address_at = value("gHotSpotVMStructEntryAddressOffset")?;
        let stride = value("gHotSpotVMStructEntryArrayStride")?;
        let mut fields = FxHashMap::default();
        for index in 0..ENTRIES_MAX {
            let entry = list.checked_add(stride.checked_mul(index)?)?;
            let name = memory.word(entry.checked_add(type_at)?)?;
            if name == 0 {
                break;
            }
            let name = memory.string(name)?;
            if !Self::TYPES.contains(&name.as_str()) {
                continue;
            }
            let at = memory.word(entry.checked_add(field_at)?)?;
            let field = memory.string(at)?;
            let at = memory.word(entry.checked_add(string_at)?)?;
            let of_type = memory.string(at)?;
            let offset = memory.word(entry.checked_add(offset_at)?)?;
            let address = memory.word(entry.checked_add(address_at)?)?;
            fields.insert((name, field), (offset, address, of_type));
        }
        Some(Self(fields))
    }

    fn get(&self, of: &str, field: &str) -> Option<&(u64, u64, String)> {
        self.0.get(&(of.to_owned(), field.to_owned()))
    }

    fn offset(&self, of: &str, field: &str) -> Option<u64> {
        self.get(of, field).map(|(offset, ..)| *offset)
    }

    /// Returns the offset of a block's field, which has to be within its first 256 bytes, and of this type.
    fn in_block(&self, field: &str, of_type: &str) -> Option<u8> {
        let (offset, _, said) = self.get("CodeBlob", field)?;
        u8::try_from(*offset).ok().filter(|_| said == of_type)
    }
}

impl Jvm {
    /// Reads what the JVM of a process says of itself, its library's code being `bias` above the addresses in its file. Nothing where it
    /// has not made its heaps yet, is of a version that says something else, or may not be read.
    pub fn read(pid: u32, bias: u64) -> Option<Self> {
        let mut memory = Memory {
            file: File::open(format!("/proc/{pid}/mem")).ok()?,
            pages: FxHashMap::default(),
        };
        let memory = &mut memory;
        let symbols = Symbols::find(memory, bias)?;
        let fields = Fields::read(memory, &symbols)?;
        let block = JvmBlock {
            frame_size: fields.in_block("_frame_size", "int")?,
            frame_complete: fields.in_block("_frame_complete_offset", "int")?,
            code_begin: fields.in_block("_code_begin", "address")?,
            name: fields.in_block("_name", "const char*")?,
        };
        let (_, list, _) = fields.get("CodeCache", "_heaps")?;
        let list = memory.word(*list)?;
        let length = fields
            .offset("GrowableArrayBase", "_len")
            .or_else(|| fields.offset("GenericGrowableArray", "_len"))?;
        let length = memory.half(list.checked_add(length)?)?.cast_signed();
        let data = memory.word(list.checked_add(fields.offset("GrowableArray<int>", "_data")?)?)?;
        let (low, high) = (
            fields.offset("VirtualSpace", "_low_boundary")?,
            fields.offset("VirtualSpace", "_high_boundary")?,
        );
        let map = fields
            .offset("CodeHeap", "_segmap")?
            .checked_add(fields.offset("VirtualSpace", "_low")?)?;
        let reserve = fields.offset("CodeHeap", "_memory")?;
        let shift = fields.offset("CodeHeap", "_log2_segment_size")?;
        let mut heaps = Vec::new();
        for index in 0..length.min(HEAPS_MAX) {
            let heap = memory.word(data.checked_add(8 * u64::try_from(index).ok()?)?)?;
            let space = heap.checked_add(reserve)?;
            let heap = Heap {
                addresses: memory.word(space.checked_add(low)?)?..memory.word(space.checked_add(high)?)?,
                segments: memory.word(heap.checked_add(map)?)?,
                segment_shift: memory.half(heap.checked_add(shift)?)?,
            };
            heap.is_sound().then(|| heaps.push(heap))?;
        }
        heaps.sort_by_key(|heap| heap.addresses.start);
        let apart = heaps
            .windows(2)
            .all(|two| two[0].addresses.end <= two[1].addresses.start);
        (apart && !heaps.is_empty()).then_some(Self { heaps, block })
    }

    /// Puts the heaps among the mappings of a process, ascending: instead of what lies within them, and is no file's.
    pub fn among(&self, entries: Vec<MappingEntry>) -> Vec<MappingEntry> {
        let mut all = Vec::with_capacity(entries.len() + self.heaps.len());
        for entry in entries {
            if entry.rows > 0 {
                all.push(entry);
                continue;
            }
            // What is left of it before, between and behind the heaps.
            let mut from = entry.start;
            for heap in &self.heaps {
                let Range { start, end } = heap.addresses;
                if start >= entry.end || end <= from {
                    continue;
                }
                if start > from {
                    all.push(MappingEntry {
                        start: from,
                        end: start,
                        ..entry
                    });
                }
                from = end;
            }
            if from < entry.end {
                all.push(MappingEntry { start: from, ..entry });
            }
        }
        let heaps = self.heaps.iter().map(|heap| {
            MappingEntry::jvm_heap(
                heap.addresses.clone(),
                heap.segments,
                heap.segment_shift,
                self.block,
            )
        });
        all.extend(heaps);
        all.sort_by_key(|entry| entry.start);
        all
    }
}

impl Heap {
    fn is_sound(&self) -> bool {
        let Range { start, end } = self.addresses;
        start < end
            && end <= ADDRESS_END
            && end - start <= HEAP_BYTES_MAX
            && SEGMENT_SHIFTS.contains(&self.segment_shift)
            && start.is_multiple_of(1 << self.segment_shift)
            && (1..ADDRESS_END).contains(&self.segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that heaps take the place of generated code that lies within them, and leave files' code and other generated code alone.
    #[test]
    fn heaps_take_the_place_of_what_lies_in_them() {
        let heap = |addresses: Range<u64>| Heap {
            addresses,
            segments: 1,
            segment_shift: 7,
        };
        let jvm = Jvm {
            heaps: vec![heap(0x2000..0x4000), heap(0x4000..0x8000)],
            block: JvmBlock::default(),
        };
        let plain = |start, end, rows| MappingEntry {
            start,
            end,
            rows,
            ..MappingEntry::default()
        };
        let among = jvm.among(vec![
            plain(0x1000, 0x1800, 9),
            plain(0x1800, 0x3000, 0),
            plain(0x7000, 0x9000, 0),
            plain(0xa000, 0xb000, 9),
        ]);
        let found: Vec<_> = among
            .iter()
            .map(|entry| (entry.start, entry.end, entry.rows, entry.pages))
            .collect();
        assert_eq!(
            found,
            [
                (0x1000, 0x1800, 9, 0),
                (0x1800, 0x2000, 0, 0),
                (0x2000, 0x4000, 0, 2),
                (0x4000, 0x8000, 0, 2),
                (0x8000, 0x9000, 0, 0),
                (0xa000, 0xb000, 9, 0),
            ]
        );
    }

    /// Checks that a process that is no JVM gives no answer, whatever stands at the address.
    #[test]
    fn what_is_no_jvm_gives_no_answer() {
        let own = std::process::id();
        assert_eq!(Jvm::read(own, 0), None);
        assert_eq!(Jvm::read(own, std::ptr::from_ref(&LIBRARY).addr() as u64), None);
        assert_eq!(Jvm::read(own, u64::MAX - 8), None);
        let lines = crate::procfs::executable_maps(own).unwrap();
        let own_code = lines.iter().find(|line| line.file_offset > 0).unwrap();
        assert_eq!(Jvm::read(own, own_code.start - own_code.file_offset), None);
    }
}
