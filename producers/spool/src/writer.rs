//! Bytes → disk, with an identity. May be lost here as `SpoolFull`: the caller counts what is refused.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::TryRngCore;
use rand::rngs::OsRng;

use crate::disk::{Disk, DiskFile};
use crate::format::{Epoch, Identity, RECORD_HEADER_BYTES, SegmentHeader, record_header, to_ns, write_whole};
use crate::recover::Findings;
use crate::shared::{NUMBER_LIMIT, SEGMENTS_MAX, Segment, Shared, segment_path};
use crate::{Error, Settings};

/// The end that appends. There is one per spool.
pub struct Writer {
    disk: Arc<dyn Disk>,
    settings: Settings,
    record_bytes_max: usize,
    host: Arc<str>,
    epoch: Epoch,
    shared: Arc<Shared>,
    active: Option<Active>,
    next_number: u64,
    next_sequence: u64,
    durable_sequence: u64,
    /// When the oldest record was appended that is not durable.
    unsynced_since: Option<SystemTime>,
    failed: Option<String>,
    _lock: Arc<dyn Any + Send + Sync>,
}

/// The segment that is being written.
struct Active {
    number: u64,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    length: u64,
    created: SystemTime,
}

impl Writer {
    pub(crate) fn new(disk: Arc<dyn Disk>, settings: &Settings, found: &Findings) -> Result<Self, Error> {
        let mut epoch = Epoch([0; 16]);
        // From the kernel and not from a generator in memory, which a cloned machine would share with its twin.
        OsRng
            .try_fill_bytes(&mut epoch.0)
            .map_err(|error| Error::Random {
                reason: error.to_string(),
            })?;
        Ok(Self {
            disk,
            settings: settings.clone(),
            record_bytes_max: settings.record_bytes_max(),
            host: settings.host.as_str().into(),
            epoch,
            shared: found.shared.clone(),
            active: None,
            next_number: found.next_number,
            next_sequence: 0,
            durable_sequence: 0,
            unsynced_since: None,
            failed: None,
            _lock: found.lock.clone(),
        })
    }

    /// Appends one record and returns its identity. When this returns, the record survives the process; a power
    /// cut it survives after the next sync.
    ///
    /// After an error the record is not in the spool and took no sequence.
    pub fn append(&mut self, payload: &[u8]) -> Result<Identity, Error> {
        if let Some(cause) = &self.failed {
            return Err(Error::Failed { cause: cause.clone() });
        }
        if payload.is_empty() || payload.len() > self.record_bytes_max {
            return Err(Error::RecordSize {
                bytes: payload.len(),
                limit_bytes: self.record_bytes_max,
            });
        }
        let now = self.disk.now();
        let record_bytes = (RECORD_HEADER_BYTES + payload.len()) as u64;
        self.close_if(now, record_bytes)?;
        if self.active.is_some() {
            self.check_room(record_bytes)?;
        }
        let mut active = match self.active.take() {
            Some(active) => active,
            None => self.create(now, record_bytes)?,
        };
        let header = record_header(self.epoch, self.next_sequence, to_ns(now), payload);
        let written = write_whole(&*active.file, active.length, &[&header, payload]);
        if let Err(source) = written {
            return Err(self.cut_back(active, source));
        }
        active.length += record_bytes;
        self.active = Some(active);
        Ok(self.appended(now, record_bytes))
    }

    /// Makes durable what was appended [`Settings::sync_interval`] ago or earlier, and closes a segment that has
    /// reached its age. The owner calls this on a timer. Returns whether anything became durable.
    pub fn sync_if_due(&mut self) -> Result<bool, Error> {
        let (now, before) = (self.disk.now(), self.durable_sequence);
        self.close_if(now, 0)?;
        if self
            .unsynced_since
            .is_some_and(|since| reached(since, now, self.settings.sync_interval))
        {
            self.sync()?;
        }
        Ok(self.durable_sequence > before)
    }

    /// Makes everything appended so far durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        if let Some(cause) = &self.failed {
            return Err(Error::Failed { cause: cause.clone() });
        }
        if let Some(active) = self.active.as_ref().filter(|_| self.unsynced_since.is_some())
            && let Err(source) = active.file.sync()
        {
            let path = active.path.clone();
            return Err(self.fail("sync", path, source));
        }
        self.unsynced_since = None;
        self.durable_sequence = self.next_sequence;
        Ok(())
    }

    /// Returns the epoch of this opening.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the sequence below which every record of this epoch survives a power cut.
    pub fn durable_sequence(&self) -> u64 {
        self.durable_sequence
    }

    /// Returns the bytes of all segment files.
    pub fn used_bytes(&self) -> u64 {
        self.shared.lock().used_bytes
    }

    fn check_room(&self, bytes: u64) -> Result<(), Error> {
        let used_bytes = self.shared.lock().used_bytes;
        let limit_bytes = self.settings.size_limit_bytes;
        match used_bytes.saturating_add(bytes) > limit_bytes {
            true => Err(Error::Full {
                used_bytes,
                limit_bytes,
            }),
            false => Ok(()),
        }
    }

    /// Closes the active segment when it is too old or another record of that size would make it too long.
    fn close_if(&mut self, now: SystemTime, record_bytes: u64) -> Result<(), Error> {
        let Some(active) = &self.active else { return Ok(()) };
        let long = active.length + record_bytes > self.settings.segment_bytes;
        if !long && !reached(active.created, now, self.settings.segment_age) {
            return Ok(());
        }
        self.sync()?;
        self.close_active();
        Ok(())
    }

    fn close_active(&mut self) {
        let Some(active) = self.active.take() else { return };
        if let Some(segment) = self
            .shared
            .lock()
            .segments
            .iter_mut()
            .rfind(|one| one.number == active.number)
        {
            segment.closed = true;
        }
        self.shared.ring();
    }

    /// Starts a segment that has room for a record of that size.
    fn create(&mut self, now: SystemTime, record_bytes: u64) -> Result<Active, Error> {
        let header = SegmentHeader {
            host: self.host.clone(),
            epoch: self.epoch,
            first_sequence: self.next_sequence,
            created_ns: to_ns(now),
        }
        .encode();
        let header_bytes = header.len() as u64;
        self.check_room(header_bytes + record_bytes)?;
        let (count, number) = (self.shared.lock().segments.len(), self.next_number);
        if count >= SEGMENTS_MAX || number >= NUMBER_LIMIT {
            return Err(Error::TooManySegments { count });
        }
        let path = segment_path(&self.settings.directory, number);
        let file = self
            .disk
            .create(&path)
            .map_err(|source| Error::io("create", &path, source))?;
        self.next_number += 1;
        let active = Active {
            number,
            path,
            file,
            length: header_bytes,
            created: now,
        };
        let mut segment = Segment {
            number,
            host: self.host.clone(),
            epoch: self.epoch,
            first_sequence: self.next_sequence,
            start: header_bytes,
            end: header_bytes,
            bytes: header_bytes,
            records: 0,
            closed: false,
        };
        let written = write_whole(&*active.file, 0, &[&header, &[]]);
        let error = match written {
            Err(source) => Error::io("write", &active.path, source),
            Ok(()) => match self.disk.sync_directory(&self.settings.directory) {
                Err(source) => self.fail("sync", self.settings.directory.clone(), source),
                Ok(()) => {
                    self.add(segment);
                    return Ok(active);
                }
            },
        };
        if let Err(remains) = self.disk.remove(&active.path) {
            // It takes room until the reader gets to it and removes it.
            tracing::warn!(path = %active.path.display(), %remains, "unfinished segment is still there");
            segment.closed = true;
            self.add(segment);
        }
        Err(error)
    }

    fn add(&self, segment: Segment) {
        let mut state = self.shared.lock();
        state.used_bytes += segment.bytes;
        state.segments.push_back(segment);
    }

    fn appended(&mut self, now: SystemTime, record_bytes: u64) -> Identity {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.unsynced_since.get_or_insert(now);
        let mut state = self.shared.lock();
        state.used_bytes += record_bytes;
        state.unacknowledged += 1;
        // Ours is the last: only this end adds segments.
        if let Some(segment) = state.segments.back_mut() {
            segment.end += record_bytes;
            segment.bytes += record_bytes;
            segment.records += 1;
        }
        drop(state);
        self.shared.ring();
        Identity {
            host: self.host.clone(),
            epoch: self.epoch,
            sequence,
        }
    }

    /// Takes a half-written record off the segment again.
    fn cut_back(&mut self, active: Active, cause: std::io::Error) -> Error {
        let error = Error::io("write", &active.path, cause);
        let truncated = active.file.truncate(active.length);
        let path = active.path.clone();
        self.active = Some(active);
        match truncated {
            Ok(()) => error,
            // A later record would stand behind the torn one or share its sequence: there can be no later record.
            Err(source) => self.fail("cut back", path, source),
        }
    }

    fn fail(&mut self, action: &'static str, path: PathBuf, source: std::io::Error) -> Error {
        self.failed = Some(format!(
            "earlier, {action} of {} failed: {source}",
            path.display()
        ));
        Error::Unsafe { action, path, source }
    }
}

impl Drop for Writer {
    /// Syncs and closes, so that an orderly end loses nothing and the reader can free everything.
    fn drop(&mut self) {
        if self.failed.is_none()
            && let Err(error) = self.sync()
        {
            tracing::warn!(%error, "the last records may not be on the disk");
        }
        self.close_active();
    }
}

/// Returns whether `span` has passed since `since`. A clock that went back counts as reached: early is harmless.
fn reached(since: SystemTime, now: SystemTime, span: Duration) -> bool {
    now.duration_since(since).map_or(true, |passed| passed >= span)
}
