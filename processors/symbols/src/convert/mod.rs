//! A binary → its symbol file: everything that is parsed of debug information is parsed here, once.
//!
//! Runs in a worker of its own ([`worker`](crate::worker)) with limits on memory and time. Sources, the better before the
//! worse: debug information (DWARF 2 to 5, compressed, in a separate file, split off into a package), the table of Go's
//! runtime, the symbol table, the compressed one in `.gnu_debugdata`, the exported names. What a unit of damaged debug
//! information does not say is filled from the symbols, and counted.
//!
//! | file | in → out |
//! |--|--|
//! | `debug_file.rs` | a binary → its separate debug information, where folders are configured |
//! | `elf.rs` | ELF headers → where code is, and its symbols |
//! | `dwarf.rs` | entries → functions, and the calls inlined into them |
//! | `go.rs` | the table that Go's runtime carries → functions and lines of stripped Go binaries |
//! | `mini.rs` | `.gnu_debugdata` → the symbol table in it |
//! | `lines.rs` | line programs → lines by address |
//! | `flatten.rs` | nested ranges → stretches, each with the innermost |
//! | `draft.rs` | all of it → rows by address, gaps filled from symbols |

mod debug_file;
mod draft;
mod dwarf;
mod elf;
mod flatten;
mod go;
mod lines;
mod mini;
mod names;

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use gimli::{DwarfPackageSections, DwarfSections, EndianSlice, RunTimeEndian, SectionId};
use object::{Object, ObjectSection, ReadCache};
use strobe_event::Reason;

use crate::precheck;
use draft::Draft;
use dwarf::Reader;
use elf::{Code, Symbols};

/// What an ELF file is read through.
pub(crate) type Data<'d> = &'d ReadCache<File>;
/// An ELF file.
pub(crate) type Elf<'d> = object::File<'d, Data<'d>>;

/// Bytes that a row and what belongs to it take while a file is made, generously.
const ROW_BYTES: u64 = 64;

/// What a symbol file is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sources<'a> {
    /// The binary, or its separate debug information where there is nothing else.
    pub binary: Option<&'a Path>,
    /// Its separate debug information.
    pub debug: Option<&'a Path>,
    /// What was split off from its debug information, in one package.
    pub package: Option<&'a Path>,
    /// Folders in which separate debug information is looked for where none is named.
    pub folders: &'a [PathBuf],
}

/// Limits on a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most bytes of each of the files.
    pub binary_bytes: u64,
    /// Most bytes of memory.
    pub memory_bytes: u64,
}

/// Makes the symbol file of a binary.
///
/// # Errors
/// The reason for which there is none; nothing of `out` is good then.
pub(crate) fn convert(sources: Sources<'_>, limits: Limits, out: &mut impl Write) -> Result<(), Reason> {
    let mut side_refused = false;
    // What lies beside a binary and is no good is as good as none: the binary itself is there.
    let mut beside = |path: Option<&Path>| {
        let opened = open(path?, limits).and_then(|cache| {
            let whole = Elf::parse(&cache).is_ok();
            whole.then_some(cache).ok_or(Reason::Damaged)
        });
        side_refused |= opened.is_err();
        opened.ok()
    };
    let binary = sources.binary.map(|path| open(path, limits)).transpose()?;
    let (mut debug, package) = match &binary {
        Some(_) => (beside(sources.debug), beside(sources.package)),
        None => (
            sources.debug.map(|path| open(path, limits)).transpose()?,
            beside(sources.package),
        ),
    };
    let parse = |cache| Elf::parse(cache).map_err(|_| Reason::Damaged);
    let binary = binary.as_ref().map(parse).transpose()?;
    if let (Some(binary), None) = (&binary, &debug) {
        debug = beside(debug_file::find(binary, sources.folders).as_deref());
    }
    let debug = debug.as_ref().map(parse).transpose()?;
    let package = package.as_ref().map(parse).transpose()?;
    let main = binary.as_ref().or(debug.as_ref()).ok_or(Reason::MissingBinary)?;
    let code = Code::of(main);
    let mut found = Vec::new();
    let mut full = false;
    for elf in [&binary, &debug].into_iter().flatten() {
        full |= elf::symbols(elf, &code, &mut found);
    }
    // Only where there is no better table.
    let mini = match (full, &binary) {
        (false, Some(binary)) => mini::unpack(binary, limits.memory_bytes / 4),
        _ => None,
    };
    let within = mini.as_deref().and_then(|bytes| object::File::parse(bytes).ok());
    let mini_debug_info = within
        .as_ref()
        .is_some_and(|elf| elf::symbols(elf, &code, &mut found));
    let symbols = Symbols::new(found, &code);
    let rows_max = usize::try_from(limits.memory_bytes / ROW_BYTES).unwrap_or(usize::MAX);
    let mut draft = Draft::new(code, symbols, rows_max)?;
    draft.facts.symbol_table = full || mini_debug_info;
    draft.facts.mini_debug_info = mini_debug_info;

    // A separate file is there because it has what the binary lacks.
    let mut sections = None;
    for elf in [&debug, &binary].into_iter().flatten() {
        if sections.is_some() || !has_section(elf, ".debug_info") {
            continue;
        }
        // Said by the headers, so that it is a limit that is met, and not the worker's end.
        if debug_bytes(elf) > limits.memory_bytes / 4 * 3 {
            return Err(Reason::OverLimit);
        }
        // Debug information that cannot be unpacked leaves what else there is: another file's, or symbols.
        match DwarfSections::load(|id: SectionId| section(elf, id.name())) {
            Ok(loaded) => sections = Some((loaded, elf)),
            Err(Unreadable) => side_refused = true,
        }
    }
    let split = package.as_ref().and_then(|elf| {
        let load = |id: SectionId| section(elf, id.dwo_name().unwrap_or(""));
        let loaded = DwarfPackageSections::load(load);
        side_refused |= loaded.is_err();
        loaded.ok()
    });
    if let Some((sections, elf)) = &sections {
        let endian = match elf.endianness() {
            object::Endianness::Little => RunTimeEndian::Little,
            object::Endianness::Big => RunTimeEndian::Big,
        };
        let slice = |bytes| EndianSlice::new(bytes, endian);
        let dwarf = sections.borrow(|bytes| slice(bytes));
        let package = match &split {
            // A package that cannot be read is as good as none: its units are counted as elsewhere.
            Some(split) => {
                let package = split.borrow(|bytes| slice(bytes), slice(&[]));
                side_refused |= package.is_err();
                package.ok()
            }
            None => None,
        };
        draft.facts.debug_info = true;
        Reader::new(dwarf, package).read(&mut draft)?;
    }
    if let (false, Some(binary)) = (draft.facts.debug_info, &binary) {
        draft.facts.go_table = go::read(binary, &mut draft)?;
    }
    draft.facts.parts_refused = side_refused;
    draft.write(out).map_err(|_| Reason::OverLimit)
}

fn open(path: &Path, limits: Limits) -> Result<ReadCache<File>, Reason> {
    precheck::check(path, limits.binary_bytes, limits.memory_bytes / 2)?;
    let file = File::open(path).map_err(|_| Reason::Unreadable)?;
    Ok(ReadCache::new(file))
}

/// Returns the bytes of a binary's debug information, unpacked.
fn debug_bytes(elf: &Elf<'_>) -> u64 {
    let debug = elf.sections().filter(|section| {
        let name = section.name().unwrap_or_default();
        name.starts_with(".debug_") || name.starts_with(".zdebug_")
    });
    let bytes = debug.filter_map(|section| Some(section.compressed_file_range().ok()?.uncompressed_size));
    bytes.fold(0, u64::saturating_add)
}

fn has_section(elf: &Elf<'_>, name: &str) -> bool {
    // A separate debug file lists the sections that stayed in the binary, without content.
    elf.section_by_name(name)
        .is_some_and(|section| section.file_range().is_some_and(|(_, bytes)| bytes > 0))
}

/// Returns a section's content, unpacked; empty where there is none.
fn section<'d>(elf: &Elf<'d>, name: &str) -> Result<Cow<'d, [u8]>, Unreadable> {
    match elf.section_by_name(name) {
        Some(section) => section.uncompressed_data().map_err(|_| Unreadable),
        None => Ok(Cow::Borrowed(&[])),
    }
}

/// A section cannot be had.
struct Unreadable;

impl From<gimli::Error> for Unreadable {
    fn from(_: gimli::Error) -> Self {
        Self
    }
}
