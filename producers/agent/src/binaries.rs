//! The binaries thread: each newly seen binary → the symbol store, once, within limits on size and rate.
//!
//! It holds the file open since it was first seen, so that a binary that is deleted or replaced meanwhile still gets there. What the
//! store's trouble held up is tried again, later and later.

use std::collections::VecDeque;
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

/// Binaries that may wait, each with its file open. Beyond, a binary is announced when it is next mapped.
pub const QUEUE: usize = 512;
/// Binaries that may wait for another attempt, each with its file open. Beyond, the one that waits longest is given up.
const AGAIN_MAX: usize = 256;
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

/// A binary whose upload failed, and when it is tried again.
struct Again {
    new: NewBinary,
    attempts: u32,
    due: Instant,
}

impl Again {
    /// Returns when to try once more, or nothing after the last attempt.
    fn after(new: NewBinary, attempts: u32, now: Instant) -> Option<Self> {
        let pause = PAUSE * 2_u32.pow(attempts.saturating_sub(1).min(ATTEMPTS_MAX));
        (attempts < ATTEMPTS_MAX).then(|| Self {
            new,
            attempts,
            due: now + pause,
        })
    }
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
    let mut waiting: VecDeque<Again> = VecDeque::new();
    while !shutdown.is_requested() {
        let now = Instant::now();
        let due = waiting.iter().position(|again| again.due <= now);
        let (new, attempts) = match due.and_then(|at| waiting.remove(at)) {
            Some(again) => (again.new, again.attempts),
            None => match from.recv_timeout(WAIT) {
                Ok(new) => (new, 0),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            },
        };
        let bytes = new.file.metadata().map_or(0, |meta| meta.len());
        if bytes > limits.file_bytes_max {
            tracing::info!(
                path = new.path,
                bytes,
                limit = limits.file_bytes_max,
                "binary is over the limit: not uploaded"
            );
            status.uploaded(Uploaded::TooBig);
            continue;
        }
        let path = new.path.as_str();
        let result = runtime.block_on(async {
            tokio::select! {
                result = upload(&store, &new, bytes, &limiter, rate) => Some(result),
                () = shutdown.requested() => None,
            }
        });
        match result {
            Some(Ok(Put::Stored { bytes, .. })) => {
                tracing::debug!(path, bytes, "binary uploaded");
                status.uploaded(Uploaded::Stored);
            }
            Some(Ok(Put::AlreadyThere)) => status.uploaded(Uploaded::AlreadyThere),
            Some(Err(error)) => {
                tracing::warn!(%error, path, attempts = attempts + 1, "binary not uploaded");
                status.uploaded(Uploaded::Failed);
                if error.is_transient()
                    && let Some(again) = Again::after(new, attempts + 1, Instant::now())
                {
                    if waiting.len() == AGAIN_MAX {
                        waiting.pop_front();
                    }
                    waiting.push_back(again);
                }
            }
            None => break,
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

async fn upload(
    store: &Store,
    new: &NewBinary,
    bytes: u64,
    limiter: &Limiter,
    rate: NonZeroU32,
) -> Result<Put, StoreError> {
    let key = BinaryKey {
        kind: new.kind,
        id: new.id.clone(),
    };
    if store.known(&key).await? {
        return Ok(Put::AlreadyThere);
    }
    // A file is paid for before it is read: over time the rate holds, and no file is read half.
    let mut left = bytes;
    while left > 0 {
        let part = NonZeroU32::new(left.min(u64::from(rate.get())) as u32).unwrap_or(NonZeroU32::MIN);
        // A part is never above the burst, which is what this could fail for.
        let _ = limiter.until_n_ready(part).await;
        left -= u64::from(part.get());
    }
    store.put(&key, rewound(&new.file)?, None).await
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

    /// Checks that a binary is tried again with growing pauses, and not for ever.
    #[test]
    fn attempts_grow_rare_and_end() {
        let new = || NewBinary {
            kind: BinaryKind::Gnu,
            id: BuildId::new(&[1; 20]).unwrap(),
            path: String::new(),
            file: tempfile::tempfile().unwrap(),
        };
        let now = Instant::now();
        let pauses: Vec<Duration> = (1..)
            .map_while(|attempts| Again::after(new(), attempts, now))
            .map(|again| again.due - now)
            .collect();
        assert_eq!(pauses.len() as u32, ATTEMPTS_MAX - 1);
        assert!(pauses.windows(2).all(|pair| pair[1] == 2 * pair[0]));
        assert!(pauses.iter().sum::<Duration>() > Duration::from_secs(3_600));
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
