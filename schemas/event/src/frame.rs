//! Frames: code addresses lifted out of their process.

/// Why a frame stayed an address, or has no name. Zero on the wire means "no reason: it is known".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// The process was gone before its mappings or its file could be read.
    ProcessGone = 1,
    /// The address lies in no mapping that the process had at that time.
    NoMapping = 2,
    /// The address lies in memory that no file backs (generated code) and no map names it.
    Anonymous = 3,
    /// The mapped file could be neither read nor identified.
    Unreadable = 4,
    /// No such build id in the symbol store (yet).
    MissingBinary = 5,
    /// The binary has neither symbol table nor debug information.
    MissingSymbols = 6,
    /// The binary has symbols, but none covers the address.
    NoSymbolAtAddress = 7,
    /// The binary ended the symbolizer twice and is not tried again.
    BinaryRefused = 8,
    /// The binary is over the symbolizer's limits on size, memory or time.
    OverLimit = 9,
    /// The file is damaged: it is no ELF file that can be read.
    Damaged = 10,
    /// A kernel address that kallsyms does not name, or kallsyms is hidden from the agent.
    KernelHidden = 11,
}

impl Reason {
    /// Every reason, in the order of the codes.
    pub const ALL: [Self; 11] = [
        Self::ProcessGone,
        Self::NoMapping,
        Self::Anonymous,
        Self::Unreadable,
        Self::MissingBinary,
        Self::MissingSymbols,
        Self::NoSymbolAtAddress,
        Self::BinaryRefused,
        Self::OverLimit,
        Self::Damaged,
        Self::KernelHidden,
    ];

    /// Returns the reason that `code` stands for; nothing for 0 and for codes that are not known.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the reason's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ProcessGone => "process_gone",
            Self::NoMapping => "no_mapping",
            Self::Anonymous => "anonymous",
            Self::Unreadable => "unreadable",
            Self::MissingBinary => "missing_binary",
            Self::MissingSymbols => "missing_symbols",
            Self::NoSymbolAtAddress => "no_symbol_at_address",
            Self::BinaryRefused => "binary_refused",
            Self::OverLimit => "over_limit",
            Self::Damaged => "damaged",
            Self::KernelHidden => "kernel_hidden",
        }
    }

    /// Returns what a person reads in place of the function's name: why it is missing, in a few words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ProcessGone => "[process gone before it could be read]",
            Self::NoMapping => "[address outside of every mapping]",
            Self::Anonymous => "[generated code without a map]",
            Self::Unreadable => "[file could not be read]",
            Self::MissingBinary => "[binary not in the symbol store]",
            Self::MissingSymbols => "[binary has no symbols]",
            Self::NoSymbolAtAddress => "[no symbol at this address]",
            Self::BinaryRefused => "[binary ended the symbolizer twice]",
            Self::OverLimit => "[binary over the symbolizer's limits]",
            Self::Damaged => "[damaged binary]",
            Self::KernelHidden => "[kernel symbol hidden]",
        }
    }
}

/// The frames of a batch, as columns of equal length.
///
/// A frame is one of: an address in a binary (`binary` > 0); a frame that has only a name (`binary` 0, `name` > 0:
/// generated code named by a perf map, a BPF program named by kallsyms); or unknown (`reason` > 0, `binary` 0 and
/// `name` 0). The frames of unknown addresses keep no address: it means nothing once the process is gone, and
/// would make every stack of every process distinct.
///
/// An address that was a return address already points one byte back, inside its call; so a frame can be looked up
/// without knowing where in a stack it stood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frames {
    /// Index into the batch's binaries plus one; 0 for none.
    pub binary: Vec<u32>,
    /// ELF virtual address by the mapped file's program headers (kernel: see [`crate::BinaryKind`]); 0 without a binary.
    pub address: Vec<u64>,
    /// The name given by the host (kallsyms, perf map): index into the strings; 0 for none.
    pub name: Vec<u32>,
    /// Code of a [`Reason`]; 0 for none.
    pub reason: Vec<u8>,
}

impl Frames {
    /// Returns how many frames there are.
    pub fn len(&self) -> usize {
        self.binary.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.binary.is_empty()
    }
}
