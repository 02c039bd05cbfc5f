//! Names for synthetic batches: functions, files, tags, weights.

use std::collections::BTreeMap;

use crate::{Locations, RawBatch, Reason, SamplesBatch, Tags, Weight};

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
    let mut tags = Tags {
        text: vec!["area:storage".to_owned(), "area:network".to_owned()],
        ..Tags::default()
    };
    for stack in (0..raw.stacks.len() as u32).filter(|stack| stack % 3 != 0) {
        tags.stack.push(stack);
        tags.tag.push(u32::from(stack % 3 == 2));
    }
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
        raw,
    }
}
