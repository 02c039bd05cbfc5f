//! The compressed symbol table that distributions leave in stripped binaries, `.gnu_debugdata`: an ELF file within the ELF
//! file, packed by xz, with the symbols that are not exported anyway.

use std::io::{self, Cursor, Write};

use object::{Object, ObjectSection};

use super::Elf;

/// Returns the ELF file within a binary, if there is one that can be unpacked into `bytes_max`.
pub(crate) fn unpack(elf: &Elf<'_>, bytes_max: u64) -> Option<Vec<u8>> {
    let section = elf.section_by_name(".gnu_debugdata")?;
    let packed = section.data().ok()?;
    let mut out = Limited {
        bytes: Vec::new(),
        bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
    };
    lzma_rs::xz_decompress(&mut Cursor::new(packed), &mut out).ok()?;
    Some(out.bytes)
}

/// Takes bytes up to a limit: what is packed may be a bomb.
struct Limited {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
