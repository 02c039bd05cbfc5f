//! The spooling thread: closed batches → the spool. Stage 8, and the accounting of the run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use strobe_bus::Topic;
use strobe_event::codec;
use strobe_event::{DropCount, DropReason, RawBatch, RunEvent, RunHead, RunState};
use strobe_spool::Writer;

use crate::envelope;
use crate::failpoint;
use crate::status::Status;

/// Batches that may wait for the disk: two minutes of a quiet host, or some seconds of the highest rate.
pub const QUEUE: usize = 64;
/// Room that batches leave for the events of runs: thousands of them, so that the accounting gets through a full spool.
const EVENT_RESERVE_BYTES: u64 = 1 << 20;
/// Pause in which the disk is synced and the status written.
const TICK: Duration = Duration::from_millis(100);
const STATUS_EVERY: Duration = Duration::from_secs(2);

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
    Event {
        /// The run.
        run: Box<RunHead>,
        /// What.
        state: RunState,
        /// When, microseconds since 1970.
        time_us: u64,
        /// Time sampled, microseconds.
        done_us: u64,
        /// The accounting of the sampling thread.
        report: Report,
    },
}

/// The thread's state.
pub struct Spooling {
    writer: Writer,
    size_limit_bytes: u64,
    capture: Option<PathBuf>,
    status_file: PathBuf,
    status: Arc<Status>,
    /// Of the run under way.
    spooled: u64,
    batches: u64,
    refused: u64,
    refused_for: DropReason,
    record: Vec<u8>,
    captured: u64,
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
            spooled: 0,
            batches: 0,
            refused: 0,
            refused_for: DropReason::SpoolFull,
            record: Vec::new(),
            captured: 0,
        }
    }

    /// Takes what comes until the sampling thread has ended.
    pub fn run(mut self, from: &Receiver<ToSpool>) {
        let mut status_at = Instant::now();
        loop {
            match from.recv_timeout(TICK) {
                Ok(ToSpool::Batch(batch)) => self.batch(&batch),
                Ok(ToSpool::Event {
                    run,
                    state,
                    time_us,
                    done_us,
                    report,
                }) => {
                    self.event(*run, state, time_us, done_us, report);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Err(error) = self.writer.sync_if_due() {
                self.complain(&error);
            }
            if Instant::now() >= status_at {
                status_at = Instant::now() + STATUS_EVERY;
                self.write_status();
            }
        }
        if let Err(error) = self.writer.sync() {
            self.complain(&error);
        }
        self.status.spooling_ended();
        self.write_status();
    }

    fn batch(&mut self, batch: &RawBatch) {
        let samples = batch.samples.len() as u64;
        envelope::begin(Topic::StacksRaw, batch.run.id, samples, &mut self.record);
        let value_at = self.record.len();
        codec::frame(codec::SCHEMA_ID_RAW_BATCH, &mut self.record);
        if let Err(error) = codec::encode_into(batch, &mut self.record) {
            tracing::error!(%error, run = %batch.run.id, "a batch cannot be encoded");
            return self.refuse(DropReason::Undecodable, samples);
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
            return self.refuse(DropReason::SpoolFull, samples);
        }
        match self.writer.append(&self.record) {
            Ok(_) => {
                failpoint::hit("spool.appended");
                self.spooled += samples;
                self.batches += 1;
                self.status.spooled(samples, self.record.len() as u64);
            }
            Err(error) => {
                self.complain(&error);
                self.refuse(DropReason::SpoolFull, samples);
            }
        }
    }

    fn refuse(&mut self, reason: DropReason, samples: u64) {
        self.refused += samples;
        self.refused_for = reason;
        self.status.dropped(reason, samples);
    }

    fn event(&mut self, run: RunHead, state: RunState, time_us: u64, done_us: u64, mut report: Report) {
        if state == RunState::Started {
            (self.spooled, self.batches, self.refused) = (0, 0, 0);
        }
        report.drop(self.refused_for, self.refused);
        let id = run.id;
        let event = RunEvent {
            run,
            state: state as u8,
            time_us,
            detail: String::new(),
            taken: report.taken,
            spooled: self.spooled,
            idle: report.idle,
            batches: self.batches,
            drops: report
                .drops
                .iter()
                .map(|&(reason, samples)| DropCount {
                    reason: reason as u8,
                    samples,
                })
                .collect(),
            done_us,
        };
        envelope::begin(Topic::Runs, id, 0, &mut self.record);
        codec::frame(codec::SCHEMA_ID_RUN_EVENT, &mut self.record);
        let appended = match codec::encode_into(&event, &mut self.record) {
            Ok(()) => self
                .writer
                .append(&self.record)
                .map(drop)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = appended {
            tracing::error!(error, run = %id, "an event of the run is lost");
        }
    }

    fn complain(&self, error: &strobe_spool::Error) {
        // Once a second at most: a full disk would say so for every batch.
        if self.status.may_complain() {
            tracing::error!(%error, "the spool");
        }
    }

    fn write_status(&self) {
        if let Err(error) = self.status.write(&self.status_file, self.writer.used_bytes()) {
            tracing::warn!(%error, file = %self.status_file.display(), "the status cannot be written");
        }
    }
}
