//! How large a batch can get: an estimate of the usual case, and a sum of the most that everything can take.

use rustc_hash::FxHashSet;
use strobe_bus::MESSAGE_BYTES_MAX;
use strobe_event::BuildId;

use crate::stacks::{KnownStacks, StackId};
use crate::vocabulary::{BinaryId, FrameId, KnownFrame, TEXT_BYTES_MAX, TextId, Vocabulary};

/// Estimated size at which a batch closes.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of a sample's columns, by experience.
const SAMPLE_BYTES: usize = 8;
/// The most that one sample can add: a stack of 127 frames of the kernel and 127 of files never seen before, each with names
/// as long as they may be, and its process.
const ADDED_BYTES_MAX: usize = (KERNEL_FRAMES_MAX + USER_FRAMES_MAX) * (Most::FRAME + Most::STACK_FRAME)
    + KERNEL_FRAMES_MAX * (KERNEL_NAME_BYTES_MAX + Most::TEXT)
    + (USER_FRAMES_MAX + MODULES_PER_STACK_MAX) * (TEXT_BYTES_MAX + Most::TEXT + Most::BINARY)
    + Most::SAMPLE
    + Most::STACK
    + Most::THREAD
    + Most::PROCESS
    + 5 * (TEXT_BYTES_MAX + Most::TEXT);
/// The kernel's frames of a stack.
pub const KERNEL_FRAMES_MAX: usize = strobe_event::stack::STACK_FRAMES_MAX;
/// A process's frames of a stack.
pub const USER_FRAMES_MAX: usize = strobe_event::stack::STACK_FRAMES_MAX;
/// `KSYM_NAME_LEN`.
pub const KERNEL_NAME_BYTES_MAX: usize = 512;
/// Modules that one stack passes through: two or three, in truth.
const MODULES_PER_STACK_MAX: usize = 16;
/// Sum of the most that its parts can take, at which a batch closes: the next sample still fits below the limit on messages.
const MOST_BYTES: usize = MESSAGE_BYTES_MAX - ADDED_BYTES_MAX;
const _: () = assert!(MOST_BYTES > 2 * BATCH_BYTES);
const _: () = assert!(strobe_bpf::STACK_FRAMES_MAX == strobe_event::stack::STACK_FRAMES_MAX);

/// The most bytes that each part of a batch takes on the wire. Indexes into its dictionaries take at most 3: a batch has room
/// for less than 2²⁰ of anything.
struct Most;

impl Most {
    /// The run, the interval, and what ends each column.
    const HEAD: usize = 2_048;
    const CPU: usize = 5 + 5 * 10;
    /// The length of a text.
    const TEXT: usize = 3;
    /// Kind, length, id and path.
    const BINARY: usize = 1 + 2 + BuildId::BYTES_MAX + 3;
    /// Binary, address, name, reason.
    const FRAME: usize = 3 + 10 + 3 + 1;
    /// Shared, added, end.
    const STACK: usize = 2 + 2 + 1;
    const STACK_FRAME: usize = 3;
    /// Pid, start, exec and four texts.
    const PROCESS: usize = 5 + 10 + 5 + 4 * 3;
    /// Process, tid, name.
    const THREAD: usize = 3 + 5 + 3;
    /// Time, stack, thread, CPU, value.
    const SAMPLE: usize = 6 + 3 + 3 + 3 + 10;
}
/// What is in a batch, as far as its size goes.
#[derive(Debug, Default)]
pub struct Size {
    stacks: FxHashSet<StackId>,
    frames: FxHashSet<FrameId>,
    binaries: FxHashSet<BinaryId>,
    texts: FxHashSet<TextId>,
    usual_bytes: usize,
    most_bytes: usize,
}

impl Size {
    /// Returns whether the next sample of a batch on so many CPUs might be one too much.
    pub fn is_reached(&self, cpus: usize) -> bool {
        let fixed = Most::HEAD + cpus * Most::CPU;
        self.usual_bytes >= BATCH_BYTES || fixed + self.most_bytes >= MOST_BYTES
    }

    /// Adds a sample with its stack.
    pub fn add_sample(&mut self, stack: StackId, stacks: &KnownStacks, vocabulary: &Vocabulary) {
        if self.stacks.insert(stack) {
            self.add_stack(&stacks.get(stack).frames, vocabulary);
        }
        self.usual_bytes += SAMPLE_BYTES;
        self.most_bytes += Most::SAMPLE;
    }

    fn add_stack(&mut self, frames: &[FrameId], vocabulary: &Vocabulary) {
        // Half of what a stack would take that shares nothing: most share more than half.
        self.usual_bytes += 4 + frames.len();
        self.most_bytes += Most::STACK + frames.len() * Most::STACK_FRAME;
        for &frame in frames {
            if !self.frames.insert(frame) {
                continue;
            }
            self.most_bytes += Most::FRAME;
            match *vocabulary.frame_of(frame) {
                KnownFrame::InBinary { binary, name, .. } => {
                    if self.binaries.insert(binary) {
                        self.most_bytes += Most::BINARY;
                        self.add_text(vocabulary.binary_of(binary).path, vocabulary);
                    }
                    self.add_text(name, vocabulary);
                }
                KnownFrame::Named(name) => self.add_text(name, vocabulary),
                KnownFrame::Unknown(_) => {}
            }
        }
    }

    /// Adds a text.
    pub fn add_text(&mut self, text: TextId, vocabulary: &Vocabulary) {
        if self.texts.insert(text) {
            self.most_bytes += Most::TEXT + vocabulary.text_of(text).len();
        }
    }

    /// Adds a thread, without its name.
    pub fn add_thread(&mut self) {
        self.most_bytes += Most::THREAD;
    }

    /// Adds a process, without its texts.
    pub fn add_process(&mut self) {
        self.most_bytes += Most::PROCESS;
    }

    /// Starts anew; the memory stays.
    pub fn clear(&mut self) {
        self.stacks.clear();
        self.frames.clear();
        self.binaries.clear();
        self.texts.clear();
        (self.usual_bytes, self.most_bytes) = (0, 0);
    }
}
