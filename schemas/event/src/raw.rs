//! A batch of raw stacks: what an agent knows when the batch closes. Nothing in it depends on the host being alive.

use crate::binary::Binary;
use crate::frame::{Frames, Reason};
use crate::outcome::DropCount;
use crate::run::{Cause, RunHead};
use crate::stack::{STACK_FRAMES_MAX, StackEnd, Stacks};

/// Most samples in a batch (it closes at so many, at 256 KiB, after 2 s, or at the end of its run).
pub const BATCH_SAMPLES_MAX: usize = 8_192;

/// What one CPU counted during a batch's interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCounts {
    /// The CPU's number.
    pub cpu: u32,
    /// Ticks that found it busy: kept plus lost.
    pub taken: u64,
    /// Samples of it in this batch.
    pub kept: u64,
    /// Ticks that found it idle, or running what the run does not watch; with those that it left out while it was idle, by the
    /// kernel's account of its time.
    pub idle: u64,
    /// Nanoseconds for which the event was enabled.
    pub enabled_ns: u64,
    /// Nanoseconds for which it really counted; less than enabled when the kernel multiplexed it.
    pub running_ns: u64,
}

/// One process image: (pid, start time, exec count). `exec` makes a new one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id (tgid) on the host.
    pub pid: u32,
    /// Start of the process, nanoseconds since boot.
    pub start_ns: u64,
    /// The kernel's count of `exec`s (`self_exec_id`).
    pub exec: u32,
    /// Service: index into the strings.
    pub service: u32,
    /// Executable's path as the process saw it: index into the strings; 0 if not known.
    pub executable: u32,
    /// Container id: index into the strings; 0 for none.
    pub container: u32,
    /// Control group's path: index into the strings; 0 if not known.
    pub cgroup: u32,
}

/// The threads of a batch, as columns of equal length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// Index into the batch's processes.
    pub process: Vec<u32>,
    /// Thread id on the host.
    pub tid: Vec<u32>,
    /// The thread's name (comm) when sampled: index into the strings.
    pub name: Vec<u32>,
}

/// The samples of a batch in the order of their time, as columns of equal length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    /// Microseconds since the sample before; the first one's since the batch's `start_us`.
    pub time_delta_us: Vec<u64>,
    /// Index into the batch's stacks.
    pub stack: Vec<u32>,
    /// Index into the batch's threads.
    pub thread: Vec<u32>,
    /// CPU number.
    pub cpu: Vec<u32>,
    /// What each sample stands for before any correction; empty when all are the run's `period`.
    pub value: Vec<u64>,
}

impl Samples {
    /// Returns how many samples there are.
    pub fn len(&self) -> usize {
        self.time_delta_us.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.time_delta_us.is_empty()
    }
}

/// A closed batch of raw stacks of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RawBatch {
    /// The run it belongs to.
    pub run: RunHead,
    /// Position within the run, from 0.
    pub index: u32,
    /// Start of the batch's interval, microseconds since 1970 (UTC).
    pub start_us: u64,
    /// End of the batch's interval.
    pub end_us: u64,
    /// Counts of each CPU in the interval.
    pub cpus: Vec<CpuCounts>,
    /// Samples lost in the interval after they were taken, by reason.
    pub drops: Vec<DropCount>,
    /// Text of the batch; the first is empty.
    pub strings: Vec<String>,
    /// Binaries that frames point to.
    pub binaries: Vec<Binary>,
    /// Distinct frames.
    pub frames: Frames,
    /// Distinct stacks.
    pub stacks: Stacks,
    /// Process images.
    pub processes: Vec<Process>,
    /// Threads.
    pub threads: Threads,
    /// Samples.
    pub samples: Samples,
}

/// What is wrong with a batch whose parts do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the batch does not fit together: {0}")]
pub struct Malformed(pub String);

impl RawBatch {
    /// Proves that every index points into its dictionary, that columns are of equal length, counts add up, numbers
    /// are in range and bounds hold.
    ///
    /// # Errors
    /// [`Malformed`] names the first thing that does not fit.
    pub fn validate(&self) -> Result<(), Malformed> {
        let wrong = |what: &str| Err(Malformed(what.to_owned()));
        let strings = self.strings.len();
        if self.strings.first().is_none_or(|first| !first.is_empty()) {
            return wrong("the first string is not the empty one");
        }
        let below = |column: &[u32], bound: usize| column.iter().all(|&index| (index as usize) < bound);
        self.validate_run()?;
        if !self
            .binaries
            .iter()
            .all(|binary| (binary.path as usize) < strings)
        {
            return wrong("a binary's path is not a string of the batch");
        }
        let frames = &self.frames;
        let count = frames.len();
        if [frames.address.len(), frames.name.len(), frames.reason.len()] != [count; 3] {
            return wrong("the columns of frames differ in length");
        }
        if !below(&frames.binary, self.binaries.len() + 1) || !below(&frames.name, strings) {
            return wrong("a frame points outside of binaries or strings");
        }
        if !frames
            .reason
            .iter()
            .all(|&code| code == 0 || Reason::from_code(code).is_some())
        {
            return wrong("a frame's reason is not known");
        }
        self.validate_stacks()?;
        for process in &self.processes {
            let texts = [
                process.service,
                process.executable,
                process.container,
                process.cgroup,
            ];
            if !below(&texts, strings) {
                return wrong("a process points outside of the strings");
            }
        }
        let threads = &self.threads;
        if [threads.process.len(), threads.name.len()] != [threads.tid.len(); 2] {
            return wrong("the columns of threads differ in length");
        }
        if !below(&threads.process, self.processes.len()) || !below(&threads.name, strings) {
            return wrong("a thread points outside of processes or strings");
        }
        let samples = &self.samples;
        let count = samples.len();
        if count == 0 || count > BATCH_SAMPLES_MAX {
            return wrong("a batch holds 1 to 8192 samples");
        }
        if [samples.stack.len(), samples.thread.len(), samples.cpu.len()] != [count; 3]
            || ![0, count].contains(&samples.value.len())
        {
            return wrong("the columns of samples differ in length");
        }
        if !below(&samples.stack, self.stacks.len()) || !below(&samples.thread, threads.tid.len()) {
            return wrong("a sample points outside of stacks or threads");
        }
        Ok(())
    }

    fn validate_run(&self) -> Result<(), Malformed> {
        let run = &self.run;
        let probability = |p: f64| p > 0.0 && p <= 1.0;
        if !probability(run.run_probability) || !probability(run.kernel_probability) {
            return Err(Malformed("a probability of the run is not in (0, 1]".to_owned()));
        }
        if Cause::from_code(run.cause).is_none() {
            return Err(Malformed(format!("cause {} is not known", run.cause)));
        }
        if run.host.is_empty()
            || run.profiler.is_empty()
            || run.planned_us == 0
            || run.slot_us == 0
            || run.period == 0
        {
            return Err(Malformed(
                "the run lacks its host, profiler, duration, slot or period".to_owned(),
            ));
        }
        if self.end_us < self.start_us {
            return Err(Malformed("the interval ends before it starts".to_owned()));
        }
        Ok(())
    }

    fn validate_stacks(&self) -> Result<(), Malformed> {
        let stacks = &self.stacks;
        let wrong = |what: &str| Err(Malformed(what.to_owned()));
        if [stacks.added.len(), stacks.end.len()] != [stacks.len(); 2] {
            return wrong("the columns of stacks differ in length");
        }
        // Each unfolds to up to 254 frames, whatever few bytes it takes here.
        if stacks.len() > BATCH_SAMPLES_MAX {
            return wrong("a batch holds up to 8192 stacks");
        }
        if !stacks.end.iter().all(|&code| StackEnd::from_code(code).is_some()) {
            return wrong("a stack's end is not known");
        }
        let mut depth = 0_usize;
        let mut used = 0_usize;
        for (&shared, &added) in stacks.shared.iter().zip(&stacks.added) {
            if shared as usize > depth {
                return wrong("a stack shares more than the one before has");
            }
            depth = shared as usize + added as usize;
            used += added as usize;
            if depth > 2 * STACK_FRAMES_MAX {
                return wrong("a stack is deeper than 254 frames");
            }
        }
        if used != stacks.frames.len() {
            return wrong("the frames of the stacks do not add up");
        }
        if !stacks
            .frames
            .iter()
            .all(|&frame| (frame as usize) < self.frames.len())
        {
            return wrong("a stack points outside of the frames");
        }
        Ok(())
    }
}
