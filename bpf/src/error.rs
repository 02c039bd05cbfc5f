//! What can go wrong in this crate that an operator can do something about.

use std::io;

/// Why sampling could not start or go on. Each message names the thing and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A privilege that the kernel asks for is not there.
    #[error(
        "{doing} needs {capability}: run as root, or give it with `setcap cap_bpf,cap_perfmon+ep <executable>`"
    )]
    MissingCapability {
        /// As in `capabilities(7)`.
        capability: &'static str,
        /// What it was needed for.
        doing: &'static str,
    },
    /// The kernel does not describe its types.
    #[error(
        "no BTF at /sys/kernel/btf/vmlinux: this kernel was built without CONFIG_DEBUG_INFO_BTF; \
         use a distribution's kernel (Debian 11, Ubuntu 20.10, RHEL 8.2 or later), or rebuild it with that option"
    )]
    NoBtf,
    /// The kernel lacks helpers that the program calls.
    #[error("kernel {release} is too old: sampling needs 5.15 or later (bpf_task_pt_regs)")]
    KernelTooOld {
        /// As `uname -r` says it.
        release: String,
    },
    /// A setting outside of what can be done.
    #[error("{name} is {value}: {remedy}")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        remedy: String,
    },
    /// The kernel refused the program.
    #[error("loading the BPF program {program} failed: {message}{}", log_after(.log))]
    Load {
        /// The program's name.
        program: &'static str,
        /// The error itself.
        message: String,
        /// The end of what libbpf and the verifier had to say; bounded.
        log: String,
    },
    /// `perf_event_open` or what follows it.
    #[error("{doing} on CPU {cpu} failed{}", remedy_after(.source))]
    Event {
        /// What was to be done.
        doing: &'static str,
        /// Where.
        cpu: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Mapping a buffer that the kernel shares.
    #[error("mapping the {buffer} ({bytes} bytes) failed{}", remedy_after(.source))]
    Map {
        /// Which one.
        buffer: &'static str,
        /// Its size.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A BPF map could not be read.
    #[error("reading the BPF map {map} failed: {message}")]
    ReadMap {
        /// Which one.
        map: &'static str,
        /// The error itself.
        message: String,
    },
    /// A BPF map could not be written or made.
    #[error("writing the BPF map {map} failed: {message}")]
    WriteMap {
        /// Which one.
        map: &'static str,
        /// The error itself.
        message: String,
    },
    /// A buffer's positions contradict each other, or a record its size.
    #[error("the buffer is inconsistent at position {position}: stop this profiler and start it again")]
    RingCorrupt {
        /// Where reading stopped.
        position: usize,
    },
    /// A file of `/proc` or `/sys`.
    #[error("reading {path} failed")]
    ReadFile {
        /// Which one.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Waiting for a timer or a wake-up.
    #[error("waiting for samples failed")]
    Wait {
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// Tells whether somebody holds what there is only so much of.
    pub fn is_taken(&self) -> bool {
        let Self::Event { source, .. } = self else {
            return false;
        };
        matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EBUSY))
    }

    /// Tells whether this machine has no such event.
    pub fn is_missing(&self) -> bool {
        let Self::Event { source, .. } = self else {
            return false;
        };
        matches!(
            source.raw_os_error(),
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
        )
    }

    /// Tells whether the same call may succeed later without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        let errno = match self {
            Self::Event { source, .. } | Self::Map { source, .. } | Self::Wait { source } => {
                source.raw_os_error()
            }
            _ => None,
        };
        matches!(
            errno,
            Some(libc::EMFILE | libc::ENFILE | libc::EBUSY | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
        )
    }
}

/// What to do about an error of the kernel's, where something can be done.
fn remedy_after(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            ": no file descriptor is left; each CPU needs two: raise `ulimit -n` (systemd: LimitNOFILE=)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            ": it needs CAP_PERFMON, or root; more locked memory needs `ulimit -l` or kernel.perf_event_mlock_kb"
        }
        Some(libc::ENOSPC) => ": all that this CPU has are taken; stop whoever holds them, or try later",
        Some(libc::EBUSY) => ": another profiler holds the event exclusively: stop it, or try later",
        Some(libc::EINVAL) => {
            ": the frequency is above kernel.perf_event_max_sample_rate, or the kernel is too old"
        }
        Some(libc::ENOSYS | libc::ENOENT) => ": this kernel was built without CONFIG_PERF_EVENTS",
        Some(libc::ENOMEM) => ": not enough memory, or the memory limit of this control group is reached",
        _ => "",
    }
}

fn log_after(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("; the last of its log:\n{log}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that running out of descriptors names the limit to raise, and counts as something that may pass.
    #[test]
    fn too_many_open_files_names_the_limit() {
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let error = Error::Event {
            doing: "opening the CPU clock",
            cpu: 3,
            source,
        };
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        assert!(error.is_transient());
    }

    /// Checks that a missing capability is named with the command that grants it, and is not retried.
    #[test]
    fn a_missing_capability_names_its_remedy() {
        let error = Error::MissingCapability {
            capability: "CAP_BPF",
            doing: "loading the BPF program",
        };
        assert!(error.to_string().contains("setcap cap_bpf"), "{error}");
        assert!(!error.is_transient());
    }
}
