//! What the stage makes of batches: contexts, tags and marks, within its bounds.

use proptest::prelude::*;
use strobe_event::synthetic::{self, Shape};
use strobe_event::{Locations, RawBatch};
use strobe_stack_schema::{Library, Source};

use super::*;

fn program(text: &str) -> Arc<Program> {
    let library = Library::parse(&[Source::new("t.stacks", text)]).unwrap();
    let name = library.schemas().next().unwrap().name.to_string();
    Arc::new(Program::compile(&library, &[&name]).unwrap())
}

fn tagger(text: &str) -> Tagger {
    Tagger::new(program(text), MEMORY_BYTES)
}

/// A batch whose frames are called `f0`, `f1` and so on; every fifth holds one more, inlined.
fn batch(samples: usize, seed: u64) -> (RawBatch, Locations) {
    let raw = synthetic::raw_batch(
        &Shape {
            samples,
            ..Shape::default()
        },
        seed,
    );
    let mut names = Locations {
        text: vec![String::new()],
        ..Locations::default()
    };
    for frame in 0..raw.frames.len() {
        let count = if frame % 5 == 0 { 2 } else { 1 };
        names.count.push(count);
        names.reason.push(0);
        for inline in 0..count {
            names.function.push(names.text.len() as u32);
            names.file.push(0);
            names.line.push(1);
            names.text.push(match inline {
                0 => format!("f{frame}"),
                _ => format!("f{frame}_inlined"),
            });
        }
    }
    (raw, names)
}

/// Returns what is said of each sample: its service, its tags, tags of frames by function, and marks by function.
fn said(raw: &RawBatch, names: &Locations, tagged: &Tagged) -> Vec<(String, Vec<String>, Vec<String>)> {
    let tags = &tagged.tags;
    let mut stacks = Vec::new();
    raw.stacks.for_each(|_, frames, _| stacks.push(frames.to_vec()));
    let starts: Vec<usize> = names
        .count
        .iter()
        .scan(0, |next, &count| {
            let start = *next;
            *next += count as usize;
            Some(start)
        })
        .collect();
    let function = |stack: u32, place: Place| {
        let frame = stacks[stack as usize][usize::from(place.frame)] as usize;
        let at = starts[frame] + usize::from(place.inline);
        names.text[names.function[at] as usize].clone()
    };
    raw.samples
        .stack
        .iter()
        .zip(&tagged.sample_context)
        .map(|(&stack, &context)| {
            let pair = (0..tags.stack.len())
                .find(|&pair| (tags.stack[pair], tags.context[pair]) == (stack, context))
                .expect("every pair of a sample is said of");
            let outcome = &tags.outcomes[tags.outcome[pair] as usize];
            let service = tags.values(context as usize).find(|(name, _)| *name == "service");
            let of_stack = outcome.tags.iter().map(|&tag| tags.text(tag).to_owned());
            let frames = outcome
                .frame_tags
                .iter()
                .map(|tag| format!("{} {}", function(stack, tag.place), tags.text(tag.tag)));
            let marks = outcome.marks.iter().map(|mark| {
                let kind = MarkKind::from_code(mark.kind).unwrap().name();
                format!("{} {kind} {}", function(stack, mark.place), tags.text(mark.text))
            });
            (
                service.map(|(_, value)| value.to_owned()).unwrap_or_default(),
                of_stack.collect(),
                frames.chain(marks).collect(),
            )
        })
        .collect()
}

const SCHEMA: &str = r#"schema t
version 7
key layer takes one otherwise rest
rule tens { on function matches "^f\d*0$" tag stack layer=tens tag frame ten hide
    example "f10" gives layer=tens shows "[hidden by t]" }
rule inlined { on inlined rename to "inlined away" tag stack "last={function}"
    example "f1;f2 {inlined}" gives last=f2, layer=rest shows "f1;inlined away" }
"#;

/// Checks that what is said of a stack stands at the functions that it is said of, inlined ones too, whatever the stack.
#[test]
fn what_is_said_stands_at_its_function() {
    let (raw, names) = batch(500, 3);
    let mut tagger = tagger(SCHEMA);
    let tagged = tagger.tag(&raw, &names, 1);
    let (mut hidden, mut renamed) = (0, 0);
    for (service, tags, at) in said(&raw, &names, &tagged) {
        assert!(!service.is_empty());
        let layers = tags.iter().filter(|tag| tag.starts_with("layer=")).count();
        assert_eq!(layers, 1, "of an exclusive key a stack has one: {tags:?}");
        for one in at {
            let (function, what) = one.split_once(' ').unwrap();
            match what {
                "ten" | "hidden t" => {
                    hidden += 1;
                    assert!(function.ends_with('0'), "{one}");
                }
                "renamed inlined away" => {
                    renamed += 1;
                    assert!(function.ends_with("_inlined"), "{one}");
                }
                other => panic!("{other}"),
            }
        }
    }
    assert!(hidden > 100 && renamed > 100, "{hidden} {renamed}");
    assert_eq!(tagger.schemas(), ["t@7"]);
    assert_eq!(tagged.tags.schemas.len(), 1);
}

/// Checks that without schemas nothing is said of stacks, and that each sample has the context of its service all the same.
#[test]
fn without_schemas_samples_have_contexts_alone() {
    let (raw, names) = batch(300, 4);
    let tagged = Tagger::idle().tag(&raw, &names, 1);
    assert!(tagged.tags.stack.is_empty() && tagged.tags.schemas.is_empty());
    for (sample, &context) in tagged.sample_context.iter().enumerate() {
        let process = raw.threads.process[raw.samples.thread[sample] as usize] as usize;
        let service = raw.strings[raw.processes[process].service as usize].as_str();
        let values: Vec<(&str, &str)> = tagged.tags.values(context as usize).collect();
        assert_eq!(
            values,
            [("service", service), ("profiler", raw.run.profiler.as_str())]
        );
    }
}

/// Checks that the host is part of the context exactly when a schema asks for it: else each host would have rows of its own.
#[test]
fn a_context_holds_what_schemas_ask() {
    let (raw, names) = batch(50, 5);
    let asks = r#"schema h
rule mine { on root when host is "nobody" tag stack mine example "a" with host "nobody" gives mine }
"#;
    for (mut tagger, hosts) in [(tagger(SCHEMA), 0), (tagger(asks), 1)] {
        let tagged = tagger.tag(&raw, &names, 1);
        let values: Vec<(&str, &str)> = tagged.tags.values(0).collect();
        let named = values.iter().filter(|(name, _)| *name == "host");
        assert_eq!(named.count(), hosts, "{values:?}");
    }
}

/// Checks that labels of the host decide, region among them, that they are part of the context exactly when a schema asks, and
/// that a host without them fulfils nothing.
#[test]
fn labels_of_the_host_decide() {
    let (raw, names) = batch(50, 5);
    let asks = r#"schema h
rule east { on root when region is "east" tag stack "where={label tier}"
    example "a" with region "east", label tier "gold" gives where=gold }
"#;
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let all: [(String, String); 3] = [label("region", "east"), label("tier", "gold"), label("rack", "7")];
    for (labels, tags) in [
        (all.as_slice(), ["where=gold"].as_slice()),
        (&all[..1], &[]),
        (&all[1..], &[]),
        (&[], &[]),
    ] {
        let mut tagger = tagger(asks);
        tagger.of_host(labels.into());
        let tagged = tagger.tag(&raw, &names, 1);
        for (_, of_stack, _) in said(&raw, &names, &tagged) {
            assert_eq!(of_stack, tags, "{labels:?}");
        }
        let values: Vec<(&str, &str)> = tagged.tags.values(0).collect();
        let asked = labels.iter().filter(|(name, _)| name != "rack").count();
        assert_eq!(values.len(), 2 + asked, "{values:?}");
        let mut idle = Tagger::idle();
        idle.of_host(labels.into());
        assert_eq!(idle.tag(&raw, &names, 1).tags.values(0).count(), 2);
    }
}

/// Checks that a key has its thousand values of a service and day over a change of schemas, too.
#[test]
fn values_of_a_key_are_counted_over_a_change_of_schemas() {
    let (raw, names) = batch(3_000, 6);
    let asks = "schema v\nrule each { on anything tag frame \"name={function}\" }\n";
    // The same stacks under names that were not there before.
    let mut others = names.clone();
    others
        .text
        .iter_mut()
        .skip(1)
        .for_each(|text| text.insert(0, 'g'));
    let refused = |switch: bool| {
        let mut tagger = tagger(asks);
        tagger.tag(&raw, &names, 1);
        let first = tagger.refused_values();
        if switch {
            tagger.switch(program(asks), MEMORY_BYTES);
        }
        tagger.tag(&raw, &others, 1);
        (first, tagger.refused_values())
    };
    let (first, second) = refused(false);
    assert!(
        second > first,
        "a thousand values of some service were given: {first}, {second}"
    );
    assert_eq!(refused(true), (first, second));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Checks that a tagger that has seen other batches says the same as a fresh one, however little it may remember.
    #[test]
    fn what_it_remembers_changes_nothing(seeds in proptest::collection::vec(0_u64..6, 1..6), memory in 1_usize..100_000) {
        let mut old = tagger(SCHEMA);
        old.matcher = old.matcher.map(|matcher| matcher.with_memory(memory));
        for seed in seeds {
            let (raw, names) = batch(80, seed);
            let (again, fresh) = (old.tag(&raw, &names, 1), tagger(SCHEMA).tag(&raw, &names, 1));
            prop_assert_eq!(said(&raw, &names, &again), said(&raw, &names, &fresh));
        }
    }
}
