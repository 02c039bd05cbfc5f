//! `perf_event_open(2)`: its argument, the call, and the clock that all events here share.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Software events: they need no hardware counter, so they are there in every virtual machine and never scarce.
pub const TYPE_SOFTWARE: u32 = 1;
/// A timer per CPU.
pub const SOFTWARE_CPU_CLOCK: u64 = 0;
/// Counts nothing; only carries the side-band.
pub const SOFTWARE_DUMMY: u64 = 9;

/// Ends each read of an event with its enabled and its running time.
pub const FORMAT_TOTAL_TIMES: u64 = 1 | 2;

/// Each record ends with pid and tid, time, and CPU: 24 bytes, in this order.
pub const SAMPLE_TID_TIME_CPU: u64 = 1 << 1 | 1 << 2 | 1 << 7;

/// Bits of [`EventAttr::flags`], in the order of the kernel's bit-field.
pub mod flag {
    /// Created stopped.
    pub const DISABLED: u64 = 1;
    /// Counts all of the time, or not at all.
    pub const PINNED: u64 = 1 << 2;
    /// Reports executable mappings.
    pub const MMAP: u64 = 1 << 8;
    /// Reports names of threads.
    pub const COMM: u64 = 1 << 9;
    /// `period_or_frequency` is a frequency.
    pub const FREQUENCY: u64 = 1 << 10;
    /// Reports forks and exits.
    pub const TASK: u64 = 1 << 13;
    /// `wakeup` is in bytes, not in events.
    pub const WATERMARK: u64 = 1 << 14;
    /// Records that are no samples bear pid, time and CPU too.
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    /// Mappings come with their file's identity.
    pub const MMAP2: u64 = 1 << 23;
    /// A name set by `exec` is told from one set by the thread.
    pub const COMM_EXEC: u64 = 1 << 24;
    /// `clock_id` counts.
    pub const USE_CLOCK_ID: u64 = 1 << 25;
    /// Mappings come with the file's build id, where its page is resident (since 5.12).
    pub const BUILD_ID: u64 = 1 << 34;
}

/// The kernel's `struct perf_event_attr`, version 5 (4.1): everything up to the clock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EventAttr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub period_or_frequency: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup: u32,
    pub breakpoint_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clock_id: i32,
    pub sample_regs_interrupt: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const _: () = assert!(size_of::<EventAttr>() == 112);

impl EventAttr {
    /// Opens the event for every process on one CPU. The descriptor is closed on `exec`.
    pub fn open_on_cpu(mut self, cpu: u32) -> io::Result<OwnedFd> {
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        self.size = size_of::<Self>() as u32;
        let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
        // SAFETY: the kernel reads `size` bytes of the attribute, all of which are there, and keeps no pointer to it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const self,
                -1,
                cpu,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just returned by the kernel, owned by nobody else. Descriptors fit in 32 bits.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// Returns `CLOCK_MONOTONIC`, the clock of every sample and side-band record.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` outlives the call. The clock exists on every Linux, so the result needs no look.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
