//! `strobe topics`: the bus's topics are created here, never by accident.

use strobe_bus::{TopicAction, admin};

use crate::config::Config;
use crate::error::CliError;
use crate::render;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Create topics that are missing and alter settings that differ.
    Apply {
        /// Only say what would be done.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Applies the topics.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    let Command::Apply { dry_run } = command;
    let changes = admin::apply(&config.bus()?, *dry_run)?;
    let unchanged = changes
        .iter()
        .filter(|change| change.action == TopicAction::Unchanged)
        .count();
    for change in changes
        .iter()
        .filter(|change| change.action != TopicAction::Unchanged)
    {
        render::say(format!(
            "{}{change}",
            if *dry_run { "would be done: " } else { "" }
        ))?;
    }
    render::say(format!(
        "{unchanged} of {} topics are as they should be",
        changes.len()
    ))
}
