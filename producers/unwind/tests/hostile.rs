//! Sections that nobody sane wrote, and binaries larger than any.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;

use std::time::{Duration, Instant};

use common::made::{self, CODE, FUNCTION_BYTES, Frames, elf};
use proptest::prelude::*;
use strobe_unwind::rule::{Cfa, RSP, Rule, Saved, Step};
use strobe_unwind::table::HEADER_BYTES;
use strobe_unwind::{Table, UnwindError, build};

/// Time that one of these files may take: the honest ones take a thousandth of it.
const LONG: Duration = Duration::from_secs(5);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Makes a table and asks it for addresses everywhere; returns its rows.
fn use_it(file: &[u8]) -> u32 {
    let Ok(bytes) = build(file, "hostile") else {
        return 0;
    };
    let table = Table::open(&bytes).unwrap();
    let mut before = None;
    for (address, _) in table.rows() {
        assert!(before.is_none_or(|before| before < address), "rows ascend");
        before = Some(address);
        let _ = table.step(address);
    }
    for address in [0, 1, CODE, u64::MAX, table.header().base.wrapping_sub(1)] {
        let _ = table.step(address);
    }
    table.header().rows
}

/// Checks that of 10,000 mutations of real sections none panics, takes long, or gives a table that is none.
#[test]
fn mutated_sections_are_harmless() {
    let Some(linker) = common::Sample::read("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2") else {
        println!("skipped: no glibc at its usual place");
        return;
    };
    let section = {
        use object::{Object, ObjectSection};
        let elf = object::File::parse(&*linker.bytes).unwrap();
        let (start, bytes) = elf.section_by_name(".eh_frame").unwrap().file_range().unwrap();
        start as usize..(start + bytes) as usize
    };
    let mut random = Random(0x5eed);
    let (mut made, mut different) = (0, 0);
    let honest = build(&*linker.bytes, "hostile").unwrap();
    let slowest = (0..10_000).fold(Duration::ZERO, |slowest, _| {
        let mut file = linker.bytes.clone();
        for _ in 0..1 + random.below(24) {
            let at = section.start + random.below(section.len());
            match random.below(4) {
                0 => file[at] ^= 1 << random.below(8),
                1 => file[at] = random.next() as u8,
                // Lengths, counts and pointers as large as can be.
                2 => file[at..(at + 4).min(section.end)].fill(0xff),
                _ => {
                    let from = section.start + random.below(section.len() - 64);
                    let bytes = 1 + random.below(64).min(section.end - at - 1);
                    file.copy_within(from..from + bytes, at);
                }
            }
        }
        let begin = Instant::now();
        made += u32::from(use_it(&file) > 0);
        different += u32::from(build(&*file, "hostile").ok().is_none_or(|table| table != honest));
        slowest.max(begin.elapsed())
    });
    assert!(slowest < LONG, "{slowest:?}");
    assert!(
        made > 1_000 && different > 5_000,
        "the mutations reach what is read: {made}, {different}"
    );
}

/// Checks that mutated headers, and files cut anywhere, are answers.
#[test]
fn damaged_files_are_answers() {
    let vdso = common::vdso();
    assert!(use_it(&vdso.bytes) > 10);
    for length in 0..vdso.bytes.len().min(8_192) {
        use_it(&vdso.bytes[..length]);
    }
    let mut random = Random(7);
    for _ in 0..10_000 {
        let mut file = vdso.bytes.clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(file.len());
            file[at] = random.next() as u8;
            let at = random.below(0x200);
            file[at] = random.next() as u8;
        }
        use_it(&file);
    }
}

/// Checks that work grows with the file, not with what its entries say: one program of a megabyte that 100,000 functions begin
/// with, functions that all overlap, and functions that point into the middle of an entry.
#[test]
fn work_is_bounded_by_the_files_size() {
    let begin = Instant::now();
    let mut frames = Frames::default();
    let cie = frames.cie(&vec![0; 1 << 20]);
    for n in 0..100_000 {
        frames.fde(cie, CODE + n, 1 << 30, &[0x41, 0x0e, 16]);
    }
    let rows = use_it(&elf(1 << 30, &frames.finish()));
    assert!(rows <= 200_001, "{rows}");

    let mut frames = Frames::default();
    let cie = frames.cie(&vec![0; 1 << 20]);
    for n in 0..100_000_u32 {
        frames.fde(cie + 4 * n, CODE + u64::from(n), 1, &[]);
    }
    let table = build(&*elf(1 << 30, &frames.finish()), "hostile").unwrap();
    let header = *Table::open(&table).unwrap().header();
    assert_eq!((header.functions, header.functions_refused), (1, 99_999));
    assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
}

/// Checks that a program that asks for more rows than the limit is refused before it has them all.
#[test]
fn too_many_rows_are_refused() {
    let mut frames = Frames::default();
    let cie = frames.cie(&[]);
    // Each 3 bytes make a row.
    let program = [0x41, 0x0e, 16, 0x41, 0x0e, 8].repeat(9 << 20);
    frames.fde(cie, CODE, 1 << 30, &program);
    let result = build(&*elf(1 << 30, &frames.finish()), "hostile");
    assert!(
        matches!(
            result,
            Err(UnwindError::OverLimit {
                what: "the number of rows",
                ..
            })
        ),
        "{result:?}"
    );
}

/// Checks that code spread over more than a table can cover is refused, and costs nothing.
#[test]
fn too_much_code_is_refused() {
    let mut frames = Frames::default();
    let cie = frames.cie(&[]);
    frames.fde(cie, CODE, 16, &[]);
    let result = build(&*elf(1 << 40, &frames.finish()), "hostile");
    assert!(matches!(result, Err(UnwindError::OverLimit { .. })), "{result:?}");
}

/// Checks that 2.8 million rows in one binary, as many as a server of this field had, all give the right rule, in at most 5
/// bytes each.
#[test]
fn millions_of_rows_fit() {
    let functions = 560_000;
    let file = made::many_functions(functions);
    let bytes = build(&*file, "many").unwrap();
    let table = Table::open(&bytes).unwrap();
    let header = table.header();
    assert!(header.rows > 2_700_000, "{header:?}");
    assert!(table.bytes_per_row() <= 5.0, "{}", table.bytes_per_row());
    let rsp = |offset: u64, saved| {
        Step::By(Rule {
            cfa: Cfa::Register {
                register: RSP,
                offset: offset as i32,
            },
            rbp: saved,
            ..Rule::AT_ENTRY
        })
    };
    for n in 0..functions {
        let start = CODE + n * FUNCTION_BYTES;
        let pushed = Saved::AtCfa(-16);
        for (at, expected) in [
            (0, rsp(8, Saved::Same)),
            (1, rsp(16, pushed)),
            (4, rsp(16, pushed)),
            (5, rsp(made::frame_bytes(n), pushed)),
            (36, rsp(made::frame_bytes(n), pushed)),
            (37, rsp(16, pushed)),
            (38, rsp(8, pushed)),
            (FUNCTION_BYTES - 21, rsp(8, pushed)),
            (FUNCTION_BYTES - 20, Step::Unknown),
        ] {
            assert_eq!(table.step(start + at), expected, "function {n} at {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Checks that a damaged table is refused, or says something, but never reaches outside of itself: with its checksum made
    /// right again, as somebody who wishes harm would.
    #[test]
    fn a_hostile_table_is_refused_or_answers(
        changes in prop::collection::vec((0..4_096_usize, any::<u8>()), 1..8),
        heads in prop::collection::vec((16..68_usize, any::<u8>()), 0..4),
        addresses in prop::collection::vec(any::<u32>(), 16),
    ) {
        let mut bytes = build(&*made::many_functions(64), "small").unwrap();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        for (at, value) in heads {
            bytes[at] = value;
        }
        let checksum = crc32fast::hash(&bytes[16..]).to_le_bytes();
        bytes[12..16].copy_from_slice(&checksum);
        if let Ok(table) = Table::open(&bytes) {
            for address in addresses {
                let _ = table.step(table.header().base.wrapping_add(u64::from(address) & 0xffff));
                let _ = table.step(u64::from(address));
            }
            prop_assert!(table.rows().take(1 << 20).count() < 1 << 20);
        }
        bytes.truncate(HEADER_BYTES);
        prop_assert!(Table::open(&bytes).is_err());
    }
}
