//! A table: everything that is known of one binary's frames, in one piece of memory without pointers.
//!
//! The same bytes are the file on disk and what BPF programs read; all numbers are little endian, all parts aligned to 16 bytes.
//!
//! | part | bytes | |
//! |--|--|--|
//! | header | 128 | [`Header`] |
//! | rules | 16 each | [`Step::encode`]; the first four are fixed: unknown, unsupported, root, frame pointer |
//! | directory | 4 for each page, and 4 | index of the first row at or behind the page's beginning |
//! | rows | 4 each | high half: the low 16 bits of the row's address; low half: the number of its rule |
//!
//! An address is counted from `base`. Rows ascend; each holds up to the next one. A page is 2^`page_shift` bytes (256 to 65,536), so
//! that within one page the 16 bits ascend as well, and the row of an address is found by a binary search of the page's rows,
//! some ten; if none of them begins at or before the address, it is the row before the page's first. The page's size
//! is the smallest with which the directory takes at most an eighth of the rows: 4.5 bytes per row at most, but for 260 KiB.

use crate::error::UnwindError;
use crate::rule::{RULE_BYTES, Step};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
/// The format that this version reads and writes.
pub const VERSION: u32 = 2;
/// Longest name of a binary.
pub const KEY_BYTES_MAX: usize = 46;
/// Most rows: six times as many as the largest binary known had. The table is 72 MiB then.
pub const ROWS_MAX: usize = 1 << 24;
/// Most rules, as a row has 16 bits for them. Binaries have some thousands.
pub const RULES_MAX: usize = 1 << 16;
/// The number of [`Step::Unknown`].
pub const UNKNOWN: u16 = 0;
/// The number of [`Step::Unsupported`].
pub const UNSUPPORTED: u16 = 1;
/// The number of [`Step::Root`].
pub const ROOT: u16 = 2;
/// The number of the rule of functions that keep a frame pointer.
pub const FRAME_POINTER: u16 = 3;
/// The smallest and the largest page, as powers of two.
pub const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 8..=16;

const MAGIC: [u8; 8] = *b"STRBUNW\n";
const ALIGNMENT: usize = 16;
/// What the checksum is over begins behind it.
const CHECKED_FROM: usize = 16;
/// Code that one table covers: rows count their addresses in 32 bits.
pub const COVERED_BYTES_MAX: u64 = 1 << 32;

/// What a table says of itself. The offsets up to `base` are those that BPF programs know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole table (at 16).
    pub bytes: u32,
    /// A page is 2 to this many bytes (at 20).
    pub page_shift: u32,
    /// Pages (at 24).
    pub pages: u32,
    /// Where the directory begins (at 28).
    pub directory_at: u32,
    /// Rows (at 32).
    pub rows: u32,
    /// Where they begin (at 36).
    pub rows_at: u32,
    /// Rules (at 40).
    pub rules: u32,
    /// Where they begin (at 44).
    pub rules_at: u32,
    /// ELF virtual address from which rows count (at 48).
    pub base: u64,
    /// Functions that were read (at 56).
    pub functions: u32,
    /// Functions whose information cannot be read (at 60). Healthy: 0.
    pub functions_refused: u32,
    /// Rows that no rule here can express (at 64). Healthy: some dozens, of hand-written code.
    pub rows_unsupported: u32,
}

impl Header {
    fn encode(&self, key: &[u8]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let words = [
            self.bytes,
            self.page_shift,
            self.pages,
            self.directory_at,
            self.rows,
            self.rows_at,
            self.rules,
            self.rules_at,
        ];
        for (word, place) in words.iter().zip(bytes[16..48].as_chunks_mut::<4>().0) {
            *place = word.to_le_bytes();
        }
        bytes[48..56].copy_from_slice(&self.base.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.functions.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.functions_refused.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.rows_unsupported.to_le_bytes());
        let key = &key[..key.len().min(KEY_BYTES_MAX)];
        bytes[81] = key.len() as u8;
        bytes[82..82 + key.len()].copy_from_slice(key);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            bytes: word(16),
            page_shift: word(20),
            pages: word(24),
            directory_at: word(28),
            rows: word(32),
            rows_at: word(36),
            rules: word(40),
            rules_at: word(44),
            base: u64::from(word(48)) | u64::from(word(52)) << 32,
            functions: word(56),
            functions_refused: word(60),
            rows_unsupported: word(64),
        }
    }
}

/// The parts of a table, before they are put together.
#[derive(Debug, Default)]
pub struct Parts {
    /// See [`Header::base`].
    pub base: u64,
    /// Rows, as they are in the table.
    pub rows: Vec<u32>,
    /// Index of the first row at or behind each 65,536 bytes; and the number of rows.
    pub coarse: Vec<u32>,
    /// Rules, by number.
    pub rules: Vec<[u8; RULE_BYTES]>,
    /// See [`Header::functions`].
    pub functions: u32,
    /// See [`Header::functions_refused`].
    pub functions_refused: u32,
    /// See [`Header::rows_unsupported`].
    pub rows_unsupported: u32,
}

fn align(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

impl Parts {
    /// Returns the table of the binary `key`.
    pub fn assemble(self, key: &str) -> Vec<u8> {
        let shift = self.page_shift();
        let directory = self.directory(shift);
        let rules_at = HEADER_BYTES;
        let directory_at = rules_at + self.rules.len() * RULE_BYTES;
        let rows_at = (directory_at + directory.len() * 4).next_multiple_of(ALIGNMENT);
        let length = (rows_at + self.rows.len() * 4).next_multiple_of(ALIGNMENT);
        let header = Header {
            bytes: length as u32,
            page_shift: shift,
            pages: directory.len() as u32 - 1,
            directory_at: directory_at as u32,
            rows: self.rows.len() as u32,
            rows_at: rows_at as u32,
            rules: self.rules.len() as u32,
            rules_at: rules_at as u32,
            base: self.base,
            functions: self.functions,
            functions_refused: self.functions_refused,
            rows_unsupported: self.rows_unsupported,
        };
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&header.encode(key.as_bytes()));
        bytes.extend(self.rules.iter().flatten());
        bytes.extend(directory.iter().flat_map(|first| first.to_le_bytes()));
        align(&mut bytes);
        bytes.extend(self.rows.iter().flat_map(|row| row.to_le_bytes()));
        align(&mut bytes);
        let checksum = crc32fast::hash(&bytes[CHECKED_FROM..]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn page_shift(&self) -> u32 {
        let covered = (self.coarse.len() as u64) << 16;
        PAGE_SHIFTS
            .into_iter()
            .find(|shift| covered >> shift <= self.rows.len() as u64 / 8)
            .unwrap_or(*PAGE_SHIFTS.end())
    }

    /// Returns the index of the first row of each page, and the number of rows.
    fn directory(&self, shift: u32) -> Vec<u32> {
        let rows = self.rows.len() as u32;
        let pages_each = 1_u32 << (16 - shift);
        let mut directory = Vec::with_capacity(self.coarse.len().saturating_mul(pages_each as usize) + 1);
        for (at, &first) in self.coarse.iter().enumerate() {
            let end = self.coarse.get(at + 1).copied().unwrap_or(rows);
            let mut next = first;
            for page in 0..pages_each {
                while next < end
                    && self
                        .rows
                        .get(next as usize)
                        .is_some_and(|row| row >> 16 < page << shift)
                {
                    next += 1;
                }
                directory.push(next);
            }
        }
        directory.push(rows);
        directory
    }
}

/// A table, looked at where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    bytes: &'a [u8],
    header: Header,
}

fn bad<T>(what: &'static str) -> Result<T, UnwindError> {
    Err(UnwindError::BadTable { what })
}

impl<'a> Table<'a> {
    /// Checks that some bytes are a whole and undamaged table, and returns it.
    ///
    /// # Errors
    /// [`UnwindError::BadTable`].
    pub fn open(bytes: &'a [u8]) -> Result<Self, UnwindError> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return bad("it is shorter than its header");
        };
        if head[..8] != MAGIC {
            return bad("it is no table");
        }
        if head[8..12] != VERSION.to_le_bytes() {
            return bad("it is of another version");
        }
        let header = Header::decode(head);
        if header.bytes as usize != bytes.len() {
            return bad("its length is not what it says");
        }
        if crc32fast::hash(&bytes[CHECKED_FROM..]).to_le_bytes() != head[12..16] {
            return bad("its checksum is wrong");
        }
        let part = |at: u32, count: u64, each: u64| {
            let end = u64::from(at) + count * each;
            at as usize >= HEADER_BYTES && at.is_multiple_of(4) && end <= bytes.len() as u64
        };
        let table = Self { bytes, header };
        if !PAGE_SHIFTS.contains(&header.page_shift)
            || header.rows as usize > ROWS_MAX
            || !(4..=RULES_MAX).contains(&(header.rules as usize))
            || u64::from(header.pages) << header.page_shift > COVERED_BYTES_MAX
            || !part(header.rules_at, u64::from(header.rules), RULE_BYTES as u64)
            || !part(header.directory_at, u64::from(header.pages) + 1, 4)
            || !part(header.rows_at, u64::from(header.rows), 4)
        {
            return bad("its parts do not fit into it");
        }
        Ok(table)
    }

    /// Returns what it says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the name of the binary that it is of.
    pub fn key(&self) -> &'a [u8] {
        let length = usize::from(self.bytes.get(81).copied().unwrap_or(0)).min(KEY_BYTES_MAX);
        self.bytes.get(82..82 + length).unwrap_or_default()
    }

    /// Returns bytes per row, the directory and the rules included.
    pub fn bytes_per_row(&self) -> f64 {
        f64::from(self.header.bytes) / f64::from(self.header.rows.max(1))
    }

    fn word(&self, at: u64) -> Option<u32> {
        let bytes = self.bytes.get(usize::try_from(at).ok()?..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Returns a row: its 16 bits of address, and the number of its rule.
    pub fn row(&self, index: u32) -> Option<(u16, u16)> {
        if index >= self.header.rows {
            return None;
        }
        let row = self.word(u64::from(self.header.rows_at) + 4 * u64::from(index))?;
        Some(((row >> 16) as u16, row as u16))
    }

    /// Returns the first row of a page, and that of the next page.
    pub fn page(&self, page: u32) -> Option<(u32, u32)> {
        if page >= self.header.pages {
            return None;
        }
        let at = u64::from(self.header.directory_at) + 4 * u64::from(page);
        let rows = self.header.rows;
        Some((self.word(at)?.min(rows), self.word(at + 4)?.min(rows)))
    }

    /// Returns the number of the rule of an ELF virtual address.
    pub fn rule_number(&self, address: u64) -> u16 {
        self.find(address).unwrap_or(UNKNOWN)
    }

    fn find(&self, address: u64) -> Option<u16> {
        let relative = u32::try_from(address.checked_sub(self.header.base)?).ok()?;
        let (first, end) = self.page(relative >> self.header.page_shift)?;
        let low = relative as u16;
        let (mut left, mut right) = (first, end);
        while left < right {
            let middle = left + (right - left) / 2;
            if self.row(middle)?.0 <= low {
                left = middle + 1;
            } else {
                right = middle;
            }
        }
        // None of the page's rows begins early enough: the one before holds on.
        self.row(left.checked_sub(1)?).map(|(_, rule)| rule)
    }

    /// Returns a rule by its number.
    pub fn rule(&self, number: u16) -> Step {
        let at = self.header.rules_at as usize + usize::from(number) * RULE_BYTES;
        if u32::from(number) >= self.header.rules {
            return Step::Unknown;
        }
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.and_then(Step::decode).unwrap_or(Step::Unknown)
    }

    /// Returns what is known of an ELF virtual address.
    pub fn step(&self, address: u64) -> Step {
        self.rule(self.rule_number(address))
    }

    /// Returns every row: its ELF virtual address and its rule.
    pub fn rows(&self) -> impl Iterator<Item = (u64, Step)> {
        // By rows and not by pages, of which a hostile directory may say that each has all rows.
        let mut page = 0;
        (0..self.header.rows).map_while(move |index| {
            while self.page(page)?.1 <= index {
                page += 1;
            }
            let (low, rule) = self.row(index)?;
            let high = (u64::from(page) << self.header.page_shift) & !0xffff;
            Some((
                self.header.base.wrapping_add(high + u64::from(low)),
                self.rule(rule),
            ))
        })
    }
}
