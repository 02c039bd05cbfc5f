//! Running the program of one function: its instructions → the state at each address.

use crate::cfi::Cie;
use crate::expression;
use crate::reader::Reader;
use crate::rule::{Cfa, RBP, RBX, RIP, Rule, Saved, Step};

/// Remembered states: compilers nest one or two deep.
const REMEMBERED_MAX: usize = 8;
/// Registers by number that a rule can name.
const REGISTERS: u64 = 16;

/// Where the frame begins, as the program has it so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Register { register: u64, offset: i64 },
    Expression(Option<Cfa>),
}

/// Where a register is saved, as the program has it so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unset,
    Undefined,
    Same,
    AtCfa(i64),
    At { register: u8, offset: i16 },
    In(u64),
    Unsupported,
}

/// All that a program computes of what this crate keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    frame: Frame,
    return_address: Place,
    rbp: Place,
    rbx: Place,
}

impl State {
    const EMPTY: Self = Self {
        frame: Frame::Expression(None),
        return_address: Place::Unset,
        rbp: Place::Unset,
        rbx: Place::Unset,
    };

    /// Returns the place of a register that is kept; nothing for the others.
    fn place(&mut self, register: u64, cie: &Cie) -> Option<&mut Place> {
        if register == cie.return_register {
            Some(&mut self.return_address)
        } else if register == u64::from(RBP) {
            Some(&mut self.rbp)
        } else if register == u64::from(RBX) {
            Some(&mut self.rbx)
        } else {
            None
        }
    }

    fn set(&mut self, register: u64, cie: &Cie, to: Place) {
        if let Some(place) = self.place(register, cie) {
            *place = to;
        }
    }

    /// Returns the rule that walkers follow.
    pub fn step(&self, cie: &Cie) -> Step {
        if cie.return_register != u64::from(RIP) {
            return Step::Unsupported;
        }
        let return_address = match self.return_address {
            Place::Undefined => return Step::Root,
            place => match saved(place) {
                Some(Saved::Same | Saved::Lost) | None => return Step::Unsupported,
                Some(saved) => saved,
            },
        };
        let cfa = match self.frame {
            Frame::Register { register, offset } if register < REGISTERS => match i32::try_from(offset) {
                Ok(offset) => Cfa::Register {
                    register: register as u8,
                    offset,
                },
                Err(_) => return Step::Unsupported,
            },
            Frame::Expression(Some(cfa)) => cfa,
            _ => return Step::Unsupported,
        };
        // A register whose place cannot be told is lost; the frame itself is found all the same.
        let (mut rbp, mut rbx) = (
            saved(self.rbp).unwrap_or(Saved::Lost),
            saved(self.rbx).unwrap_or(Saved::Lost),
        );
        // gcc, at the `ret` of a function that has aligned its frame, still says that registers are saved relative to `rbp`,
        // which has been restored by then. With nothing left on the stack, all of them have been.
        if cfa == Rule::AT_ENTRY.cfa && matches!(rbp, Saved::At { register: RBP, .. }) {
            (rbp, rbx) = (Saved::Same, Saved::Same);
        }
        Step::By(Rule {
            cfa,
            return_address,
            rbp,
            rbx,
            signal: cie.signal,
        })
    }
}

fn saved(place: Place) -> Option<Saved> {
    match place {
        // What a program does not mention is preserved, by the calling convention of x86-64.
        Place::Unset | Place::Same => Some(Saved::Same),
        Place::Undefined => Some(Saved::Lost),
        Place::AtCfa(offset) => i16::try_from(offset).ok().map(Saved::AtCfa),
        Place::At { register, offset } => Some(Saved::At { register, offset }),
        Place::In(register) => (register < REGISTERS).then_some(Saved::In(register as u8)),
        Place::Unsupported => None,
    }
}

/// Returns the state that a CIE's program leaves; nothing where it cannot be followed.
pub fn initial(program: &[u8], cie: &Cie) -> Option<State> {
    let mut machine = Machine::new(cie, State::EMPTY, 0);
    let mut reader = Reader::new(program);
    while !reader.is_empty() {
        if let Advance::To(_) = machine.instruction(&mut reader)? {
            return None; // a CIE is about no address
        }
    }
    Some(machine.state)
}

/// Calls `row` with each address at which the state becomes another one, from `start` to below `end`, ascending. `None` for
/// the state: from there on the program cannot be followed.
pub fn run(program: &[u8], cie: &Cie, (start, end): (u64, u64), mut row: impl FnMut(u64, Option<&State>)) {
    let Some(initial) = cie.initial else {
        row(start, None);
        return;
    };
    let mut machine = Machine::new(cie, initial, start);
    let mut reader = Reader::new(program);
    let mut given: Option<State> = None;
    while !reader.is_empty() {
        match machine.instruction(&mut reader) {
            Some(Advance::Stays) => {}
            Some(Advance::To(next)) => {
                if next > machine.location {
                    if given != Some(machine.state) {
                        row(machine.location, Some(&machine.state));
                        given = Some(machine.state);
                    }
                    machine.location = next;
                }
                if machine.location >= end {
                    return;
                }
            }
            None => {
                row(machine.location, None);
                return;
            }
        }
    }
    if given != Some(machine.state) {
        row(machine.location, Some(&machine.state));
    }
}

enum Advance {
    Stays,
    To(u64),
}

struct Machine<'a> {
    cie: &'a Cie,
    initial: State,
    state: State,
    remembered: [State; REMEMBERED_MAX],
    depth: usize,
    location: u64,
}

impl<'a> Machine<'a> {
    fn new(cie: &'a Cie, initial: State, location: u64) -> Self {
        Self {
            cie,
            initial,
            state: initial,
            remembered: [State::EMPTY; REMEMBERED_MAX],
            depth: 0,
            location,
        }
    }

    fn advance(&self, delta: u64) -> Option<Advance> {
        let delta = delta.checked_mul(self.cie.code_factor)?;
        Some(Advance::To(self.location.checked_add(delta)?))
    }

    fn factored(&self, offset: u64) -> Option<i64> {
        i64::try_from(offset).ok()?.checked_mul(self.cie.data_factor)
    }

    fn signed_factored(&self, offset: i64) -> Option<i64> {
        offset.checked_mul(self.cie.data_factor)
    }

    fn save(&mut self, register: u64, offset: i64) {
        self.state.set(register, self.cie, Place::AtCfa(offset));
    }

    fn restore(&mut self, register: u64) {
        let mut initial = self.initial;
        if let Some(place) = initial.place(register, self.cie) {
            let place = *place;
            self.state.set(register, self.cie, place);
        }
    }

    /// Runs one instruction. Nothing where it, or what it does, is not understood.
    fn instruction(&mut self, reader: &mut Reader<'_>) -> Option<Advance> {
        let op = reader.u8()?;
        let low = u64::from(op & 0x3f);
        match op >> 6 {
            1 => return self.advance(low),
            2 => {
                let offset = self.factored(reader.uleb()?)?;
                self.save(low, offset);
                return Some(Advance::Stays);
            }
            3 => {
                self.restore(low);
                return Some(Advance::Stays);
            }
            _ => {}
        }
        match op {
            0x00 => {}
            // Linkers and compilers use it in no section that reaches a program; its encoding is the section's.
            0x01 => return None,
            0x02 => {
                let delta = u64::from(reader.u8()?);
                return self.advance(delta);
            }
            0x03 => {
                let delta = u64::from(reader.u16()?);
                return self.advance(delta);
            }
            0x04 => {
                let delta = u64::from(reader.u32()?);
                return self.advance(delta);
            }
            0x05 => {
                let (register, offset) = (reader.uleb()?, reader.uleb()?);
                self.save(register, self.factored(offset)?);
            }
            0x06 => {
                let register = reader.uleb()?;
                self.restore(register);
            }
            0x07 => {
                let register = reader.uleb()?;
                self.state.set(register, self.cie, Place::Undefined);
            }
            0x08 => {
                let register = reader.uleb()?;
                self.state.set(register, self.cie, Place::Same);
            }
            0x09 => {
                let (register, other) = (reader.uleb()?, reader.uleb()?);
                self.state.set(register, self.cie, Place::In(other));
            }
            0x0a => {
                *self.remembered.get_mut(self.depth)? = self.state;
                self.depth += 1;
            }
            0x0b => {
                self.depth = self.depth.checked_sub(1)?;
                self.state = *self.remembered.get(self.depth)?;
            }
            0x0c => {
                let (register, offset) = (reader.uleb()?, i64::try_from(reader.uleb()?).ok()?);
                self.state.frame = Frame::Register { register, offset };
            }
            0x0d => {
                let to = reader.uleb()?;
                let Frame::Register { register, .. } = &mut self.state.frame else {
                    return None;
                };
                *register = to;
            }
            0x0e => self.set_offset(i64::try_from(reader.uleb()?).ok()?)?,
            0x0f => {
                let bytes = block(reader)?;
                self.state.frame = Frame::Expression(expression::frame_address(bytes));
            }
            0x10 => {
                let register = reader.uleb()?;
                let place = match expression::place(block(reader)?) {
                    Some((register, offset)) => Place::At { register, offset },
                    None => Place::Unsupported,
                };
                self.state.set(register, self.cie, place);
            }
            0x11 => {
                let (register, offset) = (reader.uleb()?, reader.sleb()?);
                self.save(register, self.signed_factored(offset)?);
            }
            0x12 => {
                let (register, offset) = (reader.uleb()?, reader.sleb()?);
                let offset = self.signed_factored(offset)?;
                self.state.frame = Frame::Register { register, offset };
            }
            0x13 => {
                let offset = reader.sleb()?;
                self.set_offset(self.signed_factored(offset)?)?;
            }
            0x14 | 0x15 => {
                let register = reader.uleb()?;
                if op == 0x14 {
                    reader.uleb()?;
                } else {
                    reader.sleb()?;
                }
                self.state.set(register, self.cie, Place::Unsupported);
            }
            0x16 => {
                let register = reader.uleb()?;
                block(reader)?;
                self.state.set(register, self.cie, Place::Unsupported);
            }
            0x2e => drop(reader.uleb()?), // the size of pushed arguments: for exceptions only
            0x2f => {
                let (register, offset) = (reader.uleb()?, reader.uleb()?);
                self.save(register, self.factored(offset)?.checked_neg()?);
            }
            _ => return None,
        }
        Some(Advance::Stays)
    }

    fn set_offset(&mut self, to: i64) -> Option<()> {
        let Frame::Register { offset, .. } = &mut self.state.frame else {
            return None;
        };
        *offset = to;
        Some(())
    }
}

fn block<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = usize::try_from(reader.uleb()?).ok()?;
    reader.take(length)
}
