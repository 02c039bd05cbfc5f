//! What stack schemas say of a batch's stacks: tags, tags of frames, and marks of what views leave out or rename.

/// A context: values that a stack does not say, of which what schemas make of it depends. Entries of equal place in both
/// lists belong together; one without entries stands for a context of which nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// What each value is of (`service`, `profiler`, `region`, `host`, `label NAME`, `annotation NAME`): index into the
    /// text of [`Tags`].
    pub names: Vec<u32>,
    /// The values, never empty: index into the text.
    pub values: Vec<u32>,
}

/// What becomes of a location in views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MarkKind {
    /// It is left out.
    Hidden = 1,
    /// It is left out, since the one before stands for it.
    Folded = 2,
    /// It is left out, since it lies beyond the end of the view.
    Cut = 3,
    /// It is shown by another name.
    Renamed = 4,
}

impl MarkKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [Self; 4] = [Self::Hidden, Self::Folded, Self::Cut, Self::Renamed];

    /// Returns the kind that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the kind's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Folded => "folded",
            Self::Cut => "cut",
            Self::Renamed => "renamed",
        }
    }
}

/// A place in a stack: frames are counted from the root, from 0, and locations of a frame from the outermost function, so
/// that a name that is found later moves no other frame's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The frame.
    pub frame: u16,
    /// The location within it; 0 for the frame's own function.
    pub inline: u16,
}

/// A tag of one location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameTag {
    /// Which location.
    pub place: Place,
    /// The tag: index into the text.
    pub tag: u32,
}

/// A mark of one location. A location has at most one that leaves it out and one that renames it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// Which location.
    pub place: Place,
    /// Code of a [`MarkKind`].
    pub kind: u8,
    /// The name that it is shown by, or the schema that leaves it out: index into the text.
    pub text: u32,
}

/// What schemas make of a stack in a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct StackOutcome {
    /// Tags of the stack: indexes into the text.
    pub tags: Vec<u32>,
    /// Tags of single locations.
    pub frame_tags: Vec<FrameTag>,
    /// Marks of locations.
    pub marks: Vec<Mark>,
}

impl StackOutcome {
    /// Returns how many entries its row has.
    pub fn entries(&self) -> usize {
        self.tags.len() + self.frame_tags.len() + self.marks.len()
    }

    /// Returns the text that its entries name.
    fn texts(&self) -> impl Iterator<Item = u32> {
        let tags = self.tags.iter().copied();
        let frames = self.frame_tags.iter().map(|tag| tag.tag);
        tags.chain(frames).chain(self.marks.iter().map(|mark| mark.text))
    }
}

/// Contexts of the batch's samples, and what the schemas in force made of each stack in each context in which it came.
///
/// Without schemas in force there are contexts, and nothing else. With some, every pair of a stack and a context that a
/// sample has is here once, also one that nothing is said of: what was said of it before is then no longer true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// The schemas in force, each with its version, as `cpp@3`: indexes into the text.
    pub schemas: Vec<u32>,
    /// The distinct contexts.
    pub contexts: Vec<Context>,
    /// Per pair: index into the batch's stacks.
    pub stack: Vec<u32>,
    /// Per pair: index into `contexts`.
    pub context: Vec<u32>,
    /// Per pair: index into `outcomes`.
    pub outcome: Vec<u32>,
    /// The distinct outcomes.
    pub outcomes: Vec<StackOutcome>,
    /// Text of all of these.
    pub text: Vec<String>,
}

/// Entries of all pairs' outcomes together, each counted once for each pair, as rows have them: a batch of 8,192 stacks
/// of 254 frames of which each has a tag and a name of its own. Rows then take up to 32 MiB.
pub const OUTCOME_ENTRIES_MAX: usize = 1 << 22;

impl Tags {
    /// Returns the tags of a batch of which nothing is known: one context without values.
    pub fn unknown() -> Self {
        Self {
            contexts: vec![Context::default()],
            ..Self::default()
        }
    }

    /// Returns the text of an entry; empty where there is none.
    pub fn text(&self, entry: u32) -> &str {
        self.text.get(entry as usize).map_or("", String::as_str)
    }

    /// Returns the names and values of a context.
    pub fn values(&self, context: usize) -> impl Iterator<Item = (&str, &str)> {
        let context = self.contexts.get(context);
        let lists = context.map(|context| context.names.iter().zip(&context.values));
        lists
            .into_iter()
            .flatten()
            .map(|(&name, &value)| (self.text(name), self.text(value)))
    }

    /// Returns the first thing that does not fit: text, pairs, marks.
    pub(crate) fn problem(&self, stacks: usize) -> Option<&'static str> {
        let below = |column: &[u32], bound: usize| column.iter().all(|&index| (index as usize) < bound);
        let text = self.text.len();
        let whole = |context: &Context| {
            context.names.len() == context.values.len()
                && below(&context.names, text)
                && below(&context.values, text)
                && context.values.iter().all(|&value| !self.text(value).is_empty())
        };
        if self.contexts.is_empty() || !self.contexts.iter().all(whole) || !below(&self.schemas, text) {
            return Some("a context or schema is not whole");
        }
        if [self.context.len(), self.outcome.len()] != [self.stack.len(); 2]
            || !below(&self.stack, stacks)
            || !below(&self.context, self.contexts.len())
            || !below(&self.outcome, self.outcomes.len())
        {
            return Some("a tag points outside of stacks, contexts or outcomes");
        }
        let known = |outcome: &StackOutcome| {
            outcome.texts().all(|entry| (entry as usize) < text)
                && outcome
                    .marks
                    .iter()
                    .all(|mark| MarkKind::from_code(mark.kind).is_some())
        };
        if !self.outcomes.iter().all(known) {
            return Some("a tag or mark points outside of its text, or is not known");
        }
        let entries = self
            .outcome
            .iter()
            .map(|&at| self.outcomes[at as usize].entries());
        if entries.sum::<usize>() > OUTCOME_ENTRIES_MAX {
            return Some("the tags and marks unfold to more than 4,194,304");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that codes of marks are those of the schema's doc, and that no other is known.
    #[test]
    fn codes_of_marks_are_theirs() {
        for kind in MarkKind::ALL {
            assert_eq!(MarkKind::from_code(kind as u8), Some(kind));
        }
        assert_eq!(MarkKind::from_code(0), None);
        assert_eq!(MarkKind::from_code(5), None);
    }
}
