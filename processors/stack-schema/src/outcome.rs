//! What rules make of a stack: tags, tags of frames, and marks.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::program::Program;
use crate::values::Names;

/// What becomes of one frame in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// It is left out.
    Hidden {
        /// Index of the schema that says so, see [`Program::schemas`].
        by: u32,
    },
    /// It is left out, since the frame before stands for it.
    Folded {
        /// Index of the schema that says so.
        by: u32,
    },
    /// It is left out, since it lies beyond the end of the view.
    Cut {
        /// Index of the schema that says so.
        by: u32,
    },
    /// It is shown by another name: see [`crate::Matcher::name`].
    Renamed {
        /// Number of the name.
        name: u32,
    },
}

impl Mark {
    /// Returns the schema that leaves the frame out, if one does.
    pub fn left_out_by(self) -> Option<u32> {
        match self {
            Self::Hidden { by } | Self::Folded { by } | Self::Cut { by } => Some(by),
            Self::Renamed { .. } => None,
        }
    }
}

/// What rules make of a stack in a context. Frames are counted from the root, from 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Tags of the stack, in the order of their text.
    pub tags: Vec<u32>,
    /// Tags of single frames: frame and tag, in that order.
    pub frame_tags: Vec<(u32, u32)>,
    /// Marks of frames: frame and mark. A frame has at most one that leaves it out and one that renames it.
    pub marks: Vec<(u32, Mark)>,
}

/// One line of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown<'a> {
    /// The frame that it is of; the number of frames for a stack of which nothing is left.
    pub frame: usize,
    /// What is written.
    pub name: std::borrow::Cow<'a, str>,
    /// Whether that is another name than the function's own.
    pub renamed: bool,
}

impl Outcome {
    /// Returns what is to be seen of a stack of `names`, root first. Where all is left out, one line says by which schema:
    /// the stack keeps its weight and its place in the total.
    pub fn view<'a>(&self, program: &Program, made: &'a Made, names: &[&'a str]) -> Vec<Shown<'a>> {
        let mut left_out = vec![None; names.len()];
        let mut renamed = vec![None; names.len()];
        for &(frame, mark) in &self.marks {
            match (mark.left_out_by(), mark) {
                (Some(by), _) => left_out[frame as usize] = Some(by),
                (None, Mark::Renamed { name }) => renamed[frame as usize] = Some(name),
                _ => {}
            }
        }
        let mut view = Vec::with_capacity(names.len());
        for (frame, name) in names.iter().enumerate() {
            if left_out[frame].is_none() {
                view.push(Shown {
                    frame,
                    name: renamed[frame].map_or(*name, |name| made.name(name)).into(),
                    renamed: renamed[frame].is_some(),
                });
            }
        }
        // The leaf's schema speaks for the stack: that is where the time was spent.
        if view.is_empty()
            && let Some(by) = left_out.last().copied().flatten()
        {
            let schema = program.schemas.get(by as usize).map_or("", |schema| &schema.name);
            view.push(Shown {
                frame: names.len(),
                name: format!("[hidden by {schema}]").into(),
                renamed: false,
            });
        }
        view
    }
}

/// Bytes of an outcome beside its lists: its place in the index and in the list.
const OUTCOME_BYTES: usize = 120;

/// Outcomes, each distinct one once, and the texts that they name.
#[derive(Debug, Default)]
pub struct Made {
    /// Outcomes by their hash.
    index: FxHashMap<u64, u32>,
    list: Vec<Outcome>,
    /// Tags of numbers below this are the program's.
    fixed: u32,
    pub(crate) tags: Names,
    pub(crate) names: Names,
    bytes: usize,
}

impl Made {
    pub(crate) fn new(program: &Program) -> Self {
        let mut made = Self {
            fixed: program.tags.len() as u32,
            ..Self::default()
        };
        // Numbers of fixed tags are those of the program.
        program.tags.iter().for_each(|tag| {
            made.tags.intern(tag);
        });
        made
    }

    /// Returns the text of a tag.
    pub fn tag(&self, id: u32) -> &str {
        self.tags.get(id)
    }

    /// Returns a name that a frame is shown by.
    pub fn name(&self, id: u32) -> &str {
        self.names.get(id)
    }

    /// Returns an outcome.
    pub fn outcome(&self, id: u32) -> &Outcome {
        // Numbers come from `intern` alone.
        &self.list[id as usize]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.tags.bytes + self.names.bytes
    }

    /// Orders tags by their text. Numbers of fixed tags are in that order already.
    pub(crate) fn order(&self, a: u32, b: u32) -> Ordering {
        if a.max(b) < self.fixed {
            a.cmp(&b)
        } else {
            self.tags.get(a).cmp(self.tags.get(b))
        }
    }

    /// Returns the number of an outcome whose lists are in order.
    pub(crate) fn intern(&mut self, outcome: Outcome) -> u32 {
        let mut hasher = FxHasher::default();
        outcome.hash(&mut hasher);
        let mut hash = hasher.finish();
        // Two outcomes of one hash stand in neighbouring places.
        while let Some(&known) = self.index.get(&hash) {
            if self.list[known as usize] == outcome {
                return known;
            }
            hash = hash.wrapping_add(1);
        }
        let id = self.list.len() as u32;
        self.bytes +=
            4 * outcome.tags.len() + 8 * outcome.frame_tags.len() + 12 * outcome.marks.len() + OUTCOME_BYTES;
        self.index.insert(hash, id);
        self.list.push(outcome);
        id
    }
}
