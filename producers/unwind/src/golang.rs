//! What Go's own table of functions (`.gopclntab`) says of stacks: how far the stack pointer is from the return address, at each
//! instruction of each function.
//!
//! Go's `.debug_frame` says no more of the stack pointer, nothing of `rbp`, and is gone from a binary without debug information, as
//! most are that run; this table is what Go's runtime itself unwinds by, and cannot be left out. Written from `runtime.pcHeader`,
//! `runtime._func` and `runtime.step` of Go 1.18 to 1.26. Older tables are not read: there `.debug_frame` counts.
//!
//! Go switches stacks in a few functions written in assembly: the runtime's own work is done on a thread's stack, not on that of the
//! goroutine that asked for it. There the stack pointer leads nowhere, and the frame pointer back to the asker. Where Go
//! clears it (a goroutine is parked, and the thread looks for another) the thread's work has no caller, and the stack is whole.

use crate::rule::{Cfa, RSP, Rule, Saved, Step};

/// The first word of the table, of Go 1.18 and 1.19, and since 1.20.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Bytes of the header: the words up to the offset of the functions.
const HEADER_BYTES: usize = 72;
/// Bytes of a function's entry in the index: where its code begins, where it is described.
const ENTRY_BYTES: usize = 8;
/// Where `struct _func` says what its name is, where its stack pointer is described, and what is special.
const NAME_AT: usize = 4;
const STACK_AT: usize = 16;
const FLAGS_AT: usize = 41;
/// Nothing calls it.
const OUTERMOST: u8 = 1;
/// It writes the stack pointer by other means than pushes and calls: it switches stacks.
const SWITCHES: u8 = 2;
/// `mov sched.sp(%g), %rsp`: from here on the stack is that of the thread. The register is in the lowest bits of the third byte.
const SCHEDULED_STACK: [u8; 4] = [0x48, 0x8b, 0x60, 0x38];
/// Larger frames are no goroutine's: its stack has at most 1 GB.
const FRAME_BYTES_MAX: i32 = 1 << 30;
/// Longest name that is compared.
const NAME_BYTES_MAX: usize = 64;

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct GoTable<'d> {
    bytes: &'d [u8],
    /// Address from which the entries count.
    text: u64,
    functions: u32,
    names_at: usize,
    stacks_at: usize,
    index_at: usize,
}

impl<'d> GoTable<'d> {
    /// Reads the header; nothing where it is of another version, or damaged. `text` is where the code begins, for tables that do not
    /// say it themselves.
    pub fn open(bytes: &'d [u8], text: Option<u64>) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES)?;
        // Instructions of 1 byte and pointers of 8: x86-64.
        if !MAGICS.contains(&word(header, 0)?) || header.get(6..8)? != [1, 8] {
            return None;
        }
        let at = |offset| usize::try_from(long(header, offset)?).ok();
        let said = long(header, 24)?;
        let table = Self {
            bytes,
            text: if said == 0 { text? } else { said },
            functions: u32::try_from(long(header, 8)?).ok()?,
            names_at: at(32)?,
            stacks_at: at(56)?,
            index_at: at(64)?,
        };
        // The index ends with an entry that has only an address.
        let index = usize::try_from(table.functions).ok()?.checked_mul(ENTRY_BYTES)?;
        bytes.get(table.index_at..)?.get(..index.checked_add(4)?)?;
        Some(table)
    }

    /// Returns how many functions there are.
    pub fn functions(&self) -> u32 {
        self.functions
    }

    fn entry(&self, index: u32) -> Option<&'d [u8]> {
        let at = usize::try_from(index).ok()?.checked_mul(ENTRY_BYTES)?;
        self.bytes.get(self.index_at.checked_add(at)?..)
    }

    /// Returns where a function begins, and where the next one does.
    pub fn bounds(&self, index: u32) -> Option<(u64, u64)> {
        let address = |at| self.text.checked_add(word(self.entry(at)?, 0)?.into());
        (index < self.functions).then_some((address(index)?, address(index.checked_add(1)?)?))
    }

    /// Calls `row` with each address from which on another step holds, ascending, and returns whether the description can be read.
    /// `code` gives the code that lies between two addresses.
    pub fn rows<'c>(
        &self,
        index: u32,
        code: impl Fn(u64, u64) -> Option<&'c [u8]>,
        mut row: impl FnMut(u64, Step),
    ) -> bool {
        self.read_rows(index, &code, &mut row).is_some()
    }

    fn read_rows<'c>(
        &self,
        index: u32,
        code: &impl Fn(u64, u64) -> Option<&'c [u8]>,
        row: &mut impl FnMut(u64, Step),
    ) -> Option<()> {
        let (start, end) = self.bounds(index)?;
        let described = usize::try_from(word(self.entry(index)?, 4)?).ok()?;
        let function = self.bytes.get(self.index_at.checked_add(described)?..)?;
        let name = self.name(word(function, NAME_AT)?);
        let flags = *function.get(FLAGS_AT)?;
        if name.starts_with(b"runtime.sigreturn__sigaction") {
            // A return address is looked up one byte back.
            row(start.checked_sub(1)?, Step::By(Rule::SIGNAL_RETURN));
            return Some(());
        }
        // The kernel calls the handler; what it interrupted is beyond.
        if flags & OUTERMOST != 0 && !name.starts_with(b"runtime.sigtramp") {
            row(start, Step::Root);
            return Some(());
        }
        // It makes a goroutine's stack larger, and keeps neither frame pointer nor stack pointer of who needed it.
        if matches!(name, b"runtime.morestack" | b"runtime.morestack.abi0") {
            let code = code(start, end).unwrap_or_default();
            let switch = code.windows(4).position(|four| {
                four[..2] == SCHEDULED_STACK[..2]
                    && four[2] & 0xf8 == SCHEDULED_STACK[2]
                    && four[3] == SCHEDULED_STACK[3]
            });
            if let Some(switch) = switch {
                row(start, Step::By(Rule::AT_ENTRY));
                row(start.checked_add(switch as u64 + 4)?, Step::Unsupported);
            } else {
                row(start, Step::Unsupported);
            }
            return Some(());
        }
        let at = self
            .stacks_at
            .checked_add(usize::try_from(word(function, STACK_AT)?).ok()?)?;
        let mut rest = self.bytes.get(at..)?;
        let (mut address, mut depth, mut first, mut framed) = (start, -1_i32, true, false);
        while address < end {
            let change = varint(&mut rest)?;
            if change == 0 && !first {
                break;
            }
            first = false;
            // The lowest bit is the sign.
            let distance = (change >> 1) as i32;
            depth = depth.wrapping_add(if change & 1 == 0 { distance } else { !distance });
            let next = address.checked_add(varint(&mut rest)?.into())?;
            let switches = flags & SWITCHES != 0 && depth >= 8;
            // Behind `push %rbp`, once, the frame pointer is the caller's for the length of `mov %rsp, %rbp`.
            if !switches || !framed {
                row(address, step(depth, false));
            }
            if switches {
                let from = if framed { address } else { address.checked_add(3)? };
                if from < next {
                    row(from, step(depth, true));
                }
                framed = true;
            }
            address = next;
        }
        Some(())
    }

    fn name(&self, at: u32) -> &'d [u8] {
        let from = usize::try_from(at)
            .ok()
            .and_then(|at| self.bytes.get(self.names_at.checked_add(at)?..))
            .unwrap_or_default();
        let from = from.get(..NAME_BYTES_MAX).unwrap_or(from);
        let end = from.iter().position(|&byte| byte == 0);
        from.get(..end.unwrap_or(from.len())).unwrap_or_default()
    }
}

/// Returns how a frame is left whose stack pointer is `depth` bytes below the return address. A function with a frame pushes the
/// frame pointer first of all.
fn step(depth: i32, switches: bool) -> Step {
    let rule = match depth {
        0 => Rule::AT_ENTRY,
        8.. if switches => Rule {
            cfa: Cfa::Switched,
            ..Rule::FRAME_POINTER
        },
        8..=FRAME_BYTES_MAX => Rule {
            cfa: Cfa::Register {
                register: RSP,
                offset: depth + 8,
            },
            rbp: Saved::AtCfa(-16),
            ..Rule::AT_ENTRY
        },
        _ => return Step::Unsupported,
    };
    Step::By(rule)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Takes a number of 7 bits a byte, lowest first.
fn varint(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..=28).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that numbers are read as `encoding/binary` writes them, and that one that does not end is none.
    #[test]
    fn numbers_have_seven_bits_a_byte() {
        let mut rest: &[u8] = &[0x05, 0xac, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(varint(&mut rest), Some(5));
        assert_eq!(varint(&mut rest), Some(300));
        assert_eq!(varint(&mut rest), None);
    }

    proptest! {
        /// Checks that any bytes behind a right beginning are read without a panic and to an end.
        #[test]
        fn any_bytes_are_read_to_an_end(mut bytes in proptest::collection::vec(any::<u8>(), 8..400), small in 0_u64..40) {
            bytes[..8].copy_from_slice(&[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8]);
            for at in [8, 32, 56, 64] {
                if bytes.len() >= at + 8 {
                    let value = small * at as u64 / 8;
                    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
            }
            if let Some(table) = GoTable::open(&bytes, Some(4096)) {
                for index in 0..table.functions() + 1 {
                    let mut rows = 0;
                    table.rows(index, |_, _| None, |_, _| rows += 1);
                    prop_assert!(rows <= 2 * bytes.len());
                }
            }
        }
    }
}
