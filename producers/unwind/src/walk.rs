//! A stack, walked by tables and frame pointers: the specification of the BPF program, which does the same step by step.
//!
//! Each frame is left by what is known of its address: a rule of its binary's table; or, where a binary says nothing or is not
//! known yet, by the frame pointer. The address to look up is one byte back, inside of the call, except for the innermost frame
//! and where a signal interrupted. Registers that were saved are read when somebody asks for them, so that most frames cost one
//! read of memory.

use crate::rule::{Cfa, RBP, RBX, RSP, Rule, SWITCHED_OFFSET, Saved, Step};
use crate::table::Table;

/// No address below this is ever mapped, by default `vm.mmap_min_addr`.
const ADDRESS_MIN: u64 = 4096;
/// Five-level page tables: the largest user space there is.
const ADDRESS_END: u64 = 1 << 56;
/// A frame pointer that leads nowhere: where a function is known to have lost it.
const NOWHERE: u64 = 1;
/// Where the kernel's signal frame holds each register, by its DWARF number, from the stack pointer at the handler's return.
const SIGNAL_OFFSETS: [u64; 16] = [
    144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96,
];

/// The registers that a walk begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The instruction pointer.
    pub ip: u64,
    /// `rax` to `r15`, by their DWARF numbers: `rax`, `rdx`, `rcx`, `rbx`, `rsi`, `rdi`, `rbp`, `rsp`, `r8`, …
    pub general: [u64; 16],
}

/// What is known of the code at an address.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// No code is mapped there.
    Unmapped,
    /// Code without a table: generated, of a binary that has none, or of one whose table is not there yet.
    NoTable,
    /// Code of a binary; subtracting `bias` from the address gives its ELF virtual address.
    Table {
        /// The binary's table.
        table: Table<'a>,
        /// Load address.
        bias: u64,
    },
}

/// A process, as a walk sees it.
pub trait Process {
    /// Reads a word of its memory.
    fn read(&self, address: u64) -> Option<u64>;
    /// Finds what its code is.
    fn place(&self, address: u64) -> Place<'_>;
}

/// How a walk ended. Only [`End::Root`] is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The outermost frame.
    Root,
    /// As many frames as may be, and more were there.
    Depth,
    /// Memory that was to be read is not resident or not mapped.
    Unreadable,
    /// A frame pointer is misaligned or does not ascend.
    BadFramePointer,
    /// What stands where a return address should be is none.
    BadReturnAddress,
    /// The frame's address lies in no code that is mapped, and its frame pointer does not lead to any.
    Unmapped,
    /// The binary describes the frame in a way that no rule expresses, or by a register that is not known here.
    Unsupported,
}

/// A frame of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The instruction, or the return address.
    pub address: u64,
    /// Whether it is the very instruction that was interrupted, and no return address.
    pub exact: bool,
    /// The stack pointer in the frame.
    pub sp: u64,
    /// Whether it was found by a frame pointer that no table vouches for.
    pub guessed: bool,
}

/// A register's value, or the address at which it was saved.
#[derive(Clone, Copy, Debug)]
enum Value {
    Known(u64),
    SavedAt(u64),
}

/// Where the registers are that calls do not preserve.
#[derive(Clone, Copy, Debug)]
enum Others {
    Here,
    InSignalFrame(u64),
    Lost,
}

struct Walk<'a, P> {
    process: &'a P,
    first: &'a Registers,
    ip: u64,
    exact: bool,
    guessed: bool,
    sp: u64,
    rbp: Value,
    rbx: Option<Value>,
    others: Others,
}

/// Calls `frame` with each frame of a stack, innermost first, at most `frames_max`, and returns how it ended.
pub fn walk<P: Process>(
    process: &P,
    registers: &Registers,
    frames_max: usize,
    mut frame: impl FnMut(Frame),
) -> End {
    let mut walk = Walk {
        process,
        first: registers,
        ip: registers.ip,
        exact: true,
        guessed: false,
        sp: registers.general[usize::from(RSP)],
        rbp: Value::Known(registers.general[usize::from(RBP)]),
        rbx: Some(Value::Known(registers.general[usize::from(RBX)])),
        others: Others::Here,
    };
    for _ in 0..frames_max {
        frame(Frame {
            address: walk.ip,
            exact: walk.exact,
            sp: walk.sp,
            guessed: walk.guessed,
        });
        if let Err(end) = walk.step() {
            return end;
        }
    }
    End::Depth
}

fn is_code_address(address: u64) -> bool {
    (ADDRESS_MIN..ADDRESS_END).contains(&address)
}

impl<P: Process> Walk<'_, P> {
    /// Goes to the caller, or says why there is none.
    fn step(&mut self) -> Result<(), End> {
        let address = if self.exact {
            self.ip
        } else {
            self.ip.wrapping_sub(1)
        };
        match self.process.place(address) {
            Place::Unmapped => self.out_of_the_unmapped(),
            Place::NoTable => self.by_frame_pointer(),
            Place::Table { table, bias } => match table.step(address.wrapping_sub(bias)) {
                Step::Unknown => self.by_frame_pointer(),
                Step::Unsupported => Err(End::Unsupported),
                Step::Root => Err(End::Root),
                Step::By(rule) => self.by_rule(&rule),
            },
        }
    }

    fn read(&self, address: u64) -> Result<u64, End> {
        self.process.read(address).ok_or(End::Unreadable)
    }

    fn value(&self, value: Value) -> Result<u64, End> {
        match value {
            Value::Known(value) => Ok(value),
            Value::SavedAt(address) => self.read(address),
        }
    }

    fn register(&self, number: u8) -> Result<u64, End> {
        match (number, self.others) {
            (RSP, _) => Ok(self.sp),
            (RBP, _) => self.value(self.rbp),
            (RBX, _) => self.value(self.rbx.ok_or(End::Unsupported)?),
            (_, Others::Here) => Ok(self.first.general[usize::from(number & 15)]),
            (_, Others::InSignalFrame(at)) => {
                self.read(at.wrapping_add(SIGNAL_OFFSETS[usize::from(number & 15)]))
            }
            (_, Others::Lost) => Err(End::Unsupported),
        }
    }

    /// Returns where the caller's value of a register is; nothing where it is lost.
    fn saved(&self, saved: Saved, own: Option<Value>, cfa: u64) -> Result<Option<Value>, End> {
        Ok(match saved {
            Saved::Same => own,
            Saved::Lost => None,
            Saved::AtCfa(offset) => Some(Value::SavedAt(cfa.wrapping_add_signed(offset.into()))),
            Saved::At { register, offset } => {
                let base = self.register(register)?;
                Some(Value::SavedAt(base.wrapping_add_signed(offset.into())))
            }
            Saved::In(register) => Some(Value::Known(self.register(register)?)),
        })
    }

    fn by_rule(&mut self, rule: &Rule) -> Result<(), End> {
        let cfa = match rule.cfa {
            Cfa::Register { register, offset } => self.register(register)?.wrapping_add_signed(offset.into()),
            Cfa::Deref {
                register,
                offset,
                add,
            } => {
                let place = self.register(register)?.wrapping_add_signed(offset.into());
                self.read(place)?.wrapping_add_signed(add.into())
            }
            Cfa::Plt { offset, threshold } => {
                let pushed = self.ip & 15 >= u64::from(threshold);
                self.sp
                    .wrapping_add_signed(offset.into())
                    .wrapping_add(if pushed { 8 } else { 0 })
            }
            Cfa::Switched => match self.register(RBP)? {
                // Go cleared it: nobody waits for what this stack does.
                0 => return Err(End::Root),
                rbp => rbp.wrapping_add_signed(SWITCHED_OFFSET.into()),
            },
        };
        // The stack grows down, so each caller's frame lies above, except where a signal came in on a stack of its own, and where
        // code has switched stacks itself.
        if cfa <= self.sp && !matches!(rule.cfa, Cfa::Deref { .. } | Cfa::Switched) {
            return Err(End::BadFramePointer);
        }
        let return_address = match self.saved(rule.return_address, None, cfa)? {
            Some(value) => self.value(value)?,
            None => return Err(End::Unsupported),
        };
        let rbp = self.saved(rule.rbp, Some(self.rbp), cfa)?;
        let rbx = self.saved(rule.rbx, self.rbx, cfa)?;
        self.others = if rule.cfa == Rule::SIGNAL_RETURN.cfa {
            Others::InSignalFrame(self.sp)
        } else {
            Others::Lost
        };
        self.rbp = rbp.unwrap_or(Value::Known(NOWHERE));
        self.rbx = rbx;
        self.go_to(return_address, cfa)?;
        self.exact = rule.signal;
        self.guessed = false;
        Ok(())
    }

    fn by_frame_pointer(&mut self) -> Result<(), End> {
        let fp = self.value(self.rbp)?;
        if fp == 0 {
            return Err(End::Root);
        }
        if fp < self.sp || !fp.is_multiple_of(8) {
            return Err(End::BadFramePointer);
        }
        let saved = self.read(fp)?;
        let return_address = self.read(fp.wrapping_add(8))?;
        self.rbp = Value::Known(saved);
        self.rbx = None;
        self.others = Others::Lost;
        self.go_to(return_address, fp.wrapping_add(16))?;
        self.exact = false;
        self.guessed = true;
        Ok(())
    }

    /// Leaves code that is not known to be mapped: a library that was loaded a moment ago, or no code at all. The frame pointer is
    /// believed only if it leads to code.
    fn out_of_the_unmapped(&mut self) -> Result<(), End> {
        self.by_frame_pointer().map_err(|_| End::Unmapped)?;
        match self.process.place(self.ip.wrapping_sub(1)) {
            Place::Unmapped => Err(End::Unmapped),
            _ => Ok(()),
        }
    }

    fn go_to(&mut self, return_address: u64, sp: u64) -> Result<(), End> {
        if return_address == 0 {
            return Err(End::Root);
        }
        if !is_code_address(return_address) {
            return Err(End::BadReturnAddress);
        }
        self.ip = return_address;
        self.sp = sp;
        Ok(())
    }
}
