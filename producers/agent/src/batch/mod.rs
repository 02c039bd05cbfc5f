//! Samples → a closed batch: stage 7.
//!
//! A batch closes at 8,192 samples, 256 KiB, 2 s or the end of its run. Its stacks are sorted, so that neighbours share
//! prefixes; its dictionaries hold only what its samples use. The 256 KiB are an estimate of the usual case; beside it runs a sum
//! of the most that everything can take ([`size`]), so that no batch exceeds the limit on messages, whatever its stacks
//! look like.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use strobe_bpf::{CpuCounters, EventTimes};
use strobe_event::raw::BATCH_SAMPLES_MAX;
use strobe_event::{CpuCounts, DropCount, DropReason, RawBatch, RunHead, Samples, StackEnd};
use strobe_sampling::ticks::{is_ticking, missed_idle_ticks};

use crate::held::Held;
use crate::service::Belonging;
use crate::stacks::{KnownStacks, StackId};
use crate::vocabulary::{TextId, Vocabulary};

mod dictionary;
mod size;

use dictionary::Dictionary;
use size::Size;
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
    /// Whether what it belongs to was told by a sample within `exec`, when half of it was not known yet.
    provisional: bool,
}

/// A thread under one name, in one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ThreadKey {
    pid: u32,
    start_ns: u64,
    exec: u32,
    tid: u32,
    comm: [u8; 16],
    in_exec: bool,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    time_ns: u64,
    stack: StackId,
    thread: u32,
    cpu: u32,
    value: u64,
}

/// What a CPU has counted up to the last batch, and in this one.
#[derive(Debug, Clone, Copy, Default)]
struct CpuState {
    sequence: u64,
    taken: u64,
    kept: u64,
    /// Read, and not of what the run watches.
    passed: u64,
    idle: u64,
    unwatched: u64,
    enabled_ns: u64,
    running_ns: u64,
    /// By the kernel's account of the CPU, once that was read.
    idle_ns: Option<u64>,
}

impl CpuState {
    /// Returns what was taken of what the run watches, and of everything else. What was lost before anybody knew whose it was is
    /// shared out like what was read.
    fn of_what_is_watched(&self) -> (u64, u64) {
        let taken = self.taken.max(self.kept + self.passed);
        if self.passed == 0 {
            return (taken, 0);
        }
        let read = self.kept + self.passed;
        let lost = (taken - read) as f64 * self.kept as f64 / read as f64;
        let own = (self.kept + lost.round() as u64).min(taken);
        (own, taken - own)
    }
}

/// Totals of all CPUs at a moment, as the kernel counts them from the start.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Up to when they count: `CLOCK_MONOTONIC` of the reading, or of the moment at which the ticks were stopped.
    pub at_ns: u64,
    /// Ticks.
    pub counters: BTreeMap<u32, CpuCounters>,
    /// Times of the events.
    pub times: BTreeMap<u32, EventTimes>,
    /// For how long each CPU was idle, as the kernel accounts it; only of what ticks.
    pub idle_ns: BTreeMap<u32, u64>,
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

/// What is known of a sample's process.
#[derive(Debug, Clone)]
pub struct Placed {
    /// What it belongs to.
    pub belonging: Arc<Belonging>,
    /// Its executable's path, if known.
    pub executable: Option<Arc<str>>,
}

/// The open batch.
#[derive(Debug, Default)]
pub struct Builder {
    rows: Vec<Row>,
    threads: FxHashMap<ThreadKey, u32>,
    thread_rows: Vec<(u32, u32, TextId)>,
    processes: FxHashMap<(u32, u64, u32), u32>,
    process_rows: Vec<ProcessRow>,
    size: Size,
    cpus: BTreeMap<u32, CpuState>,
    undecodable: u64,
    start_ns: u64,
    /// Up to when idle ticks and times are counted.
    counted_ns: u64,
}

impl Builder {
    /// Returns an open batch whose interval starts at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self {
            start_ns: now_ns,
            counted_ns: now_ns,
            ..Self::default()
        }
    }

    /// Returns whether it must be closed before the next sample.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_SAMPLES_MAX || self.size.is_reached(self.cpus.len())
    }

    /// Returns the start of its interval.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Counts records that could not be decoded.
    pub fn count_undecodable(&mut self, records: u64) {
        self.undecodable += records;
    }

    /// Takes a sample. What its process is gets asked once for each thread of a batch.
    pub fn push(
        &mut self,
        held: &Held,
        stack: StackId,
        stacks: &KnownStacks,
        vocabulary: &mut Vocabulary,
        place: impl FnOnce() -> Placed,
    ) {
        let key = ThreadKey {
            pid: held.pid,
            start_ns: held.start_ns,
            exec: held.exec,
            tid: held.tid,
            comm: held.comm,
            in_exec: held.user_end == strobe_bpf::StackEnd::Exec,
        };
        let thread = match self.threads.get(&key) {
            Some(&thread) => thread,
            None => self.new_thread(key, held, &place(), vocabulary),
        };
        self.size.add_sample(stack, stacks, vocabulary);
        let cpu = self.cpus.entry(u32::from(held.cpu)).or_default();
        cpu.taken += held.cpu_sequence.saturating_sub(cpu.sequence);
        cpu.sequence = cpu.sequence.max(held.cpu_sequence);
        cpu.kept += 1;
        self.rows.push(Row {
            time_ns: held.time_ns,
            stack,
            thread,
            cpu: u32::from(held.cpu),
            value: held.value,
        });
    }

    /// Counts a sample that is not of what the run watches: to it, its CPU was as good as idle.
    pub fn pass_over(&mut self, held: &Held) {
        let cpu = self.cpus.entry(u32::from(held.cpu)).or_default();
        cpu.taken += held.cpu_sequence.saturating_sub(cpu.sequence);
        cpu.sequence = cpu.sequence.max(held.cpu_sequence);
        cpu.passed += 1;
    }

    fn text(&mut self, text: &str, vocabulary: &mut Vocabulary) -> TextId {
        let id = vocabulary.text(text);
        self.size.add_text(id, vocabulary);
        id
    }

    fn new_thread(
        &mut self,
        key: ThreadKey,
        held: &Held,
        placed: &Placed,
        vocabulary: &mut Vocabulary,
    ) -> u32 {
        let process = self.process(key, placed, vocabulary);
        let name = self.text(&String::from_utf8_lossy(held.name()), vocabulary);
        let thread = self.thread_rows.len() as u32;
        self.thread_rows.push((process, held.tid, name));
        self.size.add_thread();
        self.threads.insert(key, thread);
        thread
    }

    fn process(&mut self, key: ThreadKey, placed: &Placed, vocabulary: &mut Vocabulary) -> u32 {
        let next = self.process_rows.len() as u32;
        let process = *self
            .processes
            .entry((key.pid, key.start_ns, key.exec))
            .or_insert(next);
        let known = self.process_rows.get(process as usize);
        if known.is_some_and(|known| !known.provisional || key.in_exec) {
            return process;
        }
        let belonging = &placed.belonging;
        let row = ProcessRow {
            pid: key.pid,
            start_ns: key.start_ns,
            exec: key.exec,
            service: self.text(&belonging.service, vocabulary),
            executable: self.text(placed.executable.as_deref().unwrap_or_default(), vocabulary),
            container: self.text(&belonging.container, vocabulary),
            cgroup: self.text(&belonging.cgroup, vocabulary),
            provisional: key.in_exec,
        };
        match self.process_rows.get_mut(process as usize) {
            Some(known) => *known = row,
            None => {
                self.process_rows.push(row);
                self.size.add_process();
            }
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
        // Nearly always each stands for the period; a field that is summed up, or a period that was changed, makes others.
        let differ = self.rows.iter().any(|row| row.value != run.period);
        let mut before = start_us;
        for row in &self.rows {
            let time = wall_us(row.time_ns).max(before);
            samples.time_delta_us.push(time - before);
            before = time;
            samples.stack.push(numbers[&row.stack]);
            samples.thread.push(row.thread);
            samples.cpu.push(row.cpu);
            if differ {
                samples.value.push(row.value);
            }
        }
        let (processes, threads) = dictionary.processes(&self.process_rows, &self.thread_rows);
        let cpus = self.count(run, totals, now_ns);
        let lost: u64 = cpus.iter().map(|cpu| cpu.taken - cpu.kept).sum();
        let undecodable = self.undecodable.min(lost);
        let drops = [
            (DropReason::RingFull, lost - undecodable),
            (DropReason::Undecodable, undecodable),
        ];
        // A record that could not be decoded is a gap in the counts only once a later one has come.
        self.undecodable -= undecodable;
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
        self.size.clear();
        self.start_ns = now_ns;
    }

    /// Returns what each CPU counted since the batch before up to `now_ns`, and starts counting anew.
    ///
    /// A batch that closes between two readings of the ring ends at the time of a sample, up to 200 ms before its totals were read.
    /// Of what was counted since the batch before, it has the part that the time has: otherwise its ticks would seem too few
    /// for their time, and weigh more.
    fn count(&mut self, run: &RunHead, totals: &Totals, now_ns: u64) -> Vec<CpuCounts> {
        let (own_ns, all_ns) = (
            now_ns.saturating_sub(self.counted_ns),
            totals.at_ns.saturating_sub(self.counted_ns),
        );
        let share = match own_ns < all_ns {
            true => own_ns as f64 / all_ns as f64,
            false => 1.0,
        };
        self.counted_ns = self.counted_ns.max(now_ns.min(totals.at_ns));
        let frequency_hz = (is_ticking(&run.profiler) && run.period > 0).then(|| 1e9 / run.period as f64);
        for &cpu in totals.counters.keys() {
            self.cpus.entry(cpu).or_default();
        }
        let count = |(&cpu, state): (&u32, &mut CpuState)| {
            let (idle, unwatched) = totals
                .counters
                .get(&cpu)
                .map_or((state.idle, state.unwatched), |counters| {
                    (counters.idle, counters.unwatched)
                });
            let times = totals.times.get(&cpu).copied();
            let enabled_ns = times.map_or(state.enabled_ns, |times| times.enabled_ns);
            let running_ns = times.map_or(state.running_ns, |times| times.running_ns);
            let (taken, passed) = state.of_what_is_watched();
            let (idle_before, idle) = part(state.idle, idle, share);
            let (unwatched_before, unwatched) = part(state.unwatched, unwatched, share);
            let (enabled_before, enabled_ns) = part(state.enabled_ns, enabled_ns, share);
            let (running_before, running_ns) = part(state.running_ns, running_ns, share);
            let running = running_ns - running_before;
            let (found_idle, others) = (idle - idle_before, unwatched - unwatched_before + passed);
            let ticks = taken + others + found_idle;
            let account = state.idle_ns.zip(totals.idle_ns.get(&cpu).copied());
            // The kernel lets its account of waiting for disks go back now and then.
            let account = account.map(|(before, now)| part(before, now.max(before), share));
            let missed = match (account, frequency_hz) {
                (Some((before, now)), Some(hz)) => {
                    missed_idle_ticks(ticks, found_idle, running, now - before, hz)
                }
                _ => 0,
            };
            let idle_ns = account.map(|(_, now)| now).or(totals.idle_ns.get(&cpu).copied());
            let counts = CpuCounts {
                cpu,
                taken,
                kept: state.kept,
                idle: found_idle + missed + others,
                enabled_ns: enabled_ns - enabled_before,
                running_ns: running,
            };
            *state = CpuState {
                sequence: state.sequence,
                taken: 0,
                kept: 0,
                passed: 0,
                idle,
                unwatched,
                enabled_ns,
                running_ns,
                idle_ns,
            };
            counts
        };
        self.cpus.iter_mut().map(count).collect()
    }

    /// Lets its interval start at `now_ns`, with counts from `totals` on: what came before belongs to no run.
    pub fn begin(&mut self, now_ns: u64, totals: &Totals) {
        (self.start_ns, self.counted_ns) = (now_ns, now_ns);
        for (&cpu, counters) in &totals.counters {
            let state = self.cpus.entry(cpu).or_default();
            (state.idle, state.unwatched) = (counters.idle, counters.unwatched);
        }
        for (&cpu, times) in &totals.times {
            let state = self.cpus.entry(cpu).or_default();
            (state.enabled_ns, state.running_ns) = (times.enabled_ns, times.running_ns);
        }
        for (&cpu, &idle_ns) in &totals.idle_ns {
            self.cpus.entry(cpu).or_default().idle_ns = Some(idle_ns);
        }
    }

    /// Returns whether it has no sample.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
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

/// Returns from where and to where a count goes of which `share` belongs to this batch. One that went back was begun anew: the
/// CPU was away.
fn part(before: u64, now: u64, share: f64) -> (u64, u64) {
    let before = if now < before { 0 } else { before };
    (before, before + ((now - before) as f64 * share) as u64)
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
        Side::BadFramePointer => StackEnd::BadFramePointer,
        Side::BadReturnAddress => StackEnd::BadReturnAddress,
        Side::NoMapping => StackEnd::UnknownMapping,
        Side::Unsupported => StackEnd::Unsupported,
        Side::NoTable => StackEnd::NoTable,
        Side::BeforeTables => StackEnd::BeforeTables,
        Side::NoRoom => StackEnd::NoRoom,
        Side::NoUser | Side::NotTaken => StackEnd::KernelOnly,
        Side::Exec => StackEnd::InExec,
        Side::Compat32 => StackEnd::Compat32,
    }
}

#[cfg(test)]
mod tests;
