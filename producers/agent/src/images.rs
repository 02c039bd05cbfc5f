//! Process images and what they had mapped: stage 5.
//!
//! An image is (pid, start time, exec count). The side-band says what happens to a pid, in the order of time; a sample says
//! which image it is of. The two are merged by time ([`crate::sampling`]), so that an image's mappings are at every sample what
//! they were at that moment. Images that existed before the agent, or whose events were lost, are read from `/proc` once.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use strobe_bpf::{ImageIdentity, ProcessEventKind, StackEnd};

use crate::files::{Backing, Files, MappedFile};
use crate::held::Held;
use crate::mappings::{Mapping, Mappings};
use crate::patience::Patience;
use crate::procfs;
use crate::service::{Belonging, VARIABLE};

/// Images kept of one pid: the current one and those just before, whose samples may still come.
const IMAGES_PER_PID_MAX: usize = 3;
/// Time for which an ended image is kept: samples of it are read at most some 200 ms later. Not longer: a host that starts
/// thousands of processes in a second would hold all of them.
const KEEP_ENDED_NS: u64 = 1_000_000_000;
/// How many ancestors are asked for the environment of a process that is gone.
const ANCESTORS_MAX: u32 = 8;
/// Mappings of code above which it is asked whether all of them are still there: the side-band does not tell what is unmapped.
/// Few programs have as many; one that loads and unloads plugins would collect them.
const REFRESH_AT: usize = 512;
/// Pids known at one time; beyond, those without recent news are dropped and read from `/proc` again.
const PIDS_MAX: usize = 65_536;

/// One image of a process.
#[derive(Debug, Clone)]
pub struct Image {
    /// A number of its own, never used again.
    pub number: u64,
    /// Process id.
    pub pid: u32,
    /// Start of the process; known from its first sample.
    pub start_ns: Option<u64>,
    /// Count of execs; known from its first sample, or from the image before.
    pub exec: Option<u32>,
    /// When the image was made, and when it ended.
    born_ns: u64,
    ended_ns: Option<u64>,
    /// Executable mappings, ascending, not overlapping. Shared with the parent until either changes.
    mappings: Mappings,
    /// How many mappings it has to have before they are read from `/proc` again.
    refresh_at: usize,
    /// The executable's path: the first file mapped after an exec.
    pub executable: Option<Arc<str>>,
    /// What it was forked from, also after an exec: children have the same environment unless they change it.
    origin: Option<Origin>,
    /// The value of [`VARIABLE`] in its environment, once asked for.
    variable: Option<Option<Arc<str>>>,
    /// What it belongs to, once decided for the control group that it was in.
    belonging: Option<(u64, Arc<Belonging>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    pid: u32,
    number: u64,
}

/// What an event changed that others must know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Code was mapped over code: addresses of this image mean something else from now on.
    Replaced(u64),
}

/// The images of all processes.
#[derive(Debug, Default)]
pub struct Images {
    by_pid: FxHashMap<u32, Vec<Image>>,
    next: u64,
    /// Images read from `/proc`, because their beginning was not seen. Healthy: as many as processes at the start.
    pub scanned: u64,
    scanned_late: bool,
    /// For environments: the page may lie in a file that never answers.
    patience: Patience,
    /// Images dropped because too many pids were known. Healthy: 0.
    pub evicted: u64,
}

impl Image {
    /// Returns one that nothing is known of yet but when it was made.
    fn new(number: u64, pid: u32, born_ns: u64) -> Self {
        Self {
            number,
            pid,
            start_ns: None,
            exec: None,
            born_ns,
            ended_ns: None,
            mappings: Mappings::default(),
            refresh_at: REFRESH_AT,
            executable: None,
            origin: None,
            variable: None,
            belonging: None,
        }
    }

    /// Returns the mapping that holds `address`.
    pub fn mapping(&self, address: u64) -> Option<&Mapping> {
        self.mappings.find(address)
    }

    /// Returns its executable mappings, ascending, not overlapping.
    pub fn mappings(&self) -> &[Mapping] {
        self.mappings.all()
    }

    /// Reads its mappings anew. Those that have gone meanwhile are of no use to samples that come; those that came are told of
    /// by the side-band once more, which changes nothing.
    fn refresh(&mut self, files: &mut Files) {
        if self.ended_ns.is_none()
            && let Some(lines) = procfs::executable_maps(self.pid)
        {
            let mappings = lines.iter().map(|line| mapping_of_line(self.pid, line, files));
            self.mappings = mappings.collect();
        }
        // Read again only after as many have come as there are.
        self.refresh_at = REFRESH_AT.max(2 * self.mappings.all().len());
    }

    /// Returns whether it has neither code nor a file: a kernel thread.
    pub fn is_bare(&self) -> bool {
        self.mappings.is_empty() && self.executable.is_none()
    }

    /// Returns what was decided that it belongs to, in this control group.
    pub fn belonging(&self, cgroup_id: u64) -> Option<&Arc<Belonging>> {
        self.belonging
            .as_ref()
            .filter(|(known, _)| *known == cgroup_id)
            .map(|(_, belonging)| belonging)
    }

    /// Remembers what it belongs to in a control group.
    pub fn belongs(&mut self, cgroup_id: u64, belonging: Arc<Belonging>) {
        self.belonging = Some((cgroup_id, belonging));
    }

    fn is_of(&self, sample: &Held) -> bool {
        self.start_ns.is_none_or(|start| start == sample.start_ns)
            && self.exec.is_none_or(|exec| exec == sample.exec)
    }
}

impl Images {
    /// Reads all processes that there are, as the agent starts.
    pub fn scan(&mut self, files: &mut Files, now_ns: u64) {
        for pid in procfs::processes() {
            self.scan_one(pid, files, now_ns);
        }
    }

    /// Returns how many images are known.
    pub fn len(&self) -> usize {
        self.by_pid.values().map(Vec::len).sum()
    }

    /// Returns whether none is known.
    pub fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Reads the image that a pid has now, if there is one.
    fn scan_one(&mut self, pid: u32, files: &mut Files, now_ns: u64) -> bool {
        let Some(lines) = procfs::executable_maps(pid) else {
            return false;
        };
        let mappings = lines
            .iter()
            .map(|line| mapping_of_line(pid, line, files))
            .collect();
        let number = self.number();
        self.scanned += 1;
        let executable = procfs::executable(pid).map(Arc::from);
        self.push(Image {
            mappings,
            executable,
            ..Image::new(number, pid, now_ns)
        });
        true
    }

    fn push(&mut self, image: Image) {
        let images = self.by_pid.entry(image.pid).or_default();
        if images.len() == IMAGES_PER_PID_MAX {
            images.remove(0);
        }
        images.push(image);
    }

    fn current(&mut self, pid: u32) -> Option<&mut Image> {
        self.by_pid.get_mut(&pid)?.last_mut()
    }

    /// Takes what the kernel said at a moment of an image that is not sampled itself: nothing else tells its start so exactly.
    pub fn learn(&mut self, identity: &ImageIdentity, time_ns: u64) {
        let same = |image: &&mut Image| {
            image.born_ns < time_ns
                && image.ended_ns.is_none()
                && image.start_ns.is_none_or(|start| start == identity.start_time_ns)
                && image.exec.is_none_or(|exec| exec == identity.exec_id)
        };
        if let Some(image) = self.current(identity.tgid).filter(same) {
            (image.start_ns, image.exec) = (Some(identity.start_time_ns), Some(identity.exec_id));
        }
    }

    /// Returns an image that still runs, by what samples say of it.
    pub fn image(&self, identity: &ImageIdentity) -> Option<&Image> {
        let image = self.by_pid.get(&identity.tgid)?.last()?;
        let same = image.start_ns == Some(identity.start_time_ns) && image.exec == Some(identity.exec_id);
        (same && image.ended_ns.is_none()).then_some(image)
    }

    /// Returns an image that still runs or ended a moment ago.
    pub fn latest(&self, identity: &ImageIdentity) -> Option<&Image> {
        let same = |image: &&Image| {
            image.start_ns == Some(identity.start_time_ns) && image.exec == Some(identity.exec_id)
        };
        self.by_pid.get(&identity.tgid)?.iter().rfind(same)
    }

    /// Takes an event of the side-band, in the order of time.
    pub fn apply(&mut self, time_ns: u64, event: &ProcessEventKind<'_>, files: &mut Files) -> Change {
        match *event {
            ProcessEventKind::Fork {
                pid, tid, parent_pid, ..
            } if pid == tid && pid != parent_pid => {
                self.fork(pid, parent_pid, files, time_ns);
            }
            ProcessEventKind::Exec { pid, .. } => self.exec(pid, time_ns),
            ProcessEventKind::Mmap(ref mmap) => return self.mmap(mmap, files, time_ns),
            ProcessEventKind::Exit { pid, tid } if pid == tid => {
                if let Some(image) = self.current(pid) {
                    image.ended_ns = Some(time_ns);
                }
            }
            _ => {}
        }
        Change::None
    }

    fn fork(&mut self, pid: u32, parent: u32, files: &mut Files, time_ns: u64) {
        if self.current(parent).is_none() {
            self.scan_one(parent, files, time_ns);
        }
        let number = self.number();
        let from = self.current(parent);
        let child = Image {
            number,
            pid,
            start_ns: None,
            exec: from.as_ref().and_then(|parent| parent.exec),
            born_ns: time_ns,
            ended_ns: None,
            mappings: from
                .as_ref()
                .map(|parent| parent.mappings.clone())
                .unwrap_or_default(),
            refresh_at: from.as_ref().map_or(REFRESH_AT, |parent| parent.refresh_at),
            executable: from.as_ref().and_then(|parent| parent.executable.clone()),
            origin: from.map(|parent| Origin {
                pid: parent.pid,
                number: parent.number,
            }),
            variable: None,
            belonging: None,
        };
        self.push(child);
    }

    fn exec(&mut self, pid: u32, time_ns: u64) {
        let number = self.number();
        let before = self.current(pid);
        let next = Image {
            start_ns: before.as_ref().and_then(|image| image.start_ns),
            exec: before
                .as_ref()
                .and_then(|image| image.exec)
                .map(|exec| exec.wrapping_add(1)),
            origin: before.as_ref().and_then(|image| image.origin),
            ..Image::new(number, pid, time_ns)
        };
        if let Some(before) = before {
            before.ended_ns = Some(time_ns);
        }
        self.push(next);
    }

    fn mmap(&mut self, mmap: &strobe_bpf::Mmap<'_>, files: &mut Files, time_ns: u64) -> Change {
        let path = String::from_utf8_lossy(mmap.path);
        let mapped = MappedFile::of_event(mmap, &path);
        let backing = files.backing(&mapped);
        let (start, end) = mapped.range;
        if self.current(mmap.pid).is_none() && !self.scan_one(mmap.pid, files, time_ns) {
            let number = self.number();
            self.push(Image::new(number, mmap.pid, time_ns));
        }
        let Some(image) = self.current(mmap.pid) else {
            return Change::None;
        };
        if image.executable.is_none() && matches!(backing, Backing::File(_)) && path.starts_with('/') {
            // The program itself is mapped first, before its interpreter and its libraries.
            image.executable = Some(procfs::without_deleted(&path).into());
        }
        let replaced = image.mappings.map(Mapping {
            start,
            end,
            file_offset: mmap.file_offset,
            backing,
        });
        if image.mappings().len() >= image.refresh_at {
            image.refresh(files);
        }
        if replaced {
            Change::Replaced(image.number)
        } else {
            Change::None
        }
    }

    /// Returns the image that a sample is of, binding what only samples know. Nothing where nothing is known of it.
    pub fn of_sample(&mut self, sample: &Held, files: &mut Files) -> Option<&mut Image> {
        let pid = sample.pid;
        let found = self
            .by_pid
            .get(&pid)
            .and_then(|images| images.iter().rposition(|image| image.is_of(sample)));
        let at = match found {
            Some(at) => at,
            None => {
                if self.by_pid.contains_key(&pid)
                    || !is_unchanged(sample)
                    || !self.scan_one(pid, files, sample.time_ns)
                {
                    return None;
                }
                self.scanned_late = true;
                self.by_pid.get(&pid)?.len() - 1
            }
        };
        let image = self.by_pid.get_mut(&pid)?.get_mut(at)?;
        // Within `exec` the kernel's two counts are of different moments: such a sample binds nothing.
        if sample.user_end != StackEnd::Exec && image.exec.is_none() {
            image.exec = Some(sample.exec);
        }
        image.start_ns = Some(sample.start_ns);
        Some(image)
    }

    /// Returns, once, whether an image was read only when a sample of it came: stacks of it that came before have no frames
    /// to show, and the kernel must send them again.
    pub fn was_scanned_late(&mut self) -> bool {
        std::mem::take(&mut self.scanned_late)
    }

    /// Returns how many reads were given up because they did not end.
    pub fn given_up(&self) -> u64 {
        self.patience.given_up
    }

    /// Returns the value of [`VARIABLE`] in the environment of an image: its own as long as it runs, and afterwards what the
    /// process that it was forked from has.
    pub fn variable(&mut self, pid: u32, number: u64) -> Option<Arc<str>> {
        let (mut pid, mut number) = (pid, number);
        for _ in 0..ANCESTORS_MAX {
            let image = self
                .by_pid
                .get_mut(&pid)?
                .iter_mut()
                .rev()
                .find(|i| i.number == number)?;
            if image.variable.is_none() && image.ended_ns.is_none() {
                let same = image.start_ns.is_none_or(|start| procfs::started_at(pid, start));
                image.variable = same
                    .then(|| {
                        self.patience
                            .ask(move || procfs::environment_variable(pid, VARIABLE))
                    })
                    .flatten()
                    .flatten()
                    .map(|value| value.map(Arc::from));
            }
            if let Some(known) = &image.variable {
                return known.clone();
            }
            let origin = image.origin?;
            (pid, number) = (origin.pid, origin.number);
        }
        None
    }

    /// Drops images that ended long enough ago, and whatever is too much.
    pub fn expire(&mut self, now_ns: u64) {
        let old = |image: &Image| {
            image
                .ended_ns
                .is_some_and(|ended| ended.saturating_add(KEEP_ENDED_NS) < now_ns)
        };
        self.by_pid.retain(|&pid, images| {
            // The first thread of a process may end before the others: the image goes on in them.
            if let Some(last) = images.last_mut().filter(|last| old(last))
                && procfs::has_other_threads(pid)
            {
                last.ended_ns = Some(now_ns);
            }
            images.retain(|image| !old(image));
            !images.is_empty()
        });
        if self.by_pid.len() > PIDS_MAX {
            let before = self.by_pid.len();
            self.by_pid.retain(|_, images| {
                images
                    .last()
                    .is_some_and(|image| image.born_ns.saturating_add(KEEP_ENDED_NS) > now_ns)
            });
            self.evicted += (before - self.by_pid.len()) as u64;
        }
    }

    /// Forgets everything; the next samples read what they need from `/proc`.
    pub fn forget(&mut self) {
        self.by_pid.clear();
    }
}

fn mapping_of_line(pid: u32, line: &procfs::MapLine, files: &mut Files) -> Mapping {
    Mapping {
        start: line.start,
        end: line.end,
        file_offset: line.file_offset,
        backing: files.backing(&MappedFile::of_line(pid, line)),
    }
}

/// Returns whether the process that a sample is of still runs the image that was sampled, as far as can be told from outside:
/// it began at the same time, and its thread has the same name, which an exec would have changed.
fn is_unchanged(sample: &Held) -> bool {
    procfs::started_at(sample.pid, sample.start_ns)
        && procfs::thread_name(sample.pid, sample.tid).is_some_and(|name| name == sample.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image::new(1, 1, 0)
    }

    /// Checks that what is said of a process that was never sampled is believed if it was that image then, and only then.
    #[test]
    fn what_a_child_says_of_its_parent_is_learned_once() {
        let mut images = Images::default();
        let [said, other] = [7, 8].map(|start_time_ns| ImageIdentity {
            tgid: 1,
            start_time_ns,
            exec_id: 4,
        });
        images.push(image());
        images.learn(&said, 0);
        assert!(images.image(&said).is_none(), "another image had the pid then");
        images.learn(&said, 1);
        images.learn(&other, 2);
        assert!(images.image(&said).is_some() && images.image(&other).is_none());
    }

    /// Checks that a fork has its parent's mappings, and that an exec has none of what was before.
    #[test]
    fn a_fork_keeps_mappings_and_an_exec_drops_them() {
        let (mut images, mut files) = (Images::default(), Files::new(None));
        let mut parent = Image {
            pid: 10,
            exec: Some(4),
            ..image()
        };
        parent.mappings.map(Mapping {
            start: 100,
            end: 200,
            file_offset: 0,
            backing: Backing::Anonymous,
        });
        images.push(parent);
        let fork = ProcessEventKind::Fork {
            pid: 11,
            tid: 11,
            parent_pid: 10,
            parent_tid: 10,
        };
        images.apply(1, &fork, &mut files);
        let child = images.current(11).unwrap();
        assert!(child.mapping(150).is_some());
        assert_eq!(child.exec, Some(4));
        images.apply(
            2,
            &ProcessEventKind::Exec {
                pid: 11,
                tid: 11,
                comm: b"x",
            },
            &mut files,
        );
        let after = images.current(11).unwrap();
        assert!(after.mapping(150).is_none());
        assert_eq!(after.exec, Some(5));
        assert!(
            images.current(10).unwrap().mapping(150).is_some(),
            "the parent is untouched"
        );
    }

    /// Checks that ended images go away after a while, and running ones stay.
    #[test]
    fn ended_images_go_away() {
        let (mut images, mut files) = (Images::default(), Files::new(None));
        images.push(Image { pid: 10, ..image() });
        images.push(Image { pid: 11, ..image() });
        images.apply(5, &ProcessEventKind::Exit { pid: 11, tid: 11 }, &mut files);
        images.expire(6);
        assert_eq!(images.len(), 2);
        images.expire(6 + KEEP_ENDED_NS);
        assert_eq!(images.len(), 1);
    }

    /// Checks that samples before and after an exec meet different images, also where nothing was known of the process before,
    /// and that one within the exec binds neither to the other's count.
    #[test]
    fn samples_meet_the_image_of_their_exec() {
        let (mut images, mut files) = (Images::default(), Files::new(None));
        images.push(Image {
            number: u64::MAX,
            pid: 10,
            ..image()
        });
        let (before, mut within, after) = (
            Held::for_tests(10, 7, 3),
            Held::for_tests(10, 7, 3),
            Held::for_tests(10, 7, 4),
        );
        within.user_end = StackEnd::Exec;
        let first = images.of_sample(&before, &mut files).unwrap().number;
        let exec = ProcessEventKind::Exec {
            pid: 10,
            tid: 10,
            comm: b"x",
        };
        images.apply(5, &exec, &mut files);
        assert_eq!(images.of_sample(&within, &mut files).unwrap().number, first);
        let second = images.of_sample(&after, &mut files).unwrap().number;
        assert_ne!(second, first);
        assert_eq!(images.of_sample(&before, &mut files).unwrap().number, first);
        // The same pid, begun anew.
        let fork = ProcessEventKind::Fork {
            pid: 10,
            tid: 10,
            parent_pid: 11,
            parent_tid: 11,
        };
        images.apply(6, &fork, &mut files);
        let third = images
            .of_sample(&Held::for_tests(10, 8, 4), &mut files)
            .unwrap()
            .number;
        assert!(![first, second].contains(&third));
    }
}
