//! DWARF expressions that stand in call frame information: compilers, linkers and the C library write a handful of forms, and
//! each is one shape of a rule. There is no evaluator; what has another form is unsupported, and says so.

use crate::reader::Reader;
use crate::rule::{Cfa, RIP, RSP};

const OP_DEREF: u8 = 0x06;
const OP_CONST1U: u8 = 0x08;
const OP_CONST1S: u8 = 0x09;
const OP_AND: u8 = 0x1a;
const OP_PLUS: u8 = 0x22;
const OP_PLUS_UCONST: u8 = 0x23;
const OP_SHL: u8 = 0x24;
const OP_GE: u8 = 0x2a;
const OP_LIT0: u8 = 0x30;
const OP_LIT31: u8 = 0x4f;
const OP_BREG0: u8 = 0x70;
const OP_BREG16: u8 = 0x80;

/// Reads `DW_OP_breg<n> offset`.
fn register_plus(reader: &mut Reader<'_>) -> Option<(u8, i64)> {
    match reader.u8()? {
        op @ OP_BREG0..=OP_BREG16 => Some((op - OP_BREG0, reader.sleb()?)),
        _ => None,
    }
}

/// Returns the frame address that an expression computes: one of
/// `reg + o`, `*(reg + o)`, `*(reg + o) + a`, and that of linkage tables, `rsp + o + ((rip & 15) >= t) * 8`.
pub fn frame_address(bytes: &[u8]) -> Option<Cfa> {
    let mut reader = Reader::new(bytes);
    let (register, offset) = register_plus(&mut reader)?;
    let offset = i32::try_from(offset).ok()?;
    if register == RIP {
        return None;
    }
    let Some(op) = reader.u8() else {
        return Some(Cfa::Register { register, offset });
    };
    if op != OP_DEREF {
        let threshold = plt_threshold(op, &mut reader)?;
        return (register == RSP && reader.is_empty()).then_some(Cfa::Plt { offset, threshold });
    }
    let add = match reader.u8() {
        None => 0,
        Some(OP_PLUS_UCONST) => i8::try_from(reader.uleb()?).ok()?,
        Some(op) => {
            let constant = match op {
                OP_LIT0..=OP_LIT31 => (op - OP_LIT0) as i8,
                OP_CONST1U => i8::try_from(reader.u8()?).ok()?,
                OP_CONST1S => reader.u8()? as i8,
                _ => return None,
            };
            if reader.u8()? != OP_PLUS {
                return None;
            }
            constant
        }
    };
    reader.is_empty().then_some(Cfa::Deref {
        register,
        offset,
        add,
    })
}

/// Reads the rest of a linkage table's expression after its `rsp + o`, the first operation of which is `first`.
fn plt_threshold(first: u8, reader: &mut Reader<'_>) -> Option<u8> {
    if first != OP_BREG16 || reader.sleb()? != 0 {
        return None;
    }
    let expect = |reader: &mut Reader<'_>, op: u8| (reader.u8()? == op).then_some(());
    expect(reader, OP_LIT0 + 15)?;
    expect(reader, OP_AND)?;
    let threshold = match reader.u8()? {
        op @ OP_LIT0..=OP_LIT31 => op - OP_LIT0,
        _ => return None,
    };
    for op in [OP_GE, OP_LIT0 + 3, OP_SHL, OP_PLUS] {
        expect(reader, op)?;
    }
    Some(threshold)
}

/// Returns the place in memory that an expression computes, where it is a register plus an offset.
pub fn place(bytes: &[u8]) -> Option<(u8, i16)> {
    let mut reader = Reader::new(bytes);
    let (register, offset) = register_plus(&mut reader)?;
    let offset = i16::try_from(offset).ok()?;
    (reader.is_empty() && register != RIP).then_some((register, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the forms that GNU ld, gcc, glibc and OpenSSL write are understood.
    #[test]
    fn known_forms_are_understood() {
        let plt = [0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(
            frame_address(&plt),
            Some(Cfa::Plt {
                offset: 8,
                threshold: 11
            })
        );
        // glibc's __restore_rt: *(rsp + 160).
        let signal = [0x77, 0xa0, 0x01, 0x06];
        let deref = |register, offset, add| {
            Some(Cfa::Deref {
                register,
                offset,
                add,
            })
        };
        assert_eq!(frame_address(&signal), deref(7, 160, 0));
        // gcc's realigned frames: *(rbp - 8).
        assert_eq!(frame_address(&[0x76, 0x78, 0x06]), deref(6, -8, 0));
        // OpenSSL's assembly: *(rsp + 40) + 8.
        assert_eq!(frame_address(&[0x77, 0x28, 0x06, 0x23, 0x08]), deref(7, 40, 8));
        assert_eq!(place(&[0x77, 0xa8, 0x01]), Some((7, 168)));
    }

    /// Checks that a form with anything behind it is not taken for the form.
    #[test]
    fn longer_expressions_are_not_taken_for_known_ones() {
        assert_eq!(frame_address(&[0x77, 0xa0, 0x01, 0x06, 0x06]), None);
        assert_eq!(place(&[0x77, 0x08, 0x06]), None);
        assert_eq!(frame_address(&[]), None);
        assert_eq!(
            frame_address(&[0x80, 0x00]),
            None,
            "relative to the instruction pointer"
        );
    }
}
