//! The binaries thread: each newly seen binary → the symbol store, once, within limits on size and rate.
//!
//! It holds the file open since it was first seen, so that a binary that is deleted or replaced meanwhile still gets there. What the
//! store's trouble held up is tried again, later and later.

use std::fs::File;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use governor::{Quota, RateLimiter};
use strobe_bus::Shutdown;
use strobe_event::{BinaryKind, BuildId};
use strobe_store::{BinaryKey, Put, Store, StoreError};

use crate::config::BinariesConfig;
use crate::status::{Status, Uploaded};

/// Binaries that may be announced while this thread is busy, each with its file open. Beyond, one is announced again when it is
/// next mapped.
pub const QUEUE: usize = 256;
/// Binaries that may wait here, each with its file open: as many again, and together half of the usual limit of 1,024 open files.
/// Beyond, they stay in the queue.
const WAITING_MAX: usize = 256;
/// Attempts for one binary: with pauses that double from [`PAUSE`] they span an hour, longer than a store is away by plan.
const ATTEMPTS_MAX: u32 = 8;
/// Pause before the second attempt.
const PAUSE: Duration = Duration::from_secs(30);
/// Niceness: uploads take what the host does not need.
const NICE: i32 = 19;
const WAIT: Duration = Duration::from_millis(500);

/// A binary that was seen for the first time.
#[derive(Debug)]
pub struct NewBinary {
    /// What kind of identity `id` is.
    pub kind: BinaryKind,
    /// Its identity.
    pub id: BuildId,
    /// Its path as the process saw it.
    pub path: String,
    /// The open file.
    pub file: File,
}

/// A binary on its way to the store.
struct Waiting {
    new: NewBinary,
    /// Whether the store was asked, and does not have it.
    is_wanted: bool,
    /// Bytes that the rate has not let through yet.
    unpaid: u64,
    attempts: u32,
    due: Instant,
}

impl Waiting {
    fn new(new: NewBinary, bytes: u64) -> Self {
        Self {
            new,
            is_wanted: false,
            unpaid: bytes,
            attempts: 0,
            due: Instant::now(),
        }
    }

    /// Notes that an attempt failed; returns it for another one, later, or nothing after the last.
    fn again(mut self, now: Instant) -> Option<Self> {
        self.due = now + PAUSE * 2_u32.pow(self.attempts.min(ATTEMPTS_MAX));
        self.attempts += 1;
        (self.attempts < ATTEMPTS_MAX).then_some(self)
    }
}

/// Returns which one is next: the smallest of those that are due, so that a compiler of 200 MB does not hold up the hundred
/// services that people look for.
fn next(waiting: &[Waiting], now: Instant) -> Option<usize> {
    let due = waiting.iter().enumerate().filter(|(_, one)| one.due <= now);
    due.min_by_key(|(_, one)| one.unpaid).map(|(at, _)| at)
}

/// Uploads what comes until the wish to stop.
///
/// # Errors
/// [`StoreError`] where the store cannot be opened; trouble with one binary is counted and logged.
pub fn run(
    store: PathBuf,
    limits: &BinariesConfig,
    from: &Receiver<NewBinary>,
    status: &Arc<Status>,
    shutdown: &Shutdown,
) -> Result<(), StoreError> {
    // Of this thread alone: that is what the kernel takes 0 for. Failing is no reason not to upload.
    let _ = rustix::process::setpriority_process(None, NICE);
    let store = Store::in_folder(store)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .thread_name("binaries-io")
        // One file at a time; idle threads go at once, as the last binary may be the last for days.
        .max_blocking_threads(2)
        .thread_keep_alive(WAIT)
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        tracing::error!("binaries are not uploaded: no runtime can be had");
        return Ok(());
    };
    let rate = NonZeroU32::new(limits.bytes_per_second).unwrap_or(NonZeroU32::MIN);
    let limiter = RateLimiter::direct(Quota::per_second(rate));
    let mut waiting: Vec<Waiting> = Vec::new();
    let take = |waiting: &mut Vec<Waiting>, new: NewBinary| {
        let bytes = new.file.metadata().map_or(0, |meta| meta.len());
        if bytes <= limits.file_bytes_max {
            waiting.push(Waiting::new(new, bytes));
            return;
        }
        tracing::info!(
            path = new.path,
            bytes,
            limit = limits.file_bytes_max,
            "binary is over the limit: not uploaded"
        );
        status.uploaded(Uploaded::TooBig);
    };
    while !shutdown.is_requested() {
        while waiting.len() < WAITING_MAX
            && let Ok(new) = from.try_recv()
        {
            take(&mut waiting, new);
        }
        let Some(at) = next(&waiting, Instant::now()) else {
            match from.recv_timeout(WAIT) {
                Ok(new) => take(&mut waiting, new),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            continue;
        };
        let one = &mut waiting[at];
        let result = runtime.block_on(async {
            tokio::select! {
                result = advance(&store, one, &limiter, rate) => Some(result),
                () = shutdown.requested() => None,
            }
        });
        let path = one.new.path.as_str();
        match result {
            None => break,
            Some(Ok(None)) => continue,
            Some(Ok(Some(Put::Stored { bytes, .. }))) => {
                tracing::debug!(path, bytes, "binary uploaded");
                status.uploaded(Uploaded::Stored);
                waiting.swap_remove(at);
            }
            Some(Ok(Some(Put::AlreadyThere))) => {
                status.uploaded(Uploaded::AlreadyThere);
                waiting.swap_remove(at);
            }
            Some(Err(error)) => {
                tracing::warn!(%error, path, attempts = one.attempts + 1, "binary not uploaded");
                status.uploaded(Uploaded::Failed);
                let one = waiting.swap_remove(at);
                if error.is_transient() {
                    waiting.extend(one.again(Instant::now()));
                }
            }
        }
    }
    Ok(())
}

type Limiter = RateLimiter<
    governor::state::NotKeyed,
    governor::state::InMemoryState,
    governor::clock::DefaultClock,
    governor::middleware::NoOpMiddleware,
>;

/// Goes one step, of a second at most but for the upload itself: then a smaller binary may have come. Returns nothing while there
/// is more to do.
async fn advance(
    store: &Store,
    one: &mut Waiting,
    limiter: &Limiter,
    rate: NonZeroU32,
) -> Result<Option<Put>, StoreError> {
    let key = BinaryKey {
        kind: one.new.kind,
        id: one.new.id.clone(),
    };
    if !one.is_wanted {
        if store.known(&key).await? {
            return Ok(Some(Put::AlreadyThere));
        }
        one.is_wanted = true;
    }
    // A file is paid for before it is read: over time the rate holds, and no file is read half.
    if let Some(part) = NonZeroU32::new(one.unpaid.min(u64::from(rate.get())) as u32) {
        // A part is never above the burst, which is what this could fail for.
        let _ = limiter.until_n_ready(part).await;
        one.unpaid -= u64::from(part.get());
    }
    match one.unpaid {
        0 => Ok(Some(store.put(&key, rewound(&one.new.file)?, None).await?)),
        _ => Ok(None),
    }
}

/// Returns the file once more, read from its start.
fn rewound(file: &File) -> Result<File, StoreError> {
    use std::io::Seek;
    let read = |source| StoreError::Read {
        object: "the binary".to_owned(),
        source,
    };
    let mut again = file.try_clone().map_err(read)?;
    again.rewind().map_err(read)?;
    Ok(again)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn binary(bytes: u64) -> Waiting {
        let new = NewBinary {
            kind: BinaryKind::Gnu,
            id: BuildId::new(&[1; 20]).unwrap(),
            path: String::new(),
            file: tempfile::tempfile().unwrap(),
        };
        Waiting::new(new, bytes)
    }

    /// Checks that a binary is tried again with growing pauses, and not for ever.
    #[test]
    fn attempts_grow_rare_and_end() {
        let now = Instant::now();
        let mut one = Some(binary(1));
        let mut pauses = Vec::new();
        while let Some(again) = one.take().and_then(|one| one.again(now)) {
            pauses.push(again.due - now);
            one = Some(again);
        }
        assert_eq!(pauses.len() as u32, ATTEMPTS_MAX - 1);
        assert!(pauses.windows(2).all(|pair| pair[1] == 2 * pair[0]));
        assert!(pauses.iter().sum::<Duration>() > Duration::from_secs(3_600));
    }

    /// Checks that the smallest binary is next, whatever came first, but none that is to wait.
    #[test]
    fn the_smallest_that_is_due_is_next() {
        let now = Instant::now() + Duration::from_secs(1);
        let mut waiting = vec![binary(200), binary(10), binary(50)];
        assert_eq!(next(&waiting, now), Some(1));
        waiting[1].due = now + PAUSE;
        assert_eq!(next(&waiting, now), Some(2));
        assert_eq!(next(&[], now), None);
    }

    /// Checks that an announced binary is in the store's folder, and counted, when the thread has ended.
    #[test]
    fn an_announced_binary_is_uploaded() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, receiver) = sync_channel(QUEUE);
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let id = BuildId::new(&[7; 20]).unwrap();
        let (kind, path) = (BinaryKind::Gnu, "/bin/own".to_owned());
        sender
            .send(NewBinary {
                kind,
                id: id.clone(),
                path,
                file,
            })
            .unwrap();
        drop(sender);
        let status = Arc::new(Status::default());
        let limits = BinariesConfig {
            bytes_per_second: u32::MAX,
            ..BinariesConfig::default()
        };
        let store = folder.path().to_owned();
        run(store, &limits, &receiver, &status, &Shutdown::default()).unwrap();
        let store = Store::in_folder(folder.path().to_owned()).unwrap();
        let known = tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(store.known(&BinaryKey { kind, id }));
        assert!(known.unwrap());
    }
}
