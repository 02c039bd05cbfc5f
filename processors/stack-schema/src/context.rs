//! The context of a sample: what its stack does not say. Only the values that schemas name decide.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::field::Seen;
use crate::model::Subject;
use crate::program::{Program, StackNode};

/// A sample's context as the matcher takes it. Empty texts are values that are not known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    /// The service.
    pub service: &'a str,
    /// The profiler.
    pub profiler: &'a str,
    /// The region.
    pub region: &'a str,
    /// The host.
    pub host: &'a str,
    /// Labels: name and value.
    pub labels: &'a [(&'a str, &'a str)],
    /// Annotations: name and value.
    pub annotations: &'a [(&'a str, &'a str)],
}

impl<'a> Context<'a> {
    /// Returns a value of it, if it has that.
    pub fn value(&self, subject: &Subject) -> Option<&'a str> {
        let named = |list: &'a [(&'a str, &'a str)], wanted: &str| {
            let found = list.iter().find(|(name, _)| *name == wanted);
            found.map_or("", |(_, value)| value)
        };
        let value = match subject {
            Subject::Service => self.service,
            Subject::Profiler => self.profiler,
            Subject::Region => self.region,
            Subject::Host => self.host,
            Subject::Label(name) => named(self.labels, name),
            Subject::Annotation(name) => named(self.annotations, name),
        };
        (!value.is_empty()).then_some(value)
    }
}

/// A distinct context.
#[derive(Debug)]
pub(crate) struct Known {
    /// Value of each of the program's subjects.
    pub values: Vec<Option<Arc<str>>>,
    /// Tests and gates that hold, a bit each.
    tests: Vec<u64>,
    /// Rules that match by the context alone, in order.
    pub rules: Vec<u32>,
    /// A number that is the same for contexts of the same service.
    pub service: u32,
}

impl Known {
    /// Returns whether a test or gate holds.
    pub(crate) fn holds(&self, test: u32) -> bool {
        self.tests
            .get(test as usize / 64)
            .is_some_and(|word| word >> (test % 64) & 1 == 1)
    }

    /// Returns a value.
    pub(crate) fn value(&self, program: &Program, subject: &Subject) -> Option<&str> {
        let at = program.subjects.iter().position(|known| known == subject)?;
        self.values.get(at)?.as_deref()
    }

    fn set(&mut self, test: u32) {
        self.tests[test as usize / 64] |= 1 << (test % 64);
    }

    fn new(program: &Program, values: Vec<Option<Arc<str>>>, seen: &mut Seen) -> Self {
        let tests = program.context_patterns as usize + program.gates.len();
        let mut made = Self {
            values,
            tests: vec![0; tests.div_ceil(64)],
            rules: Vec::new(),
            service: 0,
        };
        let mut found = Vec::new();
        for (value, matcher) in made.values.iter().zip(&program.context) {
            if let Some(value) = value {
                matcher.find(value, seen, &mut found);
            }
        }
        found.into_iter().for_each(|test| made.set(test));
        for &schema in &program.gate_order {
            if made.answer(&program.gates[schema as usize]) {
                made.set(program.context_patterns + schema);
            }
        }
        let rules = program.rules_of_context.iter().copied();
        made.rules = rules
            .filter(|&rule| made.answer(&program.rules[rule as usize].when))
            .collect();
        made
    }

    /// Returns the answer to a condition that asks the context alone.
    fn answer(&self, node: &StackNode) -> bool {
        match node {
            StackNode::True => true,
            StackNode::Context(test) => self.holds(*test),
            StackNode::And(list) => list.iter().all(|one| self.answer(one)),
            StackNode::Or(list) => list.iter().any(|one| self.answer(one)),
            StackNode::Not(inner) => !self.answer(inner),
            _ => false,
        }
    }
}

/// The distinct contexts.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    index: FxHashMap<Box<str>, u32>,
    list: Vec<Known>,
    services: FxHashMap<Box<str>, u32>,
    seen: Seen,
    key: String,
    pub bytes: usize,
}

impl Contexts {
    pub(crate) fn get(&self, id: u32) -> Option<&Known> {
        self.list.get(id as usize)
    }

    /// Returns the number of the context: the same for all that agree in what decides.
    pub(crate) fn intern(&mut self, program: &Program, context: &Context<'_>) -> u32 {
        self.key.clear();
        for subject in &program.subjects {
            if let Some(value) = context.value(subject) {
                self.key.push_str(value);
                self.key.push('\u{1}');
            }
            self.key.push('\u{0}');
        }
        if let Some(&known) = self.index.get(&*self.key) {
            return known;
        }
        let values = program
            .subjects
            .iter()
            .map(|subject| context.value(subject).map(Arc::from));
        let mut made = Known::new(program, values.collect(), &mut self.seen);
        let service: Box<str> = context.service.into();
        let next = self.services.len() as u32;
        made.service = *self.services.entry(service).or_insert(next);
        let id = self.list.len() as u32;
        self.bytes += 2 * self.key.len() + 8 * made.tests.len() + 4 * made.rules.len() + 160;
        self.index.insert(self.key.as_str().into(), id);
        self.list.push(made);
        id
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
