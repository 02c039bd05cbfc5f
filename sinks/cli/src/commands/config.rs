//! `strobe config`: is the configuration right, before it is deployed and before a service starts.

use strobe_telemetry::Admin;

use crate::config::Config;
use crate::error::CliError;
use crate::render;

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe config check\n  strobe --config new.toml config check sink && mv new.toml \
                  /etc/strobe/strobe.toml"
)]
pub enum Command {
    /// Prove the configuration without starting anything or asking anybody; exit code 78 where it is wrong.
    Check {
        /// Only what this service needs, such as its password file; else everything.
        #[arg(value_enum)]
        service: Option<Service>,
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
    let Command::Check { service } = command;
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
