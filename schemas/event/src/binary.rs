//! Binaries: what a code address belongs to after the process is gone.

use std::fmt;

/// What kind of identity a binary has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum BinaryKind {
    /// The GNU build id of an ELF file (`.note.gnu.build-id`, note type 3, name "GNU").
    Gnu = 1,
    /// The Go build id (note type 4, name "Go"), where no GNU build id exists; its text as bytes.
    Go = 2,
    /// No build id: SHA-256 over the first 4 KiB, the last 4 KiB and the length as 8 bytes big endian, its first
    /// 16 bytes (the "htlhash" of the OpenTelemetry eBPF profiler).
    FileHash = 3,
    /// The running kernel (vmlinux), by its GNU build id. Addresses are offsets from `_stext`.
    Kernel = 4,
    /// A kernel module, by its GNU build id. Addresses are offsets from the start of its text.
    KernelModule = 5,
    /// The vdso that the kernel maps into processes, by its GNU build id.
    Vdso = 6,
}

impl BinaryKind {
    /// Returns the kind that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Gnu,
            2 => Self::Go,
            3 => Self::FileHash,
            4 => Self::Kernel,
            5 => Self::KernelModule,
            6 => Self::Vdso,
            _ => return None,
        })
    }
}

/// A build id, or the stated hash that takes its place. At most [`BuildId::BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(Box<[u8]>);

impl BuildId {
    /// Longest id kept: GNU ids have 20 bytes (SHA-1) or 32; Go's text has 83.
    pub const BYTES_MAX: usize = 128;

    /// Returns the id made of `bytes`, or nothing where they are empty or too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=Self::BYTES_MAX)
            .contains(&bytes.len())
            .then(|| Self(bytes.into()))
    }

    /// Returns the id's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    /// Writes lower-case hexadecimal digits, the form that every ELF tool prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// One binary of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Binary {
    /// What kind of identity `id` is.
    pub kind: BinaryKind,
    /// The identity.
    pub id: BuildId,
    /// Path as the process saw it, without " (deleted)": an index into the batch's strings.
    pub path: u32,
}
