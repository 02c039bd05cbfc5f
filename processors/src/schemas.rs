//! The stack schemas in force: what `strobe.config` says, compiled beside the batches.
//!
//! A thread reads the topic and compiles; the stage asks between two batches whether there is something new. A set of
//! schemas that does not compile changes nothing: the one before stays in force, the trouble is logged and counted, and
//! samples go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strobe_bus::compacted::read_all;
use strobe_bus::{BusSettings, Compacted, Message, Shutdown, Topic};
use strobe_event::{StackSchemaFile, codec};
use strobe_stack_schema::limits::FILE_BYTES_MAX;
use strobe_stack_schema::{Library, Program, Source};

use crate::error::ProcessorError;
use crate::telemetry::SchemaTelemetry;

/// How long the topic is quiet before what came is compiled: files that are applied together come together.
const QUIET: Duration = Duration::from_millis(300);
/// How long the first batch waits for the schemas that were in force before the processor started.
const FIRST: Duration = Duration::from_secs(10);
/// Pause before the topic is looked for again.
const AGAIN: Duration = Duration::from_secs(2);
/// Schemas that are kept; what comes after them is refused. Ten times the shipped library.
const SCHEMAS_MAX: usize = 256;

/// The files as the topic has them, by name.
#[derive(Debug, Default)]
pub struct Files {
    files: BTreeMap<String, StackSchemaFile>,
    /// Those that cannot be read, and why.
    unreadable: BTreeMap<String, String>,
}

/// Why a change of the topic is not taken over, or a set of schemas not put in force.
#[derive(Debug, thiserror::Error)]
pub enum SchemasError {
    /// The value is not a stack schema.
    #[error(
        "stack schema `{name}` on the bus cannot be read: {source} (`strobe stacks remove {name}` takes it away)"
    )]
    Unreadable {
        /// By its key.
        name: String,
        /// Why.
        source: strobe_event::codec::DecodeError,
    },
    /// The file is over a bound.
    #[error("stack schema `{name}` on the bus has {bytes} bytes, over {FILE_BYTES_MAX}")]
    TooLarge {
        /// By its key.
        name: String,
        /// Of its text.
        bytes: usize,
    },
    /// There are too many.
    #[error("there are over {SCHEMAS_MAX} stack schemas on the bus: remove some with `strobe stacks remove`")]
    TooMany,
    /// Together they do not compile.
    #[error(transparent)]
    Refused(#[from] strobe_stack_schema::StackSchemaError),
}

impl Files {
    /// Takes a change of the topic over; keys that are no stack schemas are somebody else's. Returns whether anything
    /// changed.
    ///
    /// # Errors
    /// [`SchemasError`]; the file of before stays.
    pub fn take(&mut self, message: &Message) -> Result<bool, SchemasError> {
        self.change(
            message.key.as_deref().unwrap_or_default(),
            message.payload.as_deref(),
        )
    }

    fn change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<bool, SchemasError> {
        let Some(name) = StackSchemaFile::name_of(key) else {
            return Ok(false);
        };
        let Some(value) = value else {
            return Ok(self.files.remove(name).is_some());
        };
        let file: StackSchemaFile =
            codec::decode_framed(value).map_err(|source| SchemasError::Unreadable {
                name: name.to_owned(),
                source,
            })?;
        let bytes = file.text.iter().map(String::len).sum();
        if bytes > FILE_BYTES_MAX {
            return Err(SchemasError::TooLarge {
                name: name.to_owned(),
                bytes,
            });
        }
        if self.files.len() >= SCHEMAS_MAX && !self.files.contains_key(name) {
            return Err(SchemasError::TooMany);
        }
        self.files.insert(name.to_owned(), file);
        Ok(true)
    }

    /// Puts a file in place, instead of the one of its name.
    pub fn put(&mut self, file: StackSchemaFile) {
        self.unreadable.remove(&file.name);
        self.files.insert(file.name.clone(), file);
    }

    /// Takes a file away; returns whether it was there.
    pub fn forget(&mut self, name: &str) -> bool {
        let unreadable = self.unreadable.remove(name).is_some();
        self.files.remove(name).is_some() || unreadable
    }

    /// Returns the names of files that cannot be read, and why.
    pub fn unreadable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.unreadable
            .iter()
            .map(|(name, why)| (name.as_str(), why.as_str()))
    }

    /// Returns the files, by name.
    pub fn iter(&self) -> impl Iterator<Item = &StackSchemaFile> {
        self.files.values()
    }

    /// Returns the files that are enabled, compiled: a program without rules where none is.
    ///
    /// # Errors
    /// [`SchemasError::Refused`] with every place that is wrong.
    pub fn compile(&self) -> Result<Arc<Program>, SchemasError> {
        let sources: Vec<Source> = self
            .iter()
            .map(|file| Source::new(&format!("{}.stacks", file.name), &file.whole_text()))
            .collect();
        let library = Library::parse(&sources)?;
        let enabled: Vec<&str> = self
            .iter()
            .filter(|file| file.enabled)
            .map(|file| file.name.as_str())
            .collect();
        Ok(Arc::new(Program::compile(&library, &enabled)?))
    }
}

/// Returns the files that the bus has now, those that cannot be read by name.
///
/// # Errors
/// [`ProcessorError::Bus`].
pub fn on_bus(bus: &BusSettings) -> Result<Files, ProcessorError> {
    let mut files = Files::default();
    for (key, value) in read_all(bus, &bus.topic(Topic::Config))? {
        if let Err(error) = files.change(&key, Some(&value)) {
            let name = StackSchemaFile::name_of(&key).unwrap_or_default();
            files.unreadable.insert(name.to_owned(), error.to_string());
        }
    }
    Ok(files)
}

/// What is in force, and how often that changed.
#[derive(Debug, Default)]
struct Shared {
    number: AtomicU64,
    program: Mutex<Option<Arc<Program>>>,
    telemetry: Arc<SchemaTelemetry>,
}

/// Follows the topic in a thread of its own.
pub struct Schemas {
    shared: Arc<Shared>,
    seen: u64,
    thread: Option<JoinHandle<()>>,
    stop: Shutdown,
}

impl Schemas {
    /// Starts following, counting in `telemetry`, and waits, within a bound, for what the topic holds already. A topic that is missing or cannot be
    /// read is said and waited for; until then no schema is in force.
    ///
    /// # Errors
    /// [`ProcessorError::Bus`] where there can be no thread.
    pub fn follow(bus: &BusSettings, telemetry: Arc<SchemaTelemetry>) -> Result<Self, ProcessorError> {
        let shared = Arc::new(Shared {
            telemetry,
            ..Shared::default()
        });
        let stop = Shutdown::default();
        let (theirs, until, bus) = (Arc::clone(&shared), stop.clone(), bus.clone());
        let (ready, first) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("stack-schemas".into())
            .spawn(move || follow(&bus, &theirs, &until, &ready))
            .map_err(|source| strobe_bus::Error::Os {
                doing: "starting the thread of stack schemas",
                source,
            })?;
        if first.recv_timeout(FIRST).is_err() {
            tracing::warn!(
                "`strobe.config` could not be read in time: samples go on without stack schemas until it can"
            );
        }
        Ok(Self {
            shared,
            seen: 0,
            thread: Some(thread),
            stop,
        })
    }

    /// Returns what is in force now, if that is something else than when it was asked last.
    pub fn changed(&mut self) -> Option<Arc<Program>> {
        let number = self.shared.number.load(Ordering::Acquire);
        if number == self.seen {
            return None;
        }
        self.seen = number;
        let program = self.shared.program.lock();
        program.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Schemas {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // It looks at the wish several times a second; a panic of it was logged by itself.
            let _ended = thread.join();
        }
    }
}

/// Reads the topic until the wish to stop; `ready` hears when what it held at first is in force.
fn follow(bus: &BusSettings, shared: &Shared, stop: &Shutdown, ready: &SyncSender<()>) {
    let topic = bus.topic(Topic::Config);
    while !stop.is_requested() {
        let followed = match Compacted::open(bus, &topic) {
            Ok(reader) => read(reader, shared, stop, ready),
            Err(error) => {
                // A bus without the topic holds no schemas.
                if matches!(error, strobe_bus::Error::TopicMissing { .. }) {
                    let _heard = ready.try_send(());
                }
                Err(error)
            }
        };
        if let Err(error) = followed {
            tracing::warn!(%error, pause = ?AGAIN, "stack schemas cannot be followed; those in force stay");
            stop.wait_timeout(AGAIN);
        }
    }
}

fn read(
    mut reader: Compacted,
    shared: &Shared,
    stop: &Shutdown,
    ready: &SyncSender<()>,
) -> Result<(), strobe_bus::Error> {
    let mut files = Files::default();
    let mut changed_at: Option<Instant> = None;
    let mut first = true;
    while !stop.is_requested() {
        reader.poll(Duration::from_millis(100), |message| match files.take(&message) {
            Ok(false) => {}
            Ok(true) => changed_at = Some(Instant::now()),
            Err(error) => refused(shared, &error),
        })?;
        if !reader.is_caught_up() {
            continue;
        }
        // What was there before is taken as it is; later changes come in groups.
        if changed_at.is_some_and(|at| first || at.elapsed() >= QUIET) {
            changed_at = None;
            put_in_force(&files, shared);
        }
        if std::mem::take(&mut first) {
            // Nobody may wait any more.
            let _heard = ready.try_send(());
        }
    }
    Ok(())
}

fn put_in_force(files: &Files, shared: &Shared) {
    match files.compile() {
        Ok(program) => {
            let (schemas, rules) = (program.schemas().len(), program.rules());
            tracing::info!(schemas, rules, "stack schemas in force");
            *shared.program.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
            shared.telemetry.in_force.set(schemas as u64);
            shared.telemetry.switched.add(1);
            shared.number.fetch_add(1, Ordering::Release);
        }
        Err(error) => refused(shared, &error),
    }
}

fn refused(shared: &Shared, error: &SchemasError) {
    shared.telemetry.refused.add(1);
    tracing::error!(event = "stack_schemas_refused", %error, "stack schemas refused; those in force stay");
}
