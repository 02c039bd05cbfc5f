//! The spooling thread: closed batches → the spool. Stage 8, and the accounting of the run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use strobe_bus::{MESSAGE_BYTES_MAX, Topic, failpoint};
use strobe_event::codec;
use strobe_event::{
    AuditRecord, CoverageRecord, DropCount, DropReason, HostRecord, RawBatch, RunEvent, RunHead, RunId,
    RunState,
};
use strobe_spool::Writer;

use crate::envelope;
use crate::error::AgentError;
use crate::status::Status;

/// Batches that may wait for the disk: two minutes of a quiet host, or some seconds of the highest rate.
pub const QUEUE: usize = 64;
/// Room that batches leave for the events of runs: thousands of them, so that the accounting gets through a full spool.
const EVENT_RESERVE_BYTES: u64 = 1 << 20;
/// Pause in which the disk is synced and the status written.
const TICK: Duration = Duration::from_millis(500);
/// Time between two writings of the status: a file system makes each durable, which costs more than encoding a batch.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// What the sampling thread knows of a run's accounting.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Samples taken.
    pub taken: u64,
    /// Ticks that found their CPU idle.
    pub idle: u64,
    drops: Vec<(DropReason, u64)>,
}

impl Report {
    /// Adds what a closed batch counts.
    pub fn add(&mut self, batch: &RawBatch) {
        self.taken += batch.cpus.iter().map(|cpu| cpu.taken).sum::<u64>();
        self.idle += batch.cpus.iter().map(|cpu| cpu.idle).sum::<u64>();
        for count in &batch.drops {
            if let Some(reason) = DropReason::from_code(count.reason) {
                self.drop(reason, count.samples);
            }
        }
    }

    /// Returns the samples taken so far, and those of them that are in batches.
    pub fn so_far(&self) -> (u64, u64) {
        let dropped: u64 = self.drops.iter().map(|(_, samples)| samples).sum();
        (self.taken, self.taken.saturating_sub(dropped))
    }

    fn counts(&self) -> Vec<DropCount> {
        let count = |&(reason, samples): &(DropReason, u64)| DropCount {
            reason: reason as u8,
            samples,
        };
        self.drops.iter().map(count).collect()
    }

    /// Adds dropped samples.
    pub fn drop(&mut self, reason: DropReason, samples: u64) {
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += samples,
            None if samples > 0 => self.drops.push((reason, samples)),
            None => {}
        }
    }
}

/// What the sampling thread hands over.
#[derive(Debug)]
pub enum ToSpool {
    /// A closed batch.
    Batch(Box<RawBatch>),
    /// Something happened to a run.
    Event(Box<Event>),
    /// Another thread says something.
    Said(Box<Said>),
}

/// What is said beside what is sampled.
#[derive(Debug)]
pub enum Said {
    /// What became of slots.
    Coverage(CoverageRecord),
    /// What this host is.
    Host(HostRecord),
    /// What was decided here about something that somebody asked for.
    Audit(AuditRecord),
}

/// What the sampling thread knows of an event in the life of a run.
#[derive(Debug)]
pub struct Event {
    /// The run.
    pub run: RunHead,
    /// What happened.
    pub state: RunState,
    /// When, microseconds since 1970.
    pub time_us: u64,
    /// Why it failed or ended early; empty otherwise.
    pub detail: String,
    /// Time sampled, microseconds.
    pub done_us: u64,
    /// The accounting of the sampling thread.
    pub report: Report,
}

/// What became here of the batches of one run.
#[derive(Debug, Default)]
struct OfRun {
    spooled: u64,
    batches: u64,
    refused: Report,
}

/// The accounts of the runs under way; each ends with the last event of its run.
#[derive(Debug, Default)]
struct Accounts {
    of_run: BTreeMap<RunId, OfRun>,
}

impl Accounts {
    fn of(&mut self, run: RunId) -> &mut OfRun {
        self.of_run.entry(run).or_default()
    }
}

/// The thread's state.
pub struct Spooling {
    writer: Writer,
    size_limit_bytes: u64,
    capture: Option<PathBuf>,
    status_file: PathBuf,
    status: Arc<Status>,
    accounts: Accounts,
    record: Vec<u8>,
    captured: u64,
    /// Why the spool takes nothing more until it is opened anew.
    broken: Option<strobe_spool::Error>,
}

impl Spooling {
    /// Returns the thread's state.
    pub fn new(writer: Writer, settings: &crate::Settings, status: Arc<Status>) -> Self {
        Self {
            writer,
            size_limit_bytes: settings.spool.size_limit_bytes,
            capture: settings.capture.clone(),
            status_file: settings.state_dir.join(crate::status::FILE),
            status,
            accounts: Accounts::default(),
            record: Vec::new(),
            captured: 0,
            broken: None,
        }
    }

    /// Takes what comes until the sampling thread has ended.
    ///
    /// # Errors
    /// [`AgentError::Spool`] where the disk failed so that the spool must be opened anew: the agent ends, and its supervisor
    /// starts another, with a new epoch.
    pub fn run(mut self, from: &Receiver<ToSpool>) -> Result<(), AgentError> {
        let mut status_at = Instant::now();
        loop {
            match from.recv_timeout(TICK) {
                Ok(ToSpool::Batch(batch)) => self.batch(&batch),
                Ok(ToSpool::Event(event)) => self.event(*event),
                Ok(ToSpool::Said(said)) => self.said(&said),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.status.spool_holds(self.writer.used_bytes());
            if let Err(error) = self.writer.sync_if_due() {
                self.complain(error);
            }
            if self.broken.is_some() {
                break;
            }
            if Instant::now() >= status_at {
                status_at = Instant::now() + STATUS_EVERY;
                self.write_status();
            }
        }
        if self.broken.is_none()
            && let Err(error) = self.writer.sync()
        {
            self.complain(error);
        }
        self.status.spooling_ended();
        self.write_status();
        self.broken.map_or(Ok(()), |error| Err(error.into()))
    }

    fn batch(&mut self, batch: &RawBatch) {
        debug_assert_eq!(batch.validate(), Ok(()));
        let samples = batch.samples.len() as u64;
        let run = batch.run.id;
        envelope::begin(Topic::StacksRaw, run, samples, &mut self.record);
        let value_at = self.record.len();
        codec::frame(codec::SCHEMA_ID_RAW_BATCH, &mut self.record);
        if let Err(error) = codec::encode_into(batch, &mut self.record) {
            tracing::error!(%error, %run, "a batch cannot be encoded");
            return self.refuse(run, DropReason::Undecodable, samples);
        }
        let bytes = self.record.len() - value_at;
        if bytes > MESSAGE_BYTES_MAX {
            // The bound in `batch.rs` excludes it; were it wrong, the bus would refuse the batch again and again.
            tracing::error!(bytes, limit = MESSAGE_BYTES_MAX, %run, "a batch is over the limit on messages");
            return self.refuse(run, DropReason::Rejected, samples);
        }
        if let Some(folder) = &self.capture {
            let file = folder.join(format!("{:08}.batch", self.captured));
            self.captured += 1;
            if let Err(error) = std::fs::write(&file, &self.record[value_at..]) {
                tracing::error!(%error, file = %file.display(), "a captured batch cannot be written");
            }
        }
        let needed = self.writer.used_bytes() + self.record.len() as u64 + EVENT_RESERVE_BYTES;
        if needed > self.size_limit_bytes {
            return self.refuse(run, DropReason::SpoolFull, samples);
        }
        match self.writer.append(&self.record) {
            Ok(_) => {
                failpoint::hit("spool.appended");
                let of_run = self.accounts.of(run);
                of_run.spooled += samples;
                of_run.batches += 1;
                self.status.spooled(samples, self.record.len() as u64);
            }
            Err(error) => {
                self.complain(error);
                self.refuse(run, DropReason::SpoolFull, samples);
            }
        }
    }

    fn refuse(&mut self, run: RunId, reason: DropReason, samples: u64) {
        self.accounts.of(run).refused.drop(reason, samples);
        self.status.dropped(reason, samples);
    }

    fn event(&mut self, event: Event) {
        let id = event.run.id;
        let is_last = event.state != RunState::Queued && event.state != RunState::Started;
        let of_run = self.accounts.of(id);
        let mut report = event.report;
        for &(reason, samples) in &of_run.refused.drops {
            report.drop(reason, samples);
        }
        let event = RunEvent {
            run: event.run,
            state: event.state as u8,
            time_us: event.time_us,
            detail: event.detail,
            taken: report.taken,
            spooled: of_run.spooled,
            idle: report.idle,
            batches: of_run.batches,
            drops: report.counts(),
            done_us: event.done_us,
        };
        if let Err(error) = self.append(Topic::Runs, id, &event) {
            tracing::error!(error, run = %id, "an event of the run is lost");
        }
        if is_last {
            self.accounts.of_run.remove(&id);
        }
    }

    fn said(&mut self, said: &Said) {
        // Of no run.
        let none = RunId([0; 16]);
        let appended = match said {
            Said::Coverage(record) => self.append(Topic::Coverage, none, record),
            Said::Host(record) => self.append(Topic::Hosts, none, record),
            Said::Audit(record) => self.append(Topic::Audit, none, record),
        };
        if let Err(error) = appended
            && self.status.may_complain()
        {
            let what = match said {
                Said::Audit(_) => "a record of the audit is lost",
                _ => "what became of slots is not spooled; it is told again with the next",
            };
            tracing::error!(error, "{what}");
        }
    }

    fn append<T: codec::Wire>(&mut self, topic: Topic, run: RunId, value: &T) -> Result<(), String> {
        envelope::begin(topic, run, 0, &mut self.record);
        codec::frame(T::SCHEMA_ID, &mut self.record);
        codec::encode_into(value, &mut self.record).map_err(|error| error.to_string())?;
        let appended = self.writer.append(&self.record).map(drop);
        appended.map_err(|error| error.to_string())
    }

    fn complain(&mut self, error: strobe_spool::Error) {
        // Once a second at most: a full disk would say so for every batch.
        if self.status.may_complain() {
            tracing::error!(%error, "the spool");
        }
        if error.needs_reopening() {
            self.broken.get_or_insert(error);
        }
    }

    fn write_status(&self) {
        if let Err(error) = self.status.write(&self.status_file, self.writer.used_bytes()) {
            tracing::warn!(%error, file = %self.status_file.display(), "the status cannot be written");
        }
    }
}
