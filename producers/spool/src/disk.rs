//! Everything the spool asks of the world: a few calls on files, and the time.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::FlockOperation;

/// A file that the spool has open.
pub trait DiskFile: Send + Sync {
    /// Writes at `offset` and returns how many bytes were taken, as `pwritev` does.
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Reads at `offset` and returns how many bytes came; 0 at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Cuts the file off at `length`.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Returns when the file's bytes are on the disk.
    fn sync(&self) -> io::Result<()>;
}

/// The answer to [`Disk::lock`].
pub enum Locking {
    /// Ours until dropped, also by the death of the process.
    Held(Box<dyn Any + Send + Sync>),
    /// Somebody else's.
    Taken {
        /// The pid that the holder wrote into the file.
        holder: Option<u32>,
    },
}

/// A file system and a clock. The real one is [`HostDisk`]; tests have one that fails on demand.
pub trait Disk: Send + Sync {
    /// Makes a directory and its parents where missing.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Takes the lock that the file at `path` stands for.
    fn lock(&self, path: &Path) -> io::Result<Locking>;
    /// Returns the names in a directory; one that is not UTF-8 comes with replacement characters.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Makes a file that was not there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file that is there.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns when creations and removals in the directory are on the disk.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Returns the time of day.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// The disk and clock of the host.
pub struct HostDisk;

impl Disk for HostDisk {
    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(directory)?;
        match directory.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => self.sync_directory(parent),
            _ => Ok(()),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let holder = fs::read_to_string(path)?.trim().parse().ok();
                return Ok(Locking::Taken { holder });
            }
            Err(error) => return Err(error.into()),
        }
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Locking::Held(Box::new(file)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path)?,
        ))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if !file.metadata()?.is_file() {
            // A pipe or a device under a segment's name would block or never end.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Box::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(rustix::io::pwritev(self, parts, offset)?)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Fills `buffer` from `offset` and returns how much of it the file had.
pub(crate) fn read_full(file: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(offset + done as u64, &mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
