//! What is wrong and where: a file, a line, a column and a caret.

use std::fmt;
use std::sync::Arc;

/// Characters of a source line that are shown around the place; a line of a megabyte must not fill a terminal.
const SHOWN_CHARS: usize = 96;

/// A stretch of a file's text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// The text of one file and what it is called.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the file, as a person would type it.
    pub name: Arc<str>,
    /// Its text.
    pub text: Arc<str>,
}

impl Source {
    /// Returns the source of a file's text.
    pub fn new(name: &str, text: &str) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
        }
    }

    /// Returns an error at a place of this file.
    pub fn error(&self, span: Span, message: impl Into<String>) -> Diagnostic {
        self.diagnostic(Severity::Error, span, message.into())
    }

    /// Returns a warning at a place of this file.
    pub fn warning(&self, span: Span, message: impl Into<String>) -> Diagnostic {
        self.diagnostic(Severity::Warning, span, message.into())
    }

    fn diagnostic(&self, severity: Severity, span: Span, message: String) -> Diagnostic {
        let text = &*self.text;
        let start = floor_boundary(text, span.start as usize);
        let end = floor_boundary(text, (span.end as usize).max(start));
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let column = text[line_start..start].chars().count();
        // A window of whole characters that holds the place.
        let skip = column.saturating_sub(SHOWN_CHARS / 2);
        let line: String = text[line_start..line_end]
            .chars()
            .skip(skip)
            .take(SHOWN_CHARS)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let width = text[start..end.min(line_end).max(start)]
            .chars()
            .take(SHOWN_CHARS)
            .count();
        Diagnostic {
            severity,
            file: Arc::clone(&self.name),
            line: before.bytes().filter(|&byte| byte == b'\n').count() as u32 + 1,
            column: column as u32 + 1,
            message,
            help: None,
            excerpt: line,
            caret: (column - skip) as u32,
            width: width.max(1) as u32,
        }
    }
}

/// Returns the last place at or before `at` where a character begins.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, but probably not as meant.
    Warning,
    /// The schema is refused.
    Error,
}

/// One thing that is wrong with a file, at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The file.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What is wrong: lower case, no full stop.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    excerpt: String,
    caret: u32,
    width: u32,
}

impl Diagnostic {
    /// Returns the same with a remedy.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let line = self.line.to_string();
        let margin = " ".repeat(line.len());
        writeln!(f, "{severity}: {}", self.message)?;
        writeln!(f, "{margin}--> {}:{}:{}", self.file, self.line, self.column)?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{line} | {}", self.excerpt)?;
        let caret = " ".repeat(self.caret as usize);
        write!(f, "{margin} | {caret}{}", "^".repeat(self.width as usize))?;
        if let Some(help) = &self.help {
            let blank = if help.starts_with('\n') { "" } else { " " };
            write!(f, "\n{margin} = help:{blank}{help}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the caret stands under the place, with characters counted, not bytes.
    #[test]
    fn the_caret_stands_under_the_place() {
        let source = Source::new("a.stacks", "one\nünd two\n");
        let at = source.text.find("two").unwrap() as u32;
        let shown = source
            .error(
                Span {
                    start: at,
                    end: at + 3,
                },
                "no such number",
            )
            .with_help("say 2")
            .to_string();
        assert_eq!(
            shown,
            "error: no such number\n --> a.stacks:2:5\n  |\n2 | ünd two\n  |     ^^^\n  = help: say 2"
        );
    }

    /// Checks that a line of a megabyte shows as a window around the place.
    #[test]
    fn a_long_line_is_shown_in_part() {
        let text = format!("{}!{}", "a".repeat(500_000), "b".repeat(500_000));
        let shown = Source::new("long", &text)
            .error(
                Span {
                    start: 500_000,
                    end: 500_001,
                },
                "here",
            )
            .to_string();
        assert!(shown.len() < 400, "{} bytes", shown.len());
        let lines: Vec<&str> = shown.lines().collect();
        let column = lines[4].find('^').unwrap();
        assert_eq!(lines[3].as_bytes()[column], b'!');
    }
}
