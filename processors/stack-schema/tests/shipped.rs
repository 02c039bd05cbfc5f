//! The schemas that come with Strobe: their examples, and what they make of stacks recorded from real programs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strobe_stack_schema::folded;
use strobe_stack_schema::{Context, Library, Lists, Matcher, Program, Severity, Source, Trial, check, test};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources() -> Vec<Source> {
    let mut sources: Vec<Source> = fs::read_dir(repository().join("schemas/stacks"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "stacks"))
        .map(|path| {
            Source::new(
                path.file_name().unwrap().to_str().unwrap(),
                &fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources
}

fn library() -> Library {
    Library::parse(&sources()).unwrap_or_else(|error| panic!("{error}"))
}

/// A recording: its name, and stacks with how many samples each had.
fn recordings() -> BTreeMap<String, Vec<(Vec<folded::FoldedFrame>, u64)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/recorded");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "folded"))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let stacks = text.lines().map(|line| {
                let (stack, count) = line.rsplit_once(' ').unwrap();
                (folded::parse(stack).unwrap(), count.parse().unwrap())
            });
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                stacks.collect(),
            )
        })
        .collect()
}

/// Checks that each schema's examples are true, that each of its rules has one, and that no rule is without use.
#[test]
fn every_schema_passes_its_own_tests() {
    let library = library();
    let mut wrong = Vec::new();
    for schema in library.schemas() {
        let report = test(&library, &schema.name).unwrap();
        assert!(
            report.passed >= schema.rules.len() || !report.failures.is_empty(),
            "{}",
            schema.name
        );
        let problems = check(&library, &schema.name, false).unwrap();
        wrong.extend(problems.iter().map(ToString::to_string));
        assert!(
            problems
                .iter()
                .all(|problem| problem.severity >= Severity::Warning)
        );
        assert!(
            !schema.owner.is_empty() && !schema.about.is_empty(),
            "{} says not what it is",
            schema.name
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Checks that all of them together can be enabled, in either order, and that the folder's page names each.
#[test]
fn all_schemas_can_be_enabled_together() {
    let library = library();
    let names: Vec<&str> = library.schemas().map(|schema| &*schema.name).collect();
    assert!(names.len() >= 12, "{names:?}");
    let program = Program::compile(&library, &names).unwrap();
    let turned: Vec<&str> = names.iter().rev().copied().collect();
    assert_eq!(
        program.schemas(),
        Program::compile(&library, &turned).unwrap().schemas()
    );
    let page = fs::read_to_string(repository().join("schemas/stacks/README.md")).unwrap();
    for name in names {
        assert!(
            page.contains(&format!("`{name}.stacks`")),
            "{name} is not on the page"
        );
    }
}

/// Checks what all schemas together make of recorded stacks against a golden file: the share of samples per tag.
#[test]
fn recorded_stacks_are_tagged_as_in_the_golden_file() {
    let library = library();
    let names: Vec<&str> = library.schemas().map(|schema| &*schema.name).collect();
    let program = Arc::new(Program::compile(&library, &names).unwrap());
    let mut made = String::new();
    for (name, stacks) in recordings() {
        let mut trial = Trial::new(Arc::clone(&program));
        let mut samples = 0;
        for (stack, count) in &stacks {
            let locations: Vec<_> = stack.iter().map(folded::FoldedFrame::location).collect();
            trial.add(
                &locations,
                &Context {
                    service: &name,
                    ..Context::default()
                },
                *count as f64,
            );
            samples += count;
        }
        let report = trial.report();
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let _ = writeln!(
            made,
            "{name}: {samples} samples, untagged {}, frames left out {}, renamed {}",
            percent(report.untagged),
            percent(report.frames_left_out),
            percent(report.frames_renamed)
        );
        for (tag, share) in &report.tags {
            let _ = writeln!(made, "  {:>7}  {tag}", percent(*share));
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/recorded/tags.txt");
    if std::env::var_os("STROBE_BLESS").is_some() {
        fs::write(&golden, &made).unwrap();
    }
    assert_eq!(made, fs::read_to_string(golden).unwrap());
}

/// Checks that each schema says something of some recorded stack: none is written for names that do not occur.
#[test]
fn every_schema_says_something_of_recorded_stacks() {
    let library = library();
    // No program of those that were recorded speaks RPC.
    let mut silent: BTreeSet<&str> = library
        .schemas()
        .map(|schema| &*schema.name)
        .filter(|name| *name != "rpc")
        .collect();
    let recordings = recordings();
    for schema in library.schemas() {
        let program = Arc::new(Program::compile(&library, &[&schema.name]).unwrap());
        let mut matcher = Matcher::new(program);
        let context = matcher.context(&Context::default());
        for (stack, _) in recordings.values().flatten() {
            let locations: Vec<_> = stack
                .iter()
                .map(|frame| matcher.location(&frame.location()))
                .collect();
            let id = matcher.stack(&locations);
            let outcome = matcher.outcome(id, context);
            let mut lists = Lists::default();
            let outcome = matcher.get(id, outcome, &mut lists);
            if !outcome.tags.is_empty() || !outcome.marks.is_empty() {
                silent.remove(&*schema.name);
            }
        }
    }
    assert!(silent.is_empty(), "{silent:?}");
}
