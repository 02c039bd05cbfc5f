//! Bounds on what a schema may ask, and one pass over its text that holds them before anything is built.
//!
//! The pass costs a few nanoseconds per byte and no memory, so a hostile file is refused at its place before the parser
//! or the regular expressions have allocated for it.

use crate::diagnostic::{Diagnostic, Source, Span};

/// Most bytes of a file: a library of 1,000 rules with their examples takes half of it; a Kafka message holds it.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Deepest parentheses: deeper than people read; parser, compiler and matcher may recurse that far.
pub const NESTING_MAX: usize = 32;
/// Most rules of a file: twice the 1,000 that figures are given for.
pub const RULES_MAX: usize = 2_000;
/// Longest pattern, word, name template and tag, in bytes: longer than any function's name should be spelled by hand.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Longest piece of an example's stack, in bytes; pieces join, so this is about the length of a line.
pub const PIECE_BYTES_MAX: usize = 16 << 10;
/// Most parentheses, strings and other words of a file: five for each rule's every clause, twenty clauses a rule.
pub const WORDS_MAX: usize = 200_000;
/// Calls of grammar rules while a file is parsed: 40 for each byte of the longest file. Every rule that is tried is a
/// call, so a word that could be any of fifty keywords is fifty.
pub const PARSER_CALLS_MAX: usize = 40 * FILE_BYTES_MAX;
/// Memory of one compiled regular expression, in bytes: the worst hostile one was then refused in under 2 ms.
pub const REGEX_BYTES_MAX: usize = 256 << 10;
/// Memory of a regular expression, in bytes, up to which a file may have any number of them: ten times what people write.
pub const REGEX_SMALL_BYTES: usize = 16 << 10;
/// Most regular expressions of a file that take more than that: compiling one takes up to 2 ms.
pub const REGEX_LARGE_MAX: usize = 24;
/// Memory that one regular expression may take for its cache of states, in bytes.
pub const REGEX_CACHE_BYTES_MAX: usize = 256 << 10;
/// Most patterns of one test.
pub const ALTERNATIVES_MAX: usize = 1_000;
/// Schemas that include each other, deep.
pub const INCLUDES_MAX: usize = 8;
/// Most rules of all enabled schemas: ten times what figures are given for.
pub const ENABLED_RULES_MAX: usize = 10_000;
/// Most conditions on frames and their parts of all enabled schemas: thirty for each rule.
pub const ENABLED_NODES_MAX: usize = 300_000;

/// Holds the bounds on size, nesting, rules and words.
///
/// # Errors
/// The first that is passed, at the place where it is passed.
pub fn hold(source: &Source) -> Result<(), Diagnostic> {
    let bytes = source.text.as_bytes();
    let over = |at: usize, message: String, help: &str| {
        let span = Span {
            start: at as u32,
            end: at as u32 + 1,
        };
        Err(source.error(span, message).with_help(help))
    };
    let read = &bytes[..bytes.len().min(FILE_BYTES_MAX)];
    let (mut depth, mut rules, mut words) = (0_usize, 0_usize, 0_usize);
    let mut at = 0;
    while at < read.len() {
        let byte = read[at];
        match byte {
            b'#' => {
                at += memchr::memchr(b'\n', &read[at..]).unwrap_or(read.len() - at);
                continue;
            }
            b'"' => {
                let length = string_length(&read[at..]);
                if length > PIECE_BYTES_MAX {
                    return over(
                        at,
                        format!("this string is over {PIECE_BYTES_MAX} bytes long"),
                        "split a stack into several strings; say less in a pattern",
                    );
                }
                words += 1;
                at += length;
            }
            b'(' | b'{' => {
                depth += 1;
                words += 1;
                if depth > NESTING_MAX {
                    return over(
                        at,
                        format!("brackets nest over {NESTING_MAX} deep"),
                        "give the inner conditions names with `let`",
                    );
                }
                at += 1;
            }
            b')' | b'}' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ if byte.is_ascii_alphanumeric() => {
                let length = read[at..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_alphanumeric() || b"_-.*/:=+".contains(byte))
                    .count();
                if length > PATTERN_BYTES_MAX {
                    let message = format!("this word is over {PATTERN_BYTES_MAX} bytes long");
                    return over(at, message, "give it a shorter name");
                }
                words += 1;
                rules += usize::from(&read[at..at + length] == b"rule");
                if rules > RULES_MAX {
                    return over(
                        at,
                        format!("this is one rule more than the {RULES_MAX} that a file may have"),
                        "split the schema and join the parts with `include`",
                    );
                }
                at += length;
            }
            _ => at += 1,
        }
        if words > WORDS_MAX {
            return over(
                at,
                format!("this is one word more than the {WORDS_MAX} that a file may have"),
                "split the schema and join the parts with `include`",
            );
        }
    }
    if bytes.len() > FILE_BYTES_MAX {
        return over(
            FILE_BYTES_MAX,
            format!("the file is over {FILE_BYTES_MAX} bytes long"),
            "split the schema and join the parts with `include`",
        );
    }
    Ok(())
}

/// Returns the bytes of a string that begins here, both quotes counted; one that does not end ends with its line.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = memchr::memchr3(b'"', b'\\', b'\n', bytes.get(at..).unwrap_or_default()) {
        at += found;
        match bytes[at] {
            b'"' => return at + 1,
            b'\n' => return at,
            _ => at += 2,
        }
    }
    bytes.len()
}
