//! Splitting a batch that outgrew the limit on messages: into parts that are batches of their own.

use std::collections::HashSet;
use std::ops::Range;

use crate::codec::{self, EncodeError};
use crate::raw::{RawBatch, Samples, Threads};
use crate::samples::{Locations, SamplesBatch};
use crate::{Context, Frames, Stacks, Tags};

/// Returns `batch`, which must have been validated, as `parts` batches: runs of its samples, in order, as equal in
/// number as can be, each with only what it uses of the dictionaries.
///
/// `parts` is a power of two, at most the number of samples; anything else is lowered to one. Samples are halved again and
/// again, so that cutting a part in two gives the same two as cutting the whole batch twice as fine: what was split
/// otherwise before can be told apart. What was counted for the whole interval (`cpus`, `drops`) goes with the first part,
/// so that it counts once. No part is without samples; the same batch and number give the same parts.
pub fn split(batch: &SamplesBatch, parts: usize) -> Vec<SamplesBatch> {
    ranges(batch.raw.samples.len(), parts)
        .into_iter()
        .map(|range| cut(batch, range))
        .collect()
}

/// Returns the samples of each part when `samples` are split into `parts`: see [`split`].
pub fn ranges(samples: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.clamp(1, samples.max(1));
    let halvings = parts.ilog2();
    let mut ranges = Vec::from([Range {
        start: 0,
        end: samples,
    }]);
    for _ in 0..halvings {
        let halves = |range: Range<usize>| {
            let middle = range.start + range.len() / 2;
            [range.start..middle, middle..range.end]
        };
        ranges = ranges.into_iter().flat_map(halves).collect();
    }
    ranges
}

/// Returns `batch`, which must have been validated, encoded in as many parts as it takes for each to have at most
/// `limit_bytes`, without framing. Their number is a power of two, and part `index` of them is the [`crate::Part`] of
/// the same name: halving nests, so that parts of a batch that was split otherwise before can be told to overlap.
///
/// # Errors
/// As [`codec::encode`]; [`EncodeError::SampleTooLarge`] where a part is over the limit and cannot be halved.
pub fn split_to_fit(batch: &SamplesBatch, limit_bytes: usize) -> Result<Vec<Vec<u8>>, EncodeError> {
    let samples = batch.raw.samples.len();
    let mut encoded = vec![codec::encode(batch)?];
    loop {
        let largest = encoded.iter().map(Vec::len).max().unwrap_or_default();
        if largest <= limit_bytes {
            return Ok(encoded);
        }
        let parts = 2 * encoded.len();
        if parts > samples {
            return Err(EncodeError::SampleTooLarge {
                bytes: largest,
                limit: limit_bytes,
            });
        }
        encoded = split(batch, parts)
            .iter()
            .map(codec::encode)
            .collect::<Result<_, _>>()?;
    }
}

/// The entries of a dictionary that a part uses. They keep their order, since sorted stacks share long prefixes.
struct Used(Vec<bool>);

impl Used {
    fn none_of(entries: usize) -> Self {
        Self(vec![false; entries])
    }

    fn mark(&mut self, entry: u32) {
        self.0[entry as usize] = true;
    }

    fn has(&self, entry: usize) -> bool {
        self.0[entry]
    }

    /// Returns the used entries, ascending.
    fn kept(&self) -> impl Iterator<Item = usize> {
        self.0
            .iter()
            .enumerate()
            .filter_map(|(entry, &used)| used.then_some(entry))
    }

    /// Returns what became of each entry; of use for those that are kept.
    fn renumbered(&self) -> Vec<u32> {
        let mut next = 0;
        let number = |&used: &bool| {
            let number = next;
            next += u32::from(used);
            number
        };
        self.0.iter().map(number).collect()
    }
}

/// Returns the batch of the samples in `range`.
fn cut(batch: &SamplesBatch, range: Range<usize>) -> SamplesBatch {
    let from = &batch.raw;
    let mut stacks = Used::none_of(from.stacks.len());
    from.samples.stack[range.clone()]
        .iter()
        .for_each(|&stack| stacks.mark(stack));
    let mut frames = Used::none_of(from.frames.len());
    from.stacks.for_each(|index, stack, _| {
        if stacks.has(index) {
            stack.iter().for_each(|&frame| frames.mark(frame));
        }
    });
    let mut weights = Used::none_of(batch.weights.len());
    batch.sample_weight[range.clone()]
        .iter()
        .for_each(|&weight| weights.mark(weight));
    let weight_numbers = weights.renumbered();
    let mut contexts = Used::none_of(batch.tags.contexts.len());
    batch.sample_context[range.clone()]
        .iter()
        .for_each(|&context| contexts.mark(context));
    SamplesBatch {
        raw: cut_raw(from, range.clone(), &stacks, &frames),
        generation: batch.generation,
        locations: cut_locations(&batch.locations, &frames),
        tags: cut_tags(batch, range.clone(), &stacks, &contexts),
        weights: weights.kept().map(|weight| batch.weights[weight]).collect(),
        sample_weight: renumber(&batch.sample_weight[range.clone()], &weight_numbers),
        sample_context: renumber(&batch.sample_context[range], &contexts.renumbered()),
    }
}

fn cut_raw(from: &RawBatch, range: Range<usize>, stacks: &Used, frames: &Used) -> RawBatch {
    let mut threads = Used::none_of(from.threads.tid.len());
    from.samples.thread[range.clone()]
        .iter()
        .for_each(|&thread| threads.mark(thread));
    let mut processes = Used::none_of(from.processes.len());
    threads
        .kept()
        .for_each(|thread| processes.mark(from.threads.process[thread]));
    // Numbered from one: entry 0 stands for no binary, and is dropped again below.
    let mut binaries = Used::none_of(from.binaries.len() + 1);
    binaries.mark(0);
    frames
        .kept()
        .for_each(|frame| binaries.mark(from.frames.binary[frame]));

    let mut strings = Used::none_of(from.strings.len());
    strings.mark(0);
    frames
        .kept()
        .for_each(|frame| strings.mark(from.frames.name[frame]));
    threads
        .kept()
        .for_each(|thread| strings.mark(from.threads.name[thread]));
    binaries
        .kept()
        .skip(1)
        .for_each(|number| strings.mark(from.binaries[number - 1].path));
    for process in processes.kept().map(|process| &from.processes[process]) {
        let texts = [
            process.service,
            process.executable,
            process.container,
            process.cgroup,
        ];
        texts.into_iter().for_each(|text| strings.mark(text));
    }

    let text = strings.renumbered();
    let first = range.start == 0;
    RawBatch {
        run: from.run.clone(),
        index: from.index,
        start_us: from.start_us,
        end_us: from.end_us,
        cpus: if first { from.cpus.clone() } else { Vec::new() },
        drops: if first { from.drops.clone() } else { Vec::new() },
        strings: strings.kept().map(|entry| from.strings[entry].clone()).collect(),
        binaries: binaries
            .kept()
            .skip(1)
            .map(|number| {
                let mut binary = from.binaries[number - 1].clone();
                binary.path = text[binary.path as usize];
                binary
            })
            .collect(),
        frames: Frames {
            binary: pick(&from.frames.binary, frames, &binaries.renumbered()),
            address: frames.kept().map(|frame| from.frames.address[frame]).collect(),
            name: pick(&from.frames.name, frames, &text),
            reason: frames.kept().map(|frame| from.frames.reason[frame]).collect(),
        },
        stacks: cut_stacks(&from.stacks, stacks, &frames.renumbered()),
        processes: processes
            .kept()
            .map(|entry| {
                let mut process = from.processes[entry].clone();
                process.service = text[process.service as usize];
                process.executable = text[process.executable as usize];
                process.container = text[process.container as usize];
                process.cgroup = text[process.cgroup as usize];
                process
            })
            .collect(),
        threads: Threads {
            process: pick(&from.threads.process, &threads, &processes.renumbered()),
            tid: threads.kept().map(|thread| from.threads.tid[thread]).collect(),
            name: pick(&from.threads.name, &threads, &text),
        },
        samples: cut_samples(&from.samples, range, &stacks.renumbered(), &threads.renumbered()),
    }
}

fn cut_stacks(from: &Stacks, used: &Used, frame_numbers: &[u32]) -> Stacks {
    let mut stacks = Stacks::default();
    let mut previous = Vec::new();
    from.for_each(|index, stack, _| {
        if used.has(index) {
            let stack = renumber(stack, frame_numbers);
            let shared = previous.iter().zip(&stack).take_while(|(a, b)| a == b).count();
            // Depth is bounded by validation, so that the counts fit.
            stacks.shared.push(shared as u32);
            stacks.added.push((stack.len() - shared) as u32);
            stacks.frames.extend_from_slice(&stack[shared..]);
            previous = stack;
        }
    });
    stacks.end = used.kept().map(|index| from.end[index]).collect();
    stacks
}

fn cut_samples(from: &Samples, range: Range<usize>, stacks: &[u32], threads: &[u32]) -> Samples {
    let mut time_delta_us = from.time_delta_us[range.clone()].to_vec();
    if let Some(first) = time_delta_us.first_mut() {
        // The first of each part counts from the start of the interval, which all parts share.
        *first = from.time_delta_us[..=range.start]
            .iter()
            .fold(0, |sum, &delta| sum.saturating_add(delta));
    }
    Samples {
        time_delta_us,
        stack: renumber(&from.stack[range.clone()], stacks),
        thread: renumber(&from.thread[range.clone()], threads),
        cpu: from.cpu[range.clone()].to_vec(),
        value: from.value.get(range).unwrap_or_default().to_vec(),
    }
}

fn cut_locations(from: &Locations, frames: &Used) -> Locations {
    let mut text = Used::none_of(from.text.len());
    text.mark(0);
    let mut to = Locations::default();
    let mut start = 0;
    for (frame, &count) in from.count.iter().enumerate() {
        let locations = start..start + count as usize;
        start = locations.end;
        if !frames.has(frame) {
            continue;
        }
        to.count.push(count);
        to.reason.push(from.reason[frame]);
        to.function.extend_from_slice(&from.function[locations.clone()]);
        to.file.extend_from_slice(&from.file[locations.clone()]);
        to.line.extend_from_slice(&from.line[locations]);
    }
    to.function
        .iter()
        .chain(&to.file)
        .for_each(|&entry| text.mark(entry));
    let numbers = text.renumbered();
    to.function = renumber(&to.function, &numbers);
    to.file = renumber(&to.file, &numbers);
    to.text = text.kept().map(|entry| from.text[entry].clone()).collect();
    to
}

fn cut_tags(batch: &SamplesBatch, range: Range<usize>, stacks: &Used, contexts: &Used) -> Tags {
    let from = &batch.tags;
    let samples = batch.raw.samples.stack[range.clone()].iter();
    let met: HashSet<(u32, u32)> = samples
        .copied()
        .zip(batch.sample_context[range].iter().copied())
        .collect();
    let pairs: Vec<usize> = (0..from.stack.len())
        .filter(|&pair| met.contains(&(from.stack[pair], from.context[pair])))
        .collect();
    let mut outcomes = Used::none_of(from.outcomes.len());
    pairs.iter().for_each(|&pair| outcomes.mark(from.outcome[pair]));

    let mut text = Used::none_of(from.text.len());
    from.schemas.iter().for_each(|&entry| text.mark(entry));
    let of_contexts = contexts.kept().map(|at| &from.contexts[at]);
    of_contexts
        .flat_map(|context| context.names.iter().chain(&context.values))
        .for_each(|&entry| text.mark(entry));
    for outcome in outcomes.kept().map(|at| &from.outcomes[at]) {
        outcome.tags.iter().for_each(|&tag| text.mark(tag));
        outcome.frame_tags.iter().for_each(|tag| text.mark(tag.tag));
        outcome.marks.iter().for_each(|mark| text.mark(mark.text));
    }
    let numbers = text.renumbered();
    let new = |entry: u32| numbers[entry as usize];
    let pick = |column: &[u32], numbers: &[u32]| -> Vec<u32> {
        pairs.iter().map(|&pair| numbers[column[pair] as usize]).collect()
    };
    Tags {
        schemas: renumber(&from.schemas, &numbers),
        contexts: contexts
            .kept()
            .map(|at| Context {
                names: renumber(&from.contexts[at].names, &numbers),
                values: renumber(&from.contexts[at].values, &numbers),
            })
            .collect(),
        stack: pick(&from.stack, &stacks.renumbered()),
        context: pick(&from.context, &contexts.renumbered()),
        outcome: pick(&from.outcome, &outcomes.renumbered()),
        outcomes: outcomes
            .kept()
            .map(|at| {
                let mut outcome = from.outcomes[at].clone();
                outcome.tags.iter_mut().for_each(|tag| *tag = new(*tag));
                outcome
                    .frame_tags
                    .iter_mut()
                    .for_each(|tag| tag.tag = new(tag.tag));
                outcome
                    .marks
                    .iter_mut()
                    .for_each(|mark| mark.text = new(mark.text));
                outcome
            })
            .collect(),
        text: text.kept().map(|entry| from.text[entry].clone()).collect(),
    }
}

/// Returns the new numbers of the old ones in `column`.
fn renumber(column: &[u32], numbers: &[u32]) -> Vec<u32> {
    column.iter().map(|&old| numbers[old as usize]).collect()
}

/// Returns the new numbers in the rows of `column` that are kept.
fn pick(column: &[u32], rows: &Used, numbers: &[u32]) -> Vec<u32> {
    rows.kept().map(|row| numbers[column[row] as usize]).collect()
}
