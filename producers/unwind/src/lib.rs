//! Stacks from binaries without frame pointers: call frame information → a compact table per binary → the caller's frame.
//!
//! # The whole way
//!
//! 1. **Table** (here): the `.eh_frame` or `.debug_frame` of a binary says, for each instruction, where the caller's frame and
//!    its registers are, as programs for a small machine. [`build()`] runs them once and writes down where the answer changes: 4
//!    bytes a row, an address and the number of one of the few distinct answers ([`rule`], [`table`]). A worker process
//!    with limits does it ([`worker`]), and the result is kept on disk by build id ([`kept`]).
//! 2. **Kernel** (`bpf/progs/table_walk.h`): the same bytes lie in memory that BPF programs can read; each process that is
//!    sampled has a sorted list of its mappings with their tables beside them.
//! 3. **Walk** ([`mod@walk`]): from the interrupted registers outward, frame by frame: which mapping, which row, which rule. This crate's
//!    walker is the specification of the one in BPF, and what tests compare with other unwinders.
//!
//! # Invariants
//!
//! * A row says what the binary's own information says, neither more nor less; tests hold it against another reader's
//!   evaluation at each row of real binaries. Of code in Go that is Go's own table of functions (`golang.rs`). Two things are added, both where a binary is silent: the entries of linkage
//!   tables, and the two instructions to which signal handlers return. One is corrected: what gcc says of the `ret` of functions
//!   that align their frames. Up to 15 bytes of padding between two functions, which nobody executes, have the rule of the
//!   function before.
//! * What no rule can express is [`rule::Step::Unsupported`], where a walk ends and says so; what a binary is silent about is
//!   [`rule::Step::Unknown`], where the frame pointer leads on, if there is one.
//! * A binary is hostile input: work and memory are bounded by its size, and that by a limit. No count that it claims is
//!   believed; an entry is only read where the sequence of entries has one.
//! * A table is hostile, too: whoever reads it checks each index. A wrong one gives wrong frames, never more than a
//!   walk's limit, and nothing else.
//! * x86-64 only. Elsewhere there is no table ([`UnwindError::NotElf`]), and stacks are walked by frame pointers.

mod builder;
mod cfi;
mod elf;
mod error;
mod expression;
mod golang;
pub mod kept;
mod program;
mod reader;
pub mod rule;
pub mod table;
pub mod walk;
pub mod worker;

pub use builder::{FUNCTIONS_MAX, build};
pub use error::UnwindError;
pub use kept::Kept;
pub use table::Table;
pub use worker::{Maker, worker_main};
