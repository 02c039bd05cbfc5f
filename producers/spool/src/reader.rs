//! Disk → the publisher, oldest first; freed on acknowledgement.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::checkpoint::{Checkpoint, Frontier};
use crate::disk::{Disk, DiskFile, read_full};
use crate::format::{Epoch, Found, Identity, Place, RECORD_HEADER_BYTES, from_ns, read_record, u64_at};
use crate::recover::READ_ATTEMPTS;
use crate::shared::{Segment, Shared, State, segment_path};
use crate::{Error, Settings};

/// The most records that can be read and not acknowledged: more than a producer's queue holds of batches of 64 KiB
/// (1 GiB). Their entries take 1 MiB.
pub const IN_FLIGHT_MAX: usize = 16_384;

/// Where a record stands; what is handed back to acknowledge it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    segment: u64,
    offset: u64,
}

/// One record, as appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub identity: Identity,
    /// When it was appended.
    pub appended: SystemTime,
    /// What was appended.
    pub payload: Vec<u8>,
    /// What [`Reader::acknowledge`] wants.
    pub position: Position,
}

/// How much the spool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all segment files, never above `size_limit_bytes`.
    pub bytes: u64,
    /// Segment files.
    pub segments: u64,
    /// When the oldest unacknowledged record was appended. Healthy: seconds ago.
    pub oldest: Option<SystemTime>,
    /// Records not acknowledged. Healthy: what a few seconds bring.
    pub unacknowledged_records: u64,
    /// Records that were whole at the open or at their append and could not be read back. Healthy: 0.
    pub lost_records: u64,
}

/// The end that reads and frees. There is one per spool.
pub struct Reader {
    disk: Arc<dyn Disk>,
    settings: Settings,
    shared: Arc<Shared>,
    checkpoint: Checkpoint,
    /// Read and not freed, in order of position.
    in_flight: VecDeque<InFlight>,
    /// The first of them to deliver again after a rewind; their number if there is none.
    again: usize,
    /// Where the first record is that was never read.
    at: Frontier,
    /// The segment last read from.
    open: Option<(Segment, Box<dyn DiskFile>)>,
    /// Records read from the segment of `at`.
    read_in_segment: u64,
    failed_reads: u32,
    _lock: Arc<dyn Any + Send + Sync>,
}

#[derive(Clone, Copy)]
struct InFlight {
    position: Position,
    sequence: u64,
    epoch: Epoch,
    appended_ns: u64,
    acknowledged: bool,
}

impl Reader {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        settings: &Settings,
        shared: Arc<Shared>,
        lock: Arc<dyn Any + Send + Sync>,
        checkpoint: Checkpoint,
        start: Frontier,
    ) -> Self {
        Self {
            disk,
            settings: settings.clone(),
            shared,
            checkpoint,
            in_flight: VecDeque::new(),
            again: 0,
            at: start,
            open: None,
            read_in_segment: 0,
            failed_reads: 0,
            _lock: lock,
        }
    }

    /// Returns the next record, or `None` when there is none yet.
    ///
    /// An error leaves the place as it was; what stays unreadable is passed over and counted
    /// ([`Usage::lost_records`]) at the third try.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends; this goes on when more is appended"
    )]
    pub fn next(&mut self) -> Result<Option<Record>, Error> {
        while let Some(entry) = self.in_flight.get(self.again).copied() {
            if entry.acknowledged {
                self.again += 1;
                continue;
            }
            match self.read_again(&entry)? {
                Some(record) => {
                    self.again += 1;
                    return Ok(Some(record));
                }
                // Freed like an acknowledged one: nobody will ever read it.
                None => self.give_up(entry.position)?,
            }
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(Error::TooManyInFlight { limit: IN_FLIGHT_MAX });
        }
        self.read_new()
    }

    /// Waits until there is a record to read or `timeout` has passed; returns whether there is one.
    pub fn wait(&self, timeout: Duration) -> bool {
        if self
            .in_flight
            .range(self.again..)
            .any(|entry| !entry.acknowledged)
        {
            return true;
        }
        self.shared.wait(timeout, |state| {
            state.has_record_from(self.at.segment, self.at.offset)
        })
    }

    /// Takes note that the record at `position` need not be delivered again, in any order. What is acknowledged
    /// without a gap is remembered over restarts, and segments that hold nothing else are deleted. A position that
    /// was acknowledged before is no error.
    ///
    /// An error means that the checkpoint or a deletion failed. The note is taken nevertheless, and the rest is
    /// tried again at the next call.
    pub fn acknowledge(&mut self, position: Position) -> Result<(), Error> {
        let Some(entry) = self
            .find(position)
            .and_then(|index| self.in_flight.get_mut(index))
        else {
            return Ok(());
        };
        if !entry.acknowledged {
            entry.acknowledged = true;
            let mut state = self.shared.lock();
            state.unacknowledged = state.unacknowledged.saturating_sub(1);
        }
        self.free()
    }

    /// Starts over from the first record that is not acknowledged; those acknowledged behind it are not repeated.
    pub fn rewind_to_unacknowledged(&mut self) {
        self.again = 0;
    }

    /// Returns whether a record is past [`Settings::age_limit`]: the caller counts it as `TooOld` and acknowledges
    /// it instead of sending it.
    pub fn is_too_old(&self, record: &Record) -> bool {
        // A record from the future is a clock that was set back: as good as new.
        self.disk
            .now()
            .duration_since(record.appended)
            .is_ok_and(|age| age > self.settings.age_limit)
    }

    /// Returns how much the spool holds.
    pub fn usage(&self) -> Usage {
        let oldest = match self.in_flight.front() {
            Some(entry) => Some(from_ns(entry.appended_ns)),
            None => self.peek_appended(),
        };
        let state = self.shared.lock();
        Usage {
            bytes: state.used_bytes,
            segments: state.segments.len() as u64,
            oldest: oldest.filter(|_| state.unacknowledged > 0),
            unacknowledged_records: state.unacknowledged,
            lost_records: state.lost,
        }
    }

    fn find(&self, position: Position) -> Option<usize> {
        self.in_flight
            .binary_search_by_key(&position, |entry| entry.position)
            .ok()
    }

    /// Returns when the first record that was never read was appended. Its checksum is not looked at.
    fn peek_appended(&self) -> Option<SystemTime> {
        let (path, offset) = {
            let state = self.shared.lock();
            let segment = next_to_read(&state, &self.at)?;
            let begun = segment.number == self.at.segment;
            let offset = if begun {
                self.at.offset.max(segment.start)
            } else {
                segment.start
            };
            (segment_path(&self.settings.directory, segment.number), offset)
        };
        let mut header = [0; RECORD_HEADER_BYTES];
        let file = self.disk.open(&path).ok()?;
        let whole = read_full(&*file, offset, &mut header).ok()? == header.len();
        whole.then(|| u64_at(&header, 16)).flatten().map(from_ns)
    }

    fn read_new(&mut self) -> Result<Option<Record>, Error> {
        loop {
            let Some(segment) = self.enter() else {
                return self.free().map(|()| None);
            };
            if self.at.offset >= segment.end {
                if !segment.closed {
                    return Ok(None);
                }
                self.leave(&segment);
                self.free()?;
                continue;
            }
            let place = Place {
                epoch: segment.epoch,
                offset: self.at.offset,
                end: segment.end,
                least_sequence: self.at.sequence,
            };
            match self.read(&segment, &place)? {
                Found::Record {
                    sequence,
                    appended_ns,
                    payload,
                    next,
                } => {
                    let position = Position {
                        segment: segment.number,
                        offset: self.at.offset,
                    };
                    let entry = InFlight {
                        position,
                        sequence,
                        epoch: segment.epoch,
                        appended_ns,
                        acknowledged: false,
                    };
                    self.in_flight.push_back(entry);
                    self.again = self.in_flight.len();
                    self.read_in_segment += 1;
                    self.at.offset = next;
                    self.at.sequence = sequence.saturating_add(1);
                    return Ok(Some(record(&segment, &entry, payload)));
                }
                Found::Damaged { next } => self.at.offset = next,
                // Up to the end that was known when this was read; what is appended later is read.
                Found::End => self.at.offset = segment.end,
            }
        }
    }

    /// Returns the segment to read from and moves to its first record where none of it was read yet.
    fn enter(&mut self) -> Option<Segment> {
        let segment = self.shared.lock().segment_from(self.at.segment)?.clone();
        if segment.number != self.at.segment
            || segment.epoch != self.at.epoch
            || self.at.offset < segment.start
        {
            self.at = Frontier {
                segment: segment.number,
                offset: segment.start,
                sequence: segment.first_sequence,
                epoch: segment.epoch,
            };
            self.read_in_segment = 0;
        }
        Some(segment)
    }

    /// Goes past a segment that has no more records, and counts those that should have been there.
    fn leave(&mut self, segment: &Segment) {
        let lost = segment.records.saturating_sub(self.read_in_segment);
        if lost > 0 {
            tracing::warn!(segment = segment.number, lost, "records could not be read back");
            let mut state = self.shared.lock();
            state.lost += lost;
            state.unacknowledged = state.unacknowledged.saturating_sub(lost);
        }
        self.at.segment += 1;
        self.at.offset = 0;
        self.read_in_segment = 0;
        // What is missing between the two was counted when the spool was opened: not again at the next open.
        let state = self.shared.lock();
        if let Some(after) = state
            .segment_from(self.at.segment)
            .filter(|after| after.epoch == self.at.epoch)
        {
            self.at.sequence = after.first_sequence;
        }
    }

    fn read_again(&mut self, entry: &InFlight) -> Result<Option<Record>, Error> {
        let known = self.shared.lock().segment_from(entry.position.segment).cloned();
        let Some(segment) = known.filter(|segment| segment.number == entry.position.segment) else {
            return Ok(None);
        };
        let place = Place {
            epoch: segment.epoch,
            offset: entry.position.offset,
            end: segment.end,
            least_sequence: entry.sequence,
        };
        match self.read(&segment, &place)? {
            Found::Record {
                sequence, payload, ..
            } if sequence == entry.sequence => Ok(Some(record(&segment, entry, payload))),
            _ => Ok(None),
        }
    }

    fn give_up(&mut self, position: Position) -> Result<(), Error> {
        tracing::warn!(?position, "record could not be read back");
        self.shared.lock().lost += 1;
        self.acknowledge(position)
    }

    fn read(&mut self, segment: &Segment, place: &Place) -> Result<Found, Error> {
        match self.try_read(segment, place) {
            Ok(found) => {
                self.failed_reads = 0;
                Ok(found)
            }
            Err((action, source)) => {
                self.open = None;
                self.failed_reads += 1;
                // A file that is gone does not come back; one that cannot be opened for want of a descriptor does.
                let gone = source.kind() == io::ErrorKind::NotFound;
                let unreadable = action == "read" && self.failed_reads >= READ_ATTEMPTS;
                if gone || unreadable {
                    self.failed_reads = 0;
                    return Ok(Found::End);
                }
                Err(Error::io(
                    action,
                    &segment_path(&self.settings.directory, segment.number),
                    source,
                ))
            }
        }
    }

    fn try_read(&mut self, segment: &Segment, place: &Place) -> Result<Found, (&'static str, io::Error)> {
        let path = segment_path(&self.settings.directory, segment.number);
        let open = match self.open.take().filter(|(open, _)| open.number == segment.number) {
            Some(open) => open,
            None => (
                segment.clone(),
                self.disk.open(&path).map_err(|source| ("open", source))?,
            ),
        };
        let (_, file) = self.open.insert(open);
        read_record(&**file, place).map_err(|source| ("read", source))
    }

    /// Forgets what is acknowledged without a gap, writes the checkpoint, and deletes the segments before it.
    fn free(&mut self) -> Result<(), Error> {
        while self.in_flight.front().is_some_and(|entry| entry.acknowledged) {
            self.in_flight.pop_front();
            self.again = self.again.saturating_sub(1);
        }
        if self.in_flight.is_empty() {
            self.leave_finished();
        }
        let frontier = match self.in_flight.front() {
            Some(entry) => Frontier {
                segment: entry.position.segment,
                offset: entry.position.offset,
                sequence: entry.sequence,
                epoch: entry.epoch,
            },
            None => self.at,
        };
        let stored = self.checkpoint.store(frontier);
        self.delete_before(frontier.segment)?;
        stored
    }

    /// Goes past segments that were read to their end, so that they can be deleted before more is appended.
    fn leave_finished(&mut self) {
        loop {
            let finished = {
                let state = self.shared.lock();
                let current = state
                    .segment_from(self.at.segment)
                    .filter(|one| one.number == self.at.segment);
                current
                    .filter(|one| one.closed && self.at.offset >= one.end)
                    .cloned()
            };
            let Some(segment) = finished else { return };
            self.leave(&segment);
        }
    }

    fn delete_before(&mut self, number: u64) -> Result<(), Error> {
        let mut deleted = false;
        let result = loop {
            let first = self
                .shared
                .lock()
                .segments
                .front()
                .map(|one| (one.number, one.bytes));
            let Some((first, bytes)) = first.filter(|(first, _)| *first < number) else {
                break Ok(());
            };
            if !deleted && let Err(error) = self.checkpoint.sync() {
                // Then a power cut may bring repeats and a wrong count of missing records; no loss.
                tracing::warn!(%error, "checkpoint may not be on the disk");
            }
            if self.open.as_ref().is_some_and(|(open, _)| open.number == first) {
                self.open = None;
            }
            let path = segment_path(&self.settings.directory, first);
            match self.disk.remove(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    break Err(Error::io("remove", &path, source));
                }
                _ => {}
            }
            deleted = true;
            let mut state = self.shared.lock();
            state.segments.pop_front();
            state.used_bytes = state.used_bytes.saturating_sub(bytes);
        };
        if deleted && let Err(error) = self.disk.sync_directory(&self.settings.directory) {
            // A deleted segment that a power cut brings back lies before the checkpoint.
            tracing::warn!(%error, "deletion may not be on the disk");
        }
        result
    }
}

/// Returns the segment that has the first record from `at` on.
fn next_to_read<'a>(state: &'a State, at: &Frontier) -> Option<&'a Segment> {
    let segment = state.segment_from(at.segment)?;
    if segment.number == at.segment && at.offset >= segment.end {
        return state.segment_from(at.segment + 1);
    }
    Some(segment)
}

fn record(segment: &Segment, entry: &InFlight, payload: Vec<u8>) -> Record {
    Record {
        identity: Identity {
            host: segment.host.clone(),
            epoch: entry.epoch,
            sequence: entry.sequence,
        },
        appended: from_ns(entry.appended_ns),
        payload,
        position: entry.position,
    }
}
