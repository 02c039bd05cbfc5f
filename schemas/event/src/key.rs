//! Keys of frames and stacks: made of what was on the wire, so that they never change, whatever names are found later.
//!
//! Both are XXH3 (seed 0). A frame's key covers, in this order: a tag byte; for a frame in a binary the kind of its
//! identity, the identity's length as one byte and its bytes, and the address as 8 bytes little endian; for a frame
//! that has only a name, the name's bytes; for an unknown one, its reason. A stack's key covers its end and the keys of
//! its frames, root first, as 8 bytes little endian each. A context's key covers its names and values, sorted, each with
//! a zero byte behind it.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::raw::RawBatch;

/// 64 bits that stand for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKey(pub u64);

/// 128 bits that stand for a stack. Samples hold the low 64; the stack's row holds all, so that a collision shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackKey(pub u128);

impl StackKey {
    /// Returns the 64 bits that a sample holds.
    pub fn low(self) -> u64 {
        self.0 as u64
    }
}

/// 64 bits that stand for a context: what samples hold. 0 stands for one without values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextKey(pub u64);

impl ContextKey {
    /// Returns the key of a context, given as names and values in whatever order.
    pub fn of<'a>(values: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut values: Vec<(&str, &str)> = values.collect();
        if values.is_empty() {
            return Self(0);
        }
        values.sort_unstable();
        let mut bytes = Vec::with_capacity(64);
        for (name, value) in values {
            for text in [name, value] {
                bytes.extend_from_slice(text.as_bytes());
                bytes.push(0);
            }
        }
        // 0 is taken.
        Self(xxh3_64(&bytes).max(1))
    }
}

const IN_BINARY: u8 = 1;
const NAME_ONLY: u8 = 2;
const UNKNOWN: u8 = 3;

/// Returns the key of every frame of a validated batch, in order.
pub fn frame_keys(batch: &RawBatch) -> Vec<FrameKey> {
    let frames = &batch.frames;
    let mut bytes = Vec::with_capacity(64);
    (0..frames.len())
        .map(|index| {
            bytes.clear();
            let binary = (frames.binary[index] as usize)
                .checked_sub(1)
                .map(|at| &batch.binaries[at]);
            match binary {
                Some(binary) => {
                    let id = binary.id.as_bytes();
                    bytes.extend_from_slice(&[IN_BINARY, binary.kind as u8, id.len() as u8]);
                    bytes.extend_from_slice(id);
                    bytes.extend_from_slice(&frames.address[index].to_le_bytes());
                }
                None if frames.name[index] != 0 => {
                    bytes.push(NAME_ONLY);
                    bytes.extend_from_slice(batch.strings[frames.name[index] as usize].as_bytes());
                }
                None => bytes.extend_from_slice(&[UNKNOWN, frames.reason[index]]),
            }
            FrameKey(xxh3_64(&bytes))
        })
        .collect()
}

/// Returns the key of every stack of a validated batch, in order; `frames` are its [`frame_keys`].
pub fn stack_keys(batch: &RawBatch, frames: &[FrameKey]) -> Vec<StackKey> {
    let mut keys = Vec::with_capacity(batch.stacks.len());
    let mut bytes = Vec::with_capacity(1 + 8 * 2 * crate::stack::STACK_FRAMES_MAX);
    batch.stacks.for_each(|_, stack, end| {
        bytes.clear();
        bytes.push(end);
        for &frame in stack {
            bytes.extend_from_slice(&frames[frame as usize].0.to_le_bytes());
        }
        keys.push(StackKey(xxh3_128(&bytes)));
    });
    keys
}
