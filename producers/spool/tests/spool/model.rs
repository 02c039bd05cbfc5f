//! Random lives of a spool against a plain list: appends, reads, acknowledgements, faults, kills, power cuts, copies.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use strobe_spool::{Error, Identity, Position, Reader, Record, Settings, Spool, Writer};

use crate::simulated::{Fault, SimulatedDisk};

const SIZE_LIMIT: u64 = 2_400;

#[derive(Debug, Clone)]
enum Step {
    Append { bytes: usize },
    Sync,
    Tick { ms: u64 },
    Read { records: usize },
    Acknowledge { which: prop::sample::Index },
    AcknowledgeAll,
    Rewind,
    Reopen,
    Kill,
    PowerCut { seed: u64 },
    Fault { after: u64, fault: Fault },
    Copy,
    Swap { which: prop::sample::Index },
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![Just(Fault::Io), Just(Fault::NoSpace), Just(Fault::Short)];
    prop_oneof![
        12 => (1..190usize).prop_map(|bytes| Step::Append { bytes }),
        3 => Just(Step::Sync),
        2 => (0..800u64).prop_map(|ms| Step::Tick { ms }),
        6 => (1..6usize).prop_map(|records| Step::Read { records }),
        5 => any::<prop::sample::Index>().prop_map(|which| Step::Acknowledge { which }),
        1 => Just(Step::AcknowledgeAll),
        1 => Just(Step::Rewind),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        2 => any::<u64>().prop_map(|seed| Step::PowerCut { seed }),
        3 => (0..8u64, fault).prop_map(|(after, fault)| Step::Fault { after, fault }),
        1 => Just(Step::Copy),
        1 => any::<prop::sample::Index>().prop_map(|which| Step::Swap { which }),
    ]
}

/// What the list knows of one record that an append reported as taken.
#[derive(Debug, Clone)]
struct Known {
    identity: Identity,
    payload: Vec<u8>,
    /// Reported as on the disk: no power cut may take it.
    durable: bool,
    /// A sync failed that would have made it durable: it can be read until the next power cut, and no later sync
    /// that succeeds says anything about it.
    doubtful: bool,
    /// A power cut came before it was durable.
    may_be_gone: bool,
    acknowledged: bool,
}

/// One directory with its spool and its list.
struct One {
    directory: PathBuf,
    open: Option<(Writer, Reader)>,
    /// A sync failed in this opening: nothing more of it can be trusted to become durable.
    failed: bool,
    known: Vec<Known>,
    /// Where the epoch of this opening begins in the list.
    epoch_start: usize,
    /// Delivered by this opening, and where in the list.
    delivered: Vec<(Position, usize)>,
    /// Acknowledged to this opening, which must not deliver it again.
    acknowledged_here: BTreeSet<usize>,
    last_delivered: Option<usize>,
}

impl One {
    fn new(directory: PathBuf, known: Vec<Known>) -> Self {
        Self {
            directory,
            open: None,
            failed: false,
            known,
            epoch_start: 0,
            delivered: Vec::new(),
            acknowledged_here: BTreeSet::new(),
            last_delivered: None,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            segment_bytes: 600,
            size_limit_bytes: SIZE_LIMIT,
            segment_age: Duration::from_secs(2),
            ..Settings::new(&self.directory, "host")
        }
    }

    /// Opens with whatever fault is pending, then without: an open that fails must do no harm either.
    fn open(&mut self, disk: &SimulatedDisk) {
        assert!(self.open.is_none());
        let first = Spool::open_on(Arc::new(disk.clone()), self.settings());
        // A failed open may have failed at a sync, after which nothing is known to be durable.
        let trusted = first.is_ok() && !self.failed;
        let (writer, reader, _) = first.unwrap_or_else(|_| {
            disk.heal();
            Spool::open_on(Arc::new(disk.clone()), self.settings()).unwrap()
        });
        for known in self.known.iter_mut().filter(|known| !known.durable) {
            known.doubtful |= !trusted;
            // Recovery syncs what the last process left, and whatever is left after a cut is on the disk.
            known.durable = !known.doubtful && !known.may_be_gone;
        }
        self.failed = false;
        self.epoch_start = self.known.len();
        self.delivered.clear();
        self.acknowledged_here.clear();
        self.last_delivered = None;
        self.open = Some((writer, reader));
    }

    fn note_durable(&mut self) {
        let (writer, _) = self.open.as_ref().unwrap();
        let durable = usize::try_from(writer.durable_sequence()).unwrap();
        self.known
            .iter_mut()
            .skip(self.epoch_start)
            .take(durable)
            .for_each(|known| known.durable = true);
    }

    fn append(&mut self, payload: Vec<u8>, identities: &mut BTreeMap<Identity, Vec<u8>>) {
        let (writer, _) = self.open.as_mut().unwrap();
        match writer.append(&payload) {
            Ok(identity) => {
                assert_eq!(
                    identity.sequence as usize,
                    self.known.len() - self.epoch_start,
                    "no gap"
                );
                let before = identities.insert(identity.clone(), payload.clone());
                assert_eq!(before, None, "identity given twice");
                let known = Known {
                    identity,
                    payload,
                    durable: false,
                    doubtful: false,
                    may_be_gone: false,
                    acknowledged: false,
                };
                self.known.push(known);
            }
            Err(Error::Unsafe { .. } | Error::Failed { .. }) => self.failed = true,
            Err(Error::Full {
                used_bytes,
                limit_bytes,
            }) => assert!(used_bytes <= limit_bytes),
            Err(Error::DiskFull { .. } | Error::Io { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        self.note_durable();
    }

    fn sync(&mut self, due: bool) {
        let (writer, _) = self.open.as_mut().unwrap();
        let result = if due {
            writer.sync_if_due().map(|_| ())
        } else {
            writer.sync()
        };
        match result {
            Ok(()) if !due => assert_eq!(
                writer.durable_sequence() as usize,
                self.known.len() - self.epoch_start
            ),
            Ok(()) => {}
            Err(Error::Unsafe { .. } | Error::Failed { .. }) => self.failed = true,
            Err(error) => panic!("{error:?}"),
        }
        self.note_durable();
    }

    /// Takes one record and checks it against the list; `None` when there is none. A read that fails is tried again
    /// on a healthy disk: it must not have moved on.
    fn read(&mut self, disk: &SimulatedDisk) -> Option<usize> {
        let (_, reader) = self.open.as_mut().unwrap();
        let record = reader.next().or_else(|_| {
            disk.heal();
            reader.next()
        });
        let record = record.unwrap()?;
        let index = self.find(&record);
        assert!(
            self.last_delivered.is_none_or(|last| last < index),
            "out of order"
        );
        assert!(
            !self.acknowledged_here.contains(&index),
            "delivered after its acknowledgement"
        );
        self.last_delivered = Some(index);
        self.delivered.push((record.position, index));
        Some(index)
    }

    fn find(&self, record: &Record) -> usize {
        let found = self
            .known
            .iter()
            .position(|known| known.identity == record.identity);
        let index = found.expect("delivered, but never reported as appended");
        assert_eq!(self.known[index].payload, record.payload);
        index
    }

    fn acknowledge(&mut self, which: usize) {
        let Some(&(position, index)) = self.delivered.get(which) else {
            return;
        };
        let (_, reader) = self.open.as_mut().unwrap();
        // An error concerns the checkpoint and deletions; the note is taken.
        let _ = reader.acknowledge(position);
        self.known[index].acknowledged = true;
        self.acknowledged_here.insert(index);
    }

    fn rewind(&mut self) {
        self.open.as_mut().unwrap().1.rewind_to_unacknowledged();
        self.last_delivered = None;
    }

    /// Ends the process in an orderly way.
    fn close(&mut self) {
        self.sync(false);
        self.open = None;
    }

    /// Reads everything from the first unacknowledged record on: each one that must be there is.
    fn check_all(&mut self, disk: &SimulatedDisk) {
        disk.heal();
        self.rewind();
        let mut found = BTreeSet::new();
        while let Some(index) = self.read(disk) {
            found.insert(index);
        }
        for (index, known) in self.known.iter().enumerate() {
            assert!(
                found.contains(&index) || known.acknowledged || known.may_be_gone,
                "lost {index}: {known:?}"
            );
        }
        let usage = self.open.as_ref().unwrap().1.usage();
        assert_eq!(usage.unacknowledged_records as usize, found.len(), "{usage:?}");
        assert_eq!(usage.oldest.is_some(), !found.is_empty());
        assert_eq!(usage.bytes, disk.segment_bytes(&self.directory));
        assert_eq!(usage.lost_records, 0);
    }
}

/// Ends the process without the sync that an orderly end makes, as a kill does.
fn drop_without_sync(one: &mut One, disk: &SimulatedDisk) {
    disk.vanish(true);
    one.open = None;
    disk.vanish(false);
}

fn live(steps: &[Step]) {
    let disk = SimulatedDisk::default();
    let mut identities = BTreeMap::new();
    let mut ones = vec![One::new("/spool-0".into(), Vec::new())];
    ones[0].open(&disk);
    let mut at = 0;
    for (number, step) in steps.iter().enumerate() {
        let count = ones.len();
        let one = &mut ones[at];
        match step {
            Step::Append { bytes } => one.append(payload(number, *bytes), &mut identities),
            Step::Sync => one.sync(false),
            Step::Tick { ms } => {
                disk.advance(*ms);
                one.sync(true);
            }
            Step::Read { records } => {
                let _ = (0..*records).find(|_| one.read(&disk).is_none());
            }
            Step::Acknowledge { which } if !one.delivered.is_empty() => {
                one.acknowledge(which.index(one.delivered.len()));
            }
            Step::Acknowledge { .. } => {}
            Step::AcknowledgeAll => (0..one.delivered.len()).for_each(|which| one.acknowledge(which)),
            Step::Rewind => one.rewind(),
            Step::Reopen => {
                one.close();
                one.open(&disk);
            }
            Step::Kill => {
                drop_without_sync(one, &disk);
                one.open(&disk);
                one.check_all(&disk);
            }
            Step::PowerCut { seed } => {
                // The power is everybody's.
                for one in ones.iter_mut() {
                    drop_without_sync(one, &disk);
                    one.known
                        .iter_mut()
                        .for_each(|known| known.may_be_gone |= !known.durable);
                    one.failed = false;
                }
                disk.power_cut(dice(*seed));
                for one in ones.iter_mut() {
                    one.open(&disk);
                    one.check_all(&disk);
                }
            }
            Step::Fault { after, fault } => disk.fail_after(*after, *fault),
            Step::Copy if count < 3 => {
                let mut copy = One::new(format!("/spool-{count}").into(), one.known.clone());
                disk.copy(&one.directory, &copy.directory);
                copy.open(&disk);
                copy.check_all(&disk);
                ones.push(copy);
            }
            Step::Copy => {}
            Step::Swap { which } => at = which.index(count),
        }
        for one in &ones {
            assert!(disk.segment_bytes(&one.directory) <= SIZE_LIMIT, "over the limit");
        }
    }
    disk.heal();
    for one in &mut ones {
        one.check_all(&disk);
        drop_without_sync(one, &disk);
        one.open(&disk);
        one.check_all(&disk);
        (0..one.delivered.len()).for_each(|which| one.acknowledge(which));
        let usage = one.open.as_ref().unwrap().1.usage();
        assert_eq!(
            (usage.segments, usage.bytes, usage.unacknowledged_records),
            (0, 0, 0),
            "not all is freed"
        );
    }
}

fn dice(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 4 != 0
    }
}

/// A payload that no other step has.
fn payload(number: usize, bytes: usize) -> Vec<u8> {
    let mut payload = (number as u16).to_le_bytes().to_vec();
    payload.resize(2.max(bytes), number as u8);
    payload
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks, over random lives: what was reported durable is never lost, and nothing appended is lost to a kill;
    /// nothing is delivered that was not appended; the order holds; the size limit holds at every step; no
    /// identity is given twice, over reopens and copies; and in the end everything can be freed.
    #[test]
    fn behaves_as_a_list(steps in prop::collection::vec(step(), 1..80)) {
        live(&steps);
    }
}
