//! Rows of `stacks`: what each stack is.

use strobe_event::{FrameKey, SamplesBatch, StackKey};

use super::columns::Columns;
use super::due::Due;
use crate::native::Lists;
use crate::tables::Table;
use crate::written::Written;

#[derive(Default)]
pub(super) struct StackRows {
    rows: usize,
    /// Day and high half that were looked at last, for each of the range's stacks: most come again with every batch.
    checked: Vec<(u16, u64)>,
    stack: Vec<u8>,
    stack_high: Vec<u8>,
    frames: Lists,
    end: Vec<u8>,
    day: Vec<u8>,
}

impl StackRows {
    pub(super) fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        keys: &[FrameKey],
        (stacks, numbers): (&[StackKey], &[u32]),
        written: Option<&Written>,
        due: &mut Due,
    ) {
        let highest = numbers.iter().max().map_or(0, |&number| number as usize + 1);
        // The last day that fits stands for none.
        self.checked
            .resize(highest.max(self.checked.len()), (u16::MAX, 0));
        batch.raw.stacks.for_each(|index, frames, end| {
            let key = stacks[index].0;
            let high = (key >> 64) as u64;
            let checked = &mut self.checked[numbers[index] as usize];
            if *checked == (day, high) && day != u16::MAX {
                return;
            }
            *checked = (day, high);
            // The high half is the content: two stacks with one low half are both written, and the collision shows.
            if !due.is_due((day, key as u64), high, written) {
                return;
            }
            self.rows += 1;
            self.stack.extend_from_slice(&(key as u64).to_le_bytes());
            self.stack_high.extend_from_slice(&high.to_le_bytes());
            for &frame in frames {
                self.frames
                    .values
                    .extend_from_slice(&keys[frame as usize].0.to_le_bytes());
            }
            self.frames.end(frames.len());
            self.end.push(end);
            self.day.extend_from_slice(&day.to_le_bytes());
        });
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(
            Table::Stacks,
            self.rows,
            self.frames.values.len() + 32 * self.rows,
        );
        columns.plain(&self.stack);
        columns.plain(&self.stack_high);
        columns.lists(&self.frames);
        columns.plain(&self.end);
        columns.plain(&self.day);
        columns.finish()
    }
}
