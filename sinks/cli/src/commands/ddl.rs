//! `strobe ddl`: the store's tables.

use strobe_explore::ddl;

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render;

/// What to do.
#[derive(clap::Subcommand)]
#[command(after_help = "EXAMPLES\n  strobe ddl apply\n  strobe ddl print --cluster main > tables.sql")]
pub enum Command {
    /// Create the database and the tables that are missing.
    Apply,
    /// Print the statements, for people who apply them by themselves.
    Print {
        /// In the Replicated, `ON CLUSTER` form for this cluster.
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
    },
}

/// Applies or prints the tables.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    match command {
        Command::Apply => {
            let writer = config.clickhouse.writer()?;
            wait(async { Ok(ddl::apply(&writer).await?) })?;
            render::say(format!("the tables of `{}` are there", writer.database()))
        }
        Command::Print { cluster: None } => ddl::statements()
            .into_iter()
            .try_for_each(|statement| render::say(format!("{};\n", statement.trim()))),
        Command::Print {
            cluster: Some(cluster),
        } => ddl::replicated(cluster)?
            .into_iter()
            .try_for_each(|statement| render::say(format!("{};\n", statement.trim()))),
    }
}
