//! What rules make of a stack: tags, tags of frames, and marks.

use std::cmp::Ordering;
use std::hash::Hasher;

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Outcome<'a> {
    /// Tags of the stack, in the order of their text.
    pub tags: &'a [u32],
    /// Tags of single frames: frame and tag, in that order.
    pub frame_tags: &'a [(u32, u32)],
    /// Marks of frames: frame and mark. A frame has at most one that leaves it out and one that renames it.
    pub marks: &'a [(u32, Mark)],
}

/// An outcome under way; its room is used again for the next one.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub tags: Vec<u32>,
    pub frame_tags: Vec<(u32, u32)>,
    pub marks: Vec<(u32, Mark)>,
}

impl Draft {
    pub(crate) fn clear(&mut self) {
        self.tags.clear();
        self.frame_tags.clear();
        self.marks.clear();
    }

    fn outcome(&self) -> Outcome<'_> {
        Outcome {
            tags: &self.tags,
            frame_tags: &self.frame_tags,
            marks: &self.marks,
        }
    }
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

impl Outcome<'_> {
    /// Returns what is to be seen of a stack of `names`, root first. Where all is left out, one line says by which schema:
    /// the stack keeps its weight and its place in the total.
    pub fn view<'a>(&self, program: &Program, made: &'a Made, names: &[&'a str]) -> Vec<Shown<'a>> {
        let mut left_out = vec![None; names.len()];
        let mut renamed = vec![None; names.len()];
        for &(frame, mark) in self.marks {
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
const OUTCOME_BYTES: usize = 60;

/// Outcomes, each distinct one once, and the texts that they name.
#[derive(Debug, Default)]
pub struct Made {
    /// Outcomes by their hash.
    index: FxHashMap<u64, u32>,
    /// Where each outcome's tags, tags of frames and marks begin; those of the next one end them.
    list: Vec<[u32; 3]>,
    /// Those of all outcomes, one behind the other: an allocation for each would cost more than deciding it.
    of_stacks: Vec<u32>,
    of_frames: Vec<(u32, u32)>,
    marks: Vec<(u32, Mark)>,
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
    pub fn outcome(&self, id: u32) -> Outcome<'_> {
        // Numbers come from `intern` alone.
        let at = id as usize;
        let [tags, frames, marks] = self.list[at].map(|start| start as usize);
        let ends = match self.list.get(at + 1) {
            Some(next) => next.map(|start| start as usize),
            None => [self.of_stacks.len(), self.of_frames.len(), self.marks.len()],
        };
        Outcome {
            tags: &self.of_stacks[tags..ends[0]],
            frame_tags: &self.of_frames[frames..ends[1]],
            marks: &self.marks[marks..ends[2]],
        }
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
    pub(crate) fn intern(&mut self, draft: &Draft) -> u32 {
        let outcome = draft.outcome();
        let mut hash = digest(&outcome);
        // Two outcomes of one hash stand in neighbouring places.
        while let Some(&known) = self.index.get(&hash) {
            if self.outcome(known) == outcome {
                return known;
            }
            hash = hash.wrapping_add(1);
        }
        let id = self.list.len() as u32;
        self.bytes +=
            4 * outcome.tags.len() + 8 * outcome.frame_tags.len() + 12 * outcome.marks.len() + OUTCOME_BYTES;
        self.index.insert(hash, id);
        // The bound on memory keeps all of them far below 2^32.
        self.list
            .push([self.of_stacks.len(), self.of_frames.len(), self.marks.len()].map(|start| start as u32));
        self.of_stacks.extend_from_slice(outcome.tags);
        self.of_frames.extend_from_slice(outcome.frame_tags);
        self.marks.extend_from_slice(outcome.marks);
        id
    }
}

/// Returns a hash of an outcome.
fn digest(outcome: &Outcome<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_usize(outcome.tags.len());
    for &tag in outcome.tags {
        hasher.write_u32(tag);
    }
    for &(frame, tag) in outcome.frame_tags {
        hasher.write_u64(u64::from(frame) << 32 | u64::from(tag));
    }
    for &(frame, mark) in outcome.marks {
        let (kind, number) = match mark {
            Mark::Hidden { by } => (0, by),
            Mark::Folded { by } => (1, by),
            Mark::Cut { by } => (2, by),
            Mark::Renamed { name } => (3, name),
        };
        hasher.write_u64(kind << 62 | u64::from(frame) << 32 | u64::from(number));
    }
    hasher.finish()
}
