//! Files that a person names on the command line.

use std::path::Path;

use crate::error::CliError;

/// Bytes of a text: over this it is none that a person wrote.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Returns the error of an operation on a file or folder.
pub fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> CliError {
    let what = path.display().to_string();
    move |source| CliError::Io {
        action,
        what: what.clone(),
        source,
    }
}

/// Reads a text that a person wrote.
///
/// # Errors
/// [`CliError::Io`] where it cannot be read, [`CliError::Usage`] where it is over 4 MiB.
pub fn text(path: &Path) -> Result<String, CliError> {
    let bytes = std::fs::metadata(path).map_err(failed("read", path))?.len();
    if bytes > TEXT_BYTES_MAX {
        return Err(CliError::Usage(format!(
            "{} has {bytes} bytes: at most {TEXT_BYTES_MAX} are read",
            path.display()
        )));
    }
    std::fs::read_to_string(path).map_err(failed("read", path))
}
