//! Who else on this host has events of perf open: what the kernel says of a resource is only that it is taken.

use std::collections::BTreeMap;
use std::fs;

/// Descriptors looked at: hosts with more have hundreds of thousands of connections, and a search that takes long helps nobody.
const DESCRIPTORS_MAX: usize = 200_000;
/// Programs that are named.
const NAMED_MAX: usize = 4;
/// What the link of such a descriptor says.
const LINK: &str = "anon_inode:[perf_event]";

/// Returns the programs that have events of perf open, `perf (pid 4711)`, those with the most first, without this one. Which of them
/// hold what somebody needs, the kernel tells nobody.
pub fn of_perf_events() -> Vec<String> {
    let own = std::process::id();
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    let mut looked = 0;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        for descriptor in fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            looked += 1;
            let link = fs::read_link(descriptor.path());
            if pid != own && link.is_ok_and(|link| link.as_os_str() == LINK) {
                *counts.entry(pid).or_default() += 1;
            }
        }
        if looked > DESCRIPTORS_MAX {
            break;
        }
    }
    let mut holders: Vec<(u32, usize)> = counts.into_iter().collect();
    holders.sort_by_key(|&(pid, count)| (std::cmp::Reverse(count), pid));
    let name = |pid: u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm: String = comm
            .trim()
            .chars()
            .map(|c| if c.is_control() { '_' } else { c })
            .collect();
        format!("{comm} (pid {pid})")
    };
    holders
        .into_iter()
        .take(NAMED_MAX)
        .map(|(pid, _)| name(pid))
        .collect()
}
