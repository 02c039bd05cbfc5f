//! The functions at an address of a binary, as people read them: what `strobe symbols` prints of a symbol file.

use strobe_symbols::file::{Place, SymbolFile};

use crate::error::CliError;
use crate::render;

/// One function at an address, in text.
pub(crate) struct Level {
    pub name: String,
    pub raw: String,
    pub belongs_to: String,
    pub generic: String,
    pub parameters: String,
    pub file: String,
    pub line: u32,
}

/// Returns the functions at an address, outermost first.
///
/// # Errors
/// [`CliError`] where the file does not hold together.
pub(crate) fn levels(file: &mut SymbolFile, address: u64) -> Result<Vec<Level>, CliError> {
    let mut places: Vec<Place> = Vec::new();
    let wrong = strobe_processor::ProcessorError::from;
    file.find(address, &mut places).map_err(wrong)?;
    let mut out = Vec::new();
    for place in places {
        let name = file.function(place.function).map_err(wrong)?;
        let path = match place.file {
            0 => String::new(),
            number => file.with_file(number, str::to_owned).map_err(wrong)?,
        };
        out.push(Level {
            belongs_to: name.parts.belongs_to(&name.name).to_owned(),
            generic: name.parts.generic(&name.name),
            parameters: name.parts.parameters(&name.name).to_owned(),
            name: name.name,
            raw: name.raw,
            file: path,
            line: place.line,
        });
    }
    Ok(out)
}

/// Prints the functions at an address, the innermost first, as stacks are read.
pub(crate) fn say_levels(address: u64, levels: &[Level]) -> Result<(), CliError> {
    for (depth, level) in levels.iter().rev().enumerate() {
        let place = match (level.file.as_str(), level.line) {
            ("", _) => String::new(),
            (file, 0) => format!("  {file}"),
            (file, line) => format!("  {file}:{line}"),
        };
        let inlined = if depth + 1 < levels.len() {
            "  (inlined)"
        } else {
            ""
        };
        let start = if depth == 0 {
            format!("{address:#x}: ")
        } else {
            "    in ".to_owned()
        };
        render::say(format!(
            "{start}{}{}{inlined}",
            render::plain(&level.name),
            render::plain(&place)
        ))?;
    }
    Ok(())
}
