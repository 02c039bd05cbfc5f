//! Rules of the house that a machine can hold.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use strobe_integration_tests::repository;

/// Lines of a source file at most, its tests included.
const LINES_MAX: usize = 600;
/// Files that are longer for now; each line is a debt.
const LONGER: [&str; 0] = [];

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A crate: its folder and its manifest.
struct Crate {
    folder: String,
    name: String,
    manifest: String,
}

impl Crate {
    /// Returns the names in `[dependencies]` and `[build-dependencies]`: what it is made of. Tests may use more.
    fn dependencies(&self) -> BTreeSet<String> {
        let mut section = "";
        let mut names = BTreeSet::new();
        for line in self.manifest.lines() {
            if line.starts_with('[') {
                section = line;
            } else if section.ends_with("dependencies]")
                && !section.contains("dev-")
                && !line.starts_with(['#', ' '])
            {
                names.extend(line.split(['.', ' ', '=']).next().map(str::to_owned));
            }
        }
        names.remove("");
        names
    }

    fn sources(&self) -> Vec<(String, String)> {
        let files = files(&repository().join(&self.folder).join("src"), "rs");
        files
            .into_iter()
            .map(|path| {
                let text = fs::read_to_string(&path).unwrap();
                let name = path.strip_prefix(repository()).unwrap().display().to_string();
                (name, text)
            })
            .collect()
    }
}

/// Returns every member of the workspace.
fn crates() -> Vec<Crate> {
    let workspace = read("Cargo.toml");
    let members = workspace
        .split("members = [")
        .nth(1)
        .unwrap()
        .split(']')
        .next()
        .unwrap();
    let crates: Vec<Crate> = members
        .split('"')
        .skip(1)
        .step_by(2)
        .map(|folder| {
            let manifest = read(Path::new(folder).join("Cargo.toml"));
            let name = manifest
                .split("name = \"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap();
            Crate {
                folder: folder.to_owned(),
                name: name.to_owned(),
                manifest: manifest.clone(),
            }
        })
        .collect();
    assert!(crates.len() > 10, "only {} crates were found", crates.len());
    crates
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns the table of ARCHITECTURE.md: which crates of ours each crate may use; nothing for "all".
fn arrows() -> BTreeMap<String, Option<Vec<String>>> {
    let page = read("ARCHITECTURE.md");
    let section = page
        .split("## Who may know whom")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let mut arrows = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split('|').skip(1);
        let (crates, may_use) = (cells.next().unwrap(), cells.next().unwrap());
        let may_use = may_use
            .split(';')
            .next()
            .unwrap()
            .replace("nothing of ours but ", "");
        let may_use = match may_use.trim() {
            "all" => None,
            "nothing of ours" => Some(Vec::new()),
            names => Some(
                names
                    .split(", ")
                    .map(|name| format!("strobe-{}", name.trim()))
                    .collect(),
            ),
        };
        for name in crates.split('`').skip(1).step_by(2) {
            arrows.insert(name.to_owned(), may_use.clone());
        }
    }
    arrows
}

/// Checks that no crate uses another of ours that the table of ARCHITECTURE.md does not allow, and that all are in it.
#[test]
fn arrows_between_crates_are_those_of_the_table() {
    let arrows = arrows();
    for own in crates() {
        let Some(may_use) = arrows.get(&own.name) else {
            panic!("ARCHITECTURE.md does not say whom {} may know", own.name);
        };
        for used in own
            .dependencies()
            .iter()
            .filter(|name| name.starts_with("strobe-"))
        {
            let allowed = may_use.as_ref().is_none_or(|names| names.contains(used));
            assert!(allowed, "{} may not use {used}", own.name);
        }
    }
    // The three kinds of parts never see one another, whatever the table says.
    let parts = ["strobe-agent", "strobe-processor", "strobe-sink"];
    for part in parts {
        let names = arrows[part].as_ref().unwrap();
        assert!(
            parts.iter().all(|other| !names.contains(&(*other).to_owned())),
            "{part}"
        );
    }
}

/// Checks that each foreign system has one crate that names it: in its manifest and in its sources.
#[test]
fn only_one_crate_names_each_foreign_system() {
    let owners = [
        ("rdkafka", "rdkafka::", "strobe-bus"),
        ("libbpf-rs", "libbpf_rs::", "strobe-bpf"),
        ("blazesym", "blazesym::", "strobe-symbols"),
    ];
    for own in crates() {
        for (library, path, owner) in owners {
            let named = own.dependencies().contains(library);
            assert!(!named || own.name == owner, "{} names {library}", own.name);
            let uses = own.sources().iter().any(|(_, text)| text.contains(path));
            assert!(!uses || own.name == owner, "{} uses {path}", own.name);
            assert!(
                uses || own.name != owner,
                "{owner} does not use {path}: is the rule still true?"
            );
        }
    }
}

/// Checks that only the kernel's crate steps outside of what the compiler proves.
#[test]
fn only_the_kernels_crate_is_unsafe() {
    let mut seen = false;
    for own in crates() {
        for (name, text) in own.sources() {
            let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|form| text.contains(form));
            assert!(!is_unsafe || own.name == "strobe-bpf", "{name}");
            seen |= is_unsafe;
        }
    }
    assert!(seen, "nothing is unsafe any more: has the rule lost its form?");
}

/// Checks that files stay short enough to read in one go.
#[test]
fn no_source_is_longer_than_it_should_be() {
    for own in crates() {
        for (name, text) in own.sources() {
            let lines = text.lines().count();
            let known = LONGER.contains(&name.as_str());
            assert!(
                lines <= LINES_MAX || known,
                "{name} has {lines} lines: look for the second idea"
            );
            assert!(
                lines > LINES_MAX || !known,
                "{name} is short again: take it off the list"
            );
        }
    }
}

/// Checks that no queue is without a bound, beyond what clippy sees: the word stands in no source.
#[test]
fn no_unbounded_channel_is_named() {
    for own in crates() {
        for (name, text) in own.sources() {
            for word in ["unbounded_channel(", "mpsc::channel("] {
                assert!(!text.contains(word), "{name} names {word}…)");
            }
        }
    }
}

/// Checks that every crate says what it is, and every test what it checks.
#[test]
fn crates_open_with_their_part_and_tests_are_sentences() {
    for own in crates() {
        let sources = own.sources();
        for (name, text) in &sources {
            assert!(text.starts_with("//!"), "{name} does not say what it is");
        }
        let tests = files(&repository().join(&own.folder).join("tests"), "rs");
        let tests = tests.into_iter().map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.display().to_string(), text)
        });
        for (name, text) in sources.into_iter().chain(tests) {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "#[test]") {
                let above = lines[..at]
                    .iter()
                    .rev()
                    .take_while(|line| line.starts_with("//") || line.starts_with("#["));
                assert!(
                    above.into_iter().any(|line| line.starts_with("/// ")),
                    "{name}:{}: a test without its sentence",
                    at + 1
                );
            }
        }
    }
}

/// Checks that every path that ARCHITECTURE.md and the house's pages name exists.
#[test]
fn the_paths_that_pages_name_exist() {
    for (page, least) in [("ARCHITECTURE.md", 15), ("README.md", 1)] {
        let text = read(page);
        // Blocks of code are for the shell.
        let prose: String = text.split("```").step_by(2).collect();
        let paths: BTreeSet<&str> = prose
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| {
                word.contains('/')
                    && !word.contains([' ', '<', '*', '$', ':', '{'])
                    && !word.starts_with(['/', '.', '-'])
            })
            .filter(|word| !word.starts_with("target/"))
            .collect();
        for path in &paths {
            assert!(
                repository().join(path).exists(),
                "{page} names {path}, which does not exist"
            );
        }
        assert!(
            paths.len() >= least,
            "{page}: only {paths:?} were found: has the page lost its form?"
        );
    }
}

/// Checks that the frozen schemas are schemas.
#[test]
fn every_frozen_schema_parses() {
    let schemas = files(&repository().join("schemas/avro"), "avsc");
    assert!(schemas.len() >= 3, "{schemas:?}");
    for path in schemas {
        let text = fs::read_to_string(&path).unwrap();
        if let Err(error) = apache_avro::Schema::parse_str(&text) {
            panic!("{}: {error}", path.display());
        }
    }
}
