//! A stack against all rules, with the context unknown: which match, on which frames, and what is still to be asked.
//!
//! Each location names the few terms that hold for it; a term is a set of frames; conditions are set operations. Only
//! rules of which some necessary term occurs are looked at.

use crate::bits::Bits;
use crate::context::Known;
use crate::intern::Interner;
use crate::model::Relation;
use crate::program::{Node, NodeIx, Program, StackNode};

/// What is still to be asked of the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Residue {
    /// Nothing, but the tag is made of the context.
    Nothing,
    Test(u32),
    All(Vec<Residue>),
    OneOf(Vec<Residue>),
    Not(Box<Residue>),
}

impl Residue {
    /// Returns the answer.
    pub(crate) fn answer(&self, context: &Known) -> bool {
        match self {
            Self::Nothing => true,
            Self::Test(test) => context.holds(*test),
            Self::All(list) => list.iter().all(|one| one.answer(context)),
            Self::OneOf(list) => list.iter().any(|one| one.answer(context)),
            Self::Not(inner) => !inner.answer(context),
        }
    }
}

/// The answer to a condition as far as the stack gives it.
enum Answer {
    Yes,
    No,
    Ask(Residue),
}

/// A rule that matches, and its frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Match<const W: usize> {
    pub rule: u32,
    pub site: Bits<W>,
}

/// A rule that is not flat and matches, or would in some contexts.
#[derive(Debug, Clone)]
pub(crate) struct Hit<const W: usize> {
    pub rule: u32,
    pub site: Bits<W>,
    pub residue: Option<Residue>,
}

impl<const W: usize> Hit<W> {
    /// Returns it as a match, whatever is still to be asked.
    pub(crate) fn matched(&self) -> Match<W> {
        Match {
            rule: self.rule,
            site: self.site,
        }
    }
}

/// Room to work in, kept from stack to stack. What an earlier stack left is told by its stamp.
#[derive(Debug)]
pub(crate) struct Evaluator<const W: usize> {
    sets: Vec<Bits<W>>,
    stamps: Vec<u32>,
    now: u32,
    touched: Vec<NodeIx>,
    /// Rules that may match, a bit each: they are looked at in order without being sorted.
    candidates: Vec<u64>,
    pub hits: Vec<Hit<W>>,
}

impl<const W: usize> Evaluator<W> {
    pub(crate) fn new(program: &Program) -> Self {
        Self {
            sets: vec![Bits::NONE; program.nodes.len()],
            stamps: vec![0; program.nodes.len()],
            now: 0,
            touched: Vec::new(),
            candidates: vec![0; program.rules.len().div_ceil(64)],
            hits: Vec::new(),
        }
    }

    /// Leaves in `hits`, in order, the rules that are not flat and match a stack of these locations.
    pub(crate) fn run(&mut self, program: &Program, interner: &Interner, locations: &[u32]) {
        self.now = self.now.wrapping_add(1);
        if self.now == 0 {
            self.stamps.fill(0);
            self.now = 1;
        }
        self.touched.clear();
        self.candidates.fill(0);
        self.hits.clear();
        let count = locations.len().min(64 * W);
        for (at, &location) in locations[..count].iter().enumerate() {
            // Most locations have none.
            let Some(terms) = interner.terms(location) else {
                continue;
            };
            for &term in terms {
                let place = term as usize;
                if self.stamps[place] != self.now {
                    self.stamps[place] = self.now;
                    self.sets[place] = Bits::NONE;
                    self.touched.push(term);
                }
                self.sets[place].insert(at);
            }
        }
        for &rule in &program.rules_always {
            self.candidates[rule as usize / 64] |= 1 << (rule % 64);
        }
        for term in &self.touched {
            let (start, end) = program.rules_of_term[*term as usize];
            for &rule in &program.rules_by_term[start as usize..end as usize] {
                self.candidates[rule as usize / 64] |= 1 << (rule % 64);
            }
        }
        for word in 0..self.candidates.len() {
            let mut rules = self.candidates[word];
            while rules != 0 {
                // Rules are numbered with 32 bits.
                self.rule(program, word as u32 * 64 + rules.trailing_zeros(), count);
                rules &= rules - 1;
            }
        }
    }

    fn rule(&mut self, program: &Program, number: u32, count: usize) {
        let rule = &program.rules[number as usize];
        let site = match rule.on {
            Some(on) => {
                let site = self.set(program, on, count);
                if site.is_empty() {
                    return;
                }
                site
            }
            None => Bits::NONE,
        };
        let residue = match self.answer(program, &rule.when, count) {
            Answer::No => return,
            Answer::Yes => rule.needs_context.then_some(Residue::Nothing),
            Answer::Ask(residue) => Some(residue),
        };
        self.hits.push(Hit {
            rule: number,
            site,
            residue,
        });
    }

    fn set(&mut self, program: &Program, at: NodeIx, count: usize) -> Bits<W> {
        let place = at as usize;
        if self.stamps[place] == self.now {
            return self.sets[place];
        }
        let all = Bits::first(count);
        let made = match &program.nodes[place] {
            // A term that occurs has its stamp already; tests are never asked of a stack.
            Node::False | Node::Term(_) | Node::Atom(_) => Bits::NONE,
            Node::True => all,
            Node::Leaf => all.minus(&Bits::first(count.saturating_sub(1))),
            Node::Root => all.and(&Bits::first(1)),
            Node::Depth(least, most) => {
                let (from, to) = (least.saturating_sub(1), most.saturating_sub(1));
                all.and(&Bits::between(from as usize, to as usize))
            }
            Node::Near(relation, other) => {
                let other = self.set(program, *other, count);
                match relation {
                    Relation::CalledBy => other.callees().and(&all),
                    Relation::Calling => other.callers(),
                    Relation::Under => other.below(count),
                    Relation::Over => other.above(),
                }
            }
            Node::And(list) => {
                let mut made = all;
                for &child in list {
                    made = made.and(&self.set(program, child, count));
                    if made.is_empty() {
                        break;
                    }
                }
                made
            }
            Node::Or(list) => {
                let mut made = Bits::NONE;
                for &child in list {
                    made = made.or(&self.set(program, child, count));
                }
                made
            }
            Node::Not(inner) => all.minus(&self.set(program, *inner, count)),
        };
        self.stamps[place] = self.now;
        self.sets[place] = made;
        made
    }

    fn answer(&mut self, program: &Program, node: &StackNode, count: usize) -> Answer {
        let yes = |is: bool| if is { Answer::Yes } else { Answer::No };
        match node {
            StackNode::True => Answer::Yes,
            StackNode::False => Answer::No,
            StackNode::Any(frames) => yes(!self.set(program, *frames, count).is_empty()),
            StackNode::All(frames) => {
                yes(count > 0 && self.set(program, *frames, count) == Bits::first(count))
            }
            StackNode::LeafIn(frames) => {
                yes(count > 0 && self.set(program, *frames, count).contains(count - 1))
            }
            StackNode::RootIn(frames) => yes(count > 0 && self.set(program, *frames, count).contains(0)),
            StackNode::Depth(least, most) => yes((*least as usize..=*most as usize).contains(&count)),
            StackNode::Context(test) => Answer::Ask(Residue::Test(*test)),
            StackNode::And(list) => {
                let mut asked = Vec::new();
                for one in list {
                    match self.answer(program, one, count) {
                        Answer::Yes => {}
                        Answer::No => return Answer::No,
                        Answer::Ask(residue) => asked.push(residue),
                    }
                }
                joined(asked, Answer::Yes, Residue::All)
            }
            StackNode::Or(list) => {
                let mut asked = Vec::new();
                for one in list {
                    match self.answer(program, one, count) {
                        Answer::Yes => return Answer::Yes,
                        Answer::No => {}
                        Answer::Ask(residue) => asked.push(residue),
                    }
                }
                joined(asked, Answer::No, Residue::OneOf)
            }
            StackNode::Not(inner) => match self.answer(program, inner, count) {
                Answer::Yes => Answer::No,
                Answer::No => Answer::Yes,
                Answer::Ask(residue) => Answer::Ask(Residue::Not(Box::new(residue))),
            },
        }
    }
}

fn joined(mut asked: Vec<Residue>, none: Answer, many: impl FnOnce(Vec<Residue>) -> Residue) -> Answer {
    match asked.len() {
        0 => none,
        1 => asked.pop().map_or(none, Answer::Ask),
        _ => Answer::Ask(many(asked)),
    }
}
