//! The sink as a service: partitions come and go, and one range at a time is stored.
//!
//! One range at a time is enough: while it is stored the next ones grow, so that ranges are larger the busier it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strobe_bus::headers::SAMPLES;
use strobe_bus::{
    CommitError, Consumer, Event, Outcome as Sent, Outgoing, Partition, ResendingProducer, Shutdown, Topic,
    WindowFull, WindowLimits, dead_letter, failpoint,
};
use strobe_event::Part;

use crate::collect::{self, Range};
use crate::error::SinkError;
use crate::insert::{Reply, Store, StoredPart};
use crate::lane::{Kind, Lane, RANGE_MESSAGES_MAX, Stand};
use crate::pending::Note;
use crate::protocol::{self, Insert, Inserted, Outcome, World};
use crate::rows::WrittenRows;
use crate::settings::Settings;
use crate::stored::{Coverage, Known};
use crate::telemetry::SinkTelemetry;

/// Longest wait for a message while no range is ready.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// Messages read between two looks at a request under way.
const MESSAGES_PER_LOOK: usize = 256;

/// Longest time for the range under way when partitions go or the service stops; what is not done then is done by the
/// next owner. Well under half of the session timeout of 45 s, after which the group goes on without us.
const DRAIN: Duration = Duration::from_secs(10);

/// Time between two looks at the lag.
const LAG_EVERY: Duration = Duration::from_secs(15);

/// Runs the sink until the wish to stop.
///
/// # Errors
/// [`SinkError`] where it cannot start, or there is trouble that waiting does not heal.
pub fn run(settings: &Settings, shutdown: &Shutdown) -> Result<(), SinkError> {
    run_with(settings, shutdown, &Arc::new(SinkTelemetry::default()))
}

/// Like [`run`], with metrics that the caller can read meanwhile.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    settings: &Settings,
    shutdown: &Shutdown,
    telemetry: &Arc<SinkTelemetry>,
) -> Result<(), SinkError> {
    let bus = settings.bus.clone().with_client_id("strobe-sink");
    let store = Store::start(
        &settings.store,
        settings.request_time,
        Arc::clone(telemetry),
        shutdown,
    )?;
    let topics = [
        (bus.topic(Topic::Samples), Kind::Samples),
        (bus.topic(Topic::Runs), Kind::Runs),
        (bus.topic(Topic::Coverage), Kind::Coverage),
        (bus.topic(Topic::Audit), Kind::Audit),
    ];
    let names: Vec<&str> = topics.iter().map(|(name, _)| name.as_str()).collect();
    let mut sink = Sink {
        store,
        inbox: Inbox {
            consumer: Consumer::new(&bus, &settings.group, &names)?,
            topics: topics.clone(),
            settings,
            shutdown,
            telemetry,
            lanes: BTreeMap::new(),
            going: None,
            lost: false,
        },
        letters: ResendingProducer::new(&bus, WindowLimits::default())?,
        known: Known::default(),
        written: WrittenRows::default(),
    };
    tracing::info!(group = settings.group, "sink runs");
    let ended = sink.run();
    sink.inbox.consumer.stop();
    tracing::info!(
        samples = telemetry.samples.get(),
        ranges = telemetry.ranges.get(),
        repeats = telemetry.repeats.get(),
        dead_letters = telemetry.dead_letters.get(),
        "sink stopped"
    );
    ended
}

/// Why a range was left to whoever comes next.
enum Halt {
    /// The partition is somebody else's, or we stop.
    Left,
    /// The sink cannot go on.
    Failed(SinkError),
}

impl From<SinkError> for Halt {
    fn from(error: SinkError) -> Self {
        Self::Failed(error)
    }
}

impl From<strobe_bus::Error> for Halt {
    fn from(error: strobe_bus::Error) -> Self {
        Self::Failed(error.into())
    }
}

struct Sink<'a> {
    store: Store,
    inbox: Inbox<'a>,
    letters: ResendingProducer,
    known: Known,
    written: WrittenRows,
}

/// What comes in: it is polled also while a range is stored, so that the group does not take us for dead.
struct Inbox<'a> {
    consumer: Consumer,
    topics: [(String, Kind); 4],
    settings: &'a Settings,
    shutdown: &'a Shutdown,
    telemetry: &'a SinkTelemetry,
    lanes: BTreeMap<Partition, Lane>,
    /// When the range under way must be done: our partitions go at the next poll, or we stop.
    going: Option<Instant>,
    /// Our partitions are gone.
    lost: bool,
}

impl Sink<'_> {
    fn run(&mut self) -> Result<(), SinkError> {
        let mut lag_at = Instant::now() + LAG_EVERY;
        while !self.inbox.shutdown.is_requested() {
            // Also what was seen while a range was stored, and before the next poll: that may bring partitions anew.
            if self.inbox.lost || self.inbox.going.is_some() {
                self.forget();
            }
            let ready = self.inbox.ready();
            self.inbox.read(if ready.is_some() {
                Duration::ZERO
            } else {
                IDLE_WAIT
            })?;
            if self.inbox.lost || self.inbox.going.is_some() {
                continue;
            }
            self.inbox.look_up_positions()?;
            if let Some(partition) = self.inbox.ready() {
                match self.store_range(&partition) {
                    Ok(()) => {}
                    Err(Halt::Left) => {
                        self.inbox.lanes.remove(&partition);
                        self.known.clear();
                    }
                    Err(Halt::Failed(error)) => return Err(error),
                }
            }
            if Instant::now() >= lag_at {
                lag_at = Instant::now() + LAG_EVERY;
                self.inbox.look_at_lag();
            }
        }
        Ok(())
    }

    /// Forgets what belongs to partitions that go: the next owner starts from what is committed.
    fn forget(&mut self) {
        self.inbox.lanes.clear();
        self.inbox.going = None;
        self.inbox.lost = false;
        self.known.clear();
    }

    fn store_range(&mut self, partition: &Partition) -> Result<(), Halt> {
        let Some(lane) = self.inbox.lanes.get(partition) else {
            return Ok(());
        };
        match lane.stand.clone() {
            Stand::Unknown => Ok(()),
            Stand::TakeOver(named) => {
                tracing::info!(%partition, first = named.first, last = named.last, "taking over a range");
                let range = collect::remake_range(lane, &named);
                let telemetry = self.inbox.telemetry;
                telemetry.taken_over.add(1);
                if range.counts.missing > 0 {
                    telemetry.taken_over_missing.add(range.counts.missing);
                    tracing::error!(%partition, missing = range.counts.missing, "messages of a named range are gone");
                }
                self.carry_out(partition, range)
            }
            Stand::Free { attempt } => {
                let questions = collect::questions(lane, self.inbox.settings, &self.known);
                if !questions.is_empty() {
                    let asked = questions.clone();
                    let inbox = &mut self.inbox;
                    let Reply::Answered(parts) = self.store.ask(questions, || inbox.look())? else {
                        return Err(Halt::Left);
                    };
                    for question in asked {
                        self.known
                            .learn(question.spool, Coverage::known_from(question.from));
                    }
                    self.learn(parts);
                }
                let Some(lane) = self.inbox.lanes.get(partition) else {
                    return Err(Halt::Left);
                };
                let settings = self.inbox.settings;
                match collect::cut_range(lane, attempt, settings, &mut self.known, &self.written) {
                    Some(range) => self.carry_out(partition, range),
                    None => Ok(()),
                }
            }
        }
    }

    fn learn(&mut self, parts: Vec<StoredPart>) {
        for stored in parts {
            let (Ok(epoch), Some(part)) = (stored.epoch.parse(), Part::from_number(stored.part)) else {
                continue;
            };
            self.known.add(
                &(stored.host.into(), epoch),
                stored.sequence,
                part,
                stored.samples,
            );
        }
    }

    fn carry_out(&mut self, partition: &Partition, mut range: Range) -> Result<(), Halt> {
        self.bury(std::mem::take(&mut range.letters))?;
        let mut turn = Turn {
            store: &self.store,
            inbox: &mut self.inbox,
            partition,
        };
        let outcome = if range.inserts.is_empty() {
            turn.commit(range.pending.last + 1, "").map(|()| Outcome::Stored)
        } else {
            protocol::store(&mut turn, &range.pending, &range.inserts, range.undo.as_ref())
        }?;
        match outcome {
            Outcome::Stored => {
                self.inbox.stored(partition, &range);
                self.written.add(range.fresh);
            }
            Outcome::Rejected { reason, attempt } => {
                self.rejected(partition, range.messages, &reason, attempt)?
            }
        }
        Ok(())
    }

    /// Cuts the next range smaller, until the message to blame stands alone; then puts it aside.
    fn rejected(
        &mut self,
        partition: &Partition,
        messages: usize,
        reason: &str,
        attempt: u32,
    ) -> Result<(), Halt> {
        // What was noted as stored is not.
        self.known.clear();
        self.inbox.telemetry.rejected_ranges.add(1);
        tracing::warn!(%partition, messages, reason, "ClickHouse refused a range");
        let Some(lane) = self.inbox.lanes.get_mut(partition) else {
            return Ok(());
        };
        lane.stand = Stand::Free { attempt };
        if messages > 1 {
            lane.messages_max = messages / 2;
            return Ok(());
        }
        let Some(message) = lane.waiting().next().map(|waiting| waiting.message.clone()) else {
            return Ok(());
        };
        self.bury(vec![collect::rejected(&message, reason)])?;
        let mut turn = Turn {
            store: &self.store,
            inbox: &mut self.inbox,
            partition,
        };
        turn.commit(message.offset + 1, "")?;
        if let Some(lane) = self.inbox.lanes.get_mut(partition) {
            lane.pop(1);
            lane.stand = Stand::Free { attempt: 0 };
            lane.messages_max = RANGE_MESSAGES_MAX;
        }
        Ok(())
    }

    /// Sends dead letters and waits until the broker has them: only then may the position go behind them.
    fn bury(&mut self, letters: Vec<Outgoing>) -> Result<(), Halt> {
        let mut left = letters
            .into_iter()
            .enumerate()
            .map(|(index, letter)| (index as u64, letter));
        let mut next = left.next();
        while next.is_some() || self.letters.under_way() > 0 {
            while let Some((index, letter)) = next.take() {
                self.inbox.telemetry.dead_letters.add(1);
                self.inbox
                    .telemetry
                    .dead_letter_samples
                    .add(letter.headers.parsed(SAMPLES).unwrap_or(0));
                if let Err(WindowFull(letter)) = self.letters.push(index, letter) {
                    next = Some((index, letter));
                    break;
                }
                next = left.next();
            }
            for outcome in self.letters.poll(Duration::from_millis(20)) {
                let Sent::Refused {
                    opaque,
                    reason,
                    mut message,
                } = outcome
                else {
                    continue;
                };
                let value = message.payload.take();
                let Some(bytes) = value.map(|value| value.len()) else {
                    self.inbox.telemetry.dead_letters_lost.add(1);
                    tracing::error!(reason, "a dead letter is lost");
                    continue;
                };
                // Better a note that it died than nothing.
                message
                    .headers
                    .push(dead_letter::VALUE_LEFT_OUT, bytes.to_string());
                if self.letters.push(opaque, message).is_err() {
                    self.inbox.telemetry.dead_letters_lost.add(1);
                }
            }
            if !self.inbox.look()? {
                return Err(Halt::Left);
            }
        }
        Ok(())
    }
}

impl Inbox<'_> {
    /// Returns the partition whose range is ready and has waited longest.
    fn ready(&self) -> Option<Partition> {
        let now = Instant::now();
        let ready = |lane: &Lane| {
            lane.ready(self.settings, now)
                .map(|since| (since, lane.partition.clone()))
        };
        self.lanes
            .values()
            .filter_map(ready)
            .min()
            .map(|(_, partition)| partition)
    }

    /// Reads what is there, after a wait of at most `wait` for the first message.
    fn read(&mut self, wait: Duration) -> Result<(), SinkError> {
        self.telemetry.pulse.beat();
        let mut wait = wait;
        for _ in 0..MESSAGES_PER_LOOK {
            match self.consumer.poll(wait)? {
                Event::Idle => break,
                Event::Message(message) => {
                    if let Some(lane) = self.lanes.get_mut(&message.partition) {
                        self.telemetry.messages.add(1);
                        lane.push(message, Instant::now());
                    }
                }
                Event::Assigned(partitions) => {
                    tracing::info!(?partitions, "partitions assigned");
                    self.telemetry.assignments.add(1);
                    let kind = |partition: &Partition| {
                        self.topics
                            .iter()
                            .find(|(name, _)| **name == *partition.topic)
                            .map(|(_, kind)| *kind)
                    };
                    self.lanes = partitions
                        .into_iter()
                        .filter_map(|partition| {
                            Some((partition.clone(), Lane::new(partition.clone(), kind(&partition)?)))
                        })
                        .collect();
                }
                Event::Revoked(partitions) => {
                    tracing::info!(?partitions, "partitions revoked");
                    self.going = Some(Instant::now() + DRAIN);
                    return Ok(());
                }
                Event::Lost(partitions) => {
                    tracing::warn!(?partitions, "partitions lost");
                    self.telemetry.assignments_lost.add(1);
                    self.lost = true;
                    return Ok(());
                }
            }
            wait = Duration::ZERO;
        }
        self.press_back()
    }

    /// Pauses partitions of which enough waits here, and resumes those of which too little does.
    fn press_back(&mut self) -> Result<(), SinkError> {
        let all_bytes = self.lanes.values().map(Lane::bytes).sum();
        self.telemetry.window_bytes.set(all_bytes as u64);
        for lane in self.lanes.values_mut() {
            let pause = lane.wants_pause(self.settings, all_bytes);
            if pause == lane.paused {
                continue;
            }
            let partition = std::slice::from_ref(&lane.partition);
            if pause {
                self.consumer.pause(partition)?
            } else {
                self.consumer.resume(partition)?
            }
            lane.paused = pause;
        }
        Ok(())
    }

    /// Looks after the bus while a range is stored; returns whether that may go on.
    fn look(&mut self) -> Result<bool, SinkError> {
        if self.lost {
            return Ok(false);
        }
        if self.going.is_none() && self.shutdown.is_requested() {
            self.going = Some(Instant::now() + DRAIN);
        }
        match self.going {
            // No poll here: the next one gives the partitions up.
            Some(until) => Ok(Instant::now() < until),
            None => {
                self.read(Duration::ZERO)?;
                Ok(!self.lost)
            }
        }
    }

    /// Reads what is committed for partitions that are new.
    fn look_up_positions(&mut self) -> Result<(), SinkError> {
        for lane in self
            .lanes
            .values_mut()
            .filter(|lane| lane.stand == Stand::Unknown)
        {
            let committed = match self.consumer.committed(&lane.partition) {
                Ok(committed) => committed,
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, partition = %lane.partition, "position is asked for again");
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            let note = committed.map_or(Ok(Note::Free { attempt: 0 }), |(first, text)| {
                Note::parse(first, &text)
            });
            lane.stand = match note {
                Ok(Note::Free { attempt }) => Stand::Free { attempt },
                Ok(Note::Pending(pending)) => Stand::TakeOver(pending),
                Err(unreadable) => {
                    return Err(SinkError::Note {
                        partition: lane.partition.to_string(),
                        source: unreadable,
                    });
                }
            };
        }
        Ok(())
    }

    fn stored(&mut self, partition: &Partition, range: &Range) {
        let (counts, telemetry) = (&range.counts, self.telemetry);
        telemetry.ranges.add(1);
        telemetry.batches.add(counts.batches);
        telemetry.samples.add(counts.samples);
        telemetry.runs.add(counts.runs);
        telemetry.coverage.add(counts.coverage);
        telemetry.audit.add(counts.audit);
        telemetry.repeats.add(counts.repeats);
        telemetry.repeated_samples.add(counts.repeated_samples);
        telemetry.cut.add(counts.cut);
        if let Some(lane) = self.lanes.get_mut(partition) {
            lane.pop(range.messages);
            lane.stand = Stand::Free { attempt: 0 };
            lane.messages_max = (2 * lane.messages_max).min(RANGE_MESSAGES_MAX);
        }
    }

    fn look_at_lag(&self) {
        match self.consumer.lag() {
            Ok(lags) => self
                .telemetry
                .lag_messages
                .set(lags.iter().map(strobe_bus::consumer::Lag::messages).sum()),
            Err(error) => tracing::warn!(%error, "the lag is not known"),
        }
    }
}

/// The world of one range.
struct Turn<'a, 'b> {
    store: &'a Store,
    inbox: &'a mut Inbox<'b>,
    partition: &'a Partition,
}

impl World for Turn<'_, '_> {
    type Halt = Halt;

    fn commit(&mut self, next: i64, note: &str) -> Result<(), Halt> {
        loop {
            // A change of assignment that was already seen: what was read belongs to an older one.
            if self.inbox.lost || !self.inbox.lanes.contains_key(self.partition) {
                return Err(Halt::Left);
            }
            match self.inbox.consumer.commit(self.partition, next, note) {
                Ok(()) => return Ok(()),
                Err(error @ CommitError::Fenced { .. }) => {
                    self.inbox.telemetry.commits_fenced.add(1);
                    tracing::warn!(%error, "the range is left to the partition's owner");
                    return Err(Halt::Left);
                }
                Err(error) if error.is_transient() => tracing::warn!(%error, "commit is tried again"),
                Err(error) => return Err(Halt::Failed(error.into())),
            }
            if !self.inbox.look()? {
                return Err(Halt::Left);
            }
        }
    }

    fn insert(&mut self, insert: &Insert) -> Result<Inserted, Halt> {
        let inbox = &mut *self.inbox;
        match self.store.insert(insert, || inbox.look())? {
            Reply::Answered(inserted) => Ok(inserted),
            Reply::Withdrawn => Err(Halt::Left),
        }
    }

    fn passes(&mut self, point: &str) {
        failpoint::hit(point);
    }
}
