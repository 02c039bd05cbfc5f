//! Other names for functions: what is spelled away, shortened or replaced. The name itself stays where it is stored.

use regex::bytes::Regex;

use crate::name::{is_suffix, rust_hash};
use crate::template::Template;

/// One step of a renaming.
#[derive(Debug, Clone)]
pub enum Step {
    /// `rename to`: the whole name.
    To(Template),
    /// `rename replace … with …`: every match of an expression; `$1` and `$name` stand for what groups captured.
    Replace(Box<Regex>, Box<str>),
    /// `rename shorten templates`: what stands in angle brackets goes away, the brackets stay.
    ShortenTemplates,
    /// `rename drop suffixes`: hashes of Rust symbols and what compilers put behind the names of clones go away.
    DropSuffixes,
}

/// Longest name that replacing may make, in bytes: a replacement that doubles names must not double memory.
const NAME_BYTES_MAX: usize = 4_096;

impl Step {
    /// Returns the name after this step; [`Step::To`] is not one that works on a name and returns it as it is.
    pub fn apply(&self, name: &str) -> String {
        match self {
            Self::To(_) => name.to_owned(),
            Self::Replace(regex, with) => {
                let made = regex.replace_all(name.as_bytes(), with.as_bytes());
                let mut made = String::from_utf8_lossy(&made).into_owned();
                if made.len() > NAME_BYTES_MAX {
                    made = made.chars().take(NAME_BYTES_MAX / 4).collect();
                }
                made
            }
            Self::ShortenTemplates => shorten(name),
            Self::DropSuffixes => drop_suffixes(name).to_owned(),
        }
    }
}

/// Returns the name with `<…>` for whatever stands in angle brackets. Those of operators are no brackets, and a name that
/// begins with one (`<T as Trait>::f`) keeps what is in it, shortened.
fn shorten(name: &str) -> String {
    let mut made = String::with_capacity(name.len());
    let mut depth = 0_usize;
    let bytes = name.as_bytes();
    let mut chars = name.char_indices();
    while let Some((at, c)) = chars.next() {
        if depth == 0 && name[at..].starts_with("operator") {
            let symbols = name[at + 8..]
                .chars()
                .take_while(|c| "<>=-! ".contains(*c))
                .count();
            // `operator<< <char>`: the symbols up to the blank are the operator, the bracket behind it opens.
            let symbols = name[at + 8..at + 8 + symbols]
                .trim_end_matches([' ', '<'])
                .len()
                .max(symbols.min(match &name[at + 8..] {
                    rest if rest.starts_with("<=>") => 3,
                    rest if rest.starts_with("<<") || rest.starts_with("<=") => 2,
                    rest if rest.starts_with('<') => 1,
                    _ => 0,
                }));
            made.push_str(&name[at..at + 8 + symbols]);
            for _ in 1..8 + symbols {
                chars.next();
            }
            continue;
        }
        let opens = c == '<' && at > 0;
        let closes = c == '>' && at > 0 && bytes[at - 1] != b'-';
        if opens {
            if depth == 0 {
                made.push('<');
            }
            depth += 1;
        } else if closes && depth > 0 {
            depth -= 1;
            if depth == 0 {
                made.push('>');
            }
        } else if depth == 0 {
            made.push(c);
        }
    }
    made
}

fn drop_suffixes(name: &str) -> &str {
    let mut name = name;
    if let Some(at) = name.rfind(" [clone ") {
        name = &name[..at];
        while let Some(at) = name.rfind(" [clone ").filter(|_| name.ends_with(']')) {
            name = &name[..at];
        }
    }
    // From the first dot on, all that remains must be suffixes.
    let first = name.match_indices('.').map(|(at, _)| at);
    for at in first {
        if at > 0 && is_suffix(&name[at..]) {
            name = &name[..at];
            break;
        }
    }
    rust_hash(name).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that what stands in angle brackets goes away, and nothing else.
    #[test]
    fn templates_are_shortened() {
        for (name, short) in [
            (
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<>::push_back(int const&)",
            ),
            ("a::operator<(b<int> const&)", "a::operator<(b<> const&)"),
            (
                "std::operator<< <std::char_traits<char> >(x)",
                "std::operator<< <>(x)",
            ),
            ("b<int>::operator->() const", "b<>::operator->() const"),
            (
                "<alloc::vec::Vec<u8> as core::clone::Clone>::clone",
                "<alloc::vec::Vec<> as core::clone::Clone>::clone",
            ),
            ("main", "main"),
        ] {
            assert_eq!(Step::ShortenTemplates.apply(name), short);
        }
    }

    /// Checks that hashes and the marks of clones go away, and dots of other names stay.
    #[test]
    fn suffixes_are_dropped() {
        for (name, short) in [
            ("app::run::h0123456789abcdef", "app::run"),
            ("parse.part.0", "parse"),
            ("parse.constprop.0.isra.0", "parse"),
            ("parse(char*) [clone .cold] [clone .isra.0]", "parse(char*)"),
            ("_ZN1a.llvm.1234567", "_ZN1a"),
            ("app::run::h0123456789abcdef.llvm.99", "app::run"),
            ("java.util.HashMap.put", "java.util.HashMap.put"),
            ("net/http.(*conn).serve", "net/http.(*conn).serve"),
        ] {
            assert_eq!(Step::DropSuffixes.apply(name), short);
        }
    }

    proptest! {
        /// Checks that no name breaks a step, and that shortening and dropping never lengthen.
        #[test]
        fn any_name_can_be_shortened(name in "[a-z<>:. \u{e4}-]{0,20}(operator)?[<>= a-z.]{0,20}") {
            for step in [Step::ShortenTemplates, Step::DropSuffixes] {
                prop_assert!(step.apply(&name).len() <= name.len());
            }
        }
    }
}
