//! The table of functions that Go's runtime carries, `.gopclntab`: names, files and lines of binaries that are stripped of
//! everything else.
//!
//! Read as Go 1.18 and later write it (`runtime/symtab.go`, `pcHeader` and `_func`). What was inlined is not read: where
//! that lies is known to the runtime's own data alone. Go strips nothing of this, as panics need it.

use object::{Object, ObjectSection};
use strobe_event::Reason;

use super::Elf;
use super::draft::{Draft, Line};
use crate::file::varint::take;

/// First bytes of the table since Go 1.18 and since Go 1.20.
const MAGIC_1_18: u32 = 0xffff_fff0;
const MAGIC_1_20: u32 = 0xffff_fff1;

/// Most rows of one function's table: as many as bytes of a very large function.
const ROWS_MAX: usize = 1 << 20;

/// The table, and where its parts begin in it.
struct Table<'d> {
    bytes: &'d [u8],
    text: u64,
    step: u64,
    names: usize,
    units: usize,
    files: usize,
    values: usize,
    functions: usize,
    count: usize,
}

/// Adds what the runtime's table says to a draft; returns whether there is one that can be read.
///
/// # Errors
/// [`Reason::OverLimit`] where it is more than may be.
pub(crate) fn read<'d>(elf: &Elf<'d>, draft: &mut Draft<'d>) -> Result<bool, Reason> {
    let Some(table) = Table::of(elf) else {
        return Ok(false);
    };
    let mut read = false;
    for index in 0..table.count {
        // A damaged function costs itself.
        if let Some(function) = table.function(index) {
            read |= function.add(&table, draft)?;
        }
    }
    Ok(read)
}

impl<'d> Table<'d> {
    fn of(elf: &Elf<'d>) -> Option<Self> {
        let section = [".gopclntab", ".data.rel.ro.gopclntab"]
            .into_iter()
            .find_map(|name| elf.section_by_name(name))?;
        let bytes = section.data().ok()?;
        let magic = u32_at(bytes, 0)?;
        let (&step, &width) = (bytes.get(6)?, bytes.get(7)?);
        if !(magic == MAGIC_1_18 || magic == MAGIC_1_20) || width != 8 || step == 0 {
            return None;
        }
        let word = |at: usize| {
            let bytes = bytes.get(8 + 8 * at..)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let place = |at: usize| usize::try_from(word(at)?).ok();
        // Newer linkers leave the start of the code out; it is that of its section.
        let text = match word(2)? {
            0 => elf.section_by_name(".text")?.address(),
            start => start,
        };
        Some(Self {
            bytes,
            text,
            step: step.into(),
            names: place(3)?,
            units: place(4)?,
            files: place(5)?,
            values: place(6)?,
            functions: place(7)?,
            // Each has 8 bytes in the table, which bounds what is claimed.
            count: place(0)?.min(bytes.len() / 8),
        })
    }

    fn function(&self, index: usize) -> Option<Function<'d>> {
        let entry = self.functions.checked_add(index * 8)?;
        let start = u32_at(self.bytes, entry)?;
        let end = u32_at(self.bytes, entry + 8)?;
        let data = self
            .functions
            .checked_add(u32_at(self.bytes, entry + 4)? as usize)?;
        let field = |at: usize| u32_at(self.bytes, data.checked_add(4 * at)?);
        Some(Function {
            start: self.text.checked_add(start.into())?,
            end: self.text.checked_add(end.into())?,
            name: text_at(self.bytes, self.names.checked_add(field(1)? as usize)?)?,
            files: field(5)?,
            lines: field(6)?,
            unit: field(8)?,
        })
    }

    /// Returns the path of a unit's file.
    fn file(&self, unit: u32, file: u32) -> Option<&'d [u8]> {
        let index = (unit as usize).checked_add(file as usize)?;
        let place = u32_at(self.bytes, self.units.checked_add(index.checked_mul(4)?)?)?;
        text_at(self.bytes, self.files.checked_add(place as usize)?)
    }

    /// Returns the values of one of a function's tables: each with the address behind the last byte that has it.
    fn values(&self, place: u32, start: u64) -> Vec<(u64, i64)> {
        let from = self.values.saturating_add(place as usize);
        let mut out = Vec::new();
        let Some(mut rest) = (place != 0).then(|| self.bytes.get(from..)).flatten() else {
            return out;
        };
        let (mut value, mut at) = (-1_i64, start);
        while out.len() < ROWS_MAX {
            let Some(change) = take(&mut rest) else { break };
            // The first one may be no change; later such a one is the end.
            if change == 0 && !out.is_empty() {
                break;
            }
            value += (change >> 1) as i64 ^ -((change & 1) as i64);
            let Some(bytes) = take(&mut rest) else { break };
            at = at.saturating_add(bytes.saturating_mul(self.step));
            out.push((at, value));
        }
        out
    }
}

/// A function of the table.
struct Function<'d> {
    start: u64,
    end: u64,
    name: &'d [u8],
    files: u32,
    lines: u32,
    unit: u32,
}

impl<'d> Function<'d> {
    fn add(&self, table: &Table<'d>, draft: &mut Draft<'d>) -> Result<bool, Reason> {
        if self.start >= self.end || self.name.is_empty() || draft.code.around(self.start).is_none() {
            return Ok(false);
        }
        let files = table.values(self.files, self.start);
        let lines = table.values(self.lines, self.start);
        let mut joined = Vec::with_capacity(lines.len());
        let (mut at, mut file) = (self.start, 0);
        for (end, line) in lines {
            while at < end {
                while files.get(file).is_some_and(|&(end, _)| end <= at) {
                    file += 1;
                }
                let known = files.get(file).copied();
                let path = known.and_then(|(_, index)| table.file(self.unit, u32::try_from(index).ok()?));
                let number = path.map_or(0, |path| {
                    draft.files.intern(String::from_utf8_lossy(path).into_owned())
                });
                joined.push(Line {
                    start: at,
                    file: number,
                    line: u32::try_from(line).unwrap_or(0),
                });
                at = known.map_or(end, |(file_end, _)| file_end.min(end));
            }
        }
        let scope = draft.scope_of(self.name);
        draft.function(&[(self.start, self.end, scope)], &joined)?;
        Ok(true)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

/// Returns the text at a place, up to its end.
fn text_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let end = memchr::memchr(0, rest)?;
    Some(&rest[..end])
}
