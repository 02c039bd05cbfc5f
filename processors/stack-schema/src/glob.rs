//! Globs: `*` stands for any text, everything else for itself.

use memchr::memmem::Finder;

/// A glob, taken apart at its stars.
#[derive(Debug, Clone)]
pub struct Glob {
    /// What stands before the first star; all of it where there is none.
    first: Box<[u8]>,
    /// What stands between stars, in order.
    middle: Box<[Finder<'static>]>,
    /// What stands after the last star; nothing where there is no star.
    last: Option<Box<[u8]>>,
}

impl Glob {
    /// Returns the glob that a text spells.
    pub fn new(text: &str) -> Self {
        let mut parts = text.split('*');
        let first = parts.next().unwrap_or_default();
        let mut rest: Vec<&str> = parts.collect();
        let last = rest.pop();
        Self {
            first: first.as_bytes().into(),
            middle: rest
                .into_iter()
                .filter(|part| !part.is_empty())
                .map(|part| Finder::new(part).into_owned())
                .collect(),
            last: last.map(|last| last.as_bytes().into()),
        }
    }

    /// Returns whether it stands for all of `text`.
    ///
    /// Each part is looked for behind the one before, and the first place is as good as any: linear in the text.
    pub fn matches(&self, text: &[u8]) -> bool {
        let Some(last) = &self.last else {
            return text == &*self.first;
        };
        let Some(text) = text.strip_prefix(&*self.first) else {
            return false;
        };
        let Some(mut text) = text.strip_suffix(&**last) else {
            return false;
        };
        for part in &self.middle {
            let Some(at) = part.find(text) else { return false };
            text = &text[at + part.needle().len()..];
        }
        true
    }

    /// Returns the longest text that is in everything it stands for; empty for `*`.
    pub fn longest_part(&self) -> &[u8] {
        let ends = [Some(&*self.first), self.last.as_deref()];
        let middle = self.middle.iter().map(Finder::needle);
        middle
            .chain(ends.into_iter().flatten())
            .max_by_key(|part| part.len())
            .unwrap_or_default()
    }

    /// Returns what everything that it stands for begins with.
    pub fn prefix(&self) -> &[u8] {
        &self.first
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that a glob means the regular expression that replaces each star by `.*`.
        #[test]
        fn a_glob_is_its_regular_expression(glob in "[ab*]{0,7}", text in "[ab]{0,9}") {
            let parts: Vec<String> = glob.split('*').map(regex::escape).collect();
            let oracle = regex::Regex::new(&format!("^(?s:{})$", parts.join(".*"))).unwrap();
            prop_assert_eq!(Glob::new(&glob).matches(text.as_bytes()), oracle.is_match(&text));
        }
    }
}
