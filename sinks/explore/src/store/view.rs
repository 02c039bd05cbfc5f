//! Stacks as schemas show them: entries of their own beside the stacks that they are views of.

use super::{Line, MARK_FRAMES, Names, StackEntry, StackStore};
use crate::marks::Marks;

/// A stack as schemas show it.
pub(super) struct View {
    /// The stack itself.
    pub(super) of: u32,
    pub(super) marks: Marks,
}

impl StackStore {
    /// Keeps a stack that is known as schemas show it, under a key of its own. Returns false when there is no room.
    pub(crate) fn insert_view(&mut self, key: u64, of: u64, marks: &Marks) -> bool {
        let Some(base) = self.stack_id(of).filter(|_| !self.knows_stack(key)) else {
            return true;
        };
        let StackEntry {
            frames_start,
            frames_len,
            end,
            ..
        } = self.stacks[base as usize];
        let room = frames_len + MARK_FRAMES * marks.len();
        if self.room_taken() + room > self.frames_max {
            return false;
        }
        self.view_frames += room;
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
        true
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

    /// Returns the function that is shown at a place of a stack: frame counted from the root, location within it. Nothing where
    /// the place is left out, or is none.
    pub(crate) fn shown_at(&self, id: u32, (frame, inline): (u16, u16)) -> Option<u32> {
        let marks = self.stacks[id as usize].view.as_ref().map(|view| &view.marks);
        let (mut next, mut found) = (0, None);
        self.for_each_location(id, |depth, at, _, _| {
            if marks.is_some_and(|marks| marks.leaves_out(depth, at)) {
                return;
            }
            if (depth, at) == (frame.into(), inline.into()) {
                found = Some(next);
            }
            next += 1;
        });
        // What is shown stands in the sequence, in the same order.
        found.and_then(|at| self.sequence(id).get(at).copied())
    }

    /// Returns what a frame is called, where it has a row.
    pub(crate) fn names(&self, frame: u32) -> Option<&Names> {
        self.names.get(frame as usize)?.as_ref()
    }

    /// Returns the place of a stack's leaf: its frame counted from the root, its location within that.
    pub(crate) fn leaf(&self, id: u32) -> Option<(u16, u16)> {
        let (depth, (_, names)) = self.frames(id).enumerate().last()?;
        let inline = names.map_or(0, |names| names.lines.len().saturating_sub(1));
        Some((u16::try_from(depth).ok()?, u16::try_from(inline).ok()?))
    }

    /// Returns the stack that this one is a view of, itself where it is none.
    pub(crate) fn base(&self, id: u32) -> u32 {
        self.stacks[id as usize].view.as_ref().map_or(id, |view| view.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::{MarkTexts, MarksRow};
    use strobe_event::MarkKind;

    fn hidden(places: u16) -> Marks {
        let row = MarksRow {
            stack: 1,
            of_service: "s".into(),
            frames: (0..places).collect(),
            inlines: vec![0; places.into()],
            kinds: vec![MarkKind::Hidden as i8; places.into()],
            texts: vec!["noise".into(); places.into()],
        };
        row.marks(&mut MarkTexts::default()).unwrap_or_default()
    }

    /// Checks that what schemas make of stacks counts towards the limit, marks too, and that a view without room is refused and
    /// not kept half.
    #[test]
    fn views_count_towards_the_limit() {
        let mut store = StackStore::with_limit(100);
        let frames: Vec<u64> = (0..10).collect();
        assert!(store.insert_stack(1, &frames, None));
        assert!(!store.is_full(1, 0, 0));
        assert!(
            !store.is_full(1, 4, 20),
            "10, 10 more, 40 of views, and 40 of marks"
        );
        assert!(store.is_full(1, 4, 21));
        let mut key = 10;
        while store.insert_view(key, 1, &hidden(10)) {
            key += 1;
        }
        assert_eq!(key, 13, "10 frames, and 3 times 10 with 20 of marks");
        assert!(!store.knows_stack(key));
        assert!(
            store.insert_view(key - 1, 1, &hidden(10)),
            "what is known takes no room"
        );
        assert!(store.is_full(1, 0, 0));
        store.clear();
        assert!(!store.is_full(1, 0, 0) && !store.knows_stack(10));
    }
}
