//! Tags and names with places in braces that a match fills: `copy={kind}`, `from={caller module}`.

use std::sync::Arc;

use crate::limits::PATTERN_BYTES_MAX;
use crate::model::Subject;

/// Longest text that one place gives, in bytes: longer ones are cut, since they become columns of a table.
pub const VALUE_BYTES_MAX: usize = 120;

/// A text with places that are filled for each match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// How it is spelled.
    pub text: Arc<str>,
    /// Its parts in order.
    pub parts: Vec<Part>,
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text as it stands.
    Text(Arc<str>),
    /// What a group of the rule's regular expression captured: by number from 1, or by name.
    Group(Arc<str>),
    /// A text of the frame itself.
    Own(FrameText),
    /// A text of the nearest caller that is not one of the rule's frames.
    Caller(FrameText),
    /// A text of the nearest frame towards the leaf that is not one of the rule's frames.
    Callee(FrameText),
    /// A value of the sample's context.
    Context(Subject),
}

/// A text of a frame that a place may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameText {
    /// The function's whole name.
    Function,
    /// What the function belongs to.
    Type,
    /// The module.
    Module,
    /// The source file.
    File,
}

impl Template {
    /// Returns the template that a text spells.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("this name is over {PATTERN_BYTES_MAX} bytes long"));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            if open > 0 {
                parts.push(Part::Text(rest[..open].into()));
            }
            let close = rest[open..].find('}').ok_or("a `{` is never closed")? + open;
            parts.push(place(&rest[open + 1..close])?);
            rest = &rest[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self {
            text: text.into(),
            parts,
        })
    }

    /// Returns whether it is the same for every match.
    pub fn is_fixed(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }
}

fn place(said: &str) -> Result<Part, String> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let text = |word: &str| match word {
        "function" => Some(FrameText::Function),
        "type" => Some(FrameText::Type),
        "module" => Some(FrameText::Module),
        "file" => Some(FrameText::File),
        _ => None,
    };
    let unknown = || format!("`{{{said}}}` is no place that a match can fill");
    match words.as_slice() {
        ["caller", word] => text(word).map(Part::Caller).ok_or_else(unknown),
        ["callee", word] => text(word).map(Part::Callee).ok_or_else(unknown),
        ["label", name] => Ok(Part::Context(Subject::Label((*name).into()))),
        ["annotation", name] => Ok(Part::Context(Subject::Annotation((*name).into()))),
        ["service"] => Ok(Part::Context(Subject::Service)),
        ["profiler"] => Ok(Part::Context(Subject::Profiler)),
        ["region"] => Ok(Part::Context(Subject::Region)),
        ["host"] => Ok(Part::Context(Subject::Host)),
        [word] => match text(word) {
            Some(text) => Ok(Part::Own(text)),
            None if word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') =>
            {
                Ok(Part::Group((*word).into()))
            }
            None => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

/// Appends a value without control characters, cut to [`VALUE_BYTES_MAX`].
pub(crate) fn push_value(into: &mut String, value: &str) {
    let mut room = VALUE_BYTES_MAX;
    for c in value.chars() {
        if c.len_utf8() > room {
            break;
        }
        room -= c.len_utf8();
        into.push(if c.is_control() { ' ' } else { c });
    }
}
