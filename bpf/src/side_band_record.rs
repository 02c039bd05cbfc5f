//! The bytes of one side-band record → [`ProcessEvent`].
//!
//! Every size and offset is checked: what comes from the kernel is well-formed, but a version of it may add fields, and
//! the same bytes are read from captures.

/// How a record of the kernel's is laid out (`PERF_RECORD_*`).
mod kind {
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const FORK: u32 = 7;
    pub const MMAP2: u32 = 10;
}

/// `PERF_RECORD_MISC_COMM_EXEC`: the name comes from `exec`. The same bit of a mapping means "of data".
const MISC_COMM_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_MISC_MMAP_BUILD_ID`: a build id stands where the inode would.
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
/// What every record ends with: pid and tid, time, CPU and padding.
const TRAILER_BYTES: usize = 24;
const BUILD_ID_BYTES_MAX: usize = 20;

/// Something that the kernel says of a process, at a moment. Borrows the buffer it was read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEvent<'a> {
    /// `CLOCK_MONOTONIC`, the samples' clock.
    pub time_ns: u64,
    /// Where it happened.
    pub cpu: u32,
    /// What happened.
    pub kind: ProcessEventKind<'a>,
}

/// What happened to a process. Ids are those of the reader's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEventKind<'a> {
    /// A process (`pid` = `tid`) or a thread began.
    Fork {
        /// The new one's process.
        pid: u32,
        /// The new one.
        tid: u32,
        /// The process that made it.
        parent_pid: u32,
        /// The thread that made it.
        parent_tid: u32,
    },
    /// A process became another image: every earlier mapping is gone, those that follow are the new one's.
    Exec {
        /// Which process.
        pid: u32,
        /// The thread; it becomes the process's first.
        tid: u32,
        /// Its name from now on.
        comm: &'a [u8],
    },
    /// A thread renamed itself.
    Rename {
        /// Which process.
        pid: u32,
        /// Which thread.
        tid: u32,
        /// Its name from now on.
        comm: &'a [u8],
    },
    /// Executable memory was mapped, or mapped memory made executable.
    Mmap(Mmap<'a>),
    /// A thread ended; a process, with its last one.
    Exit {
        /// Which process.
        pid: u32,
        /// Which thread.
        tid: u32,
    },
    /// The buffer was full: so many records are missing here. What is known of processes may be wrong from now on.
    Lost {
        /// How many.
        records: u64,
    },
}

/// A mapping of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap<'a> {
    /// Which process.
    pub pid: u32,
    /// The thread that mapped it.
    pub tid: u32,
    /// First address.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What of the file stands at `start`.
    pub file_offset: u64,
    /// `PROT_*`.
    pub protection: u32,
    /// `MAP_*`.
    pub flags: u32,
    /// Which file.
    pub file: FileIdentity<'a>,
    /// Its path as the process's mount namespace has it, or `//anon`, `[vdso]` and the like. Not always UTF-8.
    pub path: &'a [u8],
}

/// What tells one mapped file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileIdentity<'a> {
    /// The kernel has read it from the file: it does so only where the note's page is in memory already.
    BuildId(&'a [u8]),
    /// Without one. All zeros for memory without a file.
    Inode {
        /// Device.
        major: u32,
        /// Device.
        minor: u32,
        /// In its file system.
        inode: u64,
        /// Tells a reused inode from the old one, on file systems that count.
        generation: u64,
    },
}

/// Why a record gives no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEvent {
    /// A kind that nobody asked for.
    OtherKind(u32),
    /// Too short for what it claims to be.
    Malformed,
}

/// Returns when a record was written.
pub fn time_of(record: &[u8]) -> Option<u64> {
    let trailer = record.get(8..)?.last_chunk::<TRAILER_BYTES>()?;
    Fields(&trailer[8..]).u64()
}

/// Reads a whole record, header and trailer included.
pub fn parse(record: &[u8]) -> Result<ProcessEvent<'_>, NoEvent> {
    read(record).ok_or(NoEvent::Malformed)?
}

/// `None`: malformed.
fn read(record: &[u8]) -> Option<Result<ProcessEvent<'_>, NoEvent>> {
    let mut header = Fields(record);
    let (kind, misc, size) = (header.u32()?, header.u16()?, header.u16()?);
    if usize::from(size) != record.len() {
        return None;
    }
    let (body, trailer) = header.0.split_last_chunk::<TRAILER_BYTES>()?;
    let mut trailer = Fields(&trailer[8..]);
    let (time_ns, cpu) = (trailer.u64()?, trailer.u32()?);
    let mut body = Fields(body);
    let kind = match kind {
        kind::FORK => {
            let (pid, parent_pid, tid, parent_tid) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
            ProcessEventKind::Fork {
                pid,
                tid,
                parent_pid,
                parent_tid,
            }
        }
        kind::EXIT => {
            let (pid, _parent_pid, tid) = (body.u32()?, body.u32()?, body.u32()?);
            ProcessEventKind::Exit { pid, tid }
        }
        kind::COMM => {
            let (pid, tid, comm) = (body.u32()?, body.u32()?, body.text());
            if misc & MISC_COMM_EXEC != 0 {
                ProcessEventKind::Exec { pid, tid, comm }
            } else {
                ProcessEventKind::Rename { pid, tid, comm }
            }
        }
        kind::MMAP2 => ProcessEventKind::Mmap(body.mmap(misc)?),
        kind::LOST => {
            let (_event_id, records) = (body.u64()?, body.u64()?);
            ProcessEventKind::Lost { records }
        }
        other => return Some(Err(NoEvent::OtherKind(other))),
    };
    Some(Ok(ProcessEvent { time_ns, cpu, kind }))
}

/// Fields in a row, in the machine's byte order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// The rest, up to the zeros that pad it.
    fn text(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        &self.0[..end]
    }

    fn mmap(&mut self, misc: u16) -> Option<Mmap<'a>> {
        let (pid, tid, start, bytes, file_offset) =
            (self.u32()?, self.u32()?, self.u64()?, self.u64()?, self.u64()?);
        let mut identity = Fields(self.bytes(24)?);
        let file = if misc & MISC_MMAP_BUILD_ID != 0 {
            let size = usize::from(*identity.bytes(4)?.first()?);
            if size == 0 || size > BUILD_ID_BYTES_MAX {
                return None;
            }
            FileIdentity::BuildId(identity.bytes(size)?)
        } else {
            let (major, minor) = (identity.u32()?, identity.u32()?);
            FileIdentity::Inode {
                major,
                minor,
                inode: identity.u64()?,
                generation: identity.u64()?,
            }
        };
        let (protection, flags) = (self.u32()?, self.u32()?);
        Some(Mmap {
            pid,
            tid,
            start,
            bytes,
            file_offset,
            protection,
            flags,
            file,
            path: self.text(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len() + TRAILER_BYTES) as u16;
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend(body);
        bytes.extend([0; 8]);
        bytes.extend(777_u64.to_ne_bytes());
        bytes.extend(1_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    fn mmap_body(identity: [u8; 24], path: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend([5_u32.to_ne_bytes(), 6_u32.to_ne_bytes()].concat());
        body.extend([0x40_0000_u64, 0x1000, 0x2000].map(u64::to_ne_bytes).concat());
        body.extend(identity);
        body.extend([5_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat());
        body.extend(path);
        body.resize(body.len().next_multiple_of(8), 0);
        body
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Checks that forks and exits name the right one of their four ids, at the time of the trailer.
    #[test]
    fn fork_and_exit_tell_child_from_parent() {
        let body = [words(&[2, 1, 20, 10]), 5_u64.to_ne_bytes().to_vec()].concat();
        let fork = record(kind::FORK, 0, &body);
        let kind = ProcessEventKind::Fork {
            pid: 2,
            tid: 20,
            parent_pid: 1,
            parent_tid: 10,
        };
        assert_eq!(
            parse(&fork),
            Ok(ProcessEvent {
                time_ns: 777,
                cpu: 1,
                kind
            })
        );
        assert_eq!(time_of(&fork), Some(777));
        assert_eq!(
            parse(&record(kind::EXIT, 0, &body)).unwrap().kind,
            ProcessEventKind::Exit { pid: 2, tid: 20 }
        );
    }

    /// Checks that an exec is told from a thread that renames itself.
    #[test]
    fn exec_is_no_rename() {
        let body = [words(&[2, 20]), b"make\0\0\0\0".to_vec()].concat();
        let exec = record(kind::COMM, MISC_COMM_EXEC, &body);
        assert_eq!(
            parse(&exec).unwrap().kind,
            ProcessEventKind::Exec {
                pid: 2,
                tid: 20,
                comm: b"make"
            }
        );
        let rename = record(kind::COMM, 0, &body);
        assert_eq!(
            parse(&rename).unwrap().kind,
            ProcessEventKind::Rename {
                pid: 2,
                tid: 20,
                comm: b"make"
            }
        );
    }

    /// Checks that a mapping bears a build id of its own length, or else the inode.
    #[test]
    fn a_mapping_has_a_build_id_or_an_inode() {
        let mut identity = [0; 24];
        identity[0] = 8;
        identity[4..12].copy_from_slice(b"8 bytes!");
        let with = record(
            kind::MMAP2,
            MISC_MMAP_BUILD_ID,
            &mmap_body(identity, b"/bin/true\0"),
        );
        let ProcessEventKind::Mmap(mapping) = parse(&with).unwrap().kind else {
            panic!("no mapping")
        };
        assert_eq!(
            (mapping.file, mapping.path),
            (FileIdentity::BuildId(b"8 bytes!"), b"/bin/true".as_slice())
        );
        assert_eq!(
            (mapping.start, mapping.bytes, mapping.file_offset),
            (0x40_0000, 0x1000, 0x2000)
        );
        let without = record(kind::MMAP2, 0, &mmap_body([0; 24], b"//anon\0"));
        let ProcessEventKind::Mmap(mapping) = parse(&without).unwrap().kind else {
            panic!("no mapping")
        };
        assert_eq!(
            mapping.file,
            FileIdentity::Inode {
                major: 0,
                minor: 0,
                inode: 0,
                generation: 0
            }
        );
    }

    /// Checks that a build id longer than its room is refused, not read past.
    #[test]
    fn a_build_id_longer_than_its_room_is_malformed() {
        for size in [0, 21, 255] {
            let mut identity = [1; 24];
            identity[0] = size;
            let bytes = record(kind::MMAP2, MISC_MMAP_BUILD_ID, &mmap_body(identity, b"/x\0"));
            assert_eq!(parse(&bytes), Err(NoEvent::Malformed), "{size}");
        }
    }

    /// Checks that a kind that is not known is told from one that is broken.
    #[test]
    fn unknown_kinds_are_skipped() {
        assert_eq!(parse(&record(17, 0, &[0; 16])), Err(NoEvent::OtherKind(17)));
        assert_eq!(parse(&record(kind::FORK, 0, &[0; 8])), Err(NoEvent::Malformed));
        assert_eq!(parse(&[]), Err(NoEvent::Malformed));
    }

    fn any_record() -> impl Strategy<Value = Vec<u8>> {
        let kinds = prop_oneof![
            Just(kind::LOST),
            Just(kind::COMM),
            Just(kind::EXIT),
            Just(kind::FORK),
            Just(kind::MMAP2)
        ];
        (
            kinds,
            any::<u16>(),
            proptest::collection::vec(any::<u8>(), 0..160),
        )
            .prop_map(|(kind, misc, body)| record(kind, misc, &body))
    }

    proptest! {
        /// Checks that a record of any kind with any body is an event or malformed, and its time is the same either way.
        #[test]
        fn any_body_is_parsed_or_refused(bytes in any_record()) {
            prop_assert_eq!(time_of(&bytes), Some(777));
            if let Ok(event) = parse(&bytes) {
                prop_assert_eq!(event.time_ns, 777);
            }
        }

        /// Checks that changed, cut and lengthened records never panic.
        #[test]
        fn a_mutated_record_never_panics(
            mut bytes in any_record(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
            tail in proptest::collection::vec(any::<u8>(), 0..32),
        ) {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _ = parse(&bytes);
            let cut = &bytes[..cut.index(bytes.len())];
            prop_assert_eq!(parse(cut).is_ok(), false);
            let _ = time_of(cut);
            bytes.extend(tail);
            let _ = parse(&bytes);
        }

        /// Checks that no bytes at all bring the parser down.
        #[test]
        fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = (parse(&bytes), time_of(&bytes));
        }
    }
}
