//! Texts of which a regular expression needs at least one to match: what a search for many texts at once looks for, so
//! that the expression itself runs on few names.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

use crate::limits::NESTING_MAX;

/// Most texts for one expression: more of them find more candidates than they save.
const TEXTS_MAX: usize = 16;
/// Largest class of characters that is written out: two cases of a letter, a digit or two.
const CLASS_MAX: usize = 4;
/// Shortest text that is worth looking for: a shorter one is in nearly every name.
pub(crate) const TEXT_BYTES_MIN: usize = 3;

/// What is known of a part of an expression.
#[derive(Debug, Clone)]
struct Known {
    /// All texts that the part can match, where they are few.
    exact: Option<Vec<Vec<u8>>>,
    /// Texts of which every match holds one; empty if none is known.
    needed: Vec<Vec<u8>>,
}

impl Known {
    fn nothing() -> Self {
        Self {
            exact: None,
            needed: Vec::new(),
        }
    }

    fn exact(texts: Vec<Vec<u8>>) -> Self {
        Self {
            exact: Some(texts),
            needed: Vec::new(),
        }
    }

    /// Returns the better of what is needed: the longest shortest text, then the fewest.
    fn best(&self) -> &[Vec<u8>] {
        match &self.exact {
            Some(texts) if value(texts) > value(&self.needed) => texts,
            _ => &self.needed,
        }
    }
}

fn value(texts: &[Vec<u8>]) -> (usize, usize) {
    let shortest = texts.iter().map(Vec::len).min().unwrap_or(0);
    (shortest, usize::MAX - texts.len())
}

/// Returns texts of which each match of `pattern` holds at least one; none where the expression has to be run always.
pub(crate) fn required(pattern: &str) -> Vec<Vec<u8>> {
    let parsed = ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .nest_limit(NESTING_MAX as u32)
        .build()
        .parse(pattern);
    let Ok(hir) = parsed else { return Vec::new() };
    let known = of(&hir);
    let best = known.best();
    if best.iter().any(|text| text.len() < TEXT_BYTES_MIN) {
        return Vec::new();
    }
    best.to_vec()
}

fn of(hir: &Hir) -> Known {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Known::exact(vec![Vec::new()]),
        HirKind::Literal(literal) => Known::exact(vec![literal.0.to_vec()]),
        HirKind::Class(class) => match class {
            regex_syntax::hir::Class::Bytes(class) => {
                let ranges = class
                    .ranges()
                    .iter()
                    .map(|range| usize::from(range.end() - range.start()) + 1);
                if ranges.sum::<usize>() > CLASS_MAX {
                    return Known::nothing();
                }
                let bytes = class
                    .ranges()
                    .iter()
                    .flat_map(|range| range.start()..=range.end());
                Known::exact(bytes.map(|byte| vec![byte]).collect())
            }
            regex_syntax::hir::Class::Unicode(_) => Known::nothing(),
        },
        HirKind::Capture(capture) => of(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            let inner = of(&repetition.sub);
            Known {
                exact: None,
                needed: inner.best().to_vec(),
            }
        }
        HirKind::Repetition(_) => Known::nothing(),
        HirKind::Alternation(parts) => alternation(parts),
        HirKind::Concat(parts) => concat(parts),
    }
}

fn alternation(parts: &[Hir]) -> Known {
    let known: Vec<Known> = parts.iter().map(of).collect();
    let exact: Option<Vec<Vec<u8>>> = known
        .iter()
        .map(|part| part.exact.clone())
        .collect::<Option<Vec<_>>>()
        .map(|texts| texts.concat())
        .filter(|texts| texts.len() <= TEXTS_MAX);
    // One alternative of which nothing is known makes the whole one of which nothing is known.
    let mut needed = Vec::new();
    for part in &known {
        let best = part.best();
        if best.is_empty() || needed.len() + best.len() > TEXTS_MAX {
            return Known {
                exact,
                needed: Vec::new(),
            };
        }
        needed.extend_from_slice(best);
    }
    Known { exact, needed }
}

fn concat(parts: &[Hir]) -> Known {
    let mut run = vec![Vec::new()];
    let mut whole = true;
    let mut needed: Vec<Vec<u8>> = Vec::new();
    let keep = |texts: &[Vec<u8>], needed: &mut Vec<Vec<u8>>| {
        if value(texts) > value(needed) {
            *needed = texts.to_vec();
        }
    };
    for part in parts {
        let known = of(part);
        match known.exact {
            Some(texts) if texts.len() * run.len() <= TEXTS_MAX => {
                run = run
                    .iter()
                    .flat_map(|head| texts.iter().map(move |tail| [&head[..], tail].concat()))
                    .collect();
            }
            _ => {
                whole = false;
                keep(&run, &mut needed);
                keep(known.best(), &mut needed);
                run = vec![Vec::new()];
            }
        }
    }
    if whole {
        return Known::exact(run);
    }
    keep(&run, &mut needed);
    Known { exact: None, needed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(pattern: &str) -> Vec<String> {
        required(pattern)
            .into_iter()
            .map(|text| String::from_utf8(text).unwrap())
            .collect()
    }

    /// Checks what is looked for in expressions of the shapes that people write.
    #[test]
    fn the_longest_sure_text_is_looked_for() {
        assert_eq!(texts("^std::vector<.*>::push_back"), ["std::vector<"]);
        assert_eq!(texts("(malloc|calloc)$"), ["malloc", "calloc"]);
        assert_eq!(texts(r"\bhash(Table|Map)::"), ["hashTable::", "hashMap::"]);
        assert_eq!(texts("(?i)abc").len(), 8);
        assert_eq!(texts(".*"), [""; 0]);
        assert_eq!(texts("a|bcd"), [""; 0]);
        assert_eq!(texts("(abc)*xyz"), ["xyz"]);
        assert_eq!(texts("(?:abc.)+"), ["abc"]);
    }

    proptest! {
        /// Checks that whatever an expression matches holds one of its texts.
        #[test]
        fn a_match_holds_a_required_text(
            pattern in r"(abc|a|b|c|\(ab\|bca\)|\[ab\]|a\?|b\*|c\+|\.|\(abc\)\{1,2\}|\^|\$){1,6}",
            text in "[abc]{0,12}",
        ) {
            let required = required(&pattern);
            if crate::pattern::regex(&pattern).is_ok_and(|(regex, _)| regex.is_match(text.as_bytes())) && !required.is_empty() {
                let held = required.iter().any(|needle| memchr::memmem::find(text.as_bytes(), needle).is_some());
                prop_assert!(held, "{} matches {} without {:?}", pattern, text, required);
            }
        }
    }
}
