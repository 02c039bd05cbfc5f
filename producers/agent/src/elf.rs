//! What the agent reads of an ELF file: its identity and its program headers. The file is hostile input: only headers and
//! notes are read, each within a bound, and what does not parse is an answer.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use object::elf::{self, FileHeader32, FileHeader64, PT_LOAD, PT_NOTE};
use object::endian::Endianness;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{ReadCache, ReadRef};
use sha2::{Digest, Sha256};
use strobe_event::{BinaryKind, BuildId};

/// Loadable segments kept: linkers write 1 to 6.
const SEGMENTS_MAX: usize = 64;
/// Most program headers: a file that claims more is refused, since all of them would be read at once.
const PROGRAM_HEADERS_MAX: u16 = 1_024;
/// Notes looked at in one segment.
const NOTES_MAX: usize = 64;
/// Bytes of one note segment that is read: build ids lie in the first ones.
const NOTE_BYTES_MAX: u64 = 64 << 10;
/// Note type of the GNU build id, with the name "GNU".
const NT_GNU_BUILD_ID: u32 = 3;
/// Note type of Go's build id, with the name "Go".
const NT_GO_BUILD_ID: u32 = 4;
/// Where an ELF file says whether it has 32 or 64 bits.
const CLASS_AT: usize = 4;
/// Bytes hashed at either end of a file that has no build id.
const HASHED_BYTES: u64 = 4096;

/// A loadable segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// ELF virtual address.
    pub address: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// What kind of identity `id` is.
    pub kind: BinaryKind,
    /// Its identity.
    pub id: BuildId,
    /// Its loadable segments.
    pub segments: Vec<Segment>,
}

impl Elf {
    /// Returns the ELF virtual address of what stands at `offset` in the file; nothing where no segment has it.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| offset.wrapping_sub(segment.offset) < segment.bytes)?;
        segment.address.checked_add(offset - segment.offset)
    }
}

/// Reads identity and segments of a file; nothing where it is no ELF file.
pub fn read(file: &mut File) -> Option<Elf> {
    let bytes = file.seek(SeekFrom::End(0)).ok()?;
    let (note, segments) = {
        let cache = ReadCache::new(&mut *file);
        let ident = cache.read_bytes_at(0, 16).ok()?;
        match ident.get(CLASS_AT).copied().map(elf::FileClass) {
            _ if ident[..4] != elf::ELFMAG => return None,
            Some(elf::ELFCLASS64) => headers::<FileHeader64<Endianness>>(&cache)?,
            Some(elf::ELFCLASS32) => headers::<FileHeader32<Endianness>>(&cache)?,
            _ => return None,
        }
    };
    let (kind, id) = match note {
        Some(note) => note,
        None => (BinaryKind::FileHash, file_hash(file, bytes)?),
    };
    Some(Elf { kind, id, segments })
}

type Found = (Option<(BinaryKind, BuildId)>, Vec<Segment>);

fn headers<Header: FileHeader<Endian = Endianness>>(data: &ReadCache<&mut File>) -> Option<Found> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut segments = Vec::new();
    let (mut gnu, mut go) = (None, None);
    if header.e_phnum(endian) > PROGRAM_HEADERS_MAX {
        return None;
    }
    for program in header.program_headers(endian, data).ok()? {
        match program.p_type(endian) {
            PT_LOAD if segments.len() < SEGMENTS_MAX => segments.push(Segment {
                offset: program.p_offset(endian).into(),
                address: program.p_vaddr(endian).into(),
                bytes: program.p_filesz(endian).into(),
            }),
            PT_NOTE if program.p_filesz(endian).into() <= NOTE_BYTES_MAX => {
                let Ok(Some(mut notes)) = program.notes(endian, data) else {
                    continue;
                };
                for _ in 0..NOTES_MAX {
                    let Ok(Some(note)) = notes.next() else { break };
                    match (note.name(), note.n_type(endian).0) {
                        (elf::ELF_NOTE_GNU, NT_GNU_BUILD_ID) => {
                            gnu = gnu.or_else(|| BuildId::new(note.desc()))
                        }
                        (b"Go", NT_GO_BUILD_ID) => go = go.or_else(|| BuildId::new(note.desc())),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let note = gnu
        .map(|id| (BinaryKind::Gnu, id))
        .or(go.map(|id| (BinaryKind::Go, id)));
    Some((note, segments))
}

/// Returns the stated hash of a file without a build id: see [`BinaryKind::FileHash`].
fn file_hash(file: &mut File, bytes: u64) -> Option<BuildId> {
    let mut hash = Sha256::new();
    for from in [0, bytes.saturating_sub(HASHED_BYTES)] {
        let mut part = Vec::new();
        file.seek(SeekFrom::Start(from)).ok()?;
        Read::by_ref(file)
            .take(HASHED_BYTES)
            .read_to_end(&mut part)
            .ok()?;
        hash.update(&part);
    }
    hash.update(bytes.to_be_bytes());
    BuildId::new(&hash.finalize()[..16])
}

/// Returns the GNU build id in raw notes, as `/sys/kernel/notes` has them.
pub fn build_id_in_notes(notes: &[u8]) -> Option<BuildId> {
    let mut rest = notes;
    for _ in 0..NOTES_MAX {
        let word = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?) as usize);
        let (name_bytes, id_bytes, kind) = (word(0)?, word(4)?, word(8)?);
        let name = rest.get(12..12_usize.checked_add(name_bytes)?)?;
        let id_at = 12_usize.checked_add(name_bytes.checked_next_multiple_of(4)?)?;
        let id = rest.get(id_at..id_at.checked_add(id_bytes)?)?;
        if name == b"GNU\0" && kind == NT_GNU_BUILD_ID as usize {
            return BuildId::new(id);
        }
        rest = rest.get(id_at.checked_add(id_bytes.checked_next_multiple_of(4)?)?..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn own() -> File {
        File::open(std::env::current_exe().unwrap()).unwrap()
    }

    /// Checks that this test's own executable has an identity, and that its code's offsets become addresses.
    #[test]
    fn our_own_executable_is_read() {
        let elf = read(&mut own()).unwrap();
        let segment = elf.segments[elf.segments.len() - 1];
        assert_eq!(elf.address_of(segment.offset), Some(segment.address));
        assert_eq!(elf.address_of(u64::MAX), None);
    }

    /// Checks that a file without a build id gets the stated hash: of both ends and the length.
    #[test]
    fn a_file_without_a_build_id_gets_the_stated_hash() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..10_000_u32).map(|byte| byte as u8).collect();
        file.write_all(&content).unwrap();
        let mut expected = Sha256::new();
        expected.update(&content[..4096]);
        expected.update(&content[10_000 - 4096..]);
        expected.update(10_000_u64.to_be_bytes());
        assert_eq!(
            file_hash(&mut file, 10_000),
            BuildId::new(&expected.finalize()[..16])
        );
    }

    /// Checks that a file that claims billions of program headers is refused before they are read: it may be sparse, and so
    /// larger than the host's memory.
    #[test]
    fn a_file_with_billions_of_program_headers_is_refused() {
        let mut head = Vec::new();
        own().take(4096).read_to_end(&mut head).unwrap();
        // e_phnum says "see the first section", whose sh_info says four billion; both in a sparse file of a TiB.
        head[0x38..0x3a].copy_from_slice(&[0xff, 0xff]);
        head[0x28..0x30].copy_from_slice(&1024_u64.to_le_bytes());
        head[1024 + 44..1024 + 48].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&head).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(read(&mut file), None);
    }

    /// Checks that damaged files are answers: none of 2,000 mutations of a real one ends the agent.
    #[test]
    fn damaged_files_are_answers() {
        let mut head = Vec::new();
        own().take(64 << 10).read_to_end(&mut head).unwrap();
        let mut state = 7_u64;
        for _ in 0..2_000 {
            let mut damaged = head.clone();
            for _ in 0..4 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % 1_024;
                damaged[at] = state as u8;
            }
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&damaged).unwrap();
            let _ = read(&mut file);
            let _ = build_id_in_notes(&damaged);
        }
    }
}
