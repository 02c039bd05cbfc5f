//! Splitting: the parts together are the batch.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use proptest::prelude::*;
use strobe_event::codec::{self, EncodeError};
use strobe_event::split::{split, split_to_fit};
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{BinaryKind, DropCount, Part, SamplesBatch};

/// One sample with everything it points to spelled out, so that it means the same whatever the dictionaries' numbers.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
struct Spelled {
    time_us: u64,
    thread: String,
    cpu: u32,
    value: Option<u64>,
    weight: (f64, f64),
    frames: Vec<String>,
    end: u8,
    context: Vec<(String, String)>,
    tags: Vec<String>,
}

/// Returns what the batch says of a stack in a context, spelled out.
fn said(batch: &SamplesBatch, stack: u32, context: u32) -> Vec<String> {
    let tags = &batch.tags;
    let of_pair =
        (0..tags.stack.len()).filter(|&pair| (tags.stack[pair], tags.context[pair]) == (stack, context));
    of_pair
        .flat_map(|pair| {
            let outcome = &tags.outcomes[tags.outcome[pair] as usize];
            let stack = outcome.tags.iter().map(|&tag| format!("tag {}", tags.text(tag)));
            let frames = outcome
                .frame_tags
                .iter()
                .map(|tag| format!("{:?} tag {}", tag.place, tags.text(tag.tag)));
            let marks = outcome
                .marks
                .iter()
                .map(|mark| format!("{:?} {} {}", mark.place, mark.kind, tags.text(mark.text)));
            let schemas = tags
                .schemas
                .iter()
                .map(|&schema| format!("by {}", tags.text(schema)));
            stack
                .chain(frames)
                .chain(marks)
                .chain(schemas)
                .collect::<Vec<_>>()
        })
        .collect()
}

fn spelled(batch: &SamplesBatch) -> Vec<Spelled> {
    let raw = &batch.raw;
    let string = |entry: u32| raw.strings[entry as usize].as_str();
    let locations = &batch.locations;
    let mut start = 0;
    let frames: Vec<String> = (0..raw.frames.len())
        .map(|frame| {
            let named = start..start + locations.count[frame] as usize;
            start = named.end;
            let names: Vec<String> = named
                .map(|at| {
                    let text = |entry: u32| locations.text[entry as usize].as_str();
                    format!(
                        "{} {}:{}",
                        text(locations.function[at]),
                        text(locations.file[at]),
                        locations.line[at]
                    )
                })
                .collect();
            let binary = (raw.frames.binary[frame] as usize).checked_sub(1).map(|at| {
                let binary = &raw.binaries[at];
                (binary.kind, binary.id.clone(), string(binary.path))
            });
            let (address, reason) = (raw.frames.address[frame], raw.frames.reason[frame]);
            let (given, unnamed) = (string(raw.frames.name[frame]), locations.reason[frame]);
            format!("{binary:?} {address:x} {given} {reason} {unnamed} {names:?}")
        })
        .collect();
    let mut stacks = Vec::new();
    raw.stacks.for_each(|_, stack, end| {
        stacks.push((
            stack
                .iter()
                .map(|&frame| frames[frame as usize].clone())
                .collect::<Vec<_>>(),
            end,
        ));
    });
    let mut time_us = raw.start_us;
    (0..raw.samples.len())
        .map(|sample| {
            time_us += raw.samples.time_delta_us[sample];
            let thread = raw.samples.thread[sample] as usize;
            let process = &raw.processes[raw.threads.process[thread] as usize];
            let texts = [
                process.service,
                process.executable,
                process.container,
                process.cgroup,
            ]
            .map(string);
            let (tid, name) = (raw.threads.tid[thread], string(raw.threads.name[thread]));
            let ids = (process.pid, process.start_ns, process.exec);
            let weight = batch.weights[batch.sample_weight[sample] as usize];
            let (frames, end) = stacks[raw.samples.stack[sample] as usize].clone();
            let context = batch.sample_context[sample];
            let values = batch.tags.values(context as usize);
            let context_of: Vec<(String, String)> = values
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            let tags = said(batch, raw.samples.stack[sample], context);
            Spelled {
                time_us,
                thread: format!("{ids:?} {texts:?} {tid} {name}"),
                cpu: raw.samples.cpu[sample],
                value: raw.samples.value.get(sample).copied(),
                weight: (weight.run, weight.fleet),
                frames,
                end,
                context: context_of,
                tags,
            }
        })
        .collect()
}

fn batch(samples: usize, seed: u64) -> SamplesBatch {
    let shape = Shape {
        samples,
        ..Shape::default()
    };
    let mut batch = Workload::new(shape, seed).samples_batch(0);
    batch.raw.drops = vec![DropCount {
        reason: 1,
        samples: 3,
    }];
    batch
}

/// Checks that `parts` are valid, that in order they hold the samples of `whole`, and that counts stand in one only.
fn together(parts: &[SamplesBatch], whole: &SamplesBatch) {
    for part in parts {
        assert_eq!(part.validate(), Ok(()));
        assert_eq!((&part.raw.run, part.raw.index), (&whole.raw.run, whole.raw.index));
        assert_eq!(
            (part.raw.start_us, part.raw.end_us),
            (whole.raw.start_us, whole.raw.end_us)
        );
        assert_eq!(part.generation, whole.generation);
    }
    assert_eq!(parts.iter().flat_map(spelled).collect::<Vec<_>>(), spelled(whole));
    assert_eq!(
        (&parts[0].raw.cpus, &parts[0].raw.drops),
        (&whole.raw.cpus, &whole.raw.drops)
    );
    for later in &parts[1..] {
        assert!(
            later.raw.cpus.is_empty() && later.raw.drops.is_empty(),
            "counts stand in the first part only"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that the parts of any batch, however many, are the batch; also with values of their own per sample.
    #[test]
    fn the_parts_are_the_batch(samples in 1_usize..300, parts in 0_usize..20, seed in 0_u64..8, valued: bool) {
        let mut whole = batch(samples, seed);
        if valued {
            whole.raw.samples.value = (0..samples as u64).map(|sample| 1 + sample * sample).collect();
        }
        let split = split(&whole, parts);
        prop_assert_eq!(split.len(), 1 << parts.clamp(1, samples).ilog2());
        together(&split, &whole);
        let sizes: Vec<usize> = split.iter().map(|part| part.raw.samples.len()).collect();
        prop_assert!(sizes.iter().max() <= sizes.iter().min().map(|least| least + 1).as_ref(), "{:?}", sizes);
        prop_assert_eq!(split, strobe_event::split::split(&whole, parts));
    }
}

/// Checks that a part carries only what its samples use.
#[test]
fn parts_carry_only_what_they_use() {
    let whole = batch(4_000, 1);
    for part in split(&whole, 8) {
        let raw = &part.raw;
        let uses = |used: &[u32], entries: usize| (0..entries as u32).all(|entry| used.contains(&entry));
        assert!(
            uses(&raw.samples.stack, raw.stacks.len()),
            "a stack without a sample"
        );
        assert!(
            uses(&raw.stacks.frames, raw.frames.len()),
            "a frame without a stack"
        );
        assert!(
            uses(&raw.samples.thread, raw.threads.tid.len()),
            "a thread without a sample"
        );
        assert!(
            uses(&raw.threads.process, raw.processes.len()),
            "a process without a thread"
        );
        let numbers: Vec<u32> = raw
            .frames
            .binary
            .iter()
            .filter_map(|number| number.checked_sub(1))
            .collect();
        assert!(uses(&numbers, raw.binaries.len()), "a binary without a frame");
        let mut texts = vec![0];
        texts.extend(&raw.frames.name);
        texts.extend(&raw.threads.name);
        texts.extend(raw.binaries.iter().map(|binary| binary.path));
        texts.extend(
            raw.processes
                .iter()
                .flat_map(|p| [p.service, p.executable, p.container, p.cgroup]),
        );
        assert!(uses(&texts, raw.strings.len()), "a string that nothing names");
        let mut texts = vec![0];
        texts.extend(part.locations.function.iter().chain(&part.locations.file));
        assert!(
            uses(&texts, part.locations.text.len()),
            "a name that no frame has"
        );
        let tags = &part.tags;
        assert!(
            uses(&tags.outcome, tags.outcomes.len()),
            "an outcome that no stack has"
        );
        assert!(
            uses(&part.sample_context, tags.contexts.len()),
            "a context that no sample has"
        );
        let mut texts = tags.schemas.clone();
        texts.extend(
            tags.contexts
                .iter()
                .flat_map(|context| context.names.iter().chain(&context.values)),
        );
        for outcome in &tags.outcomes {
            texts.extend(&outcome.tags);
            texts.extend(outcome.frame_tags.iter().map(|tag| tag.tag));
            texts.extend(outcome.marks.iter().map(|mark| mark.text));
        }
        assert!(uses(&texts, tags.text.len()), "a text that nothing names");
        assert!(
            uses(&part.sample_weight, part.weights.len()),
            "a weight that no sample has"
        );
    }
    assert!(
        whole
            .raw
            .binaries
            .iter()
            .any(|binary| binary.kind == BinaryKind::Kernel)
    );
}

/// Checks that parts fit the limit, that what fits is left whole, and that what cannot fit is refused with its size.
#[test]
fn parts_fit_the_limit() {
    let whole = batch(8_192, 2);
    let bytes = codec::encode(&whole).expect("encodable");
    assert_eq!(split_to_fit(&whole, bytes.len()), Ok(vec![bytes.clone()]));
    for limit in [bytes.len() - 1, bytes.len() / 3, bytes.len() / 10] {
        let parts = split_to_fit(&whole, limit).expect("parts that fit");
        assert!(
            parts.len() > 1 && parts.iter().all(|part| part.len() <= limit),
            "{limit}"
        );
        let parts: Vec<SamplesBatch> = parts
            .iter()
            .map(|part| codec::decode(part).expect("decodable"))
            .collect();
        together(&parts, &whole);
    }
    let refused = split_to_fit(&batch(3, 3), 100);
    assert!(
        matches!(refused, Err(EncodeError::SampleTooLarge { bytes, limit: 100 }) if bytes > 100),
        "{refused:?}"
    );
}

/// Checks that half a part is one of the parts of the next split: what `Part::covers` says of numbers holds of samples.
#[test]
fn halves_nest() {
    for samples in [13, 1_001] {
        halves_of(&batch(samples, 4));
    }
}

fn halves_of(whole: &SamplesBatch) {
    let (few, many) = (split(whole, 4), split(whole, 8));
    for (index, part) in few.iter().enumerate() {
        let part_of = |of: usize, index: usize| Part {
            of: of as u32,
            index: index as u32,
        };
        let halves: Vec<&SamplesBatch> = many
            .iter()
            .enumerate()
            .filter(|&(half, _)| part_of(4, index).covers(part_of(8, half)))
            .map(|(_, half)| half)
            .collect();
        assert_eq!(halves.len(), 2);
        assert_eq!(
            halves.into_iter().flat_map(spelled).collect::<Vec<_>>(),
            spelled(part)
        );
    }
}
