//! Which places in which files have which tables: from then on the kernel walks every image that maps them, without waiting for a list.
//!
//! The kernel names a file by device, inode, size and last change, the side-band by build id. A tick that meets a file that nothing
//! is known of says in which image and where; the side-band says what was mapped there; and so one is learned from the other, once
//! for each file. A process could map something else in between; so it counts only if the file that has the build id also has
//! this size and this last change.

use std::os::unix::fs::MetadataExt;

use rustc_hash::FxHashMap;
use strobe_bpf::{Error, FilePlace, KNOWN_FILES_MAX, MappingEntry, Met, PAGES_NOT_YET};
use strobe_event::BinaryKind;

use super::lists::loaded_at;
use super::{Binary, Unwinding};
use crate::elf::Elf;
use crate::files::{Backing, FileId, Files};
use crate::images::Images;
use crate::mappings::Mapping;

/// Rounds for which a place waits for the side-band to tell of its mapping, which is a millisecond behind; then another image may
/// meet it.
const ROUNDS_MAX: u8 = 20;
/// Images by which it is tried which file a place is in: one that can never be had is not asked for at every tick.
const IMAGES_MAX: u8 = 5;

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Its file is known, and has this address there.
    At { address: u64 },
    /// It is not known yet.
    Unknown { rounds: u8, images: u8 },
}

/// The places that were met.
#[derive(Debug, Default)]
pub(super) struct Places {
    met: FxHashMap<FilePlace, Place>,
    of_file: FxHashMap<FileId, Vec<FilePlace>>,
}

impl Places {
    /// Returns how many are known.
    pub(super) fn len(&self) -> usize {
        self.of_file.values().map(Vec::len).sum()
    }
}

impl Unwinding {
    /// Learns which files stand behind the places that ticks have met, and asks for their tables; also after the end of the image.
    /// Returns whether some still wait for what the side-band says.
    pub(super) fn learn(&mut self, images: &Images, files: &Files) -> Result<bool, Error> {
        let mut waiting = false;
        for met in self.memory.places.met() {
            if self.places.met.len() >= KNOWN_FILES_MAX {
                // What still runs is met again.
                self.forget_places()?;
            }
            let (rounds, tried) = match self.places.met.get(&met.file) {
                None => (0, 0),
                Some(&Place::Unknown { rounds, images }) => (rounds, images),
                Some(Place::At { .. }) => {
                    // Its table was taken away, or a tick met it in the moment in which it was learned.
                    if let Some((id, mapping, elf)) = mapped(&met, images, files) {
                        self.ask(id, mapping, met.image.tgid, elf, files);
                    }
                    self.memory.places.dismiss(&met.file)?;
                    continue;
                }
            };
            let place = match self.file_of(&met, images, files) {
                Some((id, address)) => {
                    self.places.of_file.entry(id).or_default().push(met.file);
                    self.places.met.insert(met.file, Place::At { address });
                    self.tell(id)?;
                    self.memory.places.dismiss(&met.file)?;
                    continue;
                }
                None if rounds < ROUNDS_MAX => {
                    waiting = true;
                    let (rounds, images) = (rounds + 1, tried);
                    Place::Unknown { rounds, images }
                }
                None => {
                    let (rounds, images) = (0, tried + 1);
                    if images == IMAGES_MAX {
                        // Not to be met again: it waits for the list of each image.
                        let pages = PAGES_NOT_YET;
                        let entry = MappingEntry {
                            pages,
                            ..MappingEntry::default()
                        };
                        self.memory.places.know(&met.file, &entry)?;
                    }
                    self.memory.places.dismiss(&met.file)?;
                    Place::Unknown { rounds, images }
                }
            };
            self.places.met.insert(met.file, place);
        }
        Ok(waiting)
    }

    /// Returns the file that a place is in, and its address there, if it is certain; its table has been asked for.
    fn file_of(&mut self, met: &Met, images: &Images, files: &Files) -> Option<(FileId, u64)> {
        let (id, mapping, elf) = mapped(met, images, files)?;
        let address = loaded_at(mapping, elf)?;
        if !is_of(&met.file, id, elf, met.image.tgid, mapping, files) {
            return None;
        }
        self.ask(id, mapping, met.image.tgid, elf, files);
        Some((id, address))
    }

    /// Tells the kernel what is known of a file.
    pub(super) fn tell(&self, id: FileId) -> Result<(), Error> {
        let (base, entry) = match self.binaries.get(&id) {
            Some(Binary::Loaded(loaded)) => (loaded.base, loaded.entry),
            // There is none, and none to wait for.
            Some(Binary::None) => (0, MappingEntry::default()),
            _ => return Ok(()),
        };
        for file in self.places.of_file.get(&id).into_iter().flatten() {
            if let Some(Place::At { address }) = self.places.met.get(file) {
                let offset = base.wrapping_sub(*address);
                self.memory.places.know(file, &MappingEntry { offset, ..entry })?;
            }
        }
        Ok(())
    }

    /// Lets the kernel forget where the table of a file is, before it is freed.
    pub(super) fn untell(&self, id: FileId) -> Result<(), Error> {
        let mut files = self.places.of_file.get(&id).into_iter().flatten();
        files.try_for_each(|file| self.memory.places.forget(file))
    }

    /// Forgets all places, before all tables are freed, or where there are too many.
    pub(super) fn forget_places(&mut self) -> Result<(), Error> {
        let places = std::mem::take(&mut self.places);
        places.met.keys().try_for_each(|file| {
            self.memory.places.forget(file)?;
            self.memory.places.dismiss(file)
        })
    }
}

/// Returns what the side-band says of a place that was met.
fn mapped<'a>(met: &Met, images: &'a Images, files: &'a Files) -> Option<(FileId, &'a Mapping, &'a Elf)> {
    let same = |mapping: &&Mapping| mapping.start == met.start && mapping.file_offset == met.file.offset;
    let image = images.latest(&met.image)?;
    let mapping = image.mappings().iter().find(same)?;
    let Backing::File(id) = mapping.backing else {
        return None;
    };
    Some((id, mapping, files.get(id).elf.as_ref().ok()?))
}

/// Returns whether the file at a place is the one that a mapping is known to be of.
fn is_of(file: &FilePlace, id: FileId, elf: &Elf, pid: u32, mapping: &Mapping, files: &Files) -> bool {
    if file.is_vdso() || elf.kind == BinaryKind::Vdso {
        return file.is_vdso() && elf.kind == BinaryKind::Vdso;
    }
    let found = files.open(id, pid, (mapping.start, mapping.end));
    found.and_then(|found| found.metadata().ok()).is_some_and(|meta| {
        (meta.len(), meta.ctime().cast_unsigned(), meta.ctime_nsec())
            == (file.bytes, file.changed_s, i64::from(file.changed_ns))
    })
}
