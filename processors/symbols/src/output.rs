//! The columns of a batch's names while they are written: each text once, copied when it is first used.

use strobe_event::{Locations, RawBatch, Reason};

use crate::memo::{Entry, Memo};

/// A batch's names while they are written.
pub(crate) struct Output {
    locations: Locations,
    /// The memo's ids of the texts placed so far, to be unmarked at the end.
    from_memo: Vec<u32>,
    /// For each of the batch's strings its index in the text, 0 for none yet.
    from_host: Vec<u32>,
}

impl Output {
    /// Returns the empty columns for a batch.
    pub(crate) fn new(frames: usize, batch: &RawBatch) -> Self {
        let mut locations = Locations {
            count: Vec::with_capacity(frames),
            reason: Vec::with_capacity(frames),
            function: Vec::with_capacity(frames * 3 / 2),
            file: Vec::with_capacity(frames * 3 / 2),
            line: Vec::with_capacity(frames * 3 / 2),
            text: Vec::with_capacity(frames),
        };
        locations.text.push(String::new());
        Self {
            locations,
            from_memo: Vec::with_capacity(frames),
            from_host: vec![0; batch.strings.len()],
        }
    }

    /// Adds a frame with the memo's locations.
    pub(crate) fn frame(&mut self, memo: &Memo, placed: &mut [u32], entry: Entry) {
        let mut place = |id: u32| {
            let index = &mut placed[id as usize];
            if *index == 0 && id != 0 {
                *index = self.locations.text.len() as u32;
                self.locations.text.push(memo.text(id).as_ref().to_owned());
                self.from_memo.push(id);
            }
            *index
        };
        for at in memo.locations(entry) {
            self.locations.function.push(place(at.function));
            self.locations.file.push(place(at.file));
            self.locations.line.push(at.line);
        }
        self.locations.count.push(u32::from(entry.chain.count));
        self.locations.reason.push(0);
    }

    /// Adds a frame with the name that the host gave it; returns whether it gave one.
    pub(crate) fn host_name(&mut self, batch: &RawBatch, name: u32) -> bool {
        let Some(text) = batch.strings.get(name as usize).filter(|text| !text.is_empty()) else {
            return false;
        };
        let index = &mut self.from_host[name as usize];
        if *index == 0 {
            *index = self.locations.text.len() as u32;
            self.locations.text.push(text.clone());
        }
        self.locations.function.push(*index);
        self.locations.file.push(0);
        self.locations.line.push(0);
        self.locations.count.push(1);
        self.locations.reason.push(0);
        true
    }

    /// Adds a frame without a name.
    pub(crate) fn unknown(&mut self, reason: Reason) {
        self.locations.count.push(0);
        self.locations.reason.push(reason as u8);
    }

    /// Returns the columns, and leaves `placed` as it was before the first frame: all 0.
    pub(crate) fn finish(self, placed: &mut [u32]) -> Locations {
        self.from_memo.iter().for_each(|&id| placed[id as usize] = 0);
        self.locations
    }
}
