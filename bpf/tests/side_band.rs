//! The side-band on this kernel, with processes that are gone before anybody could look.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Chain, alone, chain_source, compile, skipped};
use strobe_bpf::{FileIdentity, ProcessEvent, ProcessEventKind, SideBand, SideBandSettings, monotonic_ns};

/// Drains until everything that has happened by now has come.
fn drain_until_now(side_band: &mut SideBand, mut take: impl FnMut(ProcessEvent<'_>)) {
    let now = monotonic_ns();
    let end = Instant::now() + Duration::from_secs(5);
    while side_band.drain(&mut take).unwrap() < now {
        assert!(Instant::now() < end, "the clock does not reach {now}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that a process of less than two milliseconds is seen whole: fork, exec, its mappings, exit, in this order.
#[test]
fn a_short_lived_process_is_seen_in_order() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let mut side_band = SideBand::start(&SideBandSettings::default()).unwrap();
    let mut child = Command::new("/bin/true").spawn().unwrap();
    let child_pid = child.id();
    child.wait().unwrap();
    let mut seen: Vec<(u64, String)> = Vec::new();
    drain_until_now(&mut side_band, |event| {
        let what = match event.kind {
            ProcessEventKind::Fork { pid, parent_pid, .. } if pid == child_pid => {
                assert_eq!(parent_pid, std::process::id());
                "fork".to_owned()
            }
            ProcessEventKind::Exec { pid, comm, .. } if pid == child_pid => {
                format!("exec {}", String::from_utf8_lossy(comm))
            }
            ProcessEventKind::Mmap(mapping) if mapping.pid == child_pid => {
                format!("mmap {}", String::from_utf8_lossy(mapping.path))
            }
            ProcessEventKind::Exit { pid, tid } if pid == child_pid && tid == child_pid => "exit".to_owned(),
            _ => return,
        };
        seen.push((event.time_ns, what));
    });
    assert!(seen.is_sorted_by_key(|(time_ns, _)| *time_ns), "{seen:?}");
    let names: Vec<_> = seen.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(names.first(), Some(&"fork"), "{names:?}");
    assert_eq!(names.get(1), Some(&"exec true"), "{names:?}");
    assert_eq!(names.last(), Some(&"exit"), "{names:?}");
    let program = std::fs::canonicalize("/bin/true").unwrap();
    let mapped = names.iter().filter_map(|name| name.strip_prefix("mmap "));
    assert!(
        mapped.clone().any(|path| path == program.to_str().unwrap()),
        "{names:?}"
    );
    assert!(mapped.clone().any(|path| path == "[vdso]"), "{names:?}");
    assert_eq!(side_band.counters().lost, 0);
    assert_eq!(side_band.counters().undecodable, 0);
}

/// Checks that a mapping bears the build id that the linker wrote into the file.
#[test]
fn a_mapping_bears_its_build_id() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("identified");
    compile(&chain_source(3), &program);
    let output = Command::new("readelf").arg("-n").arg(&program).output().unwrap();
    let notes = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "))
        .unwrap()
        .to_owned();
    let mut side_band = SideBand::start(&SideBandSettings::default()).unwrap();
    if !side_band.has_build_ids() {
        println!(
            "skipped: {}: this kernel puts no build ids into mappings",
            common::test_name()
        );
        return;
    }
    let victim = Chain::start(&program, &[]);
    let mut build_ids = Vec::new();
    drain_until_now(&mut side_band, |event| {
        if let ProcessEventKind::Mmap(mapping) = event.kind
            && mapping.pid == victim.pid()
            && mapping.path.ends_with(b"/identified")
        {
            build_ids.push(match mapping.file {
                FileIdentity::BuildId(id) => id.iter().map(|byte| format!("{byte:02x}")).collect(),
                FileIdentity::Inode { .. } => "inode".to_owned(),
            });
        }
    });
    assert_eq!(build_ids, [expected]);
}

/// Checks that a storm of processes on every CPU is seen to the last one, with each process's events in order.
#[test]
fn a_storm_of_processes_is_seen_to_the_last() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let mut side_band = SideBand::start(&SideBandSettings::default()).unwrap();
    let mut shell = Command::new("/bin/sh")
        .args(["-c", "for i in $(seq 300); do /bin/true; done"])
        .spawn()
        .unwrap();
    let shell_pid = shell.id();
    let (mut children, mut execs, mut exits) = (Vec::new(), 0, 0);
    let mut last_ns = 0;
    let mut take = |event: ProcessEvent<'_>| {
        assert!(event.time_ns >= last_ns, "time runs backwards");
        last_ns = event.time_ns;
        match event.kind {
            ProcessEventKind::Fork { pid, parent_pid, .. } if parent_pid == shell_pid => children.push(pid),
            ProcessEventKind::Exec { pid, .. } if children.contains(&pid) => execs += 1,
            ProcessEventKind::Exit { pid, .. } if children.contains(&pid) => exits += 1,
            _ => {}
        }
    };
    while shell.try_wait().unwrap().is_none() {
        side_band.drain(&mut take).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    drain_until_now(&mut side_band, take);
    // One of them is `seq`.
    assert_eq!((children.len(), execs, exits), (301, 301, 301));
    assert_eq!(side_band.counters().lost, 0);
}

/// Checks that a buffer that overflows says how much it lost.
#[test]
fn what_a_full_buffer_loses_is_reported() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let mut side_band = SideBand::start(&SideBandSettings { ring_bytes: 16 << 10 }).unwrap();
    let storm = Command::new("/bin/sh")
        .args(["-c", "for i in $(seq 200); do /bin/true; done"])
        .status()
        .unwrap();
    assert!(storm.success());
    let mut lost = 0;
    // The kernel reports a loss before the next record that has room.
    for _ in 0..2 {
        drain_until_now(&mut side_band, |event| {
            if let ProcessEventKind::Lost { records } = event.kind {
                lost += records;
            }
        });
        for _ in 0..4 {
            Command::new("/bin/true").status().unwrap();
        }
    }
    drain_until_now(&mut side_band, |event| {
        if let ProcessEventKind::Lost { records } = event.kind {
            lost += records;
        }
    });
    assert!(lost > 0);
    assert_eq!(side_band.counters().lost, lost);
}
