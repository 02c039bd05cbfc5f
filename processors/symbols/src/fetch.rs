//! From a build id to a file on this host: the store's own file, or a copy in a bounded folder.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::SystemTime;

use futures::StreamExt;
use object_store::{ObjectStoreExt, path};
use strobe_store::{BinaryKey, Store, StoreError};
use tokio::runtime::Runtime;

/// Where a binary is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// In this file.
    At(PathBuf),
    /// Not in the store.
    Missing,
    /// In the store, and bigger than may be fetched.
    TooBig,
}

/// What tells a file from another one that takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// Returns the stamp of a file; nothing where there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self {
            inode: meta.ino(),
            bytes: meta.len(),
            modified: meta.modified().ok(),
        })
    }
}

/// The binaries of a store, as files.
///
/// Calls block; they may be made from anywhere, async code included, at the price of holding it up.
#[derive(Debug)]
pub struct Binaries {
    store: Store,
    copies: Option<Copies>,
}

/// Copies of a remote store's binaries.
#[derive(Debug)]
struct Copies {
    folder: PathBuf,
    bytes_max: u64,
    /// The store's connections live here, so that they outlive one call. Always present until dropped.
    runtime: Option<Runtime>,
}

impl Binaries {
    /// Returns the binaries of a store that is a folder; they are read where they lie.
    ///
    /// A store that is not one gives [`Found::Missing`] for everything: use [`Binaries::of_remote`].
    pub fn of_folder(store: Store) -> Self {
        Self { store, copies: None }
    }

    /// Returns the binaries of any store, by way of copies in `folder`: at most `bytes_max`, the least recently used
    /// are removed first. The folder must belong to this process alone.
    ///
    /// # Errors
    /// [`StoreError::Folder`] where the folder cannot be made or threads cannot be started.
    pub fn of_remote(store: Store, folder: impl Into<PathBuf>, bytes_max: u64) -> Result<Self, StoreError> {
        let folder = folder.into();
        let refused = |source| StoreError::Folder {
            folder: folder.clone(),
            source,
        };
        fs::create_dir_all(&folder).map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("symbol-store")
            .enable_all()
            .build()
            .map_err(refused)?;
        Ok(Self {
            store,
            copies: Some(Copies {
                folder,
                bytes_max,
                runtime: Some(runtime),
            }),
        })
    }

    /// Returns where the binary is, after fetching it where that is needed.
    ///
    /// # Errors
    /// [`StoreError`] where the store does not answer, or the copy cannot be written.
    pub fn find(&self, key: &BinaryKey) -> Result<Found, StoreError> {
        self.object(&key.executable())
    }

    /// Returns where an object of the store is, after fetching it where that is needed.
    ///
    /// # Errors
    /// As [`Binaries::find`].
    pub fn object(&self, object: &str) -> Result<Found, StoreError> {
        match (&self.copies, self.store.folder()) {
            (Some(copies), _) => copies.find(&self.store, object),
            (None, Some(root)) => {
                let place = root.join(object);
                Ok(if place.is_file() {
                    Found::At(place)
                } else {
                    Found::Missing
                })
            }
            (None, None) => Ok(Found::Missing),
        }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

impl Copies {
    fn find(&self, store: &Store, object: &str) -> Result<Found, StoreError> {
        let name = object.replace('/', "-");
        let place = self.folder.join(&name);
        if let Ok(copy) = File::options().write(true).open(&place) {
            // The time of use, for the order of removal; a copy that cannot be marked is only removed earlier.
            let _ = copy.set_modified(SystemTime::now());
            return Ok(Found::At(place));
        }
        let Some(runtime) = &self.runtime else {
            return Ok(Found::Missing);
        };
        let (send, receive) = mpsc::sync_channel(1);
        let (store, object, folder) = (store.clone(), object.to_owned(), self.folder.clone());
        let bytes_max = self.bytes_max;
        runtime.spawn(async move {
            let copied = copy(&store, &object, &folder, &place, bytes_max).await;
            // The receiver waits below for as long as this runs.
            let _ = send.send(copied);
        });
        // An error here means that the task was ended with the runtime, which happens on drop alone.
        receive.recv().unwrap_or(Ok(Found::Missing))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Dropping a runtime waits for it, which async code must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Fetches an object into `place`, whole or not at all.
async fn copy(
    store: &Store,
    object: &str,
    folder: &Path,
    place: &Path,
    bytes_max: u64,
) -> Result<Found, StoreError> {
    let failed = |source| StoreError::Store {
        what: "fetching",
        object: object.to_owned(),
        source,
    };
    let refused = |source| StoreError::Folder {
        folder: folder.to_owned(),
        source,
    };
    let got = match store.objects().get(&path::Path::from(object)).await {
        Ok(got) => got,
        Err(object_store::Error::NotFound { .. }) => return Ok(Found::Missing),
        Err(source) => return Err(failed(source)),
    };
    let bytes = got.meta.size;
    if bytes > bytes_max {
        return Ok(Found::TooBig);
    }
    make_room(folder, bytes_max - bytes).map_err(refused)?;
    let partial = place.with_extension("partial");
    let mut file = File::create(&partial).map_err(refused)?;
    let mut stream = got.into_stream();
    while let Some(part) = stream.next().await {
        file.write_all(&part.map_err(failed)?).map_err(refused)?;
    }
    drop(file);
    fs::rename(&partial, place).map_err(refused)?;
    Ok(Found::At(place.to_owned()))
}

/// Removes the least recently used copies until at most `bytes_left` stay.
fn make_room(folder: &Path, bytes_left: u64) -> std::io::Result<()> {
    let mut copies = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        copies.push((meta.modified()?, meta.len(), entry.path()));
    }
    copies.sort_unstable();
    let mut held: u64 = copies.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in copies {
        if held <= bytes_left {
            break;
        }
        // A worker that still has it mapped keeps it until it lets go.
        fs::remove_file(path)?;
        held -= bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use std::sync::Arc;
    use strobe_event::{BinaryKind, BuildId};

    fn key(id: u8) -> BinaryKey {
        BinaryKey {
            kind: BinaryKind::Gnu,
            id: BuildId::new(&[id]).unwrap(),
        }
    }

    async fn filled(bytes: usize) -> Store {
        let store = Store::on(Arc::new(InMemory::new()));
        for id in 1..=4 {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&vec![id; bytes]).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            store.put(&key(id), file, None).await.unwrap();
        }
        store
    }

    /// Checks that a remote store's binaries are copied whole, from async code too, and that the folder keeps its
    /// bound by removing what was used longest ago.
    #[tokio::test]
    async fn copies_of_a_remote_store_keep_their_bound() {
        let folder = tempfile::tempdir().unwrap();
        let binaries = Binaries::of_remote(filled(1_000).await, folder.path(), 2_500).unwrap();
        for id in [1, 2, 1, 3, 4] {
            let Found::At(place) = binaries.find(&key(id)).unwrap() else {
                panic!("{id} is in the store")
            };
            assert_eq!(fs::read(place).unwrap(), [id; 1_000]);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(
            !left.iter().any(|path| path.ends_with("gnu-02-executable")),
            "used longest ago"
        );
        assert_eq!(binaries.find(&key(9)).unwrap(), Found::Missing);
    }

    /// Checks that what is bigger than the folder may hold is not fetched.
    #[tokio::test]
    async fn what_is_too_big_is_not_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let binaries = Binaries::of_remote(filled(1_000).await, folder.path(), 999).unwrap();
        assert_eq!(binaries.find(&key(1)).unwrap(), Found::TooBig);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
