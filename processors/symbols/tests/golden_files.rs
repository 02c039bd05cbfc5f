//! Symbol files of binaries whose symbols lie apart, in debug files, packages and tables of their own, and of a distribution's
//! library: each address compared with another tool's answer.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};
use strobe_symbols::ConvertSources;
use support::compare::{PROGRAM_C, addresses, chain, compare, converter, symbol_file};
use support::{Bench, PROGRAM, have, run};

/// Returns the debug file that distributions have for a binary.
fn debug_file(binary: &Path) -> Option<PathBuf> {
    let bytes = fs::read(binary).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    let id = elf.build_id().unwrap()?;
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = format!("/usr/lib/debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]);
    Some(PathBuf::from(path)).filter(|path| path.is_file())
}

/// Checks that the compressed symbol table which distributions leave in stripped binaries names functions that are not
/// exported, and that a bomb in its place costs nothing.
#[test]
fn a_compressed_symbol_table_names_a_stripped_binary() {
    if !have("gcc") || !have("objcopy") || !have("xz") {
        return;
    }
    let bench = Bench::new();
    let whole = bench.compile("gcc", PROGRAM_C, &["-O2"], "program");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (mini, stripped) = (bench.path("mini"), bench.path("stripped"));
    run("objcopy", &["--only-keep-debug", &text(&whole), &text(&mini)]);
    run("xz", &["--keep", &text(&mini)]);
    let add = |packed: &Path| {
        let section = format!(".gnu_debugdata={}", text(packed));
        run(
            "objcopy",
            &[
                "--strip-all",
                "--add-section",
                &section,
                &text(&whole),
                &text(&stripped),
            ],
        );
    };
    add(&bench.path("mini.xz"));
    let sources = ConvertSources {
        binary: Some(&stripped),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter(), sources, &bench.path("symbols"));
    assert!(file.facts().mini_debug_info);
    let seen = compare("mini", &mut file, &stripped, &whole, 1);
    assert!(seen.is_none_or(|seen| seen.named > 300));
    let zeros = bench.path("zeros");
    File::create(&zeros).unwrap().set_len(600 << 20).unwrap();
    run("xz", &["-1", &text(&zeros)]);
    add(&bench.path("zeros.xz"));
    let file = symbol_file(&converter(), sources, &bench.path("symbols"));
    assert!(!file.facts().mini_debug_info);
}

/// Checks a stripped binary with its debug file, by name, by build id and by debuglink: all three name what the whole
/// binary names. A debug file of another binary under the same name is left alone.
#[test]
fn a_debug_file_names_a_stripped_binary() {
    if !have("g++") || !have("objcopy") {
        return;
    }
    let bench = Bench::new();
    let whole = bench.compile("g++", PROGRAM, &["-g", "-O2", "-Wl,--build-id"], "shop");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let folder = bench.path("debug");
    fs::create_dir_all(&folder).unwrap();
    let debug = folder.join("shop.debug");
    run("objcopy", &["--only-keep-debug", &text(&whole), &text(&debug)]);
    let stripped = bench.path("stripped");
    let link = format!("--add-gnu-debuglink={}", text(&debug));
    run(
        "objcopy",
        &["--strip-all", &link, &text(&whole), &text(&stripped)],
    );
    let place = bench.path("symbols");
    let named = ConvertSources {
        binary: Some(&stripped),
        debug: Some(&debug),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter(), named, &place);
    compare("debug file", &mut file, &stripped, &whole, 1);
    // The debug file alone knows where code lies too: its headers are the binary's.
    let alone = ConvertSources {
        debug: Some(&debug),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter(), alone, &place);
    compare("debug file alone", &mut file, &stripped, &whole, 1);

    let found = ConvertSources {
        binary: Some(&stripped),
        ..ConvertSources::default()
    };
    let mut searching = converter();
    assert!(
        !symbol_file(&searching, found, &place).facts().debug_info,
        "nobody said where to look"
    );
    searching.debug_folders = vec![folder.clone()];
    let mut file = symbol_file(&searching, found, &place);
    compare("debuglink", &mut file, &stripped, &whole, 1);
    let other = bench.compile("gcc", PROGRAM_C, &["-g", "-O2", "-Wl,--build-id"], "other");
    run("objcopy", &["--only-keep-debug", &text(&other), &text(&debug)]);
    assert!(
        !symbol_file(&searching, found, &place).facts().debug_info,
        "another binary's"
    );
    let notes = run("readelf", &["-n", &text(&whole)]);
    let id = notes
        .split("Build ID: ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned();
    let by_id = folder.join(".build-id").join(&id[..2]);
    fs::create_dir_all(&by_id).unwrap();
    run(
        "objcopy",
        &[
            "--only-keep-debug",
            &text(&whole),
            &text(&by_id.join(format!("{}.debug", &id[2..]))),
        ],
    );
    let mut file = symbol_file(&searching, found, &place);
    compare("build id", &mut file, &stripped, &whole, 1);
}

/// Checks debug information that was split off into a package, against the same program in one piece; and that without
/// the package its units are counted as elsewhere, with names and lines still there.
#[test]
fn split_debug_information_agrees_with_the_whole() {
    for (compiler, version, packer) in [
        ("g++", "-gdwarf-4", "dwp"),
        ("g++", "-gdwarf-5", "llvm-dwp"),
        ("clang++", "-gdwarf-4", "llvm-dwp"),
        ("clang++", "-gdwarf-5", "llvm-dwp"),
    ] {
        if !have(compiler) || !have(packer) {
            continue;
        }
        let bench = Bench::new();
        // The same code with everything in one piece: what the other tool is asked about, as its support for packages has
        // gaps of its own.
        let whole = bench.path("whole");
        fs::rename(
            bench.compile(compiler, PROGRAM, &["-O2", version], "program"),
            &whole,
        )
        .unwrap();
        let flags = ["-O2", version, "-gsplit-dwarf"];
        let binary = bench.compile(compiler, PROGRAM, &flags, "program");
        let text = |path: &Path| {
            let bytes = fs::read(path).unwrap();
            let elf = object::File::parse(bytes.as_slice()).unwrap();
            elf.section_by_name(".text").unwrap().data().unwrap().to_vec()
        };
        assert_eq!(
            text(&binary),
            text(&whole),
            "{compiler} makes other code when it splits"
        );
        let package = bench.path("program.dwp");
        // One version of LLVM's packer never ends on what gcc writes.
        let packed = Command::new("timeout")
            .args(["20", packer])
            .args(["-e", binary.to_str().unwrap(), "-o", package.to_str().unwrap()])
            .current_dir(bench.folder.path())
            .output()
            .unwrap();
        if !packed.status.success() {
            println!(
                "skipped: split_debug_information_agrees_with_the_whole: `{packer}` cannot pack {version} of {compiler}: {}",
                String::from_utf8_lossy(&packed.stderr).trim()
            );
            continue;
        }
        let sources = ConvertSources {
            binary: Some(&binary),
            package: Some(&package),
            ..ConvertSources::default()
        };
        let mut file = symbol_file(&converter(), sources, &bench.path("symbols"));
        assert_eq!(file.facts().units_elsewhere, 0);
        let name = format!("split {compiler} {version}");
        let seen = compare(&name, &mut file, &binary, &whole, 1);
        assert!(seen.is_none_or(|seen| seen.inlined > 20));
        let without = ConvertSources {
            package: None,
            ..sources
        };
        let file = symbol_file(&converter(), without, &bench.path("symbols"));
        assert!(file.facts().units_elsewhere > 0);
    }
}

/// Returns where distributions have the C library.
fn libc() -> Option<&'static Path> {
    let places = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/aarch64-linux-gnu/libc.so.6",
        "/lib64/libc.so.6",
    ];
    let found = places.into_iter().map(Path::new).find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: tests of the C library: no libc.so.6 where distributions have it");
    }
    found
}

/// Checks a library that exports names and has nothing else: those are found, and nothing is made up beyond them.
#[test]
fn exported_names_alone_are_found() {
    let Some(libc) = libc() else { return };
    let bench = Bench::new();
    let sources = ConvertSources {
        binary: Some(libc),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter(), sources, &bench.path("symbols"));
    assert!(
        !file.facts().symbol_table && file.facts().functions > 1_000,
        "{:?}",
        file.facts()
    );
    let bytes = fs::read(libc).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    let exported: Vec<_> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0)
        .collect();
    for address in addresses(libc, 13) {
        let covering: Vec<_> = exported
            .iter()
            .filter(|symbol| (symbol.address()..symbol.address() + symbol.size()).contains(&address))
            .map(|symbol| symbol.name().unwrap())
            .collect();
        let found = chain(&mut file, address);
        match found.first() {
            Some(found) => assert!(
                covering.contains(&found.0.as_str()),
                "{address:#x} {found:?} {covering:?}"
            ),
            None => assert!(covering.is_empty(), "{address:#x} {covering:?}"),
        }
    }
}

/// Checks the C library with the debug file that distributions have for it: assembly, aliases, functions in parts,
/// compressed and shared debug information.
#[test]
fn the_c_library_agrees_with_its_debug_file() {
    let Some(libc) = libc() else { return };
    let bench = Bench::new();
    let mut converter = converter();
    converter.debug_folders = vec![PathBuf::from("/usr/lib/debug")];
    let sources = ConvertSources {
        binary: Some(libc),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter, sources, &bench.path("symbols"));
    if !file.facts().debug_info {
        println!("skipped: the_c_library_agrees_with_its_debug_file: `libc6-dbg` is not installed");
        return;
    }
    let debug = debug_file(libc).unwrap();
    let seen = compare("libc", &mut file, libc, &debug, 31);
    assert!(seen.is_none_or(|seen| seen.inlined > 1_000));
}

/// Checks that an inlined call whose file the debug information does not say has none: from DWARF 5 on 0 is a file, the unit's
/// own, and would be a lie.
#[test]
fn a_call_without_a_file_has_none() {
    if !have("gcc") {
        return;
    }
    let bench = Bench::new();
    let binary = bench.compile("gcc", PROGRAM_C, &["-gdwarf-5", "-O2"], "program");
    let asked = addresses(&binary, 1);
    let convert = |path: &Path| {
        let sources = ConvertSources {
            binary: Some(path),
            ..ConvertSources::default()
        };
        symbol_file(&converter(), sources, &bench.path("symbols"))
    };
    let mut whole = convert(&binary);
    let expected: Vec<_> = asked.iter().map(|&address| chain(&mut whole, address)).collect();
    // Each attribute `call_file` becomes `call_column`, of which nothing is read. No abbreviation has such a number.
    let mut bytes = fs::read(&binary).unwrap();
    let (start, length) = {
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        elf.section_by_name(".debug_abbrev")
            .unwrap()
            .file_range()
            .unwrap()
    };
    let mut changed = 0;
    for byte in &mut bytes[start as usize..(start + length) as usize] {
        if *byte == 0x58 {
            *byte = 0x57;
            changed += 1;
        }
    }
    assert!(changed > 0);
    let lean = bench.path("lean");
    fs::write(&lean, bytes).unwrap();
    let mut file = convert(&lean);
    let mut calls = 0;
    for (&address, expected) in asked.iter().zip(&expected) {
        let mut expected = expected.clone();
        if let Some((_, around)) = expected.split_last_mut() {
            for call in around {
                (call.1, call.2) = (String::new(), 0);
                calls += 1;
            }
        }
        assert_eq!(chain(&mut file, address), expected, "{address:#x}");
    }
    assert!(calls > 20);
}
