//! Schemas that mean harm: each is refused at its place, soon, and without much memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

use std::alloc::System;
use std::fmt::Write;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use strobe_stack_schema::{Library, Program, Source, StackSchemaError, check};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A refusal takes at most this long.
const REFUSED_IN: Duration = Duration::from_millis(50);
/// All that is allocated for it, freed or not, is at most this.
const BYTES_MAX: usize = 64 << 20;

/// Time of this thread on a core: others share the machine.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Refuses `text` and returns the first problem's line, column and words; fails where that took too long or too much.
fn refused(what: &str, text: &str) -> (u32, u32, String) {
    let source = Source::new("hostile.stacks", text);
    // The best of five: the first one fills caches.
    let mut best = Duration::MAX;
    let mut problem = None;
    for _ in 0..5 {
        let region = Region::new(ALLOCATOR);
        let begin = cpu();
        let error = Library::parse(std::slice::from_ref(&source))
            .map(|_| ())
            .expect_err(what);
        best = best.min(cpu().saturating_sub(begin));
        let allocated = region.change().bytes_allocated;
        assert!(allocated < BYTES_MAX, "{what}: {allocated} bytes");
        problem = error.problems().first().cloned();
        assert!(
            error.to_string().len() < 16_384,
            "{what}: the message itself is huge"
        );
    }
    assert!(best < REFUSED_IN, "{what}: {best:?}");
    let problem = problem.expect(what);
    (problem.line, problem.column, problem.message)
}

// One test: what is allocated is counted for the whole process.
/// Checks that brackets, rules, patterns, repetitions, files and definitions without end are refused at their place, in
/// under 50 ms and 64 MiB.
#[test]
fn hostile_schemas_are_refused_at_their_place() {
    let brackets = format!("schema x\nlet a = {}", "(".repeat(100_000));
    assert_eq!(
        refused("brackets", &brackets),
        (2, 41, "brackets nest over 32 deep".into())
    );

    let mut rules = String::from("schema x\n");
    for number in 0..1_000_000 {
        let _ = writeln!(rules, "rule r{number} {{ on leaf hide }}");
    }
    let (line, column, message) = refused("rules", &rules);
    assert_eq!((line, column), (2_002, 1), "{message}");

    let pattern = format!("schema x\nlet a = function matches \"{}\"", "a".repeat(1 << 20));
    let (line, column, message) = refused("pattern", &pattern);
    assert_eq!((line, column), (2, 26), "{message}");

    let pattern = format!(
        "schema x\nlet a = function matches \"{}\"",
        "(a|b)*".repeat(2_000)
    );
    let (line, column, message) = refused("long pattern", &pattern);
    assert_eq!(
        (line, column, &*message),
        (2, 26, "this pattern is over 1024 bytes long")
    );

    let repetition = "schema x\nlet a = function matches \"((((a{100}){100}){100}){100}){100}\"";
    let (line, column, message) = refused("repetition", repetition);
    assert_eq!((line, column), (2, 26));
    assert!(message.contains("bytes once compiled"), "{message}");

    let nested = format!(
        "schema x\nlet a = function matches \"{}a{}\"",
        "(".repeat(400),
        ")*".repeat(400)
    );
    let (line, column, message) = refused("nested repetition", &nested);
    assert_eq!((line, column), (2, 26), "{message}");

    let many: String = (0..200)
        .map(|number| format!("let a{number} = function matches \"(x{{900}}{number}){{9}}\"\n"))
        .collect();
    let (line, ..) = refused("many big expressions", &format!("schema x\n{many}"));
    assert_eq!(line, 26);

    let mut doubling = String::from("schema x\nlet a0 = leaf\n");
    for number in 1..100 {
        let _ = writeln!(doubling, "let a{number} = a{0} or not a{0}", number - 1);
    }
    let (line, _, message) = refused("doubling definitions", &doubling);
    assert_eq!(
        (line, &*message),
        (34, "definitions name each other over 32 deep")
    );

    let not = format!("schema x\nlet a = {}", "not ".repeat(300_000));
    assert_eq!(refused("not", &not).0, 2);

    let string = format!("schema x\nexample \"{}\" gives nothing", "f;".repeat(20_000));
    assert_eq!(refused("string", &string).0, 2);

    let open = format!("schema x\nowner \"{}", "a".repeat(10_000));
    let (line, column, message) = refused("open string", &open);
    assert_eq!((line, column), (2, 7), "{message}");

    let long = format!("schema x\n{}", "#".repeat(2 << 20));
    assert_eq!(refused("file", &long).0, 2);

    let letters = format!("schema x\n{}", "a".repeat(1 << 19));
    assert_eq!(refused("one word", &letters).0, 2);
}

/// Checks that a definition that doubles 31 times is harmless: it is one condition, compiled once.
#[test]
fn doubling_definitions_compile_to_one_condition_each() {
    let mut text = String::from("schema x\nlet a0 = function is \"f\" and leaf\n");
    for number in 1..31 {
        let _ = writeln!(
            text,
            "let a{number} = (a{0} and under a{0}) or not a{0}",
            number - 1
        );
    }
    text.push_str("rule r { on a30 hide }\n");
    let library = Library::parse(&[Source::new("x", &text)]).unwrap();
    let begin = Instant::now();
    Program::compile(&library, &["x"]).unwrap();
    check(&library, "x", true).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1));
}

/// Checks that each kind of mistake is told in words, with its place and a remedy.
#[test]
fn mistakes_are_told_in_words() {
    let cases = [
        (
            "schema x\nrule r { on functon is \"a\" hide }",
            2,
            13,
            "`functon`",
        ),
        ("schema x\nrule r { on leaf hide", 2, 22, "the end of the file"),
        (
            "schema x\nrule r { on no-such hide }",
            2,
            13,
            "nothing is called `no-such`",
        ),
        ("schema x\nrule r { hide }", 2, 10, "names none"),
        ("schema x\nrule r { on leaf }", 2, 6, "does nothing"),
        ("schema x\nrule r { on leaf tag stack a= }", 2, 28, "empty"),
        (
            "schema x\nrule r { on leaf tag stack \"{function}=a\" }",
            2,
            28,
            "spelled out",
        ),
        (
            "schema x\nrule r { on leaf tag stack \"a={who}\" }",
            2,
            18,
            "captures",
        ),
        (
            "schema x\nrule r { on leaf tag stack \"a={caller name}\" }",
            2,
            28,
            "place",
        ),
        (
            "schema x\nrule r { on function matches \"(\" hide }",
            2,
            30,
            "no regular expression",
        ),
        (
            "schema x\nrule r { on language is cobol hide }",
            2,
            25,
            "no language",
        ),
        (
            "schema x\nrule r priority 5000 { on leaf hide }",
            2,
            17,
            "-1000 to 1000",
        ),
        (
            "schema x\nrule r { on leaf hide }\nrule r { on root hide }",
            3,
            6,
            "already, in line 2",
        ),
        ("schema x\ninclude y", 2, 9, "no schema `y`"),
        ("schema x\ninclude x", 2, 9, "itself"),
        ("schema x\nexample \"a\"", 2, 9, "expects nothing"),
        ("schema x\nexample \"a;;b\" gives nothing", 2, 9, "frame 2"),
        (
            "schema x\nrule r { when line is 3 tag stack a }",
            2,
            15,
            "no line",
        ),
        ("schema x\nowner \"a\nversion 1", 2, 7, "quotes"),
        ("", 1, 1, "the end of the file"),
    ];
    for (text, line, column, words) in cases {
        let error = Library::parse(&[Source::new("x.stacks", text)]).expect_err(text);
        let problem = &error.problems()[0];
        assert_eq!(
            (problem.line, problem.column),
            (line, column),
            "{text}\n{problem}"
        );
        assert!(problem.message.contains(words), "{text}\n{problem}");
        assert!(problem.to_string().contains('^'), "{problem}");
    }
}

/// Checks that two schemas that include each other, and two that say different things of a key, are refused.
#[test]
fn schemas_that_contradict_each_other_are_refused() {
    let parse = |texts: &[&str]| {
        let sources: Vec<Source> = texts.iter().map(|text| Source::new("x", text)).collect();
        Library::parse(&sources).unwrap_err().to_string()
    };
    assert!(parse(&["schema a include b", "schema b include c", "schema c include a"]).contains("go round"));
    assert!(parse(&["schema a key k takes one", "schema b key k takes all"]).contains("says otherwise"));
    assert!(parse(&["schema a", "schema a"]).contains("another schema"));
    let chain: Vec<String> = (0..12)
        .map(|at| format!("schema s{at} include s{}", at + 1))
        .collect();
    let mut chain: Vec<&str> = chain.iter().map(String::as_str).collect();
    chain.push("schema s12");
    assert!(parse(&chain).contains("includes go over 8 deep"));
    let library = Library::parse(&[Source::new("a", "schema a")]).unwrap();
    assert!(
        matches!(Program::compile(&library, &["b"]), Err(StackSchemaError::Unknown(name)) if name == "b")
    );
}

/// Pieces that schemas are made of, and some that they are not.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(
            "schema version owner about services except include key takes one all nearest leaf root otherwise let rule \
             priority on when tag stack frame hide show fold recursion run cut callers callees rename to replace with \
             shorten templates drop suffixes and or not function type file module line depth is like starts matches \
             language called by under calling over anything inlined kernel any calls reaches service annotation example \
             gives nothing shows x y z a=b a/b 12 -3 ( ) { } = , # \n \" \\ / * ( ( ) )"
                .split(' ').map(str::to_owned).collect::<Vec<_>>()
        ),
        2 => "\"[ -~]{0,12}\"",
        1 => "\\PC{0,4}",
    ]
}

proptest! {
    /// Checks that no text whatever breaks the parser: it is read or refused.
    #[test]
    fn any_words_are_read_or_refused(pieces in prop::collection::vec(piece(), 0..60)) {
        let text = format!("schema x {}", pieces.join(" "));
        if let Err(error) = Library::parse(&[Source::new("x", &text)]) {
            prop_assert!(!error.problems().is_empty());
        }
    }
}
