//! What `/proc` says of a process. Every answer is bounded, and any may be missing: the process may be gone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most of a file of `/proc` that is read: 65,536 mappings have about 6 MiB of text.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Most of an environment that is searched: what one `exec` may pass by default is 2 MiB.
const ENVIRON_BYTES_MAX: u64 = 2 << 20;

/// An executable mapping of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapLine {
    /// First address.
    pub start: u64,
    /// Behind the last address.
    pub end: u64,
    /// What of the file stands at `start`.
    pub file_offset: u64,
    /// Device and inode; zeros without a file.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// Path or `[name]`; empty for memory without a file.
    pub path: String,
}

/// Returns the time, microseconds since 1970 (UTC).
pub fn wall_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

fn read_bounded(path: String, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the executable mappings of a process, ascending; nothing where it is gone.
pub fn executable_maps(pid: u32) -> Option<Vec<MapLine>> {
    let bytes = read_bounded(format!("/proc/{pid}/maps"), FILE_BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().filter_map(parse_map_line).collect())
}

/// Reads a line `start-end perms offset major:minor inode path`; nothing where it is not executable.
fn parse_map_line(line: &str) -> Option<MapLine> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    if fields.next()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let file_offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    Some(MapLine {
        start: hex(start)?,
        end: hex(end)?,
        file_offset,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode: fields.next()?.parse().ok()?,
        path: fields.next().unwrap_or_default().trim_start().to_owned(),
    })
}

/// Returns a path without the " (deleted)" that the kernel appends to that of a removed file.
pub fn without_deleted(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// Returns the start of a process in nanoseconds since boot, to the clock tick (10 ms); nothing where it is gone.
pub fn start_time_ns(pid: u32) -> Option<u64> {
    let bytes = read_bounded(format!("/proc/{pid}/stat"), 4096)?;
    let text = String::from_utf8_lossy(&bytes);
    // The name may itself hold blanks and parentheses: fields are counted from the last one.
    let (_, rest) = text.rsplit_once(") ")?;
    let ticks: u64 = rest.split(' ').nth(19)?.parse().ok()?;
    Some(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// What the kernel's line of numbers says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Name of its first thread.
    pub comm: String,
    /// Whether it is a thread of the kernel.
    pub kernel_thread: bool,
    /// Whether it has ended and waits for its parent: it has left its control groups.
    pub ended: bool,
    /// CPU time of all of its threads, also of those that ended, microseconds, to the clock tick (10 ms).
    pub cpu_us: u64,
    /// Its start, nanoseconds since boot, to the clock tick.
    pub start_ns: u64,
}

/// Returns what `/proc` says of a process in one line; nothing where it is gone.
pub fn stat(pid: u32) -> Option<Stat> {
    /// `PF_KTHREAD` of the kernel.
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let bytes = read_bounded(format!("/proc/{pid}/stat"), 4096)?;
    let text = String::from_utf8_lossy(&bytes);
    // The name may itself hold blanks and parentheses: fields are counted from the last one.
    let (head, rest) = text.rsplit_once(") ")?;
    let comm = head.split_once('(')?.1.to_owned();
    let field = |at: usize| rest.split(' ').nth(at)?.parse::<u64>().ok();
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Some(Stat {
        comm,
        ended: rest.starts_with(['Z', 'X', 'x']),
        kernel_thread: field(6)? & KERNEL_THREAD != 0,
        cpu_us: (field(11)? + field(12)?).saturating_mul(1_000_000) / ticks_per_second,
        start_ns: field(19)?.saturating_mul(1_000_000_000) / ticks_per_second,
    })
}

/// Returns the busy time of all CPUs since boot, microseconds, as the kernel accounts it.
pub fn host_busy_us() -> Option<u64> {
    let bytes = read_bounded("/proc/stat".to_owned(), 4096)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, (idle, iowait,) irq, softirq; guests are within user.
    let [user, nice, system, _idle, _wait, irq, softirq, ..] = ticks[..] else {
        return None;
    };
    let busy = user + nice + system + irq + softirq;
    Some(busy.saturating_mul(1_000_000) / rustix::param::clock_ticks_per_second())
}

/// Returns for how long each CPU has been idle since boot, nanoseconds to the clock tick (10 ms), as the kernel accounts it; nothing of
/// those that are offline.
pub fn idle_ns() -> Option<BTreeMap<u32, u64>> {
    /// Ten numbers of each of 8,192 CPUs.
    const LIMIT: u64 = 2 << 20;
    let bytes = read_bounded("/proc/stat".to_owned(), LIMIT)?;
    let text = String::from_utf8_lossy(&bytes);
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let lines = text.lines().skip(1).map_while(|line| line.strip_prefix("cpu"));
    lines
        .map(|line| {
            let mut fields = line.split(' ');
            let cpu = fields.next()?.parse().ok()?;
            // user, nice, system, idle, iowait: who waits for a disk lets the CPU idle.
            let mut ticks = fields.skip(3).map(|field| field.parse::<u64>().ok());
            let idle = ticks.next()??.saturating_add(ticks.next()??);
            Some((cpu, idle.saturating_mul(1_000_000_000 / ticks_per_second)))
        })
        .collect()
}

/// Returns the control groups of a process, one line for each hierarchy; nothing where it is gone.
pub fn control_groups(pid: u32) -> Option<String> {
    let bytes = read_bounded(format!("/proc/{pid}/cgroup"), 64 << 10)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the one in the hierarchy of a controller of version 1, or, for the empty name, in that of version 2.
pub fn control_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}

/// Returns whether the running process `pid` began at `start_ns`: its start is known to the clock tick only.
pub fn started_at(pid: u32, start_ns: u64) -> bool {
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    start_time_ns(pid).is_some_and(|listed| listed.abs_diff(start_ns) <= tick_ns)
}

/// Returns the name of a thread; nothing where it is gone.
pub fn thread_name(pid: u32, tid: u32) -> Option<Vec<u8>> {
    let mut name = read_bounded(format!("/proc/{pid}/task/{tid}/comm"), 64)?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    Some(name)
}

/// Returns whether a process has threads beside its first one. False where it is gone.
pub fn has_other_threads(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    // A link for each thread, and two for the folder itself.
    fs::metadata(format!("/proc/{pid}/task")).is_ok_and(|meta| meta.nlink() > 3)
}

/// Returns the path of a process's executable, without " (deleted)".
pub fn executable(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(without_deleted(&path.to_string_lossy()).to_owned())
}

/// Returns the value of a variable in a process's environment, as it was when its image started: `Some(None)` where it has
/// no such variable or we may not look, nothing where it is gone.
pub fn environment_variable(pid: u32, name: &str) -> Option<Option<String>> {
    let bytes = match read_bounded(format!("/proc/{pid}/environ"), ENVIRON_BYTES_MAX) {
        // Without memory, as of a process that has ended and waits for its parent, it is empty.
        Some(bytes) if bytes.is_empty() && executable(pid).is_none() => return None,
        Some(bytes) => bytes,
        None => {
            return fs::exists(format!("/proc/{pid}"))
                .is_ok_and(|there| there)
                .then_some(None);
        }
    };
    let value = bytes
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    Some(value.map(|value| String::from_utf8_lossy(value).into_owned()))
}

/// Returns the processes that there are.
pub fn processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that paths with blanks and removed files are read as they are, and that data is left out.
    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f00-7f10 r-xp 00001000 fe:01 42                         /a b/c (deleted)";
        let read = parse_map_line(line).unwrap();
        assert_eq!(
            (read.start, read.end, read.file_offset, read.device),
            (0x7f00, 0x7f10, 0x1000, (0xfe, 1))
        );
        assert_eq!((read.inode, without_deleted(&read.path)), (42, "/a b/c"));
        assert_eq!(parse_map_line("7f00-7f10 rw-p 00001000 fe:01 42 /a"), None);
        assert_eq!(parse_map_line("nonsense"), None);
    }

    /// Checks that this very process is found as it is.
    #[test]
    fn our_own_process_is_read() {
        let own = std::process::id();
        let maps = executable_maps(own).unwrap();
        assert!(maps.iter().any(|map| map.path == executable(own).unwrap()));
        assert!(started_at(own, start_time_ns(own).unwrap()));
        assert_eq!(
            environment_variable(own, "PATH"),
            Some(std::env::var("PATH").ok())
        );
        assert_eq!(environment_variable(u32::MAX, "PATH"), None);
        assert!(has_other_threads(own), "tests run in threads of their own");
        assert!(thread_name(own, own).is_some_and(|name| !name.is_empty()));
    }
}
