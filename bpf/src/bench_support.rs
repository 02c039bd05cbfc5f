//! What the profiler is measured against: other programs on the same perf event. Not part of any profile.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::cpus;
use crate::error::Error;
use crate::event::Event;
use crate::libbpf_log::Recording;
use crate::perf_event::PerfEvent;
use crate::probe;
pub use crate::run_stats::{Counting, RunStats};

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
    include!(concat!(env!("OUT_DIR"), "/bench.skel.rs"));
}

/// A program that takes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Returns at once: what remains is the cost of the timer and the perf event.
    Empty,
    /// Takes the user stack by `bpf_get_stack` and drops it.
    WalkByHelper,
    /// Takes the user stack by the profiler's own walk and drops it.
    WalkByFramePointer,
}

/// One of the [`Baseline`]s on every CPU that is online. Dropping it detaches it.
#[derive(Debug)]
pub struct EmptySampler {
    program: OwnedFd,
    _events: Vec<PerfEvent>,
}

impl EmptySampler {
    /// Starts the program that returns at once.
    pub fn start(frequency_hz: u32) -> Result<Self, Error> {
        Self::start_baseline(Baseline::Empty, frequency_hz)
    }

    /// Starts one of the programs.
    pub fn start_baseline(baseline: Baseline, frequency_hz: u32) -> Result<Self, Error> {
        probe::check_loadable()?;
        let recording = Recording::start();
        let program = load(baseline).map_err(|error| Error::Load {
            program: "bench",
            message: error.to_string(),
            log: recording.take(),
        })?;
        let online = cpus::online().map_err(|source| Error::ReadFile {
            path: "/sys/devices/system/cpu/online".to_owned(),
            source,
        })?;
        let mut events = Vec::new();
        for cpu in online {
            events.extend(PerfEvent::open(
                cpu,
                &Event::cpu_clock(frequency_hz),
                Some(program.as_fd()),
            )?);
        }
        events.iter().try_for_each(PerfEvent::enable)?;
        Ok(Self {
            program,
            _events: events,
        })
    }

    /// Returns what the program has cost, while [`Counting`] lives.
    pub fn run_stats(&self) -> io::Result<RunStats> {
        RunStats::of(self.program.as_fd())
    }
}

/// Returns what the program that ticks in another process has cost, while [`Counting`] lives: of those that it holds, the one that
/// ran most often.
///
/// # Errors
/// Where the process is gone, or holds no program.
pub fn run_stats_of_process(pid: u32) -> io::Result<RunStats> {
    let mut most: Option<RunStats> = None;
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().parse().ok()
        };
        if let (Some(nanoseconds), Some(runs)) = (field("run_time_ns"), field("run_cnt"))
            && most.is_none_or(|most| runs > most.runs)
        {
            most = Some(RunStats { runs, nanoseconds });
        }
    }
    most.ok_or_else(|| io::Error::other(format!("process {pid} holds no BPF program")))
}

fn load(baseline: Baseline) -> Result<OwnedFd, libbpf_rs::Error> {
    let mut storage = MaybeUninit::uninit();
    let loaded = skeleton::BenchSkelBuilder::default().open(&mut storage)?.load()?;
    let program = match baseline {
        Baseline::Empty => loaded.progs.empty.as_fd(),
        Baseline::WalkByHelper => loaded.progs.walk_by_helper.as_fd(),
        Baseline::WalkByFramePointer => loaded.progs.walk_by_frame_pointer.as_fd(),
    };
    program.try_clone_to_owned().map_err(Into::into)
}
