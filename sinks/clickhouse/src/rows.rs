//! Batches of one range → the blocks of each table. Pure: the same batches in the same order give the same rows.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use strobe_event::key::{frame_keys, stack_keys};
use strobe_event::{DropReason, FrameKey, Identity, Reason, RunEvent, SamplesBatch, StackKey};
use xxhash_rust::xxh3::xxh3_64;

use crate::native::{Block, Lists, Maps, Texts, text, uuid};
use crate::tables::Table;
use crate::written::{RowKey, Written};

const DAY_US: u64 = 86_400_000_000;
const HOUR_US: u64 = 3_600_000_000;

/// What this process has written, of the tables whose rows may be written twice.
#[derive(Default)]
pub struct WrittenRows {
    frames: Written,
    stacks: Written,
    tags: Written,
}

/// The rows that a range adds to these.
#[derive(Default)]
struct Fresh {
    frames: FxHashMap<RowKey, u64>,
    stacks: FxHashMap<RowKey, u64>,
    tags: FxHashMap<RowKey, u64>,
}

impl WrittenRows {
    /// Notes that the rows of a range are stored.
    pub fn add(&mut self, fresh: FreshRows) {
        self.frames.add(fresh.0.frames);
        self.stacks.add(fresh.0.stacks);
        self.tags.add(fresh.0.tags);
    }
}

/// Rows of a range that are not noted as stored yet.
#[derive(Default)]
pub struct FreshRows(Fresh);

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
    fresh: Fresh,
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
        let day = day_of(raw.start_us);
        let before = self.frames.rows;
        self.frames.add(
            day,
            batch,
            &keys,
            written.map(|written| &written.frames),
            &mut self.fresh.frames,
        );
        self.stacks.add(
            day,
            batch,
            &keys,
            &stacks,
            written.map(|written| &written.stacks),
            &mut self.fresh.stacks,
        );
        self.tags.add(
            day,
            batch,
            &stacks,
            written.map(|written| &written.tags),
            &mut self.fresh.tags,
        );
        self.batches.add(identity, batch);
        self.samples.add(identity, batch, &stacks);
        self.rows += raw.samples.len().max(self.frames.rows - before);
    }

    /// Adds an event of a run.
    pub fn add_event(&mut self, identity: &Identity, event: &RunEvent) {
        self.rows += 1;
        self.runs.add(identity, event);
    }

    /// Returns the blocks.
    pub fn finish(self) -> RangeBlocks {
        let block = |table| match table {
            Table::Frames => self.frames.block(),
            Table::Stacks => self.stacks.block(),
            Table::StackTags => self.tags.block(),
            Table::TotalsHourly => self.samples.totals_block(1),
            Table::Batches => self.batches.block(),
            Table::Samples => self.samples.block(),
            Table::Runs => self.runs.block(),
        };
        let made = |table, (rows, bytes)| (rows > 0).then_some(TableBlock { table, rows, bytes });
        RangeBlocks {
            blocks: Table::ALL
                .into_iter()
                .filter_map(|table| made(table, block(table)))
                .collect(),
            undo: made(Table::TotalsHourly, self.samples.totals_block(-1)),
            fresh: FreshRows(self.fresh),
        }
    }
}

/// Returns the day of a time; times are bounded at the door, so that days fit.
fn day_of(time_us: u64) -> u16 {
    (time_us / DAY_US).min(u64::from(u16::MAX)) as u16
}

/// Returns whether the row must be written, and notes it.
fn is_due(row: RowKey, content: u64, written: Option<&Written>, fresh: &mut FxHashMap<RowKey, u64>) -> bool {
    let have = fresh
        .get(&row)
        .copied()
        .or_else(|| written.and_then(|written| written.content(&row)));
    if have == Some(content) {
        return false;
    }
    fresh.insert(row, content);
    true
}

#[derive(Default)]
struct FrameRows {
    rows: usize,
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
    fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        keys: &[FrameKey],
        written: Option<&Written>,
        fresh: &mut FxHashMap<RowKey, u64>,
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
            if is_due((day, key.0), content, written, fresh) {
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

    fn block(&self) -> (usize, Vec<u8>) {
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

/// Mixes `value` into a hash of content.
fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[derive(Default)]
struct StackRows {
    rows: usize,
    stack: Vec<u8>,
    stack_high: Vec<u8>,
    frames: Lists,
    end: Vec<u8>,
    day: Vec<u8>,
}

impl StackRows {
    fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        keys: &[FrameKey],
        stacks: &[StackKey],
        written: Option<&Written>,
        fresh: &mut FxHashMap<RowKey, u64>,
    ) {
        batch.raw.stacks.for_each(|index, frames, end| {
            let key = stacks[index].0;
            let high = (key >> 64) as u64;
            // The high half is the content: two stacks with one low half are both written, and the collision shows.
            if !is_due((day, key as u64), high, written, fresh) {
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

    fn block(&self) -> (usize, Vec<u8>) {
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

#[derive(Default)]
struct TagRows {
    rows: usize,
    stack: Vec<u8>,
    generation: Vec<u8>,
    tags: Lists,
    day: Vec<u8>,
}

impl TagRows {
    /// A stack without tags has no row, unless this process wrote tags of it that day: those must be replaced.
    fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        stacks: &[StackKey],
        written: Option<&Written>,
        fresh: &mut FxHashMap<RowKey, u64>,
    ) {
        let tags = &batch.tags;
        let mut of_stack: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (&stack, &tag) in tags.stack.iter().zip(&tags.tag) {
            of_stack.entry(stack).or_default().push(tag);
        }
        if of_stack.is_empty() && fresh.is_empty() && written.is_none_or(Written::is_empty) {
            return;
        }
        for (index, key) in stacks.iter().enumerate() {
            let list = of_stack.get(&(index as u32)).map_or(&[][..], Vec::as_slice);
            let row = (day, key.low());
            let unseen =
                || !fresh.contains_key(&row) && written.is_none_or(|written| written.content(&row).is_none());
            if list.is_empty() && unseen() {
                continue;
            }
            let content = list.iter().fold(0, |hash, &tag| {
                mix(hash, xxh3_64(tags.text[tag as usize].as_bytes()))
            });
            if !is_due(row, content, written, fresh) {
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

    fn block(&self) -> (usize, Vec<u8>) {
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

#[derive(Default)]
struct BatchRows {
    rows: usize,
    host: Texts,
    profiler: Texts,
    columns: [Vec<u8>; 13],
    drops: Maps,
}

impl BatchRows {
    fn add(&mut self, identity: &Identity, batch: &SamplesBatch) {
        let raw = &batch.raw;
        self.rows += 1;
        let number = self.host.number(&identity.host);
        self.host.rows.push(number);
        let number = self.profiler.number(&raw.run.profiler);
        self.profiler.rows.push(number);
        let sum = |of: fn(&strobe_event::CpuCounts) -> u64| {
            raw.cpus
                .iter()
                .fold(0_u64, |sum, cpu| sum.saturating_add(of(cpu)))
        };
        let [
            epoch,
            sequence,
            part,
            run,
            cause,
            index,
            start,
            end,
            samples,
            taken,
            idle,
            enabled,
            running,
        ] = &mut self.columns;
        uuid(epoch, identity.epoch.0);
        sequence.extend_from_slice(&identity.sequence.to_le_bytes());
        part.extend_from_slice(&identity.part.to_le_bytes());
        uuid(run, raw.run.id.0);
        cause.push(raw.run.cause);
        index.extend_from_slice(&raw.index.to_le_bytes());
        start.extend_from_slice(&raw.start_us.to_le_bytes());
        end.extend_from_slice(&raw.end_us.to_le_bytes());
        samples.extend_from_slice(&(raw.samples.len() as u64).to_le_bytes());
        taken.extend_from_slice(&sum(|cpu| cpu.taken).to_le_bytes());
        idle.extend_from_slice(&sum(|cpu| cpu.idle).to_le_bytes());
        enabled.extend_from_slice(&sum(|cpu| cpu.enabled_ns).to_le_bytes());
        running.extend_from_slice(&sum(|cpu| cpu.running_ns).to_le_bytes());
        self.drops.push(
            raw.drops
                .iter()
                .map(|drop| (drop_name(drop.reason), drop.samples)),
        );
    }

    fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Batches, self.rows, 256 + 200 * self.rows);
        let [epoch, sequence, part, run, cause, rest @ ..] = &self.columns;
        columns.texts(&self.host);
        [epoch, sequence, part, run]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.texts(&self.profiler);
        columns.plain(cause);
        rest.iter().for_each(|values| columns.plain(values));
        columns.maps(&self.drops);
        columns.finish()
    }
}

fn drop_name(code: u8) -> &'static str {
    DropReason::from_code(code).map_or("unknown", DropReason::name)
}

#[derive(Default)]
struct SampleRows {
    service: Texts,
    profiler: Texts,
    host: Texts,
    thread: Texts,
    executable: Texts,
    container: Texts,
    time: Vec<u8>,
    stack_numbers: FxHashMap<u64, u32>,
    stack_keys: Vec<u8>,
    stack: Vec<u32>,
    fleet_weight: Vec<u8>,
    run_weight: Vec<u8>,
    pid: Vec<u8>,
    tid: Vec<u8>,
    cpu: Vec<u8>,
    cause: Vec<u8>,
    run: Vec<u8>,
    epoch: Vec<u8>,
    sequence: Vec<u8>,
    part: Vec<u8>,
    totals: FxHashMap<TotalKey, Total>,
}

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord, Clone, Copy)]
struct TotalKey {
    hour: u32,
    service: u32,
    profiler: u32,
    stack: u32,
}

#[derive(Default, Clone, Copy)]
struct Total {
    fleet: f64,
    run: f64,
    samples: u64,
}

/// Appends a value to `count` rows.
fn repeat(column: &mut Vec<u8>, value: &[u8], count: usize) {
    column.reserve(value.len() * count);
    (0..count).for_each(|_| column.extend_from_slice(value));
}

impl SampleRows {
    fn add(&mut self, identity: &Identity, batch: &SamplesBatch, stacks: &[StackKey]) {
        let raw = &batch.raw;
        let count = raw.samples.len();
        let string = |entry: u32| raw.strings[entry as usize].as_str();
        let processes: Vec<[u32; 3]> = raw
            .processes
            .iter()
            .map(|process| {
                [
                    self.service.number(string(process.service)),
                    self.executable.number(string(process.executable)),
                    self.container.number(string(process.container)),
                ]
            })
            .collect();
        let threads: Vec<u32> = raw
            .threads
            .name
            .iter()
            .map(|&name| self.thread.number(string(name)))
            .collect();
        let profiler = self.profiler.number(&raw.run.profiler);
        let host = self.host.number(&identity.host);
        if self.stack_keys.is_empty() {
            // The dictionary's first entry is the type's default.
            self.stack_keys.extend_from_slice(&0_u64.to_le_bytes());
        }
        let mut numbers = vec![0; stacks.len()];
        for (number, key) in numbers.iter_mut().zip(stacks) {
            let next = (self.stack_keys.len() / 8) as u32;
            *number = *self.stack_numbers.entry(key.low()).or_insert(next);
            if *number == next {
                self.stack_keys.extend_from_slice(&key.low().to_le_bytes());
            }
        }
        let mut time_us = raw.start_us;
        for (index, &delta) in raw.samples.time_delta_us.iter().enumerate() {
            time_us = time_us.saturating_add(delta);
            let thread = raw.samples.thread[index] as usize;
            let process = raw.threads.process[thread] as usize;
            let [service, executable, container] = processes[process];
            let stack = numbers[raw.samples.stack[index] as usize];
            let weight = batch.weights[batch.sample_weight[index] as usize];
            self.time.extend_from_slice(&time_us.to_le_bytes());
            self.stack.push(stack);
            self.fleet_weight.extend_from_slice(&weight.fleet.to_le_bytes());
            self.run_weight.extend_from_slice(&weight.run.to_le_bytes());
            self.service.rows.push(service);
            self.executable.rows.push(executable);
            self.container.rows.push(container);
            self.thread.rows.push(threads[thread]);
            self.pid
                .extend_from_slice(&raw.processes[process].pid.to_le_bytes());
            self.tid.extend_from_slice(&raw.threads.tid[thread].to_le_bytes());
            // Kernels number CPUs below 8,192.
            self.cpu
                .extend_from_slice(&(raw.samples.cpu[index].min(u32::from(u16::MAX)) as u16).to_le_bytes());
            let hour = (time_us / HOUR_US).min(u64::from(u32::MAX / 3_600)) as u32;
            let total = self
                .totals
                .entry(TotalKey {
                    hour,
                    service,
                    profiler,
                    stack,
                })
                .or_default();
            total.fleet += weight.fleet;
            total.run += weight.run;
            total.samples += 1;
        }
        self.profiler
            .rows
            .resize(self.profiler.rows.len() + count, profiler);
        self.host.rows.resize(self.host.rows.len() + count, host);
        repeat(&mut self.cause, &[raw.run.cause], count);
        let mut bits = Vec::with_capacity(16);
        uuid(&mut bits, raw.run.id.0);
        repeat(&mut self.run, &bits, count);
        bits.clear();
        uuid(&mut bits, identity.epoch.0);
        repeat(&mut self.epoch, &bits, count);
        repeat(&mut self.sequence, &identity.sequence.to_le_bytes(), count);
        repeat(&mut self.part, &identity.part.to_le_bytes(), count);
    }

    fn block(&self) -> (usize, Vec<u8>) {
        let rows = self.stack.len();
        let mut columns = Columns::new(Table::Samples, rows, 4_096 + self.stack_keys.len() + 110 * rows);
        columns.texts(&self.service);
        columns.texts(&self.profiler);
        columns.plain(&self.time);
        columns.numbers(&self.stack_keys, &self.stack);
        columns.plain(&self.fleet_weight);
        columns.plain(&self.run_weight);
        columns.texts(&self.host);
        columns.plain(&self.pid);
        columns.plain(&self.tid);
        columns.texts(&self.thread);
        columns.texts(&self.executable);
        columns.texts(&self.container);
        columns.plain(&self.cpu);
        columns.plain(&self.cause);
        columns.plain(&self.run);
        columns.plain(&self.epoch);
        columns.plain(&self.sequence);
        columns.plain(&self.part);
        columns.finish()
    }

    /// Returns the sums, times `sign`: -1 takes them back, since sums of one key are added up.
    fn totals_block(&self, sign: i8) -> (usize, Vec<u8>) {
        let mut totals: Vec<(&TotalKey, &Total)> = self.totals.iter().collect();
        totals.sort_unstable_by_key(|(key, _)| **key);
        let rows = totals.len();
        let mut plain = [const { Vec::new() }; 5];
        let (mut service, mut profiler) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        for (key, total) in totals {
            let [hour, stack, fleet, run, samples] = &mut plain;
            hour.extend_from_slice(&(key.hour * 3_600).to_le_bytes());
            service.push(key.service);
            profiler.push(key.profiler);
            let at = 8 * key.stack as usize;
            stack.extend_from_slice(&self.stack_keys[at..at + 8]);
            fleet.extend_from_slice(&(f64::from(sign) * total.fleet).to_le_bytes());
            run.extend_from_slice(&(f64::from(sign) * total.run).to_le_bytes());
            // Unsigned sums wrap around, so that the two's complement takes a count back.
            samples.extend_from_slice(&(i64::from(sign).wrapping_mul(total.samples as i64)).to_le_bytes());
        }
        let [hour, stack, fleet, run, samples] = &plain;
        let mut columns = Columns::new(Table::TotalsHourly, rows, 4_096 + 48 * rows);
        columns.plain(hour);
        columns.texts_of(&self.service, &service);
        columns.texts_of(&self.profiler, &profiler);
        columns.plain(stack);
        columns.plain(fleet);
        columns.plain(run);
        columns.plain(samples);
        columns.finish()
    }
}

#[derive(Default)]
struct RunRows {
    rows: usize,
    host: Texts,
    profiler: Texts,
    columns: [Vec<u8>; 16],
    drops: Maps,
}

impl RunRows {
    fn add(&mut self, identity: &Identity, event: &RunEvent) {
        let run = &event.run;
        self.rows += 1;
        let number = self.host.number(&identity.host);
        self.host.rows.push(number);
        let number = self.profiler.number(&run.profiler);
        self.profiler.rows.push(number);
        let [
            id,
            cause,
            state,
            time,
            detail,
            planned,
            done,
            probability,
            period,
            taken,
            spooled,
            idle,
            batches,
            epoch,
            sequence,
            part,
        ] = &mut self.columns;
        uuid(id, run.id.0);
        cause.push(run.cause);
        state.push(event.state);
        time.extend_from_slice(&event.time_us.to_le_bytes());
        text(detail, &event.detail);
        planned.extend_from_slice(&run.planned_us.to_le_bytes());
        done.extend_from_slice(&event.done_us.to_le_bytes());
        probability.extend_from_slice(&run.run_probability.to_le_bytes());
        period.extend_from_slice(&run.period.to_le_bytes());
        taken.extend_from_slice(&event.taken.to_le_bytes());
        spooled.extend_from_slice(&event.spooled.to_le_bytes());
        idle.extend_from_slice(&event.idle.to_le_bytes());
        batches.extend_from_slice(&event.batches.to_le_bytes());
        uuid(epoch, identity.epoch.0);
        sequence.extend_from_slice(&identity.sequence.to_le_bytes());
        part.extend_from_slice(&identity.part.to_le_bytes());
        self.drops.push(
            event
                .drops
                .iter()
                .map(|drop| (drop_name(drop.reason), drop.samples)),
        );
    }

    fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Runs, self.rows, 256 + 250 * self.rows);
        let [id, rest @ .., epoch, sequence, part] = &self.columns;
        columns.plain(id);
        columns.texts(&self.host);
        columns.texts(&self.profiler);
        rest.iter().for_each(|values| columns.plain(values));
        columns.maps(&self.drops);
        [epoch, sequence, part]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.finish()
    }
}

/// Columns of a table, appended in its order.
struct Columns {
    block: Block,
    rows: usize,
    left: std::slice::Iter<'static, (&'static str, &'static str)>,
}

impl Columns {
    fn new(table: Table, rows: usize, capacity: usize) -> Self {
        let columns = table.columns();
        Self {
            block: Block::new(columns.len(), rows, if rows == 0 { 0 } else { capacity }),
            rows,
            left: columns.iter(),
        }
    }

    fn next(&mut self) -> (&'static str, &'static str) {
        self.left.next().copied().unwrap_or_default()
    }

    fn plain(&mut self, values: &[u8]) {
        let (name, kind) = self.next();
        self.block.plain(name, kind, values);
    }

    fn lists(&mut self, lists: &Lists) {
        let (name, kind) = self.next();
        self.block.lists(name, kind, lists);
    }

    fn maps(&mut self, maps: &Maps) {
        let (name, _) = self.next();
        self.block.maps(name, maps);
    }

    fn texts(&mut self, texts: &Texts) {
        self.texts_of(texts, &texts.rows);
    }

    fn texts_of(&mut self, texts: &Texts, rows: &[u32]) {
        let (name, _) = self.next();
        self.block.texts(name, texts, rows);
    }

    fn numbers(&mut self, keys: &[u8], rows: &[u32]) {
        let (name, _) = self.next();
        self.block.numbers(name, keys, rows);
    }

    fn finish(self) -> (usize, Vec<u8>) {
        (self.rows, self.block.finish())
    }
}
