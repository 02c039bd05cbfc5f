//! One test per known way in which a directory or a disk goes wrong.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::simulated::{Fault, SimulatedDisk};
use strobe_spool::{Error, IN_FLIGHT_MAX, Reader, Recovered, Settings, Spool, Writer};
use tempfile::TempDir;

fn settings(directory: &Path) -> Settings {
    Settings {
        segment_bytes: 1024,
        size_limit_bytes: 64 << 10,
        ..Settings::new(directory, "host")
    }
}

fn open(directory: &Path) -> (Writer, Reader, Recovered) {
    Spool::open(settings(directory)).unwrap()
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect();
    paths.sort();
    paths
}

fn payloads(reader: &mut Reader) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| reader.next().unwrap().map(|record| record.payload)).collect()
}

/// A spool on the real disk with these payloads, closed.
fn filled(payloads: &[&[u8]]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _reader, _) = open(directory.path());
    for payload in payloads {
        writer.append(payload).unwrap();
    }
    directory
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Checks that one flipped bit anywhere in a segment costs at most the records behind it, never shows a record that
/// was not appended, and never hides the records of another opening.
#[test]
fn bit_flip_at_every_byte() {
    let wanted: [&[u8]; 4] = [b"first", b"second", b"third", b"last"];
    let original = filled(&wanted[..3]);
    let (mut writer, _reader, _) = open(original.path());
    writer.append(wanted[3]).unwrap();
    drop((writer, _reader));
    let name = segments(original.path())[0].clone();
    let whole = fs::read(&name).unwrap();
    let header = whole.len() - 3 * 24 - "firstsecondthird".len();
    for at in 0..whole.len() {
        let directory = tempfile::tempdir().unwrap();
        copy(original.path(), directory.path());
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(directory.path().join(name.file_name().unwrap()), &flipped).unwrap();
        let (_writer, mut reader, recovered) = open(directory.path());
        let got = payloads(&mut reader);
        assert_eq!(got.len() as u64, recovered.records);
        assert!(got.len() < 4, "byte {at} is not covered by a checksum");
        assert!(
            recovered.corrupt_records + recovered.torn_bytes > 0,
            "byte {at}: {recovered:?}"
        );
        let mut rest = wanted.iter();
        assert!(
            got.iter().all(|one| rest.any(|wanted| wanted == one)),
            "byte {at}: {got:?}"
        );
        assert_eq!(got.last().unwrap(), b"last", "byte {at}");
        if (header + 8..header + 24 + 5).contains(&at) {
            assert_eq!(got, wanted[1..], "a damaged record is passed over: byte {at}");
            assert_eq!(recovered.corrupt_records, 1);
        }
    }
}

/// Checks that a segment cut at any byte keeps every record that is whole, and that its tail is cut off and counted.
#[test]
fn torn_at_every_byte() {
    let wanted: [&[u8]; 3] = [b"first", b"second", b"third"];
    let original = filled(&wanted);
    let whole = fs::read(&segments(original.path())[0]).unwrap();
    let ends: Vec<usize> = (0..=3)
        .map(|n| whole.len() - wanted[n..].iter().map(|one| 24 + one.len()).sum::<usize>())
        .collect();
    for cut in 0..whole.len() {
        let directory = tempfile::tempdir().unwrap();
        let segment = directory
            .path()
            .join(segments(original.path())[0].file_name().unwrap());
        fs::write(&segment, &whole[..cut]).unwrap();
        let (_writer, mut reader, recovered) = open(directory.path());
        let kept = ends[1..].iter().filter(|&&end| end <= cut).count();
        assert_eq!(payloads(&mut reader), wanted[..kept], "cut at {cut}");
        let last = if cut < ends[0] { 0 } else { ends[kept] };
        assert_eq!(recovered.torn_bytes as usize, cut - last, "cut at {cut}");
        assert_eq!(segment.exists(), kept > 0);
        if kept > 0 {
            assert_eq!(fs::metadata(&segment).unwrap().len() as usize, ends[kept]);
        }
    }
}

/// Checks that zeros after the last record, as a power cut leaves them, end the segment and hide nothing.
#[test]
fn zero_length_ends_the_segment() {
    let directory = filled(&[b"first", b"second"]);
    let segment = &segments(directory.path())[0];
    let mut bytes = fs::read(segment).unwrap();
    bytes.extend([0; 4096]);
    fs::write(segment, bytes).unwrap();
    let (_writer, mut reader, recovered) = open(directory.path());
    assert_eq!(payloads(&mut reader), [&b"first"[..], b"second"]);
    assert_eq!((recovered.records, recovered.torn_bytes), (2, 4096));
}

/// Checks that a whole record of another spool inside a payload is not taken for one of this spool's, when a damaged
/// length makes it look like the next: only the epoch in its checksum tells.
#[test]
fn payload_that_holds_a_record() {
    let inner = filled(&[b"inner"]);
    let bytes = fs::read(&segments(inner.path())[0]).unwrap();
    let record = &bytes[bytes.len() - 24 - "inner".len()..];
    let payload = [b"x", record].concat();
    let directory = filled(&[&payload, b"after"]);
    let segment = &segments(directory.path())[0];
    let mut outer = fs::read(segment).unwrap();
    let length = outer.len() - (24 + "after".len()) - (24 + payload.len());
    assert_eq!(usize::from(outer[length]), payload.len());
    outer[length] = 1;
    fs::write(segment, &outer).unwrap();
    let (_writer, mut reader, recovered) = open(directory.path());
    assert_eq!(payloads(&mut reader), [b"after"]);
    assert_eq!((recovered.records, recovered.corrupt_records), (1, 1));
}

/// Checks that a segment that is gone from the middle leaves the others readable and its records counted.
#[test]
fn missing_middle_segment() {
    let payload = [7; 600];
    let directory = filled(&[&payload[..]; 5]);
    let all = segments(directory.path());
    assert_eq!(all.len(), 5);
    fs::remove_file(&all[2]).unwrap();
    let (_writer, mut reader, recovered) = open(directory.path());
    assert_eq!(
        (
            recovered.records,
            recovered.missing_records,
            recovered.corrupt_records
        ),
        (4, 1, 0)
    );
    let sequences = std::iter::from_fn(|| reader.next().unwrap().map(|record| record.identity.sequence));
    assert_eq!(sequences.collect::<Vec<_>>(), [0, 1, 3, 4]);
}

/// Checks that a segment that disappears while the spool is open is passed over and its records are counted.
#[test]
fn segment_deleted_under_the_reader() {
    let directory = filled(&[&[7; 600][..]; 3]);
    let (_writer, mut reader, _) = open(directory.path());
    let first = reader.next().unwrap().unwrap();
    fs::remove_file(&segments(directory.path())[1]).unwrap();
    let third = reader.next().unwrap().unwrap();
    assert_eq!(third.identity.sequence, 2);
    assert_eq!(reader.next().unwrap(), None);
    reader.acknowledge(first.position).unwrap();
    reader.acknowledge(third.position).unwrap();
    let usage = reader.usage();
    assert_eq!(
        (usage.lost_records, usage.unacknowledged_records, usage.segments),
        (1, 0, 0)
    );
}

/// Checks that damage that comes while the spool is open is passed over and counted, also on a second reading.
#[test]
fn damage_under_the_reader() {
    let directory = filled(&[b"first", b"second", b"third"]);
    let (_writer, mut reader, _) = open(directory.path());
    let segment = &segments(directory.path())[0];
    let mut bytes = fs::read(segment).unwrap();
    let second = bytes.len() - 24 - "third".len() - 1;
    bytes[second] ^= 1;
    let third = bytes.len() - 1;
    assert_eq!(reader.next().unwrap().unwrap().payload, b"first");
    fs::write(segment, &bytes).unwrap();
    assert_eq!(payloads(&mut reader), [b"third"]);
    bytes[third] ^= 1;
    fs::write(segment, &bytes).unwrap();
    reader.rewind_to_unacknowledged();
    assert_eq!(payloads(&mut reader), [b"first"]);
    // The loss of the second is known when the segment has been read to its end; the third's at once.
    let usage = reader.usage();
    assert_eq!(usage.lost_records + usage.unacknowledged_records, 3, "{usage:?}");
    reader.rewind_to_unacknowledged();
    let first = reader.next().unwrap().unwrap();
    reader.acknowledge(first.position).unwrap();
    let usage = reader.usage();
    assert_eq!(
        (usage.lost_records, usage.unacknowledged_records, usage.segments),
        (2, 0, 0)
    );
}

/// Checks that a checkpoint that is ahead of the data, because a power cut took the data, hides nothing that is
/// appended later.
#[test]
fn checkpoint_ahead_of_data() {
    let directory = filled(&[b"first", b"second"]);
    let (_, mut reader, _) = open(directory.path());
    reader.next().unwrap().unwrap();
    let second = reader.next().unwrap().unwrap();
    reader.rewind_to_unacknowledged();
    let first = reader.next().unwrap().unwrap();
    let segment = segments(directory.path())[0].clone();
    let whole = fs::read(&segment).unwrap();
    reader.acknowledge(first.position).unwrap();
    drop(reader);
    // The checkpoint points at the second record, and the file ends inside the first.
    fs::write(&segment, &whole[..whole.len() - 45]).unwrap();
    let (mut writer, mut reader, recovered) = open(directory.path());
    assert_eq!(recovered.records, 0);
    let appended = writer.append(b"new").unwrap();
    let record = reader.next().unwrap().unwrap();
    assert_eq!((record.payload, record.identity), (b"new".to_vec(), appended));
    assert!(
        record.position > second.position,
        "the new segment lies behind everything the checkpoint covers"
    );
    drop((writer, reader));
    let (_writer, mut reader, _) = open(directory.path());
    assert_eq!(payloads(&mut reader), [b"new"]);
}

/// Checks that a lost checkpoint repeats, and that a repeat has the identity that it had.
#[test]
fn lost_checkpoint_only_repeats() {
    let directory = filled(&[b"first", b"second"]);
    let (writer, mut reader, _) = open(directory.path());
    let first = reader.next().unwrap().unwrap();
    reader.acknowledge(first.position).unwrap();
    drop((writer, reader));
    let (writer, mut reader, _) = open(directory.path());
    assert_eq!(payloads(&mut reader), [b"second"]);
    drop((writer, reader));
    fs::remove_file(directory.path().join("checkpoint")).unwrap();
    let (_writer, mut reader, _) = open(directory.path());
    assert_eq!(reader.next().unwrap().unwrap().identity, first.identity);
    assert_eq!(payloads(&mut reader), [b"second"]);
}

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

/// Checks that foreign files are left alone and counted, whatever they are called.
#[test]
fn garbage_is_left_alone() {
    let directory = filled(&[b"first"]);
    let garbage = [
        "notes.txt",
        "7.segment",
        "00000000000000000009.segment",
        "18446744073709551615.segment",
    ];
    for name in garbage {
        fs::write(
            directory.path().join(name),
            "this is no segment, and long enough to have a header of one",
        )
        .unwrap();
    }
    let (mut writer, mut reader, recovered) = open(directory.path());
    assert_eq!((recovered.ignored_files, recovered.records), (4, 1));
    writer.append(b"second").unwrap();
    assert_eq!(payloads(&mut reader), [&b"first"[..], b"second"]);
    assert!(garbage.iter().all(|name| directory.path().join(name).exists()));
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

/// Checks that a sync happens when it is due and not before.
#[test]
fn sync_when_due() {
    let disk = SimulatedDisk::default();
    let (mut writer, _reader, _) =
        Spool::open_on(Arc::new(disk.clone()), settings(Path::new("/spool"))).unwrap();
    assert!(!writer.sync_if_due().unwrap(), "nothing to sync");
    writer.append(b"first").unwrap();
    disk.advance(499);
    assert!(!writer.sync_if_due().unwrap());
    assert_eq!(writer.durable_sequence(), 0);
    disk.advance(1);
    assert!(writer.sync_if_due().unwrap());
    assert_eq!(writer.durable_sequence(), 1);
    assert!(!writer.sync_if_due().unwrap());
}

/// Checks that after a failed sync nothing more is taken and no sync is tried, while the reader goes on; and that a
/// new opening takes records again.
#[test]
fn failed_sync_is_final() {
    let disk = SimulatedDisk::default();
    let open = || Spool::open_on(Arc::new(disk.clone()), settings(Path::new("/spool"))).unwrap();
    let (mut writer, mut reader, _) = open();
    writer.append(b"first").unwrap();
    disk.fail_after(0, Fault::Io);
    let error = writer.sync().unwrap_err();
    assert!(matches!(error, Error::Unsafe { action: "sync", .. }) && !error.is_transient());
    let syncs = disk.syncs();
    assert!(matches!(writer.append(b"second"), Err(Error::Failed { .. })));
    assert!(matches!(writer.sync(), Err(Error::Failed { .. })));
    disk.advance(1_000);
    assert!(writer.sync_if_due().is_err());
    assert_eq!(payloads(&mut reader), [b"first"]);
    drop(writer);
    assert_eq!(
        (disk.syncs(), syncs),
        (syncs, syncs),
        "a failed sync is never tried again"
    );
    drop(reader);
    open().0.append(b"third").unwrap();
}

/// Checks that what cannot be read is an error twice and passed over and counted at the third try, so that one bad
/// sector does not hold up all that comes after it.
#[test]
fn unreadable_is_passed_over_at_the_third_try() {
    let disk = SimulatedDisk::default();
    let (mut writer, mut reader, _) =
        Spool::open_on(Arc::new(disk.clone()), settings(Path::new("/spool"))).unwrap();
    for number in 0..3 {
        writer.append(&[number; 600]).unwrap();
    }
    let mut next = || {
        // Opening the file is the first call, reading it the second; the first time it is not open yet.
        disk.fail_after(1, Fault::Io);
        reader.next()
    };
    assert!(matches!(next(), Err(Error::Io { action: "read", .. })));
    assert!(matches!(next(), Err(Error::Io { action: "read", .. })));
    disk.heal();
    assert_eq!(
        reader.next().unwrap().unwrap().payload,
        [0; 600],
        "twice is not yet given up"
    );
    for _ in 0..2 {
        disk.fail_after(1, Fault::Io);
        reader.next().unwrap_err();
    }
    disk.fail_after(1, Fault::Io);
    assert_eq!(reader.next().unwrap().unwrap().payload, [2; 600]);
    assert_eq!(
        (reader.usage().lost_records, reader.usage().unacknowledged_records),
        (1, 2)
    );
}

/// Checks that a disk that fills up within a record leaves the segment with whole records and no gap.
#[test]
fn no_space_inside_a_record() {
    let disk = SimulatedDisk::default();
    let open = || Spool::open_on(Arc::new(disk.clone()), settings(Path::new("/spool"))).unwrap();
    let (mut writer, mut reader, _) = open();
    writer.append(b"first").unwrap();
    let before = disk.segment_bytes(Path::new("/spool"));
    disk.fail_after(0, Fault::NoSpace);
    let error = writer.append(b"second").unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }) && error.is_transient());
    assert_eq!(
        disk.segment_bytes(Path::new("/spool")),
        before,
        "the half record is cut off"
    );
    disk.fail_after(0, Fault::Short);
    assert_eq!(
        writer.append(b"third").unwrap().sequence,
        1,
        "half a write is gone on with"
    );
    assert_eq!(payloads(&mut reader), [&b"first"[..], b"third"]);
    drop((writer, reader));
    let (_writer, mut reader, recovered) = open();
    assert_eq!(payloads(&mut reader), [&b"first"[..], b"third"]);
    assert_eq!((recovered.torn_bytes, recovered.corrupt_records), (0, 0));
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
