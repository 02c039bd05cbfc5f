//! Names for synthetic batches: functions, files, tags, weights.

use std::collections::BTreeMap;

use crate::{
    Context, FrameTag, Locations, Mark, MarkKind, Place, RawBatch, Reason, SamplesBatch, StackOutcome, Tags,
    Weight,
};

const WORDS: [&str; 24] = [
    "alloc",
    "batch",
    "cache",
    "decode",
    "encode",
    "fetch",
    "flush",
    "handle",
    "index",
    "insert",
    "iter",
    "lookup",
    "merge",
    "parse",
    "poll",
    "queue",
    "read",
    "request",
    "resize",
    "route",
    "send",
    "serialize",
    "visit",
    "write",
];

/// Returns two words and a number, together different for each number.
pub(super) fn words(number: u64) -> (&'static str, &'static str, u64) {
    let count = WORDS.len() as u64;
    (
        WORDS[(number % count) as usize],
        WORDS[(number / count % count) as usize],
        number / (count * count),
    )
}

/// Returns `raw` with names such as C++ and Rust give them, some frames inlined or unknown, some stacks tagged.
pub fn name(raw: RawBatch) -> SamplesBatch {
    let mut locations = Locations {
        text: vec![String::new()],
        ..Locations::default()
    };
    let mut texts: BTreeMap<String, u32> = BTreeMap::new();
    let mut add = |text: String, all: &mut Vec<String>| {
        *texts.entry(text).or_insert_with_key(|text| {
            all.push(text.clone());
            (all.len() - 1) as u32
        })
    };
    for (&address, &binary) in raw.frames.address.iter().zip(&raw.frames.binary) {
        // One frame in 50 stays without a name, one in 4 has an inlined function.
        let count = match address % 50 {
            0 => 0,
            1..=12 => 2,
            _ => 1,
        };
        locations.count.push(count);
        locations.reason.push(if count == 0 {
            Reason::MissingSymbols as u8
        } else {
            0
        });
        for inlined in 0..u64::from(count) {
            // Functions are some 400 bytes long; what is inlined is shared by many.
            let function = if inlined == 0 {
                u64::from(binary) * 997 + address / 400
            } else {
                address % 64
            };
            let (verb, noun, more) = words(function);
            let name = format!(
                "service::{noun}::{noun}_impl<std::string_view, {more}>::{verb}_{noun}(unsigned long)"
            );
            locations.function.push(add(name, &mut locations.text));
            locations.file.push(add(
                format!("/src/service/{noun}/{noun}_{verb}.cc"),
                &mut locations.text,
            ));
            locations.line.push(1 + (address / 8 % 2_000) as u32);
        }
    }
    let (tags, sample_context) = tag(&raw);
    let period = raw.run.period as f64;
    let weights = raw.cpus.iter().map(|cpu| {
        let run = period * cpu.taken.max(1) as f64 / cpu.kept.max(1) as f64;
        Weight {
            run,
            fleet: run * raw.run.slot_us as f64 / raw.run.planned_us as f64,
        }
    });
    let weights: Vec<Weight> = weights.collect();
    let sample_weight = raw.samples.cpu.clone();
    SamplesBatch {
        generation: raw.end_us + 1_500_000,
        locations,
        tags,
        weights,
        sample_weight,
        sample_context,
        raw,
    }
}

/// Returns tags as schemas give them, of the stacks in the context of their service, and the context of each sample: every
/// third stack has none, frames of others are tagged, hidden or renamed.
fn tag(raw: &RawBatch) -> (Tags, Vec<u32>) {
    let fixed = [
        "synthetic@1",
        "service",
        "profiler",
        "area=storage",
        "area=network",
        "io/read",
        "synthetic",
    ];
    let mut tags = Tags {
        schemas: vec![0],
        text: fixed.iter().map(|&text| text.to_owned()).collect(),
        ..Tags::default()
    };
    let mut texts: BTreeMap<String, u32> = BTreeMap::new();
    let mut add = |text: &str, all: &mut Vec<String>| {
        *texts.entry(text.to_owned()).or_insert_with(|| {
            all.push(text.to_owned());
            (all.len() - 1) as u32
        })
    };
    let profiler = add(&raw.run.profiler, &mut tags.text);
    let mut of_service: BTreeMap<u32, u32> = BTreeMap::new();
    let mut of_process = Vec::new();
    for process in &raw.processes {
        let next = tags.contexts.len() as u32;
        let context = *of_service.entry(process.service).or_insert(next);
        if context == next {
            let service = add(&raw.strings[process.service as usize], &mut tags.text);
            tags.contexts.push(Context {
                names: vec![1, 2],
                values: vec![service, profiler],
            });
        }
        of_process.push(context);
    }
    let contexts = raw.samples.thread.iter();
    let sample_context: Vec<u32> = contexts
        .map(|&thread| of_process[raw.threads.process[thread as usize] as usize])
        .collect();
    let pairs = raw.samples.stack.iter().zip(&sample_context);
    let pairs: std::collections::BTreeSet<(u32, u32)> =
        pairs.map(|(&stack, &context)| (stack, context)).collect();
    for index in 0..7_u32 {
        let (first, second) = (Place { frame: 0, inline: 0 }, Place { frame: 1, inline: 0 });
        let renamed = add(&format!("copy of {index}"), &mut tags.text);
        tags.outcomes.push(match index % 3 {
            0 => StackOutcome::default(),
            odd => StackOutcome {
                tags: vec![2 + odd],
                frame_tags: vec![FrameTag { place: first, tag: 5 }],
                marks: vec![
                    Mark {
                        place: first,
                        kind: MarkKind::Hidden as u8,
                        text: 6,
                    },
                    Mark {
                        place: second,
                        kind: MarkKind::Renamed as u8,
                        text: renamed,
                    },
                ],
            },
        });
    }
    for (stack, context) in pairs {
        tags.stack.push(stack);
        tags.context.push(context);
        tags.outcome.push(stack % 7);
    }
    (tags, sample_context)
}
