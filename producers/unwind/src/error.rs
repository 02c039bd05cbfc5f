//! What can go wrong with a table, and what to do about it.

use std::io;

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnwindError {
    /// Not a binary that tables can be made of.
    #[error("not a 64-bit little-endian ELF file for x86-64: stacks through it are walked by frame pointers")]
    NotElf,
    /// Its headers contradict one another or the file.
    #[error("damaged ELF file: {what}")]
    Damaged {
        /// What was being read.
        what: &'static str,
    },
    /// It holds more than this crate takes.
    #[error("{what} is {value}: more than the limit of {limit}")]
    OverLimit {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        value: u64,
        /// How much there may be.
        limit: u64,
    },
    /// It has no call frame information, neither for exceptions nor for debuggers.
    #[error(
        "no .eh_frame and no .debug_frame: build without -fno-asynchronous-unwind-tables, or keep frame pointers"
    )]
    NoFrameInfo,
    /// The bytes of a table are not what they should be.
    #[error("table is not usable: {what}")]
    BadTable {
        /// What is wrong.
        what: &'static str,
    },
    /// A name under which tables are kept may only have letters, digits, `-` and `_`.
    #[error("{key:?} cannot name a table: 1 to {limit} letters, digits, `-` and `_` can")]
    BadKey {
        /// The name.
        key: String,
        /// The longest.
        limit: usize,
    },
    /// The worker that makes tables ended early, or was stopped for taking too long.
    #[error("the worker that makes tables {how}")]
    Worker {
        /// How it ended.
        how: String,
    },
    /// A file of the kept tables.
    #[error("{doing} {path} failed")]
    File {
        /// What was to be done.
        doing: &'static str,
        /// With which file.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Starting the worker.
    #[error("starting the worker that makes tables failed")]
    Start {
        /// The system's answer.
        source: io::Error,
    },
}

impl UnwindError {
    /// Tells whether the same binary may get a table later without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Start { .. })
    }
}
