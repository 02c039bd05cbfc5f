//! Tops: who takes how much, alone and with everything it calls.

use std::cmp::Ordering;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::Range;
use crate::store::{Selected, StackStore};

/// What a row stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// A function of a module.
    Function,
    /// A line of source.
    Line,
    /// A binary.
    Module,
    /// A service.
    Service,
    /// A host.
    Host,
    /// A thread's name.
    Thread,
    /// A tag, of the stack or of one of its frames. A stack with several counts for each, so that rows may add up to more
    /// than the whole. A frame's tag has alone what was spent in such a frame, and in all what was spent below one.
    Tag,
}

/// By what rows are sorted, the most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sort {
    /// Weight alone.
    #[default]
    SelfWeight,
    /// Weight with what is called.
    Total,
    /// The distance to the baseline in either direction, of the weight alone, in cores.
    Change,
}

/// One row of a [`Top`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopRow {
    /// Function (also for lines), module, service, host, thread or tag.
    pub name: String,
    /// Source file; empty where it is not known or has no meaning.
    pub file: String,
    /// Source line; 0 where it is not known or has no meaning.
    pub line: u32,
    /// Path of the binary; empty where it is not known or has no meaning.
    pub module: String,
    /// Weight of samples taken right there.
    #[serde(rename = "self")]
    pub self_weight: f64,
    /// Weight of samples whose stack holds it: recursion counts once. Services, hosts and threads: as `self_weight`.
    pub total: f64,
    /// `self_weight` in the baseline; 0 without one.
    pub baseline_self: f64,
    /// `total` in the baseline; 0 without one.
    pub baseline_total: f64,
}

/// The heaviest rows of a selection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Top {
    /// The rows, as asked for.
    pub rows: Vec<TopRow>,
    /// Rows there were, before the limit.
    pub row_count: usize,
    /// Weight of the whole selection: what shares are of.
    pub total: f64,
    /// Weight of the whole baseline; 0 without one.
    pub baseline_total: f64,
    /// Time of the selection.
    pub range: Range,
    /// Time of the baseline, where there is one.
    pub baseline: Option<Range>,
}

impl Top {
    /// Multiplies the selection's weights by `factor`: for what was refused or cut short ([`crate::Intervals::correction`]).
    pub fn correct(&mut self, factor: f64) {
        self.total *= factor;
        for row in &mut self.rows {
            row.self_weight *= factor;
            row.total *= factor;
        }
    }
}

/// Weights of one row: own and total, each of selection and baseline.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weights {
    pub(crate) own: [f64; 2],
    pub(crate) total: [f64; 2],
    /// The last stack that was added to `total`, plus one.
    stack: u32,
}

fn add(sum: &mut [f64; 2], weight: [f64; 2]) {
    *sum = [sum[0] + weight[0], sum[1] + weight[1]];
}

impl Weights {
    fn add_stack(&mut self, stack: u32, weight: [f64; 2]) {
        if self.stack != stack + 1 {
            self.stack = stack + 1;
            add(&mut self.total, weight);
        }
    }
}

/// Sums what was selected per function.
fn by_function(store: &StackStore, selected: &Selected) -> Vec<(TopRow, Weights)> {
    let mut sums = vec![Weights::default(); store.function_count()];
    for id in store.in_order(selected) {
        let (sequence, weight) = (store.sequence(id), selected.weights[id as usize]);
        sequence
            .iter()
            .for_each(|&function| sums[function as usize].add_stack(id, weight));
        if let Some(&leaf) = sequence.last() {
            add(&mut sums[leaf as usize].own, weight);
        }
    }
    let unknown = &mut sums[selected.unknown_function() as usize];
    add(&mut unknown.own, selected.unknown);
    add(&mut unknown.total, selected.unknown);
    let named = |(function, weights): (usize, Weights)| {
        let name = store.function_name(function as u32);
        let row = row(&name.function, &name.file, 0, &name.module);
        (row, weights)
    };
    sums.into_iter()
        .enumerate()
        .filter(|(_, weights)| weights.total != [0.0; 2])
        .map(named)
        .collect()
}

/// Sums what was selected per module.
fn by_module(store: &StackStore, selected: &Selected) -> Vec<(TopRow, Weights)> {
    let mut sums: FxHashMap<u32, Weights> = FxHashMap::default();
    for id in store.in_order(selected) {
        let (sequence, weight) = (store.sequence(id), selected.weights[id as usize]);
        let mut last = None;
        for module in sequence.iter().map(|&function| store.module_of(function)) {
            // Calls mostly stay in their module.
            if last != Some(module) {
                sums.entry(module).or_default().add_stack(id, weight);
                last = Some(module);
            }
        }
        if let Some(leaf) = last {
            add(&mut sums.entry(leaf).or_default().own, weight);
        }
    }
    let unknown = sums
        .entry(store.module_of(selected.unknown_function()))
        .or_default();
    add(&mut unknown.own, selected.unknown);
    add(&mut unknown.total, selected.unknown);
    sums.retain(|_, weights| weights.total != [0.0; 2]);
    let named = |(module, weights)| match store.text(module) {
        "" => (row("[no module]", "", 0, ""), weights),
        path => (row(path, "", 0, path), weights),
    };
    sums.into_iter().map(named).collect()
}

/// Sums what was selected per line of source.
fn by_line(store: &StackStore, selected: &Selected) -> Vec<(TopRow, Weights)> {
    let mut sums: FxHashMap<(u32, u32, u32), Weights> = FxHashMap::default();
    for id in store.in_order(selected) {
        let weight = selected.weights[id as usize];
        let mut leaf = None;
        store.for_each_shown(id, |_, _, line| {
            leaf = line.map(|line| (line.function, line.file, line.line));
            if let Some(key) = leaf {
                sums.entry(key).or_default().add_stack(id, weight);
            }
        });
        // A stack whose leaf has no row, or that has no frames, keeps its own name without a line.
        let named = store.sequence(id).last().map(|&function| (function, 0, 0));
        if let Some(key) = leaf.or(named) {
            let weights = sums.entry(key).or_default();
            weights.add_stack(id, weight);
            add(&mut weights.own, weight);
        }
    }
    let unknown = sums.entry((selected.unknown_function(), 0, 0)).or_default();
    add(&mut unknown.own, selected.unknown);
    add(&mut unknown.total, selected.unknown);
    sums.retain(|_, weights| weights.total != [0.0; 2]);
    let named = |((function, file, line), weights): ((u32, u32, u32), Weights)| {
        let name = store.function_name(function);
        let file = if line == 0 && file == 0 {
            ""
        } else {
            store.text(file)
        };
        (row(&name.function, file, line, &name.module), weights)
    };
    sums.into_iter().map(named).collect()
}

fn row(name: &str, file: &str, line: u32, module: &str) -> TopRow {
    TopRow {
        name: name.to_owned(),
        file: file.to_owned(),
        line,
        module: module.to_owned(),
        self_weight: 0.0,
        total: 0.0,
        baseline_self: 0.0,
        baseline_total: 0.0,
    }
}

/// Returns the sums per function, line or module; per anything else there is nothing in stacks.
pub(crate) fn of_stacks(store: &StackStore, selected: &Selected, by: By) -> Vec<(TopRow, Weights)> {
    match by {
        By::Function => by_function(store, selected),
        By::Line => by_line(store, selected),
        By::Module => by_module(store, selected),
        By::Service | By::Host | By::Thread | By::Tag => Vec::new(),
    }
}

/// Returns the sums of names that are columns of samples: own and total are the same.
pub(crate) fn of_names(sums: FxHashMap<String, [f64; 2]>) -> Vec<(TopRow, Weights)> {
    let weights = |own| Weights {
        own,
        total: own,
        stack: 0,
    };
    sums.into_iter()
        .map(|(name, own)| (row(&name, "", 0, ""), weights(own)))
        .collect()
}

/// Returns the sums of tags.
pub(crate) fn of_tags(sums: FxHashMap<String, Weights>) -> Vec<(TopRow, Weights)> {
    let rows = sums.into_iter();
    rows.map(|(name, weights)| (row(&name, "", 0, ""), weights))
        .collect()
}

/// Sorts rows and keeps the first `limit`.
pub(crate) fn finish(
    rows: Vec<(TopRow, Weights)>,
    total: [f64; 2],
    (range, baseline): (Range, Option<Range>),
    (sort, limit): (Sort, usize),
) -> Top {
    let scale = baseline.map_or(0.0, |baseline| range.ns() / baseline.ns().max(1.0));
    let filled = |(row, weights): (TopRow, Weights)| TopRow {
        self_weight: weights.own[0],
        total: weights.total[0],
        baseline_self: weights.own[1],
        baseline_total: weights.total[1],
        ..row
    };
    let mut rows: Vec<TopRow> = rows.into_iter().map(filled).collect();
    let key = |row: &TopRow| match sort {
        Sort::SelfWeight => (row.self_weight, row.total),
        Sort::Total => (row.total, row.self_weight),
        Sort::Change => ((row.self_weight - row.baseline_self * scale).abs(), row.total),
    };
    // The name last, so that equal rows are always in the same order.
    rows.sort_by(|a, b| {
        let order = key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal);
        order.then_with(|| (&a.name, &a.module, &a.file, a.line).cmp(&(&b.name, &b.module, &b.file, b.line)))
    });
    let row_count = rows.len();
    rows.truncate(limit);
    Top {
        rows,
        row_count,
        total: total[0],
        baseline_total: total[1],
        range,
        baseline,
    }
}
