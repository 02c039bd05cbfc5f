//! A binary → its table: index the functions, sort them, and run each one's program straight into rows.
//!
//! What is held at one time is the sections themselves, 8 bytes a function, 4 bytes a row, and the rules.

use object::ReadRef;
use rustc_hash::FxHashMap;

use crate::cfi::{Cies, Fde, Form, Section};
use crate::elf::{self, Binary};
use crate::error::UnwindError;
use crate::golang::GoTable;
use crate::program;
use crate::rule::{Cfa, RULE_BYTES, Rule, Step};
use crate::table::{self, COVERED_BYTES_MAX, Parts, ROWS_MAX, RULES_MAX};

/// Most functions: 2 GB of code have about as many.
pub const FUNCTIONS_MAX: usize = 8 << 20;
/// Bytes of code without information that are searched for the end of a signal handler. C libraries without it are a few
/// hundred KiB, and Go's runtime stands near the beginning.
const SEARCHED_BYTES_MAX: u64 = 8 << 20;
/// Bytes searched at once.
const SEARCH_STEP: u64 = 64 << 10;
/// Functions begin at multiples of it, and what is skipped before them is padding that nothing executes.
const FUNCTION_ALIGNMENT: u64 = 16;
/// `mov $15, %rax; syscall`: the system call `rt_sigreturn`, the only code to which signal handlers return. As most
/// assemblers write it, and as the shortest form.
const SIGNAL_RETURNS: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
    &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
];
/// `endbr64`, with which each entry of a linkage table begins where indirect jumps are checked.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Makes the table of a binary; `key` names it.
///
/// # Errors
/// [`UnwindError`] says why there is none: most often [`UnwindError::NoFrameInfo`].
pub fn build<'d, R: ReadRef<'d>>(data: R, key: &str) -> Result<Vec<u8>, UnwindError> {
    let binary = elf::read(data)?;
    let (Some(first), Some(last)) = (
        binary.code.first(),
        binary.code.iter().map(|code| code.addresses.end).max(),
    ) else {
        return Err(UnwindError::Damaged {
            what: "the program headers: no code",
        });
    };
    let base = first.addresses.start & !0xffff;
    let covered = last.saturating_sub(base);
    if covered > COVERED_BYTES_MAX {
        return Err(UnwindError::OverLimit {
            what: "the size of the code",
            value: covered,
            limit: COVERED_BYTES_MAX,
        });
    }
    let sections = [
        binary.exceptions.map(|(bytes, address)| Section {
            form: Form::Exceptions,
            bytes,
            address,
        }),
        // What Go says of its functions in both places is said better by its own table.
        binary
            .go
            .is_none()
            .then_some(binary.debug.as_deref())
            .flatten()
            .map(|bytes| Section {
                form: Form::Debug,
                bytes,
                address: 0,
            }),
    ];
    let builder = Builder {
        binary: &binary,
        data,
        rows: Rows::new(base),
        searched: 0,
        end: base.saturating_add(covered),
    };
    let parts = builder.run(&sections)?;
    if parts.rules.len() == RESERVED.len() && parts.functions == 0 {
        return Err(UnwindError::NoFrameInfo);
    }
    Ok(parts.assemble(key))
}

/// The rules with fixed numbers.
const RESERVED: [Step; 4] = [
    Step::Unknown,
    Step::Unsupported,
    Step::Root,
    Step::By(Rule::FRAME_POINTER),
];
const _: () = assert!(table::UNKNOWN == 0 && table::UNSUPPORTED == 1);
const _: () = assert!(table::ROOT == 2 && table::FRAME_POINTER == 3);

/// Rows, written from low addresses to high ones.
struct Rows {
    parts: Parts,
    numbers: FxHashMap<u128, u16>,
    /// The last row's address, counted from the base; nothing where that address has no row of its own.
    last: Option<u64>,
    /// The last step asked for: neighbours are often the same.
    recent: (u128, u16),
}

impl Rows {
    fn new(base: u64) -> Self {
        let rules: Vec<[u8; RULE_BYTES]> = RESERVED.iter().map(Step::encode).collect();
        let numbers = (0..)
            .zip(&rules)
            .map(|(number, rule)| (u128::from_le_bytes(*rule), number))
            .collect();
        let parts = Parts {
            base,
            rules,
            ..Parts::default()
        };
        let mut rows = Self {
            parts,
            numbers,
            last: Some(0),
            recent: (0, table::UNKNOWN),
        };
        // Before the first function nothing is known.
        rows.coarse_until(0);
        rows.parts.rows.push(u32::from(table::UNKNOWN));
        rows
    }

    fn number(&mut self, step: &Step) -> u16 {
        let encoded = step.encode();
        let rule = u128::from_le_bytes(encoded);
        if rule == self.recent.0 {
            return self.recent.1;
        }
        let number = match self.numbers.get(&rule) {
            Some(&number) => number,
            None if self.parts.rules.len() < RULES_MAX => {
                let number = self.parts.rules.len() as u16;
                self.parts.rules.push(encoded);
                self.numbers.insert(rule, number);
                number
            }
            None => table::UNSUPPORTED,
        };
        self.recent = (rule, number);
        number
    }

    fn coarse_until(&mut self, relative: u64) {
        while self.parts.coarse.len() as u64 <= relative >> 16 {
            self.parts.coarse.push(self.parts.rows.len() as u32);
        }
    }

    /// Says what holds from an address on. Addresses never descend; of two rows at one address the later counts.
    fn push(&mut self, address: u64, step: &Step) -> Result<(), UnwindError> {
        let number = self.number(step);
        let relative = address.saturating_sub(self.parts.base);
        let rows = &mut self.parts.rows;
        if self.last == Some(relative) {
            rows.pop();
        }
        self.last = None;
        if rows.last().is_some_and(|row| *row as u16 == number) {
            return Ok(()); // what was before goes on
        }
        if rows.len() >= ROWS_MAX {
            return Err(UnwindError::OverLimit {
                what: "the number of rows",
                value: rows.len() as u64 + 1,
                limit: ROWS_MAX as u64,
            });
        }
        self.coarse_until(relative);
        if *step == Step::Unsupported {
            self.parts.rows_unsupported += 1;
        }
        self.parts
            .rows
            .push(((relative & 0xffff) as u32) << 16 | u32::from(number));
        self.last = Some(relative);
        Ok(())
    }
}

struct Builder<'b, 'd, R> {
    binary: &'b Binary<'d>,
    data: R,
    rows: Rows,
    searched: u64,
    /// Behind the last byte of code.
    end: u64,
}

impl<'d, R: ReadRef<'d>> Builder<'_, 'd, R> {
    fn run(mut self, sections: &[Option<Section<'_>>; 2]) -> Result<Parts, UnwindError> {
        let base = self.rows.parts.base;
        let mut cies = [Cies::default(), Cies::default()];
        let mut functions: Vec<u64> = Vec::new();
        let mut overflow = false;
        for (which, section) in sections.iter().enumerate() {
            let Some(section) = section else { continue };
            let refused = section.index(&mut cies[which], |offset, fde| {
                // What the linker left out stands at address 0, or in no segment.
                if !self.is_code(fde) {
                    return;
                }
                overflow |= functions.len() >= FUNCTIONS_MAX;
                if !overflow {
                    functions.push((fde.start - base) << 32 | (which as u64) << 31 | u64::from(offset));
                }
            });
            self.rows.parts.functions_refused += u32::try_from(refused).unwrap_or(u32::MAX);
        }
        if let Some(go) = &self.binary.go {
            let ours = (0..go.functions()).filter_map(|index| Some((index, go.bounds(index)?)));
            for (index, (start, end)) in ours {
                overflow |= functions.len() >= FUNCTIONS_MAX;
                if self.holds(start) && end > start && !overflow {
                    functions.push((start - base) << 32 | 1 << 31 | u64::from(index & 0x7fff_ffff));
                }
            }
        }
        if overflow {
            return Err(UnwindError::OverLimit {
                what: "the number of functions",
                value: functions.len() as u64 + 1,
                limit: FUNCTIONS_MAX as u64,
            });
        }
        // By address; of those with the same one, what exceptions are unwound by comes first, and counts.
        functions.sort_unstable();
        functions.dedup_by_key(|function| *function >> 32);
        self.rows.parts.functions = functions.len() as u32;
        let mut covered = base;
        for (at, &function) in functions.iter().enumerate() {
            let which = (function >> 31 & 1) as usize;
            let offset = (function & 0x7fff_ffff) as u32;
            let next = functions.get(at + 1).map_or(self.end, |next| base + (next >> 32));
            if let (1, Some(go)) = (which, &self.binary.go) {
                covered = self.go_function(go, offset, covered, next)?;
                continue;
            }
            let cies = &mut cies[which];
            let Some(fde) = sections[which].and_then(|section| section.fde_at(offset, cies)) else {
                continue;
            };
            let Some(cie) = cies.get(fde.cie) else { continue };
            if fde.start > covered {
                self.gap(covered, fde.start)?;
            }
            let end = fde.start.saturating_add(fde.bytes).min(next).min(self.end);
            let mut result = Ok(());
            let rows = &mut self.rows;
            program::run(fde.program, cie, (fde.start, end), |address, state| {
                // A program may not reach past its function.
                if address < end && result.is_ok() {
                    let step = state.map_or(Step::Unsupported, |state| state.step(cie));
                    result = rows.push(address, &step);
                }
            });
            result?;
            covered = end;
        }
        if covered < self.end {
            self.gap(covered, self.end)?;
        }
        Ok(self.rows.parts)
    }

    /// Writes the rows of a function in Go, and returns where it ends.
    fn go_function(
        &mut self,
        go: &GoTable<'_>,
        index: u32,
        covered: u64,
        next: u64,
    ) -> Result<u64, UnwindError> {
        let Some((start, end)) = go.bounds(index) else {
            return Ok(covered);
        };
        if start > covered {
            self.gap(covered, start)?;
        }
        let end = end.min(next).min(self.end);
        let base = self.rows.parts.base;
        // One byte before the function at most: where a signal handler returns to.
        let (mut result, mut last) = (Ok(()), start.saturating_sub(1).max(base));
        let rows = &mut self.rows;
        let (binary, data) = (self.binary, self.data);
        // No function that is asked for has more.
        let code = |from: u64, until: u64| code_at(binary, data, from, until.saturating_sub(from).min(4_096));
        let read = go.rows(index, code, |address, step| {
            if (last..end).contains(&address) && result.is_ok() {
                last = address;
                result = rows.push(address, &step);
            }
        });
        result?;
        if !read {
            self.rows.parts.functions_refused += 1;
            self.rows.push(last, &Step::Unsupported)?;
        }
        Ok(end)
    }

    fn is_code(&self, fde: &Fde<'_>) -> bool {
        fde.bytes > 0 && self.holds(fde.start)
    }

    fn holds(&self, address: u64) -> bool {
        self.binary
            .code
            .iter()
            .any(|code| code.addresses.contains(&address))
    }

    /// Says what is known of code that no function's information covers.
    fn gap(&mut self, from: u64, until: u64) -> Result<(), UnwindError> {
        if until - from < FUNCTION_ALIGNMENT && until.is_multiple_of(FUNCTION_ALIGNMENT) {
            return Ok(()); // padding: a row for it would be one of each function's five
        }
        self.rows.push(from, &Step::Unknown)?;
        let linkage = self.binary.linkage.iter();
        let linkage: Vec<_> = linkage
            .filter(|(addresses, _)| addresses.start >= from && addresses.end <= until)
            .cloned()
            .collect();
        let mut covered = from;
        for (addresses, pushes) in linkage {
            if addresses.start < covered {
                continue; // sections that overlap: a damaged file
            }
            self.signal_returns(covered, addresses.start)?;
            self.linkage(addresses.start, pushes)?;
            self.rows.push(addresses.end, &Step::Unknown)?;
            covered = addresses.end;
        }
        self.signal_returns(covered, until)
    }

    /// Writes the rows of a linkage table: its entries jump to what was found, or push a number and jump to the first entry,
    /// which pushes once more and jumps to the dynamic linker.
    fn linkage(&mut self, start: u64, pushes: bool) -> Result<(), UnwindError> {
        let rsp = |offset| {
            Step::By(Rule {
                cfa: Cfa::Register {
                    register: crate::rule::RSP,
                    offset,
                },
                ..Rule::AT_ENTRY
            })
        };
        if !pushes {
            return self.rows.push(start, &rsp(8));
        }
        self.rows.push(start, &rsp(16))?;
        self.rows.push(start + 6, &rsp(24))?;
        let checked = self.code(start + 16, 4).is_some_and(|code| code == ENDBR64);
        let threshold = if checked { 9 } else { 11 };
        let entry = Rule {
            cfa: Cfa::Plt { offset: 8, threshold },
            ..Rule::AT_ENTRY
        };
        self.rows.push(start + 16, &Step::By(entry))
    }

    /// Finds where signal handlers return to, in code that has no information.
    fn signal_returns(&mut self, from: u64, until: u64) -> Result<(), UnwindError> {
        let longest = SIGNAL_RETURNS[0].len() as u64;
        let mut at = from;
        let mut written = from;
        while at < until && self.searched < SEARCHED_BYTES_MAX {
            let length = SEARCH_STEP.min(until - at);
            self.searched += length;
            let Some(code) = self.code(at, length) else { break };
            for (offset, window) in code.windows(SIGNAL_RETURNS[1].len()).enumerate() {
                let found = SIGNAL_RETURNS
                    .iter()
                    .find(|form| window[0] == form[0] && code[offset..].starts_with(form));
                let start = at + offset as u64;
                if let Some(found) = found
                    && start > written
                {
                    // A return address is looked up one byte back.
                    self.rows.push(start - 1, &Step::By(Rule::SIGNAL_RETURN))?;
                    written = start + found.len() as u64;
                    self.rows.push(written, &Step::Unknown)?;
                }
            }
            if length < SEARCH_STEP {
                break;
            }
            at += length - longest;
        }
        Ok(())
    }

    fn code(&self, address: u64, bytes: u64) -> Option<&'d [u8]> {
        code_at(self.binary, self.data, address, bytes)
    }
}

/// Returns the code at an address.
fn code_at<'d, R: ReadRef<'d>>(binary: &Binary<'_>, data: R, address: u64, bytes: u64) -> Option<&'d [u8]> {
    let segment = binary
        .code
        .iter()
        .find(|code| code.addresses.contains(&address))?;
    let into = address - segment.addresses.start;
    let bytes = bytes.min(segment.addresses.end - address);
    let offset = segment.offset.checked_add(into)?;
    let held = data.len().ok()?.checked_sub(offset)?;
    data.read_bytes_at(offset, bytes.min(held)).ok()
}
