//! What a function's name says beside itself: what it belongs to, and the language that it was written in.

/// A language that functions are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Language {
    /// C, and the kernel.
    C,
    /// C++.
    Cpp,
    /// Rust.
    Rust,
    /// Go.
    Go,
    /// Java, Kotlin, Scala.
    Java,
    /// Python.
    Python,
    /// JavaScript.
    JavaScript,
}

impl Language {
    /// Every language with the name that a schema calls it by.
    pub const ALL: [(&'static str, Self); 7] = [
        ("c", Self::C),
        ("cpp", Self::Cpp),
        ("rust", Self::Rust),
        ("go", Self::Go),
        ("java", Self::Java),
        ("python", Self::Python),
        ("javascript", Self::JavaScript),
    ];

    /// Returns the language called so.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, language)| *language)
    }

    /// Returns the language of a function: by its file's ending if that is known and says so, then by the form of its name.
    pub fn of(function: &str, file: &str, kernel: bool) -> Option<Self> {
        if kernel {
            return Some(Self::C);
        }
        let by_file = match file.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "c" => Some(Self::C),
            "cc" | "cpp" | "cxx" | "hpp" | "hh" | "hxx" | "inl" | "tcc" => Some(Self::Cpp),
            "rs" => Some(Self::Rust),
            "go" => Some(Self::Go),
            "java" | "kt" | "scala" => Some(Self::Java),
            "py" => Some(Self::Python),
            "js" | "mjs" | "ts" => Some(Self::JavaScript),
            _ => None,
        };
        by_file.or_else(|| Self::of_name(function))
    }

    fn of_name(function: &str) -> Option<Self> {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| function.starts_with(prefix));
        if starts(&["py::"]) {
            return Some(Self::Python);
        }
        if starts(&["LazyCompile:", "Function:", "JS:", "Builtin:"]) {
            return Some(Self::JavaScript);
        }
        if function.starts_with('L') && function.contains(";::") {
            return Some(Self::Java);
        }
        let rust = ["core::", "alloc::", "<core::", "<alloc::", "_<"];
        if starts(&rust)
            || function.contains("{{closure}}")
            || function.contains("{closure#")
            || (function.starts_with('<') && function.contains(" as "))
            || has_rust_hash(function)
        {
            return Some(Self::Rust);
        }
        if function.contains(".(*") || starts(&["runtime."]) {
            return Some(Self::Go);
        }
        // A demangled C++ name has its parameters; a demangled Rust name has none.
        if function.contains('(') || function.contains("::__1::") || function.contains("::operator") {
            return Some(Self::Cpp);
        }
        if starts(&["operator new", "operator delete", "__cxa_", "__gxx_"]) {
            return Some(Self::Cpp);
        }
        None
    }
}

/// Length of the hash at the end of a Rust symbol of the older mangling, with its `::h`.
const RUST_HASH_BYTES: usize = 19;

fn has_rust_hash(function: &str) -> bool {
    rust_hash(function).is_some()
}

/// Returns the name before the hash that the older mangling of Rust puts behind it.
pub(crate) fn rust_hash(function: &str) -> Option<&str> {
    let at = function.len().checked_sub(RUST_HASH_BYTES)?;
    let (name, hash) = (function.get(..at)?, function.get(at..)?);
    let digits = hash.strip_prefix("::h")?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then_some(name)
}

/// Returns what a function belongs to: the part of its name before the last `::` (or `.` where there is no `::`) that
/// stands outside of brackets, without return type, parameters and compilers' suffixes. Empty for a plain function.
///
/// `std::vector<int>` of `void std::vector<int>::push_back(int const&)`; `alloc::vec::Vec<T>` of
/// `<alloc::vec::Vec<T> as core::clone::Clone>::clone`; `net/http.(*conn)` of `net/http.(*conn).serve`.
pub fn type_of(function: &str) -> &str {
    let head = &function[..name_end(function)];
    let scope = match last_separator(head) {
        Some(at) => &head[..at],
        None => return "",
    };
    let scope = &scope[return_type_end(scope)..];
    // `<T as Trait>` belongs to T.
    match scope.strip_prefix('<').and_then(|inner| inner.strip_suffix('>')) {
        Some(inner) => match depth_zero(inner, |rest| rest.starts_with(" as ")) {
            Some(at) => &inner[..at],
            None => inner,
        },
        None => scope,
    }
}

/// Returns the first place outside of brackets where `found` says yes.
fn depth_zero(text: &str, mut found: impl FnMut(&str) -> bool) -> Option<usize> {
    let mut result = None;
    walk(text, |at, depth| {
        if depth == 0 && found(&text[at..]) {
            result = Some(at);
        }
        result.is_none()
    });
    result
}

/// Calls `see` with each byte's place and how many brackets are open before it, until it returns false or an operator's
/// name begins, whose `<` and `>` are no brackets.
fn walk(text: &str, mut see: impl FnMut(usize, usize) -> bool) {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    for (at, &byte) in bytes.iter().enumerate() {
        if !text.is_char_boundary(at) {
            continue;
        }
        if !see(at, depth) {
            return;
        }
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            // The arrow of a function's type closes nothing.
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'o' if bytes[at..].starts_with(b"operator") && !before_is_word(bytes, at) => {
                let after = bytes.get(at + 8).copied().unwrap_or(b' ');
                if !after.is_ascii_alphanumeric() && after != b'_' {
                    return;
                }
            }
            _ => {}
        }
    }
}

fn before_is_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// Returns where the name ends and its parameters begin.
fn name_end(function: &str) -> usize {
    let bytes = function.as_bytes();
    let end = depth_zero(function, |rest| {
        if !rest.starts_with('(') {
            return false;
        }
        // `(anonymous namespace)::x`, `(*conn).serve` and `(.*)::x` are parts of names: something goes on behind them.
        let at = function.len() - rest.len();
        let close = matching(bytes, at);
        let behind = function.get(close + 1..).unwrap_or("");
        !(behind.starts_with("::") || behind.starts_with('.') && bytes.get(at + 1) == Some(&b'*'))
    });
    end.unwrap_or(function.len())
}

/// Returns the place of the bracket that closes the one at `open`; the end where none does.
fn matching(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, &byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

fn last_separator(head: &str) -> Option<usize> {
    let mut colons = None;
    let mut dot = None;
    walk(head, |at, depth| {
        if depth == 0 {
            let rest = &head.as_bytes()[at..];
            if rest.starts_with(b"::") {
                colons = Some(at);
            } else if rest.starts_with(b".") && at > 0 {
                dot = Some(at);
            }
        }
        true
    });
    colons.or(dot.filter(|&at| !is_suffix(&head[at..])))
}

/// Returns whether a text is what compilers put behind the name of a clone: `.cold`, `.part.0`, `.llvm.123`.
pub(crate) fn is_suffix(text: &str) -> bool {
    const WORDS: [&str; 8] = [
        "cold",
        "isra",
        "part",
        "constprop",
        "llvm",
        "lto_priv",
        "localalias",
        "clone",
    ];
    let is_part = |part: &str| {
        let digits = part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
        !part.is_empty() && (digits || WORDS.contains(&part))
    };
    text.strip_prefix('.')
        .is_some_and(|rest| rest.split('.').all(is_part))
}

fn return_type_end(scope: &str) -> usize {
    let mut end = 0;
    walk(scope, |at, depth| {
        if depth == 0 && scope.as_bytes()[at] == b' ' {
            end = at + 1;
        }
        true
    });
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks what functions belong to, in the forms that demanglers write.
    #[test]
    fn a_function_belongs_to_the_scope_of_its_name() {
        for (function, belongs) in [
            (
                "void std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<int, std::allocator<int> >",
            ),
            ("std::map<int, a::b>::operator[](int&&)", "std::map<int, a::b>"),
            ("a::operator<(a::b const&, a::b const&)", "a"),
            (
                "std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char)",
                "std",
            ),
            (
                "(anonymous namespace)::Parser::next()",
                "(anonymous namespace)::Parser",
            ),
            (
                "std::function<void (int)>::operator()(int) const",
                "std::function<void (int)>",
            ),
            (
                "<alloc::vec::Vec<T,A> as core::clone::Clone>::clone",
                "alloc::vec::Vec<T,A>",
            ),
            (
                "<fn(A) -> B as core::ops::function::FnOnce<X>>::call_once",
                "fn(A) -> B",
            ),
            ("net/http.(*conn).serve", "net/http.(*conn)"),
            ("runtime.mallocgc", "runtime"),
            ("java.util.HashMap.put", "java.util.HashMap"),
            ("malloc", ""),
            ("parse_header.part.0", ""),
            ("read_all.constprop.0.isra.0", ""),
            ("main(int, char**)", ""),
            ("", ""),
        ] {
            assert_eq!(type_of(function), belongs, "{function}");
        }
    }

    /// Checks that the file decides on the language, and the form of the name where the file says nothing.
    #[test]
    fn the_language_is_told_by_file_then_by_name() {
        for (function, file, kernel, language) in [
            ("f", "src/main.rs", false, Some(Language::Rust)),
            ("core::ptr::read", "", false, Some(Language::Rust)),
            ("app::run::h0123456789abcdef", "", false, Some(Language::Rust)),
            (
                "a::b(int)",
                "/usr/include/c++/12/bits/stl_vector.h",
                false,
                Some(Language::Cpp),
            ),
            ("net/http.(*conn).serve", "", false, Some(Language::Go)),
            ("py::load:/app/a.py", "", false, Some(Language::Python)),
            ("Ljava/util/HashMap;::put", "", false, Some(Language::Java)),
            ("vfs_read", "", true, Some(Language::C)),
            ("malloc", "", false, None),
        ] {
            assert_eq!(Language::of(function, file, kernel), language, "{function}");
        }
    }

    proptest! {
        /// Checks that no name breaks it, and that the answer is a part of the name.
        #[test]
        fn any_name_has_an_answer(name in "[a-z<>():. \u{e4}\\-\\[\\]{}]{0,30}(operator)?[a-z<>():. ]{0,9}") {
            prop_assert!(name.contains(type_of(&name)));
            Language::of(&name, "", false);
        }
    }
}
