//! One pattern: equality, prefix, glob or regular expression.

use std::hash::{Hash, Hasher};

use regex::bytes::{Regex, RegexBuilder};

use crate::glob::Glob;
use crate::limits::{
    NESTING_MAX, PATTERN_BYTES_MAX, REGEX_BYTES_MAX, REGEX_CACHE_BYTES_MAX, REGEX_SMALL_BYTES,
};

/// How a pattern is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `is`: the text itself.
    Is,
    /// `starts`: what the text begins with.
    Starts,
    /// `like`: a glob over the whole text.
    Like,
    /// `matches`: a regular expression found anywhere in the text.
    Matches,
}

/// A pattern that was proved to be well-formed and within bounds.
#[derive(Debug, Clone)]
pub struct Pattern {
    kind: Kind,
    text: Box<str>,
    compiled: Compiled,
}

#[derive(Debug, Clone)]
enum Compiled {
    Text,
    Glob(Glob),
    Regex(Box<Regex>, bool),
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.text == other.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.text.hash(state);
    }
}

impl Pattern {
    /// Returns the pattern that a text spells.
    ///
    /// # Errors
    /// Why it is none, in words.
    pub fn new(kind: Kind, text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("this pattern is over {PATTERN_BYTES_MAX} bytes long"));
        }
        let compiled = match kind {
            Kind::Is | Kind::Starts => Compiled::Text,
            Kind::Like => Compiled::Glob(Glob::new(text)),
            Kind::Matches => {
                let (regex, is_large) = regex(text)?;
                Compiled::Regex(Box::new(regex), is_large)
            }
        };
        Ok(Self {
            kind,
            text: text.into(),
            compiled,
        })
    }

    /// Returns how it is meant.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns how it is spelled.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether it holds for a text, in time linear in the text.
    #[inline]
    pub fn holds(&self, text: &str) -> bool {
        match &self.compiled {
            Compiled::Text if self.kind == Kind::Is => text == &*self.text,
            Compiled::Text => text.starts_with(&*self.text),
            Compiled::Glob(glob) => glob.matches(text.as_bytes()),
            Compiled::Regex(regex, _) => regex.is_match(text.as_bytes()),
        }
    }

    /// Returns its regular expression, if it is one.
    pub fn regex(&self) -> Option<&Regex> {
        match &self.compiled {
            Compiled::Regex(regex, _) => Some(regex),
            _ => None,
        }
    }

    /// Returns whether it takes more than [`REGEX_SMALL_BYTES`].
    pub(crate) fn is_large(&self) -> bool {
        matches!(self.compiled, Compiled::Regex(_, true))
    }

    /// Returns its glob, if it is one.
    pub(crate) fn glob(&self) -> Option<&Glob> {
        match &self.compiled {
            Compiled::Glob(glob) => Some(glob),
            _ => None,
        }
    }
}

/// Returns a regular expression within bounds, and whether it takes more than [`REGEX_SMALL_BYTES`]. Classes are those of
/// ASCII: names of functions hardly hold anything else, and `\w` of all Unicode makes a program fifty times the size.
pub(crate) fn regex(text: &str) -> Result<(Regex, bool), String> {
    match sized(text, REGEX_SMALL_BYTES) {
        Err(regex::Error::CompiledTooBig(_)) => sized(text, REGEX_BYTES_MAX).map(|regex| (regex, true)),
        other => other.map(|regex| (regex, false)),
    }
    .map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("this regular expression takes over {limit} bytes once compiled")
        }
        // The last line of the library's own message says what; the lines before draw the pattern again.
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let reason = last.trim_start_matches("error: ");
            format!("this is no regular expression: {reason}")
        }
    })
}

fn sized(text: &str, bytes: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .size_limit(bytes)
        .dfa_size_limit(REGEX_CACHE_BYTES_MAX)
        .nest_limit(NESTING_MAX as u32)
        .build()
}
