//! The symbol file: all that is known of a binary's code, ready to be searched.
//!
//! One file per build id, made once ([`convert`](crate::convert)) and never changed. An answer is a chain of (function,
//! file, line) in numbers; text is looked up by number, so that each travels once. Inlined functions are flattened and
//! names demangled when the file is made, never when it is asked.
//!
//! # Format, version 2
//!
//! Numbers are little endian. *Varint* is LEB128, *zigzag* a signed number folded into an unsigned one (0, -1, 1, -2 ...).
//!
//! | part | content |
//! |--|--|
//! | header, 512 bytes | magic, version, flags, base address, span, counts, the address of the image's first byte, widths, a directory of the sections with the CRC-32 of each, and the CRC-32 of the header itself |
//! | `pages` | for each 2^shift bytes of code, and one more: the number of the last block that starts at or before it (u32) |
//! | `blocks` | for each block: its start (u32, from the base), its place in `rows` (u32); then one more as end |
//! | `rows` | blocks of up to 16 rows. A row: varint(distance from the row before × 4 + scope changes × 2 + file changes), zigzag line difference, [zigzag scope difference], [zigzag file difference]; each block begins at its start with zeros |
//! | `scopes` | records of one width: distance to the parent's number, function, file and line of the call, each in as few bytes as the largest one needs. A parent comes before its children; distance 0 is an outermost function |
//! | `files` | text: paths |
//! | `raw` | text: functions as linkers call them |
//! | `names` | text: functions as people read them, after four varints: where the scope begins, where the last part of the name begins and ends, where the parameters begin. Empty where that is the raw name and has no parts |
//!
//! A row holds from its address to the next row's. Scope 0 is no function; scopes, files and functions count from 1. A
//! *text* section is a number of texts and of blocks (u32 each), for each block its first text, its place and its
//! unpacked length (u32 each), then the blocks: zstd, and in them each text as varint length and bytes.
//!
//! The section `names` is what this format holds beyond GSYM; it is a figure of its own in `bench_symbols`.
//!
//! # Beside other formats
//!
//! By `make bench-symbols` on its own executable (43 MB, 2,156 compilation units, 24,000 functions), per core, all in one run:
//!
//! | | this format | GSYM (`llvm-gsymutil`, asked through blazesym) | the binary itself |
//! |--|--|--|--|
//! | made in | 1.8 s, 66 MiB | 2.6 s, 207 MiB, one thread | |
//! | bytes | 2.9 MiB, and 0.4 MiB of names with their parts | 7.1 MiB, raw names | 43 MB |
//! | distinct addresses per second, 200,000 at once | 13.0 million | 127,000 | 168,000 blazesym, 58,000 `llvm-symbolizer` |
//! | ... in batches of 4,000 | 2.8 million | the same | |
//! | ... one by one in no order, each with its chain | 2.1 million | | |
//!
//! An answer of this format is numbers; the 21,000 names and paths of those 200,000 addresses are read once, in 28 ms. The others
//! write text for each address. Sentry's SymCache is not among them: it was measured elsewhere, on another binary, at about GSYM's rate.
//!
//! # Who trusts whom
//!
//! A file is written by a worker that has parsed a hostile binary, so a reader believes nothing: every number is checked
//! where it is used, parents come before children by construction, and the worst that a damaged file can do is a wrong
//! name or [`Damaged`](crate::SymbolsError::Damaged).

pub(crate) mod header;
pub(crate) mod pages;
pub(crate) mod parts;
pub(crate) mod read;
pub(crate) mod sweep;
pub(crate) mod text;
pub(crate) mod varint;
pub(crate) mod write;

pub use header::{Facts, Sizes, VERSION};
pub use pages::ReadAt;
pub use parts::Parts;
pub use read::{FunctionName, Place, SymbolFile};
pub use sweep::{Hit, Level};

/// Rows of a block: a look-up reads half of them on average.
pub(crate) const BLOCK_ROWS: usize = 16;

/// Most bytes of a block: four varints of up to 6 bytes for each row.
pub(crate) const BLOCK_BYTES_MAX: usize = BLOCK_ROWS * 4 * 6;

/// Longest name or path kept, in bytes: a few C++ names of generated code are longer, and nobody reads them to the end.
pub(crate) const TEXT_BYTES_MAX: usize = 4_096;

/// Most levels of inlined functions at one address: compilers reach some tens; more means a damaged or hostile binary.
pub(crate) const CHAIN_MAX: usize = 64;
