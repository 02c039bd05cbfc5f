//! Conditions become nodes: equal ones are one, constants are folded, and what one location alone decides is told from
//! what needs the stack.

use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{Field, Flag, FrameCond, NumberField, StackCond, Subject};
use crate::name::Language;
use crate::pattern::{Kind, Pattern};
use crate::program::{Node, NodeIx, StackNode};

/// A test of a location.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Atom {
    Text(Field, Arc<Pattern>),
    Line(u32, u32),
    Flag(Flag),
    Language(Language),
}

/// Tests or terms of which one must hold where a condition does, and what they cost.
pub(crate) type Triggers = (u64, Rc<[u32]>);

/// Conjunctions up to this length are looked at pair by pair for what contradicts: longer ones are not written by people.
const PAIRS_MAX: usize = 16;

/// Nodes as they are made.
#[derive(Debug)]
pub(crate) struct Builder {
    pub nodes: Vec<Node>,
    pub atoms: Vec<Atom>,
    /// Terms that there are: pairs of (pure condition, node of its term).
    pub terms: Vec<(NodeIx, NodeIx)>,
    pub subjects: Vec<Subject>,
    /// Tests of the context: index of the subject, and the pattern.
    pub context: Vec<(u32, Arc<Pattern>)>,
    pure: Vec<bool>,
    /// For pure nodes: whether they hold where no test does.
    default: Vec<bool>,
    triggers: FxHashMap<NodeIx, Option<Triggers>>,
    index: FxHashMap<Node, NodeIx>,
    atom_index: FxHashMap<Atom, u32>,
    context_index: FxHashMap<(u32, Arc<Pattern>), u32>,
    /// Definitions that were seen, by where they lie; whoever compiles keeps them alive.
    named: FxHashMap<*const FrameCond, NodeIx>,
    staged: FxHashMap<NodeIx, NodeIx>,
}

impl Builder {
    /// Nodes that are always there.
    pub(crate) const FALSE: NodeIx = 0;
    pub(crate) const TRUE: NodeIx = 1;

    pub(crate) fn new() -> Self {
        let mut made = Self {
            nodes: Vec::new(),
            atoms: Vec::new(),
            terms: Vec::new(),
            subjects: Vec::new(),
            context: Vec::new(),
            pure: Vec::new(),
            default: Vec::new(),
            triggers: FxHashMap::default(),
            index: FxHashMap::default(),
            atom_index: FxHashMap::default(),
            context_index: FxHashMap::default(),
            named: FxHashMap::default(),
            staged: FxHashMap::default(),
        };
        made.node(Node::False);
        made.node(Node::True);
        made
    }

    fn node(&mut self, node: Node) -> NodeIx {
        if let Some(&known) = self.index.get(&node) {
            return known;
        }
        let at = self.nodes.len() as NodeIx;
        let pure = match &node {
            Node::False | Node::True | Node::Atom(_) => true,
            Node::Not(inner) => self.pure[*inner as usize],
            Node::And(list) | Node::Or(list) => list.iter().all(|&child| self.pure[child as usize]),
            _ => false,
        };
        // Here and below, what is known of a node is kept: definitions that name another twice share nodes, and walking
        // all ways to each would take time exponential in their number.
        let default = match &node {
            Node::True => true,
            Node::And(list) => list.iter().all(|&child| self.default[child as usize]),
            Node::Or(list) => list.iter().any(|&child| self.default[child as usize]),
            Node::Not(inner) => !self.default[*inner as usize],
            _ => false,
        };
        self.default.push(default);
        self.pure.push(pure);
        self.index.insert(node.clone(), at);
        self.nodes.push(node);
        at
    }

    fn atom(&mut self, atom: Atom) -> NodeIx {
        let next = self.atoms.len() as u32;
        let number = *self.atom_index.entry(atom.clone()).or_insert(next);
        if number == next {
            self.atoms.push(atom);
        }
        self.node(Node::Atom(number))
    }

    /// Returns the node of a condition on frames.
    pub(crate) fn frame(&mut self, condition: &FrameCond) -> NodeIx {
        match condition {
            FrameCond::Anything => Self::TRUE,
            FrameCond::Text(field, pattern) => self.atom(Atom::Text(*field, Arc::clone(pattern))),
            FrameCond::Number(_, least, most) if least > most => Self::FALSE,
            FrameCond::Number(NumberField::Line, 0, u32::MAX) => Self::TRUE,
            FrameCond::Number(NumberField::Line, least, most) => self.atom(Atom::Line(*least, *most)),
            FrameCond::Number(NumberField::Depth, _, 0) => Self::FALSE,
            FrameCond::Number(NumberField::Depth, 0 | 1, u32::MAX) => Self::TRUE,
            FrameCond::Number(NumberField::Depth, least, most) => self.node(Node::Depth(*least, *most)),
            FrameCond::Flag(Flag::Leaf) => self.node(Node::Leaf),
            FrameCond::Flag(Flag::Root) => self.node(Node::Root),
            FrameCond::Flag(flag) => self.atom(Atom::Flag(*flag)),
            FrameCond::Language(language) => self.atom(Atom::Language(*language)),
            FrameCond::Near(relation, other) => {
                let other = self.frame(other);
                if other == Self::FALSE {
                    return Self::FALSE;
                }
                self.node(Node::Near(*relation, other))
            }
            FrameCond::And(list) => {
                let children = list.iter().map(|one| self.frame(one)).collect();
                self.and(children)
            }
            FrameCond::Or(list) => {
                let children = list.iter().map(|one| self.frame(one)).collect();
                self.or(children)
            }
            FrameCond::Not(inner) => {
                let inner = self.frame(inner);
                self.not(inner)
            }
            FrameCond::Named(inner) => {
                let place = Arc::as_ptr(inner);
                if let Some(&known) = self.named.get(&place) {
                    return known;
                }
                let made = self.frame(inner);
                self.named.insert(place, made);
                made
            }
        }
    }

    fn not(&mut self, inner: NodeIx) -> NodeIx {
        match self.nodes[inner as usize] {
            Node::False => Self::TRUE,
            Node::True => Self::FALSE,
            Node::Not(inner) => inner,
            _ => self.node(Node::Not(inner)),
        }
    }

    fn and(&mut self, children: Vec<NodeIx>) -> NodeIx {
        let mut flat = Vec::with_capacity(children.len());
        for child in children {
            match &self.nodes[child as usize] {
                Node::True => {}
                Node::False => return Self::FALSE,
                Node::And(inner) => flat.extend(inner.iter().copied()),
                _ => flat.push(child),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        if flat.len() <= PAIRS_MAX {
            let contradict =
                |(at, &a): (usize, &NodeIx)| flat[at + 1..].iter().any(|&b| self.contradict(a, b));
            if flat.iter().enumerate().any(contradict) {
                return Self::FALSE;
            }
        }
        match flat.as_slice() {
            [] => Self::TRUE,
            [one] => *one,
            _ => self.node(Node::And(flat.into())),
        }
    }

    fn or(&mut self, children: Vec<NodeIx>) -> NodeIx {
        let mut flat = Vec::with_capacity(children.len());
        for child in children {
            match &self.nodes[child as usize] {
                Node::False => {}
                Node::True => return Self::TRUE,
                Node::Or(inner) => flat.extend(inner.iter().copied()),
                _ => flat.push(child),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        match flat.as_slice() {
            [] => Self::FALSE,
            [one] => *one,
            _ => self.node(Node::Or(flat.into())),
        }
    }

    /// Returns whether no frame can be in both, as far as that shows.
    fn contradict(&self, a: NodeIx, b: NodeIx) -> bool {
        match (&self.nodes[a as usize], &self.nodes[b as usize]) {
            (Node::Not(inner), _) => *inner == b,
            (_, Node::Not(inner)) => *inner == a,
            (Node::Depth(least, most), Node::Depth(other_least, other_most)) => {
                most < other_least || other_most < least
            }
            (Node::Atom(a), Node::Atom(b)) => contradict(&self.atoms[*a as usize], &self.atoms[*b as usize]),
            _ => false,
        }
    }

    /// Returns whether every frame in `a` is in `b`, as far as that shows within `steps` steps.
    pub(crate) fn implies(&self, a: NodeIx, b: NodeIx, steps: &mut u32) -> bool {
        let (a, b) = (self.meant(a), self.meant(b));
        if a == b {
            return true;
        }
        let Some(left) = steps.checked_sub(1) else {
            return false;
        };
        *steps = left;
        match (&self.nodes[a as usize], &self.nodes[b as usize]) {
            (Node::False, _) | (_, Node::True) => true,
            (_, Node::And(list)) => list.iter().all(|&one| self.implies(a, one, steps)),
            (Node::Or(list), _) => list.iter().all(|&one| self.implies(one, b, steps)),
            (Node::And(list), _) => {
                list.iter().any(|&one| self.implies(one, b, steps)) || self.in_one_of(a, b, steps)
            }
            (_, Node::Or(_)) => self.in_one_of(a, b, steps),
            (Node::Not(a), Node::Not(b)) => self.implies(*b, *a, steps),
            (Node::Near(relation, a), Node::Near(other, b)) => {
                relation == other && self.implies(*a, *b, steps)
            }
            (Node::Atom(a), Node::Atom(b)) => implies(&self.atoms[*a as usize], &self.atoms[*b as usize]),
            _ => false,
        }
    }

    fn in_one_of(&self, a: NodeIx, b: NodeIx, steps: &mut u32) -> bool {
        match &self.nodes[b as usize] {
            Node::Or(list) => list.iter().any(|&one| self.implies(a, one, steps)),
            _ => false,
        }
    }

    /// Returns the condition behind a term, which is the same set of frames.
    fn meant(&self, at: NodeIx) -> NodeIx {
        match self.nodes[at as usize] {
            Node::Term(pure) => self.meant(pure),
            Node::Not(inner) => match self.nodes[self.meant(inner) as usize] {
                Node::Not(inner) => self.meant(inner),
                _ => at,
            },
            _ => at,
        }
    }

    /// Returns the node whose pure parts are terms: what is asked of a stack.
    pub(crate) fn stage(&mut self, at: NodeIx) -> NodeIx {
        if let Some(&known) = self.staged.get(&at) {
            return known;
        }
        let made = if self.pure[at as usize] {
            self.term(at)
        } else {
            match self.nodes[at as usize].clone() {
                Node::Near(relation, other) => {
                    let other = self.stage(other);
                    self.node(Node::Near(relation, other))
                }
                Node::Not(inner) => {
                    let inner = self.stage(inner);
                    self.not(inner)
                }
                Node::And(list) => {
                    // The pure parts are one term.
                    let (pure, mixed): (Vec<_>, Vec<_>) =
                        list.iter().partition(|&&child| self.pure[child as usize]);
                    let pure = self.and(pure);
                    let mut children = vec![self.term(pure)];
                    children.extend(mixed.into_iter().map(|child| self.stage(child)));
                    self.and(children)
                }
                Node::Or(list) => {
                    let (pure, mixed): (Vec<_>, Vec<_>) =
                        list.iter().partition(|&&child| self.pure[child as usize]);
                    let pure = self.or(pure);
                    let mut children = vec![self.term(pure)];
                    children.extend(mixed.into_iter().map(|child| self.stage(child)));
                    self.or(children)
                }
                _ => at,
            }
        };
        self.staged.insert(at, made);
        made
    }

    /// Returns a term for a pure condition. One that holds where no test does is the complement of a term, so that a
    /// location names only the few terms that hold for it.
    fn term(&mut self, at: NodeIx) -> NodeIx {
        if matches!(self.nodes[at as usize], Node::False | Node::True) {
            return at;
        }
        if self.default[at as usize] {
            let inverse = self.not(at);
            let term = self.term(inverse);
            return self.not(term);
        }
        let count = self.nodes.len();
        let term = self.node(Node::Term(at));
        if self.nodes.len() > count {
            self.terms.push((at, term));
        }
        term
    }

    /// Returns tests of which one must hold where a pure condition does, and what they cost: how many locations they hold
    /// for, as far as that can be guessed.
    pub(crate) fn triggers(&mut self, at: NodeIx) -> Option<Triggers> {
        if let Some(known) = self.triggers.get(&at) {
            return known.clone();
        }
        let made = match self.nodes[at as usize].clone() {
            Node::Atom(atom) => Some((self.cost(atom), Rc::from([atom]))),
            Node::And(list) => {
                let parts = list.iter().filter_map(|&child| self.triggers(child));
                parts.min_by_key(|(cost, _)| *cost)
            }
            Node::Or(list) => joined(list.iter().map(|&child| self.triggers(child))),
            // Whatever is behind a `not`: one of its tests must hold where the whole holds, since it does not by default.
            _ => None,
        };
        self.triggers.insert(at, made.clone());
        made
    }

    /// Returns every test that a pure condition names.
    pub(crate) fn tests(&self, at: NodeIx) -> Vec<u32> {
        let (mut found, mut seen, mut next) = (Vec::new(), FxHashSet::default(), vec![at]);
        while let Some(at) = next.pop() {
            if !seen.insert(at) {
                continue;
            }
            match &self.nodes[at as usize] {
                Node::Atom(atom) => found.push(*atom),
                Node::Not(inner) => next.push(*inner),
                Node::And(list) | Node::Or(list) => next.extend(list.iter().copied()),
                _ => {}
            }
        }
        found
    }

    fn cost(&self, atom: u32) -> u64 {
        match &self.atoms[atom as usize] {
            Atom::Text(_, pattern) if pattern.kind() == Kind::Is => 1,
            Atom::Text(Field::Module, _) => 500,
            Atom::Text(..) => 10,
            Atom::Line(..) => 50,
            Atom::Flag(_) | Atom::Language(_) => 10_000,
        }
    }

    /// Returns the number of a test of the context.
    pub(crate) fn context_test(&mut self, subject: &Subject, pattern: &Arc<Pattern>) -> u32 {
        let subject = self.subject(subject);
        let next = self.context.len() as u32;
        let number = *self
            .context_index
            .entry((subject, Arc::clone(pattern)))
            .or_insert(next);
        if number == next {
            self.context.push((subject, Arc::clone(pattern)));
        }
        number
    }

    /// Returns the index of a value of the context, which from now on decides.
    pub(crate) fn subject(&mut self, subject: &Subject) -> u32 {
        let known = self.subjects.iter().position(|known| known == subject);
        let at = known.unwrap_or_else(|| {
            self.subjects.push(subject.clone());
            self.subjects.len() - 1
        });
        at as u32
    }

    /// Returns the node of a condition on a stack, in terms.
    pub(crate) fn stack(&mut self, condition: &StackCond) -> StackNode {
        match condition {
            StackCond::Any(frame) => match self.staged_frame(frame) {
                Self::FALSE => StackNode::False,
                node => StackNode::Any(node),
            },
            StackCond::All(frame) => match self.staged_frame(frame) {
                Self::FALSE => StackNode::False,
                node => StackNode::All(node),
            },
            StackCond::Leaf(frame) => match self.staged_frame(frame) {
                Self::FALSE => StackNode::False,
                node => StackNode::LeafIn(node),
            },
            StackCond::Root(frame) => match self.staged_frame(frame) {
                Self::FALSE => StackNode::False,
                node => StackNode::RootIn(node),
            },
            StackCond::Depth(least, most) if least > most => StackNode::False,
            StackCond::Depth(least, most) => StackNode::Depth(*least, *most),
            StackCond::Context(subject, pattern) => StackNode::Context(self.context_test(subject, pattern)),
            StackCond::And(list) => all(list.iter().map(|one| self.stack(one)).collect()),
            StackCond::Or(list) => one_of(list.iter().map(|one| self.stack(one)).collect()),
            StackCond::Not(inner) => match self.stack(inner) {
                StackNode::True => StackNode::False,
                StackNode::False => StackNode::True,
                node => StackNode::Not(Box::new(node)),
            },
        }
    }

    fn staged_frame(&mut self, frame: &FrameCond) -> NodeIx {
        let node = self.frame(frame);
        self.stage(node)
    }
}

/// Returns what one of several needs: what each of them does, all together; nothing if one of them needs nothing.
pub(crate) fn joined(parts: impl Iterator<Item = Option<Triggers>>) -> Option<Triggers> {
    let mut cost = 0_u64;
    let mut all: Vec<u32> = Vec::new();
    for part in parts {
        let (more, list) = part?;
        cost = cost.saturating_add(more);
        all.extend_from_slice(&list);
    }
    all.sort_unstable();
    all.dedup();
    Some((cost, all.into()))
}

/// Returns the conjunction, constants folded.
pub(crate) fn all(mut list: Vec<StackNode>) -> StackNode {
    if list.contains(&StackNode::False) {
        return StackNode::False;
    }
    list.retain(|node| *node != StackNode::True);
    match list.len() {
        0 => StackNode::True,
        1 => list.remove(0),
        _ => StackNode::And(list),
    }
}

/// Returns the disjunction, constants folded.
pub(crate) fn one_of(mut list: Vec<StackNode>) -> StackNode {
    if list.contains(&StackNode::True) {
        return StackNode::True;
    }
    list.retain(|node| *node != StackNode::False);
    match list.len() {
        0 => StackNode::False,
        1 => list.remove(0),
        _ => StackNode::Or(list),
    }
}

fn contradict(a: &Atom, b: &Atom) -> bool {
    match (a, b) {
        (Atom::Text(field, a), Atom::Text(other, b)) if field == other => match (a.kind(), b.kind()) {
            (Kind::Is, _) => !b.holds(a.text()),
            (_, Kind::Is) => !a.holds(b.text()),
            (Kind::Starts, Kind::Starts) => {
                !a.text().starts_with(b.text()) && !b.text().starts_with(a.text())
            }
            _ => false,
        },
        (Atom::Line(least, most), Atom::Line(other_least, other_most)) => {
            most < other_least || other_most < least
        }
        (Atom::Flag(a), Atom::Flag(b)) => {
            matches!((a, b), (Flag::Kernel, Flag::User) | (Flag::User, Flag::Kernel))
        }
        (Atom::Language(a), Atom::Language(b)) => a != b,
        _ => false,
    }
}

fn implies(a: &Atom, b: &Atom) -> bool {
    match (a, b) {
        (Atom::Text(field, a), Atom::Text(other, b)) if field == other => match (a.kind(), b.kind()) {
            (Kind::Is, _) => b.holds(a.text()),
            (Kind::Starts, Kind::Starts) => a.text().starts_with(b.text()),
            (Kind::Starts, Kind::Like) => {
                let prefix = b.text().strip_suffix('*');
                prefix.is_some_and(|prefix| !prefix.contains('*') && a.text().starts_with(prefix))
            }
            (Kind::Like, Kind::Starts) => a
                .glob()
                .is_some_and(|glob| glob.prefix().starts_with(b.text().as_bytes())),
            // What the wider glob's own stars stand for may hold the narrower one's stars: a star is text like any other.
            (Kind::Like, Kind::Like) => b.holds(a.text()),
            _ => false,
        },
        (Atom::Line(least, most), Atom::Line(other_least, other_most)) => {
            other_least <= least && most <= other_most
        }
        _ => false,
    }
}
