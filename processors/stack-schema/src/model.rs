//! What a stack schema says, once its text was read and proved: the type-checked model.

use std::sync::Arc;

use crate::diagnostic::{Source, Span};
use crate::name::Language;
use crate::pattern::Pattern;
use crate::rename::Step;
use crate::template::Template;

/// One stack schema.
#[derive(Debug, Clone)]
pub struct Schema {
    /// Its text, for messages.
    pub source: Source,
    /// Its name, by which others include it and people enable it.
    pub name: Arc<str>,
    /// Where the name stands.
    pub span: Span,
    /// Its version; higher is newer.
    pub version: u32,
    /// Who answers for it.
    pub owner: String,
    /// What it is for, in a sentence.
    pub about: String,
    /// Which services, profilers and regions it covers.
    pub coverage: Vec<Cover>,
    /// Schemas that are in force wherever it is, and whose definitions it uses.
    pub includes: Vec<(Arc<str>, Span)>,
    /// Keys whose tags exclude each other.
    pub keys: Vec<Key>,
    /// Conditions with names.
    pub definitions: Vec<Definition>,
    /// What it does.
    pub rules: Vec<Rule>,
    /// Examples that belong to no rule.
    pub examples: Vec<Example>,
}

/// One line of a schema's coverage.
#[derive(Debug, Clone)]
pub struct Cover {
    /// What it is about.
    pub subject: Subject,
    /// Covered is what one of these holds for,
    pub patterns: Vec<Arc<Pattern>>,
    /// and none of these.
    pub except: Vec<Arc<Pattern>>,
}

/// A value that belongs to a sample and not to its stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The service.
    Service,
    /// The profiler.
    Profiler,
    /// The region of the host.
    Region,
    /// The host.
    Host,
    /// A label of the host or service, by name.
    Label(Arc<str>),
    /// An annotation that the process made, by name.
    Annotation(Arc<str>),
}

/// How many tags of a key a stack may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Any number of them.
    All,
    /// One: by priority, then by the schema's name, then by the rule's.
    One,
    /// One: by priority, then the one whose frame is nearest to the leaf, then as [`Takes::One`].
    NearestLeaf,
    /// One: by priority, then the one whose frame is nearest to the root, then as [`Takes::One`].
    NearestRoot,
}

/// A key and how many tags of it a stack may have.
#[derive(Debug, Clone)]
pub struct Key {
    /// The key: what stands before the `=` of a tag.
    pub name: Arc<str>,
    /// How many.
    pub takes: Takes,
    /// The value for stacks that get none.
    pub otherwise: Option<Arc<str>>,
    /// Where it stands.
    pub span: Span,
}

/// A condition with a name.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The name.
    pub name: Arc<str>,
    /// The condition.
    pub frames: Arc<FrameCond>,
    /// How deep definitions nest in it, itself counted.
    pub depth: usize,
    /// Where the name stands.
    pub span: Span,
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name, unique in its schema.
    pub name: Arc<str>,
    /// Where the name stands.
    pub span: Span,
    /// Which rule prevails: the one of the highest priority.
    pub priority: i32,
    /// Which frames it is about; `None` for the stack as a whole.
    pub on: Option<Arc<FrameCond>>,
    /// What must hold of the stack beside.
    pub when: Option<StackCond>,
    /// What it does, in the order of its text.
    pub actions: Vec<Action>,
    /// Its examples.
    pub examples: Vec<Example>,
}

/// A condition on one frame, seen within its stack.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameCond {
    /// Holds for every frame.
    Anything,
    /// A text of the frame.
    Text(Field, Arc<Pattern>),
    /// A number of the frame, between both bounds.
    Number(NumberField, u32, u32),
    /// Something that a frame is or is not.
    Flag(Flag),
    /// The language that its function was written in.
    Language(Language),
    /// Another frame that stands in a relation to it.
    Near(Relation, Arc<FrameCond>),
    /// All of these.
    And(Vec<FrameCond>),
    /// One of these.
    Or(Vec<FrameCond>),
    /// Not this.
    Not(Box<FrameCond>),
    /// A condition with a name.
    Named(Arc<FrameCond>),
}

/// A text of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// The whole name of its function, as it was symbolized.
    Function,
    /// What the function belongs to: the name's scope, without parameters and return type.
    Type,
    /// Path of its source file.
    File,
    /// File name of the binary that it lies in; `[kernel]` for the kernel itself.
    Module,
}

/// A number of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NumberField {
    /// Line in its source file; 0 if not known.
    Line,
    /// Its place counted from the root, which is 1.
    Depth,
}

/// Something that a frame is or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flag {
    /// Its function was inlined into its caller.
    Inlined,
    /// It lies in the kernel.
    Kernel,
    /// It does not lie in the kernel.
    User,
    /// It has no name.
    Unnamed,
    /// It is where the time was spent.
    Leaf,
    /// It has no caller.
    Root,
}

/// Where another frame stands, seen from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// `called by`: the direct caller.
    CalledBy,
    /// `under`: some caller, however far towards the root.
    Under,
    /// `calling`: the frame that it calls directly.
    Calling,
    /// `over`: some frame that it calls, however far towards the leaf.
    Over,
}

/// A condition on a stack and the sample's context.
#[derive(Debug, Clone, PartialEq)]
pub enum StackCond {
    /// Some frame.
    Any(Arc<FrameCond>),
    /// Every frame of a stack that has at least one.
    All(Arc<FrameCond>),
    /// The leaf.
    Leaf(Arc<FrameCond>),
    /// The root.
    Root(Arc<FrameCond>),
    /// The number of frames, between both bounds.
    Depth(u32, u32),
    /// A value of the sample's context; does not hold where the sample has none.
    Context(Subject, Arc<Pattern>),
    /// All of these.
    And(Vec<StackCond>),
    /// One of these.
    Or(Vec<StackCond>),
    /// Not this.
    Not(Box<StackCond>),
}

/// What a rule does.
#[derive(Debug, Clone)]
pub enum Action {
    /// Tags the stack; names come from the rule's frame that is nearest to the leaf.
    TagStack(Template),
    /// Tags each of the rule's frames.
    TagFrame(Template),
    /// An edit of the rule's frames.
    Edit(Edit),
    /// Another name for the rule's frames.
    Rename(Step),
}

/// What becomes of a rule's frames in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edit {
    /// They are left out.
    Hide,
    /// They stay, whatever rules of less priority say.
    Show,
    /// In each unbroken run of them, a function is shown where it first occurs.
    FoldRecursion,
    /// Each unbroken run of them is shown as its first frame.
    FoldRun,
    /// What is nearer to the root than the first of them is left out.
    CutCallers,
    /// What is nearer to the leaf than the first of them is left out.
    CutCallees,
}

/// A stack and what is expected of it.
#[derive(Debug, Clone)]
pub struct Example {
    /// Frames, root first.
    pub stack: Vec<crate::folded::FoldedFrame>,
    /// The sample's context.
    pub context: Vec<(Subject, Arc<str>)>,
    /// The stack's tags, if the example says.
    pub gives: Option<Vec<Arc<str>>>,
    /// What is to be seen of it, if the example says.
    pub shows: Option<String>,
    /// Where it stands.
    pub span: Span,
}
