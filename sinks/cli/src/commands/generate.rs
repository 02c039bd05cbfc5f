//! `strobe generate`: what a package holds beside the executable, made from the command line itself.

use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;

use crate::error::CliError;

/// Where to.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for manual pages (`strobe.1`, `strobe-top.1`, ...) and completions (`strobe.bash`, `_strobe`, `strobe.fish`).
    folder: PathBuf,
}

/// Writes manual pages and completions.
///
/// # Errors
/// [`CliError::Io`].
pub fn run(mut command: clap::Command, args: &Args) -> Result<(), CliError> {
    let trouble = |source| CliError::Io {
        action: "write",
        what: args.folder.display().to_string(),
        source,
    };
    fs::create_dir_all(&args.folder).map_err(trouble)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "strobe", &args.folder).map_err(trouble)?;
    }
    clap_mangen::generate_to(command, &args.folder).map_err(trouble)
}
