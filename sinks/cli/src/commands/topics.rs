//! `strobe topics`: the bus's topics are created here, never by accident.

use strobe_bus::{TopicAction, admin};

use crate::config::Config;
use crate::error::CliError;
use crate::render;

/// What to do.
#[derive(clap::Subcommand)]
#[command(after_help = "EXAMPLES\n  strobe topics apply --dry-run\n  strobe topics apply")]
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
    let changed = changes.len() - unchanged;
    render::say(match (changed, *dry_run) {
        (0, _) => format!("all {unchanged} topics are as they should be"),
        (_, true) => format!("{changed} of {} topics are not as they should be", changes.len()),
        (_, false) => format!(
            "{} topics: {changed} dealt with, {unchanged} were as they should be",
            changes.len()
        ),
    })
}
