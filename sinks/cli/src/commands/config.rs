//! `strobe config`: is the configuration right, of a service before it starts, and of the fleet before it is in force.

use std::path::PathBuf;

use strobe_telemetry::Admin;

use crate::commands::config_files;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe config validate profiling/\n  strobe config diff profiling/\n  strobe config apply profiling/ --why 'more of checkout'\n  strobe config show\n  strobe config check\n  strobe --config new.toml config check sink && mv new.toml \
                  /etc/strobe/strobe.toml"
)]
pub enum Command {
    /// Prove the configuration without starting anything or asking anybody; exit code 78 where it is wrong.
    Check {
        /// Only what this service needs, such as its password file; else everything.
        #[arg(value_enum)]
        service: Option<Service>,
    },
    /// Prove files that say what is desired of the fleet: unknown keys, numbers that cannot be meant, what is said twice.
    Validate {
        /// The folder with the files.
        folder: PathBuf,
    },
    /// What they would change; exit code 1 where there is a difference.
    Diff {
        /// The folder with the files.
        folder: PathBuf,
    },
    /// Sign them and put them in force, whole.
    Apply(config_files::Apply),
    /// What is on the bus.
    Show {
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
}

/// A service.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Service {
    /// `strobe run processor`.
    Processor,
    /// `strobe run sink`.
    Sink,
    /// `strobe run trigger`.
    Trigger,
}

/// Proves the configuration; that it is TOML with known keys has been proved by reading it.
///
/// # Errors
/// [`CliError`] names the key or the file.
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    let service = match command {
        Command::Check { service } => service,
        Command::Validate { folder } => return config_files::validate(folder),
        Command::Diff { folder } => return config_files::diff(config, folder),
        Command::Apply(args) => return config_files::apply(config, args),
        Command::Show { output } => return config_files::show(config, *output),
    };
    let wanted = |role| service.is_none_or(|service| service == role);
    let bus = config.bus()?;
    if wanted(Service::Processor) {
        config.processor.clone().validate(bus.clone())?;
        Admin::parse("admin.processor", &config.admin.processor)?;
    }
    if wanted(Service::Trigger) {
        config.trigger.clone().validate(bus.clone())?;
        Admin::parse("admin.trigger", &config.admin.trigger)?;
    }
    if service.is_none() {
        config.tuner.clone().validate(bus.clone())?;
    }
    if wanted(Service::Sink) {
        let store = config.clickhouse.writer()?;
        config.sink.clone().validate(bus, store.client())?;
        Admin::parse("admin.sink", &config.admin.sink)?;
    }
    if service.is_none() {
        config.clickhouse.reader()?;
    }
    render::say("configuration: ok")
}
