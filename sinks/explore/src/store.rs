//! What stacks look like and what their frames are called, fetched once and kept.
//!
//! Two invariants make trees cheap. Functions are interned, so a stack is a sequence of numbers; and the stacks are
//! kept sorted by their sequences, so a tree is built by walking them in order, without a single look-up per frame.

mod view;

use std::sync::Arc;

use regex::Regex;
use rustc_hash::FxHashMap;
use strobe_event::{Reason, StackEnd};

use self::view::View;
use crate::{FunctionName, StackTotal};

/// Most frames of all stacks together: 1.2 million stacks of 38 frames, about 0.6 GB with their sequences and keys. Stacks
/// as schemas show them count with their frames and [`MARK_FRAMES`] for each mark. What does not fit is named in each answer.
pub(crate) const STACK_FRAMES_MAX: usize = 48 << 20;

/// Frames whose room a mark takes: 24 bytes, where a frame with its part of a sequence takes 12.
const MARK_FRAMES: usize = 2;

/// The function that stands for stacks without a row.
const NOT_STORED: u32 = 0;
/// The function that stands for stacks that [`STACK_FRAMES_MAX`] leaves no room for.
const OVER_LIMIT: u32 = 1;

/// One location of a frame: a function, or what was inlined into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) function: u32,
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// What a frame is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) lines: Box<[Line]>,
    pub(crate) module: u32,
    pub(crate) build_id: u32,
    pub(crate) address: u64,
    /// Whether it lies in the kernel.
    pub(crate) kernel: bool,
    /// Whether its only line is the reason why it has no name.
    pub(crate) unnamed: bool,
}

/// A frame as its row says it.
#[derive(Debug, Clone, PartialEq, Eq, clickhouse::Row, serde::Deserialize)]
pub(crate) struct FrameRow {
    pub(crate) frame: u64,
    pub(crate) functions: Vec<String>,
    pub(crate) files: Vec<String>,
    pub(crate) lines: Vec<u32>,
    pub(crate) module: String,
    pub(crate) build_id: String,
    pub(crate) address: u64,
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) inserted: u32,
}

struct StackEntry {
    frames_start: usize,
    frames_len: usize,
    functions_start: usize,
    functions_len: usize,
    end: Option<StackEnd>,
    /// What schemas make of a stack that is known by itself, too.
    view: Option<View>,
}

#[derive(Default)]
struct Texts {
    all: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, u32>,
}

impl Texts {
    fn id(&mut self, text: &str) -> u32 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let text: Arc<str> = text.into();
        let id = self.all.len() as u32;
        self.all.push(text.clone());
        self.ids.insert(text, id);
        id
    }
}

/// A bounded cache of stacks, frames and names.
pub struct StackStore {
    frames_max: usize,
    texts: Texts,
    /// (name, module) of each function, and the first file it was seen in.
    functions: Vec<(u32, u32, u32)>,
    function_ids: FxHashMap<(u32, u32), u32>,
    names: Vec<Option<Names>>,
    frame_keys: Vec<u64>,
    frame_ids: FxHashMap<u64, u32>,
    stacks: Vec<StackEntry>,
    stack_ids: FxHashMap<u64, u32>,
    stack_frames: Vec<u32>,
    /// Room that views take, in frames.
    view_frames: usize,
    /// Functions of the stacks, root first, inlined ones behind the function they are in.
    sequences: Vec<u32>,
    /// Stacks sorted by their sequences; those that came since lie behind.
    order: Vec<u32>,
    sorted: usize,
    /// Frames there were when they were sorted.
    sorted_frames: usize,
    /// A name changed: every sequence may be another.
    stale: bool,
}

impl Default for StackStore {
    fn default() -> Self {
        Self::with_limit(STACK_FRAMES_MAX)
    }
}

/// Weights laid over the stacks of a store: the selection's and the baseline's.
pub(crate) struct Selected {
    /// Of each stack of the store.
    pub(crate) weights: Vec<[f64; 2]>,
    /// Samples of each stack of the store, in the selection.
    pub(crate) samples: Vec<u64>,
    /// Of stacks that the store does not know.
    pub(crate) unknown: [f64; 2],
    /// Samples of those, in the selection.
    pub(crate) unknown_samples: u64,
    /// Whether they are left out for want of room.
    pub(crate) over_limit: bool,
}

impl StackStore {
    pub(crate) fn with_limit(frames_max: usize) -> Self {
        let mut store = Self {
            frames_max,
            texts: Texts::default(),
            functions: Vec::new(),
            function_ids: FxHashMap::default(),
            names: Vec::new(),
            frame_keys: Vec::new(),
            frame_ids: FxHashMap::default(),
            stacks: Vec::new(),
            stack_ids: FxHashMap::default(),
            stack_frames: Vec::new(),
            view_frames: 0,
            sequences: Vec::new(),
            order: Vec::new(),
            sorted: 0,
            sorted_frames: 0,
            stale: false,
        };
        store.function("[stack not stored]", "", "");
        store.function("[stack left out: the cache is full]", "", "");
        store
    }

    /// Returns how many stacks are known.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Returns whether none is known.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::with_limit(self.frames_max);
    }

    /// Returns the frames, and what takes as much room.
    fn room_taken(&self) -> usize {
        self.stack_frames.len() + self.view_frames
    }

    /// Returns whether `stacks` more of the usual depth, and `views` with so many marks together, would go over the limit.
    pub(crate) fn is_full(&self, stacks: usize, views: usize, marks: usize) -> bool {
        let depth = self
            .stack_frames
            .len()
            .checked_div(self.stacks.len())
            .unwrap_or(40);
        self.room_taken() + (stacks + views) * depth + MARK_FRAMES * marks > self.frames_max
    }

    pub(crate) fn knows_stack(&self, stack: u64) -> bool {
        self.stack_ids.contains_key(&stack)
    }

    pub(crate) fn stack_id(&self, stack: u64) -> Option<u32> {
        self.stack_ids.get(&stack).copied()
    }

    pub(crate) fn text(&self, id: u32) -> &str {
        self.texts.all.get(id as usize).map_or("", |text| text)
    }

    pub(crate) fn function_name(&self, id: u32) -> FunctionName {
        let (name, module, file) = self.functions.get(id as usize).copied().unwrap_or_default();
        let text = |id| self.text(id).to_owned();
        FunctionName {
            function: text(name),
            module: text(module),
            file: text(file),
        }
    }

    pub(crate) fn function_count(&self) -> usize {
        self.functions.len()
    }

    pub(crate) fn module_of(&self, function: u32) -> u32 {
        self.functions
            .get(function as usize)
            .map_or(0, |&(_, module, _)| module)
    }

    fn function(&mut self, name: &str, module: &str, file: &str) -> u32 {
        let key = (self.texts.id(name), self.texts.id(module));
        let file = self.texts.id(file);
        let next = self.functions.len() as u32;
        let id = *self.function_ids.entry(key).or_insert(next);
        if id == next {
            self.functions.push((key.0, key.1, file));
        }
        id
    }

    /// Keeps a stack; its frames may be named later. Returns false when there is no room.
    pub(crate) fn insert_stack(&mut self, stack: u64, frames: &[u64], end: Option<StackEnd>) -> bool {
        if self.knows_stack(stack) {
            return true;
        }
        if self.room_taken() + frames.len() > self.frames_max {
            return false;
        }
        let frames_start = self.stack_frames.len();
        for &key in frames {
            let next = self.names.len() as u32;
            let id = *self.frame_ids.entry(key).or_insert(next);
            if id == next {
                self.names.push(None);
                self.frame_keys.push(key);
            }
            self.stack_frames.push(id);
        }
        let id = self.stacks.len() as u32;
        let frames_len = frames.len();
        self.stacks.push(StackEntry {
            frames_start,
            frames_len,
            functions_start: 0,
            functions_len: 0,
            end,
            view: None,
        });
        self.stack_ids.insert(stack, id);
        self.order.push(id);
        true
    }

    /// Returns the frames that have no row yet, from number `since` on.
    pub(crate) fn unnamed_frames(&self, since: usize) -> Vec<u64> {
        let frames = self.names.iter().zip(&self.frame_keys).skip(since);
        frames
            .filter(|(names, _)| names.is_none())
            .map(|(_, &key)| key)
            .collect()
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.names.len()
    }

    /// Keeps what a frame is called, if a stack has it.
    pub(crate) fn insert_frame(&mut self, row: &FrameRow) {
        let Some(&id) = self.frame_ids.get(&row.frame) else {
            return;
        };
        let reason = || Reason::ALL.into_iter().find(|reason| reason.name() == row.reason);
        let lines: Box<[Line]> = match row.functions.is_empty() {
            true => {
                let name = reason().map_or("[unknown]", Reason::text);
                let function = self.function(name, &row.module, "");
                let file = self.texts.id("");
                [Line {
                    function,
                    file,
                    line: 0,
                }]
                .into()
            }
            false => (0..row.functions.len())
                .map(|index| {
                    let file = row.files.get(index).map_or("", String::as_str);
                    Line {
                        function: self.function(&row.functions[index], &row.module, file),
                        file: self.texts.id(file),
                        line: row.lines.get(index).copied().unwrap_or(0),
                    }
                })
                .collect(),
        };
        let (module, build_id) = (self.texts.id(&row.module), self.texts.id(&row.build_id));
        let names = Some(Names {
            lines,
            module,
            build_id,
            address: row.address,
            kernel: ["kernel", "kernel_module"].contains(&row.kind.as_str())
                || row.reason == Reason::KernelHidden.name(),
            unnamed: row.functions.is_empty(),
        });
        if let Some(slot) = self.names.get_mut(id as usize)
            && *slot != names
        {
            // Stacks that are already in order were sorted by the old names.
            self.stale |= (id as usize) < self.sorted_frames;
            *slot = names;
        }
    }

    /// Puts the stacks that came since the last time into the order. To be called before any view.
    pub(crate) fn sort(&mut self) {
        let not_stored = self.function("[frame not stored]", "", "");
        if self.stale {
            self.sequences.clear();
            self.sorted = 0;
            self.stale = false;
        }
        for at in self.sorted..self.order.len() {
            let id = self.order[at] as usize;
            self.expand(id, not_stored);
        }
        let Self {
            order,
            stacks,
            sequences,
            sorted,
            ..
        } = self;
        let sequence = |id: u32| {
            let stack = &stacks[id as usize];
            &sequences[stack.functions_start..stack.functions_start + stack.functions_len]
        };
        // The stable sort sees two sorted runs after this and merges them in one pass.
        order[*sorted..].sort_by(|&a, &b| sequence(a).cmp(sequence(b)));
        if *sorted > 0 && *sorted < order.len() {
            order.sort_by(|&a, &b| sequence(a).cmp(sequence(b)));
        }
        *sorted = order.len();
        self.sorted_frames = self.names.len();
    }

    fn expand(&mut self, id: usize, not_stored: u32) {
        let StackEntry {
            frames_start,
            frames_len,
            end,
            ..
        } = self.stacks[id];
        if self.stacks[id].view.is_some() {
            return self.expand_view(id, not_stored);
        }
        let functions_start = self.sequences.len();
        for at in frames_start..frames_start + frames_len {
            match &self.names[self.stack_frames[at] as usize] {
                Some(names) => self
                    .sequences
                    .extend(names.lines.iter().map(|line| line.function)),
                None => self.sequences.push(not_stored),
            }
        }
        if frames_len == 0 {
            let name = format!("[no stack: {}]", end.map_or("unknown", StackEnd::name));
            let function = self.function(&name, "", "");
            self.sequences.push(function);
        }
        let functions_len = self.sequences.len() - functions_start;
        let stack = &mut self.stacks[id];
        (stack.functions_start, stack.functions_len) = (functions_start, functions_len);
    }

    pub(crate) fn sequence(&self, id: u32) -> &[u32] {
        let stack = &self.stacks[id as usize];
        &self.sequences[stack.functions_start..stack.functions_start + stack.functions_len]
    }

    pub(crate) fn end(&self, id: u32) -> Option<StackEnd> {
        self.stacks[id as usize].end
    }

    /// Returns the frames of a stack, root first, each with its names where it has a row.
    pub(crate) fn frames(&self, id: u32) -> impl Iterator<Item = (u32, Option<&Names>)> {
        let stack = &self.stacks[id as usize];
        let frames = &self.stack_frames[stack.frames_start..stack.frames_start + stack.frames_len];
        frames
            .iter()
            .map(|&frame| (frame, self.names[frame as usize].as_ref()))
    }

    /// Returns the stacks of `selected` in the order of their sequences.
    pub(crate) fn in_order<'a>(&'a self, selected: &'a Selected) -> impl Iterator<Item = u32> + 'a {
        self.order
            .iter()
            .copied()
            .filter(|&id| selected.weights[id as usize] != [0.0; 2])
    }

    /// Lays weights over the stacks.
    pub(crate) fn select(&self, sides: [&[StackTotal]; 2], over_limit: bool) -> Selected {
        let mut selected = Selected {
            weights: vec![[0.0; 2]; self.stacks.len()],
            samples: vec![0; self.stacks.len()],
            unknown: [0.0; 2],
            unknown_samples: 0,
            over_limit,
        };
        for (side, totals) in sides.into_iter().enumerate() {
            for total in totals {
                match self.stack_id(total.stack) {
                    Some(id) => {
                        selected.weights[id as usize][side] += total.weight;
                        selected.samples[id as usize] += if side == 0 { total.samples } else { 0 };
                    }
                    None => {
                        selected.unknown[side] += total.weight;
                        selected.unknown_samples += if side == 0 { total.samples } else { 0 };
                    }
                }
            }
        }
        selected
    }

    /// Returns which stacks stay: those with a function that matches `focus`, and none that matches `ignore`.
    pub(crate) fn kept(&self, focus: Option<&Regex>, ignore: Option<&Regex>) -> Kept {
        let hits = |regex: &Regex| -> Vec<bool> {
            self.functions
                .iter()
                .map(|&(name, ..)| regex.is_match(self.text(name)))
                .collect()
        };
        Kept {
            focus: focus.map(hits),
            ignore: ignore.map(hits),
        }
    }
}

impl Selected {
    /// Takes the weight off the stacks that do not stay.
    pub(crate) fn retain(&mut self, store: &StackStore, kept: &Kept, side: usize) {
        for (id, weights) in self.weights.iter_mut().enumerate() {
            // Whoever looks for a function finds it by its own name too, and where it is hidden.
            let own = store.sequence(store.base(id as u32));
            if weights[side] != 0.0 && !kept.keeps(store.sequence(id as u32), own) {
                weights[side] = 0.0;
                self.samples[id] = if side == 0 { 0 } else { self.samples[id] };
            }
        }
        if !kept.keeps(&[self.unknown_function()], &[]) {
            self.unknown[side] = 0.0;
            self.unknown_samples = if side == 0 { 0 } else { self.unknown_samples };
        }
    }

    /// Returns the function that stands for the stacks that the store does not know.
    pub(crate) fn unknown_function(&self) -> u32 {
        if self.over_limit { OVER_LIMIT } else { NOT_STORED }
    }

    /// Returns the sum of all weights.
    pub(crate) fn total(&self) -> [f64; 2] {
        self.weights.iter().fold(self.unknown, |sum, weight| {
            [sum[0] + weight[0], sum[1] + weight[1]]
        })
    }
}

/// Which functions keep a stack, and which throw it out.
pub(crate) struct Kept {
    focus: Option<Vec<bool>>,
    ignore: Option<Vec<bool>>,
}

impl Kept {
    pub(crate) fn keeps(&self, shown: &[u32], own: &[u32]) -> bool {
        let hit = |hits: &Vec<bool>| {
            shown
                .iter()
                .chain(own)
                .any(|&function| hits.get(function as usize) == Some(&true))
        };
        self.focus.as_ref().is_none_or(hit) && !self.ignore.as_ref().is_some_and(hit)
    }
}
