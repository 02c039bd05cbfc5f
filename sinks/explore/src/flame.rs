//! Flame graph trees: built in one walk over sorted stacks, cut to what a person can see.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use serde::Serialize;

use crate::Range;
use crate::store::{Selected, StackStore};

/// Nodes of a tree unless said otherwise: what flame graph users know as the default, and about what a screen shows.
pub const TREE_NODES_DEFAULT: usize = 8_192;
/// Most nodes of a tree.
pub const TREE_NODES_MAX: usize = 1 << 20;

/// A function: two of the same name in different modules are two.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FunctionName {
    /// Name, demangled; in brackets where a reason stands in for it.
    pub function: String,
    /// Path of the binary; empty if not known.
    pub module: String,
    /// Source file in which it was seen first; empty if not known.
    pub file: String,
}

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// Everything.
    Root,
    /// A function, called by its parent: index into [`FlameTree::functions`].
    Function(u32),
    /// The children of its parent that were cut off.
    Other,
}

/// A node of a [`FlameTree`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlameNode {
    /// What it stands for.
    pub kind: NodeKind,
    /// Steps from the root, which has 0.
    pub depth: u32,
    /// Weight of the node with everything below it.
    pub total: f64,
    /// Weight of the node alone.
    pub self_weight: f64,
    /// `total` in the baseline; 0 without one.
    pub baseline_total: f64,
    /// `self_weight` in the baseline; 0 without one.
    pub baseline_self: f64,
}

/// A flame graph: nodes depth first, so that a node's children follow it with one more step of depth. Siblings are in
/// falling order of `total`; what was cut comes last.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlameTree {
    /// The nodes; the first is the root, whose `total` is that of the selection.
    pub nodes: Vec<FlameNode>,
    /// The functions that nodes point to.
    pub functions: Vec<FunctionName>,
    /// Time of the selection.
    pub range: Range,
    /// Time of the baseline, where there is one.
    pub baseline: Option<Range>,
}

impl FlameTree {
    /// Returns the name of a node: its function's, or "all" or "other".
    pub fn name(&self, node: &FlameNode) -> &str {
        match node.kind {
            NodeKind::Root => "all",
            NodeKind::Other => "other",
            NodeKind::Function(function) => self
                .functions
                .get(function as usize)
                .map_or("", |name| &name.function),
        }
    }

    /// Returns how much more of all cores' time a node takes than in the baseline, in per cent points of the total.
    pub fn change_points(&self, node: &FlameNode) -> f64 {
        let share = |part: f64, all: f64| if all > 0.0 { 100.0 * part / all } else { 0.0 };
        let Some(root) = self.nodes.first() else {
            return 0.0;
        };
        share(node.total, root.total) - share(node.baseline_total, root.baseline_total)
    }
}

/// Stacks to make a tree of, sorted by their sequences of functions.
struct Sorted<'a> {
    sequences: Vec<&'a [u32]>,
    /// Weight of all stacks before each one, and of all of them.
    before: Vec<[f64; 2]>,
    /// Makes the baseline's weights comparable with the selection's.
    scale: f64,
}

/// A node that may be kept: the stacks `first..end` share their first `depth` functions.
struct Candidate {
    first: usize,
    end: usize,
    depth: usize,
    parent: usize,
    worth: f64,
}

impl Ord for Candidate {
    /// The heaviest is the greatest; of equal ones the first in order, and a parent before its child.
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.worth.total_cmp(&other.worth);
        order.then_with(|| (other.first, other.depth).cmp(&(self.first, self.depth)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// A node that was kept.
struct Kept {
    first: usize,
    end: usize,
    depth: usize,
    /// Stacks that end here: they come first among those of the node.
    own_end: usize,
    /// Kept children, the heaviest first.
    children: Vec<usize>,
    /// Children that were not kept, or not yet.
    cut: usize,
}

/// A node as it is laid out: what it stands for (a function as it is in the sequences), depth, total, own weight.
type Laid = (NodeKind, u32, [f64; 2], [f64; 2]);

impl<'a> Sorted<'a> {
    /// Takes stacks sorted by their sequences of functions, root first.
    fn new(stacks: impl Iterator<Item = (&'a [u32], [f64; 2])>, scale: f64) -> Self {
        let (mut sequences, mut before, mut sum) = (Vec::new(), vec![[0.0; 2]], [0.0; 2]);
        for (sequence, weight) in stacks {
            sequences.push(sequence);
            sum = [sum[0] + weight[0], sum[1] + weight[1]];
            before.push(sum);
        }
        Self {
            sequences,
            before,
            scale,
        }
    }

    fn weight(&self, first: usize, end: usize) -> [f64; 2] {
        let ([a, b], [c, d]) = (self.before[first], self.before[end]);
        [c - a, d - b]
    }

    fn worth(&self, first: usize, end: usize) -> f64 {
        let [selection, baseline] = self.weight(first, end);
        selection + baseline * self.scale
    }

    /// Returns the end of the stacks from `first` on that have the same function at `depth`: looks ahead in steps
    /// that double, then halves, so that a long run costs little more than a short one.
    fn run_end(&self, first: usize, end: usize, depth: usize) -> usize {
        let function = self.sequences[first][depth];
        let same = |at: usize| self.sequences[at][depth] == function;
        let (mut inside, mut step) = (first, 1);
        while inside + step < end && same(inside + step) {
            inside += step;
            step *= 2;
        }
        let (mut low, mut high) = (inside + 1, end.min(inside + step));
        while low < high {
            let middle = low + (high - low) / 2;
            if same(middle) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// Keeps the heaviest nodes, at most `max` (at least 2) with the "other" nodes for what is cut below them.
    ///
    /// From the root down, always the heaviest next: its parent is kept already, and what is never looked at costs
    /// nothing. Of two million nodes of 100,000 stacks, only those around the kept ones are ever formed.
    fn keep(&self, max: usize) -> Vec<Kept> {
        let all = self.sequences.len();
        let root = Candidate {
            first: 0,
            end: all,
            depth: 0,
            parent: 0,
            worth: self.worth(0, all),
        };
        let mut open = BinaryHeap::from([root]);
        let mut kept: Vec<Kept> = Vec::new();
        // Kept nodes with children that are not kept.
        let mut others = 0;
        while let Some(Candidate {
            first,
            end,
            depth,
            parent,
            ..
        }) = open.pop()
        {
            let mut at = first;
            while at < end && self.sequences[at].len() == depth {
                at += 1;
            }
            // Counted as it would be with this node. The count never falls, so the first that does not fit ends it.
            let completes_parent = kept.get(parent).is_some_and(|parent: &Kept| parent.cut == 1);
            let with_it = others - usize::from(completes_parent) + usize::from(at < end);
            if kept.len() + 1 + with_it > max.max(2) {
                break;
            }
            others = with_it;
            let id = kept.len();
            if let Some(parent) = kept.get_mut(parent) {
                parent.cut -= 1;
                parent.children.push(id);
            }
            let (own_end, mut cut) = (at, 0);
            while at < end {
                let child_end = self.run_end(at, end, depth);
                let worth = self.worth(at, child_end);
                open.push(Candidate {
                    first: at,
                    end: child_end,
                    depth: depth + 1,
                    parent: id,
                    worth,
                });
                at = child_end;
                cut += 1;
            }
            kept.push(Kept {
                first,
                end,
                depth,
                own_end,
                children: Vec::new(),
                cut,
            });
        }
        kept
    }

    /// Returns the tree cut to `max` nodes, depth first.
    fn cut(&self, max: usize) -> Vec<Laid> {
        let kept = self.keep(max);
        let mut nodes = Vec::with_capacity(kept.len() * 2);
        // A kept node, or what was cut below one.
        let mut open: Vec<(usize, bool)> = vec![(0, false)];
        while let Some((id, is_other)) = open.pop() {
            let node = &kept[id];
            let depth = node.depth as u32;
            if is_other {
                let children = node
                    .children
                    .iter()
                    .map(|&child| self.weight(kept[child].first, kept[child].end));
                let all = self.weight(node.own_end, node.end);
                let rest = children.fold(all, |rest, child| [rest[0] - child[0], rest[1] - child[1]]);
                // What rounding leaves of nothing may lie below it.
                let rest = rest.map(|weight| weight.max(0.0));
                nodes.push((NodeKind::Other, depth + 1, rest, rest));
                continue;
            }
            let kind = match node.depth {
                0 => NodeKind::Root,
                depth => NodeKind::Function(self.sequences[node.first][depth - 1]),
            };
            nodes.push((
                kind,
                depth,
                self.weight(node.first, node.end),
                self.weight(node.first, node.own_end),
            ));
            if node.cut > 0 {
                open.push((id, true));
            }
            // Children were kept in falling order: reversed, the heaviest is popped first.
            open.extend(node.children.iter().rev().map(|&child| (child, false)));
        }
        nodes
    }
}

/// Builds the tree of what was selected, cut to `max` nodes.
pub(crate) fn tree(
    store: &StackStore,
    selected: &Selected,
    range: Range,
    baseline: Option<Range>,
    max: usize,
) -> FlameTree {
    let unknown = [selected.unknown_function()];
    // Its function has one of the first numbers, so it sorts before all others.
    let unknown = (selected.unknown != [0.0; 2]).then_some((&unknown[..], selected.unknown));
    let known = store
        .in_order(selected)
        .map(|id| (store.sequence(id), selected.weights[id as usize]));
    let scale = baseline.map_or(0.0, |baseline| range.ns() / baseline.ns().max(1.0));
    let laid = Sorted::new(unknown.into_iter().chain(known), scale).cut(max.min(TREE_NODES_MAX));

    let mut functions = Vec::new();
    let mut local: Vec<Option<u32>> = vec![None; store.function_count()];
    let mut nodes = Vec::with_capacity(laid.len());
    for (kind, depth, total, own) in laid {
        let kind = match kind {
            NodeKind::Function(function) => {
                let add = || {
                    functions.push(store.function_name(function));
                    functions.len() as u32 - 1
                };
                NodeKind::Function(*local[function as usize].get_or_insert_with(add))
            }
            other => other,
        };
        let [total, baseline_total] = total;
        let [self_weight, baseline_self] = own;
        nodes.push(FlameNode {
            kind,
            depth,
            total,
            self_weight,
            baseline_total,
            baseline_self,
        });
    }
    FlameTree {
        nodes,
        functions,
        range,
        baseline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    type Stack = (Vec<u32>, u32, u32);

    /// Up to 60 stacks of few functions, so that they share much; weights are whole, so that sums are exact.
    fn stacks() -> impl Strategy<Value = Vec<Stack>> {
        prop::collection::vec(
            (prop::collection::vec(0u32..5, 1..9), 0u32..1_000, 0u32..1_000),
            1..60,
        )
    }

    fn cut(mut stacks: Vec<Stack>, max: usize, scale: f64) -> Vec<Laid> {
        stacks.sort_by(|a, b| a.0.cmp(&b.0));
        let stacks = stacks
            .iter()
            .map(|(sequence, a, b)| (&sequence[..], [f64::from(*a), f64::from(*b)]));
        Sorted::new(stacks, scale).cut(max)
    }

    fn sum(nodes: impl Iterator<Item = [f64; 2]>) -> [f64; 2] {
        nodes.fold([0.0; 2], |sum, node| [sum[0] + node[0], sum[1] + node[1]])
    }

    proptest! {
        /// Checks that no weight is lost by a cut, that "other" nodes are counted, and that each node is its own
        /// weight plus its children's.
        #[test]
        fn a_cut_tree_keeps_the_total(stacks in stacks(), max in 2usize..40) {
            let expected = sum(stacks.iter().map(|(_, a, b)| [f64::from(*a), f64::from(*b)]));
            let nodes = cut(stacks, max, 1.0);
            prop_assert!(nodes.len() <= max, "{} nodes of {max}", nodes.len());
            prop_assert_eq!(nodes[0].2, expected);
            prop_assert_eq!(sum(nodes.iter().map(|node| node.3)), expected, "the sum of self is the total");
            for (at, node) in nodes.iter().enumerate() {
                let below = nodes[at + 1..].iter().take_while(|child| child.1 > node.1);
                let children = sum(below.filter(|child| child.1 == node.1 + 1).map(|child| child.2));
                prop_assert_eq!(sum([children, node.3].into_iter()), node.2);
            }
        }

        /// Checks that no node that was cut is heavier than one that was kept.
        #[test]
        fn the_heaviest_are_kept(stacks in stacks(), max in 2usize..40) {
            let whole = cut(stacks.clone(), 10_000, 0.0);
            let mut totals: Vec<f64> = whole.iter().map(|node| node.2[0]).collect();
            totals.sort_by(|a, b| b.total_cmp(a));
            let nodes = cut(stacks, max, 0.0);
            let mut kept: Vec<f64> = nodes.iter().filter(|node| node.0 != NodeKind::Other).map(|node| node.2[0]).collect();
            kept.sort_by(|a, b| b.total_cmp(a));
            prop_assert_eq!(&totals[..kept.len()], &kept[..]);
            prop_assert!(nodes.len() == whole.len() || nodes.len() + 2 >= max, "room is used: {} of {max}", nodes.len());
        }

        /// Checks that the order in which stacks arrive changes nothing.
        #[test]
        fn the_order_of_rows_does_not_matter(stacks in stacks(), max in 2usize..40) {
            let mut backwards = stacks.clone();
            backwards.reverse();
            prop_assert_eq!(cut(stacks, max, 1.0), cut(backwards, max, 1.0));
        }

        /// Checks that a tree with room is not cut: it has a node per distinct prefix, and siblings fall.
        #[test]
        fn nothing_is_cut_without_need(stacks in stacks()) {
            let prefixes = |stack: &Stack| (0..=stack.0.len()).map(|depth| stack.0[..depth].to_vec()).collect::<Vec<_>>();
            let prefixes: BTreeSet<Vec<u32>> = stacks.iter().flat_map(prefixes).collect();
            let nodes = cut(stacks, 10_000, 0.0);
            prop_assert_eq!(nodes.len(), prefixes.len());
            prop_assert!(nodes.iter().all(|node| node.0 != NodeKind::Other));
            for (at, node) in nodes.iter().enumerate() {
                let next = nodes[at + 1..].iter().take_while(|n| n.1 >= node.1).find(|n| n.1 == node.1);
                prop_assert!(next.is_none_or(|next| next.2[0] <= node.2[0]));
            }
        }
    }

    /// Checks that what is cut is the lightest, and that it shows as "other".
    #[test]
    fn the_lightest_are_cut_and_show_as_other() {
        let stacks = vec![
            (vec![1, 2], 100, 0),
            (vec![1, 3], 5, 0),
            (vec![1, 4], 3, 0),
            (vec![5], 1, 0),
        ];
        let nodes = cut(stacks, 5, 0.0);
        let shape: Vec<_> = nodes.iter().map(|node| (node.0, node.1, node.2[0])).collect();
        let function = NodeKind::Function;
        assert_eq!(
            shape,
            [
                (NodeKind::Root, 0, 109.0),
                (function(1), 1, 108.0),
                (function(2), 2, 100.0),
                (NodeKind::Other, 2, 8.0),
                (NodeKind::Other, 1, 1.0),
            ]
        );
    }

    /// Checks that an empty selection is a root alone.
    #[test]
    fn nothing_is_a_root_alone() {
        assert_eq!(
            cut(Vec::new(), 100, 0.0),
            [(NodeKind::Root, 0, [0.0; 2], [0.0; 2])]
        );
    }
}
