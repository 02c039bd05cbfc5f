//! Which services live on this host, and how much CPU time they took by the kernel's own account.
//!
//! Asked at the moment of each slot, whether it runs or not: what is planned for a service must not depend on whether it was
//! sampled. The CPU time is that of the service's control groups where they hold nothing else, which is whole whatever
//! processes came and went; otherwise the sum of what its processes had at each look, which misses what ended between two.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use strobe_bpf::cgroup::{CgroupSource, Hierarchy};
use strobe_event::CpuSource;

use crate::procfs;
use crate::service::{OTHER, Services, VARIABLE};

/// Control groups whose CPU time is followed: some 16 for each of 256 services.
const GROUPS_MAX: usize = 4_096;

/// CPU time of a service since the look before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Microseconds.
    pub cpu_us: u64,
    /// Where they were read.
    pub source: CpuSource,
}

/// What one look found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// The services that live here, with what they took since the look before; those too that have ended since then.
    pub used: BTreeMap<Arc<str>, Used>,
    /// Those of them that live now.
    pub present: Vec<Arc<str>>,
    /// Busy time of the whole host since the look before, microseconds.
    pub host_us: u64,
}

/// A process, as the look before saw it.
#[derive(Debug)]
struct Seen {
    start_ns: u64,
    comm: String,
    service: Arc<str>,
    cpu_us: u64,
    group: Option<String>,
    look: u64,
}

/// Where the CPU time of control groups is read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Account {
    /// `cpuacct.usage` of version 1, nanoseconds.
    Cpuacct(PathBuf),
    /// `cpu.stat` of version 2.
    Unified(PathBuf),
    /// Nowhere here.
    None,
}

/// Looks at `/proc`.
#[derive(Debug)]
pub struct Presence {
    account: Account,
    /// The controller whose hierarchy names services, as for samples.
    naming: &'static str,
    processes: FxHashMap<u32, Seen>,
    groups: FxHashMap<String, u64>,
    /// Groups that once held processes of more than one service.
    mixed: FxHashSet<String>,
    services: Services,
    host_us: Option<u64>,
    look: u64,
}

impl Presence {
    /// Returns one that has not looked yet: the first look finds who is here, and no CPU time.
    pub fn new() -> Self {
        Self {
            account: Account::find(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()),
            naming: match Hierarchy::find().source {
                CgroupSource::V2 => "",
                CgroupSource::Memory => "memory",
                CgroupSource::Cpu => "cpu",
                CgroupSource::Pids => "pids",
                CgroupSource::Cpuacct => "cpuacct",
            },
            processes: FxHashMap::default(),
            groups: FxHashMap::default(),
            mixed: FxHashSet::default(),
            services: Services::default(),
            host_us: None,
            look: 0,
        }
    }

    /// Looks at every process.
    pub fn look(&mut self) -> Look {
        self.look += 1;
        let first = self.look == 1;
        let mut look = Look::default();
        let mut by_processes: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for pid in procfs::processes() {
            let Some(stat) = procfs::stat(pid) else { continue };
            // What ended says that it is in no group, and had one: its last time is accounted for there.
            let groups = match procfs::control_groups(pid) {
                Some(groups) if !stat.ended => groups,
                _ => match self
                    .processes
                    .get_mut(&pid)
                    .filter(|seen| seen.start_ns == stat.start_ns)
                {
                    Some(seen) => {
                        let delta = stat.cpu_us.saturating_sub(seen.cpu_us);
                        (seen.cpu_us, seen.look) = (stat.cpu_us, self.look);
                        *by_processes.entry(Arc::clone(&seen.service)).or_default() += delta;
                        continue;
                    }
                    None => continue,
                },
            };
            let group = self.account.group_of(&groups).map(str::to_owned);
            let known = self.processes.get_mut(&pid);
            let known = known.filter(|seen| seen.start_ns == stat.start_ns && seen.comm == stat.comm);
            let (service, delta) = match known {
                Some(seen) => {
                    let delta = stat.cpu_us.saturating_sub(seen.cpu_us);
                    (seen.cpu_us, seen.look, seen.group) = (stat.cpu_us, self.look, group.clone());
                    (Arc::clone(&seen.service), delta)
                }
                None => {
                    let named_by = procfs::control_group(&groups, self.naming);
                    let service = self.decide(pid, &stat, named_by);
                    // An `exec` goes on with the time of the image before; it is not counted twice.
                    let before = self
                        .processes
                        .get(&pid)
                        .filter(|seen| seen.start_ns == stat.start_ns);
                    let base = match before {
                        Some(seen) => seen.cpu_us,
                        None if first => stat.cpu_us,
                        None => 0,
                    };
                    let delta = stat.cpu_us.saturating_sub(base);
                    let seen = Seen {
                        start_ns: stat.start_ns,
                        comm: stat.comm,
                        service: Arc::clone(&service),
                        cpu_us: stat.cpu_us,
                        group: group.clone(),
                        look: self.look,
                    };
                    self.processes.insert(pid, seen);
                    (service, delta)
                }
            };
            *by_processes.entry(service).or_default() += delta;
        }
        self.processes.retain(|_, seen| seen.look == self.look);
        look.present = by_processes.keys().cloned().collect();
        let of_groups = self.of_groups();
        for (service, cpu_us) in by_processes {
            let used = match of_groups.get(&service) {
                Some(&cpu_us) => Used {
                    cpu_us,
                    source: CpuSource::ControlGroup,
                },
                None => Used {
                    cpu_us,
                    source: CpuSource::Processes,
                },
            };
            look.used.insert(service, used);
        }
        let host_us = procfs::host_busy_us();
        look.host_us = match (host_us, self.host_us) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        self.host_us = host_us.or(self.host_us);
        look
    }

    /// Returns the service of a process: as the samples of it are named.
    fn decide(&mut self, pid: u32, stat: &procfs::Stat, group: Option<&str>) -> Arc<str> {
        if stat.kernel_thread {
            return Arc::clone(&self.services.kernel().service);
        }
        let variable = procfs::environment_variable(pid, VARIABLE).flatten();
        let executable = procfs::executable(pid);
        let decided = self.services.decide(
            variable.as_deref(),
            group,
            executable.as_deref(),
            stat.comm.as_bytes(),
        );
        Arc::clone(&decided.service)
    }

    /// Returns the CPU time since the look before of the services whose processes all live in control groups of their own.
    fn of_groups(&mut self) -> BTreeMap<Arc<str>, u64> {
        let mut holders: BTreeMap<String, FxHashSet<Arc<str>>> = BTreeMap::new();
        let mut outside: FxHashSet<Arc<str>> = FxHashSet::default();
        for seen in self.processes.values() {
            match &seen.group {
                Some(group) if group != "/" => {
                    holders
                        .entry(group.clone())
                        .or_default()
                        .insert(Arc::clone(&seen.service));
                }
                _ => {
                    outside.insert(Arc::clone(&seen.service));
                }
            }
        }
        // A group's time is also that of the groups within it.
        let names: Vec<String> = holders.keys().cloned().collect();
        for (at, outer) in names.iter().enumerate() {
            let within = format!("{outer}/");
            let inner: Vec<Arc<str>> = names[at + 1..]
                .iter()
                .take_while(|name| name.starts_with(outer.as_str()))
                .filter(|name| name.starts_with(&within))
                .flat_map(|name| holders[name].iter().cloned())
                .collect();
            if let Some(of_outer) = holders.get_mut(outer)
                && !inner.is_empty()
            {
                of_outer.extend(inner);
                // Even of one service alone the inner time would count twice.
                self.mixed.insert(outer.clone());
            }
        }
        let mut sums: BTreeMap<Arc<str>, Option<u64>> = BTreeMap::new();
        let mut now = FxHashMap::default();
        for (group, services) in holders.iter().take(GROUPS_MAX) {
            if services.len() > 1 {
                self.mixed.insert(group.clone());
            }
            let usage_us = self.account.usage_us(group);
            let before = self.groups.get(group).copied();
            if let Some(usage_us) = usage_us {
                now.insert(group.clone(), usage_us);
            }
            let known = (!self.mixed.contains(group)).then_some(usage_us).flatten();
            for service in services {
                let sum = sums.entry(Arc::clone(service)).or_insert(Some(0));
                *sum = match (*sum, known) {
                    // A group that is new has all of its time since the look before, but for the first look.
                    (Some(sum), Some(usage_us)) => {
                        let base = before.unwrap_or(if self.look == 1 { usage_us } else { 0 });
                        Some(sum + usage_us.saturating_sub(base))
                    }
                    _ => None,
                };
            }
        }
        self.mixed.retain(|group| holders.contains_key(group));
        self.groups = now;
        sums.into_iter()
            .filter(|(service, _)| !outside.contains(service) && &**service != OTHER)
            .filter_map(|(service, sum)| Some((service, sum?)))
            .collect()
    }
}

impl Account {
    /// Finds the account in `mountinfo`: `36 35 98:0 /root /point options [tags] - kind source options`.
    fn find(mounts: &str) -> Self {
        let mut unified = Self::None;
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else {
                continue;
            };
            let (Some(point), mut after) = (before.split(' ').nth(4), after.split(' ')) else {
                continue;
            };
            match (after.next(), after.nth(1)) {
                (Some("cgroup"), Some(options)) if options.split(',').any(|option| option == "cpuacct") => {
                    return Self::Cpuacct(point.into());
                }
                (Some("cgroup2"), _) => unified = Self::Unified(point.into()),
                _ => {}
            }
        }
        unified
    }

    /// Returns the control group of a process in the hierarchy of this account.
    fn group_of<'a>(&self, groups: &'a str) -> Option<&'a str> {
        let controller = match self {
            Self::Cpuacct(_) => "cpuacct",
            Self::Unified(_) => "",
            Self::None => return None,
        };
        procfs::control_group(groups, controller)
    }

    fn usage_us(&self, group: &str) -> Option<u64> {
        let group = group.trim_start_matches('/');
        match self {
            Self::Cpuacct(root) => {
                let text = fs::read_to_string(root.join(group).join("cpuacct.usage")).ok()?;
                Some(text.trim().parse::<u64>().ok()? / 1_000)
            }
            Self::Unified(root) => {
                let text = fs::read_to_string(root.join(group).join("cpu.stat")).ok()?;
                let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                usage.trim().parse().ok()
            }
            Self::None => None,
        }
    }
}

impl Default for Presence {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;

    struct Busy(Child);

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Checks that a service is found by the name that its environment gives, that its CPU time is the time it took, and
    /// that the host's is at least that.
    #[test]
    fn a_service_is_found_with_its_cpu_time() {
        let mut presence = Presence::new();
        presence.look();
        let busy = Busy(
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .env(VARIABLE, "presence-test")
                .spawn()
                .unwrap(),
        );
        std::thread::sleep(Duration::from_millis(100));
        let appeared = presence.look();
        assert!(appeared.present.iter().any(|name| &**name == "presence-test"));
        let before = procfs::stat(busy.0.id()).unwrap().cpu_us;
        std::thread::sleep(Duration::from_millis(600));
        let look = presence.look();
        let after = procfs::stat(busy.0.id()).unwrap().cpu_us;
        let used = look.used["presence-test"];
        // Both are known to the tick of 10 ms, and read one after the other.
        assert!(
            used.cpu_us <= after && used.cpu_us + 80_000 >= after - before,
            "{used:?} of {}",
            after - before
        );
        assert!(look.host_us + 50_000 >= used.cpu_us, "{look:?}");
        drop(busy);
        assert!(
            !presence
                .look()
                .present
                .iter()
                .any(|name| &**name == "presence-test")
        );
    }

    /// Checks that a child that has ended and is not waited for does not take the account of its service's group away.
    #[test]
    fn a_zombie_leaves_the_account_to_its_group() {
        let root = ["/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup"];
        let root = root
            .iter()
            .map(PathBuf::from)
            .find(|root| root.join("cgroup.procs").exists());
        let Some(folder) = root.map(|root| root.join(format!("strobe-zombie-{}", std::process::id()))) else {
            return;
        };
        if fs::create_dir(&folder).is_err() {
            // Without rights to make control groups nothing of this can be seen.
            return;
        }
        // The child ends at once, and its parent becomes a program that waits for nobody.
        let script = format!(
            "echo $$ > {}/cgroup.procs; sleep 0.01 & exec sleep 60",
            folder.display()
        );
        let parent = Command::new("sh")
            .args(["-c", &script])
            .env(VARIABLE, "zombie-test")
            .spawn()
            .unwrap();
        let mut presence = Presence::new();
        let busy = Busy(parent);
        std::thread::sleep(Duration::from_millis(300));
        presence.look();
        std::thread::sleep(Duration::from_millis(50));
        let used = presence.look().used.get("zombie-test").copied();
        drop(busy);
        let _ = fs::remove_dir(&folder);
        assert_eq!(used.map(|used| used.source), Some(CpuSource::ControlGroup));
    }

    /// Checks both versions of control groups, and that version 1 is taken where both are mounted.
    #[test]
    fn the_account_is_found() {
        let unified = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let first = "31 1 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(Account::find(unified), Account::Unified("/sys/fs/cgroup".into()));
        let both = format!("{unified}\n{first}");
        assert_eq!(Account::find(&both), Account::Cpuacct("/cg/cpu".into()));
        assert_eq!(Account::find("nonsense"), Account::None);
    }
}
