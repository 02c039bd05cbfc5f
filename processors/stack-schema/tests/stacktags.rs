//! Files of Microsoft's stack tags, imported.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use strobe_stack_schema::folded;
use strobe_stack_schema::stacktags::import;
use strobe_stack_schema::{Context, Library, Lists, Matcher, Program, Source, StackSchemaError, check, test};

fn browser() -> (Library, String, Vec<String>) {
    let source = Source::new(
        "browser.stacktags",
        include_str!("data/stacktags/browser.stacktags"),
    );
    let imported = import("browser", &source).unwrap();
    let library = Library::parse(&[Source::new("browser.stacks", &imported.text)]);
    let library = library.unwrap_or_else(|error| panic!("{error}\n{}", imported.text));
    let notes = imported.notes.iter();
    (
        library,
        imported.text,
        notes
            .map(|note| format!("{}:{}: {}", note.line, note.column, note.message))
            .collect(),
    )
}

/// Checks the schema that an import writes against the one in the repository, and what it says it could not carry over.
#[test]
fn an_import_writes_the_golden_schema() {
    let (_, text, notes) = browser();
    let made = format!("{text}\n# notes\n# {}\n", notes.join("\n# "));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stacktags/browser.stacks");
    if std::env::var_os("STROBE_BLESS").is_some() {
        fs::write(&golden, &made).unwrap();
    }
    assert_eq!(made, fs::read_to_string(golden).unwrap());
}

/// Checks that an imported schema passes its own tests and has nothing to warn of but what the file says twice.
#[test]
fn an_imported_schema_passes_its_own_tests() {
    let (library, ..) = browser();
    let report = test(&library, "browser").unwrap();
    assert!(report.failures.is_empty() && report.passed >= 7, "{report:?}");
    let problems = check(&library, "browser", true).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

/// Checks what stacks and frames are tagged as, by the rules of the format.
#[test]
fn tags_are_those_of_the_original() {
    let (library, ..) = browser();
    let mut matcher = Matcher::new(Arc::new(Program::compile(&library, &["browser"]).unwrap()));
    let mut tags = |stack: &str| {
        let frames = folded::parse(stack).unwrap();
        let locations: Vec<_> = frames
            .iter()
            .map(|frame| matcher.location(&frame.location()))
            .collect();
        let id = matcher.stack(&locations);
        let context = matcher.context(&Context::default());
        let outcome = matcher.outcome(id, context);
        let mut lists = Lists::default();
        let outcome = matcher.get(id, outcome, &mut lists);
        let stack: Vec<String> = outcome
            .tags
            .iter()
            .map(|&tag| matcher.tag(tag).to_owned())
            .collect();
        let frames: Vec<String> = outcome
            .frame_tags
            .iter()
            .map(|&(at, tag)| format!("{at} {}", matcher.tag(tag)))
            .collect();
        (stack.join(" "), frames.join(" "))
    };
    // The tag nearest to the leaf,
    let layout = "main;PaintAll {module html.dll};Layout::Measure(int) {module html.dll};memcpy";
    assert_eq!(tags(layout).0, "stacktag=HTML/Layout");
    // unless another has a higher priority; nested tags take the one around them.
    assert_eq!(
        tags("RunScript {module script.ni.dll};x {module html.dll}").0,
        "stacktag=HTML/Script"
    );
    assert_eq!(
        tags("Run {module script.dll};A::Invoke(int) {module script.dll};x {module html.dll}").0,
        "stacktag=HTML/Script/OM"
    );
    // A hint is named by whom the entry point calls, and gives that frame its tag;
    let (stack, frames) = tags("main;Invoke {module rpcrt4.dll};serve {module server.dll};work");
    assert_eq!(stack, "stacktag=RPC/server.dll");
    assert_eq!(frames, "1 stacktag=RPC 2 stacktag=RPC/server.dll");
    // or by who calls it, with the method if the module alone is not asked for.
    let (stack, frames) =
        tags("main;parse {module app.exe};RtlAllocateHeap {module ntdll.dll};RtlpHeap {module ntdll.dll}");
    assert_eq!(stack, "stacktag=Heap/app.exe!parse");
    assert_eq!(
        frames,
        "1 stacktag=Heap/app.exe!parse 2 stacktag=Heap 3 stacktag=Heap"
    );
    // No entry point, no tag.
    assert_eq!(tags("main;other {module other.dll}").0, "");
}

/// Checks that what is no file of stack tags is refused at its place.
#[test]
fn other_files_are_refused() {
    let error = import(
        "x",
        &Source::new("x.stacktags", "<Tag Name=\"a\">\n  <Tag>\n</Nag>"),
    )
    .unwrap_err();
    assert!(
        matches!(error, StackSchemaError::NotStackTags { line: 3, .. }),
        "{error}"
    );
    let deep = format!("{}{}", "<Tag Name=\"a\">".repeat(20_000), "</Tag>".repeat(20_000));
    let imported = import("x", &Source::new("deep.stacktags", &deep));
    assert!(imported.is_err() || imported.is_ok_and(|imported| !imported.notes.is_empty()));
}

proptest! {
    /// Checks that any names and patterns give a schema that can be read.
    #[test]
    fn any_names_give_a_schema(name in "[ -~]{1,12}", module in "[ -~]{1,8}", method in "[ -~]{1,12}", hint: bool) {
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
        let element = if hint { "HintTag" } else { "Tag" };
        let text = format!(
            "<Tag><{element} Name=\"{}\" HintOperator=\"Callee\"><Entrypoint Module=\"{}\" Method=\"{}\"/></{element}></Tag>",
            escape(&name), escape(&module), escape(&method),
        );
        let imported = import("any", &Source::new("any.stacktags", &text)).unwrap();
        if let Err(error) = Library::parse(&[Source::new("any.stacks", &imported.text)]) {
            prop_assert!(false, "{}\n{}", error, imported.text);
        }
    }
}
