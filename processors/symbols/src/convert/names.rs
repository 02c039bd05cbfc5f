//! Names and paths by number, and what people call a function.

use std::fmt::{self, Write};
use std::hash::Hash;

use cpp_demangle::DemangleOptions;
use rustc_hash::FxHashMap;

use crate::file::TEXT_BYTES_MAX;

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
    let mut out = Bounded(String::new());
    let written = match rustc_demangle::try_demangle(text) {
        Ok(name) => write!(out, "{name:#}"),
        Err(_) => cpp_demangle::Symbol::new(text)
            .ok()?
            .structured_demangle(&mut out, &DemangleOptions::new()),
    };
    // What met the bound is cut there, like any other long name; what could not be written otherwise has its raw name.
    let cut = out.0.len() >= TEXT_BYTES_MAX;
    (written.is_ok() || cut).then_some(out.0)
}

/// Text up to the longest that is kept: a few substitutions within one another stand for gigabytes.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = TEXT_BYTES_MAX - self.0.len();
        if text.len() <= free {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(free)]);
        // Where a character does not fit, some bytes stay free that nothing may fill any more.
        while self.0.len() < TEXT_BYTES_MAX {
            self.0.push('.');
        }
        Err(fmt::Error)
    }
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

    /// Checks that a name whose parts stand for one another again and again, 200 bytes that mean a terabyte, is cut at
    /// the longest name that is kept, at once.
    #[test]
    fn a_name_that_grows_without_end_is_cut() {
        // f(p<int,int>, p<S1, S1>, ...): each argument is twice as long as the one before.
        let mut raw = String::from("_Z1f1pIiiE");
        for at in 0..40 {
            let last = format!("S{}_", base36(at));
            raw += &format!("S_I{last}{last}E");
        }
        let start = std::time::Instant::now();
        let name = demangle(raw.as_bytes()).expect(&raw);
        assert!(name.starts_with("f(p<int, int>"), "{name}");
        assert_eq!(name.len(), TEXT_BYTES_MAX);
        assert!(start.elapsed() < std::time::Duration::from_secs(1));
    }

    /// Returns the number of a substitution, as names are mangled.
    fn base36(number: u32) -> String {
        let digit = |digit: u32| char::from_digit(digit, 36).unwrap().to_ascii_uppercase();
        match number {
            0..36 => digit(number).to_string(),
            _ => format!("{}{}", digit(number / 36), digit(number % 36)),
        }
    }
}
