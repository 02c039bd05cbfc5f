//! Folded stacks: `root;…;leaf value`, one line per stack; the text that flame graph tools read.

use std::io::{self, Write};

/// Returns a name as it may stand in a folded stack: without `;`, line ends and other control characters.
pub fn clean(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}

/// Writes one stack, root first, with its value.
///
/// # Errors
/// Those of the writer.
pub fn write_line<'a>(
    out: &mut impl Write,
    frames: impl Iterator<Item = &'a str>,
    value: u64,
) -> io::Result<()> {
    for (depth, frame) in frames.enumerate() {
        if depth > 0 {
            out.write_all(b";")?;
        }
        out.write_all(clean(frame).as_bytes())?;
    }
    writeln!(out, " {value}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks that any names give one line with as many frames, and that the value comes back.
        #[test]
        fn any_names_give_one_line(names in prop::collection::vec(".*", 1..6), value: u64) {
            let mut out = Vec::new();
            write_line(&mut out, names.iter().map(String::as_str), value).unwrap();
            let text = String::from_utf8(out).unwrap();
            prop_assert_eq!(text.matches('\n').count(), 1);
            let (stack, last) = text.trim_end_matches('\n').rsplit_once(' ').unwrap();
            prop_assert_eq!(stack.split(';').count(), names.len());
            prop_assert_eq!(last.parse(), Ok(value));
        }
    }
}
