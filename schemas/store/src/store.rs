//! The symbol store: binaries by build id, on any `object_store`.
//!
//! Layout, under the store's root: `<kind>/<build id in hexadecimal>/executable`; what else lies there: [`crate::index`].
//! `<kind>` is `gnu`, `go`, `file`, `kernel`, `module` or `vdso`. An upload becomes visible when it is complete, in
//! one step, and what is there is not written again: a build id stands for one content.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, path};
use sha2::{Digest, Sha256};
use strobe_event::{BinaryKind, BuildId};

use crate::error::StoreError;

/// Bytes of one part of an upload to a remote store: the least that S3 takes.
const REMOTE_PART_BYTES: usize = 5 << 20;

/// Bytes of one part of an upload to a folder: small, because it is resident in the agent while it travels.
const FOLDER_PART_BYTES: usize = 256 << 10;

/// Age at which what an upload left behind when it was killed is cleared away: far longer than any upload takes.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Name of a binary in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryKey {
    /// What kind of identity `id` is.
    pub kind: BinaryKind,
    /// The identity.
    pub id: BuildId,
}

impl BinaryKey {
    /// Returns the name of the kind, as folders of the store bear it.
    pub fn kind_name(&self) -> &'static str {
        Self::name_of(self.kind)
    }

    pub(crate) fn name_of(kind: BinaryKind) -> &'static str {
        match kind {
            BinaryKind::Gnu => "gnu",
            BinaryKind::Go => "go",
            BinaryKind::FileHash => "file",
            BinaryKind::Kernel => "kernel",
            BinaryKind::KernelModule => "module",
            BinaryKind::Vdso => "vdso",
        }
    }

    /// Returns the binary's object of a name, relative to the store's root.
    pub(crate) fn object(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.kind_name(), self.id)
    }

    /// Returns the object that holds the binary.
    pub fn executable(&self) -> String {
        self.object("executable")
    }

    /// Returns the object that holds the binary's separate debug information.
    pub fn debuginfo(&self) -> String {
        self.object("debuginfo")
    }
}

/// SHA-256 of a binary's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What became of a [`Store::put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The binary is in the store now.
    Stored {
        /// Its length.
        bytes: u64,
        /// Its hash.
        hash: ContentHash,
    },
    /// It had been there before; nothing was read or written.
    AlreadyThere,
}

/// The symbol store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    folder: Option<PathBuf>,
}

impl Store {
    /// Opens the store in a local folder, which is made if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Folder`] where that cannot be.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let folder = folder.into();
        let refused = |source| StoreError::Folder {
            folder: folder.clone(),
            source,
        };
        std::fs::create_dir_all(&folder).map_err(refused)?;
        let absolute = std::fs::canonicalize(&folder).map_err(refused)?;
        let objects = LocalFileSystem::new_with_prefix(&absolute).map_err(|source| StoreError::Store {
            what: "opening",
            object: folder.display().to_string(),
            source,
        })?;
        Ok(Self {
            objects: Arc::new(objects),
            folder: Some(absolute),
        })
    }

    /// Returns the store on any other `object_store`.
    pub fn on(objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            objects,
            folder: None,
        }
    }

    /// Returns the local folder, where the store is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the objects below the layout.
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Returns whether the store has the binary.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn known(&self, key: &BinaryKey) -> Result<bool, StoreError> {
        self.has(&key.executable()).await
    }

    /// Returns whether the store has an object.
    ///
    /// # Errors
    /// [`StoreError::Store`] where the store does not answer.
    pub async fn has(&self, object: &str) -> Result<bool, StoreError> {
        let object = object.to_owned();
        match self.objects.head(&path::Path::from(object.as_str())).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(source) => Err(StoreError::Store {
                what: "looking for",
                object,
                source,
            }),
        }
    }

    /// Puts a binary into the store unless it is there, reading `file` from its present position to its end.
    ///
    /// With `expected`, what was read must have that hash, or nothing is stored: the file of a running program may
    /// be replaced at any moment. Two that put the same binary at once both succeed, and the object is whole at
    /// every moment.
    ///
    /// # Errors
    /// [`StoreError`] says whether reading, the hash or the store was at fault; nothing partial is visible.
    pub async fn put(
        &self,
        key: &BinaryKey,
        file: File,
        expected: Option<ContentHash>,
    ) -> Result<Put, StoreError> {
        self.put_object(&key.executable(), file, expected).await
    }

    /// Puts an object of a binary into the store unless it is there, in the same way.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn put_object(
        &self,
        object: &str,
        file: File,
        expected: Option<ContentHash>,
    ) -> Result<Put, StoreError> {
        if self.has(object).await? {
            return Ok(Put::AlreadyThere);
        }
        self.write_object(object, file, expected).await
    }

    /// Puts an object into the store in the place of the one that is there, if any: at every moment one of the two is
    /// there, whole. For what is made of binaries; what was uploaded is never rewritten.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn replace_object(&self, object: &str, file: File) -> Result<Put, StoreError> {
        self.write_object(object, file, None).await
    }

    async fn write_object(
        &self,
        object: &str,
        file: File,
        expected: Option<ContentHash>,
    ) -> Result<Put, StoreError> {
        self.clear_leftovers(object);
        let object = object.to_owned();
        let failed = |what| {
            let object = object.clone();
            move |source| StoreError::Store { what, object, source }
        };
        let location = path::Path::from(object.as_str());
        let mut upload = self
            .objects
            .put_multipart(&location)
            .await
            .map_err(failed("starting"))?;
        let part_bytes = if self.folder.is_some() {
            FOLDER_PART_BYTES
        } else {
            REMOTE_PART_BYTES
        };
        let mut parts = Parts {
            file,
            bytes_max: part_bytes,
            digest: Sha256::new(),
            bytes: 0,
        };
        let sent = async {
            loop {
                // One part at a time: what is resident is one part, and disk and network are shared with the host.
                let (back, part) = parts
                    .next()
                    .await
                    .map_err(|source| read_failed(&object, source))?;
                parts = back;
                if part.is_empty() {
                    break;
                }
                upload
                    .put_part(PutPayload::from(part))
                    .await
                    .map_err(failed("writing"))?;
            }
            let hash = ContentHash(parts.digest.finalize().into());
            match expected {
                Some(expected) if expected != hash => Err(StoreError::Changed {
                    object: object.clone(),
                    expected: expected.to_string(),
                    found: hash.to_string(),
                }),
                _ => Ok((parts.bytes, hash)),
            }
        }
        .await;
        match sent {
            Ok((bytes, hash)) => {
                upload.complete().await.map_err(failed("completing"))?;
                Ok(Put::Stored { bytes, hash })
            }
            Err(error) => {
                // The first error is the one to tell; what cannot be taken back now is cleared by a later `put`.
                if let Err(abort) = upload.abort().await {
                    tracing::debug!(%object, error = %abort, "upload could not be taken back");
                }
                Err(error)
            }
        }
    }

    /// Clears what earlier uploads of the same binary left behind when they were killed.
    ///
    /// A folder store stages an upload of `executable` as `executable#<number>` beside its place; nothing else would remove it.
    fn clear_leftovers(&self, object: &str) {
        let Some(root) = &self.folder else { return };
        let place = root.join(object);
        let staged_as = place
            .file_name()
            .map(|name| format!("{}#", name.to_string_lossy()));
        let Some(entries) = place.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else {
            return;
        };
        for entry in entries.flatten() {
            let staged = entry
                .file_name()
                .to_str()
                .zip(staged_as.as_deref())
                .is_some_and(|(name, staged)| name.starts_with(staged));
            let age = entry
                .metadata()
                .ok()
                .and_then(|meta| meta.modified().ok()?.elapsed().ok());
            if staged
                && age.is_some_and(|age| age > LEFTOVER_AGE)
                && std::fs::remove_file(entry.path()).is_ok()
            {
                tracing::debug!(path = %entry.path().display(), "removed what a killed upload left");
            }
        }
    }
}

/// A file read part by part, off the async threads.
struct Parts {
    file: File,
    bytes_max: usize,
    digest: Sha256,
    bytes: u64,
}

impl Parts {
    /// Returns itself and the next part; an empty one is the end.
    async fn next(mut self) -> std::io::Result<(Self, Vec<u8>)> {
        tokio::task::spawn_blocking(move || {
            let mut part = Vec::with_capacity(self.bytes_max);
            let mut limited = (&mut self.file).take(self.bytes_max as u64);
            limited.read_to_end(&mut part)?;
            self.digest.update(&part);
            self.bytes += part.len() as u64;
            Ok((self, part))
        })
        .await
        .unwrap_or_else(|ended| Err(std::io::Error::other(ended)))
    }
}

fn read_failed(object: &str, source: std::io::Error) -> StoreError {
    StoreError::Read {
        object: object.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn key() -> BinaryKey {
        BinaryKey {
            kind: BinaryKind::Gnu,
            id: BuildId::new(&[0xab, 0x01]).unwrap(),
        }
    }

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.reopen().unwrap()
    }

    /// Checks that a binary is found under its build id after it was put, byte for byte, over several parts.
    #[tokio::test]
    async fn what_is_put_is_found_by_its_build_id() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::in_folder(folder.path()).unwrap();
        assert!(!store.known(&key()).await.unwrap());
        let content: Vec<u8> = (0..FOLDER_PART_BYTES * 2 + 77)
            .map(|at| (at % 251) as u8)
            .collect();
        let hash = ContentHash(Sha256::digest(&content).into());
        let put = store.put(&key(), file_of(&content), Some(hash)).await.unwrap();
        assert_eq!(
            put,
            Put::Stored {
                bytes: content.len() as u64,
                hash
            }
        );
        assert!(store.known(&key()).await.unwrap());
        assert_eq!(
            std::fs::read(folder.path().join("gnu/ab01/executable")).unwrap(),
            content
        );
    }

    /// Checks that what is in the store stays as it is, whatever is put under its name later.
    #[tokio::test]
    async fn what_is_there_is_not_rewritten() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::in_folder(folder.path()).unwrap();
        store.put(&key(), file_of(b"first"), None).await.unwrap();
        assert_eq!(
            store.put(&key(), file_of(b"second"), None).await.unwrap(),
            Put::AlreadyThere
        );
        assert_eq!(
            std::fs::read(folder.path().join("gnu/ab01/executable")).unwrap(),
            b"first"
        );
    }

    /// Checks that a binary which is not the announced one leaves no trace.
    #[tokio::test]
    async fn a_changed_binary_is_refused_whole() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::in_folder(folder.path()).unwrap();
        let error = store
            .put(&key(), file_of(b"other"), Some(ContentHash([0; 32])))
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Changed { .. }), "{error}");
        assert!(!store.known(&key()).await.unwrap());
        let left = std::fs::read_dir(folder.path().join("gnu/ab01")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "nothing partial stays");
    }

    /// Checks that an upload that was broken off is not visible, and that the next one is not disturbed by it.
    #[tokio::test]
    async fn a_partial_upload_is_never_visible() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::in_folder(folder.path()).unwrap();
        let location = path::Path::from(key().executable());
        let mut upload = store.objects.put_multipart(&location).await.unwrap();
        upload
            .put_part(PutPayload::from(b"half of it".to_vec()))
            .await
            .unwrap();
        // As after kill -9: neither completed nor taken back.
        std::mem::forget(upload);
        assert!(!store.known(&key()).await.unwrap());
        assert!(!folder.path().join("gnu/ab01/executable").exists());
        let staged = folder.path().join("gnu/ab01/executable#1");
        assert!(
            staged.exists(),
            "the place where uploads are staged has changed: clear_leftovers looks for it"
        );
        let old = std::time::SystemTime::now() - 2 * LEFTOVER_AGE;
        File::options()
            .write(true)
            .open(&staged)
            .unwrap()
            .set_modified(old)
            .unwrap();
        store.put(&key(), file_of(b"whole"), None).await.unwrap();
        assert_eq!(
            std::fs::read(folder.path().join("gnu/ab01/executable")).unwrap(),
            b"whole"
        );
        assert!(!staged.exists(), "what the killed upload left is cleared away");
    }

    /// Checks that many who put the same binary at once all succeed, with one whole object.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn putting_at_once_is_harmless() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::in_folder(folder.path()).unwrap();
        let content = vec![7_u8; FOLDER_PART_BYTES + 1];
        let puts: Vec<_> = (0..8)
            .map(|_| {
                let (store, file) = (store.clone(), file_of(&content));
                tokio::spawn(async move { store.put(&key(), file, None).await })
            })
            .collect();
        for put in puts {
            put.await.unwrap().unwrap();
        }
        assert_eq!(
            std::fs::read(folder.path().join("gnu/ab01/executable")).unwrap(),
            content
        );
    }
}
