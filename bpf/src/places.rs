//! Which place in which file has which table: user space's side of `progs/placed.h`.
//!
//! Whoever knows which file stands behind a mapping says once what is known of it; from then on every image that maps the same place
//! of the same file, unchanged, is walked by its table from the first tick on, without user space having heard of the image.

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::error::Error;
use crate::tables::{ImageIdentity, MappingEntry};

/// `KNOWN_FILES_MAX` in `progs/placed.h`.
pub const KNOWN_FILES_MAX: usize = 8_192;
/// `struct file_place`.
const PLACE_BYTES: usize = 40;
/// `struct met_file`.
const MET_BYTES: usize = 24;
/// `struct known_file`.
const KNOWN_BYTES: usize = 32;
/// `VDSO_DEVICE`.
const VDSO_DEVICE: u32 = u32::MAX;

/// A place in a file as it was when a tick met it: a file that is written to, or replaced, is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilePlace {
    /// Its inode.
    pub inode: u64,
    /// The file's size.
    pub bytes: u64,
    /// Its last change (`ctime`), seconds since 1970 (UTC).
    pub changed_s: u64,
    /// Nanoseconds of that.
    pub changed_ns: u32,
    /// The file system's device, as the kernel counts it. Of an overlay, that of the layer in which the file is.
    device: u32,
    /// Where in the file the mapping begins, bytes.
    pub offset: u64,
}

/// A place that nothing is known of, as a tick met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The place.
    pub file: FilePlace,
    /// The image that has it mapped.
    pub image: ImageIdentity,
    /// Where its mapping begins there.
    pub start: u64,
}

impl FilePlace {
    /// Returns whether it is the code that the kernel lends to every process.
    pub fn is_vdso(&self) -> bool {
        self.device == VDSO_DEVICE
    }

    fn encode(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        let words = [self.inode, self.bytes, self.changed_s];
        let halves = [self.changed_ns, self.device];
        let all = words.iter().flat_map(|word| word.to_ne_bytes());
        let all = all.chain(halves.iter().flat_map(|half| half.to_ne_bytes()));
        bytes
            .iter_mut()
            .zip(all.chain(self.offset.to_ne_bytes()))
            .for_each(|(to, from)| *to = from);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            inode: word(bytes, 0)?,
            bytes: word(bytes, 8)?,
            changed_s: word(bytes, 16)?,
            changed_ns: half(bytes, 24)?,
            device: half(bytes, 28)?,
            offset: word(bytes, 32)?,
        })
    }
}

/// What is known of places, and which were met that are not known.
#[derive(Debug)]
pub struct FilePlaces {
    known: MapHandle,
    met: MapHandle,
}

impl FilePlaces {
    pub(crate) fn new(known: MapHandle, met: MapHandle) -> Self {
        Self { known, met }
    }

    /// Returns the places that ticks met and that nobody has [dismissed](Self::dismiss) since.
    pub fn met(&self) -> Vec<Met> {
        let parsed = self.met.keys().filter_map(|key| {
            let value = self.met.lookup(&key, MapFlags::ANY).ok()??;
            parse_met(&key, &value)
        });
        parsed.collect()
    }

    /// Forgets that a place was met. The next tick that meets it says so again, unless it is known by then.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn dismiss(&self, file: &FilePlace) -> Result<(), Error> {
        delete(&self.met, "met_files", file)
    }

    /// Says what is known of a place: all but the addresses of `entry` counts, and its offset is counted from where a mapping begins.
    /// There is room for [`KNOWN_FILES_MAX`] places.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn know(&self, file: &FilePlace, entry: &MappingEntry) -> Result<(), Error> {
        let mut value = Vec::with_capacity(KNOWN_BYTES);
        value.extend(entry.offset.to_ne_bytes());
        entry.encode_table(&mut value);
        self.known
            .update(&file.encode(), &value, MapFlags::ANY)
            .map_err(|error| failed("known_files", &error))
    }

    /// Forgets what is known of a place. Its table may be freed afterwards.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn forget(&self, file: &FilePlace) -> Result<(), Error> {
        delete(&self.known, "known_files", file)
    }
}

fn failed(map: &'static str, error: &libbpf_rs::Error) -> Error {
    Error::WriteMap {
        map,
        message: error.to_string(),
    }
}

fn delete(map: &MapHandle, name: &'static str, file: &FilePlace) -> Result<(), Error> {
    match map.delete(&file.encode()) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(name, &error)),
        _ => Ok(()),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn parse_met(key: &[u8], value: &[u8]) -> Option<Met> {
    if (key.len(), value.len()) != (PLACE_BYTES, MET_BYTES) {
        return None;
    }
    Some(Met {
        file: FilePlace::parse(key)?,
        start: word(value, 0)?,
        image: ImageIdentity {
            start_time_ns: word(value, 8)?,
            tgid: half(value, 16)?,
            exec_id: half(value, 20)?,
        },
    })
}
