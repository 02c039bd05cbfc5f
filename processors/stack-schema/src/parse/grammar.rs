//! The parser that is made of the grammar, and its errors in words.
#![allow(
    missing_docs,
    reason = "the rules are made of the grammar's, where each is explained"
)]

use pest::error::{Error, ErrorVariant, InputLocation};

use crate::diagnostic::{Diagnostic, Source, Span};

#[derive(pest_derive::Parser)]
#[grammar = "stacks.pest"]
pub(super) struct Grammar;

/// A piece of text that a rule of the grammar stands for.
pub(super) type Pair<'a> = pest::iterators::Pair<'a, Rule>;

/// Most things that are named as expected; more of them help nobody.
const EXPECTED_MAX: usize = 8;

/// Returns the parser's error in the words of the language.
pub(super) fn explain(source: &Source, error: &Error<Rule>) -> Diagnostic {
    let start = match error.location {
        InputLocation::Pos(at) | InputLocation::Span((at, _)) => at,
    };
    let rest = source.text.get(start..).unwrap_or_default();
    let word = rest.split_whitespace().next().unwrap_or_default();
    let letters = word
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '-');
    let width = letters.map(char::len_utf8).sum::<usize>().max(1);
    let span = Span {
        start: start as u32,
        end: (start + width) as u32,
    };
    let said = match word.get(..width) {
        _ if rest.is_empty() => "the end of the file".to_owned(),
        Some(word) => format!("`{word}`"),
        None => "this".to_owned(),
    };
    let ErrorVariant::ParsingError { positives, .. } = &error.variant else {
        // The only other error is the bound on calls.
        return source
            .error(span, "this file takes too many steps to read")
            .with_help("split the schema and join the parts with `include`");
    };
    let mut expected: Vec<String> = Vec::new();
    for name in positives.iter().filter_map(|&expected| words(expected)) {
        if !expected.contains(&name) {
            expected.push(name);
        }
    }
    if rest.starts_with('"') && !positives.is_empty() && !expected.iter().any(|name| name.contains("quotes"))
    {
        return source.error(span, "a text in quotes does not belong here");
    }
    if rest.starts_with('"') {
        return source
            .error(span, "this text in quotes does not end in its line")
            .with_help("close it with `\"`, and put a backslash before a quote that belongs to it");
    }
    if ["is", "like", "starts", "matches"].contains(&word)
        && let Some((start, asked)) = word_before(&source.text, start)
    {
        let end = start + asked.len();
        let span = Span {
            start: start as u32,
            end: end as u32,
        };
        let message = format!("`{asked}` is nothing that `{word}` can ask");
        return source
            .error(span, message)
            .with_help("ask function, type, file or module of a frame; service, profiler, region, host, label … or annotation … of a stack");
    }
    let diagnostic = source.error(span, format!("{said} does not belong here"));
    if expected.is_empty() {
        return diagnostic;
    }
    let more = expected.len() > EXPECTED_MAX;
    expected.truncate(EXPECTED_MAX);
    let list = expected.join(", ");
    diagnostic.with_help(format!("expected {list}{}", if more { ", …" } else { "" }))
}

/// Returns the word before a place, and where it begins.
fn word_before(text: &str, place: usize) -> Option<(usize, &str)> {
    let before = text.get(..place)?.trim_end();
    let start = before
        .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-')
        .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
    Some((start, &before[start..])).filter(|(_, word)| !word.is_empty())
}

/// Returns what a person would call a rule; nothing for those that only hold others together.
fn words(expected: Rule) -> Option<String> {
    let text = match expected {
        Rule::name | Rule::named => "a name",
        Rule::string | Rule::strings => "a text in quotes",
        Rule::integer => "a number",
        Rule::frames | Rule::frames_and | Rule::frames_not | Rule::operand => "a condition on a frame",
        Rule::stack | Rule::stack_and | Rule::stack_not => "a condition on a stack",
        Rule::tag_text | Rule::tag_word => "a tag",
        Rule::value | Rule::values | Rule::word => "a value",
        Rule::op => "is, like, starts or matches",
        Rule::rule => "rule",
        Rule::EOI => "the end of the file",
        Rule::text_test => "function, type, file or module",
        Rule::number_test => "line or depth",
        Rule::flag => "inlined, kernel, user, leaf, root or unnamed",
        Rule::relation => "called by, under, calling or over",
        Rule::context_test => "service, profiler, region, host, label or annotation",
        Rule::define => "let",
        Rule::covers => "services, profilers or regions",
        other => {
            let name = format!("{other:?}");
            let word = name.strip_prefix("k_").or_else(|| name.strip_prefix("t_"));
            return Some(format!("`{}`", word.unwrap_or(&name).replace('_', " ")));
        }
    };
    Some(text.to_owned())
}
