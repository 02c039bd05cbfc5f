//! Names and paths by number, and what people call a function.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Longest raw name that is demangled, in bytes: the effort grows with the length, and the result is cut anyway.
const MANGLED_BYTES_MAX: usize = 16 << 10;

/// Things by number, from 1, each once.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    index: FxHashMap<T, u32>,
    list: Vec<T>,
}

impl<T: Hash + Eq + Clone> Interner<T> {
    pub(crate) fn new() -> Self {
        Self {
            index: FxHashMap::default(),
            list: Vec::new(),
        }
    }

    /// Returns the number of a thing.
    pub(crate) fn intern(&mut self, thing: T) -> u32 {
        if let Some(&number) = self.index.get(&thing) {
            return number;
        }
        self.list.push(thing.clone());
        let number = self.list.len() as u32;
        self.index.insert(thing, number);
        number
    }

    /// Returns all things in the order of their numbers.
    pub(crate) fn into_list(self) -> Vec<T> {
        self.list
    }
}

/// Returns whether a raw name is a mangled one, of C++ or Rust.
pub(crate) fn is_mangled(raw: &[u8]) -> bool {
    raw.starts_with(b"_Z") || raw.starts_with(b"_R") || raw.starts_with(b"__Z")
}

/// Returns what people call a function; nothing where that is its raw name.
///
/// Rust's names come without the hash at their end. A clone that a compiler made of a C++ function says so behind its
/// name: `f(int) [clone .constprop.0]`.
pub(crate) fn demangle(raw: &[u8]) -> Option<String> {
    if !is_mangled(raw) || raw.len() > MANGLED_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(raw).ok()?;
    if let Ok(name) = rustc_demangle::try_demangle(text) {
        return Some(format!("{name:#}"));
    }
    cpp_demangle::Symbol::new(text).ok()?.demangle().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks names of both of Rust's manglings, of C++, and of C, which is left as it is.
    #[test]
    fn mangled_names_become_what_people_wrote() {
        for (raw, expected) in [
            (
                "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
                Some("core::fmt::Formatter::pad"),
            ),
            ("_RNvNtCs1234_7mycrate3foo3bar", Some("mycrate::foo::bar")),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                Some("std::vector<int, std::allocator<int> >::push_back(int const&)"),
            ),
            (
                "_ZN4shop4workEi.constprop.0",
                Some("shop::work(int) [clone .constprop.0]"),
            ),
            ("malloc", None),
            ("_Z99damaged", None),
        ] {
            assert_eq!(demangle(raw.as_bytes()).as_deref(), expected, "{raw}");
        }
    }
}
