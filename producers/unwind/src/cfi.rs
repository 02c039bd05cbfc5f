//! Call frame information as it stands in a file: common entries (CIE) and one entry (FDE) per function.
//!
//! An entry is read only where the sequence of entries has one: an FDE that points into the middle of something is refused.
//! So the work is bounded by the section's bytes, however its entries point at one another.

use rustc_hash::FxHashMap;

use crate::program::{self, State};
use crate::reader::Reader;

/// Which of the two forms a section has: they differ in how entries name their CIE, and in how they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `.eh_frame`.
    Exceptions,
    /// `.debug_frame`.
    Debug,
}

/// A section of call frame information.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Which form.
    pub form: Form,
    /// Its content.
    pub bytes: &'a [u8],
    /// The ELF virtual address at which it is loaded.
    pub address: u64,
}

/// What functions share.
#[derive(Clone, Copy, Debug)]
pub struct Cie {
    pub code_factor: u64,
    pub data_factor: i64,
    pub return_register: u64,
    pub pointer_encoding: u8,
    pub has_augmentation: bool,
    pub signal: bool,
    /// The state at each function's first instruction; nothing where its program cannot be followed.
    pub initial: Option<State>,
}

/// One function.
#[derive(Clone, Copy, Debug)]
pub struct Fde<'a> {
    pub cie: u32,
    /// ELF virtual address of its first instruction.
    pub start: u64,
    pub bytes: u64,
    pub program: &'a [u8],
}

/// The CIEs of a section, by offset.
#[derive(Debug, Default)]
pub struct Cies {
    by_offset: FxHashMap<u32, u32>,
    all: Vec<Cie>,
    last: Option<(u32, u32)>,
}

impl Cies {
    pub fn get(&self, index: u32) -> Option<&Cie> {
        self.all.get(index as usize)
    }

    fn find(&mut self, offset: u32) -> Option<u32> {
        match self.last {
            Some((known, index)) if known == offset => Some(index),
            _ => {
                let index = *self.by_offset.get(&offset)?;
                self.last = Some((offset, index));
                Some(index)
            }
        }
    }
}

/// An entry's frame: where its content lies, and which CIE it names.
struct Header {
    /// Offset of what follows the CIE pointer.
    content: usize,
    /// Offset behind the entry.
    end: usize,
    /// Nothing: it is a CIE itself.
    cie: Option<u32>,
}

const PE_ABSENT: u8 = 0xff;
const PE_INDIRECT: u8 = 0x80;
const PE_PC_RELATIVE: u8 = 0x10;
const DWARF64: u32 = 0xffff_ffff;

impl<'a> Section<'a> {
    /// Calls `each` with the offset and function of every FDE, in the order of the section. Returns how many were refused.
    pub fn index(&self, cies: &mut Cies, mut each: impl FnMut(u32, &Fde<'a>)) -> u64 {
        let mut refused = 0;
        // CIEs first: in .debug_frame, and after linkers have reordered, an FDE may stand before the one that it names.
        self.entries(|offset, header| {
            if header.cie.is_none()
                && let Some(cie) = self.cie(header)
            {
                let index = cies.all.len() as u32;
                cies.all.push(cie);
                cies.by_offset.insert(offset, index);
            }
        });
        self.entries(|offset, header| {
            if header.cie.is_some() {
                match self.fde(header, cies) {
                    Some(fde) => each(offset, &fde),
                    None => refused += 1,
                }
            }
        });
        refused
    }

    /// Reads the FDE at an offset that [`Section::index`] gave.
    pub fn fde_at(&self, offset: u32, cies: &mut Cies) -> Option<Fde<'a>> {
        self.fde(&self.header(offset as usize)?, cies)
    }

    fn entries(&self, mut each: impl FnMut(u32, &Header)) {
        let mut at = 0;
        while let Some(header) = self.header(at) {
            let end = header.end;
            // Empty entries end the contributions of object files; others may follow.
            if header.content < end
                && let Ok(offset) = u32::try_from(at)
            {
                each(offset, &header);
            }
            at = end;
        }
    }

    fn header(&self, at: usize) -> Option<Header> {
        let mut reader = Reader::at(self.bytes, at);
        let mut length = u64::from(reader.u32()?);
        let wide = length == u64::from(DWARF64);
        if wide {
            length = reader.u64()?;
        }
        let pointer_at = reader.offset();
        if length == 0 {
            let end = pointer_at;
            return Some(Header {
                content: end,
                end,
                cie: None,
            });
        }
        let end = pointer_at.checked_add(usize::try_from(length).ok()?)?;
        if end > self.bytes.len() {
            return None;
        }
        let pointer = if wide && self.form == Form::Debug {
            reader.u64()?
        } else {
            u64::from(reader.u32()?)
        };
        let is_cie = match self.form {
            Form::Exceptions => pointer == 0,
            Form::Debug => pointer == if wide { u64::MAX } else { u64::from(u32::MAX) },
        };
        let cie = match self.form {
            _ if is_cie => None,
            // Where it points nowhere, it names an offset at which there is no CIE.
            Form::Exceptions => Some(
                (pointer_at as u64)
                    .checked_sub(pointer)
                    .and_then(|at| u32::try_from(at).ok())
                    .unwrap_or(u32::MAX),
            ),
            Form::Debug => Some(u32::try_from(pointer).unwrap_or(u32::MAX)),
        };
        let content = reader.offset();
        Some(Header { content, end, cie })
    }

    fn cie(&self, header: &Header) -> Option<Cie> {
        let mut reader = Reader::at(self.bytes.get(..header.end)?, header.content);
        let version = reader.u8()?;
        if !matches!(version, 1 | 3 | 4) {
            return None;
        }
        let augmentation = reader.string()?;
        if version == 4 && (reader.u8()? != 8 || reader.u8()? != 0) {
            return None; // 8 bytes an address, no segments
        }
        let code_factor = reader.uleb()?;
        let data_factor = reader.sleb()?;
        let return_register = if version == 1 {
            u64::from(reader.u8()?)
        } else {
            reader.uleb()?
        };
        let mut cie = Cie {
            code_factor,
            data_factor,
            return_register,
            pointer_encoding: 0,
            has_augmentation: false,
            signal: false,
            initial: None,
        };
        if let Some((b'z', letters)) = augmentation.split_first() {
            cie.has_augmentation = true;
            let length = usize::try_from(reader.uleb()?).ok()?;
            let mut data = Reader::new(reader.take(length)?);
            for letter in letters {
                match letter {
                    b'R' => cie.pointer_encoding = data.u8()?,
                    b'P' => {
                        let encoding = data.u8()?;
                        pointer(&mut data, encoding & !PE_INDIRECT, 0)?;
                    }
                    b'L' => drop(data.u8()?),
                    b'S' => cie.signal = true,
                    _ => break, // what follows cannot be read; the length leads past it
                }
            }
        } else if !augmentation.is_empty() {
            return None;
        }
        let program = self.bytes.get(reader.offset()..header.end)?;
        cie.initial = program::initial(program, &cie);
        Some(cie)
    }

    fn fde(&self, header: &Header, cies: &mut Cies) -> Option<Fde<'a>> {
        let index = cies.find(header.cie?)?;
        let cie = cies.get(index)?;
        let mut reader = Reader::at(self.bytes.get(..header.end)?, header.content);
        let start = pointer(&mut reader, cie.pointer_encoding, self.address)?;
        let bytes = pointer(&mut reader, cie.pointer_encoding & 0x0f, 0)?;
        if cie.has_augmentation {
            let length = usize::try_from(reader.uleb()?).ok()?;
            reader.take(length)?;
        }
        let program = self.bytes.get(reader.offset()..header.end)?;
        Some(Fde {
            cie: index,
            start,
            bytes,
            program,
        })
    }
}

/// Reads a pointer. `section` is the address of the bytes' beginning. Indirect pointers, and those relative to anything but
/// their own place, stand for no function that this reader could name.
fn pointer(reader: &mut Reader<'_>, encoding: u8, section: u64) -> Option<u64> {
    if encoding == PE_ABSENT || encoding & PE_INDIRECT != 0 {
        return None;
    }
    let base = match encoding & 0x70 {
        0 => 0,
        PE_PC_RELATIVE => section.wrapping_add(reader.offset() as u64),
        _ => return None,
    };
    let value = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => reader.u64()?,
        0x01 => reader.uleb()?,
        0x02 => u64::from(reader.u16()?),
        0x03 => u64::from(reader.u32()?),
        0x09 => reader.sleb()? as u64,
        0x0a => reader.u16()? as i16 as u64,
        0x0b => reader.u32()? as i32 as u64,
        _ => return None,
    };
    Some(base.wrapping_add(value))
}
