//! Stages 1 to 4 together: starts the ticks, reads what they wrote, and says what was lost.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};

use crate::attr::monotonic_ns;
use crate::cgroup::Hierarchy;
use crate::counters::CpuCounters;
use crate::cpus;
use crate::error::Error;
use crate::event::Event;
use crate::load::{self, LoadSettings, Loaded, SharedTables};
use crate::mapping::page_bytes;
use crate::perf_event::{EventTimes, PerfEvent};
use crate::probe;
use crate::record::RawSample;
use crate::ring::Ring;
use crate::run_stats::RunStats;
use crate::side_band::SideBand;
use crate::tables::TableMemory;

/// Room per CPU unless said otherwise: 9,973 Hz of stacks 127 deep, all new, for 80 ms; of typical ones for a second.
const RING_BYTES_PER_CPU: usize = 1 << 20;
/// The kernel's own limit is 4 GiB; this many would be a mistake.
const RING_BYTES_MAX: usize = 1 << 30;
/// Distinct stacks remembered as sent: 128 KiB. A busy host has some thousands in a minute.
const SENT_STACKS: u32 = 16_384;
const SENT_STACKS_MAX: u32 = 1 << 20;
/// Processes that can be watched by themselves: `WATCHED_MAX` in `progs/on_cpu.bpf.c`.
pub const WATCHED_MAX: usize = 64;

/// How to sample.
#[derive(Clone, Debug)]
pub struct SamplerSettings {
    /// What makes a sample.
    pub event: Event,
    /// Processes that are watched, at most [`WATCHED_MAX`]; none: all of them. What the others do counts as idle.
    pub watched: Vec<u32>,
    /// Whether it takes nothing until [`Sampler::resume`].
    pub paused: bool,
    /// Bytes of the ring buffer, rounded up to a power of two; `None`: 1 MiB for each CPU.
    pub ring_bytes: Option<usize>,
    /// Stacks remembered as sent, rounded up to a power of two.
    pub sent_stacks: u32,
    /// Whether a stack that went out in this epoch is sent without its frames.
    pub omit_sent_stacks: bool,
    /// What names a task's control group.
    pub hierarchy: Hierarchy,
    /// Most bytes of unwind tables in the kernel; 0: stacks are walked by frame pointers alone.
    pub tables_bytes_max: u64,
}

impl SamplerSettings {
    /// Returns the defaults at this frequency, for this host.
    pub fn at(frequency_hz: u32) -> Self {
        Self {
            event: Event::cpu_clock(frequency_hz),
            watched: Vec::new(),
            paused: false,
            ring_bytes: None,
            sent_stacks: SENT_STACKS,
            omit_sent_stacks: true,
            hierarchy: Hierarchy::find(),
            tables_bytes_max: 0,
        }
    }
}

/// What one reading of the ring brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    /// Samples handed over.
    pub samples: usize,
    /// Records that were none. Healthy: 0.
    pub undecodable: usize,
}

/// Why [`Sampler::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The time is up: the usual case.
    Timeout,
    /// The ring is three quarters full, or a buffer of the side-band half; or there is a sample of an image without tables.
    NearlyFull,
}

/// The CPU profiler of one host. Dropping it detaches the program and frees the ring.
#[derive(Debug)]
pub struct Sampler {
    events: BTreeMap<u32, PerfEvent>,
    event: Event,
    /// What is between two samples, where it was set; else as the event has it.
    period: Option<u64>,
    paused: bool,
    stopped: bool,
    started_ns: u64,
    ring: Ring,
    wake: OwnedFd,
    loaded: Loaded,
}

impl Sampler {
    /// Loads the program and starts ticking on every CPU that is online.
    pub fn start(settings: &SamplerSettings) -> Result<Self, Error> {
        Self::start_with(settings, None)
    }

    /// As [`Sampler::start`], beside another sampler, whose unwind tables it looks into. It has a ring of its own, so that neither
    /// can take the other's room.
    pub fn start_beside(settings: &SamplerSettings, tables: Option<&SharedTables>) -> Result<Self, Error> {
        Self::start_with(settings, tables)
    }

    fn start_with(settings: &SamplerSettings, tables: Option<&SharedTables>) -> Result<Self, Error> {
        let limit_hz = probe::max_sample_rate_hz();
        if let Event::Clock { hz, .. } = settings.event
            && (hz == 0 || u64::from(hz) > limit_hz)
        {
            let remedy = format!("1 to {limit_hz} (kernel.perf_event_max_sample_rate) can be had");
            let value = u64::from(hz);
            return Err(Error::Setting {
                name: "frequency_hz",
                value,
                remedy,
            });
        }
        if settings.watched.len() > WATCHED_MAX {
            return Err(Error::Setting {
                name: "watched",
                value: settings.watched.len() as u64,
                remedy: format!("at most {WATCHED_MAX} processes can be named"),
            });
        }
        let online = online_cpus()?;
        let ring_bytes = ring_bytes(settings, online.len())?;
        let loaded = load::load(&LoadSettings {
            ring_bytes,
            sent_stacks: sent_stacks(settings)?,
            omit_sent_stacks: settings.omit_sent_stacks,
            cgroup_source: settings.hierarchy.source,
            tables_bytes_max: settings.tables_bytes_max,
            tables_of: tables,
            event: settings.event,
            watched: &settings.watched,
        })?;
        let ring = Ring::new(loaded.samples.as_fd(), ring_bytes as usize)?;
        let wake = wake_on(&loaded)?;
        let mut sampler = Self {
            events: BTreeMap::new(),
            event: settings.event,
            period: None,
            paused: settings.paused,
            stopped: false,
            started_ns: monotonic_ns(),
            ring,
            wake,
            loaded,
        };
        sampler.loaded.control.set_stopped(settings.paused);
        sampler.open_events(&online)?;
        Ok(sampler)
    }

    /// Returns when it started, `CLOCK_MONOTONIC`: its events were opened in the moment that followed.
    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// Hands every record in the ring to `take`, in place, and returns how many there were.
    ///
    /// Records of one CPU come in the order of their time; records of different CPUs nearly so.
    pub fn consume(&mut self, take: &mut dyn FnMut(RawSample<'_>)) -> Result<Consumed, Error> {
        let mut consumed = Consumed::default();
        let read = self.ring.read(|bytes| match RawSample::parse(bytes) {
            Ok(sample) => {
                consumed.samples += 1;
                take(sample);
            }
            Err(why) => {
                consumed.undecodable += 1;
                tracing::debug!(%why, "a record is undecodable");
            }
        });
        self.loaded.control.clear_woken();
        read?;
        Ok(consumed)
    }

    /// Sleeps until it is time to read: `interval` from now, or earlier when the ring fills up.
    pub fn wait(&self, interval: Duration) -> Result<Wake, Error> {
        let timeout = i32::try_from(interval.as_millis()).unwrap_or(i32::MAX);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for the one event that is asked for; it outlives the call.
        match unsafe { libc::epoll_wait(self.wake.as_raw_fd(), &mut event, 1, timeout) } {
            0 => Ok(Wake::Timeout),
            count if count > 0 => Ok(Wake::NearlyFull),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(Wake::Timeout),
                source => Err(Error::Wait { source }),
            },
        }
    }

    /// Lets [`Sampler::wait`] return as well when a buffer of the side-band is half full.
    pub fn wake_on_side_band(&mut self, side_band: &SideBand) -> Result<(), Error> {
        side_band
            .descriptors()
            .try_for_each(|fd| add_to_epoll(&self.wake, fd))
    }

    /// Returns what the program has cost, while [`crate::bench_support::Counting`] lives.
    pub fn run_stats(&self) -> io::Result<RunStats> {
        RunStats::of(self.loaded.program.as_fd())
    }

    /// Returns the memory of unwind tables, once; nothing where the settings give it no bytes.
    pub fn take_tables(&mut self) -> Option<TableMemory> {
        self.loaded.tables.take()
    }

    /// Takes out the means to look into this sampler's unwind tables, for [`Sampler::start_beside`]; nothing where it uses none.
    pub fn take_shared_tables(&mut self) -> Option<SharedTables> {
        self.loaded.shared.take()
    }

    /// Lets [`Sampler::wait`] return as well when the ring of `other` fills up.
    pub fn wake_on(&mut self, other: &Sampler) -> Result<(), Error> {
        add_to_epoll(&self.wake, other.loaded.samples.as_fd().as_raw_fd())
    }

    /// Lets a sample of an image without tables wake [`Sampler::wait`] once more. Not more often than each wake-up is worth: some
    /// 15 µs.
    pub fn allow_wake_for_image(&self) {
        self.loaded.control.clear_woken_for_image();
    }

    /// Says whether the memory of tables is full: a stack without tables then ends as [`StackEnd::NoRoom`](crate::StackEnd::NoRoom).
    pub fn set_no_room(&self, no_room: bool) {
        self.loaded.control.set_no_room(no_room);
    }

    /// Returns each CPU's counts, of those that this sampler ticks on.
    pub fn counters(&self) -> Result<BTreeMap<u32, CpuCounters>, Error> {
        let unreadable = |message| Error::ReadMap {
            map: "counters",
            message,
        };
        let values = self
            .loaded
            .counters
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| unreadable(error.to_string()))?
            .ok_or_else(|| unreadable("it is empty".to_owned()))?;
        let mut counters = BTreeMap::new();
        for (cpu, value) in (0..).zip(&values) {
            let parsed =
                CpuCounters::parse(value).ok_or_else(|| unreadable(format!("{} bytes", value.len())))?;
            // A CPU that has gone offline keeps its counts: its samples were taken.
            if self.events.contains_key(&cpu) || parsed != CpuCounters::default() {
                counters.insert(cpu, parsed);
            }
        }
        Ok(counters)
    }

    /// Returns for how long each CPU's timer was enabled and running.
    pub fn times(&self) -> Result<BTreeMap<u32, EventTimes>, Error> {
        self.events
            .iter()
            .map(|(&cpu, event)| Ok((cpu, event.times()?)))
            .collect()
    }

    /// Returns the epoch that ticks write into their records now.
    pub fn epoch(&self) -> u32 {
        self.loaded.control.epoch()
    }

    /// Begins the next epoch: every stack is sent with its frames once more. Returns the new epoch.
    ///
    /// A tick that began before may still refer to the old one. So: advance, let one more interval pass, consume, and
    /// only then forget the stacks of older epochs; each record names the epoch that it refers to.
    pub fn advance_epoch(&self) -> u32 {
        self.loaded.control.advance_epoch()
    }

    /// Takes up CPUs that have come online, and lets go of those that have gone. Returns how many tick now.
    pub fn refresh_cpus(&mut self) -> Result<usize, Error> {
        let online = online_cpus()?;
        self.events.retain(|cpu, _| online.contains(cpu));
        if !self.stopped && !self.paused {
            self.open_events(&online)?;
        }
        Ok(self.events.len())
    }

    /// Stops the ticks until [`Sampler::resume`]. What is in the ring can still be consumed.
    pub fn pause(&mut self) -> Result<(), Error> {
        self.paused = true;
        self.loaded.control.set_stopped(true);
        self.events.values().try_for_each(PerfEvent::disable)
    }

    /// Starts the ticks again, `period` apart. Where the period stays, what was left of it at the pause comes first, so
    /// that many short runs have as many ticks as one long one.
    pub fn resume(&mut self, period: u64) -> Result<(), Error> {
        self.set_period(period)?;
        self.paused = false;
        self.loaded.control.set_stopped(false);
        self.events.values().try_for_each(PerfEvent::enable)
    }

    /// Lets ticks count from `from_ns` on and until just before `until_ns`, both of `CLOCK_MONOTONIC`: those before and after are as if
    /// they had not been. Events that were counted in other ways than by a clock's ticks have no such span.
    pub fn set_span(&self, from_ns: u64, until_ns: u64) {
        self.loaded.control.set_span(from_ns, until_ns);
    }

    /// Sets what is between two samples, and what each stands for: nanoseconds of a clock, else how much of what is counted.
    pub fn set_period(&mut self, period: u64) -> Result<(), Error> {
        if self.period.unwrap_or(self.event.period()) == period {
            return Ok(());
        }
        if !self.event.is_tracepoint() {
            self.events
                .values()
                .try_for_each(|event| event.set_period(period))?;
        }
        self.loaded.control.set_period(period);
        self.period = Some(period);
        Ok(())
    }

    /// Stops the ticks. What is in the ring can still be consumed, and counters and times can still be read.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.stopped = true;
        self.loaded.control.set_stopped(true);
        self.events.values().try_for_each(PerfEvent::disable)
    }

    /// Opens all that are missing before any of them starts, so that the CPUs begin together.
    fn open_events(&mut self, online: &[u32]) -> Result<(), Error> {
        let mut opened = Vec::new();
        for &cpu in online.iter().filter(|cpu| !self.events.contains_key(cpu)) {
            // A program that is attached to a tracepoint runs on all CPUs: the others only tell how long it was there.
            let runs_elsewhere =
                self.event.is_tracepoint() && (!self.events.is_empty() || !opened.is_empty());
            let program = (!runs_elsewhere).then(|| self.loaded.program.as_fd());
            opened.extend(PerfEvent::open(cpu, &self.event, program)?.map(|e| (cpu, e)));
        }
        if let Some(period) = self.period.filter(|_| !self.event.is_tracepoint()) {
            opened
                .iter()
                .try_for_each(|(_, event)| event.set_period(period))?;
        }
        if !self.paused {
            opened.iter().try_for_each(|(_, event)| event.enable())?;
        }
        self.events.extend(opened);
        Ok(())
    }
}

fn online_cpus() -> Result<Vec<u32>, Error> {
    cpus::online().map_err(|source| Error::ReadFile {
        path: "/sys/devices/system/cpu/online".to_owned(),
        source,
    })
}

fn ring_bytes(settings: &SamplerSettings, cpus: usize) -> Result<u32, Error> {
    let wanted = settings
        .ring_bytes
        .unwrap_or(RING_BYTES_PER_CPU.saturating_mul(cpus).min(RING_BYTES_MAX));
    if wanted > RING_BYTES_MAX {
        let remedy = format!("at most {RING_BYTES_MAX} can be had");
        return Err(Error::Setting {
            name: "ring_bytes",
            value: wanted as u64,
            remedy,
        });
    }
    const _: () = assert!(RING_BYTES_MAX <= u32::MAX as usize);
    Ok(wanted.max(page_bytes()).next_power_of_two() as u32)
}

fn sent_stacks(settings: &SamplerSettings) -> Result<u32, Error> {
    if !(4..=SENT_STACKS_MAX).contains(&settings.sent_stacks) {
        let remedy = format!("4 to {SENT_STACKS_MAX} can be had");
        let value = u64::from(settings.sent_stacks);
        return Err(Error::Setting {
            name: "sent_stacks",
            value,
            remedy,
        });
    }
    Ok(settings.sent_stacks.next_power_of_two())
}

/// Returns an epoll descriptor that becomes ready by a wake-up alone. Edge-triggered, as a ring with one unread record
/// is "readable" already.
fn wake_on(loaded: &Loaded) -> Result<OwnedFd, Error> {
    let failed = || Error::Wait {
        source: io::Error::last_os_error(),
    };
    // SAFETY: takes no pointer.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(failed());
    }
    // SAFETY: just returned by the kernel, owned by nobody else.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    add_to_epoll(&epoll, loaded.samples.as_fd().as_raw_fd())?;
    Ok(epoll)
}

fn add_to_epoll(epoll: &OwnedFd, fd: RawFd) -> Result<(), Error> {
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: 0,
    };
    // SAFETY: `event` outlives the call, which copies it.
    if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } < 0 {
        return Err(Error::Wait {
            source: io::Error::last_os_error(),
        });
    }
    Ok(())
}

/// A sampler moves to the thread that reads it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Sampler>();
};
