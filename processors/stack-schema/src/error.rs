//! What a person can fix.

use std::fmt;

use crate::diagnostic::Diagnostic;

/// Most problems that are told at once: after that the first ones are the news.
pub const PROBLEMS_MAX: usize = 20;

/// Why a stack schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StackSchemaError {
    /// The text of one or more files is wrong.
    #[error("{0}")]
    Invalid(Problems),
    /// A schema is to be enabled that nobody gave.
    #[error("there is no stack schema `{0}`: enable one of those that are loaded")]
    Unknown(String),
    /// A file of Microsoft's stack tags cannot be read as such.
    #[error("{file}:{line}:{column}: not a file of stack tags: {reason}")]
    NotStackTags {
        /// The file.
        file: String,
        /// Line, from 1.
        line: u32,
        /// Column, from 1.
        column: u32,
        /// What is wrong.
        reason: String,
    },
    /// All that is enabled together is over a bound.
    #[error(
        "the enabled stack schemas have {count} {what} together, over the bound of {limit}: enable fewer"
    )]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
}

impl StackSchemaError {
    /// Returns whether the same may succeed later without anybody changing anything: never, it is all text.
    pub fn is_transient(&self) -> bool {
        false
    }

    /// Returns the problems with their places; empty where the trouble has no place in a schema.
    pub fn problems(&self) -> &[Diagnostic] {
        match self {
            Self::Invalid(problems) => &problems.0,
            _ => &[],
        }
    }
}

impl From<Diagnostic> for StackSchemaError {
    fn from(problem: Diagnostic) -> Self {
        Self::Invalid(Problems(vec![problem]))
    }
}

/// At least one thing that is wrong, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Diagnostic>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                write!(f, "\n\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}
