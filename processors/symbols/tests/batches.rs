//! Names for whole batches: every kind of frame, and what is remembered.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use strobe_event::{
    Binary, BinaryKind, BuildId, Cause, Frames, Locations, Process, RawBatch, Reason, RunHead, RunId,
    Samples, SamplesBatch, StackEnd, Stacks, Tags, Threads, Weight,
};
use strobe_store::BinaryKey;
use strobe_symbols::{Hint, Limits, Symbolizer};
use support::{Bench, CHECKOUT, PROGRAM, function, have};

/// Returns a batch with one stack of all the frames given as (binary plus one, address, name, reason).
fn batch(binaries: Vec<(BinaryKind, BuildId)>, strings: &[&str], frames: &[(u32, u64, u32, u8)]) -> RawBatch {
    let mut stacks = Stacks::default();
    stacks.push(&[], &(0..frames.len() as u32).collect::<Vec<_>>(), StackEnd::Root);
    let process = Process {
        pid: 1,
        start_ns: 1,
        exec: 1,
        service: 0,
        executable: 0,
        container: 0,
        cgroup: 0,
    };
    RawBatch {
        run: RunHead {
            id: RunId([1; 16]),
            host: "host".to_owned(),
            profiler: "cpu".to_owned(),
            cause: Cause::Continuous as u8,
            started_us: 1,
            planned_us: 1,
            slot_us: 1,
            run_probability: 1.0,
            kernel_probability: 1.0,
            period: 1,
        },
        index: 0,
        start_us: 1,
        end_us: 2,
        cpus: Vec::new(),
        drops: Vec::new(),
        strings: strings.iter().map(|&text| text.to_owned()).collect(),
        binaries: binaries
            .into_iter()
            .map(|(kind, id)| Binary { kind, id, path: 0 })
            .collect(),
        frames: Frames {
            binary: frames.iter().map(|frame| frame.0).collect(),
            address: frames.iter().map(|frame| frame.1).collect(),
            name: frames.iter().map(|frame| frame.2).collect(),
            reason: frames.iter().map(|frame| frame.3).collect(),
        },
        stacks,
        processes: vec![process],
        threads: Threads {
            process: vec![0],
            tid: vec![1],
            name: vec![0],
        },
        samples: Samples {
            time_delta_us: vec![0],
            stack: vec![0],
            thread: vec![0],
            cpu: vec![0],
            value: vec![],
        },
    }
}

/// Returns what the batch's frames are called, after the batch with these names was proved to fit together.
fn located(symbolizer: &mut Symbolizer, raw: RawBatch) -> Vec<Result<Vec<(String, u32)>, Reason>> {
    let locations: Locations = symbolizer.locate(&raw).unwrap();
    let whole = SamplesBatch {
        raw,
        generation: 1,
        locations: locations.clone(),
        tags: Tags::unknown(),
        weights: vec![Weight { run: 1.0, fleet: 1.0 }],
        sample_weight: vec![0],
        sample_context: vec![0],
    };
    whole.validate().unwrap();
    let distinct: std::collections::HashSet<_> = locations.text.iter().collect();
    assert_eq!(distinct.len(), locations.text.len(), "each text once");
    let mut at = 0;
    let frames = locations.count.iter().zip(&locations.reason);
    frames
        .map(|(&count, &reason)| {
            let own = at..at + count as usize;
            at = own.end;
            let name = |at: usize| {
                (
                    locations.text[locations.function[at] as usize].clone(),
                    locations.line[at],
                )
            };
            if count == 0 {
                Err(Reason::from_code(reason).unwrap())
            } else {
                Ok(own.map(name).collect())
            }
        })
        .collect()
}

/// Checks each kind of frame: in a binary, kernel with and without a name, named by the host alone, unknown with its
/// reason, in a binary that the store lacks; and that asking again gives the same, without the worker.
#[test]
fn every_kind_of_frame_gets_its_name_or_its_reason() {
    if !have("g++") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let (start, length) = function(&binary, CHECKOUT);
    let id = bench.store_file(&binary);
    let other = BuildId::new(b"kernel").unwrap();
    let absent = BuildId::new(b"absent").unwrap();
    let binaries = vec![
        (BinaryKind::Gnu, id.clone()),
        (BinaryKind::Kernel, other.clone()),
        (BinaryKind::KernelModule, other),
        (BinaryKind::Vdso, absent.clone()),
        (BinaryKind::FileHash, absent),
    ];
    let mut frames = vec![
        (2, 0x10, 1, 0),
        (2, 0x20, 0, 0),
        (3, 0x10, 1, 0),
        (4, 0x10, 2, 0),
        (5, 0x10, 0, 0),
        (0, 0, 3, 0),
        (0, 0, 0, Reason::ProcessGone as u8),
        (0, 0, 0, 0),
    ];
    frames.extend((start..start + length).map(|address| (1, address, 0, 0)));
    let raw = batch(
        binaries,
        &["", "do_syscall_64", "__vdso_gettimeofday", "jit:add"],
        &frames,
    );
    let mut symbolizer = bench.symbolizer(Limits::default());
    let names = located(&mut symbolizer, raw.clone());
    let only = |name: &str| Ok(vec![(name.to_owned(), 0)]);
    assert_eq!(names[0], only("do_syscall_64"));
    assert_eq!(names[1], Err(Reason::KernelHidden));
    assert_eq!(names[2], only("do_syscall_64"));
    assert_eq!(
        names[3],
        only("__vdso_gettimeofday"),
        "the host's name where the store has no binary"
    );
    assert_eq!(names[4], Err(Reason::MissingBinary));
    assert_eq!(names[5], only("jit:add"));
    assert_eq!(names[6], Err(Reason::ProcessGone));
    assert_eq!(names[7], Err(Reason::NoMapping));
    let inside = &names[8..];
    assert!(
        inside
            .iter()
            .all(|name| name.as_ref().unwrap()[0].0 == "shop::checkout(shop::Item const*, int)")
    );
    let deep = inside
        .iter()
        .find_map(|name| name.as_ref().ok().filter(|name| name.len() == 3))
        .unwrap();
    assert!(
        deep[1].0.contains("total") && deep[2].0.contains("mix"),
        "{deep:?}"
    );
    assert!(deep.iter().all(|(_, line)| *line > 0));

    let before = symbolizer.telemetry();
    assert_eq!(located(&mut symbolizer, raw), names);
    let after = symbolizer.telemetry();
    assert_eq!(after.requests, before.requests);
    assert_eq!(after.memo_hits - before.memo_hits, length);
    assert_eq!(after.frames, 2 * frames.len() as u64);
    assert_eq!(after.frames_unknown[Reason::KernelHidden as usize], 2);
    assert_eq!(after.frames_unknown.iter().sum::<u64>(), 8);
}

/// Checks that a binary which arrives late is named soon after, and not asked for at every batch until then.
#[test]
fn a_binary_that_arrives_late_is_named() {
    if !have("g++") || !have("nm") {
        return;
    }
    let bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let (start, _) = function(&binary, CHECKOUT);
    let id = BuildId::new(b"late").unwrap();
    let raw = batch(vec![(BinaryKind::Gnu, id.clone())], &[""], &[(1, start, 0, 0)]);
    let mut symbolizer = bench.symbolizer(Limits {
        missing_time: Duration::from_millis(500),
        ..Limits::default()
    });
    for _ in 0..10 {
        assert_eq!(
            located(&mut symbolizer, raw.clone()),
            [Err(Reason::MissingBinary)]
        );
    }
    assert_eq!(symbolizer.telemetry().store_lookups, 1);
    bench.store_as(&id, &std::fs::read(&binary).unwrap());
    std::thread::sleep(Duration::from_millis(600));
    assert!(located(&mut symbolizer, raw)[0].is_ok());
}

/// Checks that names stay right while a small memo forgets and learns them anew.
#[test]
fn a_small_memo_gives_the_same_names() {
    if !have("g++") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let (start, length) = function(&binary, CHECKOUT);
    let id = bench.store_file(&binary);
    let mut symbolizer = bench.symbolizer(Limits {
        memo_bytes: 2 << 10,
        ..Limits::default()
    });
    let mut whole = bench.symbolizer(Limits::default());
    for round in 0..100 {
        let frames: Vec<_> = (0..20)
            .map(|at| (1, start + (round * 7 + at) % length, 0, 0))
            .collect();
        let raw = batch(vec![(BinaryKind::Gnu, id.clone())], &[""], &frames);
        assert_eq!(located(&mut symbolizer, raw.clone()), located(&mut whole, raw));
    }
    assert!(symbolizer.telemetry().memo_turns > 5);
    assert!(symbolizer.telemetry().memo_bytes < 16 << 10);
}

/// Checks that a missing binary of which nobody heard, since whoever keeps the store was busy, is said again with the next batch,
/// and once it was heard, not any more.
#[test]
fn what_nobody_heard_is_said_again() {
    let bench = Bench::new();
    let (hints, hinted) = std::sync::mpsc::sync_channel(1);
    let key = |id: u8| BinaryKey {
        kind: BinaryKind::Gnu,
        id: BuildId::new(&[id; 20]).unwrap(),
    };
    hints.send(Hint::Convert(key(1))).unwrap();
    let mut settings = bench.settings(Limits {
        missing_time: Duration::ZERO,
        ..Limits::default()
    });
    settings.hints = Some(hints);
    let mut symbolizer = Symbolizer::new(settings).unwrap();
    let batch = || {
        batch(
            vec![(BinaryKind::Gnu, key(2).id)],
            &["", "/opt/app"],
            &[(1, 0x1000, 0, 0)],
        )
    };
    symbolizer.locate(&batch()).unwrap();
    assert_eq!(hinted.try_iter().collect::<Vec<_>>(), [Hint::Convert(key(1))]);
    symbolizer.locate(&batch()).unwrap();
    let heard: Vec<_> = hinted.try_iter().collect();
    assert!(
        matches!(heard.as_slice(), [Hint::Missing { key: missing, .. }] if *missing == key(2)),
        "{heard:?}"
    );
    symbolizer.locate(&batch()).unwrap();
    assert_eq!(hinted.try_iter().count(), 0);
}
