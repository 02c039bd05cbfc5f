//! Binaries that mean harm, or are broken: each costs its own request, never more.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use object::{Object, ObjectSection};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strobe_event::{BinaryKind, BuildId, Reason};
use strobe_symbols::{
    Conversion, ConvertLimits, ConvertSources, Converter, Limits, Resolved, Symbolizer, SymbolsError,
};
use support::{Bench, CHECKOUT, PROGRAM, chain, function, have, run, worker};

const MIB: u64 = 1 << 20;

/// Returns an ELF file whose `.debug_info` is compressed: it claims `claimed` bytes and is `packed`.
fn compressed_elf(claimed: u64, packed: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.debug_info\0.debug_abbrev\0.shstrtab\0";
    const HEADER: usize = 64;
    let mut info = Vec::new();
    info.extend_from_slice(&1_u32.to_le_bytes()); // ELFCOMPRESS_ZLIB
    info.extend_from_slice(&0_u32.to_le_bytes());
    info.extend_from_slice(&claimed.to_le_bytes());
    info.extend_from_slice(&1_u64.to_le_bytes());
    info.extend_from_slice(packed);
    let abbrev = [0_u8; 8];
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let table = HEADER + info.len() + abbrev.len() + NAMES.len();
    let table = table.next_multiple_of(8);
    for half in [3_u16, 62] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1_u32.to_le_bytes());
    for word in [0_u64, 0, table as u64] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0_u32.to_le_bytes());
    for half in [HEADER as u16, 56, 0, 64, 4, 3] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    assert_eq!(file.len(), HEADER);
    let mut sections = vec![(0_u32, 0_u32, 0_u64, 0_usize, 0_usize)];
    for (name, kind, flags, content) in [
        (1, 1, 0x800, info.as_slice()),
        (13, 1, 0, &abbrev[..]),
        (27, 3, 0, NAMES),
    ] {
        sections.push((name, kind, flags, file.len(), content.len()));
        file.extend_from_slice(content);
    }
    file.resize(table, 0);
    for (name, kind, flags, offset, length) in sections {
        file.extend_from_slice(&u32::to_le_bytes(name));
        file.extend_from_slice(&kind.to_le_bytes());
        for word in [flags, 0, offset as u64, length as u64, 0, 1, 0] {
            file.extend_from_slice(&word.to_le_bytes());
        }
    }
    file
}

/// Returns `bytes` zeros, compressed.
fn zeros(bytes: u64) -> Vec<u8> {
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    let chunk = vec![0_u8; MIB as usize];
    for _ in 0..bytes / MIB {
        packer.write_all(&chunk).unwrap();
    }
    packer.finish().unwrap()
}

/// Returns the most memory that the worker ever had resident, in bytes.
fn peak_bytes(symbolizer: &Symbolizer) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", symbolizer.worker_pid().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn one(symbolizer: &mut Symbolizer, id: &BuildId, address: u64) -> Resolved {
    symbolizer
        .resolve(BinaryKind::Gnu, id, &[address])
        .unwrap()
        .remove(0)
}

/// Compiles the program and returns its id and the address of a function in it.
fn honest(bench: &mut Bench) -> Option<(BuildId, u64)> {
    if !have("g++") || !have("nm") {
        return None;
    }
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    Some((bench.store_file(&binary), function(&binary, CHECKOUT).0))
}

fn assert_serves(symbolizer: &mut Symbolizer, (id, address): &(BuildId, u64)) {
    let found = chain(&one(symbolizer, id, *address));
    assert!(found[0].0.starts_with("shop::checkout"), "{found:?}");
}

/// Checks that sections which claim far more than they hold are refused by their headers, without being unpacked.
#[test]
fn bombs_are_refused_by_their_headers() {
    let mut bench = Bench::new();
    let Some(good) = honest(&mut bench) else { return };
    let packed = zeros(3 << 30);
    assert!(packed.len() < 16 << 20);
    let bomb = bench.store(&compressed_elf(3 << 30, &packed));
    let liar = bench.store(&compressed_elf(1 << 46, &packed[..1_000]));
    let mut symbolizer = bench.symbolizer(Limits::default());
    for id in [bomb, liar] {
        let start = Instant::now();
        assert_eq!(
            one(&mut symbolizer, &id, 0x1000),
            Resolved::Unknown(Reason::OverLimit)
        );
        eprintln!("refused after {:?}", start.elapsed());
        assert!(
            peak_bytes(&symbolizer) < 64 * MIB,
            "{} bytes",
            peak_bytes(&symbolizer)
        );
        assert_serves(&mut symbolizer, &good);
    }
    let seen = symbolizer.telemetry();
    assert_eq!((seen.worker_starts, seen.worker_deaths), (1, 0));
}

/// Checks that a section which holds far more than it claims meets the limit on memory, that the request still gets
/// a reason, and that the next one is served.
#[test]
fn a_bomb_that_understates_itself_meets_the_memory_limit() {
    let mut bench = Bench::new();
    let Some(good) = honest(&mut bench) else { return };
    let bomb = bench.store(&compressed_elf(1_000, &zeros(3 << 30)));
    let limits = Limits {
        memory_bytes: 256 * MIB,
        ..Limits::default()
    };
    let mut symbolizer = bench.symbolizer(limits);
    let found = one(&mut symbolizer, &bomb, 0x1000);
    assert!(matches!(found, Resolved::Unknown(_)), "{found:?}");
    let deaths = symbolizer.telemetry().worker_deaths;
    eprintln!(
        "{found:?}, deaths {deaths}, peak {} MiB",
        peak_bytes(&symbolizer) / MIB
    );
    assert!(
        peak_bytes(&symbolizer) < (256 + 64) * MIB,
        "{} bytes",
        peak_bytes(&symbolizer)
    );
    assert_serves(&mut symbolizer, &good);
}

/// Checks that a binary on which the worker dies twice is refused for good, and that it alone pays.
#[test]
fn a_binary_that_ends_the_worker_twice_is_not_tried_again() {
    let mut bench = Bench::new();
    let Some(good) = honest(&mut bench) else { return };
    // So little memory that the debug information of this test's own executable does not fit: the worker aborts.
    let killer = bench.store_file(&std::env::current_exe().unwrap());
    let mut symbolizer = bench.symbolizer(Limits {
        memory_bytes: 3 * MIB,
        ..Limits::default()
    });
    assert_serves(&mut symbolizer, &good);
    let before = symbolizer.telemetry();
    let addresses: Vec<u64> = (0..2_000).map(|at| 0x10_0000 + at * 64).collect();
    let refused = symbolizer.resolve(BinaryKind::Gnu, &killer, &addresses).unwrap();
    assert!(
        refused
            .iter()
            .all(|name| *name == Resolved::Unknown(Reason::BinaryRefused)),
        "{:?}",
        refused[0]
    );
    let after = symbolizer.telemetry();
    assert_eq!(after.worker_deaths - before.worker_deaths, 2);
    assert_eq!(after.binaries_refused, 1);
    assert_eq!(
        one(&mut symbolizer, &killer, 0x99_0000),
        Resolved::Unknown(Reason::BinaryRefused)
    );
    assert_eq!(
        symbolizer.telemetry().requests,
        after.requests,
        "it was tried again"
    );
    let other = bench.store_file(&bench.path("shop"));
    assert_serves(&mut symbolizer, &(other, good.1));
}

/// Checks that a worker which hangs is given up in time, and that the request is made again on a fresh one.
#[test]
fn a_worker_that_hangs_is_replaced() {
    let mut bench = Bench::new();
    let Some(good) = honest(&mut bench) else { return };
    let mut symbolizer = bench.symbolizer(Limits {
        request_time: Duration::from_millis(1_500),
        ..Limits::default()
    });
    run("kill", &["-STOP", &symbolizer.worker_pid().unwrap().to_string()]);
    assert_serves(&mut symbolizer, &good);
    let seen = symbolizer.telemetry();
    assert_eq!(
        (seen.worker_timeouts, seen.worker_deaths, seen.worker_starts),
        (1, 0, 2)
    );
}

/// Checks that a worker which was killed between two requests is replaced without blame for any binary.
#[test]
fn a_worker_killed_while_idle_is_nobodys_fault() {
    let mut bench = Bench::new();
    let Some(good) = honest(&mut bench) else { return };
    let mut symbolizer = bench.symbolizer(Limits::default());
    for _ in 0..4 {
        run("kill", &["-KILL", &symbolizer.worker_pid().unwrap().to_string()]);
        std::thread::sleep(Duration::from_millis(50));
        let again = bench.store_file(&bench.path("shop"));
        assert_serves(&mut symbolizer, &(again, good.1));
    }
    let seen = symbolizer.telemetry();
    assert_eq!(
        (seen.worker_starts, seen.worker_deaths, seen.binaries_refused),
        (5, 0, 0)
    );
}

/// Checks that 2,000 damaged binaries, headers and debug information alike, each give an answer, and that names are
/// found as before afterwards.
#[test]
fn mutated_binaries_never_reach_the_parent() {
    let mut bench = Bench::new();
    let Some(good) = honest(&mut bench) else { return };
    let mut sources = vec![std::fs::read(bench.path("shop")).unwrap()];
    let packed = bench.compile("g++", PROGRAM, &["-g", "-O2", "-gz=zlib"], "packed");
    sources.push(std::fs::read(packed).unwrap());
    let addresses: Vec<u64> = (0..32).map(|at| good.1 + at * 5).collect();
    let mut random = StdRng::seed_from_u64(7);
    let limits = Limits {
        memory_bytes: 256 * MIB,
        request_time: Duration::from_secs(5),
        ..Limits::default()
    };
    let mut symbolizer = bench.symbolizer(limits);
    let mut named = 0;
    for round in 0..2_000 {
        let mut bytes = sources[round % sources.len()].clone();
        let length = bytes.len();
        for _ in 0..random.random_range(1..=12) {
            // The front has the headers, the back the section table and the debug information.
            let at = match random.random_range(0..4) {
                0 => random.random_range(0..256),
                1 => length - 1 - random.random_range(0..2_560),
                _ => random.random_range(length / 2..length),
            };
            bytes[at] = match random.random_range(0..3) {
                0 => 0xff,
                1 => bytes[at] ^ (1 << random.random_range(0..8)),
                _ => random.random(),
            };
        }
        if round % 50 == 0 {
            bytes.truncate(random.random_range(0..length));
        }
        let id = bench.store(&bytes);
        let resolved = symbolizer.resolve(BinaryKind::Gnu, &id, &addresses).unwrap();
        assert_eq!(resolved.len(), addresses.len());
        named += resolved
            .iter()
            .filter(|name| matches!(name, Resolved::Symbols(names) if !names.is_empty()))
            .count();
    }
    let seen = symbolizer.telemetry();
    let share = named as f64 / (2_000 * addresses.len()) as f64;
    eprintln!(
        "named {share:.3}, deaths {}, timeouts {}, refused {}",
        seen.worker_deaths, seen.worker_timeouts, seen.binaries_refused
    );
    assert!(
        share > 0.1 && share < 0.999,
        "the mutations neither spare nor hit everything: {share}"
    );
    let again = bench.store_file(&bench.path("shop"));
    assert_serves(&mut symbolizer, &(again, good.1));
}

/// Checks that a command which is no worker is told to the operator at once, and that no binary is blamed.
#[test]
fn a_wrong_command_is_an_error_for_the_operator() {
    let bench = Bench::new();
    for (command, transient) in [
        ("/nonexistent/worker", false),
        ("/bin/true", false),
        ("/bin/cat", false),
    ] {
        let mut settings = bench.settings(Limits::default());
        settings.worker = vec![command.into()];
        let error = Symbolizer::new(settings).unwrap_err();
        assert!(
            matches!(
                error,
                SymbolsError::WorkerStart { .. } | SymbolsError::WorkerUnusable { .. }
            ),
            "{command}: {error}"
        );
        assert_eq!(error.is_transient(), transient);
        assert!(error.to_string().contains(command), "{error}");
    }
}

fn converter(limits: ConvertLimits) -> Converter {
    Converter {
        worker: worker(),
        debug_folders: Vec::new(),
        limits,
    }
}

fn converted(converter: &Converter, bench: &Bench, bytes: &[u8]) -> Conversion {
    let binary = bench.path("candidate");
    std::fs::write(&binary, bytes).unwrap();
    let sources = ConvertSources {
        binary: Some(&binary),
        ..ConvertSources::default()
    };
    converter.convert(sources, &bench.path("made")).unwrap()
}

/// Checks that no bomb gets a symbol file with anything in it, that each that claims much gets its reason, and that nothing is left of the attempt.
#[test]
fn bombs_get_no_symbol_file() {
    let bench = Bench::new();
    let packed = zeros(3 << 30);
    let converter = converter(ConvertLimits {
        memory_bytes: 256 * MIB,
        ..ConvertLimits::default()
    });
    for (claimed, packed) in [
        (3 << 30, packed.as_slice()),
        (1 << 46, &packed[..1_000]),
        (1_000, packed.as_slice()),
    ] {
        let start = Instant::now();
        match converted(&converter, &bench, &compressed_elf(claimed, packed)) {
            Conversion::Failed { reason, detail } => {
                println!("{claimed:#x}: {reason:?} ({detail}) after {:?}", start.elapsed());
                assert!(matches!(
                    reason,
                    Reason::OverLimit | Reason::Damaged | Reason::BinaryRefused
                ));
            }
            // No more is unpacked than is claimed: a thousand zeros, in which there is nothing.
            Conversion::Made { facts, .. } if claimed == 1_000 => {
                assert_eq!((facts.units, facts.functions), (0, 0));
                std::fs::remove_file(bench.path("made")).unwrap();
            }
            made => panic!("{claimed:#x}: {made:?}"),
        }
        assert!(!bench.path("made").exists());
    }
}

/// Checks that what lies beside a binary and is no good, a debug file or a package of another kind, costs itself alone: the
/// binary's own debug information is used, and it is said that something was left out.
#[test]
fn a_bad_file_beside_a_binary_costs_itself_alone() {
    let bench = Bench::new();
    if !have("g++") {
        return;
    }
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let bad = bench.path("bad");
    let whole = std::fs::read(&binary).unwrap();
    for content in [
        b"no ELF file".as_slice(),
        &whole[..whole.len() / 3],
        &compressed_elf(1 << 46, &[1; 100]),
    ] {
        std::fs::write(&bad, content).unwrap();
        for (debug, package) in [(Some(bad.as_path()), None), (None, Some(bad.as_path()))] {
            let sources = ConvertSources {
                binary: Some(&binary),
                debug,
                package,
            };
            let made = converter(ConvertLimits::default())
                .convert(sources, &bench.path("made"))
                .unwrap();
            let Conversion::Made { facts, .. } = made else {
                panic!("{made:?}")
            };
            assert!(
                facts.debug_info && facts.parts_refused && facts.units > 0,
                "{facts:?}"
            );
        }
    }
}

/// Returns where a section's content lies in an ELF file.
fn section(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let elf = object::File::parse(bytes).unwrap();
    let (start, length) = elf.section_by_name(name).unwrap().file_range().unwrap();
    start as usize..(start + length) as usize
}

/// Checks that debug information which cannot be unpacked leaves the symbols, and that units behind a header which cannot be
/// read are counted as damaged and not left out in silence.
#[test]
fn damaged_debug_information_leaves_the_symbols_and_is_counted() {
    let bench = Bench::new();
    if !have("g++") {
        return;
    }
    let converter = converter(ConvertLimits::default());
    let packed = bench.compile("g++", PROGRAM, &["-g", "-O2", "-gz=zlib"], "packed");
    let mut bytes = std::fs::read(packed).unwrap();
    let info = section(&bytes, ".debug_info");
    bytes[info.start + 30..info.end].fill(0xa5);
    let Conversion::Made { facts, .. } = converted(&converter, &bench, &bytes) else {
        panic!("nothing was made")
    };
    assert!(
        !facts.debug_info && facts.symbol_table && facts.parts_refused,
        "{facts:?}"
    );
    assert!(facts.functions > 3);
    let plain = bench.compile("g++", PROGRAM, &["-g", "-O2"], "plain");
    let mut bytes = std::fs::read(plain).unwrap();
    let info = section(&bytes, ".debug_info");
    // The version, behind the length of the first unit.
    bytes[info.start + 4] = 99;
    let Conversion::Made { facts, .. } = converted(&converter, &bench, &bytes) else {
        panic!("nothing was made")
    };
    assert_eq!((facts.units, facts.units_damaged), (0, 1));
}

/// Checks that a file which is there already survives a conversion that gives nothing.
#[test]
fn a_failed_conversion_leaves_what_was_there() {
    let bench = Bench::new();
    std::fs::write(bench.path("made"), b"precious").unwrap();
    let made = converted(&converter(ConvertLimits::default()), &bench, b"#!/bin/sh");
    assert!(matches!(made, Conversion::Failed { .. }), "{made:?}");
    assert_eq!(std::fs::read(bench.path("made")).unwrap(), b"precious");
}
