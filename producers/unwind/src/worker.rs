//! The making of a table in a process of its own: the binary is hostile input.
//!
//! One process per binary, since that is how often there is something to do: it gets the open binary as stdin and the file to
//! write as stdout, puts limits on itself, and ends. There is no protocol to get wrong. It can open nothing, start nothing, and has
//! no capabilities; whatever a binary does to it, the parent sees an exit status.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use object::ReadCache;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::builder::build;
use crate::error::UnwindError;
use crate::kept::Kept;
use crate::table::{HEADER_BYTES, ROWS_MAX};

/// Memory that a worker may have: the largest sections (256 MiB each), rows (64 MiB, twice), functions (64 MiB).
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Seconds of a CPU: a binary with 400 MB of code takes 2.
const CPU_SECONDS: u64 = 20;
/// Time to wait for a worker: as on a CPU that it has to share.
const DEADLINE: Duration = Duration::from_secs(60);
/// The largest table: all rows, the directory, all rules.
const OUTPUT_BYTES: u64 = (HEADER_BYTES + ROWS_MAX * 5 + (2 << 20)) as u64;
/// Descriptors: the standard three, and the copy through which the binary is read.
const OPEN_FILES: u64 = 4;
/// How much of what a worker says is kept.
const MESSAGE_BYTES_MAX: u64 = 512;

/// Exit statuses by which a worker says why there is no table.
const NOT_ELF: u8 = 65;
const NO_FRAME_INFO: u8 = 66;
const OTHER: u8 = 1;

/// Makes the table of the binary on stdin, writes it to stdout, and returns the exit code of the process.
///
/// An executable offers this as a sub-command of its own and must call it before it starts any thread.
pub fn worker_main(key: &str) -> ExitCode {
    match work(key) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            match error {
                UnwindError::NotElf => NOT_ELF.into(),
                UnwindError::NoFrameInfo => NO_FRAME_INFO.into(),
                _ => OTHER.into(),
            }
        }
    }
}

fn work(key: &str) -> Result<(), UnwindError> {
    let started = |source| UnwindError::Start { source };
    let binary = io::stdin().as_fd().try_clone_to_owned().map_err(started)?;
    confine().map_err(|error| started(error.into()))?;
    let table = build(&ReadCache::new(File::from(binary)), key)?;
    let mut output = io::stdout().lock();
    output
        .write_all(&table)
        .and_then(|()| output.flush())
        .map_err(|source| UnwindError::File {
            doing: "writing",
            path: "the table".to_owned(),
            source,
        })
}

/// Puts the limits on this process: none can be raised again.
fn confine() -> rustix::io::Result<()> {
    let hard = |resource, most| {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit)
    };
    hard(Resource::Data, MEMORY_BYTES)?;
    hard(Resource::As, 2 * MEMORY_BYTES)?;
    hard(Resource::Cpu, CPU_SECONDS)?;
    hard(Resource::Fsize, OUTPUT_BYTES)?;
    hard(Resource::Nofile, OPEN_FILES)?;
    hard(Resource::Nproc, 0)?;
    hard(Resource::Core, 0)?;
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )
}

/// Where tables come from: the kept ones, and a worker for the others. Clones have the kept ones and the counts in common, so that
/// several threads can make tables at once, of different binaries.
#[derive(Debug, Clone)]
pub struct Maker {
    command: Vec<OsString>,
    kept: Arc<Mutex<Kept>>,
    made: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
}

impl Maker {
    /// Returns a maker that starts `command`, with the binary's name as one more argument, for each table that is not kept.
    pub fn new(command: Vec<OsString>, kept: Kept) -> Self {
        Self {
            command,
            kept: Arc::new(Mutex::new(kept)),
            made: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Returns the kept tables, which nobody else reaches meanwhile.
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many tables were made. Healthy: as many as binaries are met for the first time.
    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }

    /// Returns of how many binaries no table could be made. Healthy: a few, without frame information.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Returns the kept table of a binary.
    pub fn known(&self, key: &str) -> Option<Vec<u8>> {
        self.kept().get(key)
    }

    /// Returns the table of a binary, kept or made now.
    ///
    /// # Errors
    /// [`UnwindError`] says why there is none.
    pub fn table(&self, key: &str, binary: File) -> Result<Vec<u8>, UnwindError> {
        if let Some(table) = self.known(key) {
            return Ok(table);
        }
        let result = self.make(key, binary);
        match result {
            Ok(_) => self.made.fetch_add(1, Relaxed),
            Err(_) => self.refused.fetch_add(1, Relaxed),
        };
        result
    }

    fn make(&self, key: &str, mut binary: File) -> Result<Vec<u8>, UnwindError> {
        let new = self.kept().begin(key)?;
        let started = |source| UnwindError::Start { source };
        // The position is shared with whoever else has it open.
        io::Seek::rewind(&mut binary).map_err(started)?;
        let output = new.file.try_clone().map_err(started)?;
        let (program, arguments) = self.command.split_first().ok_or_else(|| {
            started(io::Error::new(
                io::ErrorKind::InvalidInput,
                "its command is empty",
            ))
        })?;
        let mut child = Command::new(program)
            .args(arguments)
            .arg(key)
            .env_clear()
            .stdin(Stdio::from(binary))
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped())
            .spawn()
            .map_err(started)?;
        let ended = wait(&mut child);
        if !matches!(ended, Ok(true)) {
            // Errors mean that it has ended already, which is what is wanted.
            let _ = child.kill();
        }
        let status = child.wait().map_err(started)?;
        let mut said = String::new();
        if let Some(stderr) = child.stderr.take() {
            let _ = stderr.take(MESSAGE_BYTES_MAX).read_to_string(&mut said);
        }
        match (ended, status.code().and_then(|code| u8::try_from(code).ok())) {
            (Ok(false), _) => Err(UnwindError::Worker {
                how: format!("was stopped after {} s", DEADLINE.as_secs()),
            }),
            (Err(source), _) => Err(UnwindError::Start { source }),
            (_, Some(0)) => self.kept().finish(new),
            (_, Some(NOT_ELF)) => Err(UnwindError::NotElf),
            (_, Some(NO_FRAME_INFO)) => Err(UnwindError::NoFrameInfo),
            (_, Some(OTHER)) => Err(UnwindError::Worker {
                how: format!("says: {}", said.trim()),
            }),
            _ => Err(UnwindError::Worker {
                how: format!("ended: {status}"),
            }),
        }
    }
}

/// Waits until a worker has closed its stderr, which it does by ending; returns whether it did in time.
fn wait(child: &mut Child) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(stderr) = &child.stderr else {
        return Ok(true);
    };
    let deadline = Instant::now() + DEADLINE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        // No event is asked for: poll then returns on hang-up alone, not for what the worker says.
        let mut fds = [PollFd::new(stderr, PollFlags::empty())];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
