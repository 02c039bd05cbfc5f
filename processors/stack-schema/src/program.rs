//! What enabled schemas compile to: immutable, and shared by all that match.

use std::sync::Arc;

use regex::bytes::Regex;

use crate::diagnostic::Span;
use crate::field::FieldMatcher;
use crate::model::{Edit, Field, Flag, Relation, Subject, Takes};
use crate::name::Language;
use crate::pattern::Pattern;
use crate::rename::Step;
use crate::template::Template;

/// Index of a [`Node`].
pub(crate) type NodeIx = u32;

/// A condition on frames. What can be decided by looking at one location alone (*pure*) is decided once for each distinct
/// location; above that nodes work on sets of frames. Children come before parents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// For no frame.
    False,
    /// For every frame.
    True,
    /// Pure: a test of a location, by its number.
    Atom(u32),
    /// The pure condition at this index, as a set of frames: false where no test holds.
    Term(NodeIx),
    /// The leaf.
    Leaf,
    /// The root.
    Root,
    /// Frames whose place, counted from 1 at the root, is between both.
    Depth(u32, u32),
    /// Frames that have one of another set in a relation.
    Near(Relation, NodeIx),
    /// Frames in all of these.
    And(Box<[NodeIx]>),
    /// Frames in one of these.
    Or(Box<[NodeIx]>),
    /// Frames that are not in this.
    Not(NodeIx),
}

/// A condition on a stack and the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StackNode {
    True,
    False,
    Any(NodeIx),
    All(NodeIx),
    LeafIn(NodeIx),
    RootIn(NodeIx),
    Depth(u32, u32),
    /// A test of the context, by its number.
    Context(u32),
    And(Vec<StackNode>),
    Or(Vec<StackNode>),
    Not(Box<StackNode>),
}

/// A tag that a rule gives.
#[derive(Debug, Clone)]
pub(crate) struct TagAction {
    /// What it is.
    pub what: TagKind,
    /// Index of its key among those of which a stack takes one.
    pub key: Option<u32>,
}

/// What a tag is made of.
#[derive(Debug, Clone)]
pub(crate) enum TagKind {
    /// The same for each match: index among [`Program::tags`].
    Fixed(u32),
    /// Made for each match; with a number of its own.
    Made(Arc<Template>, u32),
}

/// A fixed tag that a flat rule gives to stacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlatTag {
    pub tag: u32,
    /// Index of its key among those of which a stack takes one.
    pub key: Option<u32>,
    /// The rule's priority.
    pub priority: i32,
}

/// One rule in force.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    /// Index among [`Program::schemas`].
    pub schema: u32,
    pub name: Arc<str>,
    /// Where the name stands in the schema's text.
    pub span: Span,
    pub priority: i32,
    pub on: Option<NodeIx>,
    pub when: StackNode,
    pub stack_tags: Vec<TagAction>,
    pub frame_tags: Vec<TagAction>,
    pub edits: Vec<Edit>,
    /// Steps of renaming.
    pub renames: Vec<Step>,
    /// Expressions that capture from one of the rule's frames.
    pub captures: Vec<(Field, Arc<Pattern>)>,
    /// Whether it waits for the context whatever its conditions say: a tag is made of it, or counted by service.
    pub needs_context: bool,
}

impl CompiledRule {
    /// Returns the expression of the rule that captures a group, as far as it is known before matching.
    pub(crate) fn regexes(&self) -> impl Iterator<Item = (Field, &Regex)> {
        self.captures
            .iter()
            .filter_map(|(field, pattern)| pattern.regex().map(|regex| (*field, regex)))
    }
}

/// A schema in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// Its name.
    pub name: Arc<str>,
    /// Its version.
    pub version: u32,
}

/// Enabled schemas, compiled.
///
/// Rules stand in the order in which they prevail: by priority, then by the schema's name, then by the rule's. Files have
/// no order.
#[derive(Debug)]
pub struct Program {
    pub(crate) schemas: Vec<InForce>,
    pub(crate) rules: Vec<CompiledRule>,
    /// Texts of the fixed tags, in the order of the text.
    pub(crate) tags: Vec<Arc<str>>,
    /// Keys of which a stack takes one.
    pub(crate) keys: Vec<(Arc<str>, Takes)>,

    pub(crate) function: FieldMatcher,
    pub(crate) types: FieldMatcher,
    pub(crate) file: FieldMatcher,
    pub(crate) module: FieldMatcher,
    pub(crate) lines: Vec<(u32, u32, u32)>,
    pub(crate) flags: Vec<(Flag, u32)>,
    pub(crate) languages: Vec<(Language, u32)>,
    /// Whether a condition or a tag asks for files.
    pub(crate) asks_files: bool,
    /// Tests of a location that there are.
    pub(crate) atoms: usize,
    /// For each test, the terms that may hold only if it does: pairs of (pure condition, node of its term).
    pub(crate) terms_of_atom: Vec<Vec<(NodeIx, NodeIx)>>,

    pub(crate) nodes: Vec<Node>,
    /// For each node that is a term whether conditions on stacks ask for it as a set of frames.
    pub(crate) asked: Vec<bool>,
    /// For each node that is a term, the flat rules that match wherever it holds: from where to where they stand in
    /// `flat_rules`. What such a rule does at a location does not depend on the stack, so it is decided with the location.
    pub(crate) flat_of_term: Vec<(u32, u32)>,
    pub(crate) flat_rules: Vec<u32>,
    /// For each flat rule the tags that it gives to stacks: from where to where they stand in `flat_tags_given`.
    pub(crate) flat_tags: Vec<(u32, u32)>,
    pub(crate) flat_tags_given: Vec<FlatTag>,
    /// For each key, how many rules tag frames by it.
    pub(crate) frame_rules_of_key: Vec<u32>,
    /// For each node that is a term, the other rules that may match only if it holds somewhere: from where to where they
    /// stand in `rules_by_term`.
    pub(crate) rules_of_term: Vec<(u32, u32)>,
    pub(crate) rules_by_term: Vec<u32>,
    /// Rules that may match any stack.
    pub(crate) rules_always: Vec<u32>,
    /// Rules that ask the context alone.
    pub(crate) rules_of_context: Vec<u32>,

    /// What of the context decides: named by conditions and tags.
    pub(crate) subjects: Vec<Subject>,
    /// Tests of each of those.
    pub(crate) context: Vec<FieldMatcher>,
    /// How many tests those are. The tests behind them are the gates.
    pub(crate) context_patterns: u32,
    /// For each schema whether it is in force. A gate may ask others: those of the schemas that include it.
    pub(crate) gates: Vec<StackNode>,
    /// The order in which they can be answered.
    pub(crate) gate_order: Vec<u32>,
}

impl Program {
    /// Returns the schemas in force, included ones too, by name.
    pub fn schemas(&self) -> &[InForce] {
        &self.schemas
    }

    /// Returns how many rules there are.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Returns what decides of the context: samples that agree on these get the same.
    pub fn subjects(&self) -> &[Subject] {
        &self.subjects
    }

    /// Returns the bytes that it takes, without the caches of regular expressions, which have a bound each.
    pub fn bytes(&self) -> usize {
        let fields = [&self.function, &self.types, &self.file, &self.module];
        let searches: usize = fields
            .into_iter()
            .chain(&self.context)
            .map(FieldMatcher::bytes)
            .sum();
        searches + self.nodes.len() * 64 + self.rules.len() * size_of::<CompiledRule>()
    }
}
