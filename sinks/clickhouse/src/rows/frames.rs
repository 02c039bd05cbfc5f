//! Rows of `frames`: what each frame is called.

use strobe_event::{FrameKey, Generation, Reason, SamplesBatch};
use xxhash_rust::xxh3::xxh3_64;

use super::columns::Columns;
use super::due::{Due, mix};
use crate::native::{Lists, Texts, text};
use crate::tables::Table;
use crate::written::Written;

/// What a frame is called, but for the functions themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRow<'a> {
    /// The frame's key.
    pub frame: u64,
    /// When the names were made, in microseconds since 1970: among rows with names the newest counts.
    pub made_us: u64,
    /// Path of the binary, `[kernel]`, or empty.
    pub module: &'a str,
    /// Lower-case hexadecimal digits; empty where there is no binary.
    pub build_id: &'a str,
    /// Code of the binary's kind; 7 for a frame that only has a name, 0 where nothing is known.
    pub kind: u8,
    /// ELF virtual address.
    pub address: u64,
    /// Why there is no name; empty where there is one.
    pub reason: &'a str,
    /// Last day of use, since 1970.
    pub day: u16,
}

/// Rows of `frames` under way.
#[derive(Default)]
pub struct FrameRows {
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
        let only_name = if raw.frames.name[index] != 0 { KIND_NAME } else { 0 };
        let row = FrameRow {
            frame: key,
            made_us: batch.generation,
            module: match binary {
                Some(binary) if binary.kind == strobe_event::BinaryKind::Kernel => "[kernel]",
                Some(binary) => &raw.strings[binary.path as usize],
                None => "",
            },
            build_id: &binary.map_or_else(String::new, |binary| binary.id.to_string()),
            kind: binary.map_or(only_name, |binary| binary.kind as u8),
            address: raw.frames.address[index],
            reason: Reason::from_code(locations.reason[index]).map_or("", Reason::name),
            day,
        };
        let text = |at: u32| locations.text[at as usize].as_str();
        let level = |at: usize| {
            (
                text(locations.function[at]),
                text(locations.file[at]),
                locations.line[at],
            )
        };
        self.push_row(&row, named.map(level));
    }

    /// Adds a row with its functions, files and lines, the outermost first.
    pub fn push_row<'a>(
        &mut self,
        row: &FrameRow<'_>,
        levels: impl ExactSizeIterator<Item = (&'a str, &'a str, u32)>,
    ) {
        self.rows += 1;
        self.frame.extend_from_slice(&row.frame.to_le_bytes());
        let count = levels.len();
        // A name that somebody else found stays, also where this row has none for the frame.
        let generation = Generation::new(usize::from(count == 0), row.made_us);
        self.generation.extend_from_slice(&generation.0.to_le_bytes());
        for (function, file, line) in levels {
            text(&mut self.functions.values, function);
            text(&mut self.files.values, file);
            self.lines.values.extend_from_slice(&line.to_le_bytes());
        }
        self.functions.end(count);
        self.files.end(count);
        self.lines.end(count);
        let module = self.module.number(row.module);
        self.module.rows.push(module);
        text(&mut self.build_id, row.build_id);
        self.kind.push(row.kind);
        self.address.extend_from_slice(&row.address.to_le_bytes());
        let reason = self.reason.number(row.reason);
        self.reason.rows.push(reason);
        self.day.extend_from_slice(&row.day.to_le_bytes());
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns how many rows there are, and their block in Native.
    pub(crate) fn block(&self) -> (usize, Vec<u8>) {
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
