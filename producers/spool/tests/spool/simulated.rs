//! A disk in memory that fails on demand and forgets, at a power cut, what was not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strobe_spool::{Disk, DiskFile, Locking};

/// The piece that a power cut keeps or loses as a whole; small, so that records are torn inside.
const SECTOR: usize = 64;

/// What the disk does at the call that was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and does nothing.
    Io,
    /// A write takes half of its bytes and the one after it none; other calls fail.
    NoSpace,
    /// A write takes half of its bytes, as the system may; other calls are not touched.
    Short,
}

#[derive(Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// A sync failed: what was not durable then never will be, whatever later syncs say.
    forsaken: bool,
}

#[derive(Default)]
struct World {
    inodes: Vec<Inode>,
    cached: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    locked: BTreeSet<PathBuf>,
    calls_to_fault: Option<(u64, Fault)>,
    no_space_next: bool,
    /// Whoever calls is already dead: calls fail and leave no trace.
    vanished: bool,
    now_ms: u64,
    syncs: u64,
}

/// The disk; its clones are one disk.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<World>>);

impl SimulatedDisk {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Lets the clock run.
    pub fn advance(&self, ms: u64) {
        self.world().now_ms += ms;
    }

    /// Makes the call after `calls` others fail.
    pub fn fail_after(&self, calls: u64, fault: Fault) {
        self.world().calls_to_fault = Some((calls, fault));
    }

    /// Makes everything work again.
    pub fn heal(&self) {
        let mut world = self.world();
        world.calls_to_fault = None;
        world.no_space_next = false;
    }

    /// Makes every call fail without a trace, for processes that end without having their say.
    pub fn vanish(&self, vanished: bool) {
        self.world().vanished = vanished;
    }

    /// How many times a file was asked to sync.
    pub fn syncs(&self) -> u64 {
        self.world().syncs
    }

    /// The bytes of all segment files in `directory`.
    pub fn segment_bytes(&self, directory: &Path) -> u64 {
        let world = self.world();
        let of_spool = |path: &Path| {
            path.parent() == Some(directory) && path.extension().is_some_and(|end| end == "segment")
        };
        let files = world.cached.iter().filter(|(path, _)| of_spool(path));
        files
            .map(|(_, &inode)| world.inodes[inode].cached.len() as u64)
            .sum()
    }

    /// Copies the files of a directory as they are now, durably.
    pub fn copy(&self, from: &Path, to: &Path) {
        let mut world = self.world();
        let files: Vec<(PathBuf, usize)> = world
            .cached
            .iter()
            .map(|(path, &inode)| (path.clone(), inode))
            .collect();
        for (path, inode) in files.iter().filter(|(path, _)| path.parent() == Some(from)) {
            let bytes = world.inodes[*inode].cached.clone();
            world.inodes.push(Inode {
                cached: bytes.clone(),
                durable: bytes,
                forsaken: false,
            });
            let (copy, name) = (world.inodes.len() - 1, path.file_name().unwrap());
            world.cached.insert(to.join(name), copy);
            world.durable.insert(to.join(name), copy);
        }
    }

    /// Cuts the power: of what was not synced, `dice` decides sector by sector and name by name what is left.
    /// Every process must be gone before.
    pub fn power_cut(&self, mut dice: impl FnMut() -> bool) {
        let mut world = self.world();
        let names: BTreeSet<PathBuf> = world.cached.keys().chain(world.durable.keys()).cloned().collect();
        for name in names {
            let (cached, durable) = (
                world.cached.get(&name).copied(),
                world.durable.get(&name).copied(),
            );
            let left = if cached == durable || dice() {
                cached
            } else {
                durable
            };
            match left {
                Some(inode) => world.cached.insert(name, inode),
                None => world.cached.remove(&name),
            };
        }
        world.durable = world.cached.clone();
        for inode in &mut world.inodes {
            if inode.cached != inode.durable {
                inode.cached = torn(&inode.cached, &inode.durable, &mut dice);
                inode.durable = inode.cached.clone();
            }
            inode.forsaken = false;
        }
    }
}

fn torn(cached: &[u8], durable: &[u8], dice: &mut impl FnMut() -> bool) -> Vec<u8> {
    let mut left = if dice() { cached.to_vec() } else { durable.to_vec() };
    let length = left.len();
    for start in (0..length).step_by(SECTOR) {
        let from = if dice() { cached } else { durable };
        for (at, byte) in left
            .iter_mut()
            .enumerate()
            .take(length.min(start + SECTOR))
            .skip(start)
        {
            *byte = from.get(at).copied().unwrap_or(0);
        }
    }
    left
}

impl World {
    /// Counts a call and returns the fault that is due at it.
    fn call(&mut self) -> Option<Fault> {
        if self.vanished {
            return Some(Fault::Io);
        }
        let (calls, fault) = self.calls_to_fault?;
        self.calls_to_fault = calls.checked_sub(1).map(|left| (left, fault));
        (calls == 0).then_some(fault)
    }

    fn check(&mut self) -> io::Result<()> {
        match self.call() {
            Some(Fault::Io) => Err(io::Error::from_raw_os_error(5)),
            Some(Fault::NoSpace) => Err(ErrorKind::StorageFull.into()),
            Some(Fault::Short) | None => Ok(()),
        }
    }
}

impl Disk for SimulatedDisk {
    fn create_directory(&self, _: &Path) -> io::Result<()> {
        self.world().check()
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let mut world = self.world();
        world.check()?;
        if !world.locked.insert(path.to_owned()) {
            return Ok(Locking::Taken { holder: Some(1) });
        }
        Ok(Locking::Held(Box::new(SimulatedLock {
            disk: self.clone(),
            path: path.to_owned(),
        })))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut world = self.world();
        world.check()?;
        let inside = world
            .cached
            .keys()
            .filter(|path| path.parent() == Some(directory));
        Ok(inside
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.world();
        world.check()?;
        if world.cached.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        world.inodes.push(Inode::default());
        let inode = world.inodes.len() - 1;
        world.cached.insert(path.to_owned(), inode);
        Ok(Box::new(SimulatedFile {
            disk: self.clone(),
            inode,
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.world();
        world.check()?;
        let inode = *world.cached.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(SimulatedFile {
            disk: self.clone(),
            inode,
        }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.check()?;
        world
            .cached
            .remove(path)
            .map(|_| ())
            .ok_or(ErrorKind::NotFound.into())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.check()?;
        world.durable.retain(|path, _| path.parent() != Some(directory));
        let inside: Vec<_> = world
            .cached
            .iter()
            .filter(|(path, _)| path.parent() == Some(directory))
            .collect();
        let inside: Vec<_> = inside
            .into_iter()
            .map(|(path, &inode)| (path.clone(), inode))
            .collect();
        world.durable.extend(inside);
        Ok(())
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + self.world().now_ms)
    }
}

struct SimulatedLock {
    disk: SimulatedDisk,
    path: PathBuf,
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.disk.world().locked.remove(&self.path);
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    inode: usize,
}

impl DiskFile for SimulatedFile {
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut world = self.disk.world();
        if std::mem::take(&mut world.no_space_next) {
            return Err(ErrorKind::StorageFull.into());
        }
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let taken = match world.call() {
            None => bytes.len(),
            Some(Fault::Io) => return Err(io::Error::from_raw_os_error(5)),
            Some(fault) => {
                world.no_space_next = fault == Fault::NoSpace;
                bytes.len() / 2
            }
        };
        let (cached, start) = (&mut world.inodes[self.inode].cached, offset as usize);
        if cached.len() < start + taken {
            cached.resize(start + taken, 0);
        }
        cached[start..start + taken].copy_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut world = self.disk.world();
        world.check()?;
        let cached = &world.inodes[self.inode].cached;
        let from = cached.get(offset as usize..).unwrap_or(&[]);
        let count = from.len().min(buffer.len());
        buffer[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn length(&self) -> io::Result<u64> {
        let mut world = self.disk.world();
        world.check()?;
        Ok(world.inodes[self.inode].cached.len() as u64)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        world.check()?;
        world.inodes[self.inode].cached.resize(length as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        if world.vanished {
            return Err(io::Error::from_raw_os_error(5));
        }
        world.syncs += 1;
        let result = world.check();
        let inode = &mut world.inodes[self.inode];
        match result {
            Err(_) => inode.forsaken = true,
            Ok(()) if !inode.forsaken => inode.durable = inode.cached.clone(),
            Ok(()) => {}
        }
        result
    }
}
