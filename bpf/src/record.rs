//! Stage 4: the bytes of one ring buffer record → [`RawSample`], or [`Undecodable`], which the reader counts.
//!
//! The bytes stay where they are: a sample borrows them, and its frames are read as they are asked for. What comes in
//! is checked, although our own program wrote it: a capture from another version goes through here as well.

use std::fmt;

use crate::tables::ImageIdentity;

/// Frames kept of each side: the kernel's default `perf_event_max_stack`. Deeper stacks arrive cut, and say so.
pub const STACK_FRAMES_MAX: usize = 127;
/// `struct sample_header`.
pub const HEADER_BYTES: usize = 104;
/// The largest record that the program sends.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + 2 * STACK_FRAMES_MAX * size_of::<u64>();
const COMM_BYTES: usize = 16;

/// `struct sample_header`, to hold its size and offsets against those in `progs/record.h`.
#[repr(C)]
struct Layout {
    time_ns: u64,
    stack_hash: u64,
    start_time_ns: u64,
    cgroup_id: u64,
    cpu_sequence: u64,
    tgid: u32,
    tid: u32,
    exec_id: u32,
    epoch: u32,
    cpu: u16,
    kernel_depth: u8,
    user_depth: u8,
    kernel_end: u8,
    user_end: u8,
    flags: u16,
    comm: [u8; COMM_BYTES],
    parent_start_ns: u64,
    parent_tgid: u32,
    reserved: u32,
    value: u64,
}

const _: () = assert!(size_of::<Layout>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Layout, cpu_sequence) == 32);
const _: () = assert!(std::mem::offset_of!(Layout, tgid) == 40);
const _: () = assert!(std::mem::offset_of!(Layout, epoch) == 52);
const _: () = assert!(std::mem::offset_of!(Layout, cpu) == 56);
const _: () = assert!(std::mem::offset_of!(Layout, flags) == 62);
const _: () = assert!(std::mem::offset_of!(Layout, comm) == 64);
const _: () = assert!(std::mem::offset_of!(Layout, parent_start_ns) == 80);
const _: () = assert!(std::mem::offset_of!(Layout, value) == 96);

const KERNEL_MODE: u16 = 1;
const FRAMES_OMITTED: u16 = 2;
const GUEST: u16 = 4;
const NO_TABLES: u16 = 8;
const GUESSED: u16 = 16;
const FLAGS_KNOWN: u16 = KERNEL_MODE | FRAMES_OMITTED | GUEST | NO_TABLES | GUESSED;

/// How one side of a stack ended. Only [`StackEnd::Root`] is complete; every other one says why it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StackEnd {
    /// This side was not running: there is no kernel stack of a sample in user mode.
    NotTaken = 0,
    /// The outermost frame: saved frame pointer or return address 0, or the C library's start-up code at the top of the
    /// main thread's stack. Of kernel stacks: not cut by its length.
    Root = 1,
    /// [`STACK_FRAMES_MAX`] frames, and more were there.
    Depth = 2,
    /// The next frame's memory could not be read.
    Unreadable = 3,
    /// The next frame pointer does not ascend, or is misaligned: code without frame pointers.
    BadFramePointer = 4,
    /// What stands where a return address should be is none.
    BadReturnAddress = 5,
    /// A kernel thread, or a process whose memory is gone already: there is no user stack.
    NoUser = 6,
    /// Withheld: inside `execve`, registers and memory may belong to different images.
    Exec = 7,
    /// 32-bit code, of which only the innermost address is kept.
    Compat32 = 8,
    /// The last frame's address lies in no code that the process is known to have mapped.
    NoMapping = 9,
    /// The binary describes the last frame in a way that no rule of an unwind table expresses.
    Unsupported = 10,
    /// No table says anything of the last frame, and its frame pointer leads nowhere.
    NoTable = 11,
    /// Walked by frame pointers, as the process's tables were not there yet: cut, or without the callers of code that keeps none.
    BeforeTables = 12,
    /// The same, as the memory of tables is full.
    NoRoom = 13,
}

impl StackEnd {
    /// How many there are: `STACK_ENDS` in `progs/record.h`.
    pub const COUNT: usize = 14;
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::NotTaken,
        Self::Root,
        Self::Depth,
        Self::Unreadable,
        Self::BadFramePointer,
        Self::BadReturnAddress,
        Self::NoUser,
        Self::Exec,
        Self::Compat32,
        Self::NoMapping,
        Self::Unsupported,
        Self::NoTable,
        Self::BeforeTables,
        Self::NoRoom,
    ];

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotTaken => "not_taken",
            Self::Root => "root",
            Self::Depth => "depth",
            Self::Unreadable => "unreadable",
            Self::BadFramePointer => "bad_frame_pointer",
            Self::BadReturnAddress => "bad_return_address",
            Self::NoUser => "no_user",
            Self::Exec => "exec",
            Self::Compat32 => "compat32",
            Self::NoMapping => "no_mapping",
            Self::Unsupported => "unsupported",
            Self::NoTable => "no_table",
            Self::BeforeTables => "before_tables",
            Self::NoRoom => "no_room",
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// Why the bytes of a record are no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// Not even a header.
    #[error("record of {bytes} bytes is shorter than its header of {HEADER_BYTES}")]
    Short {
        /// How long it is.
        bytes: usize,
    },
    /// A depth that the program cannot reach.
    #[error("record claims {kernel} kernel and {user} user frames: at most {STACK_FRAMES_MAX} each")]
    Deep {
        /// Frames of the kernel.
        kernel: u8,
        /// Frames of the process.
        user: u8,
    },
    /// As many bytes as frames would take are not what is there.
    #[error("record of {bytes} bytes should have {expected}")]
    Length {
        /// How long it is.
        bytes: usize,
        /// How long its header says it is.
        expected: usize,
    },
    /// An end or a flag that this version does not know.
    #[error("record has unknown {field} {value}")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u16,
    },
}

/// One tick of one CPU, as the kernel saw it. Borrows the ring buffer.
#[derive(Clone, Copy)]
pub struct RawSample<'a> {
    /// `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Over the image's identity, every frame and both ends; never over the time.
    pub stack_hash: u64,
    /// The process's start, `CLOCK_BOOTTIME`.
    pub start_time_ns: u64,
    /// The control group's inode; see [`crate::cgroup`].
    pub cgroup_id: u64,
    /// The CPU's count of busy ticks, this one included. A gap between two records of a CPU is a loss, exactly.
    pub cpu_sequence: u64,
    /// Process.
    pub tgid: u32,
    /// Thread.
    pub tid: u32,
    /// Execs so far, inherited on fork. With `tgid` and `start_time_ns`: the image.
    pub exec_id: u32,
    /// The epoch in which the frames were sent, with this record or an earlier one.
    pub epoch: u32,
    /// Where it ran.
    pub cpu: u16,
    /// How the kernel's side ended.
    pub kernel_end: StackEnd,
    /// How the user's side ended.
    pub user_end: StackEnd,
    /// An image without tables that this one was forked from, and whose mappings it has: with tables of its own it would lend them.
    pub parent: Option<ImageIdentity>,
    kernel_depth: u8,
    user_depth: u8,
    flags: u16,
    comm: [u8; COMM_BYTES],
    /// What it stands for: nanoseconds of a clock, else what was counted since the last one.
    pub value: u64,
    frames: &'a [u8],
}

impl<'a> RawSample<'a> {
    /// Reads one record.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Undecodable> {
        let Some((header, frames)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Undecodable::Short { bytes: bytes.len() });
        };
        let (kernel_depth, user_depth) = (header[58], header[59]);
        if usize::from(kernel_depth) > STACK_FRAMES_MAX || usize::from(user_depth) > STACK_FRAMES_MAX {
            return Err(Undecodable::Deep {
                kernel: kernel_depth,
                user: user_depth,
            });
        }
        let flags = u16::from_ne_bytes([header[62], header[63]]);
        if flags & !FLAGS_KNOWN != 0 {
            return Err(Undecodable::Unknown {
                field: "flags",
                value: flags,
            });
        }
        let sent = if flags & FRAMES_OMITTED != 0 {
            0
        } else {
            usize::from(kernel_depth) + usize::from(user_depth)
        };
        if frames.len() != sent * size_of::<u64>() {
            let expected = HEADER_BYTES + sent * size_of::<u64>();
            return Err(Undecodable::Length {
                bytes: bytes.len(),
                expected,
            });
        }
        let end = |field, byte| {
            StackEnd::from_byte(byte).ok_or(Undecodable::Unknown {
                field,
                value: u16::from(byte),
            })
        };
        let mut comm = [0; COMM_BYTES];
        comm.copy_from_slice(&header[64..64 + COMM_BYTES]);
        Ok(Self {
            time_ns: word(header, 0),
            stack_hash: word(header, 8),
            start_time_ns: word(header, 16),
            cgroup_id: word(header, 24),
            cpu_sequence: word(header, 32),
            tgid: half(header, 40),
            tid: half(header, 44),
            exec_id: half(header, 48),
            epoch: half(header, 52),
            cpu: u16::from_ne_bytes([header[56], header[57]]),
            kernel_end: end("kernel end", header[60])?,
            user_end: end("user end", header[61])?,
            kernel_depth,
            user_depth,
            flags,
            comm,
            value: word(header, 96),
            parent: match half(header, 88) {
                0 => None,
                tgid => Some(ImageIdentity {
                    tgid,
                    start_time_ns: word(header, 80),
                    exec_id: half(header, 48),
                }),
            },
            frames,
        })
    }

    /// Tells whether the tick interrupted the kernel.
    pub fn in_kernel_mode(&self) -> bool {
        self.flags & KERNEL_MODE != 0
    }

    /// Tells whether a vCPU thread was running its guest: the time is the guest's.
    pub fn in_guest(&self) -> bool {
        self.flags & GUEST != 0
    }

    /// Tells whether the stack was walked by frame pointers, as no tables were there yet for its image, or for a library that it had
    /// just loaded. Never where tables are not used at all.
    pub fn without_tables(&self) -> bool {
        self.flags & NO_TABLES != 0
    }

    /// Tells whether some frame was left by a frame pointer for which no table vouches: in generated code, or in a binary without
    /// frame information.
    pub fn has_guessed_frames(&self) -> bool {
        self.flags & GUESSED != 0
    }

    /// Tells whether the frames came with an earlier record of the same `stack_hash` and `epoch`.
    pub fn frames_omitted(&self) -> bool {
        self.flags & FRAMES_OMITTED != 0
    }

    /// Returns the depth of the kernel's side, also where the frames are omitted.
    pub fn kernel_depth(&self) -> usize {
        usize::from(self.kernel_depth)
    }

    /// Returns the depth of the user's side, also where the frames are omitted.
    pub fn user_depth(&self) -> usize {
        usize::from(self.user_depth)
    }

    /// Returns the kernel's frames, innermost first; none where omitted.
    pub fn kernel_frames(&self) -> Frames<'a> {
        let bytes = self.frames.len().min(self.kernel_depth() * size_of::<u64>());
        Frames {
            bytes: &self.frames[..bytes],
        }
    }

    /// Returns the process's frames, innermost first; none where omitted.
    pub fn user_frames(&self) -> Frames<'a> {
        let bytes = self.frames.len().min(self.kernel_depth() * size_of::<u64>());
        Frames {
            bytes: &self.frames[bytes..],
        }
    }

    /// Returns the thread's name. Not always UTF-8: any program may set it to anything.
    pub fn comm(&self) -> &[u8] {
        let end = self.comm.iter().position(|&byte| byte == 0).unwrap_or(COMM_BYTES);
        &self.comm[..end]
    }
}

impl fmt::Debug for RawSample<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RawSample")
            .field("time_ns", &self.time_ns)
            .field("image", &(self.tgid, self.start_time_ns, self.exec_id))
            .field("comm", &String::from_utf8_lossy(self.comm()))
            .field("cpu", &(self.cpu, self.cpu_sequence))
            .field("ends", &(self.kernel_end, self.user_end))
            .field("depths", &(self.kernel_depth, self.user_depth))
            .field("omitted", &self.frames_omitted())
            .field("without_tables", &self.without_tables())
            .finish_non_exhaustive()
    }
}

/// Code addresses, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
}

impl Iterator for Frames<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.bytes.split_first_chunk::<8>()?;
        self.bytes = rest;
        Some(u64::from_ne_bytes(*first))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let frames = self.bytes.len() / size_of::<u64>();
        (frames, Some(frames))
    }
}

impl ExactSizeIterator for Frames<'_> {}

impl<'a> Frames<'a> {
    /// Returns the frames as the bytes they are, in the machine's byte order: to hash or to compare them at once.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

fn word(header: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

fn half(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[at..at + 4]);
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kernel: &[u64], user: &[u64], flags: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [11_u64, 12, 13, 14, 15] {
            bytes.extend(word.to_ne_bytes());
        }
        for half in [21_u32, 22, 23, 24] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes.extend(3_u16.to_ne_bytes());
        bytes.extend([
            kernel.len() as u8,
            user.len() as u8,
            StackEnd::Root as u8,
            StackEnd::Depth as u8,
        ]);
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(*b"victim\0\0\0\0\0\0\0\0\0\0");
        bytes.extend([0; 16]);
        bytes.extend(16_u64.to_ne_bytes());
        if flags & FRAMES_OMITTED == 0 {
            bytes.extend(kernel.iter().chain(user).flat_map(|frame| frame.to_ne_bytes()));
        }
        bytes
    }

    /// Checks that each field is read from where the program writes it, and the two sides are told apart.
    #[test]
    fn a_record_gives_back_what_was_written() {
        let bytes = record(&[0xffff_0001, 0xffff_0002], &[0x1000], KERNEL_MODE);
        let sample = RawSample::parse(&bytes).unwrap();
        assert_eq!(
            (sample.time_ns, sample.stack_hash, sample.start_time_ns),
            (11, 12, 13)
        );
        assert_eq!(
            (sample.cgroup_id, sample.cpu_sequence, sample.value),
            (14, 15, 16)
        );
        assert_eq!(
            (sample.tgid, sample.tid, sample.exec_id, sample.epoch, sample.cpu),
            (21, 22, 23, 24, 3)
        );
        assert_eq!(
            (sample.kernel_end, sample.user_end),
            (StackEnd::Root, StackEnd::Depth)
        );
        assert_eq!(
            sample.kernel_frames().collect::<Vec<_>>(),
            [0xffff_0001, 0xffff_0002]
        );
        assert_eq!(sample.user_frames().collect::<Vec<_>>(), [0x1000]);
        assert_eq!(sample.comm(), b"victim");
        assert!(sample.in_kernel_mode() && !sample.frames_omitted() && !sample.in_guest());
    }

    /// Checks that a record whose frames were sent before keeps its depths and has no frames.
    #[test]
    fn omitted_frames_keep_their_depth() {
        let bytes = record(&[1, 2], &[3], FRAMES_OMITTED);
        let sample = RawSample::parse(&bytes).unwrap();
        assert_eq!((sample.kernel_depth(), sample.user_depth()), (2, 1));
        assert_eq!(sample.kernel_frames().len() + sample.user_frames().len(), 0);
    }

    /// Checks that every wrong length is refused, from nothing to one frame too many.
    #[test]
    fn a_record_of_another_length_is_undecodable() {
        let whole = record(&[1, 2], &[3], 0);
        for length in 0..whole.len() {
            assert!(RawSample::parse(&whole[..length]).is_err(), "{length} bytes");
        }
        let mut longer = whole.clone();
        longer.extend([0; 8]);
        assert_eq!(
            RawSample::parse(&longer).unwrap_err(),
            Undecodable::Length {
                bytes: 136,
                expected: 128
            }
        );
    }

    proptest! {
        /// Checks that any bytes are a sample or undecodable, and that a sample's frames are those of its depths.
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..RECORD_BYTES_MAX + 16)) {
            if let Ok(sample) = RawSample::parse(&bytes) {
                let frames = sample.kernel_frames().len() + sample.user_frames().len();
                prop_assert!(sample.frames_omitted() || frames == sample.kernel_depth() + sample.user_depth());
            }
        }

        /// Checks that a valid record with some bytes changed never panics, whatever it says.
        #[test]
        fn a_mutated_record_never_panics(
            kernel in proptest::collection::vec(any::<u64>(), 0..STACK_FRAMES_MAX),
            user in proptest::collection::vec(any::<u64>(), 0..STACK_FRAMES_MAX),
            changes in proptest::collection::vec((0_usize..HEADER_BYTES, any::<u8>()), 0..4),
        ) {
            let mut bytes = record(&kernel, &user, 0);
            for (at, value) in changes {
                bytes[at] = value;
            }
            if let Ok(sample) = RawSample::parse(&bytes) {
                prop_assert!(sample.comm().len() <= COMM_BYTES);
                prop_assert!(sample.kernel_frames().chain(sample.user_frames()).count() <= 2 * STACK_FRAMES_MAX);
            }
        }
    }
}
