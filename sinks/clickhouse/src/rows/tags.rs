//! Rows of `stack_tags`: the tags of each stack.

use std::collections::BTreeMap;

use strobe_event::{SamplesBatch, StackKey};
use xxhash_rust::xxh3::xxh3_64;

use super::columns::Columns;
use super::due::{Due, mix};
use crate::native::{Lists, text};
use crate::tables::Table;
use crate::written::Written;

#[derive(Default)]
pub(super) struct TagRows {
    rows: usize,
    stack: Vec<u8>,
    generation: Vec<u8>,
    tags: Lists,
    day: Vec<u8>,
}

impl TagRows {
    /// A stack without tags has no row, unless this process wrote tags of it that day: those must be replaced.
    pub(super) fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        stacks: &[StackKey],
        written: Option<&Written>,
        due: &mut Due,
    ) {
        let tags = &batch.tags;
        let mut of_stack: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (&stack, &tag) in tags.stack.iter().zip(&tags.tag) {
            of_stack.entry(stack).or_default().push(tag);
        }
        if of_stack.is_empty() && due.is_empty() && written.is_none_or(Written::is_empty) {
            return;
        }
        for (index, key) in stacks.iter().enumerate() {
            let list = of_stack.get(&(index as u32)).map_or(&[][..], Vec::as_slice);
            let row = (day, key.low());
            if list.is_empty() && due.is_unseen(&row, written) {
                continue;
            }
            let content = list.iter().fold(0, |hash, &tag| {
                mix(hash, xxh3_64(tags.text[tag as usize].as_bytes()))
            });
            if !due.is_due(row, content, written) {
                continue;
            }
            self.rows += 1;
            self.stack.extend_from_slice(&key.low().to_le_bytes());
            self.generation.extend_from_slice(&batch.generation.to_le_bytes());
            list.iter()
                .for_each(|&tag| text(&mut self.tags.values, &tags.text[tag as usize]));
            self.tags.end(list.len());
            self.day.extend_from_slice(&day.to_le_bytes());
        }
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(
            Table::StackTags,
            self.rows,
            self.tags.values.len() + 40 * self.rows,
        );
        columns.plain(&self.stack);
        // No stack schema names labels yet: all stacks are in the context of none.
        columns.plain(&vec![0; 8 * self.rows]);
        columns.plain(&self.generation);
        columns.lists(&self.tags);
        columns.plain(&self.day);
        columns.finish()
    }
}
