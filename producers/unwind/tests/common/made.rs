//! ELF files made by hand: only what tables are read from.

/// The address at which the code of a made file is loaded.
pub const CODE: u64 = 0x40_0000;
/// The address of its `.eh_frame_hdr`, with `.eh_frame` behind it.
const FRAMES: u64 = 0x2_0000_0000;

/// Returns a file with `code_bytes` of code, none of which is in the file, and this `.eh_frame`.
pub fn elf(code_bytes: u64, frames: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(2_u16.to_le_bytes()); // executable
    file.extend(62_u16.to_le_bytes()); // x86-64
    file.extend(1_u32.to_le_bytes());
    file.extend(CODE.to_le_bytes());
    file.extend(64_u64.to_le_bytes()); // program headers
    file.extend(0_u64.to_le_bytes()); // no section headers
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 3, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let at = 64 + 3 * 56;
    let held = 8 + frames.len() as u64;
    for (kind, flags, offset, address, in_file, in_memory) in [
        (1_u32, 5_u32, 0, CODE, 0, code_bytes),
        (1, 4, at, FRAMES, held, held),
        (0x6474_e550, 4, at, FRAMES, 8, 8),
    ] {
        file.extend(kind.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for word in [offset, address, address, in_file, in_memory, 4] {
            file.extend(word.to_le_bytes());
        }
    }
    // Version 1; `.eh_frame` 4 bytes behind the pointer to it; no search table.
    file.extend([1, 0x1b, 0xff, 0xff, 4, 0, 0, 0]);
    file.extend_from_slice(frames);
    file
}

/// An `.eh_frame` as it grows.
#[derive(Default)]
pub struct Frames {
    pub bytes: Vec<u8>,
}

impl Frames {
    fn entry(&mut self, pointer: u32, content: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend((content.len() as u32 + 4).to_le_bytes());
        self.bytes.extend(pointer.to_le_bytes());
        self.bytes.extend_from_slice(content);
        at
    }

    /// Adds a CIE with absolute addresses of 8 bytes, `rsp + 8` and the return address below it, and `more` instructions.
    pub fn cie(&mut self, more: &[u8]) -> u32 {
        let mut content = vec![1];
        content.extend(*b"zR\0");
        content.extend([1, 0x78, 16, 1, 0]); // factors 1 and -8, return address in column 16, absolute pointers
        content.extend([0x0c, 7, 8, 0x90, 1]);
        content.extend_from_slice(more);
        self.entry(0, &content)
    }

    /// Adds a function.
    pub fn fde(&mut self, cie: u32, start: u64, bytes: u64, program: &[u8]) {
        let pointer = self.bytes.len() as u32 + 4 - cie;
        let mut content = Vec::with_capacity(17 + program.len());
        content.extend(start.to_le_bytes());
        content.extend(bytes.to_le_bytes());
        content.push(0);
        content.extend_from_slice(program);
        self.entry(pointer, &content);
    }

    /// Returns the whole section.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend([0; 4]);
        self.bytes
    }
}

/// Returns a number as unsigned LEB128.
pub fn uleb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

/// Bytes of each function of [`many_functions`].
pub const FUNCTION_BYTES: u64 = 96;

/// Returns a file of `count` functions with five rows each: one push, a frame of a size of its own, and its end, twice.
pub fn many_functions(count: u64) -> Vec<u8> {
    let mut frames = Frames::default();
    let cie = frames.cie(&[]);
    for n in 0..count {
        let mut program = vec![0x41, 0x0e, 16, 0x86, 2, 0x44, 0x0e];
        program.extend(uleb(frame_bytes(n)));
        program.extend([0x60, 0x0e, 16, 0x41, 0x0e, 8]);
        frames.fde(cie, CODE + n * FUNCTION_BYTES, FUNCTION_BYTES - 20, &program);
    }
    elf(count * FUNCTION_BYTES, &frames.finish())
}

/// Returns the distance of the frame address from `rsp` in the middle of a function of [`many_functions`].
pub fn frame_bytes(function: u64) -> u64 {
    32 + 8 * (function % 4_000)
}
