//! `strobe run`: a service, until SIGTERM.

use strobe_bus::Shutdown;

use crate::config::Config;
use crate::error::CliError;

/// Which service.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe run processor\n  strobe --config /etc/strobe/strobe.toml --log-level debug run sink"
)]
pub enum Command {
    /// Names, tags and weighs batches: strobe.stacks.raw to strobe.samples.
    Processor,
    /// Stores batches: strobe.samples to ClickHouse.
    Sink,
}

/// Runs the service.
///
/// # Errors
/// [`CliError`].
pub fn run(config: Config, command: &Command) -> Result<(), CliError> {
    let bus = config.bus()?;
    match command {
        Command::Processor => {
            let settings = config.processor.validate(bus)?;
            Ok(strobe_processor::run(&settings, &Shutdown::on_signals()?)?)
        }
        Command::Sink => {
            let store = config.clickhouse.writer()?.client();
            let settings = config.sink.validate(bus, store)?;
            Ok(strobe_sink::run(&settings, &Shutdown::on_signals()?)?)
        }
    }
}
