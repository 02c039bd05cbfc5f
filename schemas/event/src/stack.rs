//! Stacks: sequences of frames, front-coded so that neighbours share their prefixes.

/// Frames kept of each side of a stack: the kernel's default `perf_event_max_stack`. Deeper ones arrive cut, and say so.
pub const STACK_FRAMES_MAX: usize = 127;

/// How the user part of a stack ended, seen from the leaf: at the root, or cut, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StackEnd {
    /// The walk reached the root of the thread.
    Root = 1,
    /// Cut at the limit on frames.
    Depth = 2,
    /// Cut: the next frame lies in memory that could not be read.
    Unreadable = 3,
    /// Cut: the frame pointer did not ascend or was not aligned.
    BadFramePointer = 4,
    /// There is no user part: a kernel thread.
    KernelOnly = 5,
    /// The user part was left out: the sample fell into `exec`, between two images.
    InExec = 6,
    /// The user part was left out: a 32-bit process.
    Compat32 = 7,
    /// The stack itself was lost: its record was dropped or forgotten, the sample stays.
    Forgotten = 8,
    /// Cut: what stands where a return address should be is none.
    BadReturnAddress = 9,
    /// Cut: the last frame lies in no code that the process is known to have mapped.
    UnknownMapping = 10,
    /// Cut: the binary describes the last frame in a way that no rule of an unwind table expresses.
    Unsupported = 11,
    /// Cut: no table says anything of the last frame, and its frame pointer leads nowhere.
    NoTable = 12,
    /// Walked by frame pointers, as the process's unwind tables were not there yet: cut, or without the callers of code that keeps
    /// no frame pointer.
    BeforeTables = 13,
    /// Walked by frame pointers, as the agent's memory for unwind tables is full: cut, or without callers as before.
    NoRoom = 14,
}

impl StackEnd {
    /// Every end, in the order of the codes.
    pub const ALL: [Self; 14] = [
        Self::Root,
        Self::Depth,
        Self::Unreadable,
        Self::BadFramePointer,
        Self::KernelOnly,
        Self::InExec,
        Self::Compat32,
        Self::Forgotten,
        Self::BadReturnAddress,
        Self::UnknownMapping,
        Self::Unsupported,
        Self::NoTable,
        Self::BeforeTables,
        Self::NoRoom,
    ];

    /// Returns the end that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the end's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Depth => "depth",
            Self::Unreadable => "unreadable",
            Self::BadFramePointer => "bad_frame_pointer",
            Self::KernelOnly => "kernel_only",
            Self::InExec => "in_exec",
            Self::Compat32 => "compat32",
            Self::Forgotten => "forgotten",
            Self::BadReturnAddress => "bad_return_address",
            Self::UnknownMapping => "unknown_mapping",
            Self::Unsupported => "unsupported",
            Self::NoTable => "no_table",
            Self::BeforeTables => "before_tables",
            Self::NoRoom => "no_room",
        }
    }

    /// Returns whether nothing is missing between the leaf and the root.
    pub fn is_complete(self) -> bool {
        matches!(self, Self::Root | Self::KernelOnly)
    }
}

/// The distinct stacks of a batch, root first, user frames before kernel frames, front-coded.
///
/// Stack `i` is the first `shared[i]` frames of stack `i - 1`, then the next `added[i]` entries of `frames`.
/// Writers sort the stacks, so that the shared parts are long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stacks {
    /// Frames shared with the stack before, counted from the root; the first stack has 0.
    pub shared: Vec<u32>,
    /// Frames that follow the shared ones.
    pub added: Vec<u32>,
    /// The added frames of all stacks: indexes into the batch's frames.
    pub frames: Vec<u32>,
    /// Code of the [`StackEnd`] of each stack.
    pub end: Vec<u8>,
}

impl Stacks {
    /// Returns how many stacks there are.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Appends `stack` (frame indexes, root first) behind `previous`, the stack appended before it.
    pub fn push(&mut self, previous: &[u32], stack: &[u32], end: StackEnd) {
        let shared = previous.iter().zip(stack).take_while(|(a, b)| a == b).count();
        // Depth is bounded by twice STACK_FRAMES_MAX, so that the counts fit.
        self.shared.push(shared as u32);
        self.added.push((stack.len() - shared) as u32);
        self.frames.extend_from_slice(&stack[shared..]);
        self.end.push(end as u8);
    }

    /// Calls `visit` with each stack's index, frames (root first) and end, in order.
    ///
    /// The batch must have been validated: counts that do not add up would cut stacks short here.
    pub fn for_each(&self, mut visit: impl FnMut(usize, &[u32], u8)) {
        let mut stack: Vec<u32> = Vec::with_capacity(2 * STACK_FRAMES_MAX);
        let mut rest = self.frames.as_slice();
        for (index, (&shared, &added)) in self.shared.iter().zip(&self.added).enumerate() {
            stack.truncate(shared as usize);
            let (new, behind) = rest.split_at((added as usize).min(rest.len()));
            stack.extend_from_slice(new);
            rest = behind;
            visit(index, &stack, self.end.get(index).copied().unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that front-coded stacks come back as they went in, shared prefixes or not.
    #[test]
    fn stacks_come_back_as_they_went_in() {
        let given: [&[u32]; 5] = [&[1, 2, 3], &[1, 2], &[1, 2, 4, 5], &[], &[9]];
        let mut stacks = Stacks::default();
        let mut previous: &[u32] = &[];
        for stack in given {
            stacks.push(previous, stack, StackEnd::Root);
            previous = stack;
        }
        let mut seen = Vec::new();
        stacks.for_each(|_, frames, _| seen.push(frames.to_vec()));
        assert_eq!(seen, given.map(<[u32]>::to_vec));
        assert_eq!(stacks.frames.len(), 6, "shared prefixes are stored once");
    }
}
