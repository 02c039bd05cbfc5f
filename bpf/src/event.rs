//! What makes a sample: a clock's tick, so many of something that is counted, a touch of an address, a tracepoint.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::attr::{EventAttr, FORMAT_TOTAL_TIMES, SOFTWARE_CPU_CLOCK, TYPE_SOFTWARE, flag};
use crate::error::Error;

/// `PERF_TYPE_HARDWARE`.
pub const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_TRACEPOINT`.
const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_TYPE_HW_CACHE`.
pub const TYPE_CACHE: u32 = 3;
/// `PERF_TYPE_BREAKPOINT`.
const TYPE_BREAKPOINT: u32 = 5;
/// `PERF_TYPE_SOFTWARE`.
pub const TYPE_COUNTED_SOFTWARE: u32 = TYPE_SOFTWARE;
/// Where tracefs is, and where it was before it had a place of its own.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// First address that is not user space's, on the architectures that programs are built for here.
const USER_END: u64 = 1 << 47;

/// What makes a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A software clock's tick, so many a second and CPU. An odd number keeps from marching in step with what is sampled.
    Clock {
        /// `perf_event_attr.config`: which clock.
        config: u64,
        /// Ticks.
        hz: u32,
    },
    /// So many of what the kernel or the CPU counts.
    Counted {
        /// `perf_event_attr.type`.
        kind: u32,
        /// `perf_event_attr.config`.
        config: u64,
        /// How many.
        period: u64,
    },
    /// A touch of an address in user space, in every process that has something there.
    Breakpoint(Breakpoint),
    /// A tracepoint, so often, or so much of what one of its fields says.
    Tracepoint {
        /// Its number.
        id: u64,
        /// How often, or how much.
        period: u64,
        /// The field that is summed up; nothing: each counts for one.
        amount: Option<Field>,
    },
}

/// Which touches of which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// The address.
    pub address: u64,
    /// How it is touched.
    pub access: Access,
    /// Bytes: 1, 2, 4 or 8, of which the address is a multiple.
    pub length: u64,
}

/// How an address is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Written.
    Write,
    /// Read or written.
    ReadWrite,
    /// Run.
    Execute,
}

/// A field of a tracepoint's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes before it.
    pub offset: u32,
    /// Bytes of it: 1, 2, 4 or 8.
    pub bytes: u32,
}

impl Event {
    /// Returns the ticks of every CPU's clock.
    pub fn cpu_clock(hz: u32) -> Self {
        Self::Clock {
            config: SOFTWARE_CPU_CLOCK,
            hz,
        }
    }

    /// Returns what one sample stands for: nanoseconds of a clock, else what is counted.
    pub fn period(&self) -> u64 {
        match *self {
            Self::Clock { hz, .. } => 1_000_000_000 / u64::from(hz.max(1)),
            Self::Counted { period, .. } | Self::Tracepoint { period, .. } => period,
            Self::Breakpoint(_) => 1,
        }
    }

    /// Returns what opening it is called in messages.
    pub(crate) fn opening(&self) -> &'static str {
        match self {
            Self::Clock { .. } => "opening the CPU clock",
            Self::Counted { .. } => "opening a counted event",
            Self::Breakpoint(_) => "opening a hardware breakpoint",
            Self::Tracepoint { .. } => "opening a tracepoint",
        }
    }

    /// Tells whether programs attach to it once for all CPUs.
    pub(crate) fn is_tracepoint(&self) -> bool {
        matches!(self, Self::Tracepoint { .. })
    }

    pub(crate) fn attr(&self) -> EventAttr {
        // No sample fields: the program reads what it needs, and the kernel prepares nothing.
        let attr = EventAttr {
            read_format: FORMAT_TOTAL_TIMES,
            flags: flag::DISABLED,
            period_or_frequency: self.period(),
            ..EventAttr::default()
        };
        match *self {
            Self::Clock { config, hz } => EventAttr {
                kind: TYPE_SOFTWARE,
                config,
                period_or_frequency: u64::from(hz),
                flags: flag::DISABLED | flag::FREQUENCY,
                ..attr
            },
            Self::Counted { kind, config, .. } => EventAttr { kind, config, ..attr },
            Self::Breakpoint(Breakpoint {
                address,
                access,
                length,
            }) => EventAttr {
                kind: TYPE_BREAKPOINT,
                breakpoint_type: match access {
                    Access::Write => 2,
                    Access::ReadWrite => 3,
                    Access::Execute => 4,
                },
                config1: address,
                // The kernel wants a whole instruction's first word, whatever its length.
                config2: match access {
                    Access::Execute => size_of::<usize>() as u64,
                    _ => length,
                },
                ..attr
            },
            // Counts only: the program does the sampling, on all CPUs.
            Self::Tracepoint { id, .. } => EventAttr {
                kind: TYPE_TRACEPOINT,
                config: id,
                period_or_frequency: 0,
                ..attr
            },
        }
    }

    /// Opens it once and closes it again: says whether this machine has it, and whether it is free.
    ///
    /// # Errors
    /// [`Error::Event`] with the kernel's answer.
    pub fn probe(&self, cpu: u32) -> Result<(), Error> {
        self.attr()
            .open_on_cpu(cpu)
            .map(drop)
            .map_err(|source| Error::Event {
                doing: self.opening(),
                cpu,
                source,
            })
    }
}

/// What a trial to take something scarce said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial<T> {
    /// It is held until it is dropped.
    Got(T),
    /// All are taken.
    Taken,
    /// This machine has none.
    Missing,
}

/// An event that is open, and samples nothing.
#[derive(Debug)]
pub struct HeldEvent {
    _event: OwnedFd,
}

impl Event {
    /// Takes it for itself alone, to see whether there is one left.
    pub fn hold(&self, cpu: u32) -> Trial<HeldEvent> {
        let mut attr = self.attr();
        // Pinned: it counts all of the time, or not at all; and at once, so that the kernel has to say which.
        attr.flags = attr.flags & !flag::DISABLED | flag::PINNED;
        let event = match attr.open_on_cpu(cpu) {
            Ok(event) => event,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOSPC | libc::EBUSY) => Trial::Taken,
                    _ => Trial::Missing,
                };
            }
        };
        let file = std::fs::File::from(event);
        let mut bytes = [0; 24];
        match (&file).read(&mut bytes) {
            // A pinned event that found no room is in error, and reads as empty.
            Ok(0) => Trial::Taken,
            Ok(_) => Trial::Got(HeldEvent { _event: file.into() }),
            Err(_) => Trial::Missing,
        }
    }
}

impl Breakpoint {
    /// Returns one that the kernel can be asked for.
    ///
    /// # Errors
    /// What is wrong with the numbers.
    pub fn new(address: u64, access: Access, length: u64) -> Result<Self, String> {
        if ![1, 2, 4, 8].contains(&length) {
            return Err(format!("{length} bytes cannot be watched: give 1, 2, 4 or 8"));
        }
        if !address.is_multiple_of(length) {
            return Err(format!("{address:#x} is no multiple of its {length} bytes"));
        }
        if !(4_096..USER_END).contains(&address) {
            return Err(format!("{address:#x} is no address of a process"));
        }
        Ok(Self {
            address,
            access,
            length,
        })
    }
}

/// A tracepoint that this kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its number.
    pub id: u64,
    format: String,
}

impl Tracepoint {
    /// Finds one by its name, `sched:sched_switch`. Where tracefs is not mounted yet, mounts it where it belongs.
    ///
    /// # Errors
    /// What is wrong with the name, or why the kernel does not show its tracepoints.
    pub fn find(name: &str) -> Result<Self, String> {
        let is_part = |part: &str| {
            !part.is_empty()
                && part.len() < 128
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        };
        let (system, event) = name
            .split_once(':')
            .filter(|(system, event)| is_part(system) && is_part(event))
            .ok_or_else(|| {
                format!(
                    "`{}` is no tracepoint: `sched:sched_switch` is one",
                    name.escape_debug()
                )
            })?;
        let events = tracefs()?.join("events");
        let folder = events.join(system).join(event);
        let read = |file: &str| std::fs::read_to_string(folder.join(file));
        let id = read("id").map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("this kernel has no tracepoint {name}: `perf list tracepoint` lists its own")
            }
            _ => format!("cannot read the tracepoint {name}: {error}"),
        })?;
        Ok(Self {
            id: id
                .trim()
                .parse()
                .map_err(|_| format!("the tracepoint {name} has no number"))?,
            format: read("format").unwrap_or_default(),
        })
    }

    /// Returns the place of a field that holds a number.
    ///
    /// # Errors
    /// That there is no such field, or that it holds something else; and which fields there are.
    pub fn field(&self, name: &str) -> Result<Field, String> {
        let number = |line: &str, key: &str| -> Option<u32> {
            line.split(';')
                .find_map(|part| part.trim().strip_prefix(key)?.parse().ok())
        };
        let mut names = Vec::new();
        for line in self.format.lines() {
            let Some(declared) = line.trim().strip_prefix("field:") else {
                continue;
            };
            let declared = declared.split(';').next().unwrap_or_default();
            let called = declared.rsplit(' ').next().unwrap_or_default();
            if called != name {
                names.push(called);
                continue;
            }
            if let (Some(offset), Some(bytes @ (1 | 2 | 4 | 8))) =
                (number(line, "offset:"), number(line, "size:"))
            {
                return Ok(Field { offset, bytes });
            }
            return Err(format!("the field `{name}` holds no number"));
        }
        Err(format!(
            "no field is called `{name}`; there are {}",
            names.join(", ")
        ))
    }
}

/// Returns where tracefs is; mounts it if it is nowhere.
fn tracefs() -> Result<PathBuf, String> {
    let is_there = |path: &Path| path.join("events").is_dir();
    if let Some(found) = TRACEFS.map(Path::new).into_iter().find(|path| is_there(path)) {
        return Ok(found.to_owned());
    }
    let place = Path::new(TRACEFS[0]);
    // SAFETY: the texts end with a zero and outlive the call, which copies them; there is no data.
    let mounted = unsafe {
        libc::mount(
            c"tracefs".as_ptr(),
            c"/sys/kernel/tracing".as_ptr(),
            c"tracefs".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
            std::ptr::null(),
        )
    };
    match mounted {
        0 if is_there(place) => Ok(place.to_owned()),
        0 => Err("tracefs has no events: this kernel was built without tracepoints".to_owned()),
        _ => Err(format!(
            "tracefs is not mounted, and mounting it failed: {}; run `mount -t tracefs tracefs {}` as root",
            io::Error::last_os_error(),
            place.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a field's place is read from the kernel's own description, and that others are named.
    #[test]
    fn a_field_is_found_by_its_name() {
        let tracepoint = Tracepoint {
            id: 7,
            format:
                "name: kmalloc\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
                     \n\tfield:size_t bytes_alloc;\toffset:32;\tsize:8;\tsigned:0;\n\
                     \tfield:char comm[16];\toffset:40;\tsize:16;\tsigned:0;\n"
                    .to_owned(),
        };
        assert_eq!(
            tracepoint.field("bytes_alloc"),
            Ok(Field { offset: 32, bytes: 8 })
        );
        assert!(tracepoint.field("comm[16]").unwrap_err().contains("no number"));
        assert!(tracepoint.field("bytes").unwrap_err().contains("bytes_alloc"));
    }

    /// Checks that names which could lead out of the folder of tracepoints are refused.
    #[test]
    fn a_name_that_is_none_is_refused() {
        for name in ["", "sched", "../..:id", "a:b/c", "sched:", "sched:x\0"] {
            assert!(
                Tracepoint::find(name).unwrap_err().contains("is no tracepoint"),
                "{name}"
            );
        }
    }

    /// Checks that what the kernel would refuse is refused with a reason.
    #[test]
    fn a_senseless_breakpoint_is_refused() {
        assert!(Breakpoint::new(0x1000_0008, Access::Write, 8).is_ok());
        for (address, length) in [(0x1000_0004, 8), (0x1000_0000, 3), (8, 8), (u64::MAX - 7, 8)] {
            assert!(
                Breakpoint::new(address, Access::Write, length).is_err(),
                "{address:#x}, {length}"
            );
        }
    }
}
