//! Bounds, openers, acknowledgements and waiting: what the spool promises while nothing goes wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::directory::{filled, open, payloads, segments, settings};
use crate::simulated::SimulatedDisk;
use strobe_spool::{Error, IN_FLIGHT_MAX, Settings, Spool};

/// Checks that a second opener is told who has the spool, and gets it when both ends are gone.
#[test]
fn two_openers() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, reader, _) = open(directory.path());
    let second = |pid| match Spool::open(settings(directory.path())) {
        Err(error @ Error::Locked { .. }) => error.to_string().ends_with(&format!("by process {pid}")),
        _ => false,
    };
    assert!(second(std::process::id()));
    drop(writer);
    assert!(second(std::process::id()), "the reader still holds it");
    drop(reader);
    open(directory.path());
}

/// Checks that a directory copied while in use, file by file as `cp` does, opens; that both copies deliver what was
/// there under the same identities, and that what each appends afterwards has identities of its own.
#[test]
fn copied_while_in_use_then_both_opened() {
    let (original, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut writer, mut reader, _) = open(original.path());
    for _ in 0..6 {
        writer.append(&[1; 400]).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(original.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    for path in names {
        // The owner goes on between one file and the next: appends, and frees what may not be copied yet.
        let _ = fs::copy(&path, copied.path().join(path.file_name().unwrap()));
        writer.append(&[2; 400]).unwrap();
        let record = reader.next().unwrap().unwrap();
        reader.acknowledge(record.position).unwrap();
    }
    let mut all = std::collections::BTreeMap::new();
    drop((writer, reader));
    for (directory, own) in [(&original, [3; 400]), (&copied, [4; 400])] {
        let (mut writer, mut reader, _) = open(directory.path());
        for _ in 0..3 {
            writer.append(&own).unwrap();
        }
        let mut count = 0;
        while let Some(record) = reader.next().unwrap() {
            let payload = all.entry(record.identity).or_insert(record.payload.clone());
            assert_eq!(*payload, record.payload, "one identity, two records");
            count += 1;
        }
        assert!(count > 3, "the copy holds what was there");
    }
    assert_eq!(all.values().filter(|payload| payload[0] > 2).count(), 6);
}

/// Checks that a full spool refuses the newest, keeps the oldest, takes no sequence, and goes on after an
/// acknowledgement.
#[test]
fn full_refuses_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Settings {
        size_limit_bytes: 4096,
        ..settings(directory.path())
    };
    let (mut writer, mut reader, _) = Spool::open(limits).unwrap();
    let taken = (0..).take_while(|_| match writer.append(&[7; 400]) {
        Ok(_) => true,
        Err(
            error @ Error::Full {
                used_bytes,
                limit_bytes,
            },
        ) => {
            assert!(error.is_transient() && used_bytes + 424 > limit_bytes);
            false
        }
        Err(error) => panic!("{error}"),
    });
    let taken = taken.count() as u64;
    assert!(taken >= 8 && reader.usage().bytes <= 4096);
    for _ in 0..2 {
        let record = reader.next().unwrap().unwrap();
        reader.acknowledge(record.position).unwrap();
    }
    assert_eq!(writer.append(&[7; 400]).unwrap().sequence, taken);
}

/// Checks the bounds of one record, and that refused ones leave no trace.
#[test]
fn record_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(directory.path());
    let most = settings(directory.path()).record_bytes_max();
    for bytes in [0, most + 1] {
        let error = writer.append(&vec![1; bytes]).unwrap_err();
        assert!(matches!(error, Error::RecordSize { .. }) && !error.is_transient());
    }
    assert_eq!(writer.append(&vec![1; most]).unwrap().sequence, 0);
    assert_eq!(payloads(&mut reader), [vec![1; most]]);
    assert_eq!(Settings::new("/nowhere", "host").record_bytes_max(), 8 << 20);
}

/// Checks that acknowledgements may come in any order, that only the gapless ones free, and that a rewind repeats
/// only the others.
#[test]
fn acknowledgements_in_any_order() {
    let directory = filled(&[&[0; 600], &[1; 600], &[2; 600], &[3; 600]]);
    let (_writer, mut reader, _) = open(directory.path());
    let records: Vec<_> = std::iter::from_fn(|| reader.next().unwrap()).collect();
    for index in [3, 1, 1] {
        reader.acknowledge(records[index].position).unwrap();
    }
    assert_eq!(
        (reader.usage().unacknowledged_records, reader.usage().segments),
        (2, 4)
    );
    reader.rewind_to_unacknowledged();
    assert!(reader.wait(Duration::ZERO));
    assert_eq!(payloads(&mut reader), [[0; 600], [2; 600]]);
    reader.acknowledge(records[0].position).unwrap();
    assert_eq!(reader.usage().segments, 2);
    assert_eq!(reader.usage().oldest, Some(records[2].appended));
    reader.acknowledge(records[2].position).unwrap();
    assert_eq!((reader.usage().segments, reader.usage().oldest), (0, None));
    assert_eq!(segments(directory.path()), [] as [PathBuf; 0]);
}

/// Checks that reading stops at the bound on unacknowledged records and goes on after an acknowledgement.
#[test]
fn in_flight_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = Spool::open(Settings::new(directory.path(), "host")).unwrap();
    for _ in 0..=IN_FLIGHT_MAX {
        writer.append(b"x").unwrap();
    }
    let first = reader.next().unwrap().unwrap();
    for _ in 1..IN_FLIGHT_MAX {
        reader.next().unwrap().unwrap();
    }
    assert!(matches!(reader.next(), Err(Error::TooManyInFlight { .. })));
    reader.acknowledge(first.position).unwrap();
    assert_eq!(
        reader.next().unwrap().unwrap().identity.sequence,
        IN_FLIGHT_MAX as u64
    );
}

/// Checks that a waiting reader wakes for an append from another thread, and not without one.
#[test]
fn reader_waits_for_the_writer() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(directory.path());
    assert!(!reader.wait(Duration::from_millis(20)));
    let started = Instant::now();
    let appending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        writer.append(b"at last").unwrap();
        writer
    });
    assert!(reader.wait(Duration::from_secs(60)));
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "it was woken, it did not time out"
    );
    assert_eq!(payloads(&mut reader), [b"at last"]);
    assert!(!reader.wait(Duration::ZERO));
    appending.join().unwrap();
}

/// Checks that the age of a record is told, that the caller can free it unsent, and that an old segment closes.
#[test]
fn age_is_told_and_closes_segments() {
    let disk = SimulatedDisk::default();
    let limits = Settings {
        age_limit: Duration::from_secs(100),
        ..settings(Path::new("/spool"))
    };
    let (mut writer, mut reader, _) = Spool::open_on(Arc::new(disk.clone()), limits).unwrap();
    writer.append(b"old").unwrap();
    disk.advance(60_000);
    assert!(writer.sync_if_due().unwrap());
    writer.append(b"newer").unwrap();
    assert_eq!(reader.usage().segments, 2);
    disk.advance(40_001);
    let old = reader.next().unwrap().unwrap();
    assert!(reader.is_too_old(&old));
    assert_eq!(reader.usage().oldest, Some(old.appended));
    reader.acknowledge(old.position).unwrap();
    assert_eq!(reader.usage().segments, 1);
    let newer = reader.next().unwrap().unwrap();
    assert!(!reader.is_too_old(&newer));
    assert!(newer.appended > old.appended && old.appended < SystemTime::now());
}

/// Checks that no number of small, abandoned openings leaves anything behind.
#[test]
fn opening_alone_leaves_no_segment() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        open(directory.path());
    }
    assert_eq!(segments(directory.path()), [] as [PathBuf; 0]);
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        2,
        "lock and checkpoint"
    );
}
