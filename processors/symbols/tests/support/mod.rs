//! What the tests of the symbolizer share: compilers, a store in a temporary folder, a second opinion on names.
// Each test file uses its own part.
#![allow(dead_code)]

pub mod compare;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use strobe_event::{BinaryKind, BuildId};
use strobe_store::{BinaryKey, Store};
use strobe_symbols::{Binaries, Limits, Resolved, Settings, Symbolizer};

/// A program in C++ with inlined functions in two files' worth of lines, nested and called from two places.
pub const PROGRAM: &str = r#"
#include <cstdint>
namespace shop {
struct Item { std::uint64_t price, count; };
static inline __attribute__((always_inline)) std::uint64_t mix(std::uint64_t seed) {
    seed ^= seed >> 33;
    seed *= 0xff51afd7ed558ccdULL;
    return seed ^ (seed >> 29);
}
static inline __attribute__((always_inline)) std::uint64_t total(const Item &item) {
    std::uint64_t sum = item.price * item.count;
    return mix(sum) + sum;
}
__attribute__((noinline)) std::uint64_t checkout(const Item *items, int count) {
    std::uint64_t sum = 0;
    for (int at = 0; at < count; at++)
        sum += total(items[at]);
    return sum;
}
__attribute__((noinline)) std::uint64_t refund(const Item &item) {
    return mix(item.price) - total(item);
}
}
int main(int argc, char **argv) {
    shop::Item items[3] = {{1, 2}, {3, (std::uint64_t)argc}, {5, 6}};
    return (int)(shop::checkout(items, 3) + shop::refund(items[argc % 3]));
}
"#;

/// Returns whether `program` can be run; where not, says that a test is skipped for it.
pub fn have(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        let test = std::thread::current();
        let test = test.name().unwrap_or("a test");
        println!("skipped: {test}: `{program}` is not installed");
    }
    found
}

/// Runs a command that must succeed, and returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The worker: the example beside this test, built by the same `cargo test`.
pub fn worker() -> Vec<OsString> {
    let deps = std::env::current_exe().unwrap();
    let example = deps
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/symbol-worker");
    assert!(
        example.is_file(),
        "{} is missing: `cargo test -p strobe-symbols` builds it",
        example.display()
    );
    vec![example.into_os_string()]
}

/// A store in a folder of its own.
pub struct Bench {
    pub folder: tempfile::TempDir,
    next: u32,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            next: 0,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles `source` with `compiler` and `flags`; returns the executable.
    pub fn compile(&self, compiler: &str, source: &str, flags: &[&str], name: &str) -> PathBuf {
        let extension = match compiler {
            "rustc" => "rs",
            "gcc" | "clang" => "c",
            _ => "cc",
        };
        let file = self.path(&format!("{name}.{extension}"));
        fs::write(&file, source).unwrap();
        let out = self.path(name);
        let mut arguments = flags.to_vec();
        arguments.extend([file.to_str().unwrap(), "-o", out.to_str().unwrap()]);
        // Here, since some of what compilers write lies where they run.
        let built = Command::new(compiler)
            .args(&arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{compiler} {arguments:?}: {said}");
        out
    }

    /// Lays `bytes` into the store under an id that no other has, the way an upload would.
    pub fn store(&mut self, bytes: &[u8]) -> BuildId {
        self.next += 1;
        let id = BuildId::new(&self.next.to_be_bytes()).unwrap();
        self.store_as(&id, bytes);
        id
    }

    pub fn store_as(&self, id: &BuildId, bytes: &[u8]) {
        let key = BinaryKey {
            kind: BinaryKind::Gnu,
            id: id.clone(),
        };
        let place = self.path("store").join(key.executable());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        File::create(place).unwrap().write_all(bytes).unwrap();
    }

    pub fn store_file(&mut self, file: &Path) -> BuildId {
        self.store(&fs::read(file).unwrap())
    }

    pub fn settings(&self, limits: Limits) -> Settings {
        let binaries = Binaries::of_folder(Store::in_folder(self.path("store")).unwrap());
        Settings {
            binaries,
            worker: worker(),
            debug_folders: Vec::new(),
            hints: None,
            limits,
        }
    }

    pub fn symbolizer(&self, limits: Limits) -> Symbolizer {
        Symbolizer::new(self.settings(limits)).unwrap()
    }
}

/// Names of one address: function, file and line, outermost first. Without a name: empty.
pub type Chain = Vec<(String, String, u32)>;

pub fn chain(resolved: &Resolved) -> Chain {
    match resolved {
        Resolved::Unknown(_) => Vec::new(),
        Resolved::Symbols(locations) => locations
            .iter()
            .map(|at| (at.function.to_string(), at.file.to_string(), at.line))
            .collect(),
    }
}

/// Returns what llvm-symbolizer, or else addr2line, says of the addresses; nothing where neither is installed.
pub fn second_opinion(binary: &Path, addresses: &[u64]) -> Option<Vec<Chain>> {
    opinion(binary, addresses, &["-C"])
}

/// Returns the same with functions as linkers name them, by llvm-symbolizer alone.
pub fn raw_opinion(binary: &Path, addresses: &[u64]) -> Option<Vec<Chain>> {
    have("llvm-symbolizer").then(|| opinion(binary, addresses, &["--no-demangle"]))?
}

fn opinion(binary: &Path, addresses: &[u64], naming: &[&str]) -> Option<Vec<Chain>> {
    let mut command = if have("llvm-symbolizer") {
        let mut command = Command::new("llvm-symbolizer");
        command.arg("--output-style=GNU");
        command
    } else if have("addr2line") {
        Command::new("addr2line")
    } else {
        return None;
    };
    let mut child = command
        .args(naming)
        .args(["-a", "-f", "-i", "-e"])
        .arg(binary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = addresses
        .iter()
        .map(|address| format!("{address:#x}\n"))
        .collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut chains: Vec<Chain> = Vec::new();
    let mut lines = text.lines().filter(|line| !line.is_empty());
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            chains.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        let (file, line_number) = place.rsplit_once(':').unwrap();
        let file = if file == "??" { "" } else { file };
        let line_number = line_number.parse().unwrap_or(0);
        chains
            .last_mut()
            .unwrap()
            .insert(0, (line.to_owned(), file.to_owned(), line_number));
    }
    assert_eq!(chains.len(), addresses.len());
    Some(chains)
}

/// Returns the address and length of a function, by the symbol table.
pub fn function(binary: &Path, mangled: &str) -> (u64, u64) {
    let table = run("nm", &["-S", binary.to_str().unwrap()]);
    let line = table
        .lines()
        .find(|line| line.ends_with(&format!(" {mangled}")))
        .unwrap();
    let mut words = line.split(' ').map(|word| u64::from_str_radix(word, 16));
    (words.next().unwrap().unwrap(), words.next().unwrap().unwrap())
}

pub const CHECKOUT: &str = "_ZN4shop8checkoutEPKNS_4ItemEi";
pub const REFUND: &str = "_ZN4shop6refundERKNS_4ItemE";
