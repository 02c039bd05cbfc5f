//! Rows of `frames`: what each frame is called.

use strobe_event::{FrameKey, Reason, SamplesBatch};
use xxhash_rust::xxh3::xxh3_64;

use super::columns::Columns;
use super::due::{Due, mix};
use crate::native::{Lists, Texts, text};
use crate::tables::Table;
use crate::written::Written;

#[derive(Default)]
pub(super) struct FrameRows {
    pub(super) rows: usize,
    frame: Vec<u8>,
    generation: Vec<u8>,
    functions: Lists,
    files: Lists,
    lines: Lists,
    module: Texts,
    build_id: Vec<u8>,
    kind: Vec<u8>,
    address: Vec<u8>,
    reason: Texts,
    day: Vec<u8>,
}

/// Code of a frame that only has a name.
const KIND_NAME: u8 = 7;

impl FrameRows {
    pub(super) fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        keys: &[FrameKey],
        written: Option<&Written>,
        due: &mut Due,
    ) {
        let locations = &batch.locations;
        let text_hashes: Vec<u64> = locations
            .text
            .iter()
            .map(|text| xxh3_64(text.as_bytes()))
            .collect();
        let mut start = 0;
        for (index, key) in keys.iter().enumerate() {
            let named = start..start + locations.count[index] as usize;
            start = named.end;
            let content = named
                .clone()
                .fold(u64::from(locations.reason[index]), |hash, at| {
                    let (function, file) = (locations.function[at], locations.file[at]);
                    [
                        text_hashes[function as usize],
                        text_hashes[file as usize],
                        locations.line[at].into(),
                    ]
                    .into_iter()
                    .fold(hash, mix)
                });
            if due.is_due((day, key.0), content, written) {
                self.push(day, batch, index, key.0, named);
            }
        }
    }

    fn push(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        index: usize,
        key: u64,
        named: std::ops::Range<usize>,
    ) {
        let (raw, locations) = (&batch.raw, &batch.locations);
        let binary = (raw.frames.binary[index] as usize)
            .checked_sub(1)
            .map(|at| &raw.binaries[at]);
        self.rows += 1;
        self.frame.extend_from_slice(&key.to_le_bytes());
        self.generation.extend_from_slice(&batch.generation.to_le_bytes());
        let count = named.len();
        for at in named {
            text(
                &mut self.functions.values,
                &locations.text[locations.function[at] as usize],
            );
            text(
                &mut self.files.values,
                &locations.text[locations.file[at] as usize],
            );
            self.lines
                .values
                .extend_from_slice(&locations.line[at].to_le_bytes());
        }
        self.functions.end(count);
        self.files.end(count);
        self.lines.end(count);
        let module = match binary {
            Some(binary) if binary.kind == strobe_event::BinaryKind::Kernel => "[kernel]",
            Some(binary) => &raw.strings[binary.path as usize],
            None => "",
        };
        let module = self.module.number(module);
        self.module.rows.push(module);
        text(
            &mut self.build_id,
            &binary.map_or_else(String::new, |binary| binary.id.to_string()),
        );
        let only_name = if raw.frames.name[index] != 0 { KIND_NAME } else { 0 };
        self.kind
            .push(binary.map_or(only_name, |binary| binary.kind as u8));
        self.address
            .extend_from_slice(&raw.frames.address[index].to_le_bytes());
        let reason = Reason::from_code(locations.reason[index]).map_or("", Reason::name);
        let reason = self.reason.number(reason);
        self.reason.rows.push(reason);
        self.day.extend_from_slice(&day.to_le_bytes());
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(
            Table::Frames,
            self.rows,
            self.functions.values.len() + 120 * self.rows,
        );
        columns.plain(&self.frame);
        columns.plain(&self.generation);
        columns.lists(&self.functions);
        columns.lists(&self.files);
        columns.lists(&self.lines);
        columns.texts(&self.module);
        columns.plain(&self.build_id);
        columns.plain(&self.kind);
        columns.plain(&self.address);
        columns.texts(&self.reason);
        columns.plain(&self.day);
        columns.finish()
    }
}
