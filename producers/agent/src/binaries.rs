//! The binaries thread: each newly seen binary → the symbol store, once, within limits on size and rate.
//!
//! It holds the file open since it was first seen, so that a binary that is deleted or replaced meanwhile still gets there.

use std::fs::File;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use governor::{Quota, RateLimiter};
use strobe_bus::Shutdown;
use strobe_event::{BinaryKind, BuildId};
use strobe_store::{BinaryKey, Put, Store, StoreError};

use crate::config::BinariesConfig;
use crate::status::{Status, Uploaded};

/// Binaries that may wait, each with its file open. Beyond, a binary is announced when it is seen by the next agent.
pub const QUEUE: usize = 512;
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
    while !shutdown.is_requested() {
        let new = match from.recv_timeout(WAIT) {
            Ok(new) => new,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
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
        let path = new.path.clone();
        let result = runtime.block_on(async {
            tokio::select! {
                result = upload(&store, new, bytes, &limiter, rate) => Some(result),
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
                tracing::warn!(%error, path, "binary not uploaded");
                status.uploaded(Uploaded::Failed);
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
    new: NewBinary,
    bytes: u64,
    limiter: &Limiter,
    rate: NonZeroU32,
) -> Result<Put, StoreError> {
    let key = BinaryKey {
        kind: new.kind,
        id: new.id,
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
    store.put(&key, rewound(new.file)?, None).await
}

fn rewound(mut file: File) -> Result<File, StoreError> {
    use std::io::Seek;
    file.rewind().map_err(|source| StoreError::Read {
        object: "the binary".to_owned(),
        source,
    })?;
    Ok(file)
}
