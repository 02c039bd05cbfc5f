//! `strobe`: the tool people type, and every role but the agent's, one process each.
//!
//! Each command is a file in `commands/`; what several share is in `config`, `times`, `selection` and `render`. Answers go
//! to standard output, everything else to standard error; the exit code says how it went.

mod asking;
mod auditing;
mod commands;
mod config;
mod error;
mod input;
mod render;
mod selection;
mod shipped;
mod tagging;
mod times;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::Config;
use crate::error::CliError;

/// Asks where time goes, on one host or a fleet, and runs the parts that find out.
#[derive(Parser)]
#[command(
    name = "strobe",
    version,
    after_help = "EXIT CODES\n  0   it worked\n  1   it failed, or `doctor` found something that does not work\n  2   wrong \
                  usage\n  3   nothing is stored of what was asked for\n  69  a part cannot be reached\n  78  the configuration is wrong\n\nEXAMPLES\n  strobe top --since \
                  -15m\n  strobe top --service orders --by line\n  strobe flamegraph --since -1h --output cpu.svg\n  strobe \
                  top --since -10m --baseline now-1h10m..now-1h\n  strobe query 'SELECT service, sum(fleet_weight) FROM \
                  samples GROUP BY service'\n  strobe profile --service orders --duration 10s\n  strobe \
                  status\n  strobe doctor"
)]
struct Cli {
    /// Configuration file (default: /etc/strobe/strobe.toml, if it exists).
    #[arg(long, global = true, env = "STROBE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kafka brokers, `host:port`, separated by commas.
    #[arg(long, global = true, env = "STROBE_BOOTSTRAP")]
    bootstrap: Option<String>,
    /// ClickHouse's HTTP address.
    #[arg(long, global = true, env = "STROBE_CLICKHOUSE_URL", value_name = "URL")]
    clickhouse: Option<String>,
    /// Where a service serves metrics and health, `127.0.0.1:9642` for example (else `admin` in the configuration).
    #[arg(long, global = true, env = "STROBE_ADMIN", value_name = "ADDRESS")]
    admin: Option<String>,
    /// Log level of the services: error, warn, info, debug, trace.
    #[arg(long, global = true, env = "STROBE_LOG", default_value = "info")]
    log_level: String,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// The heaviest functions, lines, modules, services, hosts or threads.
    Top(commands::top::Args),
    /// A flame graph as SVG.
    Flamegraph(commands::flamegraph::Args),
    /// Stacks for other tools: folded text or pprof.
    Export(commands::export::Args),
    /// SQL against the store, as the reader.
    Query(commands::query::Args),
    /// A profile now, from live hosts.
    Profile(commands::profile::Args),
    /// What was asked for, and what became of it: list, show, watch, cancel.
    #[command(subcommand)]
    Runs(commands::runs::Command),
    /// Who asked for what, who changed what, and what was refused.
    Audit(commands::audit::Args),
    /// Runs, lag, and both sides of the accounting.
    Status(commands::status::Args),
    /// Messages that could not be processed.
    #[command(subcommand)]
    Dlq(commands::dlq::Command),
    /// The topics of the bus.
    #[command(subcommand)]
    Topics(commands::topics::Command),
    /// The tables of the store.
    #[command(subcommand)]
    Ddl(commands::ddl::Command),
    /// The configuration: of a service, is it right; of the fleet, prove, compare and apply it.
    #[command(subcommand)]
    Config(commands::config::Command),
    /// What works on this host and what does not, and what to do about it.
    Doctor(commands::doctor::Args),
    /// How a service on this host is: for health checks.
    Health(commands::health::Args),
    /// Stack schemas: look them over, run their examples, try them on what is stored, put them in force.
    #[command(subcommand)]
    Stacks(commands::stacks::Command),
    /// Tag what is stored anew, by the stack schemas in force.
    Retag(commands::retag::Args),
    /// Name what is stored anew, by what the symbol store has by now.
    Resymbolize(commands::resymbolize::Args),
    /// The symbol store: which binaries it can name, which are missing, and why.
    #[command(subcommand)]
    Symbols(commands::symbols::Command),
    /// Sampling: what is desired and in force, and whether the weights add up.
    #[command(subcommand)]
    Sampling(commands::sampling::Command),
    /// What sampling would do with a fleet: rates, totals and their errors, against a truth that is known.
    Simulate(commands::simulate::Args),
    /// Run a service until SIGTERM.
    #[command(subcommand)]
    Run(commands::run::Command),
    /// Completions for a shell, on standard output.
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Manual pages and completions into a folder: for packages.
    #[command(hide = true)]
    Generate(commands::generate::Args),
    /// The symbolizer's child process: started by the processor.
    #[command(hide = true)]
    SymbolWorker,
}

impl Cli {
    fn config(&self) -> Result<Config, CliError> {
        let mut config = Config::read(self.config.as_deref())?;
        if let Some(bootstrap) = &self.bootstrap {
            config.bus.bootstrap.clone_from(bootstrap);
        }
        if let Some(url) = &self.clickhouse {
            config.clickhouse.url.clone_from(url);
        }
        if let Some(admin) = &self.admin {
            config.admin.processor.clone_from(admin);
            config.admin.tuner.clone_from(admin);
            config.admin.sink.clone_from(admin);
            config.admin.trigger.clone_from(admin);
        }
        Ok(config)
    }

    fn start_log(&self) {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log_level)
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }

    fn run(self, command: Command) -> Result<(), CliError> {
        let config = self.config()?;
        if matches!(command, Command::Run(_)) {
            self.start_log();
        }
        match command {
            Command::Top(args) => commands::top::run(&config, &args),
            Command::Flamegraph(args) => commands::flamegraph::run(&config, &args),
            Command::Export(args) => commands::export::run(&config, &args),
            Command::Query(args) => commands::query::run(&config, &args),
            Command::Profile(args) => commands::profile::run(&config, &args),
            Command::Runs(command) => commands::runs::run(&config, &command),
            Command::Audit(args) => commands::audit::run(&config, &args),
            Command::Status(args) => commands::status::run(&config, &args),
            Command::Dlq(command) => commands::dlq::run(&config, &command),
            Command::Topics(command) => commands::topics::run(&config, &command),
            Command::Ddl(command) => commands::ddl::run(&config, &command),
            Command::Doctor(args) => commands::doctor::run(&config, &args),
            Command::Health(args) => commands::health::run(&config, &args),
            Command::Config(command) => commands::config::run(&config, &command),
            Command::Generate(args) => commands::generate::run(Cli::command(), &args),
            Command::Stacks(command) => commands::stacks::run(&config, &command),
            Command::Retag(args) => commands::retag::run(&config, &args),
            Command::Resymbolize(args) => commands::resymbolize::run(&config, &args),
            Command::Symbols(command) => commands::symbols::run(&config, &command),
            Command::Sampling(command) => commands::sampling::run(&config, &command),
            Command::Simulate(args) => commands::simulate::run(&config, &args),
            Command::Run(command) => commands::run::run(config, &command),
            Command::Completion { .. } | Command::SymbolWorker => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    let command = match cli.command.take() {
        None => {
            // What the tool's own message would list beside the commands is none for people.
            eprintln!("{}", Cli::command().render_help());
            return ExitCode::from(2);
        }
        // Before any thread exists: the worker limits itself first.
        Some(Command::SymbolWorker) => return strobe_symbols::worker_main(),
        Some(Command::Completion { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "strobe", &mut std::io::stdout());
            return ExitCode::SUCCESS;
        }
        Some(command) => command,
    };
    match cli.run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_said() {
                let remedy = error.remedy().map(|remedy| format!("; {remedy}"));
                eprintln!(
                    "strobe: {}{}",
                    error::with_causes(&error),
                    remedy.unwrap_or_default()
                );
            }
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the command line is well-formed: names, defaults, conflicts.
    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
