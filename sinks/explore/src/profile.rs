//! Whole stacks, for exports, and how complete they are.

use rustc_hash::FxHashMap;
use serde::Serialize;
use strobe_event::StackEnd;

use crate::Range;
use crate::store::{Line, Selected, StackStore};

/// One location of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProfileLine {
    /// Function, demangled; in brackets where a reason stands in for it.
    pub function: String,
    /// Source file; empty if not known.
    pub file: String,
    /// Source line; 0 if not known.
    pub line: u32,
}

/// One frame: an address in a binary, or a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProfileFrame {
    /// Locations, the outermost function first; all but the first are inlined. Never empty.
    pub lines: Vec<ProfileLine>,
    /// Path of the binary; empty if not known.
    pub module: String,
    /// Its build id in hexadecimal digits; empty if not known.
    pub build_id: String,
    /// Address in it; 0 if not known.
    pub address: u64,
}

/// One distinct stack.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProfileStack {
    /// Frames, root first: indexes into [`Profile::frames`].
    pub frames: Vec<u32>,
    /// Sum of the weights of its samples.
    pub weight: f64,
    /// Its samples.
    pub samples: u64,
}

/// Every stack of a selection with its weight: what exports are made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// Distinct frames.
    pub frames: Vec<ProfileFrame>,
    /// Stacks, sorted by their functions from the root.
    pub stacks: Vec<ProfileStack>,
    /// Time of the selection.
    pub range: Range,
}

/// How much of a selection has its whole stack, from the leaf to the root, by weight.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completeness {
    /// Weight in all.
    pub total: f64,
    /// Weight with a complete stack.
    pub complete: f64,
    /// Weight by how the stack ended, the most first.
    pub by_end: Vec<(StackEnd, f64)>,
    /// Weight whose stack has no row.
    pub not_stored: f64,
}

impl Completeness {
    /// Returns the share whose stack is complete, from 0 to 1; nothing where there is no weight.
    pub fn share(&self) -> Option<f64> {
        (self.total > 0.0).then(|| self.complete / self.total)
    }
}

fn bare(name: &str) -> ProfileFrame {
    let line = ProfileLine {
        function: name.to_owned(),
        file: String::new(),
        line: 0,
    };
    ProfileFrame {
        lines: vec![line],
        module: String::new(),
        build_id: String::new(),
        address: 0,
    }
}

/// Returns a frame with the lines that are shown of it; none where it has no row.
fn shown_frame(store: &StackStore, frame: u32, lines: &[Line]) -> ProfileFrame {
    let Some(names) = store.names(frame).filter(|_| !lines.is_empty()) else {
        return bare("[frame not stored]");
    };
    let lines = lines.iter().map(|line| ProfileLine {
        function: store.function_name(line.function).function,
        file: store.text(line.file).to_owned(),
        line: line.line,
    });
    ProfileFrame {
        lines: lines.collect(),
        module: store.text(names.module).to_owned(),
        build_id: store.text(names.build_id).to_owned(),
        address: names.address,
    }
}

/// Collects every stack that was selected.
pub(crate) fn profile(store: &StackStore, selected: &Selected, range: Range) -> Profile {
    let mut profile = Profile {
        frames: Vec::new(),
        stacks: Vec::new(),
        range,
    };
    // A frame is shown with other lines where a schema hides or renames some of them.
    let mut local: FxHashMap<(u32, Box<[Line]>), u32> = FxHashMap::default();
    let bare_stack = |profile: &mut Profile, function: u32, weight: f64, samples: u64| {
        let frame = profile.frames.len() as u32;
        profile.frames.push(bare(&store.function_name(function).function));
        profile.stacks.push(ProfileStack {
            frames: vec![frame],
            weight,
            samples,
        });
    };
    if selected.unknown[0] != 0.0 {
        let (weight, samples) = (selected.unknown[0], selected.unknown_samples);
        bare_stack(&mut profile, selected.unknown_function(), weight, samples);
    }
    for id in store.in_order(selected) {
        let (weight, samples) = (selected.weights[id as usize][0], selected.samples[id as usize]);
        let mut shown: Vec<(u32, Vec<Line>)> = Vec::new();
        let mut next_place = None;
        store.for_each_shown(id, |depth, frame, line| {
            // Locations of one frame follow each other; the same frame may be called by itself.
            match shown.last_mut().filter(|_| next_place == Some(depth)) {
                Some((_, lines)) => lines.extend(line),
                None => shown.push((frame, line.into_iter().collect())),
            }
            next_place = Some(depth);
        });
        let mut frames = Vec::new();
        for (frame, lines) in shown {
            let at = *local
                .entry((frame, lines.into()))
                .or_insert_with_key(|(frame, lines)| {
                    profile.frames.push(shown_frame(store, *frame, lines));
                    profile.frames.len() as u32 - 1
                });
            frames.push(at);
        }
        match (frames.is_empty(), store.sequence(id).first()) {
            (true, Some(&function)) => bare_stack(&mut profile, function, weight, samples),
            _ => profile.stacks.push(ProfileStack {
                frames,
                weight,
                samples,
            }),
        }
    }
    profile
}

/// Sums up how the selected stacks ended.
pub(crate) fn completeness(store: &StackStore, selected: &Selected) -> Completeness {
    let mut sums = [0.0; StackEnd::ALL.len()];
    let mut not_stored = selected.unknown[0];
    for id in store.in_order(selected) {
        let weight = selected.weights[id as usize][0];
        match store.end(id) {
            Some(end) => sums[end as usize - 1] += weight,
            None => not_stored += weight,
        }
    }
    let mut by_end: Vec<_> = StackEnd::ALL
        .into_iter()
        .zip(sums)
        .filter(|&(_, weight)| weight > 0.0)
        .collect();
    by_end.sort_by(|a, b| b.1.total_cmp(&a.1));
    Completeness {
        total: sums.iter().sum::<f64>() + not_stored,
        complete: by_end
            .iter()
            .filter(|(end, _)| end.is_complete())
            .map(|(_, weight)| weight)
            .sum(),
        by_end,
        not_stored,
    }
}
