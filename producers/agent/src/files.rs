//! Mapped files → their identity and segments, each read once.
//!
//! A file is looked for where it can still be had, in this order: the mapping itself (`/proc/PID/map_files`, which also
//! reaches deleted files and those of other mount namespaces), the path as the process sees it (`/proc/PID/root`), the path as
//! the host sees it. The latter two may name another file by now; they count only when the build id that the kernel reported,
//! or device and inode, are the same.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use strobe_bpf::FileIdentity;
use strobe_event::{BinaryKind, BuildId, Reason};

use crate::binaries::NewBinary;
use crate::elf::{self, Elf};
use crate::patience::Patience;
use crate::procfs::{MapLine, without_deleted};

/// Files known at one time: a host runs a few thousand. Beyond, all are forgotten and read again.
const FILES_MAX: usize = 65_536;
/// Pause after the uploader had no room: mappings come by the thousand, and each would read its file again.
const NO_ROOM: Duration = Duration::from_secs(10);
/// A file that could not be read is tried again for later mappings, up to so many times.
const ATTEMPTS_MAX: u8 = 3;

/// A known file.
#[derive(Debug)]
pub struct KnownFile {
    /// Its path, as the first process that mapped it saw it.
    pub path: String,
    /// What it is, or why that is not known.
    pub elf: Result<Elf, Reason>,
    attempts: u8,
    /// Whether the uploader had no room for it yet.
    waits_for_room: bool,
}

/// Index of a known file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId(u32);

/// What names a file before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    BuildId(BuildId),
    Inode {
        device: (u32, u32),
        inode: u64,
        generation: u64,
        path: String,
    },
    Vdso,
}

/// A mapping of a file, as the kernel or `/proc` describes it.
#[derive(Debug, Clone)]
pub struct MappedFile<'a> {
    /// The process.
    pub pid: u32,
    /// First and behind the last address of the mapping.
    pub range: (u64, u64),
    /// Path as the process sees it.
    pub path: &'a str,
    /// The build id that the kernel read.
    pub build_id: Option<BuildId>,
    /// Device, inode and generation, where there is no build id.
    pub inode: Option<((u32, u32), u64, u64)>,
}

/// What the bytes of a mapping belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// A file.
    File(FileId),
    /// Memory that no file backs.
    Anonymous,
}

/// The known files, and where new ones are announced.
#[derive(Debug)]
pub struct Files {
    known: Vec<KnownFile>,
    by_key: FxHashMap<Key, FileId>,
    announce: Option<SyncSender<NewBinary>>,
    /// Until when nothing that waits for room is announced.
    no_room_until: Option<Instant>,
    /// In a cell, because opening a file changes nothing of what is known.
    patience: RefCell<Patience>,
    /// How often the uploader had no room for a binary: it is announced again when it is next mapped. Healthy: 0.
    pub not_announced: u64,
}

impl<'a> MappedFile<'a> {
    /// Describes a mapping that the side-band reported.
    pub fn of_event(event: &strobe_bpf::Mmap<'_>, path: &'a str) -> Self {
        let (build_id, inode) = match event.file {
            FileIdentity::BuildId(id) => (BuildId::new(id), None),
            FileIdentity::Inode {
                major,
                minor,
                inode,
                generation,
            } => (None, Some(((major, minor), inode, generation))),
        };
        let range = (event.start, event.start.saturating_add(event.bytes));
        Self {
            pid: event.pid,
            range,
            path,
            build_id,
            inode,
        }
    }

    /// Describes a mapping that `/proc` lists.
    pub fn of_line(pid: u32, line: &'a MapLine) -> Self {
        let inode = Some((line.device, line.inode, 0));
        Self {
            pid,
            range: (line.start, line.end),
            path: &line.path,
            build_id: None,
            inode,
        }
    }

    fn key(&self) -> Option<Key> {
        if self.path == "[vdso]" {
            return Some(Key::Vdso);
        }
        if let Some(id) = &self.build_id {
            return Some(Key::BuildId(id.clone()));
        }
        match self.inode {
            Some((device, inode, generation)) if inode != 0 => {
                let path = without_deleted(self.path).to_owned();
                Some(Key::Inode {
                    device,
                    inode,
                    generation,
                    path,
                })
            }
            _ => None,
        }
    }

    /// Opens the file wherever it can still be had, and reads it; nothing where that takes too long.
    fn read(&self, patience: &mut Patience) -> Option<(File, Elf)> {
        let (start, end) = self.range;
        let pid = self.pid;
        let path = without_deleted(self.path);
        let places = [
            (format!("/proc/{pid}/map_files/{start:x}-{end:x}"), true),
            (format!("/proc/{pid}/root{path}"), false),
            (path.to_owned(), false),
        ];
        let sought = Sought {
            places,
            build_id: self.build_id.clone(),
            inode: self.inode,
        };
        patience.ask(move || sought.read()).flatten()
    }
}

/// A file to be read: where it may be, and what shows that it is the one.
struct Sought {
    /// Paths, and whether what is there is certainly the mapped file.
    places: [(String, bool); 3],
    build_id: Option<BuildId>,
    inode: Option<((u32, u32), u64, u64)>,
}

impl Sought {
    fn read(&self) -> Option<(File, Elf)> {
        self.places
            .iter()
            .filter(|(place, _)| place.starts_with('/'))
            .find_map(|&(ref place, certain)| {
                let (mut file, meta) = open_regular(place)?;
                let elf = elf::read(&mut file)?;
                let same = match (&self.build_id, self.inode) {
                    (Some(id), _) => elf.id == *id,
                    (None, Some((device, inode, _))) => {
                        let found = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
                        // Overlay file systems report another device in mappings than in stat; the inode is the same.
                        certain || (meta.ino() == inode && (found == device || device.0 == 0))
                    }
                    (None, None) => certain,
                };
                (certain && self.build_id.is_none() || same).then_some((file, elf))
            })
    }
}

impl Files {
    /// Returns the known files: none yet. New ones are sent to `announce`, each once.
    pub fn new(announce: Option<SyncSender<NewBinary>>) -> Self {
        Self {
            known: Vec::new(),
            by_key: FxHashMap::default(),
            announce,
            no_room_until: None,
            patience: RefCell::default(),
            not_announced: 0,
        }
    }

    /// Returns whether it is time to forget all files; see [`Files::forget`].
    pub fn is_full(&self) -> bool {
        self.known.len() >= FILES_MAX
    }

    /// Forgets all files. Ids given before mean nothing afterwards.
    pub fn forget(&mut self) {
        self.known.clear();
        self.by_key.clear();
    }

    /// Returns how many reads were given up because they did not end.
    pub fn given_up(&self) -> u64 {
        self.patience.borrow().given_up
    }

    /// Returns a known file.
    pub fn get(&self, id: FileId) -> &KnownFile {
        &self.known[id.0 as usize]
    }

    /// Returns what backs a mapping, reading the file if it is met for the first time.
    pub fn backing(&mut self, mapped: &MappedFile<'_>) -> Backing {
        let Some(key) = mapped.key() else {
            return Backing::Anonymous;
        };
        let vdso = key == Key::Vdso;
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => {
                let id = FileId(self.known.len() as u32);
                self.by_key.insert(key, id);
                let path = without_deleted(mapped.path).to_owned();
                self.known.push(KnownFile {
                    path,
                    elf: Err(Reason::ProcessGone),
                    attempts: 0,
                    waits_for_room: false,
                });
                id
            }
        };
        let file = &mut self.known[id.0 as usize];
        if file.elf.is_err() && file.attempts < ATTEMPTS_MAX {
            file.attempts += 1;
            if vdso {
                file.elf = Err(Reason::Unreadable);
                if let Some((open, elf)) = vdso_of_this_process() {
                    self.announce(open, &elf, id);
                    self.known[id.0 as usize].elf = Ok(elf);
                }
            } else if let Some((open, elf)) = mapped.read(self.patience.get_mut()) {
                self.announce(open, &elf, id);
                self.known[id.0 as usize].elf = Ok(elf);
            } else if std::path::Path::new(&format!("/proc/{}", mapped.pid)).exists() {
                file.elf = Err(Reason::Unreadable);
            }
        } else if file.waits_for_room
            && self.no_room_until.is_none_or(|until| Instant::now() >= until)
            && let Some((open, elf)) = match vdso {
                true => vdso_of_this_process(),
                false => mapped.read(self.patience.get_mut()),
            }
        {
            self.announce(open, &elf, id);
        }
        Backing::File(id)
    }

    /// Opens a known file again, where a process has it mapped; nothing where it can no longer be had, or is another one by now.
    pub fn open(&self, id: FileId, pid: u32, range: (u64, u64)) -> Option<File> {
        let known = &self.known[id.0 as usize];
        let elf = known.elf.as_ref().ok()?;
        if elf.kind == BinaryKind::Vdso {
            return vdso_of_this_process().map(|(file, _)| file);
        }
        let mapped = MappedFile {
            pid,
            range,
            path: &known.path,
            build_id: Some(elf.id.clone()),
            inode: None,
        };
        mapped.read(&mut self.patience.borrow_mut()).map(|(file, _)| file)
    }

    fn announce(&mut self, file: File, elf: &Elf, id: FileId) {
        let Some(announce) = &self.announce else { return };
        let path = self.known[id.0 as usize].path.clone();
        let new = NewBinary {
            kind: elf.kind,
            id: elf.id.clone(),
            path,
            file,
        };
        let full = matches!(announce.try_send(new), Err(TrySendError::Full(_)));
        self.known[id.0 as usize].waits_for_room = full;
        if full {
            self.not_announced += 1;
            self.no_room_until = Some(Instant::now() + NO_ROOM);
        }
    }
}

/// Opens a regular file for reading, and nothing else: the path is a profiled process's choice, and opening a pipe blocks until
/// somebody writes, opening a device may change something.
fn open_regular(path: &str) -> Option<(File, Metadata)> {
    use rustix::fs::{Mode, OFlags};
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let meta = File::from(place.try_clone().ok()?).metadata().ok()?;
    // By the descriptor, so that it is the very file that was looked at.
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    meta.is_file()
        .then(|| File::open(again).ok())
        .flatten()
        .map(|file| (file, meta))
}

/// Returns the vdso, in a file that exists in memory only: the kernel maps the same into every 64-bit process, also into this one.
fn vdso_of_this_process() -> Option<(File, Elf)> {
    let maps = crate::procfs::executable_maps(std::process::id())?;
    let vdso = maps.iter().find(|map| map.path == "[vdso]")?;
    let memory = File::open("/proc/self/mem").ok()?;
    let mut bytes = vec![0; usize::try_from(vdso.end - vdso.start).ok()?.min(64 << 10)];
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, vdso.start).ok()?;
    // Through a file, so that it is parsed by the same code as any other.
    let fd = rustix::fs::memfd_create("vdso", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    let mut file = File::from(fd);
    std::io::Write::write_all(&mut file, &bytes).ok()?;
    let elf = elf::read(&mut file)?;
    let kind = BinaryKind::Vdso;
    Some((file, Elf { kind, ..elf }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::procfs;

    fn own_text(maps: &[MapLine]) -> &MapLine {
        let exe = std::env::current_exe().unwrap();
        maps.iter().find(|map| map.path == exe.to_str().unwrap()).unwrap()
    }

    /// Checks that our own executable and the vdso are identified and announced, each once.
    #[test]
    fn mapped_files_are_identified_once() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(8);
        let mut files = Files::new(Some(sender));
        let own = std::process::id();
        let maps = procfs::executable_maps(own).unwrap();
        let text = own_text(&maps);
        for _ in 0..2 {
            let Backing::File(id) = files.backing(&MappedFile::of_line(own, text)) else {
                panic!("no file")
            };
            assert!(files.get(id).elf.is_ok());
        }
        assert_eq!(receiver.try_iter().count(), 1);
        let vdso = maps.iter().find(|map| map.path == "[vdso]").unwrap();
        let Backing::File(id) = files.backing(&MappedFile::of_line(own, vdso)) else {
            panic!("no vdso")
        };
        assert_eq!(files.get(id).elf.as_ref().unwrap().kind, BinaryKind::Vdso);
        assert_eq!(
            receiver.try_iter().map(|new| new.kind).collect::<Vec<_>>(),
            [BinaryKind::Vdso]
        );
    }

    /// Checks that a binary for which the uploader had no room is announced when it is mapped again, and then no more.
    #[test]
    fn what_met_a_full_queue_is_announced_later() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(0);
        let mut files = Files::new(Some(sender));
        let own = std::process::id();
        let maps = procfs::executable_maps(own).unwrap();
        let text = own_text(&maps);
        files.backing(&MappedFile::of_line(own, text));
        assert_eq!(files.not_announced, 1);

        let (sender, roomy) = std::sync::mpsc::sync_channel(8);
        files.announce = Some(sender);
        files.backing(&MappedFile::of_line(own, text));
        assert_eq!(roomy.try_iter().count(), 0, "within the pause");
        files.no_room_until = Some(Instant::now());
        for _ in 0..2 {
            files.backing(&MappedFile::of_line(own, text));
        }
        assert_eq!(roomy.try_iter().count(), 1);
        drop(receiver);
    }

    /// Checks that a path that names another file by now is not taken for the mapped one.
    #[test]
    fn a_replaced_file_is_not_taken_for_the_mapped_one() {
        let exe = std::env::current_exe().unwrap();
        let mapped = MappedFile {
            pid: u32::MAX,
            range: (0, 1),
            path: exe.to_str().unwrap(),
            build_id: BuildId::new(&[1; 20]),
            inode: None,
        };
        let mut files = Files::new(None);
        let Backing::File(id) = files.backing(&mapped) else {
            panic!("no file")
        };
        assert_eq!(files.get(id).elf, Err(Reason::ProcessGone));
    }

    /// Checks that a file on a file system that never answers, as a profiled process can serve one, does not hold up the agent.
    #[test]
    fn a_file_system_that_never_answers_does_not_hold_up() {
        let folder = tempfile::tempdir().unwrap();
        let script = "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 test \"$0\" && echo up && exec \
                      sleep 600";
        let mut server = Command::new("sh")
            .args(["-c", script])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut word = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut word)
            .unwrap();
        if word != "up\n" {
            println!("skipped: no file system can be served by a process here");
            let _ = server.wait();
            return;
        }
        let path = folder.path().join("library.so");
        let mapped = MappedFile {
            pid: std::process::id(),
            range: (0, 1),
            path: path.to_str().unwrap(),
            build_id: BuildId::new(&[1; 20]),
            inode: None,
        };
        let mut files = Files::new(None);
        let begun = Instant::now();
        let Backing::File(id) = files.backing(&mapped) else {
            panic!("no file")
        };
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert_eq!(files.get(id).elf, Err(Reason::Unreadable));
        assert_eq!(files.given_up(), 1);
        // Its end lets go whoever waits in it.
        server.kill().unwrap();
        server.wait().unwrap();
        let unmounted = Command::new("umount").arg("-l").arg(folder.path()).status();
        assert!(unmounted.unwrap().success());
    }

    /// Checks that a pipe in a file's place neither blocks the agent nor is taken for the file.
    #[test]
    fn a_pipe_in_a_files_place_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let text = path.to_str().unwrap().to_owned();
        std::thread::spawn(move || sender.send(open_regular(&text).is_none()));
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(5)), Ok(true));
    }
}
