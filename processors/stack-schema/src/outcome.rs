//! What rules make of a stack: tags, tags of frames, and marks.

use std::cmp::Ordering;
use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use crate::flat::Flats;
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

/// Room for the lists of an outcome, to be used again for the next one.
#[derive(Debug, Default)]
pub struct Lists {
    frame_tags: Vec<(u32, u32)>,
    marks: Vec<(u32, Mark)>,
    renamed: Vec<(u32, Mark)>,
}

/// What is decided of a stack beyond what its locations say by themselves, which is what flat rules do to those.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub tags: Vec<u32>,
    /// Tags of frames that flat rules do not give, and those of which they do that something prevails over.
    pub frame_tags: Vec<(u32, u32)>,
    pub replaced: Vec<(u32, u32)>,
    /// Frames that are left out, in order, then those that are renamed.
    pub marks: Vec<(u32, Mark)>,
    pub whole: Whole,
}

/// Which marks hold for all frames, whatever flat rules do to those.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole {
    pub left_out: bool,
    pub renamed: bool,
}

impl Whole {
    fn bits(self) -> u32 {
        u32::from(self.left_out) | u32::from(self.renamed) << 1
    }
}

impl Draft {
    pub(crate) fn clear(&mut self) {
        self.tags.clear();
        self.frame_tags.clear();
        self.replaced.clear();
        self.marks.clear();
        self.whole = Whole::default();
    }

    fn decided(&self) -> Decided<'_> {
        Decided {
            tags: &self.tags,
            frame_tags: &self.frame_tags,
            replaced: &self.replaced,
            marks: &self.marks,
            whole: self.whole,
        }
    }
}

/// What was decided, see [`Draft`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decided<'a> {
    tags: &'a [u32],
    frame_tags: &'a [(u32, u32)],
    replaced: &'a [(u32, u32)],
    marks: &'a [(u32, Mark)],
    whole: Whole,
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

/// Bytes of an outcome's place in the index.
const INDEX_BYTES: usize = 40;

/// Outcomes, and the texts that they name.
#[derive(Debug, Default)]
pub struct Made {
    /// Outcomes in contexts by their hash: a thousand contexts have few among them.
    index: FxHashMap<u64, u32>,
    list: Vec<Entry>,
    /// Those of all outcomes, one behind the other: an allocation for each would cost more than deciding it.
    of_stacks: Vec<u32>,
    of_frames: Vec<(u32, u32)>,
    replaced: Vec<(u32, u32)>,
    marks: Vec<(u32, Mark)>,
    /// Tags of numbers below this are the program's.
    fixed: u32,
    pub(crate) tags: Names,
    pub(crate) names: Names,
    bytes: usize,
}

/// Where an outcome's tags, tags of frames, replaced ones and marks begin; those of the next one end them.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tags: u32,
    frame_tags: u32,
    replaced: u32,
    marks: u32,
    whole: Whole,
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

    fn decided(&self, id: u32) -> Decided<'_> {
        // Numbers come from `intern` alone.
        let at = id as usize;
        let entry = self.list[at];
        let next = self.list.get(at + 1).copied().unwrap_or_else(|| self.end());
        Decided {
            tags: &self.of_stacks[entry.tags as usize..next.tags as usize],
            frame_tags: &self.of_frames[entry.frame_tags as usize..next.frame_tags as usize],
            replaced: &self.replaced[entry.replaced as usize..next.replaced as usize],
            marks: &self.marks[entry.marks as usize..next.marks as usize],
            whole: entry.whole,
        }
    }

    /// Returns where the lists of the next outcome begin.
    fn end(&self) -> Entry {
        // The bound on memory keeps all of them far below 2^32.
        Entry {
            tags: self.of_stacks.len() as u32,
            frame_tags: self.of_frames.len() as u32,
            replaced: self.replaced.len() as u32,
            marks: self.marks.len() as u32,
            whole: Whole::default(),
        }
    }

    /// Returns the outcome of a stack of these locations; `lists` holds what is put together for it.
    pub(crate) fn outcome<'a>(
        &'a self,
        id: u32,
        locations: &[u32],
        flats: &Flats,
        lists: &'a mut Lists,
    ) -> Outcome<'a> {
        let decided = self.decided(id);
        let Lists {
            frame_tags,
            marks,
            renamed,
        } = lists;
        frame_tags.clear();
        marks.clear();
        renamed.clear();
        for &(at, mark) in decided.marks {
            match mark.left_out_by() {
                Some(_) => marks.push((at, mark)),
                None => renamed.push((at, mark)),
            }
        }
        let Whole {
            left_out: whole_left_out,
            renamed: whole_renamed,
        } = decided.whole;
        for (at, &location) in (0..).zip(locations) {
            let Some(shown) = flats.shown(location) else {
                continue;
            };
            if let Some(tag) = shown.tag {
                frame_tags.push((at, tag));
                frame_tags.extend(shown.more.iter().map(|given| (at, given.tag)));
            }
            if !whole_left_out && let Some(by) = shown.hidden_by {
                marks.push((at, Mark::Hidden { by }));
            }
            if !whole_renamed && let Some(name) = shown.name {
                renamed.push((at, Mark::Renamed { name }));
            }
        }
        marks.append(renamed);
        if !decided.replaced.is_empty() {
            frame_tags.retain(|given| !decided.replaced.contains(given));
        }
        for &given in decided.frame_tags {
            let place = frame_tags.partition_point(|known| self.order_of_frames(known, &given).is_lt());
            frame_tags.insert(place, given);
        }
        Outcome {
            tags: decided.tags,
            frame_tags,
            marks,
        }
    }

    /// Orders tags of frames by the frame, then by their text.
    pub(crate) fn order_of_frames(&self, a: &(u32, u32), b: &(u32, u32)) -> Ordering {
        a.0.cmp(&b.0).then_with(|| self.order(a.1, b.1))
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
        let decided = draft.decided();
        let mut hash = digest(&decided);
        // Two outcomes of one hash stand in neighbouring places.
        while let Some(&known) = self.index.get(&hash) {
            if self.decided(known) == decided {
                return known;
            }
            hash = hash.wrapping_add(1);
        }
        let id = self.append(draft);
        self.bytes += INDEX_BYTES;
        self.index.insert(hash, id);
        id
    }

    /// Returns the number of an outcome that is kept without being looked up: to find out whether a new stack's is known
    /// already would cost more than deciding it, and take more memory than the few tags that it has.
    pub(crate) fn append(&mut self, draft: &Draft) -> u32 {
        let decided = draft.decided();
        let id = self.list.len() as u32;
        let frames = decided.frame_tags.len() + decided.replaced.len();
        self.bytes += 4 * decided.tags.len() + 8 * frames + 12 * decided.marks.len() + size_of::<Entry>();
        self.list.push(Entry {
            whole: decided.whole,
            ..self.end()
        });
        self.of_stacks.extend_from_slice(decided.tags);
        self.of_frames.extend_from_slice(decided.frame_tags);
        self.replaced.extend_from_slice(decided.replaced);
        self.marks.extend_from_slice(decided.marks);
        id
    }
}

/// Returns a hash of what was decided.
fn digest(decided: &Decided<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64((decided.tags.len() as u64) << 32 | u64::from(decided.whole.bits()));
    for &tag in decided.tags {
        hasher.write_u32(tag);
    }
    hasher.write_usize(decided.frame_tags.len());
    for &(frame, tag) in decided.frame_tags.iter().chain(decided.replaced) {
        hasher.write_u64(u64::from(frame) << 32 | u64::from(tag));
    }
    for &(frame, mark) in decided.marks {
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
