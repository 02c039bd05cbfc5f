//! Synthetic batches with the shape of recorded ones, the same for the same seed: for tests and benchmarks.
//!
//! Programs are call graphs; a path is a walk from `main` down such a graph, and new paths branch off old ones near
//! their leaves, which is what makes neighbours share prefixes. Call sites recur, leaf addresses scatter over the
//! instructions of hot functions, CPUs tick at the sampling rate with jitter, threads keep their CPU for some ticks.

mod names;

use std::collections::BTreeMap;

use crate::{
    Binary, BinaryKind, BuildId, Cause, CpuCounts, Frames, Process, RawBatch, RunHead, RunId, Samples,
    SamplesBatch, StackEnd, Stacks, Threads,
};
pub use names::name;
use names::words;

/// What a workload looks like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Samples of each batch; at most [`crate::raw::BATCH_SAMPLES_MAX`].
    pub samples: usize,
    /// Share of the samples whose stack occurs for the first time in the batch.
    pub distinct_share: f64,
    /// Frames of a stack, on average.
    pub depth: usize,
    /// Programs, each with a call graph of its own.
    pub programs: usize,
    /// Processes, dealt to the programs in turn.
    pub processes: usize,
    /// Threads of each process.
    pub threads: usize,
    /// CPUs.
    pub cpus: u32,
    /// Samples per second and CPU.
    pub frequency_hz: u64,
}

impl Default for Shape {
    /// Returns what 20 s of a demo on two CPUs at 997 Hz look like: 54 % distinct stacks of 40 frames.
    fn default() -> Self {
        Self {
            samples: 8_192,
            distinct_share: 0.54,
            depth: 40,
            programs: 5,
            processes: 12,
            threads: 4,
            cpus: 2,
            frequency_hz: 997,
        }
    }
}

/// A small generator (SplitMix64): the sequence for a seed never changes, which a library's may.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number in [0, 1).
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number below `bound`; 0 for a bound of 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.share() * bound as f64) as usize
    }

    /// Returns a number below `bound`, small ones far more often: as few functions and paths are hot.
    fn skewed(&mut self, bound: usize) -> usize {
        let share = self.share();
        (share * share * share * bound as f64) as usize
    }

    /// Returns a number from 1, with this mean.
    fn geometric(&mut self, mean: f64) -> usize {
        1 + ((1.0 - self.share()).ln() / (1.0 - 1.0 / mean).ln()) as usize
    }
}

/// Functions of a program.
const FUNCTIONS: usize = 500;

/// Call sites of a function.
const CALL_SITES: usize = 4;

/// Instructions of a function at which samples are found.
const LEAF_SITES: usize = 24;

/// Paths of a program.
const PATHS: usize = 400;

/// Frames behind the point where a new path leaves an old one, on average.
const BRANCH_FRAMES: f64 = 8.0;

/// Functions of the kernel.
const KERNEL_FUNCTIONS: usize = 300;

/// A frame before it has a number: (binary, address), binaries counted from 0.
type Site = (u32, u64);

struct Function {
    binary: u32,
    start: u64,
    bytes: u64,
    /// (offset of the call, function called).
    calls: Vec<(u64, usize)>,
    /// Offsets at which samples are found.
    leaves: Vec<u64>,
}

impl Function {
    fn call(&self, site: usize) -> (Site, usize) {
        let (offset, callee) = self.calls[site];
        ((self.binary, self.start + offset), callee)
    }
}

/// Returns `count` functions that lie one behind the other in the binaries, and call one another.
fn functions(random: &mut Random, binaries: &[u32], count: usize) -> Vec<Function> {
    let mut ends: BTreeMap<u32, u64> = binaries.iter().map(|&binary| (binary, 0x1000)).collect();
    (0..count)
        .map(|_| {
            let binary = binaries[random.skewed(binaries.len())];
            let bytes = 32 + 16 * random.geometric(24.0) as u64;
            let end = ends.entry(binary).or_insert(0x1000);
            let start = *end + 16 * random.geometric(20.0) as u64;
            *end = start + bytes;
            let mut offsets = |sites| {
                (0..sites)
                    .map(|_| random.below(bytes as usize) as u64)
                    .collect::<Vec<_>>()
            };
            let leaves = offsets(LEAF_SITES);
            let calls = offsets(CALL_SITES)
                .into_iter()
                .map(|offset| (offset, random.below(count)))
                .collect();
            Function {
                binary,
                start,
                bytes,
                calls,
                leaves,
            }
        })
        .collect()
}

/// A walk down a call graph: its call sites, and the function in which it ends.
#[derive(Clone)]
struct Path {
    sites: Vec<Site>,
    /// The function behind each site.
    functions: Vec<usize>,
}

fn extend(path: &mut Path, graph: &[Function], depth: usize, random: &mut Random) {
    while path.sites.len() + 1 < depth {
        let at = path.functions.last().copied().unwrap_or_default();
        let (site, callee) = graph[at].call(random.skewed(CALL_SITES));
        path.sites.push(site);
        path.functions.push(callee);
    }
}

fn paths(graph: &[Function], shape: &Shape, random: &mut Random) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::with_capacity(PATHS);
    for _ in 0..PATHS {
        let depth = (shape.depth as f64 * (0.6 + 0.8 * random.share())) as usize;
        let mut path = match paths.is_empty() {
            true => Path {
                sites: Vec::new(),
                functions: Vec::new(),
            },
            false => paths[random.skewed(paths.len())].clone(),
        };
        let kept = path.sites.len().saturating_sub(random.geometric(BRANCH_FRAMES));
        path.sites.truncate(kept);
        path.functions.truncate(kept);
        extend(&mut path, graph, depth.max(kept + 2), random);
        paths.push(path);
    }
    paths
}

struct Program {
    graph: Vec<Function>,
    paths: Vec<Path>,
}

/// Programs that run on a host; batches are drawn from them, so that stacks recur from batch to batch.
pub struct Workload {
    shape: Shape,
    seed: u64,
    binaries: Vec<(BinaryKind, BuildId, String)>,
    programs: Vec<Program>,
    kernel: Program,
    kernel_binary: u32,
}

/// Libraries that every program maps, besides its own executable.
const LIBRARIES: [&str; 4] = [
    "libc.so.6",
    "libstdc++.so.6.0.30",
    "libcrypto.so.3",
    "libpthread-2.36.so",
];

fn build_id(random: &mut Random) -> Option<BuildId> {
    let bytes: Vec<u8> = (0..20).map(|_| random.next() as u8).collect();
    BuildId::new(&bytes)
}

impl Workload {
    /// Returns the workload that `seed` stands for.
    pub fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut binaries = Vec::new();
        let mut add = |kind, path: String, random: &mut Random| {
            if let Some(id) = build_id(random) {
                binaries.push((kind, id, path));
            }
            (binaries.len() - 1) as u32
        };
        let libraries = LIBRARIES.map(|name| add(BinaryKind::Gnu, format!("/usr/lib/{name}"), &mut random));
        let executables: Vec<u32> = (0..shape.programs)
            .map(|program| {
                add(
                    BinaryKind::Gnu,
                    format!("/opt/service-{program}/bin/service"),
                    &mut random,
                )
            })
            .collect();
        let kernel_binary = add(BinaryKind::Kernel, "[kernel]".to_owned(), &mut random);
        let program = |random: &mut Random, binaries: &[u32], count, shape: &Shape| {
            let graph = functions(random, binaries, count);
            let paths = paths(&graph, shape, random);
            Program { graph, paths }
        };
        let programs = executables
            .iter()
            .map(|&own| {
                let mut mapped = vec![own];
                mapped.extend_from_slice(&libraries);
                program(&mut random, &mapped, FUNCTIONS, &shape)
            })
            .collect();
        // The kernel's part of a stack is about 8 frames deep.
        let shallow = Shape { depth: 8, ..shape };
        let kernel = program(&mut random, &[kernel_binary], KERNEL_FUNCTIONS, &shallow);
        Self {
            shape,
            seed,
            binaries,
            programs,
            kernel,
            kernel_binary,
        }
    }

    /// Returns batch number `index` of a run of this workload.
    pub fn raw_batch(&self, index: u32) -> RawBatch {
        let random = Random(self.seed ^ (u64::from(index) + 1).wrapping_mul(0xd134_2543_de82_ef95));
        Draw {
            workload: self,
            random,
            stacks: BTreeMap::new(),
            of_program: vec![Vec::new(); self.programs.len()],
        }
        .batch(index)
    }

    /// Returns batch number `index`, named, tagged and weighted.
    pub fn samples_batch(&self, index: u32) -> SamplesBatch {
        name(self.raw_batch(index))
    }
}

/// A stack before its frames have numbers: user sites and kernel sites, root first.
type Drawn = Vec<Site>;

struct Draw<'w> {
    workload: &'w Workload,
    random: Random,
    /// Number of each stack, in the order in which they were drawn.
    stacks: BTreeMap<Drawn, u32>,
    /// Stacks of each program, in that order.
    of_program: Vec<Vec<u32>>,
}

impl Draw<'_> {
    fn stack(&mut self, program: usize) -> u32 {
        let seen = self.of_program[program].len();
        if seen > 0 && self.random.share() >= self.workload.shape.distinct_share {
            return self.of_program[program][self.random.skewed(seen)];
        }
        loop {
            let drawn = self.walk(program);
            let next = self.stacks.len() as u32;
            if let std::collections::btree_map::Entry::Vacant(vacant) = self.stacks.entry(drawn) {
                vacant.insert(next);
                self.of_program[program].push(next);
                return next;
            }
        }
    }

    fn walk(&mut self, program: usize) -> Drawn {
        let workload = self.workload;
        let program = &workload.programs[program];
        let mut stack = Vec::with_capacity(2 * workload.shape.depth);
        self.walk_in(program, &mut stack);
        if self.random.share() < 0.15 {
            self.walk_in(&workload.kernel, &mut stack);
        }
        stack
    }

    fn walk_in(&mut self, program: &Program, stack: &mut Drawn) {
        let path = &program.paths[self.random.skewed(program.paths.len())];
        stack.extend_from_slice(&path.sites);
        let leaf = &program.graph[path.functions.last().copied().unwrap_or_default()];
        let offset = leaf.leaves[self.random.skewed(LEAF_SITES)];
        stack.push((leaf.binary, leaf.start + offset.min(leaf.bytes)));
    }

    fn batch(mut self, index: u32) -> RawBatch {
        let shape = self.workload.shape;
        let tick_us = 1_000_000 / shape.frequency_hz;
        let start_us =
            1_780_000_000_000_000 + u64::from(index) * shape.samples as u64 * tick_us / u64::from(shape.cpus);
        let mut samples = Samples::default();
        let mut next: Vec<u64> = (0..shape.cpus)
            .map(|_| start_us + self.random.below(tick_us as usize) as u64)
            .collect();
        let mut running = vec![0; next.len()];
        let mut kept = vec![0_u64; next.len()];
        let mut last = start_us;
        while samples.len() < shape.samples {
            let cpu = (0..next.len()).min_by_key(|&cpu| next[cpu]).unwrap_or_default();
            let now = next[cpu];
            next[cpu] = (now + tick_us).saturating_add_signed(self.random.below(7) as i64 - 3);
            if self.random.share() < 0.2 {
                running[cpu] = self.random.skewed(shape.processes * shape.threads);
            }
            let thread = running[cpu];
            samples.time_delta_us.push(now.saturating_sub(last));
            last = last.max(now);
            samples
                .stack
                .push(self.stack(thread / shape.threads % shape.programs));
            samples.thread.push(thread as u32);
            samples.cpu.push(cpu as u32);
            kept[cpu] += 1;
        }
        let cpus = kept.iter().zip(0..).map(|(&kept, cpu)| CpuCounts {
            cpu,
            taken: kept,
            kept,
            idle: kept / 9,
            enabled_ns: (last - start_us) * 1_000,
            running_ns: (last - start_us) * 1_000,
        });
        let cpus = cpus.collect();
        self.assemble(index, start_us, last, cpus, samples)
    }

    /// Numbers strings, frames and stacks: frames by binary and address, stacks by their frames.
    fn assemble(
        self,
        index: u32,
        start_us: u64,
        end_us: u64,
        cpus: Vec<CpuCounts>,
        mut samples: Samples,
    ) -> RawBatch {
        let shape = self.workload.shape;
        let mut strings = vec![String::new()];
        let mut text = |text: String| {
            strings.push(text);
            (strings.len() - 1) as u32
        };
        let binaries = self.workload.binaries.iter().map(|(kind, id, path)| Binary {
            kind: *kind,
            id: id.clone(),
            path: text(path.clone()),
        });
        let binaries = binaries.collect();
        let mut numbers: BTreeMap<Site, u32> = BTreeMap::new();
        self.stacks.keys().flatten().for_each(|&site| {
            numbers.insert(site, 0);
        });
        let mut frames = Frames::default();
        let mut symbols = BTreeMap::new();
        for ((&(binary, address), number), at) in numbers.iter_mut().zip(0..) {
            *number = at;
            frames.binary.push(binary + 1);
            frames.address.push(address);
            let name = match binary == self.workload.kernel_binary {
                // A function of the kernel is some hundred bytes long.
                true => *symbols.entry(address >> 9).or_insert_with(|| {
                    let (verb, noun, more) = words(address >> 9);
                    text(format!("__{noun}_{verb}_{more}"))
                }),
                false => 0,
            };
            frames.name.push(name);
            frames.reason.push(0);
        }
        let mut stacks = Stacks::default();
        let mut new_number = vec![0; self.stacks.len()];
        let mut previous: Vec<u32> = Vec::new();
        // The map's order is that of (binary, address), and so is that of the frames' numbers.
        for ((drawn, &old), at) in self.stacks.iter().zip(0..) {
            let stack: Vec<u32> = drawn.iter().map(|site| numbers[site]).collect();
            let end = if at % 16 == 7 {
                StackEnd::BadFramePointer
            } else {
                StackEnd::Root
            };
            stacks.push(&previous, &stack, end);
            previous = stack;
            new_number[old as usize] = at;
        }
        samples
            .stack
            .iter_mut()
            .for_each(|stack| *stack = new_number[*stack as usize]);
        let mut threads = Threads::default();
        let processes = (0..shape.processes).map(|process| {
            let program = process % shape.programs;
            for thread in 0..shape.threads {
                threads.process.push(process as u32);
                threads.tid.push((4_000 + 97 * process + thread) as u32);
                threads.name.push(text(format!("worker-{program}-{thread}")));
            }
            Process {
                pid: (4_000 + 97 * process) as u32,
                start_ns: 31_000_000_000 + 1_700_000_000 * process as u64,
                exec: 1,
                service: text(format!("service-{program}")),
                executable: text(format!("/opt/service-{program}/bin/service")),
                container: 0,
                cgroup: text(format!("/system.slice/service-{program}.service")),
            }
        });
        let processes = processes.collect();
        RawBatch {
            run: self.workload.run_head(),
            index,
            start_us,
            end_us,
            cpus,
            drops: Vec::new(),
            strings,
            binaries,
            frames,
            stacks,
            processes,
            threads,
            samples,
        }
    }
}

impl Workload {
    fn run_head(&self) -> RunHead {
        let mut random = Random(!self.seed);
        let mut id = [0; 16];
        id.iter_mut().for_each(|byte| *byte = random.next() as u8);
        RunHead {
            id: RunId(id),
            host: "host-17".to_owned(),
            profiler: "cpu".to_owned(),
            cause: Cause::Continuous as u8,
            started_us: 1_780_000_000_000_000,
            planned_us: 20_000_000,
            slot_us: 60_000_000,
            run_probability: 1.0,
            kernel_probability: 1.0,
            period: 1_000_000_000 / self.shape.frequency_hz,
        }
    }
}

/// Returns the first batch of the workload that `seed` stands for.
pub fn raw_batch(shape: &Shape, seed: u64) -> RawBatch {
    Workload::new(*shape, seed).raw_batch(0)
}

/// Returns the same batch, named, tagged and weighted.
pub fn samples_batch(shape: &Shape, seed: u64) -> SamplesBatch {
    name(raw_batch(shape, seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that batches are valid, have the shape asked for, and are the same for the same seed.
    #[test]
    fn batches_have_the_shape_asked_for() {
        let workload = Workload::new(Shape::default(), 1);
        let batch = workload.samples_batch(0);
        assert_eq!(batch.validate(), Ok(()));
        assert_eq!(batch.raw.samples.len(), 8_192);
        let share = batch.raw.stacks.len() as f64 / 8_192.0;
        assert!((0.52..0.56).contains(&share), "{share}");
        let mut frames = 0;
        batch.raw.stacks.for_each(|_, stack, _| frames += stack.len());
        let depth = frames as f64 / batch.raw.stacks.len() as f64;
        assert!((35.0..45.0).contains(&depth), "{depth}");
        assert_eq!(Workload::new(Shape::default(), 1).samples_batch(0), batch);
        assert_ne!(workload.raw_batch(1).samples, batch.raw.samples);
        assert_ne!(
            Workload::new(Shape::default(), 2).raw_batch(0).frames,
            batch.raw.frames
        );
    }

    /// Checks that a small shape gives a valid batch too.
    #[test]
    fn small_shapes_are_valid() {
        for samples in [1, 2, 37] {
            let shape = Shape {
                samples,
                programs: 1,
                processes: 1,
                threads: 1,
                cpus: 1,
                ..Shape::default()
            };
            assert_eq!(Workload::new(shape, 3).samples_batch(0).validate(), Ok(()));
        }
    }
}
