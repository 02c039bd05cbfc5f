//! The program object → what is left of it once it runs: four descriptors and one page of memory.
//!
//! libbpf's own object (the kernel's types, the program's text, relocations: some MiB) is dropped after loading.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::cgroup::CgroupSource;
use crate::error::Error;
use crate::event::Event;
use crate::libbpf_log::Recording;
use crate::mapping::{Access, Mapping, page_bytes};
use crate::places::FilePlaces;
use crate::probe;
use crate::record::STACK_FRAMES_MAX;
use crate::tables::TableMemory;

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#[allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    unused,
    reason = "written by libbpf-cargo"
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/on_cpu.skel.rs"));
}

/// `SENT_WAYS` in `progs/on_cpu.bpf.c`.
const SENT_WAYS: u32 = 4;

/// What the program is loaded with.
pub struct LoadSettings<'a> {
    /// A power of two, and a multiple of the page size.
    pub ring_bytes: u32,
    /// A power of two, at least `SENT_WAYS`.
    pub sent_stacks: u32,
    pub omit_sent_stacks: bool,
    pub cgroup_source: CgroupSource,
    /// Most bytes of unwind tables; 0: stacks are walked by frame pointers alone.
    pub tables_bytes_max: u64,
    /// Tables of another program, used in place of own ones.
    pub tables_of: Option<&'a SharedTables>,
    /// What the program is run by.
    pub event: Event,
    /// Processes that are watched; none: all of them.
    pub watched: &'a [u32],
}

/// The unwind tables of one program, for others to look into: whoever fills them need not do it twice.
#[derive(Debug)]
pub struct SharedTables {
    segments: OwnedFd,
    processes: OwnedFd,
    known_files: OwnedFd,
    met_files: OwnedFd,
}

/// The program in the kernel, attached to nothing yet.
#[derive(Debug)]
pub struct Loaded {
    pub program: OwnedFd,
    pub samples: MapHandle,
    pub counters: MapHandle,
    pub control: Control,
    /// Taken out by whoever fills it; nothing where tables are not used.
    pub tables: Option<TableMemory>,
    pub shared: Option<SharedTables>,
}

/// Loads the program, or says why not and what to do.
pub fn load(settings: &LoadSettings<'_>) -> Result<Loaded, Error> {
    probe::check_loadable()?;
    let recording = Recording::start();
    match try_load(settings) {
        Ok(loaded) => Ok(loaded),
        Err(Failure::Ours(error)) => Err(error),
        Err(Failure::Libbpf(error)) => Err(Error::Load {
            program: "on_cpu",
            message: format!("{error:#}"),
            log: recording.take(),
        }),
    }
}

enum Failure {
    Ours(Error),
    Libbpf(libbpf_rs::Error),
}

impl From<libbpf_rs::Error> for Failure {
    fn from(error: libbpf_rs::Error) -> Self {
        Self::Libbpf(error)
    }
}

fn try_load(settings: &LoadSettings<'_>) -> Result<Loaded, Failure> {
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::OnCpuSkelBuilder::default().open(&mut storage)?;
    open.maps.samples.set_max_entries(settings.ring_bytes)?;
    open.maps.sent.set_max_entries(settings.sent_stacks / SENT_WAYS)?;
    let tables_used = settings.tables_bytes_max > 0 || settings.tables_of.is_some();
    if let Some(shared) = settings.tables_of {
        open.maps.segments.reuse_fd(shared.segments.as_fd())?;
        open.maps.processes.reuse_fd(shared.processes.as_fd())?;
        open.maps.known_files.reuse_fd(shared.known_files.as_fd())?;
        open.maps.met_files.reuse_fd(shared.met_files.as_fd())?;
    } else if !tables_used {
        // Allocated at once, and never looked into.
        open.maps.processes.set_max_entries(1)?;
        open.maps.known_files.set_max_entries(1)?;
        open.maps.met_files.set_max_entries(1)?;
    }
    if let Some(fixed) = open.maps.rodata_data.as_deref_mut() {
        fixed.cgroup_source = settings.cgroup_source as u32;
        fixed.kernel_frames_max = probe::perf_event_max_stack().min(STACK_FRAMES_MAX as u32);
        fixed.sent_sets_mask = settings.sent_stacks / SENT_WAYS - 1;
        fixed.tables_used = u32::from(tables_used);
        for (place, tgid) in fixed.watched.iter_mut().zip(settings.watched) {
            *place = *tgid;
        }
        fixed.watched_count = settings.watched.len() as u32;
        if let Event::Tracepoint {
            amount: Some(field), ..
        } = settings.event
        {
            (fixed.amount_offset, fixed.amount_bytes) = (field.offset, field.bytes);
        }
        fixed.wake_bytes = u64::from(settings.ring_bytes) / 4 * 3;
    }
    // Only one of them runs; to prove the other takes as long again.
    let by_tracepoint = settings.event.is_tracepoint();
    open.progs.on_cpu.set_autoload(!by_tracepoint);
    open.progs.on_tracepoint.set_autoload(by_tracepoint);
    let loaded = open.load()?;
    let duplicate = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map_err(libbpf_rs::Error::from);
    let control = Control::map(loaded.maps.data.as_fd()).map_err(Failure::Ours)?;
    control.set_omit(settings.omit_sent_stacks);
    control.set_period(settings.event.period());
    let program = if by_tracepoint {
        loaded.progs.on_tracepoint.as_fd()
    } else {
        loaded.progs.on_cpu.as_fd()
    };
    Ok(Loaded {
        program: duplicate(program)?,
        samples: MapHandle::try_from(&loaded.maps.samples)?,
        counters: MapHandle::try_from(&loaded.maps.counters)?,
        control,
        shared: tables_used
            .then(|| -> Result<_, libbpf_rs::Error> {
                Ok(SharedTables {
                    segments: duplicate(loaded.maps.segments.as_fd())?,
                    processes: duplicate(loaded.maps.processes.as_fd())?,
                    known_files: duplicate(loaded.maps.known_files.as_fd())?,
                    met_files: duplicate(loaded.maps.met_files.as_fd())?,
                })
            })
            .transpose()?,
        tables: if settings.tables_bytes_max > 0 && settings.tables_of.is_none() {
            Some(TableMemory::new(
                MapHandle::try_from(&loaded.maps.segments)?,
                MapHandle::try_from(&loaded.maps.processes)?,
                FilePlaces::new(
                    MapHandle::try_from(&loaded.maps.known_files)?,
                    MapHandle::try_from(&loaded.maps.met_files)?,
                ),
                settings.tables_bytes_max,
            ))
        } else {
            None
        },
    })
}

/// `struct control`: the words that the running program reads on every tick.
#[derive(Debug)]
pub struct Control {
    page: Mapping,
}

// The program's only variable of its data section, so it stands at the section's beginning.
const _: () = assert!(size_of::<skeleton::types::data>() == 48);

impl Control {
    const EPOCH: usize = 0;
    const OMIT: usize = 4;
    const WOKEN: usize = 8;
    const WOKEN_FOR_IMAGE: usize = 12;
    const NO_ROOM: usize = 16;
    const STOPPED: usize = 20;
    const PERIOD: usize = 24;
    const FROM: usize = 32;
    const UNTIL: usize = 40;

    fn map(data: std::os::fd::BorrowedFd<'_>) -> Result<Self, Error> {
        let bytes = page_bytes();
        let failed = |source| Error::Map {
            buffer: "program's variables",
            bytes,
            source,
        };
        Ok(Self {
            page: Mapping::new(data, 0, bytes, Access::ReadWrite).map_err(failed)?,
        })
    }

    /// Returns the epoch that ticks write into their records from now on.
    pub fn epoch(&self) -> u32 {
        self.word(Self::EPOCH)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Begins the next epoch and returns it.
    pub fn advance_epoch(&self) -> u32 {
        self.word(Self::EPOCH)
            .map_or(0, |word| word.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    /// Says whether a stack that went out in this epoch is sent again.
    pub fn set_omit(&self, omit: bool) {
        if let Some(word) = self.word(Self::OMIT) {
            word.store(u32::from(omit), Ordering::Relaxed);
        }
    }

    /// Allows the next wake-up.
    pub fn clear_woken(&self) {
        if let Some(word) = self.word(Self::WOKEN) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Allows the next wake-up for an image without tables.
    pub fn clear_woken_for_image(&self) {
        if let Some(word) = self.word(Self::WOKEN_FOR_IMAGE) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Says what one sample stands for from now on; of a tracepoint, how much must come together for one.
    pub fn set_period(&self, period: u64) {
        self.set_long(Self::PERIOD, period);
    }

    /// Says from when on and until when ticks count. In this order nothing counts in between that is in neither the old nor the new
    /// span, as long as the old one is over.
    pub fn set_span(&self, from_ns: u64, until_ns: u64) {
        self.set_long(Self::FROM, from_ns);
        self.set_long(Self::UNTIL, until_ns);
    }

    fn set_long(&self, offset: usize, value: u64) {
        if let Some(at) = self.page.at(offset) {
            // SAFETY: aligned to 8 bytes, in a page that stays mapped as long as `self`, and both sides access it as a whole.
            unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Ordering::Release);
        }
    }

    /// Says whether a tracepoint takes samples.
    pub fn set_stopped(&self, stopped: bool) {
        if let Some(word) = self.word(Self::STOPPED) {
            word.store(u32::from(stopped), Ordering::Relaxed);
        }
    }

    /// Says whether what lacks tables lacks them for want of room.
    pub fn set_no_room(&self, no_room: bool) {
        if let Some(word) = self.word(Self::NO_ROOM) {
            word.store(u32::from(no_room), Ordering::Relaxed);
        }
    }

    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.page.at(offset)?;
        // SAFETY: aligned, in a page that stays mapped as long as `self`, and both sides access it in whole words.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }
}
