//! Stage 1: what is to be sampled → one perf event per CPU, each of which runs the program.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::error::Error;
use crate::event::Event;

/// `_IO('$', number)`: the same on every architecture that programs are built for here.
const IOCTL_ENABLE: libc::c_ulong = 0x2400;
const IOCTL_DISABLE: libc::c_ulong = 0x2401;
/// `_IOW('$', 4, u64)`.
const IOCTL_PERIOD: libc::c_ulong = 0x4008_2404;
/// `_IOW('$', 8, u32)`.
const IOCTL_SET_BPF: libc::c_ulong = 0x4004_2408;

/// How long an event was there, and how long of that it really counted. Software events always count; others share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTimes {
    /// Nanoseconds enabled.
    pub enabled_ns: u64,
    /// Nanoseconds of those in which it was on the CPU.
    pub running_ns: u64,
}

/// The event of one CPU. Dropping it closes it, and with it goes the program's attachment.
#[derive(Debug)]
pub struct PerfEvent {
    cpu: u32,
    file: File,
}

impl PerfEvent {
    /// Opens the event of one CPU, still stopped, and attaches `program`, where there is one; `None` when that CPU has gone
    /// offline since the list was read.
    pub fn open(cpu: u32, event: &Event, program: Option<BorrowedFd<'_>>) -> Result<Option<Self>, Error> {
        let opened: OwnedFd = match event.attr().open_on_cpu(cpu) {
            Ok(opened) => opened,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(source) => {
                return Err(Error::Event {
                    doing: event.opening(),
                    cpu,
                    source,
                });
            }
        };
        let event = Self {
            cpu,
            file: File::from(opened),
        };
        if let Some(program) = program {
            event.control(IOCTL_SET_BPF, program.as_raw_fd(), "attaching the program")?;
        }
        Ok(Some(event))
    }

    /// Starts the ticks.
    pub fn enable(&self) -> Result<(), Error> {
        self.control(IOCTL_ENABLE, 0, "starting an event")
    }

    /// Stops the ticks. The times stay readable.
    pub fn disable(&self) -> Result<(), Error> {
        self.control(IOCTL_DISABLE, 0, "stopping an event")
    }

    /// Sets what is between two samples: of a clock, time. The kernel has turned the frequency that a CPU
    /// clock was opened with into one.
    pub fn set_period(&self, period: u64) -> Result<(), Error> {
        // SAFETY: the request reads 8 bytes, and `period` outlives the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), IOCTL_PERIOD as _, &raw const period) };
        if result < 0 {
            return Err(Error::Event {
                doing: "setting the period of an event",
                cpu: self.cpu,
                source: io::Error::last_os_error(),
            });
        }
        Ok(())
    }

    /// Returns for how long it was enabled and running. Zeros for a CPU that has gone offline.
    pub fn times(&self) -> Result<EventTimes, Error> {
        let mut bytes = [0; 24];
        match (&self.file).read(&mut bytes) {
            Ok(read) if read == bytes.len() => {}
            Ok(_) => return Ok(EventTimes::default()),
            Err(source) => {
                return Err(Error::Event {
                    doing: "reading an event",
                    cpu: self.cpu,
                    source,
                });
            }
        }
        let (words, _) = bytes.as_chunks::<8>();
        let [_count, enabled_ns, running_ns] = [0, 1, 2].map(|word| u64::from_ne_bytes(words[word]));
        Ok(EventTimes {
            enabled_ns,
            running_ns,
        })
    }

    fn control(&self, request: libc::c_ulong, argument: i32, doing: &'static str) -> Result<(), Error> {
        // SAFETY: these requests take a number or a descriptor, and no pointer.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, argument) };
        if result < 0 {
            return Err(Error::Event {
                doing,
                cpu: self.cpu,
                source: io::Error::last_os_error(),
            });
        }
        Ok(())
    }
}
