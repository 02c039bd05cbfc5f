//! Delivery, written once: consumer, pure stage, producer, commit.
//!
//! One thread polls, sends, takes acknowledgements and commits; another runs the stage, message after message, so the
//! order within a partition is kept and a slow stage never keeps the consumer from polling. What is under way is
//! bounded: when the window is full the partitions are paused, and polling goes on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::{Bench, CloseOnDrop, Job};
use crate::consumer::{CommitError, Consumer, Event};
use crate::dead_letter::{self, Complaint, DeadReason};
use crate::error::Error;
use crate::failpoint;
use crate::headers::SAMPLES;
use crate::message::{Message, Outgoing, Partition};
use crate::progress::Progress;
use crate::resend::{Outcome, ResendingProducer, WindowFull};
use crate::shutdown::Shutdown;
use crate::telemetry::DriveTelemetry;
use crate::topics::MESSAGE_BYTES_MAX;

/// What a stage makes of a message.
#[derive(Debug)]
pub enum StageResult {
    /// These messages; the input is done when the broker has them all.
    Output(Vec<Outgoing>),
    /// It cannot be processed, and why: it goes to the dead letters.
    DeadLetter(Complaint),
    /// Nothing comes of it, and that is right.
    Skip,
    /// It cannot be processed now, and the service stops: whoever comes next does it. Nothing behind it is committed.
    Leave,
}

/// How a stage is driven.
#[derive(Debug, Clone)]
pub struct DriveSettings {
    /// The stage's name, in logs and in dead letters.
    pub stage: &'static str,
    /// Bytes of input under way.
    pub window_bytes: usize,
    /// Messages under way.
    pub window_messages: usize,
    /// Shortest time between two commits of a partition: what a crash repeats at most, on top of the window.
    pub commit_every: Duration,
    /// Longest wait for what is under way when partitions go or the service stops; the rest is repeated by the next
    /// owner.
    pub drain: Duration,
}

impl DriveSettings {
    /// Returns the defaults for a stage.
    pub fn new(stage: &'static str) -> Self {
        Self {
            stage,
            // 256 batches of the largest size an agent closes.
            window_bytes: 64 << 20,
            window_messages: 4_096,
            commit_every: Duration::from_millis(200),
            // Well under half of the session timeout of 45 s, after which the group goes on without us.
            drain: Duration::from_secs(10),
        }
    }
}

/// Sleep between two looks while something is under way: what it adds to the latency of a batch at most.
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// Sleep while nothing is: how late a wish to stop is seen.
const IDLE_WAIT: Duration = Duration::from_millis(100);

struct Work {
    message: Arc<Message>,
    /// Outputs that the broker has not acknowledged.
    outputs_left: usize,
    /// Whether it went to the dead letters.
    aside: bool,
    /// Whether it stays undone: the next owner's.
    left: bool,
}

struct Loop<'a> {
    settings: &'a DriveSettings,
    consumer: Consumer,
    producer: ResendingProducer,
    telemetry: &'a DriveTelemetry,
    bench: &'a Bench,
    progress: Progress,
    work: HashMap<u64, Work>,
    /// Outputs for which the producer's window had no room; no further result is taken while there are any.
    outbox: VecDeque<(u64, Outgoing)>,
    assigned: Vec<Partition>,
    paused: bool,
    commit_at: Instant,
}

/// Runs `stage` over the messages of `consumer` until the wish to stop, then finishes what is under way and leaves the
/// group. Every message ends in exactly one of: acknowledged outputs, a dead letter, skipped; only then is it committed.
pub fn drive(
    settings: &DriveSettings,
    consumer: Consumer,
    producer: ResendingProducer,
    telemetry: &DriveTelemetry,
    shutdown: &Shutdown,
    stage: impl FnMut(&Message) -> StageResult + Send,
) -> Result<(), Error> {
    let bench = Bench::new(settings.window_bytes);
    std::thread::scope(|scope| {
        let _close = CloseOnDrop(&bench);
        std::thread::Builder::new()
            .name(settings.stage.into())
            .spawn_scoped(scope, || bench.work(settings.stage, stage))
            .map_err(|source| Error::Os {
                doing: "starting the stage's thread",
                source,
            })?;
        let mut work = Loop {
            settings,
            consumer,
            producer,
            telemetry,
            bench: &bench,
            progress: Progress::default(),
            work: HashMap::new(),
            outbox: VecDeque::new(),
            assigned: Vec::new(),
            paused: false,
            commit_at: Instant::now(),
        };
        let ended = work.run(shutdown);
        // Also after an error: what is done should not be done again.
        work.drain();
        let committed = work.commit();
        work.consumer.stop();
        ended.and(committed)
    })
}

impl Loop<'_> {
    fn run(&mut self, shutdown: &Shutdown) -> Result<(), Error> {
        while !shutdown.is_requested() {
            self.telemetry.pulse.beat();
            self.take_results();
            self.take_acknowledgements(Duration::ZERO);
            if Instant::now() >= self.commit_at {
                self.commit()?;
            }
            self.press_back()?;
            let wait = if self.work.is_empty() {
                IDLE_WAIT
            } else {
                BUSY_WAIT
            };
            match self.consumer.poll(wait)? {
                Event::Message(message) => self.admit(message),
                Event::Assigned(partitions) => {
                    tracing::info!(stage = self.settings.stage, ?partitions, "partitions assigned");
                    self.telemetry.assignments.add(1);
                    self.assigned = partitions;
                    self.paused = false;
                }
                Event::Revoked(partitions) => {
                    tracing::info!(stage = self.settings.stage, ?partitions, "partitions revoked");
                    self.drain();
                    self.commit()?;
                    self.forget();
                }
                Event::Lost(partitions) => {
                    tracing::warn!(stage = self.settings.stage, ?partitions, "partitions lost");
                    self.telemetry.assignments_lost.add(1);
                    self.forget();
                }
                Event::Idle => {}
            }
        }
        Ok(())
    }

    fn admit(&mut self, message: Message) {
        self.telemetry.messages_in.add(1);
        let ticket = self
            .progress
            .admit(&message.partition, message.offset, message.cost());
        self.telemetry.window_bytes.set(self.progress.bytes() as u64);
        let bytes = message.bytes().len();
        let message = Arc::new(message);
        self.work.insert(
            ticket,
            Work {
                message: Arc::clone(&message),
                outputs_left: 0,
                aside: false,
                left: false,
            },
        );
        if bytes > MESSAGE_BYTES_MAX {
            let complaint = Complaint {
                reason: DeadReason::Oversized,
                stage: self.settings.stage,
                class: module_path!(),
                exception: "MessageTooLarge",
                message: format!("value of {bytes} bytes is over the limit of {MESSAGE_BYTES_MAX}"),
            };
            self.put_aside(ticket, &complaint);
        } else {
            self.bench.submit(Job { ticket, message });
        }
    }

    /// Takes what the stage made and hands it to the producer, as far as its window goes.
    fn take_results(&mut self) {
        loop {
            self.send_outbox();
            if !self.outbox.is_empty() {
                return;
            }
            let Some(done) = self.bench.take_result() else {
                return;
            };
            let Some(work) = self.work.get_mut(&done.ticket) else {
                continue;
            };
            match done.result {
                StageResult::Output(outputs) if !outputs.is_empty() => {
                    work.outputs_left = outputs.len();
                    self.outbox
                        .extend(outputs.into_iter().map(|output| (done.ticket, output)));
                }
                StageResult::Output(_) | StageResult::Skip => {
                    self.telemetry.skipped.add(1);
                    self.finish(done.ticket);
                }
                StageResult::DeadLetter(complaint) => self.put_aside(done.ticket, &complaint),
                StageResult::Leave => work.left = true,
            }
        }
    }

    fn send_outbox(&mut self) {
        while let Some((ticket, output)) = self.outbox.pop_front() {
            if let Err(WindowFull(output)) = self.producer.push(ticket, output) {
                self.outbox.push_front((ticket, output));
                return;
            }
        }
    }

    fn take_acknowledgements(&mut self, timeout: Duration) {
        for outcome in self.producer.poll(timeout) {
            let ticket = outcome.opaque();
            match outcome {
                Outcome::Acknowledged { .. } => self.count_down(ticket),
                Outcome::Refused { reason, message, .. } => self.refused(ticket, reason, message),
            }
        }
    }

    /// One output of a message is where it belongs.
    fn count_down(&mut self, ticket: u64) {
        let Some(work) = self.work.get_mut(&ticket) else {
            return;
        };
        work.outputs_left = work.outputs_left.saturating_sub(1);
        if !work.aside {
            self.telemetry.messages_out.add(1);
        }
        if work.outputs_left == 0 {
            self.finish(ticket);
        }
    }

    /// The broker will never take this output: its input is put aside; a dead letter is tried once more without value.
    fn refused(&mut self, ticket: u64, reason: String, message: Outgoing) {
        let Some(work) = self.work.get(&ticket) else {
            return;
        };
        let input = &work.message;
        if dead_letter::is_dead_letter(&message) {
            if message.payload.is_some() {
                self.telemetry.dead_letters_without_value.add(1);
                self.outbox
                    .push_back((ticket, dead_letter::without_value(message)));
                return;
            }
            self.telemetry.dead_letters_lost.add(1);
            tracing::error!(partition = %input.partition, offset = input.offset, reason, "a dead letter is lost");
        } else if !work.aside {
            let complaint = Complaint {
                reason: DeadReason::Refused,
                stage: self.settings.stage,
                class: module_path!(),
                exception: "Refused",
                message: format!("`{}` refused the output: {reason}", message.topic),
            };
            // The dead letter takes the place of this output in the count of those that are left.
            return self.aside(ticket, &complaint);
        }
        self.count_down(ticket);
    }

    fn put_aside(&mut self, ticket: u64, complaint: &Complaint) {
        if let Some(work) = self.work.get_mut(&ticket) {
            work.outputs_left += 1;
        }
        self.aside(ticket, complaint);
    }

    fn aside(&mut self, ticket: u64, complaint: &Complaint) {
        let Some(work) = self.work.get_mut(&ticket) else {
            return;
        };
        let message = &work.message;
        tracing::warn!(
            stage = self.settings.stage,
            partition = %message.partition,
            offset = message.offset,
            reason = complaint.reason.name(),
            detail = complaint.message,
            "put aside"
        );
        self.telemetry.dead_letters.add(1);
        self.telemetry
            .dead_letter_samples
            .add(message.headers.parsed(SAMPLES).unwrap_or(0));
        work.aside = true;
        self.outbox
            .push_back((ticket, dead_letter::wrap(message, complaint)));
    }

    fn finish(&mut self, ticket: u64) {
        self.work.remove(&ticket);
        self.progress.finish(ticket);
        self.telemetry.window_bytes.set(self.progress.bytes() as u64);
    }

    /// Commits what is done.
    fn commit(&mut self) -> Result<(), Error> {
        self.commit_at = Instant::now() + self.settings.commit_every;
        for (partition, next) in self.progress.due() {
            failpoint::hit("drive.acknowledged_before_commit");
            // Only now: a crash between the acknowledgement and this line repeats a batch; the other way round it
            // would lose one.
            match self.consumer.commit(&partition, next, "") {
                Ok(()) => {
                    self.telemetry.commits.add(1);
                    self.progress.committed(&partition, next);
                }
                Err(error @ CommitError::Fenced { .. }) => {
                    // What is under way stays in the books: until the loss is told by a poll, messages that are read
                    // must not be committed over it.
                    tracing::warn!(%error, "somebody else goes on from the last commit");
                    self.telemetry.commits_fenced.add(1);
                    return Ok(());
                }
                Err(error @ CommitError::Unanswered { .. }) => {
                    tracing::warn!(%error, "committing again later");
                    self.telemetry.commits_unanswered.add(1);
                    return Ok(());
                }
                Err(CommitError::Refused { source, .. }) => {
                    return Err(Error::Kafka {
                        doing: "committing",
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Pauses reading while the window is full, until it is half empty: resuming drops what was fetched ahead.
    fn press_back(&mut self) -> Result<(), Error> {
        let settings = self.settings;
        let (bytes, messages) = (self.progress.bytes(), self.progress.messages());
        if !self.paused && (bytes >= settings.window_bytes || messages >= settings.window_messages) {
            self.consumer.pause(&self.assigned)?;
            self.paused = true;
            self.telemetry.pauses.add(1);
        } else if self.paused
            && bytes <= settings.window_bytes / 2
            && messages <= settings.window_messages / 2
        {
            self.consumer.resume(&self.assigned)?;
            self.paused = false;
        }
        Ok(())
    }

    /// Takes back what the stage has not begun, and waits, within bounds, for the rest.
    fn drain(&mut self) {
        for ticket in self.bench.withdraw() {
            self.progress.cut(ticket);
        }
        let Self { work, progress, .. } = self;
        work.retain(|ticket, _| progress.has(*ticket));
        let deadline = Instant::now() + self.settings.drain;
        while self.work.values().any(|work| !work.left) && Instant::now() < deadline {
            self.take_results();
            self.take_acknowledgements(BUSY_WAIT);
        }
        if !self.work.is_empty() {
            let left = self.work.len();
            tracing::warn!(left, "not everything was done; the next owner repeats it");
        }
    }

    fn forget(&mut self) {
        self.bench.withdraw();
        self.progress.clear();
        self.work.clear();
        self.outbox.clear();
        self.assigned.clear();
        self.paused = false;
        self.telemetry.window_bytes.set(0);
    }
}
