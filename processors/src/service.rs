//! The processor as a service: the step between two topics.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strobe_bus::{
    BusSettings, Complaint, Consumer, DeadReason, DriveSettings, Message, Meta, Outgoing, ResendingProducer,
    Shutdown, StageResult, Topic, WindowLimits, drive,
};
use strobe_event::RawBatch;
use strobe_event::codec::{self, DecodeError};
use strobe_store::Store;
use strobe_symbols::{Binaries, Settings as SymbolSettings, Symbolizer, SymbolsError};

use crate::config::Settings;
use crate::error::ProcessorError;
use crate::hosts::Hosts;
use crate::keep;
use crate::schemas::Schemas;
use crate::step::{Made, StepError, step};
use crate::tag::Tagger;
use crate::telemetry::ProcessorTelemetry;
use crate::thin::{Shares, all_gone};

/// The stage's name in logs and dead letters.
const STAGE: &str = "processor";
/// Pause before a batch is tried again: doubled each time, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(10);

/// Runs the processor until the wish to stop.
///
/// # Errors
/// [`ProcessorError`] where it cannot start, or the bus has trouble that waiting does not heal.
pub fn run(settings: &Settings, shutdown: &Shutdown) -> Result<(), ProcessorError> {
    run_with(settings, shutdown, &ProcessorTelemetry::default())
}

/// Like [`run`], with metrics that the caller can read meanwhile.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    settings: &Settings,
    shutdown: &Shutdown,
    telemetry: &ProcessorTelemetry,
) -> Result<(), ProcessorError> {
    let bus = settings.bus.clone().with_client_id("strobe-processor");
    let mut symbols = SymbolSettings::new(Binaries::of_folder(Store::in_folder(&settings.symbol_store)?))?;
    symbols.debug_folders.clone_from(&settings.debug_folders);
    symbols.limits = settings.limits.clone();
    symbols.hints = keep::start(settings, &symbols.worker, shutdown, &telemetry.keeping)?;
    let mut stage = Stage {
        names: Symbolizer::new(symbols)?,
        schemas: Schemas::follow(&bus, Arc::clone(&telemetry.schemas))?,
        hosts: Hosts::follow(&bus)?,
        tagger: Tagger::idle(),
        tag_memory_bytes: settings.tag_memory_bytes,
        topic: bus.topic(Topic::Samples).into(),
        runs: bus.topic(Topic::Runs).into(),
        shares: Shares::default(),
        bus: bus.clone(),
        telemetry,
        shutdown: shutdown.clone(),
        broken: None,
    };
    let consumer = Consumer::new(&bus, &settings.group, &[&bus.topic(Topic::StacksRaw)])?;
    let producer = ResendingProducer::new(&bus, WindowLimits::default())?;
    tracing::info!(store = %settings.symbol_store.display(), group = settings.group, "processor runs");
    let driven = drive(
        &DriveSettings::new(STAGE),
        consumer,
        producer,
        &telemetry.drive,
        shutdown,
        |message| stage.process(message),
    );
    if let Some(error) = stage.broken {
        return Err(error.into());
    }
    driven?;
    tracing::info!(
        batches = telemetry.drive.messages_in.get(),
        dead_letters = telemetry.drive.dead_letters.get(),
        schemas_switched = telemetry.schemas.switched.get(),
        schemas_refused = telemetry.schemas.refused.get(),
        "processor stopped"
    );
    Ok(())
}

struct Stage<'a> {
    names: Symbolizer,
    schemas: Schemas,
    hosts: Hosts,
    tagger: Tagger,
    tag_memory_bytes: usize,
    topic: Arc<str>,
    runs: Arc<str>,
    shares: Shares,
    bus: BusSettings,
    telemetry: &'a ProcessorTelemetry,
    shutdown: Shutdown,
    /// What ended the service: trouble that waiting does not heal.
    broken: Option<SymbolsError>,
}

impl Stage<'_> {
    fn process(&mut self, message: &Message) -> StageResult {
        let meta = match Meta::from_headers(&message.headers) {
            Ok(meta) => meta,
            Err(error) => return put_aside(DeadReason::BadHeaders, "HeaderError", error.to_string()),
        };
        // Between two batches: what is under way is tagged by one set of schemas.
        if let Some(program) = self.schemas.changed() {
            self.tagger.switch(program, self.tag_memory_bytes);
        }
        self.tagger.of_host(self.hosts.labels(&meta.identity.host));
        let mut pause = RETRY_FIRST;
        loop {
            self.shares.refresh(&self.bus);
            match step(
                &meta,
                message.bytes(),
                &mut self.names,
                &mut self.tagger,
                now_us(),
                &self.shares,
            ) {
                Ok(made) if made.is_empty() => {
                    self.telemetry.step.thinned_batches.add(1);
                    return self.all_gone(message, &meta);
                }
                Ok(made) => {
                    let counts = &self.telemetry.step;
                    counts.refused_values.set(self.tagger.refused_values());
                    counts.tags_cut.set(self.tagger.cut());
                    counts.batches.add(1);
                    counts.samples.add(meta.samples);
                    counts.split.add(u64::from(made.len() > 1));
                    *self
                        .telemetry
                        .names
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner) = self.names.telemetry();
                    return StageResult::Output(
                        made.into_iter()
                            .map(|made| self.outgoing(message, made))
                            .collect(),
                    );
                }
                Err(error) if error.is_transient() => {
                    // No fault of the batch: after the wish to stop it is left, uncommitted, to whoever comes next.
                    if self.shutdown.is_requested() {
                        tracing::warn!(%error, "names cannot be had; the batch is left");
                        return StageResult::Leave;
                    }
                    self.telemetry.step.retries.add(1);
                    tracing::warn!(%error, ?pause, "names cannot be had now; trying again");
                    // Holding the partition up is right: nothing is lost, and the next batch would fare no better.
                    self.shutdown.wait_timeout(pause);
                    pause = (2 * pause).min(RETRY_LONGEST);
                }
                Err(StepError::Symbols(error)) => {
                    self.broken.get_or_insert(error);
                    self.shutdown.request();
                    return StageResult::Leave;
                }
                Err(error) => return put_aside(reason(&error), class(&error), error.to_string()),
            }
        }
    }

    /// Accounts for a batch of which limits let nothing stay.
    fn all_gone(&self, message: &Message, meta: &Meta) -> StageResult {
        let event = codec::decode_framed::<RawBatch>(message.bytes()).map(|raw| all_gone(&raw));
        let Some(value) = event.ok().and_then(|event| codec::encode_framed(&event).ok()) else {
            return StageResult::Skip;
        };
        let meta = Meta {
            samples: 0,
            ..meta.clone()
        };
        StageResult::Output(vec![Outgoing {
            topic: self.runs.clone(),
            key: message.key.clone(),
            headers: meta.to_headers(),
            payload: Some(value.into()),
        }])
    }

    fn outgoing(&self, message: &Message, made: Made) -> Outgoing {
        Outgoing {
            topic: self.topic.clone(),
            key: message.key.clone(),
            headers: made.meta.to_headers(),
            payload: Some(made.value.into()),
        }
    }
}

fn put_aside(reason: DeadReason, exception: &'static str, message: String) -> StageResult {
    StageResult::DeadLetter(Complaint {
        reason,
        stage: STAGE,
        class: module_path!(),
        exception,
        message,
    })
}

fn reason(error: &StepError) -> DeadReason {
    match error {
        StepError::Oversized { .. } => DeadReason::Oversized,
        StepError::Undecodable(DecodeError::Unframed { .. } | DecodeError::ForeignSchema { .. }) => {
            DeadReason::Foreign
        }
        StepError::Undecodable(error) if error.is_truncated() => DeadReason::Truncated,
        _ => DeadReason::Undecodable,
    }
}

fn class(error: &StepError) -> &'static str {
    match error {
        StepError::Oversized { .. } => "Oversized",
        StepError::Undecodable(_) => "Undecodable",
        StepError::Malformed(_) => "Malformed",
        StepError::WrongCount { .. } => "WrongCount",
        StepError::Weigh(_) => "Weigh",
        StepError::Encode(_) => "Encode",
        StepError::Symbols(_) => "Symbols",
    }
}

/// Returns the time, microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}
