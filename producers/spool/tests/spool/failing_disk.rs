//! Disks that refuse: what was taken stays whole, and nothing is claimed that is not durable.

use std::path::Path;
use std::sync::Arc;

use crate::directory::{payloads, settings};
use crate::simulated::{Fault, SimulatedDisk};
use strobe_spool::{Error, Spool};

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
