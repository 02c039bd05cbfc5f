//! The dictionaries of a batch: what its samples use, numbered in the order of use, its stacks sorted and front-coded.

use rustc_hash::FxHashMap;
use strobe_event::{Binary, Frames, Process, Stacks, Threads};

use super::{ProcessRow, Row};
use crate::stacks::{KnownStacks, StackId};
use crate::vocabulary::{BinaryId, EMPTY, FrameId, KnownFrame, TextId, Vocabulary};

/// The dictionaries of a batch being closed.
pub struct Dictionary<'v> {
    vocabulary: &'v Vocabulary,
    /// Texts; the first is empty.
    pub strings: Vec<String>,
    string_ids: FxHashMap<TextId, u32>,
    /// Binaries.
    pub binaries: Vec<Binary>,
    binary_ids: FxHashMap<u32, u32>,
    /// Frames.
    pub frames: Frames,
    frame_ids: FxHashMap<FrameId, u32>,
}

impl<'v> Dictionary<'v> {
    /// Returns empty ones.
    pub fn new(vocabulary: &'v Vocabulary) -> Self {
        Self {
            vocabulary,
            strings: vec![String::new()],
            string_ids: FxHashMap::from_iter([(EMPTY, 0)]),
            binaries: Vec::new(),
            binary_ids: FxHashMap::default(),
            frames: Frames::default(),
            frame_ids: FxHashMap::default(),
        }
    }

    fn string(&mut self, text: TextId) -> u32 {
        let next = self.strings.len() as u32;
        let id = *self.string_ids.entry(text).or_insert(next);
        if id == next {
            self.strings.push(self.vocabulary.text_of(text).to_owned());
        }
        id
    }

    fn frame(&mut self, frame: FrameId) -> u32 {
        if let Some(&known) = self.frame_ids.get(&frame) {
            return known;
        }
        let (binary, address, name, reason) = match *self.vocabulary.frame_of(frame) {
            KnownFrame::InBinary {
                binary,
                address,
                name,
            } => (self.binary(binary.0), address, self.string(name), 0),
            KnownFrame::Named(name) => (0, 0, self.string(name), 0),
            KnownFrame::Unknown(reason) => (0, 0, 0, reason as u8),
        };
        let number = self.frames.len() as u32;
        self.frames.binary.push(binary);
        self.frames.address.push(address);
        self.frames.name.push(name);
        self.frames.reason.push(reason);
        self.frame_ids.insert(frame, number);
        number
    }

    /// Returns the binary's place, counted from one.
    fn binary(&mut self, binary: u32) -> u32 {
        if let Some(&known) = self.binary_ids.get(&binary) {
            return known;
        }
        let known = self.vocabulary.binary_of(BinaryId(binary));
        let path = self.string(known.path);
        self.binaries.push(Binary {
            kind: known.kind,
            id: known.id.clone(),
            path,
        });
        let number = self.binaries.len() as u32;
        self.binary_ids.insert(binary, number);
        number
    }

    /// Returns the distinct stacks of the rows, sorted and front-coded, and the place of each.
    pub fn stacks(&mut self, rows: &[Row], known: &KnownStacks) -> (Stacks, FxHashMap<StackId, u32>) {
        let mut used: Vec<StackId> = rows.iter().map(|row| row.stack).collect();
        used.sort_unstable();
        used.dedup();
        used.sort_by(|a, b| {
            let (a, b) = (known.get(*a), known.get(*b));
            a.frames.cmp(&b.frames).then((a.end as u8).cmp(&(b.end as u8)))
        });
        let mut columns = Stacks::default();
        let mut numbers = FxHashMap::default();
        let mut before: Option<&crate::stacks::KnownStack> = None;
        let (mut last, mut next): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for id in used {
            let stack = known.get(id);
            let same = before.is_some_and(|before| before.frames == stack.frames && before.end == stack.end);
            if !same {
                next.clear();
                next.extend(stack.frames.iter().map(|&frame| self.frame(frame)));
                columns.push(&last, &next, stack.end);
                std::mem::swap(&mut last, &mut next);
            }
            numbers.insert(id, columns.len() as u32 - 1);
            before = Some(stack);
        }
        (columns, numbers)
    }

    /// Returns the columns of processes and threads.
    pub fn processes(
        &mut self,
        processes: &[ProcessRow],
        threads: &[(u32, u32, TextId)],
    ) -> (Vec<Process>, Threads) {
        let processes = processes.iter().map(|row| Process {
            pid: row.pid,
            start_ns: row.start_ns,
            exec: row.exec,
            service: self.string(row.service),
            executable: self.string(row.executable),
            container: self.string(row.container),
            cgroup: self.string(row.cgroup),
        });
        let processes = processes.collect();
        let mut columns = Threads::default();
        for &(process, tid, name) in threads {
            columns.process.push(process);
            columns.tid.push(tid);
            columns.name.push(self.string(name));
        }
        (processes, columns)
    }
}
