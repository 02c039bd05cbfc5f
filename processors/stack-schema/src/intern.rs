//! Texts and locations, each distinct one once: what is decided of it is decided once.

use std::hash::{BuildHasher, RandomState};

use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::field::Seen;
use crate::flat::{self, Flats};
use crate::location::Location;
use crate::model::{Field, Flag};
use crate::name::{Language, type_of};
use crate::program::{Node, NodeIx, Program};

/// Bytes of a distinct text beside its own: its place in the index and in the list, counts.
const TEXT_BYTES: usize = 56;
/// Bytes of a distinct location: its place in the index and in the lists.
const LOCATION_BYTES: usize = 72 + flat::ENTRY_BYTES;

/// Distinct texts of one field, and which tests hold for each.
#[derive(Debug)]
struct Texts {
    /// Drawn, so that nobody can give functions names that all have one hash.
    seed: u64,
    /// Texts by their hash; two of one hash stand in neighbouring places. The index never looks at a text when it grows.
    index: FxHashMap<u64, u32>,
    /// All texts, one behind the other: an allocation for each would cost as much as matching it.
    all: String,
    list: Vec<Text>,
    /// Tests of all texts, one behind the other.
    tests: Vec<u32>,
}

/// Where a text and its tests end; those of the one before end where they begin.
#[derive(Debug, Clone, Copy, Default)]
struct Text {
    end: usize,
    tests_end: usize,
}

impl Default for Texts {
    fn default() -> Self {
        Self {
            seed: RandomState::new().hash_one(0),
            index: FxHashMap::default(),
            all: String::new(),
            list: Vec::new(),
            tests: Vec::new(),
        }
    }
}

impl Texts {
    /// Returns the number of a text; `test` appends the tests that hold for one that is new.
    fn intern(&mut self, text: &str, bytes: &mut usize, test: impl FnOnce(&mut Vec<u32>)) -> u32 {
        let mut hash = xxh3_64_with_seed(text.as_bytes(), self.seed);
        while let Some(&known) = self.index.get(&hash) {
            if self.text(known) == text {
                return known;
            }
            hash = hash.wrapping_add(1);
        }
        let start = self.tests.len();
        test(&mut self.tests);
        let id = self.list.len() as u32;
        self.index.insert(hash, id);
        self.all.push_str(text);
        self.list.push(Text {
            end: self.all.len(),
            tests_end: self.tests.len(),
        });
        *bytes += text.len() + TEXT_BYTES + 4 * (self.tests.len() - start);
        id
    }

    fn text(&self, id: u32) -> &str {
        let end = self.list.get(id as usize).map_or(0, |text| text.end);
        self.all.get(self.before(id).end..end).unwrap_or_default()
    }

    fn tests(&self, id: u32) -> &[u32] {
        // Numbers come from `intern` alone.
        &self.tests[self.before(id).tests_end..self.list[id as usize].tests_end]
    }

    fn before(&self, id: u32) -> Text {
        let before = (id as usize).checked_sub(1).and_then(|at| self.list.get(at));
        before.copied().unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    function: u32,
    file: u32,
    module: u32,
    line: u32,
    flags: u32,
}

/// Distinct locations, and which terms hold for each.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    functions: Texts,
    files: Texts,
    modules: Texts,
    index: FxHashMap<Key, u32>,
    list: Vec<Key>,
    /// Where the terms of each begin and end.
    term_places: Vec<(u32, u32)>,
    terms: Vec<NodeIx>,
    /// What flat rules do at each.
    pub flats: Flats,
    /// Room for the flat rules of one.
    found: Vec<u32>,
    seen: Seen,
    /// Per test, and per node: the location that it was last met for.
    tests_met: Vec<u32>,
    terms_met: Vec<u32>,
    met: u32,
    /// Per node: the location that it was last decided for, doubled, and one more where it holds.
    decided: Vec<u64>,
    pub bytes: usize,
}

const INLINED: u32 = 1;
const KERNEL: u32 = 2;
const UNNAMED: u32 = 4;

impl Interner {
    /// Returns the number of a location, and whether it is a new one.
    pub(crate) fn intern(&mut self, program: &Program, location: &Location<'_>) -> (u32, bool) {
        let (seen, bytes) = (&mut self.seen, &mut self.bytes);
        let function = self.functions.intern(location.function, bytes, |tests| {
            program.function.find(location.function, seen, tests);
            if !program.types.is_empty() {
                program.types.find(type_of(location.function), seen, tests);
            }
        });
        // What no condition and no tag asks for does not make locations distinct.
        let file = match program.asks_files {
            true => self.files.intern(location.file, bytes, |tests| {
                program.file.find(location.file, seen, tests);
            }),
            false => u32::MAX,
        };
        let module = self.modules.intern(location.module, bytes, |tests| {
            program.module.find(location.module, seen, tests);
        });
        let flags = u32::from(location.inlined) * INLINED
            + u32::from(location.kernel) * KERNEL
            + u32::from(location.unnamed) * UNNAMED;
        let key = Key {
            function,
            file,
            module,
            line: if program.lines.is_empty() {
                0
            } else {
                location.line
            },
            flags,
        };
        if let Some(&known) = self.index.get(&key) {
            return (known, false);
        }
        let start = self.terms.len();
        self.decide(program, location, key);
        self.bytes += self.flats.add(program, &mut self.found);
        let id = self.list.len() as u32;
        self.index.insert(key, id);
        self.list.push(key);
        self.term_places.push((start as u32, self.terms.len() as u32));
        self.bytes += LOCATION_BYTES + 4 * (self.terms.len() - start);
        (id, true)
    }

    /// Appends the terms that hold for a location, and leaves the flat rules that match there in `found`.
    fn decide(&mut self, program: &Program, location: &Location<'_>, key: Key) {
        if self.tests_met.is_empty() {
            self.tests_met.resize(program.atoms, 0);
            self.terms_met.resize(program.nodes.len(), 0);
            self.decided.resize(program.nodes.len(), 0);
        }
        self.found.clear();
        // Locations are fewer than 2^32: the numbers of those that are known have 32 bits.
        self.met += 1;
        let mut tests: Vec<u32> = Vec::with_capacity(16);
        // A function without a name has none that a condition could ask for.
        if !location.unnamed {
            tests.extend_from_slice(self.functions.tests(key.function));
        }
        if program.asks_files {
            tests.extend_from_slice(self.files.tests(key.file));
        }
        tests.extend_from_slice(self.modules.tests(key.module));
        let lines = program.lines.iter();
        tests.extend(
            lines
                .filter(|(least, most, _)| (*least..=*most).contains(&location.line))
                .map(|(.., test)| test),
        );
        let holds = |flag: Flag| match flag {
            Flag::Inlined => location.inlined,
            Flag::Kernel => location.kernel,
            Flag::User => !location.kernel,
            Flag::Unnamed => location.unnamed,
            // Those are places in a stack.
            Flag::Leaf | Flag::Root => false,
        };
        tests.extend(
            program
                .flags
                .iter()
                .filter(|(flag, _)| holds(*flag))
                .map(|(_, test)| test),
        );
        if !program.languages.is_empty() && !location.unnamed {
            let language = Language::of(location.function, location.file, location.kernel);
            let mine = program
                .languages
                .iter()
                .filter(|(known, _)| Some(*known) == language);
            tests.extend(mine.map(|(_, test)| test));
        }
        for &test in &tests {
            self.tests_met[test as usize] = self.met;
        }
        for &test in &tests {
            for &(pure, term) in &program.terms_of_atom[test as usize] {
                let first = self.terms_met[term as usize] != self.met;
                self.terms_met[term as usize] = self.met;
                if first && self.pure(program, pure) {
                    if program.asked[term as usize] {
                        self.terms.push(term);
                    }
                    let (start, end) = program.flat_of_term[term as usize];
                    let rules = &program.flat_rules[start as usize..end as usize];
                    self.found.extend_from_slice(rules);
                }
            }
        }
    }

    fn pure(&mut self, program: &Program, at: NodeIx) -> bool {
        let list = match &program.nodes[at as usize] {
            Node::True => return true,
            Node::Atom(test) => return self.tests_met[*test as usize] == self.met,
            Node::Not(inner) => return !self.pure(program, *inner),
            Node::And(list) | Node::Or(list) => list,
            _ => return false,
        };
        // Shared nodes are decided once for each location.
        let known = self.decided[at as usize];
        if known >> 1 == u64::from(self.met) {
            return known & 1 == 1;
        }
        let holds = match &program.nodes[at as usize] {
            Node::And(_) => list.iter().all(|&child| self.pure(program, child)),
            _ => list.iter().any(|&child| self.pure(program, child)),
        };
        self.decided[at as usize] = u64::from(self.met) << 1 | u64::from(holds);
        holds
    }

    /// Returns the terms that hold for a location and that conditions on stacks ask for, if there are any.
    #[inline]
    pub(crate) fn terms(&self, id: u32) -> Option<&[NodeIx]> {
        let (start, end) = self.term_places[id as usize];
        (start != end).then(|| &self.terms[start as usize..end as usize])
    }

    /// Returns a number that is the same for locations of the same function.
    pub(crate) fn function(&self, id: u32) -> u32 {
        self.list.get(id as usize).map_or(u32::MAX, |key| key.function)
    }

    /// Returns what is shown for a location where nothing renames it.
    pub(crate) fn shown(&self, id: u32) -> &str {
        self.functions.text(self.function(id))
    }

    /// Returns a text of a location; empty where it has none.
    pub(crate) fn text(&self, id: u32, field: Field) -> &str {
        let Some(key) = self.list.get(id as usize) else {
            return "";
        };
        let unnamed = key.flags & UNNAMED != 0;
        match field {
            Field::Function | Field::Type if unnamed => "",
            Field::Function => self.functions.text(key.function),
            Field::Type => type_of(self.functions.text(key.function)),
            Field::File => self.files.text(key.file),
            Field::Module => self.modules.text(key.module),
        }
    }

    /// Returns how many distinct locations there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}
