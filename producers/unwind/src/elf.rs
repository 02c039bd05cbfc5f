//! What tables are made from: the sections of call frame information, where code lies, and where linkage tables do.

use std::borrow::Cow;
use std::ops::Range;

use object::elf::{
    self, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_INTERP, PT_LOAD, SHF_EXECINSTR, SHT_NOBITS, SHT_SYMTAB,
};
use object::endian::LittleEndian;
use object::read::elf::{CompressionHeader, FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{CompressedData, CompressionFormat, ReadRef};

use crate::error::UnwindError;
use crate::golang::GoTable;

/// Largest section of call frame information that is read: some 2 GB of code have that much.
pub const SECTION_BYTES_MAX: u64 = 256 << 20;
/// Most program headers: linkers write about 10.
const PROGRAM_HEADERS_MAX: u32 = 1_024;
/// Most section headers of a linked file. Compilers write more only into objects.
const SECTIONS_MAX: u32 = 65_536;
/// Executable segments looked at: linkers make one, with huge-page tricks a handful.
const SEGMENTS_MAX: usize = 64;

/// A part of the code, in ELF virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Where it is loaded.
    pub addresses: Range<u64>,
    /// Where it lies in the file.
    pub offset: u64,
}

/// A binary, as far as tables need it.
#[derive(Debug)]
pub struct Binary<'d> {
    /// Executable segments, ascending.
    pub code: Vec<Code>,
    /// Sections that hold a procedure linkage table; whether its entries push a number first.
    pub linkage: Vec<(Range<u64>, bool)>,
    /// `.eh_frame` and its address.
    pub exceptions: Option<(&'d [u8], u64)>,
    /// `.debug_frame`.
    pub debug: Option<Cow<'d, [u8]>>,
    /// Go's table of functions.
    pub go: Option<GoTable<'d>>,
}

type Header = FileHeader64<LittleEndian>;

fn damaged(what: &'static str) -> UnwindError {
    UnwindError::Damaged { what }
}

fn within(what: &'static str, value: u32, limit: u32) -> Result<(), UnwindError> {
    if value > limit {
        return Err(UnwindError::OverLimit {
            what,
            value: value.into(),
            limit: limit.into(),
        });
    }
    Ok(())
}

/// Reads a binary's headers and its call frame information.
pub fn read<'d, R: ReadRef<'d>>(data: R) -> Result<Binary<'d>, UnwindError> {
    let header = Header::parse(data).map_err(|_| UnwindError::NotElf)?;
    let endian = header.endian().map_err(|_| UnwindError::NotElf)?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Err(UnwindError::NotElf);
    }
    let count = header
        .phnum(endian, data)
        .map_err(|_| damaged("the program headers"))?;
    within("the number of program headers", count, PROGRAM_HEADERS_MAX)?;
    let programs = header
        .program_headers(endian, data)
        .map_err(|_| damaged("the program headers"))?;
    let mut binary = Binary {
        code: Vec::new(),
        linkage: Vec::new(),
        exceptions: None,
        debug: None,
        go: None,
    };
    for program in programs {
        let flags = program.p_flags(endian).0;
        if program.p_type(endian) == PT_LOAD && flags & PF_X.0 != 0 && binary.code.len() < SEGMENTS_MAX {
            let address = program.p_vaddr(endian);
            let bytes = program.p_memsz(endian);
            binary.code.push(Code {
                addresses: address..address.saturating_add(bytes),
                offset: program.p_offset(endian),
            });
        }
    }
    binary.code.sort_by_key(|code| code.addresses.start);
    let linked = programs.iter().any(|program| program.p_type(endian) == PT_INTERP);
    sections(header, endian, data, linked, &mut binary)?;
    if binary.exceptions.is_none() {
        binary.exceptions = by_program_headers(programs, endian, data);
    }
    Ok(binary)
}

fn sections<'d, R: ReadRef<'d>>(
    header: &Header,
    endian: LittleEndian,
    data: R,
    linked: bool,
    binary: &mut Binary<'d>,
) -> Result<(), UnwindError> {
    // No section headers at all is no damage: the program headers lead to what is needed.
    let Ok(count) = header.shnum(endian, data) else {
        return Ok(());
    };
    within("the number of sections", count, SECTIONS_MAX)?;
    let Ok(sections) = header.sections(endian, data) else {
        return Ok(());
    };
    let mut functions = None;
    let mut text = None;
    for section in sections.iter() {
        let Ok(name) = sections.section_name(endian, section) else {
            continue;
        };
        let bytes = section.sh_size(endian);
        let address = section.sh_addr(endian);
        // A file with nothing but debug information keeps the headers of what was taken out.
        if section.sh_type(endian) == SHT_NOBITS {
            continue;
        }
        match name {
            b".eh_frame" => {
                let content = content(data, section.sh_offset(endian), bytes)?;
                binary.exceptions = content.map(|content| (content, address));
            }
            b".debug_frame" => binary.debug = debug_content(data, endian, section)?,
            b".gopclntab" | b".data.rel.ro.gopclntab" => {
                functions = content(data, section.sh_offset(endian), bytes)?;
            }
            b".text" => text = Some(address),
            b".plt" | b".plt.sec" | b".plt.got" | b".iplt"
                if section.sh_flags(endian).0 & SHF_EXECINSTR.0 != 0
                    && binary.linkage.len() < SEGMENTS_MAX =>
            {
                let addresses = address..address.saturating_add(bytes);
                binary.linkage.push((addresses, name == b".plt"));
            }
            _ => {}
        }
    }
    // Linked by Go alone, code begins with Go's; otherwise with C's, and only a symbol tells where Go's does.
    let text = text.filter(|_| !linked).or_else(|| {
        functions?;
        go_text(&sections, endian, data)
    });
    binary.go = functions.and_then(|functions| GoTable::open(functions, text));
    Ok(())
}

/// Finds where Go's code begins, by its symbol.
fn go_text<'d, R: ReadRef<'d>>(
    sections: &SectionTable<'d, Header, R>,
    endian: LittleEndian,
    data: R,
) -> Option<u64> {
    let table = sections
        .iter()
        .find(|section| section.sh_type(endian) == SHT_SYMTAB)?;
    if table.sh_size(endian) > SECTION_BYTES_MAX {
        return None;
    }
    let symbols = sections.symbols(endian, data, SHT_SYMTAB).ok()?;
    let symbol = symbols
        .iter()
        .find(|symbol| symbols.symbol_name(endian, symbol) == Ok(b"runtime.text"))?;
    Some(symbol.st_value(endian))
}

/// Reads a section, within its limit; nothing where the file does not have it.
fn content<'d, R: ReadRef<'d>>(data: R, offset: u64, bytes: u64) -> Result<Option<&'d [u8]>, UnwindError> {
    within_section(bytes)?;
    // Before anything is allocated for it.
    let held = data
        .len()
        .is_ok_and(|held| offset.checked_add(bytes).is_some_and(|end| end <= held));
    Ok(held.then(|| data.read_bytes_at(offset, bytes).ok()).flatten())
}

fn within_section(bytes: u64) -> Result<(), UnwindError> {
    if bytes > SECTION_BYTES_MAX {
        return Err(UnwindError::OverLimit {
            what: "the size of the call frame information",
            value: bytes,
            limit: SECTION_BYTES_MAX,
        });
    }
    Ok(())
}

/// Reads `.debug_frame`, which Go and some distributions compress.
fn debug_content<'d, R: ReadRef<'d>>(
    data: R,
    endian: LittleEndian,
    section: &<Header as FileHeader>::SectionHeader,
) -> Result<Option<Cow<'d, [u8]>>, UnwindError> {
    let (offset, bytes) = (section.sh_offset(endian), section.sh_size(endian));
    let Some(packed) = content(data, offset, bytes)? else {
        return Ok(None);
    };
    let Ok(Some((header, offset, compressed_size))) = section.compression(endian, data) else {
        return Ok(Some(Cow::Borrowed(packed)));
    };
    let uncompressed_size = header.ch_size(endian);
    within_section(uncompressed_size)?;
    let format = match header.ch_type(endian) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return Ok(None),
    };
    let Some(inner) = content(data, offset, compressed_size)? else {
        return Ok(None);
    };
    let compressed = CompressedData {
        format,
        data: inner,
        uncompressed_size,
    };
    Ok(compressed.decompress().ok())
}

/// Finds `.eh_frame` without section headers: `PT_GNU_EH_FRAME` says where it begins, and its segment where it ends at last.
fn by_program_headers<'d, R: ReadRef<'d>>(
    programs: &[<Header as FileHeader>::ProgramHeader],
    endian: LittleEndian,
    data: R,
) -> Option<(&'d [u8], u64)> {
    let index = programs
        .iter()
        .find(|program| program.p_type(endian) == PT_GNU_EH_FRAME)?;
    let head = content(data, index.p_offset(endian), 8).ok()??;
    // Version 1, and the pointer in the one form that linkers write: 4 bytes, relative to itself.
    let [1, 0x1b, _, _, a, b, c, d] = *head else {
        return None;
    };
    let distance = i32::from_le_bytes([a, b, c, d]);
    let address = index
        .p_vaddr(endian)
        .wrapping_add(4)
        .wrapping_add_signed(i64::from(distance));
    let segment = programs.iter().find(|program| {
        program.p_type(endian) == PT_LOAD
            && address.wrapping_sub(program.p_vaddr(endian)) < program.p_filesz(endian)
    })?;
    let into = address - segment.p_vaddr(endian);
    let bytes = segment.p_filesz(endian) - into;
    let all = content(data, segment.p_offset(endian).checked_add(into)?, bytes).ok()??;
    Some((all.get(..terminated(all))?, address))
}

/// Returns the length of `.eh_frame` where only an empty entry marks its end.
fn terminated(bytes: &[u8]) -> usize {
    let mut at = 0_usize;
    while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        match u32::from_le_bytes(*length) {
            0 => return at + 4,
            u32::MAX => return at,
            length => at = at.saturating_add(4).saturating_add(length as usize),
        }
    }
    bytes.len().min(at)
}
