//! Tags that are made of matches, and the bound on how many: a key that takes its values from names must not become a
//! million columns because somebody captured a request id.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

/// Values of a key per service and day; what comes after them is `other`.
pub const VALUES_MAX: usize = 1_000;
/// Memory for what was given, in bytes: 300,000 values of 40 bytes, all services and keys together. What comes after them
/// is `other` at once.
pub const VALUES_BYTES_MAX: usize = 32 << 20;
/// Bytes of a value, and of a pair of service and key, beside their texts.
const VALUE_BYTES: usize = 64;
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
    pub bytes: usize,
    /// Tags that became `other` since this was made.
    pub refused: u64,
}

impl Values {
    /// Begins a day, numbered as the caller likes; returns whether it is another one than before.
    pub(crate) fn begin(&mut self, day: u32) -> bool {
        let other = self.day != day;
        if other {
            self.day = day;
            self.given = FxHashMap::default();
            self.bytes = 0;
        }
        other
    }

    /// Returns whether a tag of a key may be given to a service: one that was given before, or one of the first.
    pub(crate) fn admit(&mut self, service: &str, key: &str, tag: &str) -> bool {
        let place = (Box::from(service), Box::from(key));
        let room = self.bytes < VALUES_BYTES_MAX;
        if !room && !self.given.contains_key(&place) {
            self.refused += 1;
            return false;
        }
        let texts = service.len() + key.len();
        let given = self.given.entry(place).or_insert_with(|| {
            self.bytes += texts + VALUE_BYTES;
            FxHashSet::default()
        });
        let known = given.contains(tag);
        let admitted = known || (room && given.len() < VALUES_MAX);
        if admitted && !known {
            self.bytes += tag.len() + VALUE_BYTES;
            given.insert(tag.into());
        }
        self.refused += u64::from(!admitted);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a key has a thousand values of a service and day: the first stay, the next are refused, and another day
    /// begins anew.
    #[test]
    fn a_key_has_a_thousand_values_of_a_service_and_day() {
        let mut values = Values::default();
        assert!(values.begin(1));
        for number in 0..VALUES_MAX {
            assert!(values.admit("shop", "id", &format!("id={number}")));
        }
        assert!(!values.admit("shop", "id", "id=more"));
        assert!(values.admit("shop", "id", "id=7"), "what was given stays");
        assert!(values.admit("shop", "other", "other=more") && values.admit("mail", "id", "id=more"));
        assert!(!values.begin(1) && !values.admit("shop", "id", "id=more"));
        assert!(values.begin(2) && values.bytes == 0 && values.admit("shop", "id", "id=more"));
        assert_eq!(values.refused, 2);
    }

    /// Checks that services and keys without end take bounded memory, and that what was given before stays.
    #[test]
    fn values_of_all_services_take_bounded_memory() {
        let mut values = Values::default();
        let mut last = 0;
        for number in 0..1_000_000 {
            let service = format!("service-{number}");
            if !values.admit(&service, "id", "id=1") {
                break;
            }
            last = number;
        }
        assert!((100_000..999_999).contains(&last), "{last}");
        assert!(values.bytes < VALUES_BYTES_MAX + 1_024);
        assert!(values.admit("service-0", "id", "id=1"));
        assert!(!values.admit("service-0", "id", "id=2") && !values.admit("new", "id", "id=1"));
    }
}
