//! What an opener finds: which records are whole, which are gone, and where reading goes on.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::checkpoint::{Checkpoint, Frontier};
use crate::disk::{Disk, DiskFile, Locking, read_full};
use crate::format::{Epoch, Found, NotASegment, Place, SEGMENT_HEADER_BYTES_MAX, SegmentHeader, read_record};
use crate::shared::{Segment, Shared, State, segment_number, segment_path};
use crate::{Error, Settings};

const LOCK_NAME: &str = "lock";

/// How often a read that fails is tried before the place counts as unreadable: once for a passing fault, once more.
pub(crate) const READ_ATTEMPTS: u32 = 3;

/// What was found when the spool was opened. Damage among records that are still not acknowledged at the next open
/// is found there again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments with records to deliver.
    pub segments: u64,
    /// Whole records that were not acknowledged.
    pub records: u64,
    /// Records lost between whole ones of their segment: damaged on the disk. Known by their sequences.
    pub corrupt_records: u64,
    /// Records lost between two segments of one epoch: a torn tail, or a file that is gone. Known by their sequences.
    pub missing_records: u64,
    /// Bytes after the last whole record of a segment. Healthy: at most one record after a crash.
    pub torn_bytes: u64,
    /// Files that are no part of this spool and were left alone.
    pub ignored_files: u64,
}

/// All that the two ends start from.
pub(crate) struct Findings {
    pub shared: Arc<Shared>,
    pub lock: Arc<dyn Any + Send + Sync>,
    pub checkpoint: Checkpoint,
    pub start: Frontier,
    /// Above every number that a segment or the checkpoint has: a checkpoint that is ahead of the data (a power cut
    /// took the data) then never covers what is written from now on.
    pub next_number: u64,
    pub recovered: Recovered,
}

/// Locks the directory and looks at everything in it.
pub(crate) fn recover(disk: &Arc<dyn Disk>, settings: &Settings) -> Result<Findings, Error> {
    let directory = settings.directory.as_path();
    disk.create_directory(directory)
        .map_err(|source| Error::io("create", directory, source))?;
    let lock = lock(disk, directory)?;
    let mut names = disk
        .list(directory)
        .map_err(|source| Error::io("list", directory, source))?;
    names.sort_unstable();
    let has_checkpoint = names.iter().any(|name| Checkpoint::is_named(name));
    let (checkpoint, start) = Checkpoint::open(disk, directory, has_checkpoint)?;

    let mut recovery = Recovery {
        disk,
        directory,
        frontier: start,
        expected: (start.epoch, start.sequence),
        state: State::default(),
        recovered: Recovered::default(),
    };
    let mut next_number = start.segment.saturating_add(1);
    for name in names
        .iter()
        .filter(|name| *name != LOCK_NAME && !Checkpoint::is_named(name))
    {
        let Some(number) = segment_number(name) else {
            tracing::warn!(directory = %directory.display(), name, "not a file of the spool: left alone");
            recovery.recovered.ignored_files += 1;
            continue;
        };
        recovery.segment(number)?;
        next_number = next_number.max(number + 1);
    }
    let Recovery {
        state, mut recovered, ..
    } = recovery;
    sync_last(disk, directory, &state)?;
    recovered.segments = state.segments.len() as u64;
    recovered.records = state.unacknowledged;
    Ok(Findings {
        shared: Shared::new(state),
        lock,
        checkpoint,
        start,
        next_number,
        recovered,
    })
}

fn lock(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Arc<dyn Any + Send + Sync>, Error> {
    let path = directory.join(LOCK_NAME);
    match disk
        .lock(&path)
        .map_err(|source| Error::io("lock", &path, source))?
    {
        Locking::Held(lock) => Ok(lock.into()),
        Locking::Taken { holder } => Err(Error::Locked {
            directory: directory.to_owned(),
            holder,
        }),
    }
}

/// Makes durable what the last process wrote and was killed before it synced: only the segment that it was writing,
/// since the others were synced when they were closed.
fn sync_last(disk: &Arc<dyn Disk>, directory: &Path, state: &State) -> Result<(), Error> {
    if let Some(last) = state.segments.back() {
        let path = segment_path(directory, last.number);
        let synced = disk.open(&path).and_then(|file| file.sync());
        synced.map_err(|source| Error::io("sync", &path, source))?;
    }
    disk.sync_directory(directory)
        .map_err(|source| Error::io("sync", directory, source))
}

struct Recovery<'a> {
    disk: &'a Arc<dyn Disk>,
    directory: &'a Path,
    frontier: Frontier,
    /// The record that comes next if none is missing.
    expected: (Epoch, u64),
    state: State,
    recovered: Recovered,
}

/// What a walk over a segment's records found.
#[derive(Default)]
struct Walk {
    records: u64,
    corrupt: u64,
    end: u64,
    next_sequence: u64,
    unreadable: bool,
}

impl Recovery<'_> {
    /// Takes in the segment of that number, or removes it when nothing in it is left to deliver.
    fn segment(&mut self, number: u64) -> Result<(), Error> {
        let path = segment_path(self.directory, number);
        if number < self.frontier.segment {
            return self.remove(&path);
        }
        let file = self
            .disk
            .open(&path)
            .map_err(|source| Error::io("open", &path, source))?;
        let length = file
            .length()
            .map_err(|source| Error::io("inspect", &path, source))?;
        let mut head = vec![0; SEGMENT_HEADER_BYTES_MAX];
        let got =
            retried(|| read_full(&*file, 0, &mut head)).map_err(|source| Error::io("read", &path, source))?;
        match SegmentHeader::decode(&head[..got]) {
            Ok((header, start)) => self.records(number, &path, &*file, length, &header, start),
            Err(NotASegment::Damaged) => {
                tracing::warn!(path = %path.display(), length, "segment header is damaged: its records are lost");
                self.recovered.torn_bytes += length;
                self.remove(&path)
            }
            Err(NotASegment::Foreign) => {
                tracing::warn!(path = %path.display(), length, "not a segment of this format: left alone");
                self.recovered.torn_bytes += length;
                self.recovered.ignored_files += 1;
                Ok(())
            }
        }
    }

    fn records(
        &mut self,
        number: u64,
        path: &Path,
        file: &dyn DiskFile,
        length: u64,
        header: &SegmentHeader,
        start: u64,
    ) -> Result<(), Error> {
        // A segment of the checkpoint's number and another epoch was put here by somebody: all of it is news.
        let begun = number == self.frontier.segment
            && header.epoch == self.frontier.epoch
            && self.frontier.offset > start;
        let (from, first) = match begun {
            true => (self.frontier.offset, self.frontier.sequence),
            false => (start, header.first_sequence),
        };
        if !begun && self.expected.0 == header.epoch {
            self.recovered.missing_records += first.saturating_sub(self.expected.1);
        }
        let walk = walk(file, header.epoch, from.min(length), length, first);
        self.expected = (header.epoch, walk.next_sequence);
        self.recovered.corrupt_records += walk.corrupt;
        self.recovered.torn_bytes += length - walk.end;
        if walk.records == 0 && !walk.unreadable {
            return self.remove(path);
        }
        let mut bytes = length;
        if walk.end < length && !walk.unreadable {
            tracing::warn!(path = %path.display(), bytes = length - walk.end, "torn tail is cut off");
            file.truncate(walk.end)
                .map_err(|source| Error::io("truncate", path, source))?;
            bytes = walk.end;
        }
        self.state.used_bytes += bytes;
        self.state.unacknowledged += walk.records;
        self.state.segments.push_back(Segment {
            number,
            host: header.host.clone(),
            epoch: header.epoch,
            first_sequence: header.first_sequence,
            start,
            end: walk.end,
            bytes,
            records: walk.records,
            closed: true,
        });
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<(), Error> {
        self.disk
            .remove(path)
            .map_err(|source| Error::io("remove", path, source))
    }
}

/// Reads all records from `from` on. What follows the last whole one is torn, and what is damaged between two whole
/// ones is corrupt: only the sequence of a later record proves that there were records.
fn walk(file: &dyn DiskFile, epoch: Epoch, from: u64, length: u64, first: u64) -> Walk {
    let mut walk = Walk {
        end: from,
        next_sequence: first,
        ..Walk::default()
    };
    let mut place = Place {
        epoch,
        offset: from,
        end: length,
        least_sequence: first,
    };
    loop {
        match retried(|| read_record(file, &place)) {
            Ok(Found::Record { sequence, next, .. }) => {
                walk.records += 1;
                walk.corrupt += sequence - walk.next_sequence;
                walk.next_sequence = sequence.saturating_add(1);
                walk.end = next;
                (place.offset, place.least_sequence) = (next, walk.next_sequence);
            }
            Ok(Found::Damaged { next }) => place.offset = next,
            Ok(Found::End) => return walk,
            Err(error) => {
                // Not cut off: a disk that cannot be read is not written to without need.
                tracing::warn!(offset = place.offset, %error, "segment is unreadable from here");
                walk.unreadable = true;
                return walk;
            }
        }
    }
}

fn retried<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut result = read();
    for _ in 1..READ_ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = read();
    }
    result
}
