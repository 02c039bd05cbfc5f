//! How one frame is left: where the caller's frame is, and where its registers were saved.
//!
//! A rule takes 16 bytes and is shared: a binary with millions of rows has some thousands of distinct rules. Walkers keep four
//! registers: the instruction pointer, the stack pointer, `rbp`, which code without frame pointers uses for anything and
//! code with them must hand on, and `rbx`, on which the dynamic linker's trampoline stands. Every other register is known only
//! where the walk began, or where a signal interrupted.

/// `rbx` by its DWARF number.
pub const RBX: u8 = 3;
/// `rbp` by its DWARF number.
pub const RBP: u8 = 6;
/// `rsp` by its DWARF number.
pub const RSP: u8 = 7;
/// The return address column.
pub const RIP: u8 = 16;

/// Bytes of an encoded rule.
pub const RULE_BYTES: usize = 16;

/// Where the caller's frame begins: the canonical frame address, which is the caller's stack pointer as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// A register plus an offset.
    Register {
        /// Its DWARF number.
        register: u8,
        /// What is added.
        offset: i32,
    },
    /// A word in memory, at a register plus an offset; something is added to it.
    Deref {
        /// The DWARF number of the register.
        register: u8,
        /// What is added to it to find the word.
        offset: i32,
        /// What is added to the word.
        add: i8,
    },
    /// In an entry of a procedure linkage table: `rsp` plus `offset`, and 8 more from byte `threshold` of its 16 on, where
    /// the entry has pushed its number.
    Plt {
        /// Before the push.
        offset: i32,
        /// First byte after it.
        threshold: u8,
    },
    /// `rbp` plus 16, on another stack than this frame: Go's runtime switches between a thread's and a goroutine's.
    Switched,
}

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// Still in the register.
    Same,
    /// Nowhere.
    Lost,
    /// In memory, at the frame address plus an offset.
    AtCfa(i16),
    /// In memory, at a register plus an offset.
    At {
        /// Its DWARF number.
        register: u8,
        /// What is added.
        offset: i16,
    },
    /// In another register.
    In(u8),
}

/// How to go from a frame to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The caller's frame.
    pub cfa: Cfa,
    /// The return address.
    pub return_address: Saved,
    /// `rbp`.
    pub rbp: Saved,
    /// `rbx`.
    pub rbx: Saved,
    /// A signal was delivered here: the return address is the very instruction that was interrupted, and every register is in
    /// the signal's frame.
    pub signal: bool,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The binary says nothing of it. If it has a frame pointer, that leads on.
    Unknown,
    /// The binary says something that no rule here can express.
    Unsupported,
    /// The outermost frame.
    Root,
    /// A rule.
    By(Rule),
}

impl Rule {
    /// The rule of a function that keeps a frame pointer, anywhere but in its first and last instructions.
    pub const FRAME_POINTER: Self = Self {
        cfa: Cfa::Register {
            register: RBP,
            offset: 16,
        },
        return_address: Saved::AtCfa(-8),
        rbp: Saved::AtCfa(-16),
        rbx: Saved::Same,
        signal: false,
    };

    /// The rule of a function at its first instruction, and after its last `pop`.
    pub const AT_ENTRY: Self = Self {
        cfa: Cfa::Register {
            register: RSP,
            offset: 8,
        },
        return_address: Saved::AtCfa(-8),
        rbp: Saved::Same,
        rbx: Saved::Same,
        signal: false,
    };

    /// The rule of the instructions to which a signal handler returns: `struct ucontext` lies at the stack pointer.
    pub const SIGNAL_RETURN: Self = Self {
        cfa: Cfa::Deref {
            register: RSP,
            offset: 160,
            add: 0,
        },
        return_address: Saved::At {
            register: RSP,
            offset: 168,
        },
        rbp: Saved::At {
            register: RSP,
            offset: 120,
        },
        rbx: Saved::At {
            register: RSP,
            offset: 128,
        },
        signal: true,
    };
}

/// Kinds in the first byte of an encoded rule; the low half is a register.
mod cfa {
    pub const UNKNOWN: u8 = 0;
    pub const UNSUPPORTED: u8 = 1;
    pub const ROOT: u8 = 2;
    pub const REGISTER: u8 = 3;
    pub const DEREF: u8 = 4;
    pub const PLT: u8 = 5;
    // 6 and 7 are the kernel's: no table yet, and code that a JVM describes.
    pub const SWITCHED: u8 = 8;
}

/// Kinds in the bytes of saved registers; the low half is a register.
mod saved {
    pub const SAME: u8 = 0;
    pub const LOST: u8 = 1;
    pub const AT_CFA: u8 = 2;
    pub const AT: u8 = 3;
    pub const IN: u8 = 4;
}

const SIGNAL: u8 = 1;
/// What [`Cfa::Switched`] adds to `rbp`: the saved one, and the return address.
pub const SWITCHED_OFFSET: i32 = 16;

impl Step {
    /// Returns the 16 bytes that tables hold: kinds and registers of the frame address, the return address, `rbp` and `rbx`;
    /// the frame address's offset; the other three offsets; what is added or the threshold; flags.
    pub fn encode(&self) -> [u8; RULE_BYTES] {
        let mut bytes = [0; RULE_BYTES];
        let rule = match self {
            Self::Unknown => return bytes,
            Self::Unsupported => {
                bytes[0] = cfa::UNSUPPORTED << 4;
                return bytes;
            }
            Self::Root => {
                bytes[0] = cfa::ROOT << 4;
                return bytes;
            }
            Self::By(rule) => rule,
        };
        let (kind, offset, extra) = match rule.cfa {
            Cfa::Register { register, offset } => (cfa::REGISTER << 4 | register & 15, offset, 0),
            Cfa::Deref {
                register,
                offset,
                add,
            } => (cfa::DEREF << 4 | register & 15, offset, add as u8),
            Cfa::Plt { offset, threshold } => (cfa::PLT << 4 | RSP, offset, threshold),
            Cfa::Switched => (cfa::SWITCHED << 4 | RBP, SWITCHED_OFFSET, 0),
        };
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&offset.to_le_bytes());
        bytes[14] = extra;
        for (at, saved) in [rule.return_address, rule.rbp, rule.rbx].into_iter().enumerate() {
            let (kind, offset) = match saved {
                Saved::Same => (saved::SAME << 4, 0),
                Saved::Lost => (saved::LOST << 4, 0),
                Saved::AtCfa(offset) => (saved::AT_CFA << 4, offset),
                Saved::At { register, offset } => (saved::AT << 4 | register & 15, offset),
                Saved::In(register) => (saved::IN << 4 | register & 15, 0),
            };
            bytes[1 + at] = kind;
            bytes[8 + 2 * at..10 + 2 * at].copy_from_slice(&offset.to_le_bytes());
        }
        bytes[15] = if rule.signal { SIGNAL } else { 0 };
        bytes
    }

    /// Returns what the 16 bytes say; nothing where they are none of ours.
    pub fn decode(bytes: &[u8; RULE_BYTES]) -> Option<Self> {
        let register = bytes[0] & 15;
        let offset = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let cfa = match bytes[0] >> 4 {
            cfa::UNKNOWN => return Some(Self::Unknown),
            cfa::UNSUPPORTED => return Some(Self::Unsupported),
            cfa::ROOT => return Some(Self::Root),
            cfa::REGISTER => Cfa::Register { register, offset },
            cfa::DEREF => Cfa::Deref {
                register,
                offset,
                add: bytes[14] as i8,
            },
            cfa::PLT => Cfa::Plt {
                offset,
                threshold: bytes[14],
            },
            cfa::SWITCHED => Cfa::Switched,
            _ => return None,
        };
        let saved = |at: usize| {
            let offset = i16::from_le_bytes([bytes[8 + 2 * at], bytes[9 + 2 * at]]);
            let register = bytes[1 + at] & 15;
            Some(match bytes[1 + at] >> 4 {
                saved::SAME => Saved::Same,
                saved::LOST => Saved::Lost,
                saved::AT_CFA => Saved::AtCfa(offset),
                saved::AT => Saved::At { register, offset },
                saved::IN => Saved::In(register),
                _ => return None,
            })
        };
        Some(Self::By(Rule {
            cfa,
            return_address: saved(0)?,
            rbp: saved(1)?,
            rbx: saved(2)?,
            signal: bytes[15] & SIGNAL != 0,
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn saved() -> impl Strategy<Value = Saved> {
        prop_oneof![
            Just(Saved::Same),
            Just(Saved::Lost),
            any::<i16>().prop_map(Saved::AtCfa),
            (0..16_u8, any::<i16>()).prop_map(|(register, offset)| Saved::At { register, offset }),
            (0..16_u8).prop_map(Saved::In),
        ]
    }

    fn cfa() -> impl Strategy<Value = Cfa> {
        prop_oneof![
            (0..16_u8, any::<i32>()).prop_map(|(register, offset)| Cfa::Register { register, offset }),
            (0..16_u8, any::<i32>(), any::<i8>()).prop_map(|(register, offset, add)| Cfa::Deref {
                register,
                offset,
                add
            }),
            (any::<i32>(), any::<u8>()).prop_map(|(offset, threshold)| Cfa::Plt { offset, threshold }),
            Just(Cfa::Switched),
        ]
    }

    proptest! {
        /// Checks that every rule comes back from its bytes.
        #[test]
        fn a_rule_comes_back_from_its_bytes(
            cfa in cfa(), return_address in saved(), rbp in saved(), rbx in saved(), signal: bool,
        ) {
            let step = Step::By(Rule { cfa, return_address, rbp, rbx, signal });
            prop_assert_eq!(Step::decode(&step.encode()), Some(step));
        }

        /// Checks that any 16 bytes are a rule or none, and that a rule read from them is written as one that reads the same.
        #[test]
        fn any_bytes_are_a_rule_or_none(bytes: [u8; RULE_BYTES]) {
            if let Some(step) = Step::decode(&bytes) {
                prop_assert_eq!(Step::decode(&step.encode()), Some(step));
            }
        }
    }

    /// Checks that the three answers that are no rules come back as well.
    #[test]
    fn what_is_no_rule_comes_back() {
        for step in [Step::Unknown, Step::Unsupported, Step::Root] {
            assert_eq!(Step::decode(&step.encode()), Some(step));
        }
    }
}
