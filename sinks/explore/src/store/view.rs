//! Stacks as schemas show them: entries of their own beside the stacks that they are views of.

use super::{Line, Names, StackEntry, StackStore};
use crate::marks::Marks;

/// A stack as schemas show it.
pub(super) struct View {
    /// The stack itself.
    pub(super) of: u32,
    pub(super) marks: Marks,
}

impl StackStore {
    /// Keeps a stack that is known as schemas show it, under a key of its own.
    pub(crate) fn insert_view(&mut self, key: u64, of: u64, marks: &Marks) {
        let Some(base) = self.stack_id(of).filter(|_| !self.knows_stack(key)) else {
            return;
        };
        let StackEntry {
            frames_start,
            frames_len,
            end,
            ..
        } = self.stacks[base as usize];
        let id = self.stacks.len() as u32;
        self.stacks.push(StackEntry {
            frames_start,
            frames_len,
            functions_start: 0,
            functions_len: 0,
            end,
            view: Some(View {
                of: base,
                marks: marks.clone(),
            }),
        });
        self.stack_ids.insert(key, id);
        self.order.push(id);
    }

    pub(super) fn expand_view(&mut self, id: usize, not_stored: u32) {
        let functions_start = self.sequences.len();
        let Some(View { marks, .. }) = &self.stacks[id].view else {
            return;
        };
        let marks = marks.clone();
        let mut shown: Vec<(u32, Option<&str>)> = Vec::new();
        self.for_each_location(id as u32, |depth, inline, _, line| {
            if !marks.leaves_out(depth, inline) {
                let function = line.map_or(not_stored, |line| line.function);
                shown.push((function, marks.name(depth, inline)));
            }
        });
        let hidden = marks.hidden_by().filter(|_| shown.is_empty());
        for (function, name) in shown {
            let function = match name {
                Some(name) => self.renamed(function, name),
                None => function,
            };
            self.sequences.push(function);
        }
        if let Some(schema) = hidden {
            let function = self.function(&format!("[hidden by {schema}]"), "", "");
            self.sequences.push(function);
        }
        let functions_len = self.sequences.len() - functions_start;
        let stack = &mut self.stacks[id];
        (stack.functions_start, stack.functions_len) = (functions_start, functions_len);
    }

    /// Returns a function that is shown by another name.
    fn renamed(&mut self, function: u32, name: &str) -> u32 {
        let (_, module, file) = self.functions.get(function as usize).copied().unwrap_or_default();
        let text = |id: u32| self.text(id).to_owned();
        let (module, file) = (text(module), text(file));
        self.function(name, &module, &file)
    }

    /// Calls `visit` with each location of a stack, marks or not: its frame counted from the root, its place within it,
    /// the frame's number, and its line where the frame has a row.
    fn for_each_location(&self, id: u32, mut visit: impl FnMut(usize, usize, u32, Option<Line>)) {
        for (depth, (frame, names)) in self.frames(id).enumerate() {
            match names {
                Some(names) => {
                    for (inline, line) in names.lines.iter().enumerate() {
                        visit(depth, inline, frame, Some(*line));
                    }
                }
                None => visit(depth, 0, frame, None),
            }
        }
    }

    /// Calls `visit` with each location that is shown of a stack, root first: its frame counted from the root, the frame's
    /// number, and its line where the frame has a row.
    pub(crate) fn for_each_shown(&self, id: u32, mut visit: impl FnMut(usize, u32, Option<Line>)) {
        let Some(view) = &self.stacks[id as usize].view else {
            return self.for_each_location(id, |depth, _, frame, line| visit(depth, frame, line));
        };
        // What is shown stands in the sequence, in the same order.
        let mut shown = self.sequence(id).iter();
        self.for_each_location(id, |depth, inline, frame, line| {
            if view.marks.leaves_out(depth, inline) {
                return;
            }
            let function = shown.next().copied();
            visit(
                depth,
                frame,
                line.map(|line| Line {
                    function: function.unwrap_or(line.function),
                    ..line
                }),
            );
        });
    }

    /// Returns what a frame is called, where it has a row.
    pub(crate) fn names(&self, frame: u32) -> Option<&Names> {
        self.names.get(frame as usize)?.as_ref()
    }

    /// Returns the stack that this one is a view of, itself where it is none.
    pub(crate) fn base(&self, id: u32) -> u32 {
        self.stacks[id as usize].view.as_ref().map_or(id, |view| view.of)
    }
}
