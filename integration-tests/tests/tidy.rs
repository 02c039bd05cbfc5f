//! Rules of the house that a machine can hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use strobe_integration_tests::repository;

/// Which crates may name which: the table of ARCHITECTURE.md.
const ARROWS: [(&str, &str, &[&str]); 13] = [
    ("bpf", "strobe-bpf", &[]),
    ("schemas/event", "strobe-event", &[]),
    ("schemas/sampling", "strobe-sampling", &[]),
    ("schemas/store", "strobe-store", &["strobe-event"]),
    ("schemas/bus", "strobe-bus", &["strobe-event"]),
    ("producers/spool", "strobe-spool", &[]),
    (
        "producers/agent",
        "strobe-agent",
        &[
            "strobe-bpf",
            "strobe-bus",
            "strobe-event",
            "strobe-spool",
            "strobe-store",
        ],
    ),
    (
        "processors/symbols",
        "strobe-symbols",
        &["strobe-event", "strobe-store"],
    ),
    (
        "processors",
        "strobe-processor",
        &[
            "strobe-bus",
            "strobe-event",
            "strobe-sampling",
            "strobe-store",
            "strobe-symbols",
        ],
    ),
    ("sinks/explore", "strobe-explore", &["strobe-event"]),
    ("sinks/export", "strobe-export", &[]),
    (
        "sinks/clickhouse",
        "strobe-sink",
        &["strobe-bus", "strobe-event", "strobe-explore"],
    ),
    ("integration-tests", "strobe-integration-tests", &[]),
];

/// Returns the names in `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Checks that no crate names another of ours that it may not know.
#[test]
fn arrows_between_crates_are_the_allowed_ones() {
    for (folder, name, allowed) in ARROWS {
        let manifest = fs::read_to_string(repository().join(folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{folder}");
        for dependency in dependencies(&manifest)
            .iter()
            .filter(|dependency| dependency.starts_with("strobe-"))
        {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} may not use {dependency}"
            );
        }
    }
}

/// Checks that rdkafka is named by the bus alone, and libbpf by the kernel's crate alone.
#[test]
fn only_one_crate_names_each_foreign_system() {
    let owners = BTreeMap::from([
        ("rdkafka", "schemas/bus"),
        ("libbpf-rs", "bpf"),
        ("blazesym", "processors/symbols"),
    ]);
    for (folder, ..) in ARROWS {
        let manifest = fs::read_to_string(repository().join(folder).join("Cargo.toml")).unwrap();
        for (library, owner) in &owners {
            let named = dependencies(&manifest)
                .iter()
                .any(|dependency| dependency == library);
            assert!(!named || folder == *owner, "{folder} names {library}");
        }
    }
}

/// Checks that every path that ARCHITECTURE.md names exists.
#[test]
fn the_paths_of_the_architecture_exist() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let paths = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.contains('/') && !word.contains([' ', '<', '*']) && !word.starts_with('/'));
    let mut seen = 0;
    for path in paths {
        assert!(repository().join(path).exists(), "{path} does not exist");
        seen += 1;
    }
    assert!(
        seen > 15,
        "only {seen} paths were found: has the page lost its form?"
    );
}

/// Checks that no queue is without a bound, beyond what clippy sees: the word stands in no source.
#[test]
fn no_unbounded_channel_is_named() {
    for (folder, ..) in ARROWS {
        for source in sources(&repository().join(folder).join("src")) {
            let text = fs::read_to_string(&source).unwrap();
            assert!(!text.contains("unbounded_channel("), "{}", source.display());
        }
    }
}
