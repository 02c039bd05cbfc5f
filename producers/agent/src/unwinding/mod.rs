//! Which unwind tables lie in the kernel, and which image has which: what lets the next tick of a process be walked by tables.
//!
//! Only what is sampled costs anything: an image is taken up when a sample of it came without tables. Its list of mappings is
//! written, and again whenever the side-band says that they changed; images with the same mappings share a list, as forks do. A
//! table is loaded for the first image that needs it, stays while there is room, and goes when nobody refers to it and others need
//! the room. A process is forgotten at its end.
//!
//! Processes that live for some milliseconds are over before they can have a list. So the kernel is told once which file has which
//! table ([`places`]), and finds what an image without a list has mapped by itself: a binary that ran before is walked by its table
//! from the first sample on. A list is faster, and says more of generated code.
//!
//! A list is of one image: (pid, start, exec count), which the program compares at each tick. So what is late here costs stacks
//! by frame pointers, marked as such, and never a stack by another image's tables. A process that was forked from one with a list is
//! walked by that one until it has its own: its mappings are its parent's, as long as it makes none itself.

mod jvms;
mod lists;
mod places;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};

use rustc_hash::FxHashMap;
use strobe_bpf::{Block, Error, ImageIdentity, MappingEntry, TableMemory};
use strobe_unwind::Table;

use crate::files::{FileId, Files};
use crate::held::Held;
use crate::images::Images;
use crate::tables::{Made, Wanted};
use jvms::Jvms;
use places::Places;

/// A binary that could not be opened is tried again for later samples, up to so many times.
const ATTEMPTS_MAX: u8 = 3;
/// Pause before what had no room, or could not be opened, is tried again: what was freed waits as long.
const AGAIN_NS: u64 = 1_000_000_000;
/// For how long it is said that there is no room, after something had none: what was freed for it has another try in between.
const NO_ROOM_NS: u64 = 5_000_000_000;
/// Processes that are given up at once to make room.
const EVICTED_AT_ONCE: usize = 64;
/// Images that may be expected between two rounds; what is beyond comes with its samples.
const EXPECTED_MAX: usize = 1_024;
/// Page size by which mappings are rounded; larger ones are multiples of it.
const PAGE_BYTES: u64 = 4_096;

/// A table in the kernel.
#[derive(Debug)]
struct Loaded {
    block: Block,
    base: u64,
    /// All of a mapping's entry that does not depend on the process.
    entry: MappingEntry,
    /// Lists that refer to it.
    lists: usize,
    /// When it was last needed, in rounds.
    used: u64,
}

#[derive(Debug)]
enum Binary {
    /// Its table is being made.
    Asked,
    Loaded(Loaded),
    /// There is none.
    None,
    /// To be asked for again.
    Later {
        attempts: u8,
    },
}

/// A list of mappings in the kernel.
#[derive(Debug)]
struct List {
    block: Block,
    mappings: usize,
    binaries: Vec<FileId>,
    processes: usize,
}

/// A hash of a list's content.
type ListKey = [u8; 16];

/// A process that has a list, or waits for the first of its tables.
#[derive(Debug)]
struct Process {
    image: ImageIdentity,
    list: Option<ListKey>,
    /// Some of its tables are not there yet.
    incomplete: bool,
}

/// What there is, for the status file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Processes that are walked by tables.
    pub processes: u64,
    /// Lists of mappings that they share.
    pub lists: u64,
    /// Tables in the kernel.
    pub tables: u64,
    /// Places in files by which the kernel finds them wherever they are mapped.
    pub places: u64,
    /// Bytes of tables and lists.
    pub used_bytes: u64,
    /// Bytes that the kernel holds for them.
    pub held_bytes: u64,
    /// Samples of images that had no tables yet. Healthy: a few for each new process.
    pub samples_without: u64,
    /// Tables taken out of the kernel for want of room. Healthy: 0, or what came and went.
    pub evicted: u64,
}

/// The tables in the kernel.
#[derive(Debug)]
pub struct Unwinding {
    memory: TableMemory,
    to_make: SyncSender<Wanted>,
    made: Receiver<Made>,
    /// Grows whenever files are forgotten: what was asked before means nothing then.
    generation: u64,
    binaries: FxHashMap<FileId, Binary>,
    lists: FxHashMap<ListKey, List>,
    processes: FxHashMap<u32, Process>,
    jvms: Jvms,
    places: Places,
    /// There may be places that ticks have met and that are not known.
    unlearned: bool,
    /// Processes in the order in which they came; some may be gone.
    order: VecDeque<u32>,
    /// Images that were heard of, and that nothing is known of yet.
    expected: FxHashMap<u32, ImageIdentity>,
    /// To be looked at in this round.
    due: FxHashMap<u32, ImageIdentity>,
    rounds: u64,
    again_ns: u64,
    /// The time of this round, and until when it is said that there is no room.
    now_ns: u64,
    no_room_until_ns: u64,
    asked: usize,
    samples_without: u64,
    evicted: u64,
}

impl Unwinding {
    /// Returns the state of a memory in which nothing is yet.
    pub fn new(memory: TableMemory, to_make: SyncSender<Wanted>, made: Receiver<Made>) -> Self {
        Self {
            memory,
            to_make,
            made,
            generation: 0,
            binaries: FxHashMap::default(),
            lists: FxHashMap::default(),
            processes: FxHashMap::default(),
            jvms: Jvms::default(),
            places: Places::default(),
            unlearned: false,
            order: VecDeque::new(),
            expected: FxHashMap::default(),
            due: FxHashMap::default(),
            rounds: 0,
            again_ns: 0,
            now_ns: 0,
            no_room_until_ns: 0,
            asked: 0,
            samples_without: 0,
            evicted: 0,
        }
    }

    /// Takes notice of a sample whose image had no tables.
    pub fn want(&mut self, sample: &Held) {
        self.unlearned = true;
        self.samples_without += 1;
        let image = ImageIdentity {
            tgid: sample.pid,
            start_time_ns: sample.start_ns,
            exec_id: sample.exec,
        };
        let known = self.processes.get(&sample.pid);
        // Its list may have been written since that tick.
        if known.is_none_or(|process| process.image != image) {
            self.due.insert(sample.pid, image);
        }
    }

    /// Takes notice of an image without tables as soon as it is heard of: its sample may have to wait for the side-band.
    pub fn expect(&mut self, image: ImageIdentity) {
        self.unlearned = true;
        if self.expected.len() < EXPECTED_MAX && !self.processes.contains_key(&image.tgid) {
            self.expected.insert(image.tgid, image);
        }
    }

    /// Takes notice of a change of a process's mappings.
    pub fn changed(&mut self, pid: u32) {
        if let Some(process) = self.processes.get(&pid) {
            self.due.insert(pid, process.image);
        }
    }

    /// Forgets a process, which has ended or become another image.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn ended(&mut self, pid: u32) -> Result<(), Error> {
        self.due.remove(&pid);
        self.jvms.forget(pid);
        let Some(process) = self.processes.remove(&pid) else {
            return Ok(());
        };
        if let Some(list) = process.list {
            self.memory.remove_process(pid)?;
            self.release(list);
        }
        Ok(())
    }

    /// Returns whether tables are being made: the next round should not be far.
    pub fn is_waiting(&self) -> bool {
        self.asked > 0
    }

    /// Returns whether something had no room a moment ago.
    pub fn has_no_room(&self) -> bool {
        self.now_ns < self.no_room_until_ns
    }

    /// Returns what there is.
    pub fn counts(&self) -> Counts {
        let loaded = self
            .binaries
            .values()
            .filter(|binary| matches!(binary, Binary::Loaded(_)));
        let walked = self.processes.values().filter(|process| process.list.is_some());
        Counts {
            processes: walked.count() as u64,
            lists: self.lists.len() as u64,
            tables: loaded.count() as u64,
            places: self.places.len() as u64,
            used_bytes: self.memory.used_bytes(),
            held_bytes: self.memory.held_bytes(),
            samples_without: self.samples_without,
            evicted: self.evicted,
        }
    }

    /// Takes the tables that have been made, and writes the lists that are due.
    ///
    /// # Errors
    /// [`Error`] where the kernel refuses.
    pub fn round(&mut self, images: &Images, files: &Files, now_ns: u64) -> Result<(), Error> {
        self.rounds += 1;
        self.now_ns = now_ns;
        let mut came = false;
        while let Ok(made) = self.made.try_recv() {
            if made.generation != self.generation {
                continue;
            }
            self.asked = self.asked.saturating_sub(1);
            // Until it is loaded: what follows may fail.
            self.binaries.insert(made.id, Binary::Later { attempts: 0 });
            let binary = match made.table {
                Some(table) => self.load(&table)?,
                None => Binary::None,
            };
            self.binaries.insert(made.id, binary);
            self.tell(made.id)?;
            came = true;
        }
        let again = now_ns >= self.again_ns;
        if again {
            self.again_ns = now_ns.saturating_add(AGAIN_NS);
        }
        if came || again {
            let incomplete = self.processes.iter().filter(|(_, process)| process.incomplete);
            self.due
                .extend(incomplete.map(|(&pid, process)| (pid, process.image)));
        }
        for (pid, image) in std::mem::take(&mut self.expected) {
            if images.image(&image).is_some() {
                self.due.entry(pid).or_insert(image);
            }
        }
        if self.unlearned {
            self.unlearned = self.learn(images, files)?;
        }
        for (pid, image) in std::mem::take(&mut self.due) {
            match images.image(&image) {
                Some(found) => self.publish(image, found, files)?,
                None => self.ended(pid)?,
            }
        }
        Ok(())
    }

    /// Forgets processes that nothing is known of any more, and gives memory back.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn tidy(&mut self, images: &Images) -> Result<(), Error> {
        let gone = self
            .processes
            .iter()
            .filter(|(_, process)| images.image(&process.image).is_none());
        let gone: Vec<u32> = gone.map(|(&pid, _)| pid).collect();
        gone.into_iter().try_for_each(|pid| self.ended(pid))?;
        if self.order.len() > 2 * self.processes.len() + EVICTED_AT_ONCE {
            let processes = &self.processes;
            self.order.retain(|pid| processes.contains_key(pid));
        }
        self.memory.tidy()
    }

    /// Forgets everything: the numbers of files mean nothing any more.
    ///
    /// # Errors
    /// [`Error::WriteMap`].
    pub fn forget(&mut self) -> Result<(), Error> {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.into_iter().try_for_each(|pid| self.ended(pid))?;
        self.forget_places()?;
        for binary in std::mem::take(&mut self.binaries).into_values() {
            if let Binary::Loaded(loaded) = binary {
                self.memory.free(loaded.block);
            }
        }
        self.generation += 1;
        self.asked = 0;
        Ok(())
    }

    /// Puts a table into the kernel.
    fn load(&mut self, bytes: &[u8]) -> Result<Binary, Error> {
        let Ok(table) = Table::open(bytes) else {
            return Ok(Binary::None);
        };
        let header = *table.header();
        let block = match self.memory.store(bytes)? {
            Some(block) => block,
            None if bytes.len() as u64 > self.memory.limit_bytes() => return Ok(Binary::None),
            None => {
                self.make_room(bytes.len() as u64)?;
                return Ok(Binary::Later { attempts: 0 });
            }
        };
        let at = block.address();
        Ok(Binary::Loaded(Loaded {
            base: header.base,
            entry: MappingEntry {
                rows_at: at + header.rows_at,
                rows: header.rows,
                directory_at: at + header.directory_at,
                pages: header.pages,
                rules_at: at + header.rules_at,
                page_shift: header.page_shift,
                ..MappingEntry::default()
            },
            block,
            lists: 0,
            used: self.rounds,
        }))
    }

    fn say_no_room(&mut self) {
        self.no_room_until_ns = self.now_ns.saturating_add(NO_ROOM_NS);
    }

    /// Frees what nobody refers to, the longest unused first, and where that is not enough, the oldest processes.
    fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        self.say_no_room();
        let mut idle: Vec<(u64, FileId)> = self
            .binaries
            .iter()
            .filter_map(|(&id, binary)| match binary {
                Binary::Loaded(loaded) if loaded.lists == 0 => Some((loaded.used, id)),
                _ => None,
            })
            .collect();
        idle.sort_unstable_by_key(|(used, _)| *used);
        let mut freed = 0;
        for (_, id) in idle {
            if freed >= bytes {
                return Ok(());
            }
            if let Some(Binary::Loaded(loaded)) = self.binaries.insert(id, Binary::Later { attempts: 0 }) {
                self.untell(id)?;
                freed += u64::from(loaded.block.bytes());
                self.memory.free(loaded.block);
                self.evicted += 1;
            }
        }
        self.give_up_oldest()
    }

    /// Forgets the processes that came first. Those that still run come back with their next sample.
    fn give_up_oldest(&mut self) -> Result<(), Error> {
        for _ in 0..EVICTED_AT_ONCE {
            let Some(pid) = self.order.pop_front() else { break };
            self.ended(pid)?;
        }
        Ok(())
    }
}
