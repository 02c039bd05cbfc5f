//! Samples → a closed batch: stage 7.
//!
//! A batch closes at 8,192 samples, 256 KiB, 2 s or the end of its run. Its stacks are sorted, so that neighbours share
//! prefixes; its dictionaries hold only what its samples use.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use strobe_bpf::{CpuCounters, EventTimes};
use strobe_event::raw::BATCH_SAMPLES_MAX;
use strobe_event::{
    Binary, CpuCounts, DropCount, DropReason, Frames, Process, RawBatch, RunHead, Samples, StackEnd, Stacks,
    Threads,
};

use crate::held::Held;
use crate::service::Belonging;
use crate::stacks::{KnownStacks, StackId};
use crate::vocabulary::{EMPTY, FrameId, KnownFrame, TextId, Vocabulary};

/// Estimated size at which a batch closes.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of a sample's columns, by experience.
const SAMPLE_BYTES: usize = 8;

/// A process image of the batch.
#[derive(Debug, Clone)]
struct ProcessRow {
    pid: u32,
    start_ns: u64,
    exec: u32,
    service: TextId,
    executable: TextId,
    container: TextId,
    cgroup: TextId,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    time_ns: u64,
    stack: StackId,
    thread: u32,
    cpu: u32,
}

/// What a CPU has counted up to the last batch, and in this one.
#[derive(Debug, Clone, Copy, Default)]
struct CpuState {
    sequence: u64,
    taken: u64,
    kept: u64,
    idle: u64,
    enabled_ns: u64,
    running_ns: u64,
}

/// Totals of all CPUs at a moment, as the kernel counts them from the start.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Ticks.
    pub counters: BTreeMap<u32, CpuCounters>,
    /// Times of the events.
    pub times: BTreeMap<u32, EventTimes>,
}

/// What closes a batch.
#[derive(Debug, Clone, Copy)]
pub struct Closing<'a> {
    /// The run it belongs to.
    pub run: &'a RunHead,
    /// Its position in the run.
    pub index: u32,
    /// End of its interval, and start of the next one's: `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// What to add to a sample's time to get nanoseconds since 1970.
    pub wall_ns: i128,
}

/// What a sample was found to be.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'a> {
    /// Its stack.
    pub stack: StackId,
    /// The number of its image; 0 where none is known.
    pub image: u64,
    /// What its process belongs to.
    pub belonging: &'a Belonging,
    /// Its executable's path, if known.
    pub executable: Option<&'a str>,
}

/// The open batch.
#[derive(Debug, Default)]
pub struct Builder {
    rows: Vec<Row>,
    threads: FxHashMap<(u64, u32, u32, [u8; 16]), u32>,
    thread_rows: Vec<(u32, u32, TextId)>,
    processes: FxHashMap<(u32, u64, u32), u32>,
    process_rows: Vec<ProcessRow>,
    stacks_seen: FxHashMap<StackId, ()>,
    cpus: BTreeMap<u32, CpuState>,
    undecodable: u64,
    bytes: usize,
    start_ns: u64,
}

impl Builder {
    /// Returns an open batch whose interval starts at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self {
            start_ns: now_ns,
            ..Self::default()
        }
    }

    /// Returns whether it must be closed before the next sample.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_SAMPLES_MAX || self.bytes >= BATCH_BYTES
    }

    /// Returns the start of its interval.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Counts records that could not be decoded.
    pub fn count_undecodable(&mut self, records: u64) {
        self.undecodable += records;
    }

    /// Takes a sample.
    pub fn push(
        &mut self,
        held: &Held,
        placed: Placed<'_>,
        stacks: &KnownStacks,
        vocabulary: &mut Vocabulary,
    ) {
        let thread = self.thread(held, &placed, vocabulary);
        if self.stacks_seen.insert(placed.stack, ()).is_none() {
            // Half of what a stack would take that shares nothing: most share more than half. Even one that shares nothing
            // keeps a batch below the limit on messages.
            self.bytes += 4 + stacks.get(placed.stack).frames.len();
        }
        self.bytes += SAMPLE_BYTES;
        let cpu = self.cpus.entry(u32::from(held.cpu)).or_default();
        cpu.taken += held.cpu_sequence.saturating_sub(cpu.sequence);
        cpu.sequence = cpu.sequence.max(held.cpu_sequence);
        cpu.kept += 1;
        self.rows.push(Row {
            time_ns: held.time_ns,
            stack: placed.stack,
            thread,
            cpu: u32::from(held.cpu),
        });
    }

    fn thread(&mut self, held: &Held, placed: &Placed<'_>, vocabulary: &mut Vocabulary) -> u32 {
        let key = (placed.image, held.pid, held.tid, held.comm);
        if let Some(&thread) = self.threads.get(&key) {
            return thread;
        }
        let process = self.process(held, placed, vocabulary);
        let length = held
            .comm
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(held.comm.len());
        let name = vocabulary.text(&String::from_utf8_lossy(&held.comm[..length]));
        let thread = self.thread_rows.len() as u32;
        self.thread_rows.push((process, held.tid, name));
        self.threads.insert(key, thread);
        thread
    }

    fn process(&mut self, held: &Held, placed: &Placed<'_>, vocabulary: &mut Vocabulary) -> u32 {
        let next = self.process_rows.len() as u32;
        let process = *self
            .processes
            .entry((held.pid, held.start_ns, held.exec))
            .or_insert(next);
        if process == next {
            let belonging = placed.belonging;
            self.process_rows.push(ProcessRow {
                pid: held.pid,
                start_ns: held.start_ns,
                exec: held.exec,
                service: vocabulary.text(&belonging.service),
                executable: vocabulary.text(placed.executable.unwrap_or_default()),
                container: vocabulary.text(&belonging.container),
                cgroup: vocabulary.text(&belonging.cgroup),
            });
        }
        process
    }

    /// Closes the batch and opens the next. Nothing where it has no sample: what was counted goes on into the next.
    pub fn close(
        &mut self,
        closing: &Closing<'_>,
        totals: &Totals,
        stacks: &KnownStacks,
        vocabulary: &Vocabulary,
    ) -> Option<RawBatch> {
        let &Closing {
            run,
            index,
            now_ns,
            wall_ns,
        } = closing;
        if self.rows.is_empty() {
            return None;
        }
        let wall_us = |time_ns: u64| ((i128::from(time_ns) + wall_ns).max(0) / 1_000) as u64;
        let start_us = wall_us(self.start_ns.min(self.rows[0].time_ns));
        let mut dictionary = Dictionary::new(vocabulary);
        let (stack_columns, numbers) = dictionary.stacks(&self.rows, stacks);
        let mut samples = Samples::default();
        let mut before = start_us;
        for row in &self.rows {
            let time = wall_us(row.time_ns).max(before);
            samples.time_delta_us.push(time - before);
            before = time;
            samples.stack.push(numbers[&row.stack]);
            samples.thread.push(row.thread);
            samples.cpu.push(row.cpu);
        }
        let (processes, threads) = dictionary.processes(&self.process_rows, &self.thread_rows);
        let cpus = self.count(totals);
        let lost: u64 = cpus.iter().map(|cpu| cpu.taken - cpu.kept).sum();
        let undecodable = self.undecodable.min(lost);
        let drops = [
            (DropReason::RingFull, lost - undecodable),
            (DropReason::Undecodable, undecodable),
        ];
        let drops = drops.into_iter().filter(|&(_, samples)| samples > 0);
        let batch = RawBatch {
            run: run.clone(),
            index,
            start_us,
            end_us: wall_us(now_ns).max(before),
            cpus,
            drops: drops
                .map(|(reason, samples)| DropCount {
                    reason: reason as u8,
                    samples,
                })
                .collect(),
            strings: dictionary.strings,
            binaries: dictionary.binaries,
            frames: dictionary.frames,
            stacks: stack_columns,
            processes,
            threads,
            samples,
        };
        self.reopen(now_ns);
        Some(batch)
    }

    fn reopen(&mut self, now_ns: u64) {
        self.rows.clear();
        self.threads.clear();
        self.thread_rows.clear();
        self.processes.clear();
        self.process_rows.clear();
        self.stacks_seen.clear();
        self.undecodable = 0;
        self.bytes = 0;
        self.start_ns = now_ns;
    }

    /// Returns what each CPU counted since the batch before, and starts counting anew.
    fn count(&mut self, totals: &Totals) -> Vec<CpuCounts> {
        for &cpu in totals.counters.keys() {
            self.cpus.entry(cpu).or_default();
        }
        let count = |(&cpu, state): (&u32, &mut CpuState)| {
            let idle = totals
                .counters
                .get(&cpu)
                .map_or(state.idle, |counters| counters.idle);
            let times = totals.times.get(&cpu).copied();
            let enabled_ns = times.map_or(state.enabled_ns, |times| times.enabled_ns);
            let running_ns = times.map_or(state.running_ns, |times| times.running_ns);
            let counts = CpuCounts {
                cpu,
                taken: state.taken.max(state.kept),
                kept: state.kept,
                idle: idle.saturating_sub(state.idle),
                enabled_ns: enabled_ns.saturating_sub(state.enabled_ns),
                running_ns: running_ns.saturating_sub(state.running_ns),
            };
            *state = CpuState {
                sequence: state.sequence,
                taken: 0,
                kept: 0,
                idle,
                enabled_ns,
                running_ns,
            };
            counts
        };
        self.cpus.iter_mut().map(count).collect()
    }

    /// Returns the ticks that no batch has counted: taken by the kernel, and nothing of them came. Call it when nothing
    /// more will come.
    pub fn uncounted(&self, totals: &Totals) -> u64 {
        let left = |(cpu, counters): (&u32, &CpuCounters)| {
            let counted = self.cpus.get(cpu).map_or(0, |state| state.sequence);
            counters.taken.saturating_sub(counted)
        };
        totals.counters.iter().map(left).sum()
    }
}

/// The dictionaries of a batch being closed.
struct Dictionary<'v> {
    vocabulary: &'v Vocabulary,
    strings: Vec<String>,
    string_ids: FxHashMap<TextId, u32>,
    binaries: Vec<Binary>,
    binary_ids: FxHashMap<u32, u32>,
    frames: Frames,
    frame_ids: FxHashMap<FrameId, u32>,
}

impl<'v> Dictionary<'v> {
    fn new(vocabulary: &'v Vocabulary) -> Self {
        Self {
            vocabulary,
            strings: vec![String::new()],
            string_ids: FxHashMap::from_iter([(EMPTY, 0)]),
            binaries: Vec::new(),
            binary_ids: FxHashMap::default(),
            frames: Frames::default(),
            frame_ids: FxHashMap::default(),
        }
    }

    fn string(&mut self, text: TextId) -> u32 {
        let next = self.strings.len() as u32;
        let id = *self.string_ids.entry(text).or_insert(next);
        if id == next {
            self.strings.push(self.vocabulary.text_of(text).to_owned());
        }
        id
    }

    fn frame(&mut self, frame: FrameId) -> u32 {
        if let Some(&known) = self.frame_ids.get(&frame) {
            return known;
        }
        let (binary, address, name, reason) = match *self.vocabulary.frame_of(frame) {
            KnownFrame::InBinary {
                binary,
                address,
                name,
            } => (self.binary(binary.0), address, self.string(name), 0),
            KnownFrame::Named(name) => (0, 0, self.string(name), 0),
            KnownFrame::Unknown(reason) => (0, 0, 0, reason as u8),
        };
        let number = self.frames.len() as u32;
        self.frames.binary.push(binary);
        self.frames.address.push(address);
        self.frames.name.push(name);
        self.frames.reason.push(reason);
        self.frame_ids.insert(frame, number);
        number
    }

    /// Returns the binary's place, counted from one.
    fn binary(&mut self, binary: u32) -> u32 {
        if let Some(&known) = self.binary_ids.get(&binary) {
            return known;
        }
        let known = self.vocabulary.binary_of(crate::vocabulary::BinaryId(binary));
        let path = self.string(known.path);
        self.binaries.push(Binary {
            kind: known.kind,
            id: known.id.clone(),
            path,
        });
        let number = self.binaries.len() as u32;
        self.binary_ids.insert(binary, number);
        number
    }

    /// Returns the distinct stacks of the rows, sorted and front-coded, and the place of each.
    fn stacks(&mut self, rows: &[Row], known: &KnownStacks) -> (Stacks, FxHashMap<StackId, u32>) {
        let mut used: Vec<StackId> = rows.iter().map(|row| row.stack).collect();
        used.sort_unstable();
        used.dedup();
        used.sort_by(|a, b| {
            let (a, b) = (known.get(*a), known.get(*b));
            a.frames.cmp(&b.frames).then((a.end as u8).cmp(&(b.end as u8)))
        });
        let mut columns = Stacks::default();
        let mut numbers = FxHashMap::default();
        let mut before: Option<&crate::stacks::KnownStack> = None;
        let (mut last, mut next): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for id in used {
            let stack = known.get(id);
            let same = before.is_some_and(|before| before.frames == stack.frames && before.end == stack.end);
            if !same {
                next.clear();
                next.extend(stack.frames.iter().map(|&frame| self.frame(frame)));
                columns.push(&last, &next, stack.end);
                std::mem::swap(&mut last, &mut next);
            }
            numbers.insert(id, columns.len() as u32 - 1);
            before = Some(stack);
        }
        (columns, numbers)
    }

    fn processes(
        &mut self,
        processes: &[ProcessRow],
        threads: &[(u32, u32, TextId)],
    ) -> (Vec<Process>, Threads) {
        let processes = processes.iter().map(|row| Process {
            pid: row.pid,
            start_ns: row.start_ns,
            exec: row.exec,
            service: self.string(row.service),
            executable: self.string(row.executable),
            container: self.string(row.container),
            cgroup: self.string(row.cgroup),
        });
        let processes = processes.collect();
        let mut columns = Threads::default();
        for &(process, tid, name) in threads {
            columns.process.push(process);
            columns.tid.push(tid);
            columns.name.push(self.string(name));
        }
        (processes, columns)
    }
}

/// Returns how a stack ended, from how its two sides did.
pub fn stack_end(held: &Held) -> StackEnd {
    use strobe_bpf::StackEnd as Side;
    if held.kernel_end == Side::Depth {
        return StackEnd::Depth;
    }
    match held.user_end {
        Side::Root => StackEnd::Root,
        Side::Depth => StackEnd::Depth,
        Side::Unreadable => StackEnd::Unreadable,
        Side::BadFramePointer | Side::BadReturnAddress => StackEnd::BadFramePointer,
        Side::NoUser | Side::NotTaken => StackEnd::KernelOnly,
        Side::Exec => StackEnd::InExec,
        Side::Compat32 => StackEnd::Compat32,
    }
}
