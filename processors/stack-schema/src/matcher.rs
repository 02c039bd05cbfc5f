//! The matcher: what is decided of a location, a stack and a context is decided once and remembered.

use std::hash::Hasher;
use std::sync::Arc;

use hashbrown::HashTable;
use rustc_hash::{FxHashMap, FxHasher};

use crate::bits::Bits;
use crate::context::{Context, Contexts, Known};
use crate::decide::{self, Decider};
use crate::evaluate::{Evaluator, Hit, Match};
use crate::intern::Interner;
use crate::location::Location;
use crate::outcome::{Lists, Made, Outcome};
use crate::program::Program;
use crate::values::Values;

/// Most locations of a stack that conditions see, from the root on: 254 frames with 16 functions each. What lies beyond is
/// as if it were not there.
pub const LOCATIONS_MAX: usize = 64 * WORDS_WIDE;

/// Words of the sets for stacks of up to 64 and up to 256 locations, and for all others.
const WORDS_MIDDLE: usize = 4;
const WORDS_WIDE: usize = 64;

/// Memory that a matcher may take for what it remembers, unless said otherwise: a million stacks of 30 locations take
/// 200 MiB.
pub const MEMORY_BYTES: usize = 256 << 20;

/// Most that a matcher may take, whatever is asked for: its numbers have 32 bits, and the largest batch fits the rest.
pub const MEMORY_BYTES_MAX: usize = 8 << 30;

/// Bytes of a stack beside its locations: its entry and its place in the index.
const STACK_BYTES: usize = size_of::<Stack>() + 10;
/// Bytes of an answer for a stack in a context.
const RESOLVED_BYTES: usize = 24;

/// The outcome of a stack that has none without its context, and the context of one that was not asked in any.
const WAITS: u32 = u32::MAX;
/// The hits of a stack that is too deep for them to be worth keeping: it is matched again for each context.
const MATCH_AGAIN: u32 = u32::MAX;

/// Number of a distinct location; valid until [`Matcher::begin`] says that all was forgotten, as all numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(pub(crate) u32);

/// Number of a distinct stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub(crate) u32);

/// Number of a distinct context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub(crate) u32);

/// Number of what was decided of a stack beyond what its locations bring. Where the context decides, it is the same for all
/// stacks that agree in that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutcomeId(pub(crate) u32);

impl OutcomeId {
    /// Returns it as an index: they are numbered from 0 on.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StackId {
    /// Returns it as an index: stacks are numbered from 0 on.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, Copy)]
struct Stack {
    /// Where its locations begin among those of all stacks, and how many there are.
    start: u32,
    count: u32,
    /// Its outcome, or [`WAITS`].
    fixed: u32,
    /// The rules of one whose outcome depends on the context: where they begin among those of all, and how many there are, or
    /// [`MATCH_AGAIN`].
    hits: u32,
    hit_count: u32,
    /// The context in which it was asked first, and its outcome in that: most stacks have only one.
    context: u32,
    resolved: u32,
    /// The hash of its locations.
    hash: u32,
}

/// Matches stacks against a program.
///
/// One thread each; the program is shared. Everything it remembers is bounded by [`Matcher::with_memory`]: between two
/// batches, [`Matcher::begin`] forgets all once the bound is passed, so that numbers stay valid within a batch and the bound
/// may be passed by what one batch adds.
#[derive(Debug)]
pub struct Matcher {
    program: Arc<Program>,
    memory_bytes: usize,
    interner: Interner,
    contexts: Contexts,
    made: Made,
    values: Values,
    decided: decide::Kept,
    narrow: Evaluator<1>,
    middle: Option<Evaluator<WORDS_MIDDLE>>,
    wide: Option<Evaluator<WORDS_WIDE>>,
    stacks: Vec<Stack>,
    /// Locations of all stacks, one behind the other, and what waits for a context.
    locations: Vec<u32>,
    hits: Vec<Hit<1>>,
    /// Numbers of stacks by the hash of their locations. A look-up of a new stack waits for memory longer than for anything
    /// else, so the table is as small as it can be: the hashes are with the stacks.
    index: HashTable<u32>,
    resolved: FxHashMap<(u32, u32), u32>,
    room: Vec<u32>,
    matches: Vec<Match<1>>,
    stack_bytes: usize,
    context_decides: bool,
}

impl Matcher {
    /// Returns a matcher that knows nothing yet and may remember [`MEMORY_BYTES`].
    pub fn new(program: Arc<Program>) -> Self {
        Self {
            memory_bytes: MEMORY_BYTES,
            interner: Interner::default(),
            contexts: Contexts::default(),
            made: Made::new(&program),
            values: Values::default(),
            decided: decide::Kept::default(),
            narrow: Evaluator::new(&program),
            middle: None,
            wide: None,
            stacks: Vec::new(),
            locations: Vec::new(),
            hits: Vec::new(),
            index: HashTable::new(),
            resolved: FxHashMap::default(),
            room: Vec::new(),
            matches: Vec::new(),
            stack_bytes: 0,
            context_decides: !program.rules_of_context.is_empty(),
            program,
        }
    }

    /// Returns the same with another bound on what it remembers, at most [`MEMORY_BYTES_MAX`].
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes.min(MEMORY_BYTES_MAX);
        self
    }

    /// Returns the same with the values that another one gave today: a key has its number of them per day, whichever schemas
    /// were in force.
    #[must_use]
    pub fn with_values_of(mut self, before: Self) -> Self {
        self.values = before.values;
        self
    }

    /// Begins a batch on a day (any number that is another one on another day). Returns whether everything was forgotten:
    /// numbers from before are then worth nothing.
    pub fn begin(&mut self, day: u32) -> bool {
        // On another day other values may be given.
        let forget = self.values.begin(day) | (self.bytes() - self.values.bytes > self.memory_bytes);
        if forget {
            self.interner = Interner::default();
            self.contexts.clear();
            self.made = Made::new(&self.program);
            self.decided = decide::Kept::default();
            self.stacks = Vec::new();
            self.locations = Vec::new();
            self.hits = Vec::new();
            self.index = HashTable::new();
            self.resolved = FxHashMap::default();
            self.stack_bytes = 0;
        }
        forget
    }

    /// Returns the program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the bytes that it remembers in. Those of the values that were given today are kept when all else is forgotten,
    /// and have a bound of their own: [`crate::values::VALUES_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.interner.bytes
            + self.contexts.bytes
            + self.made.bytes()
            + self.decided.bytes
            + self.stack_bytes
            + self.values.bytes
            + self.resolved.len() * RESOLVED_BYTES
    }

    /// Returns how many tags became `other` since the matcher was made, each time one would have been given: see
    /// [`crate::values::VALUES_MAX`].
    pub fn refused_values(&self) -> u64 {
        self.values.refused
    }

    /// Returns how many distinct locations and stacks are remembered.
    pub fn known(&self) -> (usize, usize) {
        (self.interner.len(), self.stacks.len())
    }

    /// Returns the number of a location.
    #[inline]
    pub fn location(&mut self, location: &Location<'_>) -> LocationId {
        let (number, is_new) = self.interner.intern(&self.program, location);
        if is_new {
            let name = self.decider().flat_name(number);
            self.interner.flats.set_name(number, name);
        }
        LocationId(number)
    }

    /// Returns the number of a context.
    pub fn context(&mut self, context: &Context<'_>) -> ContextId {
        ContextId(self.contexts.intern(&self.program, context))
    }

    /// Returns the number of a stack, root first. A stack that is new is matched.
    pub fn stack(&mut self, locations: &[LocationId]) -> StackId {
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        room.extend(locations.iter().map(|location| location.0));
        let hash = digest(&room);
        let is_same =
            |&known: &u32| self.stacks[known as usize].hash == hash && self.locations_of(known) == room;
        let id = match self.index.find(spread(hash), is_same) {
            Some(&known) => known,
            None => self.new_stack(&room, hash),
        };
        self.room = room;
        StackId(id)
    }

    fn locations_of(&self, stack: u32) -> &[u32] {
        let Stack { start, count, .. } = self.stacks[stack as usize];
        &self.locations[start as usize..][..count as usize]
    }

    fn new_stack(&mut self, locations: &[u32], hash: u32) -> u32 {
        // The bound on memory keeps all of these numbers far below 2^32.
        let mut made = Stack {
            start: self.locations.len() as u32,
            count: locations.len() as u32,
            fixed: WAITS,
            hits: self.hits.len() as u32,
            hit_count: 0,
            context: WAITS,
            resolved: WAITS,
            hash,
        };
        if locations.len() <= 64 {
            self.narrow.run(&self.program, &self.interner, locations);
            let mut hits = std::mem::take(&mut self.narrow.hits);
            let waits = hits.iter().any(|hit| hit.residue.is_some());
            if !waits {
                let mut matches = std::mem::take(&mut self.matches);
                matches.clear();
                matches.extend(hits.iter().map(Hit::matched));
                made.fixed = self.decide(&matches, locations, None);
                self.matches = matches;
            }
            if waits || self.context_decides {
                self.stack_bytes += hits.len() * size_of::<Hit<1>>();
                made.hit_count = hits.len() as u32;
                self.hits.append(&mut hits);
            }
            self.narrow.hits = hits;
        } else {
            made.fixed = match locations.len() <= 64 * WORDS_MIDDLE {
                true => self.match_deep::<WORDS_MIDDLE>(locations, None),
                false => self.match_deep::<WORDS_WIDE>(locations, None),
            };
            made.hit_count = MATCH_AGAIN;
        }
        let id = self.stacks.len() as u32;
        self.stack_bytes += 4 * locations.len() + STACK_BYTES;
        self.stacks.push(made);
        if self.index.len() == self.index.capacity() {
            self.grow();
        }
        self.index.insert_unique(spread(hash), id, |_| 0);
        self.locations.extend_from_slice(locations);
        id
    }

    /// Makes the index twice as large. Stacks are read in order for that; by the index they would be in none.
    fn grow(&mut self) {
        let mut index = HashTable::with_capacity(2 * self.index.len() + 1);
        for (id, stack) in (0..).zip(&self.stacks[..self.index.len()]) {
            // It has room for all of them: it never asks for hashes itself.
            index.insert_unique(spread(stack.hash), id, |_| 0);
        }
        self.index = index;
    }

    /// Returns the number of what the schemas make of a stack in a context.
    #[inline]
    pub fn outcome(&mut self, stack: StackId, context: ContextId) -> OutcomeId {
        let known = &self.stacks[stack.0 as usize];
        if known.context == context.0 {
            return OutcomeId(known.resolved);
        }
        if known.fixed != WAITS && !self.decides(context) {
            return OutcomeId(known.fixed);
        }
        if known.context != WAITS
            && let Some(&known) = self.resolved.get(&(stack.0, context.0))
        {
            return OutcomeId(known);
        }
        OutcomeId(self.resolve(stack, context))
    }

    #[inline]
    fn decides(&self, context: ContextId) -> bool {
        self.context_decides
            && self
                .contexts
                .get(context.0)
                .is_some_and(|known| !known.rules.is_empty())
    }

    fn resolve(&mut self, stack: StackId, context: ContextId) -> u32 {
        let mut locations = std::mem::take(&mut self.room);
        locations.clear();
        locations.extend_from_slice(self.locations_of(stack.0));
        let entry = self.stacks[stack.0 as usize];
        let made = match entry.hit_count {
            MATCH_AGAIN if locations.len() <= 64 * WORDS_MIDDLE => {
                self.match_deep::<WORDS_MIDDLE>(&locations, Some(context))
            }
            MATCH_AGAIN => self.match_deep::<WORDS_WIDE>(&locations, Some(context)),
            count => {
                let mut matches = std::mem::take(&mut self.matches);
                let hits = &self.hits[entry.hits as usize..][..count as usize];
                answered(hits, self.contexts.get(context.0), &mut matches);
                let made = self.decide(&matches, &locations, Some(context));
                self.matches = matches;
                made
            }
        };
        self.room = locations;
        if entry.context == WAITS {
            let entry = &mut self.stacks[stack.0 as usize];
            (entry.context, entry.resolved) = (context.0, made);
        } else {
            self.resolved.insert((stack.0, context.0), made);
        }
        made
    }

    fn match_deep<const W: usize>(&mut self, locations: &[u32], context: Option<ContextId>) -> u32
    where
        Self: Deep<W>,
    {
        let mut evaluator = self.take_evaluator();
        evaluator.run(&self.program, &self.interner, locations);
        let made = match context {
            None if evaluator.hits.iter().any(|hit| hit.residue.is_some()) => WAITS,
            None => {
                let matches: Vec<Match<W>> = evaluator.hits.iter().map(Hit::matched).collect();
                self.decide(&matches, locations, None)
            }
            Some(context) => {
                let mut matches = Vec::new();
                answered(&evaluator.hits, self.contexts.get(context.0), &mut matches);
                self.decide(&matches, locations, Some(context))
            }
        };
        self.put_evaluator(evaluator);
        made
    }

    fn decide<const W: usize>(
        &mut self,
        matches: &[Match<W>],
        locations: &[u32],
        context: Option<ContextId>,
    ) -> u32 {
        let mut decider = Decider {
            program: &self.program,
            interner: &self.interner,
            made: &mut self.made,
            values: &mut self.values,
            kept: &mut self.decided,
        };
        let context = context.and_then(|context| self.contexts.get(context.0));
        decider.decide(matches, locations, context)
    }

    fn decider(&mut self) -> Decider<'_> {
        Decider {
            program: &self.program,
            interner: &self.interner,
            made: &mut self.made,
            values: &mut self.values,
            kept: &mut self.decided,
        }
    }

    /// Returns the rules that match a stack in a context, in the order in which they prevail: schema and rule by name.
    /// Costs a match each time: it is for people who ask why.
    pub fn matching(&mut self, stack: StackId, context: ContextId) -> Vec<(Arc<str>, Arc<str>)> {
        let mut evaluator: Evaluator<WORDS_WIDE> = self.take_evaluator();
        let locations = self.locations_of(stack.0).to_vec();
        evaluator.run(&self.program, &self.interner, &locations);
        let mut matches = Vec::new();
        answered(&evaluator.hits, self.contexts.get(context.0), &mut matches);
        self.put_evaluator(evaluator);
        let mut rules: Vec<u32> = matches.iter().map(|found| found.rule).collect();
        let seen = locations.iter().take(LOCATIONS_MAX);
        rules.extend(seen.flat_map(|&location| self.interner.flats.rules(location)));
        rules.sort_unstable();
        rules.dedup();
        let named = rules.into_iter().map(|rule| {
            let rule = &self.program.rules[rule as usize];
            let schema = &self.program.schemas[rule.schema as usize];
            (Arc::clone(&schema.name), Arc::clone(&rule.name))
        });
        named.collect()
    }

    /// Returns the outcome of a stack that [`Matcher::outcome`] gave. What each location brings is put together in `lists`:
    /// a number says only what was decided beyond that.
    pub fn get<'a>(&'a self, stack: StackId, outcome: OutcomeId, lists: &'a mut Lists) -> Outcome<'a> {
        let locations = self.locations_of(stack.0);
        let seen = &locations[..locations.len().min(LOCATIONS_MAX)];
        self.made.outcome(outcome.0, seen, &self.interner.flats, lists)
    }

    /// Returns the texts that outcomes name.
    pub fn made(&self) -> &Made {
        &self.made
    }

    /// Returns the text of a tag.
    pub fn tag(&self, tag: u32) -> &str {
        self.made.tag(tag)
    }

    /// Returns a name that a frame is shown by.
    pub fn name(&self, name: u32) -> &str {
        self.made.name(name)
    }
}

/// Leaves in `matches` the rules that match in a context, in order.
fn answered<const W: usize>(hits: &[Hit<W>], context: Option<&Known>, matches: &mut Vec<Match<W>>) {
    matches.clear();
    let Some(context) = context else {
        return;
    };
    let holds = |hit: &&Hit<W>| hit.residue.as_ref().is_none_or(|residue| residue.answer(context));
    matches.extend(hits.iter().filter(holds).map(Hit::matched));
    if !context.rules.is_empty() {
        matches.extend(context.rules.iter().map(|&rule| Match {
            rule,
            site: Bits::NONE,
        }));
        matches.sort_unstable_by_key(|found| found.rule);
    }
}

/// Returns a hash as long as the index wants it.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns a hash of a stack's locations.
fn digest(locations: &[u32]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write_usize(locations.len());
    for pair in locations.chunks(2) {
        let high = pair.get(1).copied().unwrap_or(u32::MAX);
        hasher.write_u64(u64::from(high) << 32 | u64::from(pair[0]));
    }
    (hasher.finish() >> 32) as u32
}

/// Keeps the evaluator for stacks of some depth, which is made when the first of them comes.
trait Deep<const W: usize> {
    fn take_evaluator(&mut self) -> Evaluator<W>;
    fn put_evaluator(&mut self, evaluator: Evaluator<W>);
}

impl Deep<WORDS_MIDDLE> for Matcher {
    fn take_evaluator(&mut self) -> Evaluator<WORDS_MIDDLE> {
        self.middle
            .take()
            .unwrap_or_else(|| Evaluator::new(&self.program))
    }

    fn put_evaluator(&mut self, evaluator: Evaluator<WORDS_MIDDLE>) {
        self.middle = Some(evaluator);
    }
}

impl Deep<WORDS_WIDE> for Matcher {
    fn take_evaluator(&mut self) -> Evaluator<WORDS_WIDE> {
        self.wide.take().unwrap_or_else(|| Evaluator::new(&self.program))
    }

    fn put_evaluator(&mut self, evaluator: Evaluator<WORDS_WIDE>) {
        self.wide = Some(evaluator);
    }
}
