//! Batches whose parts do not fit together are refused, each for its own reason: a check that is lost fails here.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use strobe_event::codec::{decode, encode};
use strobe_event::raw::Malformed;
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{RawBatch, SamplesBatch};

fn batch() -> SamplesBatch {
    Workload::new(
        Shape {
            samples: 40,
            ..Shape::default()
        },
        5,
    )
    .samples_batch(0)
}

/// Index far outside of every dictionary of the batch.
const OUTSIDE: u32 = 1 << 30;

type RawChange = (&'static str, fn(&mut RawBatch));
type Change = (&'static str, fn(&mut SamplesBatch));

/// Checks each change of a raw batch against the reason expected for it, also after a trip over the wire.
#[test]
fn raw_batches_that_do_not_fit_are_refused() {
    let binary = "a frame points outside of binaries or strings";
    let frames = "the columns of frames differ in length";
    let stacks = "the columns of stacks differ in length";
    let process = "a process points outside of the strings";
    let threads = "the columns of threads differ in length";
    let thread = "a thread points outside of processes or strings";
    let samples = "the columns of samples differ in length";
    let sample = "a sample points outside of stacks or threads";
    let probability = "a probability of the run is not in (0, 1]";
    let run = "the run lacks its host, profiler, duration, slot or period";
    let changes: Vec<RawChange> = vec![
        ("the first string is not the empty one", |b| {
            b.strings[0].push('x')
        }),
        ("the first string is not the empty one", |b| b.strings.clear()),
        (probability, |b| b.run.run_probability = 0.0),
        (probability, |b| b.run.run_probability = 1.01),
        (probability, |b| b.run.run_probability = f64::NAN),
        (probability, |b| b.run.kernel_probability = -0.5),
        (probability, |b| b.run.kernel_probability = f64::INFINITY),
        ("cause 0 is not known", |b| b.run.cause = 0),
        ("cause 9 is not known", |b| b.run.cause = 9),
        (run, |b| b.run.host.clear()),
        (run, |b| b.run.profiler.clear()),
        (run, |b| b.run.planned_us = 0),
        (run, |b| b.run.slot_us = 0),
        (run, |b| b.run.period = 0),
        ("the interval ends before it starts", |b| {
            b.end_us = b.start_us - 1
        }),
        ("a binary's path is not a string of the batch", |b| {
            b.binaries[0].path = OUTSIDE
        }),
        (frames, |b| b.frames.address.push(1)),
        (frames, |b| b.frames.name.push(0)),
        (frames, |b| b.frames.reason.push(0)),
        (frames, |b| b.frames.binary.push(0)),
        (binary, |b| b.frames.binary[0] = b.binaries.len() as u32 + 1),
        (binary, |b| b.frames.name[0] = b.strings.len() as u32),
        ("a frame's reason is not known", |b| b.frames.reason[0] = 200),
        (stacks, |b| b.stacks.added.push(0)),
        (stacks, |b| b.stacks.end.push(1)),
        (stacks, |b| b.stacks.shared.push(0)),
        ("a stack's end is not known", |b| b.stacks.end[0] = 0),
        ("a stack shares more than the one before has", |b| {
            b.stacks.shared[0] = 1
        }),
        ("a stack shares more than the one before has", |b| {
            b.stacks.shared[1] = 200
        }),
        ("a stack is deeper than 254 frames", |b| b.stacks.added[0] = 255),
        ("the frames of the stacks do not add up", |b| {
            b.stacks.frames.push(0)
        }),
        ("the frames of the stacks do not add up", |b| {
            b.stacks.frames.truncate(b.stacks.frames.len() - 1)
        }),
        ("a stack points outside of the frames", |b| {
            b.stacks.frames[0] = b.frames.len() as u32
        }),
        (process, |b| b.processes[0].service = OUTSIDE),
        (process, |b| b.processes[0].executable = OUTSIDE),
        (process, |b| b.processes[0].container = OUTSIDE),
        (process, |b| b.processes[0].cgroup = b.strings.len() as u32),
        (threads, |b| b.threads.process.push(0)),
        (threads, |b| b.threads.tid.push(0)),
        (threads, |b| b.threads.name.push(0)),
        (thread, |b| b.threads.process[0] = b.processes.len() as u32),
        (thread, |b| b.threads.name[0] = OUTSIDE),
        ("a batch holds 1 to 8192 samples", |b| {
            b.samples = Default::default()
        }),
        ("a batch holds 1 to 8192 samples", |b| {
            b.samples.time_delta_us = vec![1; 8_193]
        }),
        (samples, |b| b.samples.stack.push(0)),
        (samples, |b| b.samples.thread.push(0)),
        (samples, |b| b.samples.cpu.push(0)),
        (samples, |b| b.samples.value = vec![1]),
        (sample, |b| b.samples.stack[0] = b.stacks.len() as u32),
        (sample, |b| b.samples.thread[0] = b.threads.tid.len() as u32),
    ];
    let good = batch().raw;
    assert_eq!(good.validate(), Ok(()));
    for (at, (reason, change)) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(bad.validate(), Err(Malformed(reason.to_owned())), "change {at}");
        let travelled: RawBatch = decode(&encode(&bad).expect("encodable")).expect("decodable");
        assert_eq!(
            travelled.validate(),
            Err(Malformed(reason.to_owned())),
            "change {at}, travelled"
        );
    }
}

/// Checks each change of names, tags and weights against the reason expected for it.
#[test]
fn names_tags_and_weights_that_do_not_fit_are_refused() {
    let frames = "the names are not those of the batch's frames";
    let columns = "the columns of names do not add up";
    let text = "a name points outside of its text";
    let both = "a frame has neither a name nor a reason, or both";
    let pair = "a tag points outside of stacks, contexts or outcomes";
    let entry = "a tag or mark points outside of its text, or is not known";
    let whole = "a context or schema is not whole";
    let contexts = "the contexts are not those of the batch's samples";
    let weights = "the weights are not those of the batch's samples";
    let number = "a weight is not a positive number";
    let changes: Vec<Change> = vec![
        ("cause 9 is not known", |b| b.raw.run.cause = 9),
        (frames, |b| b.locations.count.push(0)),
        (frames, |b| b.locations.reason.push(0)),
        (columns, |b| b.locations.function.push(0)),
        (columns, |b| b.locations.file.push(0)),
        (columns, |b| b.locations.line.push(0)),
        (columns, |b| b.locations.count[0] += 1),
        (text, |b| b.locations.text.clear()),
        (text, |b| b.locations.text[0].push('x')),
        (text, |b| b.locations.function[0] = b.locations.text.len() as u32),
        (text, |b| b.locations.file[0] = OUTSIDE),
        (both, |b| {
            let named = b.locations.count.iter().position(|&count| count > 0).unwrap();
            b.locations.reason[named] = 5;
        }),
        (both, |b| {
            b.locations.reason.iter_mut().for_each(|reason| *reason = 0)
        }),
        (both, |b| {
            b.locations
                .reason
                .iter_mut()
                .filter(|r| **r > 0)
                .for_each(|reason| *reason = 99)
        }),
        (pair, |b| b.tags.stack.push(0)),
        (pair, |b| b.tags.context.push(0)),
        (pair, |b| b.tags.outcome.push(0)),
        (pair, |b| b.tags.stack[0] = b.raw.stacks.len() as u32),
        (pair, |b| b.tags.context[0] = b.tags.contexts.len() as u32),
        (pair, |b| b.tags.outcome[0] = b.tags.outcomes.len() as u32),
        (entry, |b| b.tags.outcomes[1].tags[0] = b.tags.text.len() as u32),
        (entry, |b| b.tags.outcomes[1].frame_tags[0].tag = OUTSIDE),
        (entry, |b| b.tags.outcomes[1].marks[0].text = OUTSIDE),
        (entry, |b| b.tags.outcomes[1].marks[0].kind = 0),
        (entry, |b| b.tags.outcomes[1].marks[0].kind = 5),
        (whole, |b| b.tags.schemas[0] = OUTSIDE),
        (whole, |b| b.tags.contexts[0].names.push(0)),
        (whole, |b| b.tags.contexts[0].values[0] = OUTSIDE),
        (whole, |b| b.tags.contexts.clear()),
        (whole, |b| {
            b.tags.text.push(String::new());
            b.tags.contexts[0].values[0] = b.tags.text.len() as u32 - 1;
        }),
        ("the tags and marks unfold to more than 4,194,304", |b| {
            // Entries that travel once, and that every stack would have a copy of.
            let mark = b.tags.outcomes[1].marks[0];
            let pairs = b.tags.outcome.iter().filter(|&&outcome| outcome == 1).count();
            b.tags.outcomes[1].marks = vec![mark; (4 << 20) / pairs + 1];
        }),
        (contexts, |b| b.sample_context.push(0)),
        (contexts, |b| b.sample_context[0] = b.tags.contexts.len() as u32),
        (weights, |b| b.sample_weight.push(0)),
        (weights, |b| b.sample_weight[0] = b.weights.len() as u32),
        (number, |b| b.weights[0].run = 0.0),
        (number, |b| b.weights[0].run = f64::NAN),
        (number, |b| b.weights[0].run = f64::INFINITY),
        (number, |b| b.weights[0].fleet = -1.0),
        (number, |b| b.weights[0].fleet = f64::NAN),
    ];
    let good = batch();
    assert_eq!(good.validate(), Ok(()));
    assert!(
        good.locations.reason.iter().any(|&reason| reason > 0),
        "some frame has no name"
    );
    for (at, (reason, change)) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(bad.validate(), Err(Malformed(reason.to_owned())), "change {at}");
    }
}
