//! What people and scripts see.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};

use strobe_explore::Range;

use crate::error::CliError;
use crate::times::shown;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For scripts: stable names.
    Json,
}

/// Returns text without anything that a terminal would obey: names come from profiled processes.
pub fn plain(text: &str) -> String {
    let harmless =
        |c: char| !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| if harmless(c) || c == '\n' { c } else { '\u{fffd}' })
        .collect()
}

/// Returns what to say where nothing is stored of a range.
pub fn nothing(range: Range) -> CliError {
    CliError::NothingStored {
        since: shown(range.since_us),
        until: shown(range.until_us),
    }
}

/// Returns whether answers may have colours: on a terminal, unless `NO_COLOR` is set.
fn in_colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns a table of `columns`; those marked `true` hold numbers. Cells are made harmless.
pub fn table(columns: &[(&str, bool)], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if !io::stdout().is_terminal() {
        // Scripts and files get whole names.
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    let bold = in_colour();
    table.set_header(columns.iter().map(|(name, _)| {
        let cell = Cell::new(name);
        if bold {
            cell.add_attribute(Attribute::Bold)
        } else {
            cell
        }
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(&cell.replace('\n', " "))));
    }
    for (index, (_, number)) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(index).filter(|_| *number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes a line to standard output. A reader that has gone away (`| head`) is no error.
///
/// # Errors
/// [`CliError::Io`] for anything else.
pub fn say(line: impl std::fmt::Display) -> Result<(), CliError> {
    written(writeln!(io::stdout(), "{line}"))
}

/// Takes the outcome of writing to standard output.
///
/// # Errors
/// [`CliError::Io`] but for a reader that has gone away.
pub fn written(result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(source) => Err(CliError::Io {
            action: "write to",
            what: "standard output".into(),
            source,
        }),
        Ok(()) => Ok(()),
    }
}

/// Writes JSON to standard output.
///
/// # Errors
/// As [`say`].
pub fn json(value: &impl serde::Serialize) -> Result<(), CliError> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => say(text),
        Err(error) => written(Err(io::Error::other(error))),
    }
}

/// Returns a number with enough digits to be told from others.
pub fn cores(value: f64) -> String {
    format!("{value:.3}")
}

/// Returns a share of `all` in per cent.
pub fn per_cent(part: f64, all: f64) -> String {
    if all > 0.0 {
        format!("{:.1} %", 100.0 * part / all)
    } else {
        "-".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a hostile name can neither move the cursor nor turn the reading direction.
    #[test]
    fn hostile_names_are_harmless() {
        let shown = plain("a\u{1b}[2Jb\u{202e}c\rd");
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\r']), "{shown:?}");
        let table = table(&[("name", false)], [vec!["x\u{1b}[31m\ny".to_owned()]]).to_string();
        assert!(!table.contains('\u{1b}'), "{table:?}");
    }
}
