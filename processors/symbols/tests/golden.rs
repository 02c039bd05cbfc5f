//! Symbol files of small binaries in the forms that compilers make, each address compared with another tool's answer.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use strobe_symbols::ConvertSources;
use support::compare::{PROGRAM_C, addresses, chain, compare, converter, symbol_file};
use support::{Bench, PROGRAM, have};

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
