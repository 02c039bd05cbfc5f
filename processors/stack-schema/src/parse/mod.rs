//! Text → model. The grammar says what a schema looks like, this says what it means, and both point at the place.

mod conditions;
mod grammar;
mod rules;

use std::num::NonZeroUsize;
use std::sync::{Arc, Once};

use pest::Parser;
use rustc_hash::FxHashMap;

use crate::diagnostic::{Diagnostic, Source, Span};
use crate::error::PROBLEMS_MAX;
use crate::limits::{
    self, ALTERNATIVES_MAX, NESTING_MAX, PARSER_CALLS_MAX, REGEX_LARGE_MAX, REGEX_SMALL_BYTES,
};
use crate::model::{Cover, Definition, FrameCond, Key, Schema, Subject, Takes};
use crate::pattern::{Kind, Pattern};

pub(crate) use rules::{captures, field_of};

use grammar::{Grammar, Pair, Rule};

/// Conditions with names that a schema may use, and how deep definitions nest in each.
pub(crate) type Scope = FxHashMap<Arc<str>, (Arc<FrameCond>, usize)>;

/// A file that has the form of a schema, whose meaning nobody has looked at yet.
pub(crate) struct Outline<'a> {
    source: &'a Source,
    file: Pair<'a>,
    /// Name of the schema.
    pub name: Arc<str>,
    /// Where the name stands.
    pub span: Span,
    /// Names of the schemas that it includes.
    pub includes: Vec<(Arc<str>, Span)>,
}

impl<'a> Outline<'a> {
    /// Returns the file that it is of.
    pub(crate) fn source(&self) -> &'a Source {
        self.source
    }
}

/// Returns the outline of a file.
///
/// # Errors
/// The first place where it does not have the form of a schema, or passes a bound.
pub(crate) fn outline(source: &Source) -> Result<Outline<'_>, Diagnostic> {
    // The bound is the process's, for every grammar of this library: it is set once and never lifted.
    static CALLS: Once = Once::new();
    CALLS.call_once(|| pest::set_call_limit(NonZeroUsize::new(PARSER_CALLS_MAX)));
    limits::hold(source)?;
    let parsed = Grammar::parse(Rule::file, &source.text);
    let file = match parsed.map(|mut pairs| pairs.next()) {
        Ok(Some(file)) => file,
        Ok(None) => return Err(source.error(Span::default(), "the file is empty")),
        Err(error) => return Err(grammar::explain(source, &error)),
    };
    let mut outline = Outline {
        source,
        name: "".into(),
        span: Span::default(),
        includes: Vec::new(),
        file,
    };
    for item in outline.file.clone().into_inner() {
        match item.as_rule() {
            Rule::schema => {
                for name in item.into_inner().filter(|pair| pair.as_rule() == Rule::name) {
                    (outline.name, outline.span) = (name.as_str().into(), span(&name));
                }
            }
            Rule::include => {
                let names = item.into_inner().filter(|pair| pair.as_rule() == Rule::name);
                outline
                    .includes
                    .extend(names.map(|name| (name.as_str().into(), span(&name))));
            }
            _ => {}
        }
    }
    Ok(outline)
}

/// Returns the schema of an outline; `scope` holds the definitions of what it includes.
///
/// # Errors
/// Everything that is wrong with it, in the order of the text, up to [`PROBLEMS_MAX`].
pub(crate) fn schema(outline: Outline<'_>, scope: Scope) -> Result<Schema, Vec<Diagnostic>> {
    let mut reader = Reader {
        source: outline.source,
        scope,
        problems: Vec::new(),
        patterns: FxHashMap::default(),
        deepest: 0,
        large: 0,
        stop: false,
    };
    let mut schema = Schema {
        source: outline.source.clone(),
        name: outline.name,
        span: outline.span,
        version: 1,
        owner: String::new(),
        about: String::new(),
        coverage: Vec::new(),
        includes: outline.includes,
        keys: Vec::new(),
        definitions: Vec::new(),
        rules: Vec::new(),
        examples: Vec::new(),
    };
    for item in outline.file.into_inner() {
        reader.item(&mut schema, item);
        if reader.stop || reader.problems.len() >= PROBLEMS_MAX {
            break;
        }
    }
    if reader.problems.is_empty() {
        Ok(schema)
    } else {
        reader.problems.truncate(PROBLEMS_MAX);
        Err(reader.problems)
    }
}

fn span(pair: &Pair<'_>) -> Span {
    let at = pair.as_span();
    // Files are under 4 GiB by far: `FILE_BYTES_MAX`.
    Span {
        start: at.start() as u32,
        end: at.end() as u32,
    }
}

/// Returns what stands in a string: a backslash before a quote goes away.
fn unquoted(string: &Pair<'_>) -> String {
    let text = string.as_str();
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    let mut made = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('"') => made.push('"'),
                Some(next) => made.extend(['\\', next]),
                None => made.push('\\'),
            },
            (c, false) => made.push(c),
        }
    }
    made
}

struct Reader<'a> {
    source: &'a Source,
    scope: Scope,
    problems: Vec<Diagnostic>,
    /// Patterns that occurred: an equal one is the same.
    patterns: FxHashMap<(Kind, String), Arc<Pattern>>,
    /// How deep definitions nest in the condition that is being read.
    deepest: usize,
    /// Large regular expressions so far.
    large: usize,
    /// Whether to read no further.
    stop: bool,
}

impl Reader<'_> {
    fn wrong(&mut self, span: Span, message: impl Into<String>) {
        self.problems.push(self.source.error(span, message));
    }

    fn wrong_with_help(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.problems
            .push(self.source.error(span, message).with_help(help));
    }

    fn item(&mut self, schema: &mut Schema, item: Pair<'_>) {
        match item.as_rule() {
            Rule::version => {
                let number = self.integer(item, 0, i32::MAX);
                schema.version = number.unsigned_abs();
            }
            Rule::owner => schema.owner = text(item),
            Rule::about => schema.about = text(item),
            Rule::covers => self.covers(schema, item),
            Rule::key => self.key(schema, item),
            Rule::define => self.define(schema, item),
            Rule::rule => {
                let rule = self.rule(item);
                if let Some(other) = schema.rules.iter().find(|other| other.name == rule.name) {
                    let line = self.source.error(other.span, "").line;
                    self.wrong(
                        rule.span,
                        format!("rule `{}` is there already, in line {line}", rule.name),
                    );
                }
                schema.rules.push(rule);
            }
            Rule::example => schema.examples.extend(self.example(item)),
            _ => {}
        }
    }

    fn integer(&mut self, holder: Pair<'_>, least: i32, most: i32) -> i32 {
        for number in holder.into_inner().filter(|pair| pair.as_rule() == Rule::integer) {
            match number.as_str().parse::<i32>() {
                Ok(value) if (least..=most).contains(&value) => return value,
                _ => self.wrong(
                    span(&number),
                    format!("this must be a number from {least} to {most}"),
                ),
            }
        }
        least
    }

    fn pattern(&mut self, kind: Kind, text: &str, span: Span) -> Option<Arc<Pattern>> {
        let key = (kind, text.to_owned());
        if let Some(known) = self.patterns.get(&key) {
            return Some(Arc::clone(known));
        }
        match Pattern::new(kind, text) {
            Ok(pattern) => {
                self.count_large(pattern.is_large(), span);
                let pattern = Arc::new(pattern);
                self.patterns.insert(key, Arc::clone(&pattern));
                Some(pattern)
            }
            Err(reason) => {
                self.wrong(span, reason);
                None
            }
        }
    }

    fn count_large(&mut self, is_large: bool, span: Span) {
        self.large += usize::from(is_large);
        if is_large && self.large > REGEX_LARGE_MAX {
            self.wrong_with_help(
                span,
                format!(
                    "this is one regular expression more than the {REGEX_LARGE_MAX} of a file that may take over \
                     {REGEX_SMALL_BYTES} bytes"
                ),
                "say it with fewer repetitions, or with `like`",
            );
            // Whatever comes after it would cost as much again.
            self.stop = true;
        }
    }

    fn covers(&mut self, schema: &mut Schema, item: Pair<'_>) {
        let at = span(&item);
        let mut subject = Subject::Service;
        let mut lists: Vec<Vec<Arc<Pattern>>> = Vec::new();
        for pair in item.into_inner() {
            match pair.as_rule() {
                Rule::coverage => {
                    subject = match pair.as_str() {
                        "services" => Subject::Service,
                        "profilers" => Subject::Profiler,
                        _ => Subject::Region,
                    };
                }
                Rule::values => lists.push(self.globs(pair)),
                _ => {}
            }
        }
        if schema.coverage.iter().any(|cover| cover.subject == subject) {
            self.wrong_with_help(
                at,
                "this is said already",
                "join both lists: a schema covers what is in one of them",
            );
        }
        let mut lists = lists.into_iter();
        schema.coverage.push(Cover {
            subject,
            patterns: lists.next().unwrap_or_default(),
            except: lists.next().unwrap_or_default(),
        });
    }

    fn globs(&mut self, values: Pair<'_>) -> Vec<Arc<Pattern>> {
        let mut globs = Vec::new();
        for value in values.into_inner().filter(|pair| pair.as_rule() == Rule::value) {
            let at = span(&value);
            let text = value_text(value);
            let kind = if text.contains('*') { Kind::Like } else { Kind::Is };
            globs.extend(self.pattern(kind, &text, at));
        }
        if globs.len() > ALTERNATIVES_MAX {
            globs.truncate(ALTERNATIVES_MAX);
        }
        globs
    }

    fn key(&mut self, schema: &mut Schema, item: Pair<'_>) {
        let mut key = Key {
            name: "".into(),
            takes: Takes::All,
            otherwise: None,
            span: Span::default(),
        };
        for pair in item.into_inner() {
            match pair.as_rule() {
                Rule::name => (key.name, key.span) = (pair.as_str().into(), span(&pair)),
                Rule::takes => {
                    let form = pair.into_inner().next().map(|form| form.as_rule());
                    key.takes = match form {
                        Some(Rule::t_one) => Takes::One,
                        Some(Rule::t_leaf) => Takes::NearestLeaf,
                        Some(Rule::t_root) => Takes::NearestRoot,
                        _ => Takes::All,
                    };
                }
                Rule::value => key.otherwise = Some(value_text(pair).into()),
                _ => {}
            }
        }
        if schema.keys.iter().any(|other| other.name == key.name) {
            self.wrong(key.span, format!("key `{}` is there already", key.name));
        }
        schema.keys.push(key);
    }

    fn define(&mut self, schema: &mut Schema, item: Pair<'_>) {
        let mut name: Option<(Arc<str>, Span)> = None;
        for pair in item.into_inner() {
            match pair.as_rule() {
                Rule::name => name = Some((pair.as_str().into(), span(&pair))),
                Rule::frames => {
                    let Some((name, at)) = name.clone() else { continue };
                    self.deepest = 0;
                    let frames = Arc::new(self.frames(pair));
                    let depth = self.deepest + 1;
                    if depth > NESTING_MAX {
                        // Whoever walks a condition goes down through its definitions.
                        self.wrong(at, format!("definitions name each other over {NESTING_MAX} deep"));
                        continue;
                    }
                    let known = (Arc::clone(&frames), depth);
                    if self.scope.insert(Arc::clone(&name), known).is_some() {
                        self.wrong_with_help(
                            at,
                            format!("`{name}` is defined already"),
                            "here, or in a schema that this one includes: call it something else",
                        );
                    }
                    schema.definitions.push(Definition {
                        name,
                        frames,
                        depth,
                        span: at,
                    });
                }
                _ => {}
            }
        }
    }
}

fn text(item: Pair<'_>) -> String {
    let string = item.into_inner().find(|pair| pair.as_rule() == Rule::string);
    string.map_or_else(String::new, |string| unquoted(&string))
}

fn value_text(value: Pair<'_>) -> String {
    match value.into_inner().next() {
        Some(inner) if inner.as_rule() == Rule::string => unquoted(&inner),
        Some(inner) => inner.as_str().to_owned(),
        None => String::new(),
    }
}
