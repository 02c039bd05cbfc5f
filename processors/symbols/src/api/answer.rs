//! A request → its response, from symbol files.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use strobe_event::BinaryKind;
use strobe_store::BinaryKey;
use tokio::runtime;

use super::form::{Frame, Inlined, Job, JobResult, Place, Request, Response, Symbol};
use super::ids::{Prefix, prefix, prefix_of};
use crate::error::SymbolsError;
use crate::fetch::{Binaries, Found, Stamp};
use crate::file::{SymbolFile, VERSION};

/// Most jobs of a request; clients send one for each process.
const JOBS_MAX: usize = 64;
/// Most modules of a job: a large browser's process has some hundreds.
const MODULES_MAX: usize = 4_096;
/// Most frames of a request, over all jobs.
const FRAMES_MAX: usize = 100_000;
/// Most bytes of a response. With the most that are under way at once this bounds what callers who do not read can hold.
pub(super) const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Symbol files kept open, and memory of each: the most recently asked for.
const FILES_MAX: usize = 32;
const FILE_BYTES: usize = 4 << 20;
/// Time between two looks at what the store has, so that who asks for unknown modules does not list it again and again.
const INDEX_TIME: Duration = Duration::from_secs(10);

/// Why a request gets no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("the request is not in the form of version 5: {0}")]
    Form(#[from] serde_json::Error),
    #[error("the request has more than {most} {what}: send it in parts")]
    TooMany { what: &'static str, most: usize },
    #[error("the response is over {RESPONSE_BYTES_MAX} bytes: send the request in parts")]
    TooLong,
    #[error(transparent)]
    Symbols(#[from] SymbolsError),
}

struct Opened {
    file: SymbolFile,
    stamp: Option<Stamp>,
    used: u64,
}

/// Answers requests, one at a time.
pub(super) struct Answerer {
    binaries: Binaries,
    files: FxHashMap<BinaryKey, Opened>,
    clock: u64,
    /// Binaries by the beginning of their build ids; nothing where several have the same.
    index: FxHashMap<Prefix, Option<BinaryKey>>,
    indexed: Option<Instant>,
}

impl Answerer {
    pub(super) fn new(binaries: Binaries) -> Self {
        Self {
            binaries,
            files: FxHashMap::default(),
            clock: 0,
            index: FxHashMap::default(),
            indexed: None,
        }
    }

    /// Returns the response to a request, as it is sent.
    pub(super) fn answer(&mut self, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let request: Request = serde_json::from_slice(body)?;
        let jobs = request.jobs();
        let frames = jobs
            .iter()
            .flat_map(|job| &job.stacks)
            .map(Vec::len)
            .sum::<usize>();
        let modules = jobs.iter().map(|job| job.memory_map.len()).max().unwrap_or(0);
        for (what, count, most) in [
            ("jobs", jobs.len(), JOBS_MAX),
            ("modules", modules, MODULES_MAX),
            ("frames", frames, FRAMES_MAX),
        ] {
            if count > most {
                return Err(Refused::TooMany { what, most });
            }
        }
        let results = jobs.iter().map(|job| self.job(job));
        let response = Response {
            results: results.collect::<Result<_, _>>()?,
        };
        let mut out = Bounded(Vec::new());
        match serde_json::to_writer(&mut out, &response) {
            Ok(()) => Ok(out.0),
            Err(error) if error.is_io() => Err(Refused::TooLong),
            Err(error) => Err(error.into()),
        }
    }

    fn job<'a>(&mut self, job: &'a Job) -> Result<JobResult<'a>, Refused> {
        let mut known: FxHashMap<(usize, u64), Option<Arc<Symbol>>> = FxHashMap::default();
        let mut found_modules = BTreeMap::new();
        let mut keys: FxHashMap<usize, Option<BinaryKey>> = FxHashMap::default();
        let mut bytes = 0;
        let mut stacks = Vec::with_capacity(job.stacks.len());
        for stack in &job.stacks {
            let mut frames = Vec::with_capacity(stack.len());
            for (at, &(module, address)) in stack.iter().enumerate() {
                let module = usize::try_from(module).unwrap_or(usize::MAX);
                let (name, debug_id) = match job.memory_map.get(module) {
                    Some((name, debug_id)) => (name.as_str(), debug_id.as_str()),
                    None => ("", ""),
                };
                let mut symbol = None;
                if module < job.memory_map.len() {
                    let key = match keys.entry(module) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(unknown) => {
                            let key = self.key(debug_id)?;
                            let key = key.filter(|key| self.open(key).is_ok_and(|there| there));
                            found_modules.insert(format!("{name}/{debug_id}"), key.is_some());
                            unknown.insert(key)
                        }
                    };
                    if let Some(key) = key {
                        symbol = match known.get(&(module, address)) {
                            Some(symbol) => symbol.clone(),
                            None => {
                                let symbol = match self.symbol(key, address) {
                                    // The store's keeper makes such a file anew.
                                    Err(SymbolsError::Damaged { .. }) => None,
                                    symbol => symbol?.map(Arc::new),
                                };
                                known.insert((module, address), symbol.clone());
                                symbol
                            }
                        };
                    }
                }
                // What is shared here is written once for each frame there.
                bytes += name.len() + symbol.as_deref().map_or(0, Symbol::bytes);
                if bytes > RESPONSE_BYTES_MAX {
                    return Err(Refused::TooLong);
                }
                frames.push(Frame {
                    frame: at,
                    module: name,
                    module_offset: address,
                    symbol,
                });
            }
            stacks.push(frames);
        }
        Ok(JobResult {
            stacks,
            found_modules,
        })
    }

    /// Returns the binary that a debug id stands for.
    fn key(&mut self, debug_id: &str) -> Result<Option<BinaryKey>, SymbolsError> {
        let Some(wanted) = prefix_of(debug_id) else {
            return Ok(None);
        };
        let known = self.index.get(&wanted);
        let stale = self.indexed.is_none_or(|at| at.elapsed() > INDEX_TIME);
        if known.is_none() && stale {
            let store = self.binaries.store();
            // Not kept: a runtime that ends with the server's tasks would wait there, which tasks must not.
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(SymbolsError::from)?;
            let holdings = runtime.block_on(store.holdings(VERSION))?;
            self.index.clear();
            for (key, _) in holdings {
                if matches!(key.kind, BinaryKind::Gnu | BinaryKind::Vdso) {
                    let several = self.index.contains_key(&prefix(&key.id));
                    self.index.insert(prefix(&key.id), (!several).then_some(key));
                }
            }
            self.indexed = Some(Instant::now());
        }
        Ok(self.index.get(&wanted).cloned().flatten())
    }

    /// Opens a binary's symbol file; returns whether there is one that is good.
    fn open(&mut self, key: &BinaryKey) -> Result<bool, SymbolsError> {
        self.clock += 1;
        let Found::At(path) = self.binaries.object(&key.symbols(VERSION))? else {
            return Ok(self.files.contains_key(key));
        };
        let stamp = Stamp::of(&path);
        if let Some(opened) = self.files.get_mut(key).filter(|opened| opened.stamp == stamp) {
            opened.used = self.clock;
            return Ok(true);
        }
        let source = std::fs::File::open(&path)?;
        let length = source.metadata()?.len();
        let file = SymbolFile::open(Box::new(source), length, FILE_BYTES)?;
        if self.files.len() >= FILES_MAX
            && let Some(oldest) = self.files.iter().min_by_key(|(_, opened)| opened.used)
        {
            let oldest = oldest.0.clone();
            self.files.remove(&oldest);
        }
        let used = self.clock;
        self.files.insert(key.clone(), Opened { file, stamp, used });
        Ok(true)
    }

    /// Returns what is known of a module-relative address.
    fn symbol(&mut self, key: &BinaryKey, address: u64) -> Result<Option<Symbol>, SymbolsError> {
        // Another module of the same request may have taken its place.
        if !self.files.contains_key(key) && !self.open(key)? {
            return Ok(None);
        }
        let Some(Opened { file, .. }) = self.files.get_mut(key) else {
            return Ok(None);
        };
        let Some(address) = address.checked_add(file.image_base()) else {
            return Ok(None);
        };
        let mut places = Vec::new();
        if !file.find(address, &mut places)? {
            return Ok(None);
        }
        let start = file.stretch_start(address)?.unwrap_or(address);
        let mut levels = Vec::with_capacity(places.len());
        for place in &places {
            let function = file.with_name(place.function, str::to_owned)?;
            let path = match place.file {
                0 => String::new(),
                number => file.with_file(number, str::to_owned)?,
            };
            let place = Place {
                file: path,
                line: place.line,
            };
            levels.push(Inlined { function, place });
        }
        let mut levels = levels.into_iter();
        let Some(outermost) = levels.next() else {
            return Ok(None);
        };
        Ok(Some(Symbol {
            function: outermost.function,
            function_offset: address - start,
            place: outermost.place,
            inlines: levels.rev().collect(),
        }))
    }
}

impl Symbol {
    fn bytes(&self) -> usize {
        let level = |level: &Inlined| level.function.len() + level.place.file.len();
        self.function.len() + self.place.file.len() + self.inlines.iter().map(level).sum::<usize>()
    }
}

/// Bytes up to the most that a response may have.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > RESPONSE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
