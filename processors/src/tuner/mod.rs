//! The tuner as a service: coverage in, plans out. `strobe run tuner`.
//!
//! All of its state is on the bus. What it knows of a target travels as `strobe.tuner`, the plan as `strobe.plans`, which hosts
//! there are comes from `strobe.hosts`, what is desired from `strobe.config`, as far as whoever signed it may say so. Coverage is read as a member of a group; on every
//! change of assignment it starts over: the states are read again, and coverage from [`REWIND_US`] before what was committed,
//! so that the hours so far are known; what a state has counted, it does not count again. Any number of tuners share the
//! partitions, and a restart changes nothing.

mod desired;
mod publish;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strobe_bus::{
    CommitError, Consumer, Event, Message, Meta, Partition, ResendingProducer, Shutdown, Topic, WindowLimits,
};
use strobe_event::{CoverageRecord, WHOLE_HOST, codec};
use strobe_sampling::coverage::Coverage;
use strobe_sampling::plan::Bounds;
use strobe_sampling::spread::RunSums;

use crate::config::TunerSettings;
use crate::error::ProcessorError;
use crate::service::now_us;
use crate::telemetry::TunerTelemetry;
use crate::tune::{Fate, REWIND_US, Reported, Target, Tune};
use publish::Publisher;
use world::World;

/// Longest wait for a message: how late a window closes, and a wish to stop is seen.
const WAIT: Duration = Duration::from_millis(200);
/// Messages taken in between two looks at what can be closed.
const MESSAGES_PER_LOOK: usize = 4_096;
/// Shortest time between two commits: what a crash reads again at most, beside what it reads again anyway.
const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks at the lag.
const LAG_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two questions whether anything is desired by now.
const LEARN_EVERY: Duration = Duration::from_secs(1);
/// The same after the bus has not answered: each question may then take ten seconds.
const LEARN_AGAIN: Duration = Duration::from_secs(60);
/// Pause before a position is asked for again.
const RETRY: Duration = Duration::from_millis(500);

/// Runs the tuner until the wish to stop.
///
/// # Errors
/// [`ProcessorError`] where it cannot start, or the bus has trouble that waiting does not heal.
pub fn run(settings: &TunerSettings, shutdown: &Shutdown) -> Result<(), ProcessorError> {
    run_with(settings, shutdown, &TunerTelemetry::default())
}

/// Like [`run`], with metrics that the caller can read meanwhile.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    settings: &TunerSettings,
    shutdown: &Shutdown,
    telemetry: &TunerTelemetry,
) -> Result<(), ProcessorError> {
    let bus = settings.bus.clone().with_client_id("strobe-tuner").prompt();
    let mut service = Service {
        consumer: Consumer::new(&bus, &settings.group, &[&bus.topic(Topic::Coverage)])?,
        world: World::new(Arc::clone(&settings.signers)),
        publisher: Publisher::new(&bus, ResendingProducer::new(&bus, WindowLimits::default())?),
        tune: Tune::default(),
        positions: BTreeMap::new(),
        learn_at: Instant::now(),
        telemetry,
        shutdown,
    };
    service.world.open(&bus, shutdown)?;
    tracing::info!(group = settings.group, "tuner runs");
    let ended = service.run();
    let left = service.publisher.flush().and_then(|()| service.commit());
    service.consumer.stop();
    tracing::info!(
        records = telemetry.records.get(),
        refused = telemetry.refused.get(),
        windows = telemetry.windows.get(),
        plans = telemetry.plans.get(),
        "tuner stopped"
    );
    ended.and(left)
}

/// How far a partition was read.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The offset to read next.
    next: i64,
    /// When the message before it was written, milliseconds since 1970.
    time_ms: i64,
    committed: i64,
}

struct Service<'a> {
    consumer: Consumer,
    world: World,
    publisher: Publisher,
    tune: Tune,
    positions: BTreeMap<Partition, Position>,
    /// When it may be asked again whether anything is desired of a profiler of which nothing was.
    learn_at: Instant,
    telemetry: &'a TunerTelemetry,
    shutdown: &'a Shutdown,
}

impl Service<'_> {
    fn run(&mut self) -> Result<(), ProcessorError> {
        let mut commit_at = Instant::now() + COMMIT_EVERY;
        let mut lag_at = Instant::now() + LAG_EVERY;
        while !self.shutdown.is_requested() {
            self.telemetry.pulse.beat();
            self.world.poll()?;
            self.audit()?;
            self.read()?;
            self.close()?;
            if Instant::now() >= commit_at {
                commit_at = Instant::now() + COMMIT_EVERY;
                // What is committed is never asked for again: only what the broker has may be.
                self.publisher.flush()?;
                self.commit()?;
            }
            if Instant::now() >= lag_at {
                lag_at = Instant::now() + LAG_EVERY;
                match self.consumer.lag() {
                    Ok(lags) => {
                        let messages = lags.iter().map(strobe_bus::consumer::Lag::messages).sum();
                        self.telemetry.lag_messages.set(messages);
                    }
                    Err(error) => tracing::debug!(%error, "the lag cannot be asked for"),
                }
            }
        }
        Ok(())
    }

    fn audit(&mut self) -> Result<(), ProcessorError> {
        let (records, refused) = self.world.take_said();
        self.telemetry.configs_refused.add(refused);
        records.iter().try_for_each(|record| self.publisher.audit(record))
    }

    fn read(&mut self) -> Result<(), ProcessorError> {
        let mut wait = WAIT;
        for _ in 0..MESSAGES_PER_LOOK {
            match self.consumer.poll(wait)? {
                Event::Message(message) => self.take(&message),
                Event::Assigned(partitions) => {
                    tracing::info!(?partitions, "partitions assigned");
                    self.start_over(&partitions)?;
                }
                Event::Revoked(partitions) => {
                    tracing::info!(?partitions, "partitions revoked");
                    self.publisher.flush()?;
                    self.commit()?;
                    self.forget();
                }
                Event::Lost(partitions) => {
                    tracing::warn!(?partitions, "partitions lost");
                    self.forget();
                }
                Event::Idle => break,
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.tune = Tune::default();
        self.positions.clear();
    }

    /// Goes on from the states on the bus, and reads coverage from before what was committed.
    fn start_over(&mut self, partitions: &[Partition]) -> Result<(), ProcessorError> {
        self.forget();
        self.world
            .catch_up_at_last(self.shutdown, || self.telemetry.pulse.beat())?;
        for (target, known) in self.world.tuners() {
            self.tune.restore(target, known);
        }
        self.publisher.know(self.world.states());
        for partition in partitions {
            loop {
                match self.rewind(partition) {
                    Ok(()) => break,
                    Err(error) if error.is_transient() && !self.shutdown.is_requested() => {
                        tracing::warn!(%error, %partition, "the position is asked for again");
                        self.shutdown.wait_timeout(RETRY);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn rewind(&self, partition: &Partition) -> Result<(), strobe_bus::Error> {
        let Some((committed, note)) = self.consumer.committed(partition)? else {
            return Ok(());
        };
        // The time stands beside the position. Without one everything that is kept is read again.
        let time_ms: i64 = note.parse().unwrap_or(0);
        let from_ms = time_ms.saturating_sub((REWIND_US / 1_000) as i64);
        let from = self.consumer.offset_at(partition, from_ms)?.min(committed);
        self.consumer.seek(partition, from)
    }

    fn take(&mut self, message: &Message) {
        let time_ms = message.timestamp_ms.unwrap_or(0);
        let position = self
            .positions
            .entry(message.partition.clone())
            .or_insert(Position {
                next: 0,
                time_ms: 0,
                committed: -1,
            });
        position.next = message.offset + 1;
        position.time_ms = position.time_ms.max(time_ms);
        self.telemetry.records.add(1);
        // What cannot be read, the sink puts aside: it reads the same topic.
        let (Ok(meta), Ok(record)) = (
            Meta::from_headers(&message.headers),
            codec::decode_framed::<CoverageRecord>(message.bytes()),
        ) else {
            return self.telemetry.refused.add(1);
        };
        if record.service == WHOLE_HOST {
            return;
        }
        let Some(bounds) = self.bounds(&record.profiler) else {
            return;
        };
        if !record.slot_us.is_multiple_of(bounds.slot.us()) {
            // A run that ended with its agent, of a host that runs all of the time until it has a plan.
            return self.telemetry.other_slots.add(1);
        }
        let record = reported(meta, record, message.offset);
        if self.world.desired(&record.target).is_none() {
            // Of other services than those of which anything is desired: their windows would never be closed.
            return;
        }
        let fate = self.tune.take(record, bounds.slot, now_us());
        match fate {
            Fate::Counted | Fate::Repeated => {}
            Fate::TooLate => self.telemetry.too_late.add(1),
            Fate::TooManyHosts => self.telemetry.too_many_hosts.add(1),
            Fate::Refused(error) => {
                self.telemetry.refused.add(1);
                tracing::warn!(%error, "a record of coverage is refused");
            }
        }
    }

    /// Returns the bounds of a profiler of which anything is desired. What was said of that may be newer than the last look.
    fn bounds(&mut self, profiler: &str) -> Option<Bounds> {
        let known = self.world.bounds(profiler);
        if known.is_some() || Instant::now() < self.learn_at {
            return known;
        }
        let learned = self.world.catch_up();
        // From its end on, since the records behind this one must not wait each.
        self.learn_at = Instant::now()
            + match learned {
                Ok(()) => LEARN_EVERY,
                Err(_) => LEARN_AGAIN,
            };
        if let Err(error) = learned {
            tracing::warn!(%error, profiler, "whether anything is desired is asked for again");
        }
        self.world.bounds(profiler)
    }

    fn close(&mut self) -> Result<(), ProcessorError> {
        self.publisher.poll();
        let world = &self.world;
        let can_close = self.tune.can_close(
            |target| world.desired(target).is_some(),
            |target| world.live_hosts(target),
        );
        if !can_close {
            return Ok(());
        }
        // Hosts say that they live before they report, on another topic: whoever is not known yet would be missing here.
        match self.world.catch_up() {
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "windows wait until it is known which hosts live");
                return Ok(());
            }
            other => other?,
        }
        let world = &self.world;
        let slot = world.slot();
        let tuned = self.tune.close(
            |target| world.desired(target),
            |target| world.live_hosts(target),
            slot,
        );
        // Of several windows of a target only the last says what is in force.
        let mut last = BTreeMap::new();
        for tuned in tuned {
            self.telemetry.windows.add(1);
            self.telemetry.doubted.add(tuned.doubted.len() as u64);
            last.insert(tuned.target.clone(), tuned);
        }
        for tuned in last.into_values() {
            let plans = self.publisher.publish(&tuned, world)?;
            self.telemetry.plans.add(plans);
        }
        // At once: hosts wait for it, and nothing that could be sent along comes for minutes.
        self.publisher.flush()
    }

    fn commit(&mut self) -> Result<(), ProcessorError> {
        for (partition, position) in &mut self.positions {
            if position.next <= position.committed {
                continue;
            }
            match self
                .consumer
                .commit(partition, position.next, &position.time_ms.to_string())
            {
                Ok(()) => position.committed = position.next,
                Err(error @ CommitError::Fenced { .. }) => {
                    tracing::warn!(%error, "the partition has another owner");
                }
                Err(error) if error.is_transient() => tracing::warn!(%error, "commit is tried again"),
                Err(error) => return Err(ProcessorError::Commit(error)),
            }
        }
        Ok(())
    }
}

fn reported(meta: Meta, record: CoverageRecord, offset: i64) -> Reported {
    Reported {
        target: Target {
            service: record.service,
            profiler: record.profiler,
        },
        host: record.host,
        epoch: meta.identity.epoch,
        hour: record.hour,
        until_us: record.until_us,
        slot_us: record.slot_us,
        offset,
        coverage: Coverage {
            revision: record.revision,
            planned: record.planned,
            refused: record.refused,
            complete: record.complete,
            cut_short: record.cut_short,
            drawn_inverse: record.drawn_inverse,
            done_us: record.done_us,
            taken: record.taken,
            cpu_us: record.cpu_us,
            done: RunSums {
                runs: record.runs,
                u: record.u,
                uu: record.uu,
                t: record.t,
                tt: record.tt,
                tu: record.tu,
            },
        },
    }
}
