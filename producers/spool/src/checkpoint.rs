//! How far the reader's acknowledgements reach, kept over restarts.
//!
//! Two slots of one small file are written in turn, so that a torn write leaves the one before. Writing in place
//! costs one call per acknowledgement where a rename would cost three and a new inode.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;
use crate::disk::{Disk, DiskFile, read_full};
use crate::format::{Epoch, u32_at, u64_at, write_whole};

const NAME: &str = "checkpoint";
const MAGIC: [u8; 8] = *b"STRBCKP\n";
const SLOT_BYTES: usize = 60;
/// The distance of the slots: a sector, so that one torn write cannot harm both.
const SLOT_STRIDE: usize = 512;

/// The first record that is not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frontier {
    /// Its segment, or the one that will come after all others.
    pub segment: u64,
    /// Its offset; 0 stands for the segment's first record.
    pub offset: u64,
    /// The least sequence it can have, in `epoch`.
    pub sequence: u64,
    pub epoch: Epoch,
}

impl Frontier {
    /// The frontier of a spool that never had one.
    pub const START: Self = Self {
        segment: 0,
        offset: 0,
        sequence: 0,
        epoch: Epoch([0; 16]),
    };
}

/// The file that holds the frontier.
pub(crate) struct Checkpoint {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    generation: u64,
    stored: Frontier,
}

impl Checkpoint {
    /// Returns the checkpoint in `directory`, created where missing, and the frontier it holds.
    ///
    /// One that cannot be *read* is an error and not a lost one: a later open might read it, and find it ahead of
    /// everything written meanwhile.
    pub fn open(disk: &Arc<dyn Disk>, directory: &Path, exists: bool) -> Result<(Self, Frontier), Error> {
        let path = directory.join(NAME);
        let (file, action) = match exists {
            true => (disk.open(&path), "open"),
            false => (disk.create(&path), "create"),
        };
        let file = file.map_err(|source| Error::io(action, &path, source))?;
        let mut bytes = [0; SLOT_STRIDE + SLOT_BYTES];
        let length = read_full(&*file, 0, &mut bytes).map_err(|source| Error::io("read", &path, source))?;
        let slots = [
            decode(&bytes[..length.min(SLOT_BYTES)]),
            decode(bytes[..length].get(SLOT_STRIDE..).unwrap_or(&[])),
        ];
        if exists && slots == [None, None] {
            tracing::warn!(path = %path.display(), "no valid checkpoint: unfreed records are sent again");
        }
        let newest = slots
            .into_iter()
            .flatten()
            .max_by_key(|(generation, _)| *generation);
        let (generation, stored) = newest.unwrap_or((0, Frontier::START));
        Ok((
            Self {
                file,
                path,
                generation,
                stored,
            },
            stored,
        ))
    }

    /// Returns whether `name` is the checkpoint's.
    pub fn is_named(name: &str) -> bool {
        name == NAME
    }

    /// Writes the frontier where a later open finds it; not synced, since a lost one only causes repeats.
    pub fn store(&mut self, frontier: Frontier) -> Result<(), Error> {
        if frontier == self.stored {
            return Ok(());
        }
        let generation = self.generation + 1;
        let slot = encode(generation, &frontier);
        let offset = (generation % 2) * SLOT_STRIDE as u64;
        write_whole(&*self.file, offset, &[&slot, &[]])
            .map_err(|source| Error::io("write", &self.path, source))?;
        self.generation = generation;
        self.stored = frontier;
        Ok(())
    }

    /// Returns when the frontier is on the disk.
    pub fn sync(&self) -> Result<(), Error> {
        self.file
            .sync()
            .map_err(|source| Error::io("sync", &self.path, source))
    }
}

fn encode(generation: u64, frontier: &Frontier) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(generation.to_le_bytes());
    bytes.extend(frontier.segment.to_le_bytes());
    bytes.extend(frontier.offset.to_le_bytes());
    bytes.extend(frontier.sequence.to_le_bytes());
    bytes.extend(frontier.epoch.0);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, Frontier)> {
    let body = bytes.get(..SLOT_BYTES - 4)?;
    if !body.starts_with(&MAGIC) || u32_at(bytes, SLOT_BYTES - 4)? != crc32fast::hash(body) {
        return None;
    }
    let frontier = Frontier {
        segment: u64_at(body, 16)?,
        offset: u64_at(body, 24)?,
        sequence: u64_at(body, 32)?,
        epoch: Epoch(body.get(40..56)?.try_into().ok()?),
    };
    Some((u64_at(body, 8)?, frontier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostDisk;

    fn open(directory: &Path) -> (Checkpoint, Frontier) {
        let disk: Arc<dyn Disk> = Arc::new(HostDisk);
        Checkpoint::open(&disk, directory, directory.join(NAME).exists()).unwrap()
    }

    /// Checks that a flipped bit anywhere in the newest slot leaves the frontier before it, and none invents one.
    #[test]
    fn torn_slot_leaves_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let at = |segment| Frontier {
            segment,
            offset: 7,
            sequence: 3,
            epoch: Epoch([5; 16]),
        };
        let (mut checkpoint, frontier) = open(directory.path());
        assert_eq!(frontier, Frontier::START);
        checkpoint.store(at(1)).unwrap();
        checkpoint.store(at(2)).unwrap();
        assert_eq!(open(directory.path()).1, at(2));
        let path = directory.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..SLOT_BYTES * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, flipped).unwrap();
            assert_eq!(open(directory.path()).1, at(1), "bit {bit}");
        }
        for cut in 0..SLOT_BYTES {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(open(directory.path()).1, Frontier::START, "cut at {cut}");
        }
    }
}
