//! Every construct of the language, by the examples of its page.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

use strobe_stack_schema::{Library, Severity, Source, check, test};

const PAGE: &str = include_str!("../LANGUAGE.md");
const SHARED: &str = "schema shared\nlet allocator = function is \"malloc\"\n\
    rule allocator { on allocator tag stack shared=allocator example \"malloc\" gives shared=allocator }\n";

/// Returns the page's blocks, each as a whole file, with the line it begins in.
fn blocks() -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(PAGE.lines()) {
        match (&mut open, line) {
            (None, "```stacks") => open = Some((number, String::new())),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some((_, text)), line) => {
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    blocks
        .into_iter()
        .map(|(line, text)| {
            let whole = if text.starts_with("schema ") {
                text
            } else {
                format!("schema page\n{text}")
            };
            (line, whole)
        })
        .collect()
}

/// Checks that each block of the page is a schema whose examples are true and whose rules all have one.
#[test]
fn every_example_of_the_page_is_true() {
    let blocks = blocks();
    assert!(
        blocks.len() >= 10,
        "only {} blocks: has the page lost its form?",
        blocks.len()
    );
    for (line, text) in blocks {
        let name = text.split_whitespace().nth(1).unwrap().to_owned();
        let sources = [
            Source::new(&format!("LANGUAGE.md line {line}"), &text),
            Source::new("shared", SHARED),
        ];
        let library = Library::parse(&sources).unwrap_or_else(|error| panic!("{error}"));
        let report = test(&library, &name).unwrap();
        let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
        assert!(report.passed > 0, "line {line} has no example");
        let problems = check(&library, &name, false).unwrap();
        let wrong: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
        assert!(problems.iter().all(|problem| problem.severity < Severity::Error));
    }
}

/// Checks that the page uses every word of the grammar that people write, so that a new one is not left unsaid.
#[test]
fn the_page_uses_every_word_of_the_grammar() {
    let grammar = include_str!("../src/stacks.pest");
    let rules = grammar.lines().filter(|line| line.contains("~ !letter }"));
    let mut seen = 0;
    for word in rules.flat_map(|line| line.split('"').skip(1).step_by(2)) {
        let used = blocks().iter().any(|(_, text)| {
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
                .any(|used| used == word)
        });
        assert!(
            used || PAGE.contains(&format!("`{word}")),
            "the page never says `{word}`"
        );
        seen += 1;
    }
    assert!(
        seen > 60,
        "only {seen} words were found: has the grammar lost its form?"
    );
}
