//! The parts of a function's name: what it belongs to, its own name, template arguments, parameters.

use std::ops::Range;

/// Where the parts of a demangled name lie, as places in its bytes.
///
/// `void std::vector<int>::push_back<long>(int const&)` is the return type `void`, the scope `std::vector<int>`, the name
/// `push_back`, the arguments `<long>` and the parameters `(int const&)`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parts {
    /// Where the scope begins: behind the return type.
    pub scope: u32,
    /// Where the function's own name begins: behind the last `::` (or `.`) of the scope.
    pub name: u32,
    /// Where its own name ends, and its template arguments begin.
    pub name_end: u32,
    /// Where the parameters begin.
    pub parameters: u32,
}

impl Parts {
    /// Returns the parts of a demangled name.
    pub fn of(function: &str) -> Self {
        let bytes = function.as_bytes();
        let (mut scope, mut name, mut dot, mut parameters) = (0, 0, None, bytes.len());
        let (mut depth, mut at) = (0_usize, 0);
        while at < bytes.len() {
            if depth == 0 && is_operator(bytes, at) {
                // Whatever follows is the operator's name up to the parameters: `operator()`, `operator<`, `operator int`.
                name = at;
                parameters = operator_end(bytes, at);
                let arguments = bytes[at..parameters]
                    .windows(2)
                    .position(|pair| pair == b" <")
                    .map_or(parameters, |space| at + space);
                return Self::new(scope, name, arguments, parameters);
            }
            match bytes[at] {
                b'(' if depth == 0 && !is_part_of_name(bytes, at) => {
                    parameters = at;
                    break;
                }
                b'<' | b'(' | b'[' | b'{' => depth += 1,
                // The arrow of a function's type closes nothing.
                b'>' if at > 0 && bytes[at - 1] == b'-' => {}
                b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                b' ' if depth == 0 && is_suffix(&bytes[at..]) => {
                    parameters = at;
                    break;
                }
                // What comes before is a type; its dots separate nothing here.
                b' ' if depth == 0 => (scope, name, dot) = (at + 1, at + 1, None),
                b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => {
                    // The arguments of a Rust function stand behind a separator of their own: `f::<T>`.
                    if bytes.get(at + 2) != Some(&b'<') || name == at {
                        name = at + 2;
                    }
                    at += 1;
                }
                b'.' if depth == 0 && at > 0 => dot = Some(at + 1),
                _ => {}
            }
            at += 1;
        }
        if name == scope
            && let Some(dot) = dot.filter(|&dot| dot < parameters && !is_clone(&bytes[dot..parameters]))
        {
            name = dot;
        }
        let own = &bytes[name..parameters];
        let arguments = match own.iter().position(|&byte| byte == b'<') {
            Some(at) if at > 0 => at - if own[..at].ends_with(b"::") { 2 } else { 0 },
            _ => own.len(),
        };
        Self::new(scope, name, name + arguments, parameters)
    }

    fn new(scope: usize, name: usize, name_end: usize, parameters: usize) -> Self {
        // Names are cut far below 4 GiB.
        Self {
            scope: scope as u32,
            name: name as u32,
            name_end: name_end as u32,
            parameters: parameters as u32,
        }
    }

    /// Returns the class, trait, module or package that a function belongs to; empty for a plain function.
    pub fn belongs_to<'a>(&self, function: &'a str) -> &'a str {
        let scope = part(function, self.scope..self.name);
        let scope = scope
            .strip_suffix("::")
            .or(scope.strip_suffix('.'))
            .unwrap_or(scope);
        match scope.strip_prefix('<').and_then(|inner| inner.strip_suffix('>')) {
            // `<T as Trait>` belongs to T, and so does `<T>`.
            Some(inner) => top_level(inner, " as ").map_or(inner, |at| &inner[..at]),
            None => scope,
        }
    }

    /// Returns the function's own name.
    pub fn name<'a>(&self, function: &'a str) -> &'a str {
        part(function, self.name..self.name_end)
    }

    /// Returns the function's own template arguments, with their brackets; empty where it has none.
    pub fn arguments<'a>(&self, function: &'a str) -> &'a str {
        part(function, self.name_end..self.parameters)
            .trim_start_matches("::")
            .trim_start()
    }

    /// Returns the parameters, with their brackets and what follows them; empty where they are not known.
    pub fn parameters<'a>(&self, function: &'a str) -> &'a str {
        part(function, self.parameters..function.len() as u32)
    }

    /// Returns the name without what template arguments say: `std::vector<T>::push_back` for every T.
    pub fn generic(&self, function: &str) -> String {
        let mut out = String::new();
        let mut depth = 0_usize;
        let head = part(function, self.scope..self.name_end);
        let name_at = (self.name - self.scope.min(self.name)) as usize;
        let bytes = head.as_bytes();
        for (at, character) in head.char_indices() {
            match character {
                '<' if at < name_at && at > 0 && bytes[at - 1] != b'<' && !head[..at].ends_with("as ") => {
                    if depth == 0 {
                        out.push_str("<T>");
                    }
                    depth += 1;
                }
                '<' if depth > 0 => depth += 1,
                '>' if depth > 0 && bytes[at - 1] != b'-' => depth -= 1,
                _ if depth == 0 => out.push(character),
                _ => {}
            }
        }
        out
    }

    /// Returns whether a name has no parts beyond itself.
    pub(crate) fn is_plain(&self, function: &str) -> bool {
        *self == Self::new(0, 0, function.len(), function.len())
    }
}

fn part(function: &str, range: Range<u32>) -> &str {
    function
        .get(range.start as usize..range.end as usize)
        .unwrap_or_default()
}

/// Returns whether the operator keyword stands at a place.
fn is_operator(bytes: &[u8], at: usize) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    bytes[at..].starts_with(b"operator")
        && (at == 0 || !word(bytes[at - 1]))
        && bytes.get(at + 8).is_some_and(|&byte| !word(byte))
}

/// Returns where the parameters of an operator begin.
fn operator_end(bytes: &[u8], at: usize) -> usize {
    let mut from = at + b"operator".len();
    if bytes[from..].starts_with(b"()") {
        from += 2;
    }
    bytes[from..]
        .iter()
        .position(|&byte| byte == b'(')
        .map_or(bytes.len(), |open| from + open)
}

/// Returns whether the brackets that open at a place belong to a name: `(anonymous namespace)::x`, `pkg.(*T).m`.
fn is_part_of_name(bytes: &[u8], open: usize) -> bool {
    let mut depth = 0_usize;
    for (at, &byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' => {
                depth -= 1;
                if depth == 0 {
                    let behind = &bytes[at + 1..];
                    return behind.starts_with(b"::")
                        || behind.starts_with(b".") && bytes.get(open + 1) == Some(&b'*');
                }
            }
            _ => {}
        }
    }
    false
}

/// Returns whether a text is what a demangler makes of a clone's suffix.
fn is_suffix(bytes: &[u8]) -> bool {
    bytes.starts_with(b" [clone ") || bytes.starts_with(b" (.")
}

/// Returns whether a text is what compilers put behind the name of a clone: `cold`, `part.0`, `llvm.123`.
fn is_clone(bytes: &[u8]) -> bool {
    const WORDS: [&[u8]; 7] = [
        b"cold",
        b"isra",
        b"part",
        b"constprop",
        b"llvm",
        b"lto_priv",
        b"localalias",
    ];
    bytes
        .split(|&byte| byte == b'.')
        .all(|part| WORDS.contains(&part) || part.iter().all(u8::is_ascii_digit))
}

/// Returns the place of `wanted` outside of all brackets.
fn top_level(text: &str, wanted: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    for at in 0..bytes.len() {
        if depth == 0 && bytes[at..].starts_with(wanted.as_bytes()) {
            return Some(at);
        }
        match bytes[at] {
            b'<' | b'(' | b'[' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks the parts of names in the forms that demanglers write: scope, name, arguments, parameters.
    #[test]
    fn names_fall_into_their_parts() {
        for (function, expected) in [
            ("malloc", ["", "malloc", "", ""]),
            ("main(int, char**)", ["", "main", "", "(int, char**)"]),
            (
                "void std::vector<int, std::allocator<int> >::push_back(int const&)",
                [
                    "std::vector<int, std::allocator<int> >",
                    "push_back",
                    "",
                    "(int const&)",
                ],
            ),
            ("long shop::sum<long>(long)", ["shop", "sum", "<long>", "(long)"]),
            (
                "std::map<int, a::b>::operator[](int&&)",
                ["std::map<int, a::b>", "operator[]", "", "(int&&)"],
            ),
            (
                "std::function<void (int)>::operator()(int) const",
                ["std::function<void (int)>", "operator()", "", "(int) const"],
            ),
            (
                "std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char)",
                [
                    "std",
                    "operator<<",
                    "<std::char_traits<char> >",
                    "(std::ostream&, char)",
                ],
            ),
            (
                "(anonymous namespace)::Parser::next()",
                ["(anonymous namespace)::Parser", "next", "", "()"],
            ),
            (
                "<alloc::vec::Vec<T,A> as core::clone::Clone>::clone",
                ["alloc::vec::Vec<T,A>", "clone", "", ""],
            ),
            ("core::iter::sum::<u64>", ["core::iter", "sum", "<u64>", ""]),
            ("net/http.(*conn).serve", ["net/http.(*conn)", "serve", "", ""]),
            ("runtime.mallocgc", ["runtime", "mallocgc", "", ""]),
            ("read_all.constprop.0", ["", "read_all.constprop.0", "", ""]),
            ("f(int) [clone .cold]", ["", "f", "", "(int) [clone .cold]"]),
            ("", ["", "", "", ""]),
        ] {
            let parts = Parts::of(function);
            let found = [
                parts.belongs_to(function),
                parts.name(function),
                parts.arguments(function),
                parts.parameters(function),
            ];
            assert_eq!(found, expected, "{function}");
        }
    }

    /// Checks that instances of one template have one generic name.
    #[test]
    fn instances_of_a_template_share_a_generic_name() {
        for element in ["int", "std::pair<int, long>", "void (*)(int)"] {
            let function =
                format!("std::vector<{element}, std::allocator<{element}> >::push_back({element}&&)");
            assert_eq!(
                Parts::of(&function).generic(&function),
                "std::vector<T>::push_back",
                "{function}"
            );
        }
    }

    proptest! {
        /// Checks that no name breaks it, and that the parts lie within the name in their order.
        #[test]
        fn any_name_has_parts(function in "[a-z<>():. \u{e4}\\-\\[\\]{}]{0,30}(operator)?[a-z<>():. ]{0,9}") {
            let parts = Parts::of(&function);
            prop_assert!(parts.scope <= parts.name && parts.name <= parts.name_end);
            prop_assert!(parts.name_end <= parts.parameters && parts.parameters as usize <= function.len());
            prop_assert!(function.contains(parts.belongs_to(&function)) && function.contains(parts.name(&function)));
            parts.generic(&function);
        }
    }
}
