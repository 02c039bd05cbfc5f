//! Stacks as text: `root;…;leaf`, with what else is known of a frame in braces behind its name.
//!
//! `main;std::sort(int*, int*) {module orders, file sort.h, line 12, inlined};read {kernel}`. A `;` that belongs to a name
//! has a backslash before it.

use std::fmt::Write;

use crate::location::Location;

/// A frame that owns its texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FoldedFrame {
    /// Its function.
    pub function: String,
    /// Its source file; empty if not known.
    pub file: String,
    /// Its module; empty if not known.
    pub module: String,
    /// Its line; 0 if not known.
    pub line: u32,
    /// Whether it was inlined.
    pub inlined: bool,
    /// Whether it lies in the kernel.
    pub kernel: bool,
    /// Whether it has no name.
    pub unnamed: bool,
}

impl FoldedFrame {
    /// Returns it as the matcher takes it.
    pub fn location(&self) -> Location<'_> {
        Location {
            function: &self.function,
            file: &self.file,
            module: &self.module,
            line: self.line,
            inlined: self.inlined,
            kernel: self.kernel,
            unnamed: self.unnamed,
        }
    }
}

/// Returns the frames of a folded stack, root first.
///
/// # Errors
/// What is wrong with which frame, in words.
pub fn parse(text: &str) -> Result<Vec<FoldedFrame>, String> {
    let mut frames = Vec::new();
    let mut rest = text;
    loop {
        let (piece, more) = split(rest);
        let frame = frame(&piece)?;
        if frame.function.is_empty() {
            return Err(format!("frame {} of the stack has no name", frames.len() + 1));
        }
        frames.push(frame);
        match more {
            Some(more) => rest = more,
            None => return Ok(frames),
        }
    }
}

/// Splits at the first `;` that has no backslash before it.
fn split(text: &str) -> (String, Option<&str>) {
    let mut piece = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if chars.peek().is_some_and(|&(_, next)| next == ';') => {
                piece.push(';');
                chars.next();
            }
            ';' => return (piece, Some(&text[at + 1..])),
            c => piece.push(c),
        }
    }
    (piece, None)
}

/// Returns the pieces between `;`, without blanks around them.
pub(crate) fn pieces(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let (piece, more) = split(text);
        pieces.push(piece.trim().to_owned());
        rest = more;
    }
    pieces
}

fn frame(piece: &str) -> Result<FoldedFrame, String> {
    let piece = piece.trim();
    let plain = || FoldedFrame {
        function: piece.to_owned(),
        ..FoldedFrame::default()
    };
    // Names may hold braces of their own (`{lambda()#1}`, `{{closure}}`): ours stand last, behind a space.
    let Some(begin) = piece.rfind(" {").filter(|_| piece.ends_with('}')) else {
        return Ok(plain());
    };
    let said = &piece[begin + 2..piece.len() - 1];
    let mut frame = FoldedFrame {
        function: piece[..begin].trim_end().to_owned(),
        ..FoldedFrame::default()
    };
    for word in said.split(',').map(str::trim) {
        let (what, value) = word.split_once(' ').unwrap_or((word, ""));
        match what {
            "module" => value.clone_into(&mut frame.module),
            "file" => value.clone_into(&mut frame.file),
            "line" => {
                frame.line = value.parse().map_err(|_| format!("`{value}` is no line"))?;
            }
            "inlined" => frame.inlined = true,
            "kernel" => frame.kernel = true,
            "unnamed" => frame.unnamed = true,
            _ => {
                return Err(format!(
                    "`{word}` says nothing of a frame: use module, file, line, inlined, kernel or unnamed"
                ));
            }
        }
    }
    Ok(frame)
}

/// Returns the folded stack of frames, root first: the text that [`parse`] takes.
pub fn write(frames: &[FoldedFrame]) -> String {
    let mut text = String::new();
    for (index, frame) in frames.iter().enumerate() {
        if index > 0 {
            text.push(';');
        }
        text.push_str(&frame.function.replace(';', "\\;"));
        let mut said: Vec<String> = Vec::new();
        if !frame.module.is_empty() {
            said.push(format!("module {}", frame.module));
        }
        if !frame.file.is_empty() {
            said.push(format!("file {}", frame.file));
        }
        if frame.line > 0 {
            said.push(format!("line {}", frame.line));
        }
        let flags = [
            ("inlined", frame.inlined),
            ("kernel", frame.kernel),
            ("unnamed", frame.unnamed),
        ];
        said.extend(
            flags
                .iter()
                .filter(|(_, on)| *on)
                .map(|(name, _)| (*name).to_owned()),
        );
        if !said.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, " {{{}}}", said.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = FoldedFrame> {
        (
            "[a-z:<>;{}#]{0,8}[a-z]",
            "[a-z./]{0,6}",
            "[a-z.]{0,4}",
            any::<u16>(),
            any::<[bool; 3]>(),
        )
            .prop_map(
                |(function, file, module, line, [inlined, kernel, unnamed])| FoldedFrame {
                    function,
                    file,
                    module,
                    line: line.into(),
                    inlined,
                    kernel,
                    unnamed,
                },
            )
    }

    proptest! {
        /// Checks that any stack can be written and read back.
        #[test]
        fn what_is_written_is_read_back(stack in prop::collection::vec(frames(), 1..5)) {
            prop_assert_eq!(parse(&write(&stack)), Ok(stack));
        }
    }
}
