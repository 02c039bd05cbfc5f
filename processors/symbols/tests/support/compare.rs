//! Symbol files beside another tool's answers, address by address.
// Each test file uses its own part.
#![allow(dead_code)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection, ObjectSymbol};
use strobe_symbols::file::{Place, SymbolFile};
use strobe_symbols::{Conversion, ConvertLimits, ConvertSources, Converter};

use super::{Chain, raw_opinion, worker};

/// A program in C with what inlining and clones make of functions: static ones, recursion, tail calls, a cold path.
pub const PROGRAM_C: &str = r#"
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

pub fn converter() -> Converter {
    Converter {
        worker: worker(),
        debug_folders: Vec::new(),
        limits: ConvertLimits::default(),
    }
}

/// Makes the symbol file of a binary and opens it.
pub fn symbol_file(converter: &Converter, sources: ConvertSources<'_>, place: &Path) -> SymbolFile {
    match converter.convert(sources, place).unwrap() {
        Conversion::Made { sizes, .. } => {
            SymbolFile::open(Box::new(File::open(place).unwrap()), sizes.file, 16 << 20).unwrap()
        }
        failed => panic!("{failed:?}"),
    }
}

/// Returns every `step`th address of a binary's code.
pub fn addresses(binary: &Path, step: usize) -> Vec<u64> {
    let bytes = fs::read(binary).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    let text = elf.section_by_name(".text").unwrap();
    (text.address()..text.address() + text.size())
        .step_by(step)
        .collect()
}

/// Returns the addresses of symbols by name: several names of one address are as good as one another.
pub fn symbol_addresses(binary: &Path) -> HashMap<String, Vec<u64>> {
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

pub fn chain(file: &mut SymbolFile, address: u64) -> Chain {
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
pub fn unsuffixed(name: &str) -> &str {
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
pub struct Seen {
    pub compared: usize,
    pub named: usize,
    pub inlined: usize,
}

/// Compares every address of a binary, `described` by the debug information in another file where it is stripped.
pub fn compare(
    name: &str,
    file: &mut SymbolFile,
    binary: &Path,
    described: &Path,
    step: usize,
) -> Option<Seen> {
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

/// Returns whether two paths name one file: `a/./b` and `a/b` do.
fn same_path(ours: &str, theirs: &str) -> bool {
    let parts = |path: &str| Path::new(path).components().collect::<PathBuf>();
    parts(ours) == parts(theirs)
}
