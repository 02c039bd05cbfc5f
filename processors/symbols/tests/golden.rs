//! Symbol files of small binaries in the forms that compilers make, each address compared with another tool's answer.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};
use strobe_symbols::file::{Place, SymbolFile};
use strobe_symbols::{Conversion, ConvertLimits, ConvertSources, Converter};
use support::{Bench, Chain, PROGRAM, have, raw_opinion, run, worker};

/// A program in C with what inlining and clones make of functions: static ones, recursion, tail calls, a cold path.
const PROGRAM_C: &str = r#"
#include <stdio.h>
#include <stdlib.h>
struct list { struct list *next; unsigned long value; };
static inline unsigned long fold(unsigned long a, unsigned long b) { return a * 31 + (b ^ (a >> 7)); }
static unsigned long walk(const struct list *at, unsigned long sum) {
    if (!at) return sum;
    return walk(at->next, fold(sum, at->value));
}
__attribute__((noinline)) unsigned long ackermann(unsigned long m, unsigned long n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}
__attribute__((noinline)) static unsigned long divide(unsigned long a, unsigned long b) {
    if (__builtin_expect(b == 0, 0)) { fprintf(stderr, "no\n"); abort(); }
    return a / b;
}
__attribute__((noinline)) unsigned long tail(const struct list *at) { return walk(at, divide(at->value, 3)); }
int main(int argc, char **argv) {
    struct list items[8];
    for (int at = 0; at < 8; at++) {
        items[at].value = fold(at, argc);
        items[at].next = at < 7 ? &items[at + 1] : 0;
    }
    return (int)(tail(items) + ackermann(2, argc) + divide(argc, items[2].value | 1));
}
"#;

const PROGRAM_RUST: &str = r#"
mod shop {
    pub struct Basket<T> { pub items: Vec<T> }
    pub trait Price { fn price(&self) -> u64; }
    impl Price for u32 { #[inline(always)] fn price(&self) -> u64 { u64::from(*self).rotate_left(7) ^ 0x55 } }
    impl Price for u64 { #[inline(always)] fn price(&self) -> u64 { self.wrapping_mul(31) } }
    impl<T: Price> Basket<T> {
        #[inline(never)]
        pub fn total(&self) -> u64 { self.items.iter().map(|item| item.price()).filter(|price| price % 3 != 0).sum() }
    }
}
fn main() {
    let small = shop::Basket { items: std::env::args().map(|text| text.len() as u32).collect::<Vec<_>>() };
    let large = shop::Basket { items: (0..small.items.len() as u64).collect::<Vec<_>>() };
    println!("{}", small.total() + large.total());
}
"#;

const PROGRAM_GO: &str = r#"
package main

import "fmt"

type shop struct{ items []int }

func price(n int) int { return n*31 ^ 7 }

//go:noinline
func (s *shop) total() int {
	sum := 0
	for _, item := range s.items {
		sum += price(item)
	}
	return sum
}

func main() { fmt.Println((&shop{[]int{1, 2, 3}}).total()) }
"#;

fn converter() -> Converter {
    Converter {
        worker: worker(),
        debug_folders: Vec::new(),
        limits: ConvertLimits::default(),
    }
}

/// Makes the symbol file of a binary and opens it.
fn symbol_file(converter: &Converter, sources: ConvertSources<'_>, place: &Path) -> SymbolFile {
    match converter.convert(sources, place).unwrap() {
        Conversion::Made { sizes, .. } => {
            SymbolFile::open(Box::new(File::open(place).unwrap()), sizes.file, 16 << 20).unwrap()
        }
        failed => panic!("{failed:?}"),
    }
}

/// Returns every `step`th address of a binary's code.
fn addresses(binary: &Path, step: usize) -> Vec<u64> {
    let bytes = fs::read(binary).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    let text = elf.section_by_name(".text").unwrap();
    (text.address()..text.address() + text.size())
        .step_by(step)
        .collect()
}

/// Returns the addresses of symbols by name: several names of one address are as good as one another.
fn symbol_addresses(binary: &Path) -> HashMap<String, Vec<u64>> {
    let bytes = fs::read(binary).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    let mut out: HashMap<String, Vec<u64>> = HashMap::new();
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        let name = symbol
            .name()
            .unwrap_or_default()
            .split('@')
            .next()
            .unwrap_or_default();
        out.entry(name.to_owned()).or_default().push(symbol.address());
    }
    out
}

fn chain(file: &mut SymbolFile, address: u64) -> Chain {
    let mut places: Vec<Place> = Vec::new();
    file.find(address, &mut places).unwrap();
    let level = |place: &Place| {
        let path = match place.file {
            0 => String::new(),
            number => file.with_file(number, str::to_owned).unwrap(),
        };
        (file.function(place.function).unwrap().raw, path, place.line)
    };
    places.iter().map(level).collect()
}

/// Returns a name without what a compiler puts behind it when it clones or splits a function.
///
/// Known difference 1: the other tool names a clone by its symbol, `f.constprop.0` or `f.cold`; ours bears the name of
/// the function in the source, because that is what people look for, and what all of its clones are added up under.
fn unsuffixed(name: &str) -> &str {
    const SUFFIXES: [&str; 7] = [
        ".cold",
        ".constprop.",
        ".isra.",
        ".part.",
        ".llvm.",
        ".lto_priv.",
        ".abi0",
    ];
    let at = SUFFIXES.iter().filter_map(|suffix| name.find(suffix)).min();
    &name[..at.unwrap_or(name.len())]
}

/// What a comparison saw.
#[derive(Debug, Default)]
struct Seen {
    compared: usize,
    named: usize,
    inlined: usize,
}

/// Compares every address of a binary, `described` by the debug information in another file where it is stripped.
fn compare(name: &str, file: &mut SymbolFile, binary: &Path, described: &Path, step: usize) -> Option<Seen> {
    let addresses = addresses(binary, step);
    let expected = raw_opinion(described, &addresses)?;
    let symbols = symbol_addresses(described);
    let mut seen = Seen::default();
    let mut wrong = Vec::new();
    for (&address, expected) in addresses.iter().zip(&expected) {
        let found = chain(file, address);
        seen.compared += 1;
        seen.inlined += usize::from(found.len() > 1);
        let unknown = expected.iter().all(|level| level.0 == "??");
        if unknown {
            // Known difference 2: nothing is said where no function is, between functions for example, also if a line
            // program has a line there: padding belongs to nobody. Ours may know what the other tool does not.
            continue;
        }
        seen.named += 1;
        let same_name = |ours: &str, theirs: &str| {
            // Known difference 6: Go's compiler writes `·` where its linker writes `.`.
            let (ours, theirs) = (ours.replace('·', "."), theirs.replace('·', "."));
            // Known difference 7: a symbol's version is no part of its name.
            let theirs = theirs.split('@').next().unwrap_or_default();
            let (ours, theirs) = (unsuffixed(&ours), unsuffixed(theirs));
            // Known difference 3: of several symbols at one address either may be shown.
            let at = |name: &str| symbols.get(name);
            ours == theirs
                || at(ours).is_some_and(|ours| {
                    at(theirs).is_some_and(|theirs| ours.iter().any(|at| theirs.contains(at)))
                })
        };
        let same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(ours, theirs)| {
                // Known difference 4: where there is no debug information the other tool shows the name of an object
                // file's source, without folder and line, as the symbol table has it. Ours shows files that it can name.
                let nameless = ours.1.is_empty() && theirs.2 == 0 && !theirs.1.contains('/');
                // Known difference 5: where the folder of the compilation is a relative one, as in Debian's packages, the
                // other tool puts it before itself: `./csu/./csu/init-first.c`.
                let doubled = ours.1.starts_with("./") && theirs.1.ends_with(&ours.1[1..]);
                let same_file = nameless || doubled || same_path(&ours.1, &theirs.1);
                same_name(&ours.0, &theirs.0) && same_file && ours.2 == theirs.2
            });
        if !same {
            wrong.push(format!("{address:#x}\n  ours   {found:?}\n  theirs {expected:?}"));
        }
    }
    let some: Vec<_> = wrong.iter().take(5).cloned().collect();
    assert!(
        wrong.is_empty(),
        "{name}: {} of {} differ:\n{}",
        wrong.len(),
        seen.compared,
        some.join("\n")
    );
    println!("{name}: {seen:?}");
    Some(seen)
}

/// Returns the debug file that distributions have for a binary.
fn debug_file(binary: &Path) -> Option<PathBuf> {
    let bytes = fs::read(binary).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    let id = elf.build_id().unwrap()?;
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = format!("/usr/lib/debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]);
    Some(PathBuf::from(path)).filter(|path| path.is_file())
}

/// Returns whether two paths name one file: `a/./b` and `a/b` do.
fn same_path(ours: &str, theirs: &str) -> bool {
    let parts = |path: &str| Path::new(path).components().collect::<PathBuf>();
    parts(ours) == parts(theirs)
}

/// Compiles, converts, compares every address.
fn agrees(compiler: &str, source: &str, flags: &[&str]) {
    if !have(compiler) {
        return;
    }
    let bench = Bench::new();
    let binary = bench.compile(compiler, source, flags, "program");
    let mut file = symbol_file(
        &converter(),
        ConvertSources {
            binary: Some(&binary),
            ..ConvertSources::default()
        },
        &bench.path("symbols"),
    );
    assert_eq!(file.facts().units_damaged, 0);
    let name = format!("{compiler} {flags:?}");
    if let Some(seen) = compare(&name, &mut file, &binary, &binary, 1) {
        assert!(seen.named * 2 > seen.compared, "{name}: {seen:?}");
        let optimized = flags.iter().any(|flag| matches!(*flag, "-O1" | "-O2" | "-O3"));
        assert!(!optimized || seen.inlined > 20, "{name}: {seen:?}");
    }
}

/// Checks C and C++ of both compilers at every level of optimization, in both versions of the format.
#[test]
fn every_level_of_optimization_agrees() {
    for (compiler, source) in [
        ("gcc", PROGRAM_C),
        ("g++", PROGRAM),
        ("clang", PROGRAM_C),
        ("clang++", PROGRAM),
    ] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            for version in ["-gdwarf-4", "-gdwarf-5"] {
                agrees(compiler, source, &[level, version]);
            }
        }
    }
}

/// Checks link-time optimization, where functions of one unit are inlined into another.
#[test]
fn link_time_optimization_agrees() {
    agrees("g++", PROGRAM, &["-g", "-O2", "-flto"]);
    agrees("gcc", PROGRAM_C, &["-g", "-O3", "-flto"]);
}

/// Checks executables that are loaded anywhere, and those that are not; and those whose functions are sections of
/// their own, with the ones that nobody calls left out by the linker.
#[test]
fn every_form_of_executable_agrees() {
    agrees("g++", PROGRAM, &["-g", "-O2", "-pie", "-fPIE"]);
    agrees("g++", PROGRAM, &["-g", "-O2", "-no-pie", "-fno-pie"]);
    agrees(
        "g++",
        PROGRAM,
        &["-g", "-O2", "-ffunction-sections", "-Wl,--gc-sections"],
    );
    agrees("g++", PROGRAM, &["-g1", "-O2"]);
}

/// Checks debug information that is compressed, in each of the two ways.
#[test]
fn compressed_debug_information_agrees() {
    agrees("g++", PROGRAM, &["-g", "-O2", "-gz=zlib"]);
    agrees("g++", PROGRAM, &["-g", "-O2", "-gz=zlib-gnu"]);
}

/// Checks Rust at each level of detail and optimization.
#[test]
fn rust_agrees() {
    if !have("rustc") {
        return;
    }
    for flags in [
        &["-g"][..],
        &["-g", "-O"],
        &["-g", "-C", "opt-level=3", "-C", "lto=thin"],
        &["-C", "debuginfo=line-tables-only", "-O"],
    ] {
        let bench = Bench::new();
        let binary = bench.compile("rustc", PROGRAM_RUST, flags, "program");
        let sources = ConvertSources {
            binary: Some(&binary),
            ..ConvertSources::default()
        };
        let mut file = symbol_file(&converter(), sources, &bench.path("symbols"));
        let seen = compare(&format!("rustc {flags:?}"), &mut file, &binary, &binary, 7);
        assert!(seen.is_none_or(|seen| seen.inlined > 1_000));
    }
}

/// Builds the Go program in both forms, whole and stripped; nothing where no compiler is there.
fn go_program(bench: &Bench) -> Option<[PathBuf; 2]> {
    let go = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| {
        let version = Command::new(go).arg("version").output();
        version.is_ok_and(|output| output.status.success())
    });
    let Some(go) = go else {
        println!("skipped: tests of Go: `go` is not installed");
        return None;
    };
    let source = bench.path("main.go");
    fs::write(&source, PROGRAM_GO).unwrap();
    Some([("whole", ""), ("stripped", "-s -w")].map(|(name, flags)| {
        let binary = bench.path(name);
        let built = Command::new(go)
            .args([
                "build",
                "-ldflags",
                flags,
                "-o",
                binary.to_str().unwrap(),
                source.to_str().unwrap(),
            ])
            .env("GOFLAGS", "-mod=mod")
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        binary
    }))
}

/// Checks Go, whose own linker packs what it writes.
#[test]
fn go_agrees() {
    let bench = Bench::new();
    let Some([whole, _]) = go_program(&bench) else {
        return;
    };
    let sources = ConvertSources {
        binary: Some(&whole),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter(), sources, &bench.path("symbols"));
    let seen = compare("go", &mut file, &whole, &whole, 11);
    assert!(seen.is_none_or(|seen| seen.inlined > 1_000));
}

/// Checks that Go's own table gives a stripped binary the function, file and line that debug information would give: of
/// each address the outermost function, and the line of the innermost.
#[test]
fn a_stripped_go_binary_keeps_names_and_lines() {
    let bench = Bench::new();
    let Some([whole, stripped]) = go_program(&bench) else {
        return;
    };
    let mut files = [&whole, &stripped].map(|binary| {
        let sources = ConvertSources {
            binary: Some(binary),
            ..ConvertSources::default()
        };
        symbol_file(&converter(), sources, &binary.with_extension("symbols"))
    });
    let facts = files[1].facts();
    assert!(facts.go_table && !facts.debug_info && !facts.symbol_table);
    let asked = addresses(&stripped, 7);
    assert_eq!(addresses(&whole, 7), asked);
    let (mut same, mut named, mut other) = (0, 0, Vec::new());
    for &address in &asked {
        let [expected, found] = files.each_mut().map(|file| chain(file, address));
        let (Some(outermost), Some(innermost)) = (expected.first(), expected.last()) else {
            continue;
        };
        named += 1;
        let alike = |ours: &str, theirs: &str| ours.replace('·', ".") == theirs.replace('·', ".");
        match found.as_slice() {
            [(name, path, line)]
                if alike(name, &outermost.0) && (path, *line) == (&innermost.1, innermost.2) =>
            {
                same += 1;
            }
            _ => other.push(format!("{address:#x} {found:?} {expected:?}")),
        }
    }
    // Wrappers that the compiler generates, and hand-written assembly, are described in more than one way.
    assert!(
        same * 100 > named * 98,
        "{same} of {named}: {:#?}",
        &other[..other.len().min(5)]
    );
    println!("go: {same} of {named} addresses are the same without debug information");
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

/// Checks a program that carries its libraries: hand-written assembly, symbols without debug information, and all.
#[test]
fn a_static_program_agrees() {
    if !have("gcc") {
        return;
    }
    let bench = Bench::new();
    let binary = bench.compile("gcc", PROGRAM_C, &["-g", "-O2", "-static"], "program");
    let sources = ConvertSources {
        binary: Some(&binary),
        ..ConvertSources::default()
    };
    let mut file = symbol_file(&converter(), sources, &bench.path("symbols"));
    let seen = compare("gcc -static", &mut file, &binary, &binary, 5);
    assert!(seen.is_none_or(|seen| seen.named > 10_000));
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
