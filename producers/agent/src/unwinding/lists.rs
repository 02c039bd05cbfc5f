//! Which mappings an image has, as the kernel's walk sees them: one list for all images that have the same.

use std::sync::mpsc::TrySendError;

use sha2::{Digest, Sha256};
use strobe_bpf::{Error, ImageIdentity, MappingEntry, PAGES_NOT_YET, PROCESSES_MAX};

use super::jvms::Answer;
use super::{ATTEMPTS_MAX, Binary, List, ListKey, PAGE_BYTES, Process, Unwinding};
use crate::elf::Elf;
use crate::files::{Backing, FileId, Files};
use crate::images::Image;
use crate::jvm::LIBRARY;
use crate::mappings::Mapping;
use crate::procfs::without_deleted;
use crate::tables::{Wanted, key};

impl Unwinding {
    /// Writes the list of an image, unless it has the same already.
    pub(super) fn publish(
        &mut self,
        identity: ImageIdentity,
        image: &Image,
        files: &Files,
    ) -> Result<(), Error> {
        let mut entries: Vec<MappingEntry> = Vec::new();
        let (mut binaries, mut incomplete) = (Vec::new(), false);
        for mapping in image.mappings() {
            let entry = self.entry(mapping, identity.tgid, files, &mut binaries, &mut incomplete);
            // Generated code comes in many neighbouring pieces.
            match entries.last_mut() {
                Some(last)
                    if last.rows == 0
                        && entry.rows == 0
                        && last.pages == entry.pages
                        && last.end == entry.start =>
                {
                    last.end = entry.end
                }
                _ => entries.push(entry),
            }
        }
        if let Some(bias) = jvm_bias(image, files) {
            match self.jvms.of(identity, bias, self.now_ns) {
                Answer::Heaps(jvm) => entries = jvm.among(entries),
                Answer::NotYet => incomplete = true,
                Answer::Never => {}
            }
        }
        let known = self
            .processes
            .get(&identity.tgid)
            .filter(|process| process.image == identity)
            .and_then(|process| process.list);
        // As long as nothing is there yet, a list would say less than none.
        let next = if binaries.is_empty() && incomplete {
            None
        } else {
            self.list(&entries, binaries)?
        };
        let Some(next) = next.filter(|next| known != Some(*next)) else {
            return self.remember_state(identity, known, incomplete);
        };
        if self.processes.len() >= PROCESSES_MAX - 1 {
            self.say_no_room();
            self.give_up_oldest()?;
        }
        let Some(list) = self.lists.get_mut(&next) else {
            return Ok(()); // it was that of the processes that made room
        };
        let written = self.memory.set_process(&identity, &list.block, list.mappings);
        list.processes += 1;
        if written.is_err() {
            self.release(next);
            return written;
        }
        self.remember(identity, Some(next), incomplete);
        Ok(())
    }

    fn remember_state(
        &mut self,
        image: ImageIdentity,
        list: Option<ListKey>,
        incomplete: bool,
    ) -> Result<(), Error> {
        match self.processes.get_mut(&image.tgid) {
            Some(process) if process.image == image => process.incomplete = incomplete,
            _ => {
                self.ended(image.tgid)?;
                self.remember(image, list, incomplete);
            }
        }
        Ok(())
    }

    /// Takes up a process with a list, for which the list has been counted; lets go of the one that it had.
    fn remember(&mut self, image: ImageIdentity, list: Option<ListKey>, incomplete: bool) {
        let process = Process {
            image,
            list,
            incomplete,
        };
        match self.processes.insert(image.tgid, process) {
            Some(before) => {
                if let Some(list) = before.list {
                    self.release(list);
                }
            }
            None => self.order.push_back(image.tgid),
        }
    }

    /// Returns a mapping as programs see it, with its table where it is there; asks for it where it is not.
    fn entry(
        &mut self,
        mapping: &Mapping,
        pid: u32,
        files: &Files,
        binaries: &mut Vec<FileId>,
        incomplete: &mut bool,
    ) -> MappingEntry {
        let plain = MappingEntry {
            start: mapping.start,
            end: mapping.end,
            ..MappingEntry::default()
        };
        let Backing::File(id) = mapping.backing else {
            return plain;
        };
        let Ok(elf) = &files.get(id).elf else {
            return plain;
        };
        let Some(address) = loaded_at(mapping, elf) else {
            return plain;
        };
        self.ask(id, mapping, pid, elf, files);
        match self.binaries.get_mut(&id) {
            Some(Binary::Loaded(loaded)) => {
                loaded.used = self.rounds;
                if !binaries.contains(&id) {
                    binaries.push(id);
                }
                let bias = mapping.start.wrapping_sub(address);
                MappingEntry {
                    offset: bias.wrapping_add(loaded.base),
                    start: mapping.start,
                    end: mapping.end,
                    ..loaded.entry
                }
            }
            Some(Binary::Asked | Binary::Later { .. }) => {
                *incomplete = true;
                MappingEntry {
                    pages: PAGES_NOT_YET,
                    ..plain
                }
            }
            _ => plain,
        }
    }

    /// Asks for the table of a file that has not been asked for.
    pub(super) fn ask(&mut self, id: FileId, mapping: &Mapping, pid: u32, elf: &Elf, files: &Files) {
        let attempts = match self.binaries.get(&id) {
            None => 0,
            Some(Binary::Later { attempts }) => *attempts,
            Some(_) => return,
        };
        let binary = match files.open(id, pid, (mapping.start, mapping.end)) {
            Some(file) => {
                let wanted = Wanted {
                    id,
                    generation: self.generation,
                    key: key(elf.kind, &elf.id),
                    file,
                };
                match self.to_make.try_send(wanted) {
                    Ok(()) => {
                        self.asked += 1;
                        Binary::Asked
                    }
                    // The thread is behind, or the agent stops: later, or never.
                    Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Binary::Later { attempts },
                }
            }
            None if attempts + 1 < ATTEMPTS_MAX => Binary::Later {
                attempts: attempts + 1,
            },
            None => Binary::None,
        };
        self.binaries.insert(id, binary);
    }

    /// Returns the list with this content, written now where there is none; nothing where there is no room.
    fn list(&mut self, entries: &[MappingEntry], binaries: Vec<FileId>) -> Result<Option<ListKey>, Error> {
        let mut hash = Sha256::new();
        for entry in entries {
            for word in [
                entry.start,
                entry.end,
                entry.offset,
                u64::from(entry.rows_at) << 32 | u64::from(entry.rules_at),
                entry.pages.into(),
            ] {
                hash.update(word.to_ne_bytes());
            }
        }
        let mut list_key = ListKey::default();
        list_key.copy_from_slice(&hash.finalize()[..16]);
        if self.lists.contains_key(&list_key) {
            return Ok(Some(list_key));
        }
        let Some(block) = self.memory.store_mappings(entries)? else {
            self.make_room(entries.len() as u64 * 64)?;
            return Ok(None);
        };
        for id in &binaries {
            if let Some(Binary::Loaded(loaded)) = self.binaries.get_mut(id) {
                loaded.lists += 1;
            }
        }
        let list = List {
            block,
            mappings: entries.len(),
            binaries,
            processes: 0,
        };
        self.lists.insert(list_key, list);
        Ok(Some(list_key))
    }

    /// Lets go of a list for one process; frees it after the last.
    pub(super) fn release(&mut self, list_key: ListKey) {
        let Some(list) = self.lists.get_mut(&list_key) else {
            return;
        };
        list.processes = list.processes.saturating_sub(1);
        if list.processes > 0 {
            return;
        }
        if let Some(list) = self.lists.remove(&list_key) {
            for id in &list.binaries {
                if let Some(Binary::Loaded(loaded)) = self.binaries.get_mut(id) {
                    loaded.lists = loaded.lists.saturating_sub(1);
                }
            }
            self.memory.free(list.block);
        }
    }
}

/// Returns what is added to the addresses of the JVM's library, where one is mapped.
fn jvm_bias(image: &Image, files: &Files) -> Option<u64> {
    image.mappings().iter().find_map(|mapping| {
        let Backing::File(id) = mapping.backing else {
            return None;
        };
        let known = files.get(id);
        let name = without_deleted(&known.path).rsplit('/').next();
        let elf = known.elf.as_ref().ok().filter(|_| name == Some(LIBRARY))?;
        Some(mapping.start.wrapping_sub(loaded_at(mapping, elf)?))
    })
}

/// Returns the ELF virtual address that stands at the beginning of a mapping. The mapping is rounded to pages, so it may begin
/// before its segment, with the end of the segment before.
pub(super) fn loaded_at(mapping: &Mapping, elf: &Elf) -> Option<u64> {
    let offset = mapping.file_offset;
    let begins = elf
        .segments
        .iter()
        .rfind(|segment| segment.bytes > 0 && segment.offset & !(PAGE_BYTES - 1) == offset);
    match begins {
        Some(segment) => Some(segment.address.wrapping_sub(segment.offset - offset)),
        None => elf.address_of(offset),
    }
}
