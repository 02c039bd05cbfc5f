//! What a program costs, as the kernel counts it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// How often a program ran and how long that took. Zeros while nobody holds [`Counting`] and
/// `kernel.bpf_stats_enabled` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Times that it ran.
    pub runs: u64,
    /// Nanoseconds in all of them. Reading the clock adds some 30 to each.
    pub nanoseconds: u64,
}

impl RunStats {
    /// Returns the stats of one program.
    pub(crate) fn of(program: BorrowedFd<'_>) -> io::Result<Self> {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut bytes = size_of_val(&info) as u32;
        // SAFETY: writes at most `bytes` into `info`, whose pointers are null: no further buffers are asked for.
        let result = unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut bytes)
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(Self {
            runs: info.run_cnt,
            nanoseconds: info.run_time_ns,
        })
    }

    /// Returns nanoseconds per run since `earlier`; `None` when it did not run.
    pub fn per_run_since(&self, earlier: &Self) -> Option<f64> {
        let runs = self.runs.checked_sub(earlier.runs).filter(|&runs| runs > 0)?;
        Some(self.nanoseconds.saturating_sub(earlier.nanoseconds) as f64 / runs as f64)
    }
}

/// While this lives, the kernel counts how long programs run. Costs each of them two readings of the clock.
#[derive(Debug)]
pub struct Counting {
    _until_dropped: OwnedFd,
}

impl Counting {
    /// Starts counting, for all programs of the host.
    pub fn start() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: just returned by the kernel, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { _until_dropped: fd })
    }
}
