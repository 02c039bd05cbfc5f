//! The tables thread: binaries → their unwind tables, kept on disk, or made by a worker process.
//!
//! It stands between the sampling thread, which waits for nobody, and work that may take a second. Most binaries take a
//! millisecond, and should not stand behind the one that takes a second: large ones have a thread of their own. Of what waits for a
//! thread, the smallest binary comes first, and every other turn is for the one that waits longest, so that on a host where
//! new programs come all the time each has its turn. Not with a lower priority than the agent's: on a busy host, where stacks are wanted
//! most, tables would come last.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use sha2::{Digest, Sha256};
use strobe_bus::Shutdown;
use strobe_event::{BinaryKind, BuildId};
use strobe_unwind::{Kept, Maker, UnwindError};

use crate::config::UnwindConfig;
use crate::files::FileId;
use crate::status::Status;

/// Binaries that may wait to be looked at by this thread: beyond, the sampling thread asks again.
pub const QUEUE: usize = 64;
/// Binaries that wait for a worker, each with its file open. As many as a busy host runs when the agent starts.
const WAITING_MAX: usize = 256;
/// Tables that may wait to be taken: each may have some MiB.
pub const MADE_QUEUE: usize = 4;
/// Longest build id that is part of a file's name as it is: SHA-1, as linkers write it.
const PLAIN_ID_BYTES: usize = 20;
const WAIT: Duration = Duration::from_millis(500);
/// Size of a file from which on it is large: it takes some 100 ms.
const LARGE_BYTES: u64 = 16 << 20;
/// Pause before a finished table is offered again, when the sampling thread has not taken those before.
const OFFER_AGAIN: Duration = Duration::from_millis(5);

/// A binary whose table is wanted.
#[derive(Debug)]
pub struct Wanted {
    /// Which file.
    pub id: FileId,
    /// Since when its number means that file.
    pub generation: u64,
    /// The name of its table.
    pub key: String,
    /// The binary itself.
    pub file: File,
}

/// What became of it.
#[derive(Debug)]
pub struct Made {
    /// Which file.
    pub id: FileId,
    /// As it was asked.
    pub generation: u64,
    /// Its table; nothing where there can be none.
    pub table: Option<Vec<u8>>,
}

/// Returns the name under which the table of a binary is kept.
pub fn key(kind: BinaryKind, id: &BuildId) -> String {
    let kind = kind as u8;
    if id.as_bytes().len() <= PLAIN_ID_BYTES {
        return format!("{kind}-{id}");
    }
    let hash = Sha256::digest(id.as_bytes());
    let hash = hash.iter().take(PLAIN_ID_BYTES);
    let hash: String = hash.map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-h{hash}")
}

/// Returns where tables come from.
///
/// # Errors
/// [`UnwindError::File`] where the folder cannot be used.
pub fn maker(config: &UnwindConfig, state_dir: &Path) -> Result<Maker, UnwindError> {
    let kept = Kept::open(&state_dir.join("tables"), config.kept_bytes_max)?;
    Ok(Maker::new(config.worker.clone(), kept))
}

/// Makes what is asked for until the wish to stop.
pub fn run(
    maker: &Maker,
    from: &Receiver<Wanted>,
    to: &SyncSender<Made>,
    status: &Arc<Status>,
    shutdown: &Shutdown,
) {
    let (to_large, large) = sync_channel(QUEUE);
    let other = maker.clone();
    std::thread::scope(|scope| {
        let large = std::thread::Builder::new()
            .name("large tables".to_owned())
            .spawn_scoped(scope, move || make(&other, &large, to, status, shutdown, None));
        if let Err(error) = &large {
            tracing::warn!(%error, "large binaries stand in the way of small ones");
        }
        make(
            maker,
            from,
            to,
            status,
            shutdown,
            large.is_ok().then_some(&to_large),
        );
        // So that the other ends, too.
        drop(to_large);
    });
}

/// Makes what comes, but hands on what is large where somebody takes it.
fn make(
    maker: &Maker,
    from: &Receiver<Wanted>,
    to: &SyncSender<Made>,
    status: &Status,
    shutdown: &Shutdown,
    to_large: Option<&SyncSender<Wanted>>,
) {
    let mut waiting: Vec<(u64, Wanted)> = Vec::new();
    let mut turn = 0_u64;
    while !shutdown.is_requested() {
        if waiting.is_empty() {
            match from.recv_timeout(WAIT) {
                Ok(wanted) => waiting.extend(sized(wanted, to_large)),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let room = WAITING_MAX.saturating_sub(waiting.len());
        waiting.extend(
            from.try_iter()
                .take(room)
                .filter_map(|wanted| sized(wanted, to_large)),
        );
        turn += 1;
        let Some(at) = next(&waiting, turn) else { continue };
        let (_, wanted) = waiting.remove(at);
        let mut made = made_of(maker, wanted);
        status.tables_made(maker.made(), maker.refused(), maker.kept().bytes());
        while !shutdown.is_requested() {
            match to.try_send(made) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) => {
                    made = back;
                    std::thread::sleep(OFFER_AGAIN);
                }
            }
        }
    }
}

fn made_of(maker: &Maker, wanted: Wanted) -> Made {
    let key = wanted.key;
    let table = match maker.table(&key, wanted.file) {
        Ok(table) => Some(table),
        // What many binaries lack is no trouble.
        Err(error @ (UnwindError::NotElf | UnwindError::NoFrameInfo)) => {
            tracing::debug!(%error, key, "no unwind table");
            None
        }
        Err(error) => {
            tracing::warn!(%error, key, "no unwind table; stacks go through it by frame pointers");
            None
        }
    };
    Made {
        id: wanted.id,
        generation: wanted.generation,
        table,
    }
}

/// Returns which one comes next: by turns the smallest, and the one that waits longest.
fn next<T>(waiting: &[(u64, T)], turn: u64) -> Option<usize> {
    if turn.is_multiple_of(2) {
        return (!waiting.is_empty()).then_some(0);
    }
    (0..waiting.len()).min_by_key(|&at| waiting.get(at).map(|(bytes, _)| *bytes))
}

/// Returns a binary with its size; nothing where it is large and somebody else has taken it.
fn sized(wanted: Wanted, to_large: Option<&SyncSender<Wanted>>) -> Option<(u64, Wanted)> {
    let bytes = wanted.file.metadata().map_or(u64::MAX, |meta| meta.len());
    match to_large {
        Some(to_large) if bytes >= LARGE_BYTES => match to_large.try_send(wanted) {
            Ok(()) => None,
            Err(TrySendError::Full(wanted) | TrySendError::Disconnected(wanted)) => Some((bytes, wanted)),
        },
        _ => Some((bytes, wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Backing, Files, MappedFile};

    /// Checks that the small come first, and that a large one is not passed over for ever while small ones keep coming.
    #[test]
    fn the_small_come_first_and_the_large_have_their_turn() {
        let mut waiting = vec![(1_000_000, "large"), (5, "small"), (3, "smaller")];
        assert_eq!(next(&waiting, 1), Some(2));
        let (mut turn, mut passed) = (0, 0);
        loop {
            turn += 1;
            if waiting.remove(next(&waiting, turn).unwrap()).1 == "large" {
                break;
            }
            passed += 1;
            waiting.push((1, "new"));
        }
        assert!(passed <= 2, "{passed}");
        assert_eq!(next::<()>(&[], 1), None);
    }

    /// Checks that a small binary has its table while that of a large one, which came first, is still being made.
    #[test]
    fn a_large_binary_stands_in_no_small_ones_way() {
        let folder = tempfile::tempdir().unwrap();
        let go_on = folder.path().join("go-on");
        let script = format!(
            "while [ $1 = large ] && [ ! -e {} ]; do sleep 0.02; done",
            go_on.display()
        );
        let command = ["/bin/sh", "-c", &script, "sh"].map(Into::into).to_vec();
        let maker = Maker::new(command, Kept::open(&folder.path().join("kept"), 1 << 20).unwrap());
        let (to_make, wanted) = sync_channel(QUEUE);
        let (to, made) = sync_channel(MADE_QUEUE);
        let shutdown = Shutdown::new();
        let token = shutdown.clone();
        let thread =
            std::thread::spawn(move || run(&maker, &wanted, &to, &Arc::new(Status::default()), &token));
        let mut files = Files::new(None);
        for (name, bytes) in [("large", LARGE_BYTES), ("small", 10)] {
            let path = folder.path().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            let key = name.to_owned();
            let file = File::open(path).unwrap();
            let mapped = MappedFile {
                pid: 0,
                range: (0, 0),
                path: name,
                build_id: None,
                inode: Some(((0, 0), bytes, 0)),
            };
            let (Backing::File(id), generation) = (files.backing(&mapped), bytes) else {
                panic!("{name} is a file");
            };
            to_make
                .send(Wanted {
                    id,
                    generation,
                    key,
                    file,
                })
                .unwrap();
        }
        let patience = Duration::from_secs(60);
        assert_eq!(made.recv_timeout(patience).unwrap().generation, 10);
        std::fs::write(&go_on, "").unwrap();
        assert_eq!(made.recv_timeout(patience).unwrap().generation, LARGE_BYTES);
        shutdown.request();
        thread.join().unwrap();
    }

    /// Checks that every binary has a name of its own that can be part of a path, however long its build id is.
    #[test]
    fn every_binary_has_a_name_of_its_own() {
        let ids: Vec<BuildId> = (1..=32_usize)
            .filter_map(|length| BuildId::new(&vec![7; length]))
            .collect();
        let mut keys: Vec<String> = [BinaryKind::Gnu, BinaryKind::Go]
            .into_iter()
            .flat_map(|kind| ids.iter().map(move |id| key(kind, id)))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::open(folder.path(), 1 << 20).unwrap();
        assert!(keys.iter().all(|key| kept.begin(key).is_ok()));
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!((keys.len(), count), (count, 2 * ids.len()));
    }
}
