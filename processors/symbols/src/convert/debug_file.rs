//! A binary's separate debug information, in folders laid out as distributions do.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use object::Object;

use super::Elf;

/// Bytes read at once for a checksum.
const READ_BYTES: usize = 256 << 10;

/// Returns where a binary's separate debug information is: by build id, `.build-id/ab/cdef.debug`, or else by the name
/// and the checksum that its `.gnu_debuglink` states. The name alone would not do: another version bears the same one.
pub(crate) fn find(binary: &Elf<'_>, folders: &[PathBuf]) -> Option<PathBuf> {
    let id = binary.build_id().ok().flatten();
    let by_id = id.filter(|id| id.len() > 1).map(|id| {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!(".build-id/{}/{}.debug", hex(&id[..1]), hex(&id[1..]))
    });
    if let Some(name) = by_id {
        let found = folders
            .iter()
            .map(|folder| folder.join(&name))
            .find(|path| path.is_file());
        if found.is_some() {
            return found;
        }
    }
    let (name, crc) = binary.gnu_debuglink().ok().flatten()?;
    let name = Path::new(std::str::from_utf8(name).ok()?).file_name()?;
    let stated = |path: &PathBuf| path.is_file() && checksum(path) == Some(crc);
    folders.iter().map(|folder| folder.join(name)).find(stated)
}

/// Returns the CRC-32 of a file.
fn checksum(path: &Path) -> Option<u32> {
    let mut file = File::open(path).ok()?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hasher.finalize()),
            count => hasher.update(&buffer[..count]),
        }
    }
}
