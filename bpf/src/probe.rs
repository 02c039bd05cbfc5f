//! What this kernel offers and what this process may do: for `doctor`, for start-up errors, and for tests that need it.

use std::ffi::CStr;
use std::fs;
use std::path::Path;

use crate::error::Error;

/// First kernel with every helper that the program calls: `bpf_task_pt_regs`.
const KERNEL_MIN: (u32, u32) = (5, 15);
const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
/// The inode of the initial pid namespace (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A capability, as a bit of `CapEff` in `/proc/self/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// As in `capabilities(7)`.
    pub name: &'static str,
    bit: u32,
    /// What it is needed for.
    pub purpose: &'static str,
    /// Nothing works without it; the others only make it better.
    pub required: bool,
}

/// Every capability that the agent has a use for.
pub const CAPABILITIES: [Capability; 6] = [
    Capability {
        name: "CAP_BPF",
        bit: 39,
        purpose: "loading the BPF program",
        required: true,
    },
    Capability {
        name: "CAP_PERFMON",
        bit: 38,
        purpose: "sampling every process",
        required: true,
    },
    Capability {
        name: "CAP_SYSLOG",
        bit: 34,
        purpose: "naming kernel functions",
        required: false,
    },
    Capability {
        name: "CAP_SYS_PTRACE",
        bit: 19,
        purpose: "opening the binaries of other users",
        required: false,
    },
    Capability {
        name: "CAP_DAC_READ_SEARCH",
        bit: 2,
        purpose: "opening deleted binaries",
        required: false,
    },
    Capability {
        name: "CAP_CHECKPOINT_RESTORE",
        bit: 40,
        purpose: "opening deleted binaries",
        required: false,
    },
];
/// Includes CAP_BPF and CAP_PERFMON, as those were split from it.
const CAP_SYS_ADMIN_BIT: u32 = 21;

/// What was found. A number that the kernel does not show is `None`.
#[derive(Clone, Debug)]
pub struct Report {
    /// As `uname -r` says it.
    pub kernel_release: String,
    /// Whether the kernel is new enough.
    pub kernel_supported: bool,
    /// Whether the kernel describes its types.
    pub btf: bool,
    /// Each of [`CAPABILITIES`], and whether this process has it.
    pub capabilities: Vec<(Capability, bool)>,
    /// `kernel.perf_event_paranoid`: does not bind who has CAP_PERFMON.
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.kptr_restrict`: above 1, kernel functions stay nameless even with CAP_SYSLOG.
    pub kptr_restrict: Option<i64>,
    /// `kernel.perf_event_max_sample_rate`: a higher frequency is refused.
    pub max_sample_rate_hz: Option<i64>,
    /// `kernel.perf_cpu_time_max_percent`: the kernel lowers the rate above this share of a CPU. 0: never.
    pub cpu_time_max_percent: Option<i64>,
    /// `kernel.perf_event_mlock_kb`: side-band buffer per CPU without CAP_IPC_LOCK.
    pub mlock_kib_per_cpu: Option<i64>,
    /// `kernel.perf_event_max_stack`: frames of the kernel's side; more than 127 are not kept.
    pub max_stack: Option<i64>,
    /// Whether process ids here are those that the kernel counts by. Not in a container with ids of its own.
    pub initial_pid_namespace: bool,
}

impl Report {
    /// Looks. Cheap: some files of a line each.
    pub fn look() -> Self {
        let release = kernel_release();
        let effective = effective_capabilities();
        Self {
            kernel_supported: is_supported(&release),
            kernel_release: release,
            btf: Path::new(BTF_PATH).exists(),
            capabilities: CAPABILITIES
                .iter()
                .map(|&wanted| (wanted, has(effective, wanted)))
                .collect(),
            perf_event_paranoid: kernel_setting("perf_event_paranoid"),
            kptr_restrict: kernel_setting("kptr_restrict"),
            max_sample_rate_hz: kernel_setting("perf_event_max_sample_rate"),
            cpu_time_max_percent: kernel_setting("perf_cpu_time_max_percent"),
            mlock_kib_per_cpu: kernel_setting("perf_event_mlock_kb"),
            max_stack: kernel_setting("perf_event_max_stack"),
            initial_pid_namespace: fs::read_link("/proc/self/ns/pid")
                .is_ok_and(|namespace| namespace == Path::new(INITIAL_PID_NAMESPACE)),
        }
    }
}

/// Returns the first thing that keeps the program from being loaded.
pub fn check_loadable() -> Result<(), Error> {
    let release = kernel_release();
    if !is_supported(&release) {
        return Err(Error::KernelTooOld { release });
    }
    if !Path::new(BTF_PATH).exists() {
        return Err(Error::NoBtf);
    }
    let effective = effective_capabilities();
    match CAPABILITIES
        .iter()
        .find(|wanted| wanted.required && !has(effective, **wanted))
    {
        Some(missing) => Err(Error::MissingCapability {
            capability: missing.name,
            doing: missing.purpose,
        }),
        None => Ok(()),
    }
}

/// Tells whether sampling can work here; the error is the reason, for a test that then skips.
pub fn can_run() -> Result<(), String> {
    check_loadable().map_err(|error| error.to_string())
}

/// Returns `kernel.perf_event_max_stack`, or its default.
pub(crate) fn perf_event_max_stack() -> u32 {
    kernel_setting("perf_event_max_stack")
        .and_then(|frames| u32::try_from(frames).ok())
        .unwrap_or(127)
}

/// Returns `kernel.perf_event_max_sample_rate`, or its default.
pub(crate) fn max_sample_rate_hz() -> u64 {
    kernel_setting("perf_event_max_sample_rate")
        .and_then(|rate| u64::try_from(rate).ok())
        .unwrap_or(100_000)
}

fn kernel_setting(name: &str) -> Option<i64> {
    fs::read_to_string(format!("/proc/sys/kernel/{name}"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn has(effective: u64, wanted: Capability) -> bool {
    let covered = wanted.required && effective >> CAP_SYS_ADMIN_BIT & 1 == 1;
    covered || effective >> wanted.bit & 1 == 1
}

fn effective_capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0)
}

fn kernel_release() -> String {
    // SAFETY: all fields are arrays of characters, for which zeros are a value; `uname` ends each with one.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: writes within the struct, which outlives the call.
    unsafe { libc::uname(&mut names) };
    // SAFETY: ended by a zero within the array, also where the call failed.
    unsafe { CStr::from_ptr(names.release.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

fn is_supported(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= KERNEL_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that releases are compared as numbers: 5.4 is older than 5.15.
    #[test]
    fn old_kernels_are_told_from_new_ones() {
        for (release, supported) in [
            ("5.4.0-200-generic", false),
            ("5.14.0-362.el9", false),
            ("5.15.0", true),
            ("6.18.44-fc", true),
            ("", false),
        ] {
            assert_eq!(is_supported(release), supported, "{release}");
        }
    }

    /// Checks that CAP_SYS_ADMIN stands for the two that were split from it, and for nothing else.
    #[test]
    fn sys_admin_covers_bpf_and_perfmon_only() {
        let covered: Vec<_> = CAPABILITIES
            .iter()
            .filter(|wanted| has(1 << CAP_SYS_ADMIN_BIT, **wanted))
            .map(|w| w.name)
            .collect();
        assert_eq!(covered, ["CAP_BPF", "CAP_PERFMON"]);
        assert!(!has(0, CAPABILITIES[0]));
    }
}
