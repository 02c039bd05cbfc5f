//! One test per known way in which a directory or a file goes wrong: what is whole is read, what is not is counted.

use std::fs;

use crate::directory::{copy, filled, open, payloads, segments};

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
