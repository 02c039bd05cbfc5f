//! Batches of one range → the blocks of each table. Pure: the same batches in the same order give the same rows.

mod audit;
mod batches;
mod columns;
mod coverage;
mod due;
mod frames;
mod runs;
mod samples;
mod stacks;
mod tags;

use rustc_hash::FxHashMap;
use strobe_event::key::{frame_keys, stack_keys};
use strobe_event::{AuditRecord, ContextKey, CoverageRecord, Identity, RunEvent, SamplesBatch};

use self::audit::AuditRows;
use self::batches::BatchRows;
use self::coverage::CoverageRows;
use self::due::Due;
pub use self::frames::{FrameRow, FrameRows};
use self::runs::RunRows;
use self::samples::{SampleRows, StackNumbers};
use self::stacks::StackRows;
pub use self::tags::{TagRow, TagRows};
use crate::tables::Table;
use crate::written::{RowKey, Written};

const DAY_US: u64 = 86_400_000_000;

/// What this process has written, of the tables whose rows may be written twice.
#[derive(Default)]
pub struct WrittenRows {
    frames: Written,
    stacks: Written,
    tags: Written,
}

/// What a range has to write of these.
#[derive(Default)]
struct DueRows {
    frames: Due,
    stacks: Due,
    tags: Due,
}

impl WrittenRows {
    /// Notes that the rows of a range are stored.
    pub fn add(&mut self, fresh: FreshRows) {
        self.frames.add(fresh.frames);
        self.stacks.add(fresh.stacks);
        self.tags.add(fresh.tags);
    }
}

/// Rows of a range that are not noted as stored yet.
#[derive(Default)]
pub struct FreshRows {
    frames: FxHashMap<RowKey, u64>,
    stacks: FxHashMap<RowKey, u64>,
    tags: FxHashMap<RowKey, u64>,
}

/// The block of one table.
pub struct TableBlock {
    /// The table.
    pub table: Table,
    /// Its rows.
    pub rows: usize,
    /// The block, in Native.
    pub bytes: Vec<u8>,
}

/// Blocks of a range.
pub struct RangeBlocks {
    /// In the order of their inserts; tables without rows are left out.
    pub blocks: Vec<TableBlock>,
    /// Takes the totals back, where there are some.
    pub undo: Option<TableBlock>,
    /// What will then have been written.
    pub fresh: FreshRows,
}

/// The rows of a range under way.
#[derive(Default)]
pub struct RangeRows {
    frames: FrameRows,
    stacks: StackRows,
    tags: TagRows,
    batches: BatchRows,
    samples: SampleRows,
    runs: RunRows,
    coverage: CoverageRows,
    audit: AuditRows,
    numbers: StackNumbers,
    due: DueRows,
    rows: usize,
}

impl RangeRows {
    /// Returns how many rows the fullest table may have: what bounds a range.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a validated batch, or a part of one. Frames, stacks and tags that `written` has are left out; nothing is
    /// when there is no `written`.
    pub fn add(&mut self, identity: &Identity, batch: &SamplesBatch, written: Option<&WrittenRows>) {
        let raw = &batch.raw;
        let keys = frame_keys(raw);
        let stacks = stack_keys(raw, &keys);
        let numbers = self.numbers.of(&stacks);
        let contexts: Vec<ContextKey> = (0..batch.tags.contexts.len())
            .map(|context| ContextKey::of(batch.tags.values(context)))
            .collect();
        let day = day_of(raw.start_us);
        // What is said of late batches lives as long as what was said of others at that time: it may be theirs, too.
        let said = day.max(day_of(batch.generation));
        let before = self.frames.rows;
        let of_frames = written.map(|written| &written.frames);
        let of_stacks = written.map(|written| &written.stacks);
        let of_tags = written.map(|written| &written.tags);
        let due = &mut self.due;
        self.frames.add(said, batch, &keys, of_frames, &mut due.frames);
        self.stacks
            .add(day, batch, &keys, (&stacks, &numbers), of_stacks, &mut due.stacks);
        self.tags
            .add(said, batch, (&stacks, &contexts), of_tags, &mut due.tags);
        self.batches.add(identity, batch);
        self.samples.add(identity, batch, (&numbers, &contexts));
        self.rows += raw
            .samples
            .len()
            .max(self.frames.rows - before)
            .max(batch.tags.stack.len());
    }

    /// Adds an event of a run.
    pub fn add_event(&mut self, identity: &Identity, event: &RunEvent) {
        self.rows += 1;
        self.runs.add(identity, event);
    }

    /// Adds what became of slots.
    pub fn add_coverage(&mut self, identity: &Identity, record: &CoverageRecord) {
        self.rows += 1;
        self.coverage.add(identity, record);
    }

    /// Adds a record of the audit.
    pub fn add_audit(&mut self, record: &AuditRecord) {
        self.rows += 1;
        self.audit.add(record);
    }

    /// Returns the blocks.
    pub fn finish(mut self) -> RangeBlocks {
        let totals = self.samples.take_totals();
        let totals = |sign| self.samples.totals_block(&totals, &self.numbers, sign);
        let block = |table| match table {
            Table::Frames => self.frames.block(),
            Table::Stacks => self.stacks.block(),
            Table::Tags => self.tags.block(),
            Table::TotalsHourly => totals(1),
            Table::Batches => self.batches.block(),
            Table::Samples => self.samples.block(&self.numbers),
            Table::Runs => self.runs.block(),
            Table::Coverage => self.coverage.block(),
            Table::Audit => self.audit.block(),
        };
        let made = |table, (rows, bytes)| (rows > 0).then_some(TableBlock { table, rows, bytes });
        RangeBlocks {
            blocks: Table::ALL
                .into_iter()
                .filter_map(|table| made(table, block(table)))
                .collect(),
            undo: made(Table::TotalsHourly, totals(-1)),
            fresh: FreshRows {
                frames: self.due.frames.finish(),
                stacks: self.due.stacks.finish(),
                tags: self.due.tags.finish(),
            },
        }
    }
}

/// Returns the day of a time; times are bounded at the door, so that days fit.
fn day_of(time_us: u64) -> u16 {
    (time_us / DAY_US).min(u64::from(u16::MAX)) as u16
}
