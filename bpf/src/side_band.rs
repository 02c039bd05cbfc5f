//! The kernel's own account of processes: forks, execs, mappings of code, exits, in the order of their time.
//!
//! One dummy software event per CPU; each CPU reports what happens on it, and together they see every process. Nothing
//! is read from `/proc`: most processes of a shell loop are gone before anybody could.
//!
//! # Merging with samples
//!
//! Consume the samples first and keep them; then [`SideBand::drain`], and at each event first settle the kept samples
//! that are older than it. `drain` returns its clock: every event up to then has been given, so samples up to then can
//! be settled; younger ones are kept for the next round. Because the events are drained after the samples, those are
//! only the samples of the last millisecond.
//!
//! A sample with user frames never stands between an exec and its new mappings: the kernel side withholds the user
//! stack from the old image's last moment to the new image's first. So time alone assigns it to the right image.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::attr::{EventAttr, SAMPLE_TID_TIME_CPU, SOFTWARE_DUMMY, TYPE_SOFTWARE, flag, monotonic_ns};
use crate::cpus;
use crate::error::Error;
use crate::mapping::page_bytes;
use crate::perf_ring::PerfRing;
use crate::side_band_record::{self, NoEvent, ProcessEvent, ProcessEventKind};
use crate::time_merge::TimeMerge;

/// Unless said otherwise: what `kernel.perf_event_mlock_kb` grants each CPU by default, less the page in front. A fork
/// with its exec takes about 1 KiB, so this is some 500 of them between two drains.
const RING_BYTES: usize = 512 << 10;
/// Below this, one long path could fill it.
const RING_BYTES_MIN: usize = 16 << 10;
const RING_BYTES_MAX: usize = 64 << 20;

/// A record's time is taken some instructions before the record can be read; another CPU's may be ahead meanwhile.
const SETTLE_NS: u64 = 1_000_000;

/// How to follow processes.
#[derive(Clone, Copy, Debug)]
pub struct SideBandSettings {
    /// Bytes of each CPU's buffer, rounded up to a power of two. Less is taken where less may be locked.
    pub ring_bytes: usize,
}

impl Default for SideBandSettings {
    fn default() -> Self {
        Self {
            ring_bytes: RING_BYTES,
        }
    }
}

/// What came through, and what did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideBandCounters {
    /// Events given out.
    pub delivered: u64,
    /// Records that the kernel had no room for. Healthy: 0. Else drain more often, or give more room.
    pub lost: u64,
    /// Records that could not be read. Healthy: 0.
    pub undecodable: u64,
    /// Records of kinds that nobody asked for.
    pub other_kinds: u64,
    /// Events that came after their time had been passed; they were given out late. Healthy: 0.
    pub late: u64,
}

/// The side-band of one host. Dropping it closes it.
#[derive(Debug)]
pub struct SideBand {
    rings: BTreeMap<u32, PerfRing>,
    ring_bytes: usize,
    build_ids: bool,
    merge: TimeMerge,
    clock_ns: u64,
    counters: SideBandCounters,
}

impl SideBand {
    /// Starts listening on every CPU that is online.
    pub fn start(settings: &SideBandSettings) -> Result<Self, Error> {
        if settings.ring_bytes > RING_BYTES_MAX {
            let remedy = format!("{RING_BYTES_MIN} to {RING_BYTES_MAX} can be had");
            return Err(Error::Setting {
                name: "ring_bytes",
                value: settings.ring_bytes as u64,
                remedy,
            });
        }
        let smallest = RING_BYTES_MIN.max(page_bytes());
        let mut side_band = Self {
            rings: BTreeMap::new(),
            ring_bytes: settings.ring_bytes.max(smallest).next_power_of_two(),
            build_ids: true,
            merge: TimeMerge::default(),
            clock_ns: 0,
            counters: SideBandCounters::default(),
        };
        side_band.refresh_cpus()?;
        Ok(side_band)
    }

    /// Gives out what has happened, by time, and returns the clock: nothing up to it is still to come.
    pub fn drain(&mut self, mut take: impl FnMut(ProcessEvent<'_>)) -> Result<u64, Error> {
        let horizon_ns = monotonic_ns().saturating_sub(SETTLE_NS);
        let mut result = Ok(());
        for ring in self.rings.values_mut() {
            // The other CPUs are still read, and what was read is still given out.
            result = result.and(gather(ring, &mut self.merge, &mut self.counters));
        }
        let (counters, clock_ns) = (&mut self.counters, self.clock_ns);
        self.merge.take(horizon_ns, |time_ns, record| {
            match side_band_record::parse(record) {
                Ok(event) => {
                    counters.delivered += 1;
                    counters.late += u64::from(time_ns <= clock_ns);
                    if let ProcessEventKind::Lost { records } = event.kind {
                        counters.lost = counters.lost.saturating_add(records);
                    }
                    take(event);
                }
                Err(NoEvent::OtherKind(_)) => counters.other_kinds += 1,
                Err(NoEvent::Malformed) => counters.undecodable += 1,
            }
        });
        self.clock_ns = horizon_ns;
        result.map(|()| horizon_ns)
    }

    /// Returns what came through so far, and what did not.
    pub fn counters(&self) -> SideBandCounters {
        self.counters
    }

    /// Returns the size of each CPU's buffer: less than asked for where less may be locked.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Tells whether this kernel puts build ids into mappings (5.12 or later).
    pub fn has_build_ids(&self) -> bool {
        self.build_ids
    }

    /// Takes up CPUs that have come online, and lets go of those that have gone.
    pub fn refresh_cpus(&mut self) -> Result<(), Error> {
        let online = cpus::online().map_err(|source| Error::ReadFile {
            path: "/sys/devices/system/cpu/online".to_owned(),
            source,
        })?;
        let (merge, counters) = (&mut self.merge, &mut self.counters);
        self.rings.retain(|cpu, ring| {
            let stays = online.contains(cpu);
            if !stays && let Err(error) = gather(ring, merge, counters) {
                tracing::warn!(cpu, %error, "what a CPU that went away had to tell is lost");
            }
            stays
        });
        for cpu in online {
            if self.rings.contains_key(&cpu) {
                continue;
            }
            if let Some(event) = self.open(cpu)? {
                let ring = self.map(cpu, event)?;
                self.rings.insert(cpu, ring);
            }
        }
        Ok(())
    }

    /// Returns the descriptors that become readable when a buffer is half full.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.rings.values().map(|ring| ring.event().as_raw_fd())
    }

    /// Opens the event of one CPU; `None` when that CPU has gone offline since the list was read.
    fn open(&mut self, cpu: u32) -> Result<Option<OwnedFd>, Error> {
        loop {
            match self.attr().open_on_cpu(cpu) {
                Ok(event) => return Ok(Some(event)),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && self.build_ids => {
                    tracing::info!(
                        "this kernel puts no build ids into mappings: they are read from the files"
                    );
                    self.build_ids = false;
                }
                Err(source) => {
                    return Err(Error::Event {
                        doing: "opening the side-band",
                        cpu,
                        source,
                    });
                }
            }
        }
    }

    /// Maps the buffer of one CPU, half as large where the limit of locked memory refuses it.
    fn map(&mut self, cpu: u32, mut event: OwnedFd) -> Result<PerfRing, Error> {
        loop {
            match PerfRing::new(event, self.ring_bytes) {
                Ok(ring) => return Ok(ring),
                Err((back, error))
                    if is_locked_memory(&error) && self.ring_bytes > RING_BYTES_MIN.max(page_bytes()) =>
                {
                    event = back;
                    self.ring_bytes /= 2;
                    tracing::warn!(
                        cpu,
                        bytes = self.ring_bytes,
                        "the side-band's buffer is smaller than asked for: raise kernel.perf_event_mlock_kb or `ulimit -l`"
                    );
                }
                Err((_, source)) => {
                    return Err(Error::Map {
                        buffer: "side-band",
                        bytes: self.ring_bytes,
                        source,
                    });
                }
            }
        }
    }

    fn attr(&self) -> EventAttr {
        let build_id = if self.build_ids { flag::BUILD_ID } else { 0 };
        EventAttr {
            kind: TYPE_SOFTWARE,
            config: SOFTWARE_DUMMY,
            sample_type: SAMPLE_TID_TIME_CPU,
            // Mappings of code alone: `mmap_data` stays off.
            flags: flag::MMAP
                | flag::MMAP2
                | flag::COMM
                | flag::COMM_EXEC
                | flag::TASK
                | flag::WATERMARK
                | flag::SAMPLE_ID_ALL
                | flag::USE_CLOCK_ID
                | build_id,
            wakeup: (self.ring_bytes / 2) as u32,
            clock_id: libc::CLOCK_MONOTONIC,
            ..EventAttr::default()
        }
    }
}

/// Lays what a buffer holds into the order of time.
fn gather(ring: &mut PerfRing, merge: &mut TimeMerge, counters: &mut SideBandCounters) -> Result<(), Error> {
    let read = ring.read(|record| match side_band_record::time_of(record) {
        Some(time_ns) => merge.push(time_ns, record),
        None => counters.undecodable += 1,
    });
    counters.undecodable += u64::from(read.is_err());
    read
}

fn is_locked_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM))
}

const _: () = assert!(RING_BYTES_MAX / 2 <= u32::MAX as usize);

/// A side-band moves to the thread that reads it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<SideBand>();
};
