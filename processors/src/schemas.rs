//! The stack schemas in force: what `strobe.config` says, compiled beside the batches.
//!
//! A thread reads the topic and compiles; the stage asks between two batches whether there is something new. A set of
//! schemas that does not compile changes nothing: the one before stays in force, the trouble is logged and counted, and
//! samples go on.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
/// What the names of files end in, where an error names one.
const ENDING: &str = ".stacks";
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
    /// Compiling them ended in a panic: a fault of ours, which must not take the fleet's tags away.
    #[error(
        "compiling the stack schemas panicked: {what} (report it with the schemas of `strobe stacks list -o json`)"
    )]
    Panicked {
        /// What it said.
        what: String,
    },
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
        // The key is the name, whatever the value says of itself.
        self.put(StackSchemaFile {
            name: name.to_owned(),
            ..file
        })?;
        Ok(true)
    }

    /// Puts a file in place, instead of the one of its name.
    ///
    /// # Errors
    /// [`SchemasError::TooMany`].
    pub fn put(&mut self, file: StackSchemaFile) -> Result<(), SchemasError> {
        if self.files.len() >= SCHEMAS_MAX && !self.files.contains_key(&file.name) {
            return Err(SchemasError::TooMany);
        }
        self.unreadable.remove(&file.name);
        self.files.insert(file.name.clone(), file);
        Ok(())
    }

    /// Returns the file of a name.
    pub fn get(&self, name: &str) -> Option<&StackSchemaFile> {
        self.files.get(name)
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
        self.compile_without(&BTreeSet::new())
    }

    /// Returns the same without the files that are at fault, and without those that include them.
    ///
    /// # Errors
    /// [`SchemasError::Refused`] where what is wrong is no file's fault.
    pub fn compile_sound(&self) -> Result<Arc<Program>, SchemasError> {
        let mut without: BTreeSet<String> = BTreeSet::new();
        loop {
            let error = match self.compile_without(&without) {
                Err(SchemasError::Refused(error)) => error,
                compiled => return compiled,
            };
            let before = without.len();
            let at_fault = error
                .problems()
                .iter()
                .map(|problem| problem.file.trim_end_matches(ENDING));
            without.extend(at_fault.map(str::to_owned));
            // Each turn leaves one more file out, so that it ends.
            if without.len() == before {
                return Err(error.into());
            }
        }
    }

    fn compile_without(&self, without: &BTreeSet<String>) -> Result<Arc<Program>, SchemasError> {
        let files = || self.files.values().filter(|file| !without.contains(&file.name));
        let sources: Vec<Source> = files()
            .map(|file| Source::new(&format!("{}{ENDING}", file.name), &file.whole_text()))
            .collect();
        let library = Library::parse(&sources)?;
        let enabled: Vec<&str> = files()
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
    /// Starts following, counting in `telemetry`, and waits, within a bound, for what the topic holds already. A topic that
    /// is missing or cannot be read is said and waited for; until then no schema is in force.
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
            Ok(reader) => catch_unwind(AssertUnwindSafe(|| read(reader, shared, stop, ready))),
            Err(error) => {
                // A bus without the topic holds no schemas.
                if matches!(error, strobe_bus::Error::TopicMissing { .. }) {
                    let _heard = ready.try_send(());
                }
                Ok(Err(error))
            }
        };
        match followed {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => {
                tracing::warn!(%error, pause = ?AGAIN, "stack schemas cannot be followed; those in force stay");
            }
            Err(panic) => refused(
                shared,
                &SchemasError::Panicked {
                    what: said(panic.as_ref()),
                },
            ),
        }
        stop.wait_timeout(AGAIN);
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
        // What was there before is taken as it is, also where all was taken away meanwhile; later changes come in groups.
        let in_force = shared.number.load(Ordering::Relaxed) > 0;
        let due = changed_at.is_some_and(|at| first || at.elapsed() >= QUIET);
        if due || (first && in_force) {
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
    let nothing_yet = shared.number.load(Ordering::Relaxed) == 0;
    let compiled = guarded(|| files.compile()).or_else(|error| match nothing_yet {
        // There are no old ones to stay: those that are not at fault are better than none.
        true => {
            refused(shared, &error);
            guarded(|| files.compile_sound())
        }
        false => Err(error),
    });
    put_or_refuse(compiled, shared);
}

/// Returns what `compile` does, an error where it panics: the thread goes on, and what is in force stays.
fn guarded(
    compile: impl FnOnce() -> Result<Arc<Program>, SchemasError>,
) -> Result<Arc<Program>, SchemasError> {
    // Files are only read, and what was half made is dropped.
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|panic| {
        Err(SchemasError::Panicked {
            what: said(panic.as_ref()),
        })
    })
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a word".to_owned())
}

fn put_or_refuse(compiled: Result<Arc<Program>, SchemasError>, shared: &Shared) {
    match compiled {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, enabled: bool, text: &str) -> StackSchemaFile {
        StackSchemaFile {
            name: name.to_owned(),
            enabled,
            ..StackSchemaFile::default()
        }
        .with_text(text)
    }

    fn framed(file: &StackSchemaFile) -> Vec<u8> {
        codec::encode_framed(file).unwrap()
    }

    /// Checks that what is enabled comes in force with what it includes, and what is taken away goes.
    #[test]
    fn what_is_enabled_comes_in_force() {
        let mut files = Files::default();
        let shared = file("shared", false, "schema shared\nlet f = function is \"f\"\n");
        let mine = file(
            "mine",
            true,
            "schema mine\nversion 4\ninclude shared\nrule r { on f tag stack x=y example \"f\" gives x=y }\n",
        );
        for one in [&mine, &shared] {
            let key = StackSchemaFile::key(&one.name);
            assert!(files.change(key.as_bytes(), Some(&framed(one))).unwrap());
        }
        let program = files.compile().unwrap();
        assert_eq!(program.rules(), 1);
        assert!(
            program
                .schemas()
                .iter()
                .any(|schema| &*schema.name == "mine" && schema.version == 4)
        );
        assert!(files.change(b"stack-schema/mine", None).unwrap());
        assert!(
            !files.change(b"stack-schema/mine", None).unwrap(),
            "it was gone already"
        );
        assert_eq!(files.compile().unwrap().rules(), 0);
    }

    /// Checks that what cannot be taken over is refused with its reason and leaves the file of before, and that keys of
    /// others are left alone.
    #[test]
    fn what_cannot_be_taken_over_leaves_the_file_of_before() {
        let mut files = Files::default();
        let good = file(
            "a",
            true,
            "schema a\nrule r { on root tag stack t example \"f\" gives t }\n",
        );
        assert!(files.change(b"stack-schema/a", Some(&framed(&good))).unwrap());
        let foreign = files
            .change(b"stack-schema/a", Some(b"\0\0\0\0\x01x"))
            .unwrap_err();
        assert!(matches!(foreign, SchemasError::Unreadable { .. }), "{foreign}");
        let large = file("a", true, &"#".repeat(FILE_BYTES_MAX + 1));
        let large = files
            .change(b"stack-schema/a", Some(&framed(&large)))
            .unwrap_err();
        assert!(matches!(large, SchemasError::TooLarge { .. }), "{large}");
        assert!(!files.change(b"profiler/cpu", Some(b"anything")).unwrap());
        assert_eq!(files.compile().unwrap().rules(), 1);
        for number in 1..SCHEMAS_MAX {
            files.put(file(&format!("s{number}"), false, "")).unwrap();
        }
        let last = framed(&file("one-more", false, "schema one-more\n"));
        let many = files.change(b"stack-schema/one-more", Some(&last)).unwrap_err();
        assert!(matches!(many, SchemasError::TooMany), "{many}");
        assert!(
            files.change(b"stack-schema/a", Some(&framed(&good))).unwrap(),
            "one that is there may change"
        );
    }

    /// Checks that a set that does not compile says where, and compiles without what is at fault.
    #[test]
    fn a_set_that_does_not_compile_says_where() {
        let mut files = Files::default();
        let root = "{ on root tag stack t example \"f\" gives t }";
        for (name, text) in [
            ("b", "schema b\nrule r { on function is }\n".to_owned()),
            ("c", format!("schema c\ninclude b\nrule r {root}\n")),
            ("d", format!("schema d\nrule r {root}\n")),
        ] {
            files.put(file(name, true, &text)).unwrap();
        }
        let said = files.compile().unwrap_err().to_string();
        assert!(said.contains("b.stacks:2:"), "{said}");
        let sound = files.compile_sound().unwrap();
        let names: Vec<&str> = sound.schemas().iter().map(|schema| &*schema.name).collect();
        assert_eq!(names, ["d"], "what includes the one at fault is left out, too");
    }

    /// Checks that a panic while schemas are compiled is an error that is counted, leaves those before in force, and does not
    /// end what follows the topic.
    #[test]
    fn a_panic_leaves_the_old_schemas_in_force() {
        let shared = Shared::default();
        let mut files = Files::default();
        let text = "schema a\nrule r { on root tag stack t example \"f\" gives t }\n";
        files.put(file("a", true, text)).unwrap();
        put_in_force(&files, &shared);
        let rules = |shared: &Shared| {
            shared
                .program
                .lock()
                .unwrap()
                .as_ref()
                .map(|program| program.rules())
        };
        assert_eq!((rules(&shared), shared.telemetry.switched.get()), (Some(1), 1));
        let broken = guarded(|| panic!("index {} of 3", 4));
        let said = broken.as_ref().unwrap_err().to_string();
        assert!(said.contains("index 4 of 3"), "{said}");
        put_or_refuse(broken, &shared);
        assert_eq!(rules(&shared), Some(1));
        assert_eq!(
            (
                shared.telemetry.refused.get(),
                shared.number.load(Ordering::Relaxed)
            ),
            (1, 1)
        );
        files.put(file("b", true, &text.replace(" a\n", " b\n"))).unwrap();
        put_in_force(&files, &shared);
        assert_eq!((rules(&shared), shared.telemetry.switched.get()), (Some(2), 2));
    }
}
