//! What a symbolizer is made of: binaries, a worker, limits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::error::SymbolsError;
use crate::fetch::Binaries;
use crate::keeper::Hint;
use crate::wire::Hello;

/// Address space beside private memory and mapped binaries: the program itself, its libraries and its stacks.
pub(crate) const PROGRAM_BYTES: u64 = 512 << 20;

/// Limits on the worker and on what is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Time for one request of up to 4,096 addresses, a first parse included. A 277 MB executable with full debug
    /// information takes half a second; the default is 20 s.
    pub request_time: Duration,
    /// Private memory of the worker. Debug information costs about its own size; the default is 1 GiB.
    pub memory_bytes: u64,
    /// Bytes of a binary, and of all that are parsed at one time. The default is 1 GiB.
    pub binary_bytes: u64,
    /// Binaries kept parsed in the worker. The default is 32.
    pub parsed: u32,
    /// Bytes of names remembered. The default is 256 MiB, some three million addresses.
    pub memo_bytes: usize,
    /// Bytes of symbol files kept in memory. The default is 64 MiB: what is looked up again and again of some tens of
    /// large binaries; the rest is read again from the disk's cache.
    pub file_bytes: usize,
    /// Time until a binary that was not in the store is looked for again. The default is 10 s: uploads take as long.
    pub missing_time: Duration,
    /// Time between two looks at whether a symbol file that is in use has given way to a better one. The default is a minute:
    /// debug information that arrives late is hours late.
    pub renew_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_time: Duration::from_secs(20),
            memory_bytes: 1 << 30,
            binary_bytes: 1 << 30,
            parsed: 32,
            memo_bytes: 256 << 20,
            file_bytes: 64 << 20,
            missing_time: Duration::from_secs(10),
            renew_time: Duration::from_secs(60),
        }
    }
}

/// What a [`Symbolizer`] is made of.
#[derive(Debug)]
pub struct Settings {
    /// The binaries.
    pub binaries: Binaries,
    /// Command line of the worker: something that calls [`worker_main`](crate::worker_main).
    pub worker: Vec<OsString>,
    /// Folders with separate debug information for the worker to look into; none unless named here.
    pub debug_folders: Vec<PathBuf>,
    /// Where it is said which binaries wait for their symbol file, and which are missing; nobody unless named here.
    pub hints: Option<SyncSender<Hint>>,
    /// Limits.
    pub limits: Limits,
}

impl Settings {
    /// Returns the default: this executable's own sub-command `symbol-worker`, and the default limits.
    ///
    /// # Errors
    /// [`SymbolsError::WorkerStart`] where the path of this executable cannot be told.
    pub fn new(binaries: Binaries) -> Result<Self, SymbolsError> {
        let own = std::env::current_exe().map_err(|source| SymbolsError::WorkerStart {
            command: "symbol-worker".to_owned(),
            source,
        })?;
        let worker = vec![own.into_os_string(), OsString::from("symbol-worker")];
        Ok(Self {
            binaries,
            worker,
            debug_folders: Vec::new(),
            hints: None,
            limits: Limits::default(),
        })
    }

    /// Returns the limits as the worker is told them.
    pub(crate) fn hello(&self) -> Hello {
        let limits = &self.limits;
        Hello {
            memory_bytes: limits.memory_bytes,
            address_space_bytes: limits
                .memory_bytes
                .saturating_add(limits.binary_bytes)
                .saturating_add(PROGRAM_BYTES),
            binary_bytes: limits.binary_bytes,
            parsed: limits.parsed.max(1),
            debug_folders: self.debug_folders.clone(),
        }
    }
}
