//! `strobe topics`: the bus's topics are created here, never by accident.

use serde_json::json;
use strobe_bus::{Groups, Role, TopicAction, admin, rights};

use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe topics apply --dry-run\n  strobe topics apply\n  strobe topics acls\n  strobe topics acls --commands \\\n    | \
                  while read -r right; do kafka-acls.sh --bootstrap-server kafka:9092 --command-config admin.properties $right; done"
)]
pub enum Command {
    /// Create topics that are missing and alter settings that differ.
    Apply {
        /// Only say what would be done.
        #[arg(long)]
        dry_run: bool,
    },
    /// Which rights each process needs on the bus, and nothing more.
    Acls {
        /// One line of arguments for Kafka's own `kafka-acls` per right.
        #[arg(long)]
        commands: bool,
        /// What principals are called: `{}` stands for strobe-agent, strobe-processor, ...
        #[arg(long, default_value = "User:{}", value_name = "PATTERN")]
        principal: String,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
}

/// Applies the topics.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    match command {
        Command::Apply { dry_run } => apply(config, *dry_run),
        Command::Acls {
            commands,
            principal,
            output,
        } => acls(config, *commands, principal, *output),
    }
}

fn acls(config: &Config, commands: bool, principal: &str, output: Output) -> Result<(), CliError> {
    if !principal.contains("{}") {
        return Err(CliError::Usage(format!(
            "`--principal {principal}` names everybody the same: put `{{}}` where the process's name goes"
        )));
    }
    let called = |role: Role| principal.replace("{}", role.name());
    let groups = Groups {
        processor: &config.processor.group,
        sink: &config.sink.group,
        tuner: &config.tuner.group,
        trigger: &config.trigger.group,
    };
    let rights = rights(&config.bus()?, groups);
    if commands {
        return rights
            .iter()
            .try_for_each(|right| render::say(right.command(&called(right.role))));
    }
    match output {
        Output::Json => render::json(
            &rights
                .iter()
                .map(|right| {
                    json!({ "principal": called(right.role), "resource": right.resource.to_string(),
                            "operations": right.operations, "why": right.why })
                })
                .collect::<Vec<_>>(),
        ),
        Output::Table => {
            let columns = [
                ("principal", false),
                ("on", false),
                ("may", false),
                ("what for", false),
            ];
            let rows = rights.iter().map(|right| {
                vec![
                    called(right.role),
                    right.resource.to_string(),
                    right.operations.join(", "),
                    right.why.to_owned(),
                ]
            });
            render::say(render::table(&columns, rows))
        }
    }
}

fn apply(config: &Config, dry_run: bool) -> Result<(), CliError> {
    let changes = admin::apply(&config.bus()?, dry_run)?;
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
            if dry_run { "would be done: " } else { "" }
        ))?;
    }
    let changed = changes.len() - unchanged;
    render::say(match (changed, dry_run) {
        (0, _) => format!("all {unchanged} topics are as they should be"),
        (_, true) => format!("{changed} of {} topics are not as they should be", changes.len()),
        (_, false) => format!(
            "{} topics: {changed} dealt with, {unchanged} were as they should be",
            changes.len()
        ),
    })
}
