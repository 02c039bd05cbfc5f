//! Stack schemas: a language that says what a stack means.
//!
//! Stage 11 of a sample's path, the processor's `tag.rs`, asks the [`Matcher`] what the enabled schemas make of each
//! stack. `LANGUAGE.md` is the language's one page. In the order in which text becomes an answer: `limits` (one pass that
//! refuses what is too big), `parse` (text → [`model`]), [`library`] (includes, contradictions), `compile` and `nodes` (→
//! [`Program`]), `field` and `intern` (tests of a function, decided once), `evaluate` (a stack as sets of frames),
//! `context` (what is left to ask), `decide` (which rule prevails), [`outcome`]. The invariants:
//!
//! * Conditions see the stack as it was symbolized. Hiding, folding, cutting and renaming are marks beside it: a sample's
//!   weight, its stack and its names never change.
//! * What a stack gets does not depend on the order of files or of rules: rules prevail by priority, then by the schema's
//!   name, then by the rule's.
//! * What is decided of a function is decided once for each distinct one, and so of locations, stacks and contexts; never
//!   once per sample.
//! * Everything is linear and bounded: patterns, nesting, rules, memory. A schema that passes a bound is refused at its
//!   place; a matcher that reaches its bound forgets and goes on.

mod bits;
pub mod check;
mod compile;
mod context;
mod decide;
pub mod diagnostic;
pub mod error;
mod evaluate;
pub mod examples;
mod field;
mod flat;
pub mod folded;
mod glob;
mod intern;
pub mod library;
pub mod limits;
pub mod location;
pub mod matcher;
pub mod model;
pub mod name;
mod nodes;
pub mod outcome;
mod parse;
pub mod pattern;
mod program;
pub mod rename;
mod required;
pub mod stacktags;
mod tagging;
pub mod template;
pub mod trial;
pub mod values;

pub use check::check;
pub use context::Context;
pub use diagnostic::{Diagnostic, Severity, Source, Span};
pub use error::{Problems, StackSchemaError};
pub use examples::{TestReport, test};
pub use library::Library;
pub use location::Location;
pub use matcher::{ContextId, LocationId, Matcher, OutcomeId, StackId};
pub use outcome::{Lists, Mark, Outcome};
pub use program::{InForce, Program};
pub use trial::{Trial, TrialReport};
