//! Names, lines and inlined functions of real binaries, against other tools' answers.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;

use strobe_event::{BinaryKind, Reason};
use strobe_symbols::{Limits, Resolved, Symbolizer};
use support::{Bench, CHECKOUT, PROGRAM, REFUND, chain, function, have, run, second_opinion};

fn every_address(binary: &Path) -> Vec<u64> {
    [CHECKOUT, REFUND, "main"]
        .into_iter()
        .flat_map(|name| {
            let (start, length) = function(binary, name);
            start..start + length
        })
        .collect()
}

/// Checks that function, file and line of every level at every address equal another tool's, and that no inlined
/// function bears its caller's name.
fn agrees(flags: &[&str]) {
    if !have("g++") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, flags, "shop");
    let addresses = every_address(&binary);
    let Some(expected) = second_opinion(&binary, &addresses) else {
        return;
    };
    let id = bench.store_file(&binary);
    let resolved = bench
        .symbolizer(Limits::default())
        .resolve(BinaryKind::Gnu, &id, &addresses)
        .unwrap();
    let mut nested = 0;
    for ((address, resolved), expected) in addresses.iter().zip(&resolved).zip(&expected) {
        let found = chain(resolved);
        assert_eq!(&found, expected, "{flags:?} {address:#x}");
        assert!(
            found[1..].iter().all(|(name, ..)| *name != found[0].0),
            "{found:?}"
        );
        nested += usize::from(found.len() == 3);
    }
    assert!(
        nested > 20,
        "{flags:?}: only {nested} addresses lie in two levels of inlined functions"
    );
}

/// Checks that names, lines and nesting in a program that is loaded anywhere are those that another tool finds.
#[test]
fn inlined_functions_of_a_pie_agree_with_another_tool() {
    agrees(&["-g", "-O2", "-pie", "-fPIE"]);
}

/// Checks the same of a program that is loaded where its file says.
#[test]
fn inlined_functions_of_a_fixed_binary_agree_with_another_tool() {
    agrees(&["-g", "-O2", "-no-pie", "-fno-pie"]);
}

/// Checks the same of the form of debug information that older compilers write.
#[test]
fn inlined_functions_of_old_debug_information_agree_with_another_tool() {
    agrees(&["-gdwarf-4", "-O1"]);
}

/// Checks the same of debug information that is compressed.
#[test]
fn inlined_functions_of_compressed_debug_information_agree_with_another_tool() {
    agrees(&["-g", "-O2", "-gz=zlib"]);
}

/// Checks that zstd, which newer distributions compress debug information with, is understood.
#[test]
fn debug_information_compressed_with_zstd_is_understood() {
    if !have("g++") || !have("llvm-objcopy") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let packed = bench.path("packed");
    let done = std::process::Command::new("llvm-objcopy")
        .args([
            "--compress-debug-sections=zstd",
            binary.to_str().unwrap(),
            packed.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    if !done.status.success() {
        println!(
            "skipped: debug_information_compressed_with_zstd_is_understood: this llvm-objcopy knows no zstd"
        );
        return;
    }
    let addresses = every_address(&binary);
    let ids = [bench.store_file(&binary), bench.store_file(&packed)];
    let mut symbolizer = bench.symbolizer(Limits::default());
    let [plain, zstd] = ids.map(|id| symbolizer.resolve(BinaryKind::Gnu, &id, &addresses).unwrap());
    assert_eq!(plain, zstd);
}

fn first_of(symbolizer: &mut Symbolizer, bench: &mut Bench, binary: &Path, address: u64) -> Resolved {
    let id = bench.store_file(binary);
    symbolizer
        .resolve(BinaryKind::Gnu, &id, &[address])
        .unwrap()
        .remove(0)
}

/// Checks what is left of the names when debug information, then the symbol table, is stripped, and that an address
/// beyond every symbol is told apart from a binary without symbols.
#[test]
fn what_is_stripped_is_missing_with_its_reason() {
    if !have("g++") || !have("strip") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let (address, _) = function(&binary, CHECKOUT);
    let no_debug = bench.path("no_debug");
    let nothing = bench.path("nothing");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    run(
        "strip",
        &["--strip-debug", &text(&binary), "-o", &text(&no_debug)],
    );
    run("strip", &["--strip-all", &text(&binary), "-o", &text(&nothing)]);
    let mut symbolizer = bench.symbolizer(Limits::default());
    let full = chain(&first_of(&mut symbolizer, &mut bench, &binary, address));
    assert!(full[0].1.ends_with("shop.cc") && full[0].2 > 0, "{full:?}");
    let symbols = chain(&first_of(&mut symbolizer, &mut bench, &no_debug, address));
    assert_eq!(
        symbols,
        [(
            "shop::checkout(shop::Item const*, int)".to_owned(),
            String::new(),
            0
        )]
    );
    let none = first_of(&mut symbolizer, &mut bench, &nothing, address);
    assert_eq!(none, Resolved::Unknown(Reason::MissingSymbols));
    let beyond = first_of(&mut symbolizer, &mut bench, &no_debug, 0x7fff_0000_0000);
    assert_eq!(beyond, Resolved::Unknown(Reason::NoSymbolAtAddress));
}

/// Checks that a Rust function has its path as name, without the hash that the compiler appends.
#[test]
fn rust_names_come_without_their_hash() {
    if !have("rustc") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let source = "pub mod deep { #[inline(never)] pub fn work(n: u64) -> u64 { std::hint::black_box(n).rotate_left(7) } }
        fn main() { println!(\"{}\", deep::work(std::env::args().count() as u64)); }";
    let mut symbolizer = bench.symbolizer(Limits::default());
    for mangling in ["legacy", "v0"] {
        let flags = ["-g", "-O", "-C", &format!("symbol-mangling-version={mangling}")];
        // Stable compilers take `legacy` only as an unstable option, newer ones by default.
        let flags = if mangling == "legacy" {
            &flags[..2]
        } else {
            &flags[..]
        };
        let binary = bench.compile("rustc", source, flags, "deep");
        let table = run("nm", &[binary.to_str().unwrap()]);
        let line = table.lines().find(|line| line.contains("deep4work")).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let found = chain(&first_of(&mut symbolizer, &mut bench, &binary, address));
        assert_eq!(found[0].0, "deep::deep::work", "{mangling}");
        assert!(found[0].1.ends_with("deep.rs") && found[0].2 == 1, "{found:?}");
    }
}

/// Checks that separate debug information is looked for where it is configured, and nowhere else.
#[test]
fn separate_debug_information_is_read_only_where_configured() {
    if !have("g++") || !have("objcopy") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let (address, _) = function(&binary, CHECKOUT);
    let folder = bench.path("separate");
    std::fs::create_dir(&folder).unwrap();
    let debug = folder.join("shop.debug");
    let stripped = bench.path("stripped");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    run("objcopy", &["--only-keep-debug", &text(&binary), &text(&debug)]);
    let link = format!("--add-gnu-debuglink={}", text(&debug));
    run(
        "objcopy",
        &["--strip-all", &link, &text(&binary), &text(&stripped)],
    );
    let mut plain = bench.symbolizer(Limits::default());
    let found = first_of(&mut plain, &mut bench, &stripped, address);
    assert_eq!(found, Resolved::Unknown(Reason::MissingSymbols));
    let mut settings = bench.settings(Limits::default());
    settings.debug_folders = vec![folder];
    let mut configured = Symbolizer::new(settings).unwrap();
    let found = chain(&first_of(&mut configured, &mut bench, &stripped, address));
    assert!(
        found[0].0.starts_with("shop::checkout") && found[0].1.ends_with("shop.cc"),
        "{found:?}"
    );
}

/// Checks that an address outside of all code has no name, neither by the worker nor by the symbol file: functions that the linker
/// has dropped are still in the debug information, and there all of them begin at 0.
#[test]
fn dropped_functions_name_nothing() {
    let mut bench = Bench::new();
    if !have("g++") {
        return;
    }
    let source = format!("{PROGRAM}\nint dropped(int a) {{ return a * 31 + 7; }}\n");
    let flags = ["-g", "-O2", "-ffunction-sections", "-Wl,--gc-sections"];
    let binary = bench.compile("g++", &source, &flags, "lean");
    let id = bench.store_file(&binary);
    let found = bench
        .symbolizer(Limits::default())
        .resolve(BinaryKind::Gnu, &id, &[0, 1, 5])
        .unwrap();
    let unknown = |name: &Resolved| matches!(name, Resolved::Unknown(Reason::NoSymbolAtAddress));
    assert!(found.iter().all(unknown), "{found:?}");
}
