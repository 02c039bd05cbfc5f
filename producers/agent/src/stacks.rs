//! Stacks that the kernel has sent, by its hash: a stack that it remembers as sent comes again without its frames.
//!
//! The kernel forgets what it sent whenever the epoch advances, so nothing that comes later refers to a stack of an older
//! epoch; what was read of older epochs is dropped one reading later, when records under way have been read.

use rustc_hash::FxHashMap;
use strobe_event::StackEnd;

use crate::vocabulary::FrameId;

/// Number of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// A stack.
#[derive(Debug)]
pub struct KnownStack {
    /// Frames, root first.
    pub frames: Box<[FrameId]>,
    /// How its user part ended.
    pub end: StackEnd,
}

#[derive(Debug)]
struct Sent {
    stack: StackId,
    epoch: u32,
    image: u64,
}

/// The known stacks.
#[derive(Debug, Default)]
pub struct KnownStacks {
    stacks: Vec<KnownStack>,
    by_hash: FxHashMap<u64, Sent>,
}

impl KnownStacks {
    /// Returns the stack that the kernel sent under `hash` in `epoch`; nothing where it is forgotten.
    pub fn sent(&self, hash: u64, epoch: u32) -> Option<StackId> {
        self.by_hash
            .get(&hash)
            .filter(|sent| sent.epoch == epoch)
            .map(|sent| sent.stack)
    }

    /// Takes a stack that the kernel sent with its frames.
    pub fn insert(
        &mut self,
        hash: u64,
        epoch: u32,
        image: u64,
        frames: &[FrameId],
        end: StackEnd,
    ) -> StackId {
        if let Some(sent) = self.by_hash.get_mut(&hash) {
            let known = &self.stacks[sent.stack.0 as usize];
            if *known.frames == *frames && known.end == end {
                (sent.epoch, sent.image) = (epoch, image);
                return sent.stack;
            }
        }
        let stack = self.add(frames, end);
        self.by_hash.insert(hash, Sent { stack, epoch, image });
        stack
    }

    /// Takes a stack that nothing will refer to again.
    pub fn add(&mut self, frames: &[FrameId], end: StackEnd) -> StackId {
        let stack = StackId(self.stacks.len() as u32);
        self.stacks.push(KnownStack {
            frames: frames.into(),
            end,
        });
        stack
    }

    /// Returns a stack.
    pub fn get(&self, id: StackId) -> &KnownStack {
        &self.stacks[id.0 as usize]
    }

    /// Returns how many stacks are kept.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Returns whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Forgets what the stacks of an image meant: code was mapped over its code.
    pub fn forget_image(&mut self, image: u64) {
        self.by_hash.retain(|_, sent| sent.image != image);
    }

    /// Drops the stacks of epochs before `epoch`. Numbers given before mean nothing afterwards.
    pub fn keep_from(&mut self, epoch: u32) {
        self.by_hash.retain(|_, sent| sent.epoch >= epoch);
        let mut kept = Vec::with_capacity(self.by_hash.len());
        for sent in self.by_hash.values_mut() {
            let empty = KnownStack {
                frames: Box::default(),
                end: StackEnd::Forgotten,
            };
            kept.push(std::mem::replace(&mut self.stacks[sent.stack.0 as usize], empty));
            sent.stack = StackId(kept.len() as u32 - 1);
        }
        self.stacks = kept;
    }

    /// Gives every frame another number.
    pub fn renumber(&mut self, mut number: impl FnMut(FrameId) -> FrameId) {
        for stack in &mut self.stacks {
            for frame in &mut stack.frames {
                *frame = number(*frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a stack is found by the epoch that it was sent in, and only so.
    #[test]
    fn a_stack_is_found_in_its_epoch_only() {
        let mut stacks = KnownStacks::default();
        let first = stacks.insert(7, 1, 1, &[FrameId(1), FrameId(2)], StackEnd::Root);
        assert_eq!(stacks.sent(7, 1), Some(first));
        assert_eq!(stacks.sent(7, 2), None);
        assert_eq!(
            stacks.insert(7, 2, 1, &[FrameId(1), FrameId(2)], StackEnd::Root),
            first,
            "the same again"
        );
        stacks.insert(8, 1, 2, &[FrameId(3)], StackEnd::Root);
        stacks.keep_from(2);
        let kept = stacks.sent(7, 2).unwrap();
        assert_eq!(
            (&*stacks.get(kept).frames, stacks.len()),
            (&[FrameId(1), FrameId(2)][..], 1)
        );
        assert_eq!(stacks.sent(8, 1), None);
        stacks.forget_image(1);
        assert_eq!(stacks.sent(7, 2), None);
    }

    /// Checks that kept stacks say the same in a vocabulary that has only what they need.
    #[test]
    fn kept_stacks_say_the_same_in_a_new_vocabulary() {
        use crate::vocabulary::{KnownFrame, Vocabulary};
        use strobe_event::{BinaryKind, BuildId};
        let (mut old, mut stacks) = (Vocabulary::default(), KnownStacks::default());
        let binary = old.binary(BinaryKind::Gnu, &BuildId::new(&[1; 20]).unwrap(), "/lib");
        let name = old.text("name");
        let frames: Vec<FrameId> = (0..100)
            .map(|address| {
                old.frame(KnownFrame::InBinary {
                    binary,
                    address,
                    name,
                })
            })
            .collect();
        stacks.insert(1, 1, 1, &frames, StackEnd::Root);
        stacks.insert(2, 2, 1, &[frames[7], frames[9]], StackEnd::Root);
        stacks.keep_from(2);
        let mut new = Vocabulary::default();
        stacks.renumber(|frame| new.adopt(&old, frame));
        let kept = &stacks.get(stacks.sent(2, 2).unwrap()).frames;
        let addresses = kept.iter().map(|&frame| match *new.frame_of(frame) {
            KnownFrame::InBinary {
                binary,
                address,
                name,
            } => {
                let path = new.text_of(new.binary_of(binary).path);
                (path.to_owned(), new.text_of(name).to_owned(), address)
            }
            _ => panic!("another frame"),
        });
        let expected = [7, 9].map(|address| ("/lib".to_owned(), "name".to_owned(), address));
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
        assert_eq!(new.sizes().0, 2);
    }
}
