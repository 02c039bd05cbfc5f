//! Control groups: which hierarchy names a task's group, and a group's id → its path.
//!
//! A group's id is the inode of its directory. Both versions are served: version 2 through the kernel's helper, version
//! 1 through one chosen controller, as each controller has a hierarchy of its own there.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Groups kept: some 16 for each of 256 services. A host with more forgets all and reads again.
const PATHS_MAX: usize = 4_096;
/// Directories looked at in one reading: a bound for a hierarchy that somebody fills on purpose.
const DIRECTORIES_MAX: usize = 65_536;
/// An unknown id is often a group that is gone; the hierarchy is not walked for each of its samples.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Whose hierarchy names a group: the numbers of `enum cgroup_source` in `progs/on_cpu.bpf.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CgroupSource {
    /// The one hierarchy of version 2.
    V2 = 0,
    /// Version 1, memory: container runtimes always make a group there.
    Memory = 1,
    /// Version 1, CPU shares.
    Cpu = 2,
    /// Version 1, number of processes.
    Pids = 3,
    /// Version 1, CPU accounting.
    Cpuacct = 4,
}

/// Where the groups of a host are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Which controller.
    pub source: CgroupSource,
    /// Where its directories are, as this process sees them; `None` where it is not mounted here.
    pub root: Option<PathBuf>,
}

impl Hierarchy {
    /// Finds the hierarchy that tells services apart: a controller of version 1 where one is mounted, else version 2.
    /// A hybrid host has both, and there everything sits in the root of version 2.
    pub fn find() -> Self {
        Self::from_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn from_mounts(mounts: &str) -> Self {
        let choices = [
            (CgroupSource::Memory, "memory"),
            (CgroupSource::Cpu, "cpu"),
            (CgroupSource::Pids, "pids"),
            (CgroupSource::Cpuacct, "cpuacct"),
        ];
        for (source, controller) in choices {
            let found = mounts.lines().filter_map(parse_mount).find(|mount| {
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller)
            });
            if let Some(mount) = found {
                return Self {
                    source,
                    root: Some(PathBuf::from(mount.point)),
                };
            }
        }
        let root = mounts
            .lines()
            .filter_map(parse_mount)
            .find(|mount| mount.kind == "cgroup2");
        Self {
            source: CgroupSource::V2,
            root: root.map(|mount| PathBuf::from(mount.point)),
        }
    }
}

struct Mount<'a> {
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

/// Reads a line of `mountinfo`: `36 35 98:0 /root /point options [tags] - kind source options`.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    Some(Mount {
        point: before.split(' ').nth(4)?,
        kind: after.next()?,
        options: after.nth(1)?,
    })
}

/// A group's id → its path below the hierarchy's root, read again when an id is unknown.
#[derive(Debug)]
pub struct CgroupPaths {
    root: Option<PathBuf>,
    paths: HashMap<u64, Box<str>>,
    read_at: Option<Instant>,
}

impl CgroupPaths {
    /// Starts with nothing read.
    pub fn new(hierarchy: &Hierarchy) -> Self {
        Self {
            root: hierarchy.root.clone(),
            paths: HashMap::new(),
            read_at: None,
        }
    }

    /// Returns the path of a group, `/` for the root; `None` when it is gone, or its hierarchy is not mounted here.
    ///
    /// Groups that vanish keep their path until the cache is full: their last samples may still be on their way.
    pub fn path(&mut self, id: u64) -> Option<&str> {
        let due = self
            .read_at
            .is_none_or(|read_at| read_at.elapsed() >= READ_AGAIN_AFTER);
        if due && !self.paths.contains_key(&id) {
            self.read_again();
        }
        self.paths.get(&id).map(AsRef::as_ref)
    }

    fn read_again(&mut self) {
        self.read_at = Some(Instant::now());
        let Some(root) = self.root.clone() else { return };
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
        }
        let mut waiting = vec![root.clone()];
        let mut looked_at = 0;
        while let Some(directory) = waiting.pop() {
            looked_at += 1;
            if looked_at > DIRECTORIES_MAX || self.paths.len() >= PATHS_MAX {
                tracing::warn!(
                    looked_at,
                    kept = self.paths.len(),
                    "more control groups than are kept"
                );
                return;
            }
            // Groups come and go during the walk: what cannot be read is not there.
            let Ok(metadata) = fs::metadata(&directory) else {
                continue;
            };
            self.paths.insert(metadata.ino(), path_below(&root, &directory));
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            let children = entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            waiting.extend(children.map(|entry| entry.path()));
        }
    }
}

fn path_below(root: &Path, directory: &Path) -> Box<str> {
    let below = directory.strip_prefix(root).unwrap_or(directory);
    format!("/{}", below.to_string_lossy()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    /// Checks that on a hybrid host the controller counts, where version 2 would put everything into its root.
    #[test]
    fn a_hybrid_host_is_named_by_its_controller() {
        let hierarchy = Hierarchy::from_mounts(HYBRID);
        assert_eq!(hierarchy.source, CgroupSource::Memory);
        assert_eq!(hierarchy.root, Some(PathBuf::from("/sys/fs/cgroup/memory")));
        let without_memory: Vec<_> = HYBRID.lines().filter(|line| !line.contains("memory")).collect();
        assert_eq!(
            Hierarchy::from_mounts(&without_memory.join("\n")).source,
            CgroupSource::Cpu
        );
    }

    /// Checks that a host with version 2 alone uses it, and one with nothing mounted has no paths.
    #[test]
    fn version_two_is_used_where_it_is_alone() {
        let mounts = "33 30 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
        let hierarchy = Hierarchy::from_mounts(mounts);
        assert_eq!(
            hierarchy,
            Hierarchy {
                source: CgroupSource::V2,
                root: Some(PathBuf::from("/sys/fs/cgroup"))
            }
        );
        let nothing = Hierarchy::from_mounts("");
        assert_eq!(CgroupPaths::new(&nothing).path(1), None);
    }

    /// Checks that a directory made after the first reading is found by its inode, and the root is `/`.
    #[test]
    fn a_new_group_is_found() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy {
            source: CgroupSource::V2,
            root: Some(root.path().to_owned()),
        };
        let mut paths = CgroupPaths::new(&hierarchy);
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(paths.path(inode(root.path())), Some("/"));
        let group = root.path().join("system.slice/demo.service");
        fs::create_dir_all(&group).unwrap();
        paths.read_at = None;
        assert_eq!(paths.path(inode(&group)), Some("/system.slice/demo.service"));
    }
}
