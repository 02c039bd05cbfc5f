//! Many patterns against one text: which of a thousand hold.
//!
//! Equalities are one look-up. For the others one pass of an Aho-Corasick automaton finds which of their texts occur,
//! and only patterns whose text occurs are run. What needs no text to match (`.*`) is run always.

use std::sync::Arc;

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous;
use aho_corasick::{Anchored, MatchKind, dfa};
use rustc_hash::FxHashMap;

use crate::pattern::{Kind, Pattern};
use crate::required::{TEXT_BYTES_MIN, required};

/// Bytes of texts up to which the automaton is a full table, four times as fast: it then takes at most 16 MiB.
const TABLE_BYTES_MAX: usize = 48 << 10;

/// The patterns of one field.
#[derive(Debug, Default)]
pub(crate) struct FieldMatcher {
    patterns: Vec<(u32, Arc<Pattern>)>,
    equal: FxHashMap<Box<str>, u32>,
    search: Option<Search>,
    /// For each text of the automaton, the patterns that need it.
    of_text: Vec<Vec<u32>>,
    always: Vec<u32>,
}

/// The automaton that finds texts.
#[derive(Debug)]
enum Search {
    Table(dfa::DFA),
    Small(contiguous::NFA),
}

impl Search {
    fn new(texts: &[Vec<u8>]) -> Option<Self> {
        let bytes: usize = texts.iter().map(Vec::len).sum();
        if bytes <= TABLE_BYTES_MAX {
            let built = dfa::Builder::new()
                .match_kind(MatchKind::Standard)
                .prefilter(false)
                .build(texts);
            built.ok().map(Self::Table)
        } else {
            let mut builder = contiguous::Builder::new();
            let built = builder
                .match_kind(MatchKind::Standard)
                .prefilter(false)
                .build(texts);
            built.ok().map(Self::Small)
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Table(automaton) => automaton.memory_usage(),
            Self::Small(automaton) => automaton.memory_usage(),
        }
    }

    /// Hands on each text that occurs, each time that it does.
    fn find(&self, text: &str, each: impl FnMut(usize)) {
        match self {
            Self::Table(automaton) => walk(automaton, text, each),
            Self::Small(automaton) => walk(automaton, text, each),
        }
    }
}

/// Walks an automaton over a text, a step per byte: the library's own iterator takes three times as long, since it could
/// stop and go on anywhere.
fn walk<A: Automaton>(automaton: &A, text: &str, mut each: impl FnMut(usize)) {
    let Ok(mut state) = automaton.start_state(Anchored::No) else {
        return;
    };
    for &byte in text.as_bytes() {
        state = automaton.next_state(Anchored::No, state, byte);
        if automaton.is_special(state) && automaton.is_match(state) {
            for at in 0..automaton.match_len(state) {
                each(automaton.match_pattern(state, at).as_usize());
            }
        }
    }
}

/// Which patterns were already run on the text at hand.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    stamps: Vec<u32>,
    now: u32,
}

impl FieldMatcher {
    /// Returns a matcher of patterns, each with the number that it is reported by.
    pub(crate) fn new(patterns: Vec<(u32, Arc<Pattern>)>) -> Self {
        let mut made = Self {
            patterns,
            ..Self::default()
        };
        let mut texts: FxHashMap<Vec<u8>, usize> = FxHashMap::default();
        for (at, (number, pattern)) in made.patterns.iter().enumerate() {
            let needed = match pattern.kind() {
                Kind::Is => {
                    made.equal.insert(pattern.text().into(), *number);
                    continue;
                }
                Kind::Starts => vec![pattern.text().as_bytes().to_vec()],
                Kind::Like => vec![
                    pattern
                        .glob()
                        .map_or(&[][..], |glob| glob.longest_part())
                        .to_vec(),
                ],
                Kind::Matches => required(pattern.text()),
            };
            if needed.is_empty() || needed.iter().any(|text| text.len() < TEXT_BYTES_MIN) {
                made.always.push(at as u32);
                continue;
            }
            for text in needed {
                let next = texts.len();
                let index = *texts.entry(text).or_insert(next);
                if index == made.of_text.len() {
                    made.of_text.push(Vec::new());
                }
                made.of_text[index].push(at as u32);
            }
        }
        let mut ordered = vec![Vec::new(); texts.len()];
        for (text, index) in texts {
            ordered[index] = text;
        }
        if !ordered.is_empty() {
            made.search = Search::new(&ordered);
            if made.search.is_none() {
                // Too many states for the library's ids, which our bounds on schemas do not allow; slow is still right.
                made.always.extend(made.of_text.iter().flatten());
                made.always.sort_unstable();
                made.always.dedup();
            }
        }
        made
    }

    /// Returns whether there is nothing to match.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the bytes that the automaton takes.
    pub(crate) fn bytes(&self) -> usize {
        let search = self.search.as_ref().map_or(0, Search::bytes);
        search + self.patterns.len() * 64
    }

    /// Appends the numbers of the patterns that hold for a text, in no order.
    pub(crate) fn find(&self, text: &str, seen: &mut Seen, found: &mut Vec<u32>) {
        if let Some(&number) = self.equal.get(text) {
            found.push(number);
        }
        for &at in &self.always {
            let (number, pattern) = &self.patterns[at as usize];
            if pattern.holds(text) {
                found.push(*number);
            }
        }
        let Some(search) = &self.search else { return };
        seen.begin(self.patterns.len());
        search.find(text, |occurs| {
            for &at in &self.of_text[occurs] {
                if !seen.first(at) {
                    continue;
                }
                let (number, pattern) = &self.patterns[at as usize];
                if pattern.holds(text) {
                    found.push(*number);
                }
            }
        });
    }
}

impl Seen {
    fn begin(&mut self, patterns: usize) {
        if self.stamps.len() < patterns {
            self.stamps.resize(patterns, 0);
        }
        self.now = self.now.wrapping_add(1);
        if self.now == 0 {
            self.stamps.fill(0);
            self.now = 1;
        }
    }

    fn first(&mut self, at: u32) -> bool {
        let stamp = &mut self.stamps[at as usize];
        let first = *stamp != self.now;
        *stamp = self.now;
        first
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns() -> impl Strategy<Value = Arc<Pattern>> {
        let text = prop_oneof!["[abc:]{0,6}", "[abc*]{0,8}", "(a|b|abc|bcd?|\\^a|c\\$|.){1,4}"];
        let kind = prop_oneof![
            Just(Kind::Is),
            Just(Kind::Starts),
            Just(Kind::Like),
            Just(Kind::Matches)
        ];
        (kind, text).prop_filter_map("a pattern", |(kind, text)| {
            Pattern::new(kind, &text).ok().map(Arc::new)
        })
    }

    proptest! {
        /// Checks that many patterns at once find what each finds alone.
        #[test]
        fn many_find_what_each_finds_alone(
            list in prop::collection::vec(patterns(), 0..24),
            texts in prop::collection::vec("[abcd:]{0,12}", 1..6),
        ) {
            let mut distinct: Vec<Arc<Pattern>> = Vec::new();
            for pattern in list {
                if !distinct.contains(&pattern) {
                    distinct.push(pattern);
                }
            }
            let numbered: Vec<(u32, Arc<Pattern>)> = (0..).zip(distinct).collect();
            let matcher = FieldMatcher::new(numbered.clone());
            let mut seen = Seen::default();
            for text in &texts {
                let mut found = Vec::new();
                matcher.find(text, &mut seen, &mut found);
                found.sort_unstable();
                let expected: Vec<u32> =
                    numbered.iter().filter(|(_, pattern)| pattern.holds(text)).map(|(number, _)| *number).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
