//! Batches of whatever comes fit together, and stay below the limit on messages.

use super::size::{KERNEL_FRAMES_MAX, KERNEL_NAME_BYTES_MAX, USER_FRAMES_MAX};
use super::*;
use crate::vocabulary::{EMPTY, FrameId, KnownFrame, TEXT_BYTES_MAX};
use proptest::prelude::*;
use strobe_bpf::StackEnd as Side;
use strobe_bus::MESSAGE_BYTES_MAX;
use strobe_event::{BinaryKind, BuildId, Cause, RunId, codec};

fn run() -> RunHead {
    RunHead {
        id: RunId([1; 16]),
        host: "h".repeat(255),
        profiler: crate::run::PROFILER.to_owned(),
        cause: Cause::Continuous as u8,
        started_us: 1,
        planned_us: 60_000_000,
        slot_us: 60_000_000,
        run_probability: 1.0,
        kernel_probability: 1.0,
        period: 1_003_009,
    }
}

fn close(
    builder: &mut Builder,
    now_ns: u64,
    stacks: &KnownStacks,
    vocabulary: &Vocabulary,
) -> Option<RawBatch> {
    let closing = Closing {
        run: &run(),
        index: 0,
        now_ns,
        wall_ns: 1_700_000_000_000_000_000,
    };
    builder.close(&closing, &Totals::default(), stacks, vocabulary)
}

fn held(time_ns: u64, pid: u32, cpu: u16, cpu_sequence: u64) -> Held {
    let mut held = Held::for_tests(pid, 0, 0);
    (held.time_ns, held.cpu, held.cpu_sequence) = (time_ns, cpu, cpu_sequence);
    held
}

fn placed(text: &str) -> Placed {
    let text: Arc<str> = text.into();
    Placed {
        belonging: Arc::new(Belonging {
            service: Arc::clone(&text),
            container: Arc::clone(&text),
            cgroup: Arc::clone(&text),
        }),
        executable: Some(text),
    }
}

/// A stack of which nothing was ever seen before: each frame in a file of its own, with the longest of names.
fn worst_stack(vocabulary: &mut Vocabulary, seed: u64) -> Vec<FrameId> {
    let user = (0..USER_FRAMES_MAX as u64).map(|at| {
        let number = seed * 1_000 + at;
        let mut id = [0; BuildId::BYTES_MAX];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let path = format!("/{number:0>width$}", width = TEXT_BYTES_MAX * 2);
        let path = path.chars().rev().collect::<String>();
        (Some((BinaryKind::Go, id, path)), number, String::new())
    });
    let kernel = (0..KERNEL_FRAMES_MAX as u64).map(|at| {
        let number = seed * 1_000 + 500 + at;
        (None, number, format!("{number:0>KERNEL_NAME_BYTES_MAX$}"))
    });
    let mut frames = Vec::new();
    for (binary, number, name) in user.chain(kernel) {
        let name = vocabulary.text(&name);
        let (kind, id, path) =
            binary.unwrap_or_else(|| (BinaryKind::Kernel, [7; BuildId::BYTES_MAX], "[kernel]".to_owned()));
        let binary = vocabulary.binary(kind, &BuildId::new(&id).unwrap(), &path);
        frames.push(vocabulary.frame(KnownFrame::InBinary {
            binary,
            address: u64::MAX - number,
            name,
        }));
    }
    frames
}

/// Checks that not even batches of the worst of stacks, each in a process of its own, exceed the limit on messages, and that
/// they come close to it: a bound far too low would cut every batch short.
#[test]
fn no_batch_exceeds_the_limit_on_messages() {
    let (mut builder, mut stacks, mut vocabulary) =
        (Builder::new(0), KnownStacks::default(), Vocabulary::default());
    let mut largest = 0;
    for sample in 0..40_u64 {
        if builder.is_full() {
            let batch = close(&mut builder, sample, &stacks, &vocabulary).unwrap();
            batch.validate().unwrap();
            largest = largest.max(codec::encode_framed(&batch).unwrap().len());
        }
        let frames = worst_stack(&mut vocabulary, sample);
        let stack = stacks.add(&frames, StackEnd::Depth);
        let text = format!("{sample:0>width$}", width = TEXT_BYTES_MAX);
        let held = held(sample, sample as u32, 0, sample + 1);
        builder.push(&held, stack, &stacks, &mut vocabulary, || placed(&text));
    }
    assert!(largest <= MESSAGE_BYTES_MAX, "{largest} bytes");
    assert!(largest > MESSAGE_BYTES_MAX / 2, "{largest} bytes");
}

/// Checks the same for many shallow stacks, whose columns weigh more than their names.
#[test]
fn distinct_deep_stacks_of_known_frames_stay_below_the_limit() {
    let (mut builder, mut stacks, mut vocabulary) =
        (Builder::new(0), KnownStacks::default(), Vocabulary::default());
    let binary = vocabulary.binary(BinaryKind::Gnu, &BuildId::new(&[5; 20]).unwrap(), "/x");
    let mut random = 1_u64;
    let (mut batches, mut largest) = (0, 0);
    for sample in 0..20_000_u64 {
        if builder.is_full() {
            let batch = close(&mut builder, sample, &stacks, &vocabulary).unwrap();
            batch.validate().unwrap();
            (batches, largest) = (
                batches + 1,
                largest.max(codec::encode_framed(&batch).unwrap().len()),
            );
        }
        let frames: Vec<FrameId> = (0..254)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let address = (random >> 44) << 40;
                vocabulary.frame(KnownFrame::InBinary {
                    binary,
                    address,
                    name: EMPTY,
                })
            })
            .collect();
        let stack = stacks.add(&frames, StackEnd::Root);
        builder.push(
            &held(sample, 1, 0, sample + 1),
            stack,
            &stacks,
            &mut vocabulary,
            || placed("x"),
        );
    }
    assert!(
        batches > 5 && largest <= MESSAGE_BYTES_MAX,
        "{batches} batches, the largest of {largest} bytes"
    );
}

/// Checks that the ticks that an idle CPU's timer left out are counted as idle ones, by the kernel's account of the CPU, and those of
/// processes that are not watched as well: the busy ones are no more than they are.
#[test]
fn an_idle_cpu_that_does_not_tick_is_counted_as_idle() {
    let (mut builder, mut stacks, mut vocabulary) =
        (Builder::new(0), KnownStacks::default(), Vocabulary::default());
    let stack = stacks.add(&[], StackEnd::Root);
    let before = Totals {
        idle_ns: [(0, 7_000_000_000)].into(),
        ..Totals::default()
    };
    builder.begin(0, &before);
    for sample in 0..100 {
        let held = held(sample, 1, 0, sample + 1);
        builder.push(&held, stack, &stacks, &mut vocabulary, || placed("x"));
    }
    let counters = CpuCounters {
        taken: 100,
        idle: 8,
        unwatched: 50,
        ..CpuCounters::default()
    };
    let times = EventTimes {
        enabled_ns: 1_000_000_000,
        running_ns: 1_000_000_000,
    };
    let totals = Totals {
        at_ns: 1_000_000_000,
        counters: [(0, counters)].into(),
        times: [(0, times)].into(),
        idle_ns: [(0, 7_850_000_000)].into(),
    };
    let closing = Closing {
        run: &run(),
        index: 0,
        now_ns: 1_000_000_000,
        wall_ns: 0,
    };
    let batch = builder.close(&closing, &totals, &stacks, &vocabulary).unwrap();
    // 997 ticks are due in a second.
    assert_eq!((batch.cpus[0].taken, batch.cpus[0].idle), (100, 897));
}

proptest! {
    /// Checks that whatever samples come, batches fit together and nothing gets lost: each CPU's counts add up to the last
    /// tick that a sample told of, and each sample is where it was put.
    #[test]
    fn whatever_comes_batches_fit_together(
        samples in prop::collection::vec(
            (0_u64..1_000, 0_u32..4, 0_u32..3, 0_u16..3, 1_u64..4, prop::collection::vec(0_u32..20, 0..12), 0_usize..9),
            1..200,
        ),
        closes in prop::collection::vec(0_usize..200, 0..6),
    ) {
        let (mut builder, mut stacks, mut vocabulary) =
            (Builder::new(0), KnownStacks::default(), Vocabulary::default());
        let (mut time_ns, mut sequences) = (0, [0_u64; 3]);
        let (mut batches, mut expected) = (Vec::new(), Vec::new());
        for (at, (step, pid, exec, cpu, gap, frames, end)) in samples.into_iter().enumerate() {
            if closes.contains(&at) {
                batches.extend(close(&mut builder, time_ns, &stacks, &vocabulary));
            }
            time_ns += step * 1_000;
            sequences[usize::from(cpu)] += gap;
            let mut held = held(time_ns, pid, cpu, sequences[usize::from(cpu)]);
            held.exec = exec;
            held.user_end = Side::ALL[end];
            let frames: Vec<FrameId> = frames
                .into_iter()
                .map(|frame| {
                    let name = vocabulary.text(&frame.to_string());
                    vocabulary.frame(KnownFrame::Named(name))
                })
                .collect();
            let stack = stacks.add(&frames, stack_end(&held));
            builder.push(&held, stack, &stacks, &mut vocabulary, || placed(&format!("{pid}-{exec}")));
            expected.push((pid, exec, cpu, stack));
        }
        batches.extend(close(&mut builder, time_ns, &stacks, &vocabulary));
        let mut taken = [0_u64; 3];
        let mut found = Vec::new();
        for batch in &batches {
            prop_assert_eq!(batch.validate(), Ok(()));
            let lost: u64 = batch.cpus.iter().map(|cpu| cpu.taken - cpu.kept).sum();
            prop_assert_eq!(batch.drops.iter().map(|count| count.samples).sum::<u64>(), lost);
            for cpu in &batch.cpus {
                taken[cpu.cpu as usize] += cpu.taken;
            }
            let mut depths = Vec::new();
            batch.stacks.for_each(|_, frames, end| {
                let names = frames.iter().map(|&frame| batch.strings[batch.frames.name[frame as usize] as usize].clone());
                depths.push((names.collect::<Vec<_>>(), end));
            });
            for at in 0..batch.samples.len() {
                let thread = batch.samples.thread[at] as usize;
                let process = &batch.processes[batch.threads.process[thread] as usize];
                let text = &batch.strings[process.service as usize];
                prop_assert_eq!(text, &format!("{}-{}", process.pid, process.exec));
                found.push((process.pid, process.exec, batch.samples.cpu[at], depths[batch.samples.stack[at] as usize].clone()));
            }
        }
        prop_assert_eq!(taken, sequences);
        prop_assert_eq!(found.len(), expected.len());
        for ((pid, exec, cpu, stack), (found_pid, found_exec, found_cpu, (names, end))) in expected.into_iter().zip(found) {
            prop_assert_eq!((pid, exec, u32::from(cpu)), (found_pid, found_exec, found_cpu));
            let known = stacks.get(stack);
            let known_names: Vec<String> = known
                .frames
                .iter()
                .map(|&frame| match *vocabulary.frame_of(frame) {
                    KnownFrame::Named(name) => vocabulary.text_of(name).to_owned(),
                    _ => String::new(),
                })
                .collect();
            prop_assert_eq!((known_names, known.end as u8), (names, end));
        }
    }
}
