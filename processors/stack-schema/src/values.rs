//! Tags that are made of matches, and the bound on how many: a key that takes its values from names must not become a
//! million columns because somebody captured a request id.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

/// Values of a key per service and day; what comes after them is `other`.
pub const VALUES_MAX: usize = 1_000;
/// Pairs of service and key that values are counted for; a host has some hundred services at most, and a processor sees
/// many hosts. What comes after them gets `other` at once.
const COUNTED_MAX: usize = 100_000;
/// The value of all others.
pub const OTHER: &str = "other";

/// Names of tags and functions, each once.
#[derive(Debug, Default)]
pub(crate) struct Names {
    index: FxHashMap<Arc<str>, u32>,
    list: Vec<Arc<str>>,
    pub bytes: usize,
}

impl Names {
    pub(crate) fn intern(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.index.get(text) {
            return known;
        }
        let owned: Arc<str> = text.into();
        let id = self.list.len() as u32;
        self.bytes += text.len() + 64;
        self.index.insert(Arc::clone(&owned), id);
        self.list.push(owned);
        id
    }

    pub(crate) fn get(&self, id: u32) -> &str {
        self.list.get(id as usize).map_or("", |text| text)
    }
}

type ServiceAndKey = (Box<str>, Box<str>);

/// Values that were given today, by service and key.
#[derive(Debug, Default)]
pub(crate) struct Values {
    day: u32,
    given: FxHashMap<ServiceAndKey, FxHashSet<Box<str>>>,
    /// Tags that became `other` since this was made.
    pub refused: u64,
}

impl Values {
    /// Begins a day, numbered as the caller likes; returns whether it is another one than before.
    pub(crate) fn begin(&mut self, day: u32) -> bool {
        let other = self.day != day;
        if other {
            self.day = day;
            self.given.clear();
        }
        other
    }

    /// Returns whether a tag of a key may be given to a service: one that was given before, or one of the first.
    pub(crate) fn admit(&mut self, service: &str, key: &str, tag: &str) -> bool {
        let place = (Box::from(service), Box::from(key));
        let room = self.given.len() < COUNTED_MAX || self.given.contains_key(&place);
        let admitted = room && {
            let given = self.given.entry(place).or_default();
            given.contains(tag) || (given.len() < VALUES_MAX && given.insert(tag.into()))
        };
        self.refused += u64::from(!admitted);
        admitted
    }
}
