//! Tables on disk, by the build ids of their binaries: a restart, or a second process of the same binary, costs one read.
//!
//! One file per table, written beside its place and renamed into it, checked when it is read: a torn or damaged one is removed and
//! made anew. When all of them are over the limit, those that were not used for longest go.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustc_hash::FxHashMap;

use crate::error::UnwindError;
use crate::table::{KEY_BYTES_MAX, Table};

const EXTENSION: &str = "unwind";
const UNFINISHED: &str = "new";
/// Tables known at one time: with the smallest of them, the limit on bytes is reached later. A host has some thousands of
/// binaries.
const TABLES_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
}

/// The folder of tables.
#[derive(Debug)]
pub struct Kept {
    folder: PathBuf,
    bytes_max: u64,
    bytes: u64,
    entries: FxHashMap<String, Entry>,
    /// Tables removed because there were too many. Healthy: a few a day.
    pub evicted: u64,
    /// Tables removed because they were damaged. Healthy: 0.
    pub damaged: u64,
}

/// A table that is being written.
#[derive(Debug)]
pub struct Unfinished {
    /// Where to write it.
    pub file: File,
    path: PathBuf,
    key: String,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Renamed already, or not wanted.
        let _ = fs::remove_file(&self.path);
    }
}

/// Checks that a name can be part of a path.
fn check(key: &str) -> Result<(), UnwindError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(plain) {
        return Ok(());
    }
    Err(UnwindError::BadKey {
        key: key.chars().take(KEY_BYTES_MAX).collect(),
        limit: KEY_BYTES_MAX,
    })
}

fn failed<'p>(doing: &'static str, path: &'p Path) -> impl Fn(io::Error) -> UnwindError + 'p {
    move |source| UnwindError::File {
        doing,
        path: path.display().to_string(),
        source,
    }
}

impl Kept {
    /// Opens a folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`UnwindError::File`].
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, UnwindError> {
        fs::create_dir_all(folder).map_err(failed("making the folder", folder))?;
        let mut kept = Self {
            folder: folder.to_owned(),
            bytes_max,
            bytes: 0,
            entries: FxHashMap::default(),
            evicted: 0,
            damaged: 0,
        };
        for entry in fs::read_dir(folder).map_err(failed("reading the folder", folder))? {
            let path = entry.map_err(failed("reading the folder", folder))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            match (stem, path.extension().and_then(|extension| extension.to_str())) {
                (Some(key), Some(EXTENSION)) if check(key).is_ok() => {
                    let Ok(meta) = fs::metadata(&path) else { continue };
                    let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    kept.bytes += meta.len();
                    let bytes = meta.len();
                    kept.entries.insert(key.to_owned(), Entry { bytes, used });
                }
                // Somebody was killed while writing it.
                (_, Some(UNFINISHED)) => drop(fs::remove_file(&path)),
                _ => {}
            }
        }
        kept.evict(None);
        Ok(kept)
    }

    /// Returns how many bytes all tables have.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many tables there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(key).with_extension(EXTENSION)
    }

    /// Returns the table of a binary, if there is an undamaged one.
    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let entry = *self.entries.get(key)?;
        let path = self.path(key);
        let read = || {
            let mut file = File::open(&path).ok()?;
            let used = SystemTime::now();
            // Only the order of eviction depends on it.
            let _ = file.set_times(FileTimes::new().set_modified(used));
            Some((whole(&mut file, entry.bytes, key)?, used))
        };
        match read() {
            Some((bytes, used)) => {
                self.entries.insert(key.to_owned(), Entry { used, ..entry });
                Some(bytes)
            }
            None => {
                self.damaged += 1;
                self.remove(key);
                None
            }
        }
    }

    /// Begins to write the table of a binary.
    ///
    /// # Errors
    /// [`UnwindError::BadKey`], [`UnwindError::File`].
    pub fn begin(&self, key: &str) -> Result<Unfinished, UnwindError> {
        check(key)?;
        let path = self.folder.join(key).with_extension(UNFINISHED);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let file = file.map_err(failed("writing", &path))?;
        let key = key.to_owned();
        Ok(Unfinished { file, path, key })
    }

    /// Takes up a table that has been written, and returns it.
    ///
    /// # Errors
    /// [`UnwindError::BadTable`] where what was written is none; [`UnwindError::File`].
    pub fn finish(&mut self, mut new: Unfinished) -> Result<Vec<u8>, UnwindError> {
        let bytes = new.file.metadata().map_err(failed("reading", &new.path))?.len();
        new.file.rewind().map_err(failed("reading", &new.path))?;
        let Some(table) = whole(&mut new.file, bytes, &new.key) else {
            return Err(UnwindError::BadTable {
                what: "what was written is not whole",
            });
        };
        let path = self.path(&new.key);
        fs::rename(&new.path, &path).map_err(failed("renaming", &path))?;
        let used = SystemTime::now();
        if let Some(old) = self.entries.insert(new.key.clone(), Entry { bytes, used }) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        self.evict(Some(&new.key));
        Ok(table)
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
            // Gone already is as good.
            let _ = fs::remove_file(self.path(key));
        }
    }

    /// Removes what was not used for longest, down to the limits; never `but`.
    fn evict(&mut self, but: Option<&str>) {
        if self.bytes <= self.bytes_max && self.entries.len() <= TABLES_MAX {
            return;
        }
        let mut oldest: Vec<(SystemTime, String)> = self
            .entries
            .iter()
            .filter(|(key, _)| Some(key.as_str()) != but)
            .map(|(key, entry)| (entry.used, key.clone()))
            .collect();
        oldest.sort_unstable();
        for (_, key) in oldest {
            if self.bytes <= self.bytes_max && self.entries.len() <= TABLES_MAX {
                break;
            }
            self.remove(&key);
            self.evicted += 1;
        }
    }
}

/// Reads a file that should be the whole table of a binary.
fn whole(file: &mut File, bytes: u64, key: &str) -> Option<Vec<u8>> {
    let mut content = Vec::with_capacity(usize::try_from(bytes).ok()?);
    // Not more than was measured, should it grow meanwhile.
    file.take(bytes).read_to_end(&mut content).ok()?;
    let table = Table::open(&content).ok()?;
    (table.key() == key.as_bytes()).then_some(content)
}
