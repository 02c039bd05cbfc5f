//! Tables against gimli's evaluation of the same sections, at every row of real binaries.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;

use common::{Caller, Sample, World, by_step, each_row_of};
use strobe_unwind::Table;
use strobe_unwind::rule::{Cfa, Step};

/// What a comparison saw.
#[derive(Debug, Default)]
struct Compared {
    addresses: u64,
    unsupported: u64,
}

/// Holds a table against gimli at the first, the middle and the last byte of each of gimli's rows.
fn compare(sample: &Sample) -> Compared {
    let bytes = strobe_unwind::build(&*sample.bytes, "sample").unwrap();
    let table = Table::open(&bytes).unwrap();
    let mut compared = Compared::default();
    each_row_of(sample, |start, end, expected| {
        if start < table.header().base || start == 0 {
            return; // the linker has left the function out
        }
        for address in [start, start + (end - start) / 2, end - 1] {
            let world = World { ip: address };
            let got = by_step(table.step(address), &world);
            compared.addresses += 1;
            if got == Some(Caller::Unsupported) {
                compared.unsupported += 1;
                continue;
            }
            assert_eq!(got, Some(expected(&world)), "{} at {address:x}", sample.name);
        }
    });
    assert_eq!(table.header().functions_refused, 0, "{}", sample.name);
    compared
}

/// Checks that for the system's libraries and programs each row says what gimli says, and next to none is unsupported.
#[test]
fn the_systems_binaries_say_what_gimli_says() {
    let samples = common::of_the_system();
    assert!(!samples.is_empty());
    for sample in samples {
        let compared = compare(&sample);
        assert!(compared.addresses > 1_000, "{}: {compared:?}", sample.name);
        // A hundredth of a percent: hand-written code with frames of its own kind.
        assert!(
            compared.unsupported * 10_000 <= compared.addresses,
            "{}: {compared:?}",
            sample.name
        );
    }
}

/// Checks that what compilers make of the samples, at every level, with and without frame pointers, says what gimli says.
#[test]
fn what_compilers_make_says_what_gimli_says() {
    let folder = tempfile::tempdir().unwrap();
    for sample in common::of_compilers(folder.path()) {
        let compared = compare(&sample);
        assert!(
            compared.addresses > 50 && compared.unsupported == 0,
            "{}: {compared:?}",
            sample.name
        );
    }
}

/// Checks that this very program, in Rust, says what gimli says.
#[test]
fn this_program_says_what_gimli_says() {
    let compared = compare(&Sample::read(std::env::current_exe().unwrap()).unwrap());
    assert!(
        compared.addresses > 10_000 && compared.unsupported == 0,
        "{compared:?}"
    );
}

/// Checks that Go's own table of functions says of every return address what gimli reads in its `.debug_frame`, but for the few
/// functions that switch stacks or begin them, of which `.debug_frame` knows nothing.
#[test]
fn go_says_what_gimli_says() {
    let folder = tempfile::tempdir().unwrap();
    let Some(sample) = common::of_go(folder.path()) else {
        return;
    };
    let bytes = strobe_unwind::build(&*sample.bytes, "go").unwrap();
    let table = Table::open(&bytes).unwrap();
    let (mut alike, mut special) = (0_u64, 0_u64);
    each_row_of(&sample, |start, end, expected| {
        for address in [start, start + (end - start) / 2, end - 1] {
            let world = World { ip: address };
            let step = table.step(address);
            match (step, by_step(step, &world), expected(&world)) {
                (
                    Step::By(rule),
                    Some(Caller::At {
                        cfa, return_address, ..
                    }),
                    Caller::At {
                        cfa: of_cfa,
                        return_address: of_return,
                        ..
                    },
                ) if rule.cfa != Cfa::Switched && !rule.signal => {
                    assert_eq!((cfa, return_address), (of_cfa, of_return), "at {address:x}");
                    alike += 1;
                }
                (Step::Root, ..) | (_, _, Caller::Root) | (Step::By(_) | Step::Unsupported, ..) => {
                    special += 1
                }
                other => panic!("{other:?} at {address:x}"),
            }
        }
    });
    println!("{alike} addresses alike, {special} special");
    assert!(alike > 10_000 && special * 100 < alike, "{alike} and {special}");
}

/// Checks that a Go program without debug information and symbols, as most are that run, has the very same rows: a table
/// that cannot be taken out says it all.
#[test]
fn stripped_go_has_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let Some(sample) = common::of_go(folder.path()) else {
        return;
    };
    let (program, stripped) = (folder.path().join("go"), folder.path().join("stripped"));
    let strip = std::process::Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(&program)
        .status();
    if !strip.is_ok_and(|status| status.success()) {
        println!("skipped: no strip: install the Debian package `binutils`");
        return;
    }
    let stripped = Sample::read(&stripped).unwrap();
    assert!(stripped.bytes.len() < sample.bytes.len());
    let build = |sample: &Sample| strobe_unwind::build(&*sample.bytes, "go").unwrap();
    let (with, without) = (build(&sample), build(&stripped));
    let (with, without) = (Table::open(&with).unwrap(), Table::open(&without).unwrap());
    assert!(with.header().rows > 5_000, "{:?}", with.header());
    assert!(with.rows().eq(without.rows()));
    let switched = with
        .rows()
        .filter(|(_, step)| matches!(step, Step::By(rule) if rule.cfa == Cfa::Switched));
    assert!(switched.count() > 1, "systemstack and asmcgocall");
}

/// Checks that the vdso, which no file holds, says what gimli says.
#[test]
fn the_vdso_says_what_gimli_says() {
    let compared = compare(&common::vdso());
    assert!(compared.addresses > 10, "{compared:?}");
}

/// Checks that the C library's return from signals is marked as such, and that its outermost frames are roots.
#[test]
fn signals_and_roots_are_told_apart() {
    let Some(libc) = Sample::read("/usr/lib/x86_64-linux-gnu/libc.so.6") else {
        println!("skipped: no glibc at its usual place");
        return;
    };
    let bytes = strobe_unwind::build(&*libc.bytes, "libc").unwrap();
    let table = Table::open(&bytes).unwrap();
    let signals = table
        .rows()
        .filter(|(_, step)| matches!(step, Step::By(rule) if rule.signal))
        .count();
    let roots = table.rows().filter(|(_, step)| *step == Step::Root).count();
    assert_eq!(signals, 1, "__restore_rt");
    assert!(roots >= 2, "clone and clone3: {roots}");
}

/// Checks that a library whose section headers are gone gives the same rows: the program headers lead to what is needed.
#[test]
fn section_headers_are_not_needed() {
    let Some(libc) = Sample::read("/usr/lib/x86_64-linux-gnu/libc.so.6") else {
        println!("skipped: no glibc at its usual place");
        return;
    };
    let with = strobe_unwind::build(&*libc.bytes, "libc").unwrap();
    let mut stripped = libc.bytes;
    // e_shoff, e_shnum and e_shstrndx.
    stripped[0x28..0x30].fill(0);
    stripped[0x3c..0x40].fill(0);
    let without = strobe_unwind::build(&*stripped, "libc").unwrap();
    let (with, without) = (Table::open(&with).unwrap(), Table::open(&without).unwrap());
    assert!(with.rows().eq(without.rows()));
    assert!(with.header().rows > 1_000);
}
