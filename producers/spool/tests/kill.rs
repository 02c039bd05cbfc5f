//! A process that appends is killed with SIGKILL, again and again, on the real disk: whatever it reported as
//! appended is there afterwards, once, in order, and as it was.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the harness")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use strobe_spool::{IN_FLIGHT_MAX, Identity, Record, Settings, Spool};

const DIRECTORY: &str = "STROBE_SPOOL_KILL_DIRECTORY";
const FIRST: &str = "STROBE_SPOOL_KILL_FIRST";
const KILLS: u64 = 20;
/// Records of one process, however fast the disk is: the check reads all of them without acknowledging any.
const RECORDS_PER_LIFE: u64 = 800;
const _: () = assert!(KILLS * RECORDS_PER_LIFE < IN_FLIGHT_MAX as u64);

fn main() {
    match std::env::var_os(DIRECTORY) {
        Some(directory) => append_until_killed(Path::new(&directory)),
        None => survives_kills(),
    }
}

fn settings(directory: &Path) -> Settings {
    // Small segments, so that kills also meet their beginnings, ends and deletions.
    Settings {
        segment_bytes: 16 << 10,
        sync_interval: Duration::from_millis(5),
        ..Settings::new(directory, "host")
    }
}

/// A payload that only this number has, between 8 bytes and 4 KiB.
fn payload(number: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let length = 8 + (mixed >> 32) as usize % 4088;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length, mixed as u8);
    bytes
}

fn number(record: &Record) -> u64 {
    let number = u64::from_le_bytes(record.payload[..8].try_into().unwrap());
    assert_eq!(record.payload, payload(number), "payload of {number}");
    number
}

/// The child: appends numbered records and acknowledges a third of what it reads, saying so each time. Says
/// "taken" before it acknowledges, since an acknowledged record may be gone.
fn append_until_killed(directory: &Path) {
    let (mut writer, mut reader, _) = Spool::open(settings(directory)).unwrap();
    let mut out = std::io::stdout().lock();
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    for next in first..first + RECORDS_PER_LIFE {
        writer.append(&payload(next)).unwrap();
        writeln!(out, "appended {next}").unwrap();
        writer.sync_if_due().unwrap();
        if next.is_multiple_of(3) {
            let record = reader.next().unwrap().unwrap();
            writeln!(out, "taken {}", number(&record)).unwrap();
            reader.acknowledge(record.position).unwrap();
        }
    }
    loop {
        std::thread::park();
    }
}

fn survives_kills() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spool");
    let (mut appended, mut taken) = (BTreeSet::new(), BTreeSet::new());
    let mut identities: BTreeMap<Identity, u64> = BTreeMap::new();
    let mut next = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(DIRECTORY, &path)
            .env(FIRST, next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Most kills meet a process at work, however slow the host is; every fourth one may meet it at its opening.
        let first = if kill % 4 == 3 { None } else { lines.next() };
        // The lines are read to the end while it runs, so that what was in the pipe at the kill counts too.
        let reading = std::thread::spawn(move || {
            first
                .into_iter()
                .chain(lines)
                .map(Result::unwrap)
                .collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_micros(u64::from(random())));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in reading.join().unwrap() {
            match line.split_once(' ') {
                Some(("appended", number)) => appended.insert(number.parse::<u64>().unwrap()),
                Some(("taken", number)) => taken.insert(number.parse::<u64>().unwrap()),
                _ => panic!("child said {line:?}"),
            };
        }
        let found = read_all(&path, &mut identities);
        let gone: Vec<_> = appended
            .iter()
            .filter(|one| !found.contains(one) && !taken.contains(one))
            .collect();
        assert!(gone.is_empty(), "lost after kill {kill}: {gone:?}");
        next = appended.last().max(found.last()).map_or(0, |last| last + 1);
        appended.retain(|one| found.contains(one));
    }
    assert!(
        next > 4 * KILLS,
        "only {next} records in {KILLS} runs: nothing was tried"
    );
    println!(
        "kill: {KILLS} kills, {next} records, {} taken: none lost, none doubled",
        taken.len()
    );
}

/// Returns the numbers of all records, and checks their order and that no identity ever means two records.
fn read_all(directory: &Path, identities: &mut BTreeMap<Identity, u64>) -> BTreeSet<u64> {
    let (_writer, mut reader, recovered) = Spool::open(settings(directory)).unwrap();
    assert_eq!(
        (recovered.corrupt_records, recovered.missing_records),
        (0, 0),
        "{recovered:?}"
    );
    let mut found = BTreeSet::new();
    while let Some(record) = reader.next().unwrap() {
        let number = number(&record);
        assert!(
            found.last().is_none_or(|&last| last < number),
            "{number} came out of order"
        );
        found.insert(number);
        assert_eq!(*identities.entry(record.identity).or_insert(number), number);
    }
    assert_eq!(found.len() as u64, recovered.records);
    found
}

fn random() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u16
}
