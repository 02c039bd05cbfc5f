//! `strobe health`: asks a service on this host how it is; for health checks of containers.

use strobe_telemetry::{Admin, probe};

use crate::config::Config;
use crate::error::CliError;
use crate::render;

/// Whom to ask, and what.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe health processor\n  strobe health sink --ready\n  strobe health trigger"
)]
pub struct Args {
    /// Which service: its address is `admin.processor`, `admin.sink` or `admin.trigger` of the configuration.
    #[arg(value_enum)]
    service: Service,
    /// Ask whether it can work now, that is, whether bus and store answer; not only whether it moves.
    #[arg(long)]
    ready: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Service {
    Processor,
    Sink,
    Trigger,
}

/// Asks, and says "ok".
///
/// # Errors
/// [`CliError::Unwell`] with what the service says; [`CliError::Config`] where it has no endpoint.
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let (key, address) = match args.service {
        Service::Processor => ("admin.processor", &config.admin.processor),
        Service::Sink => ("admin.sink", &config.admin.sink),
        Service::Trigger => ("admin.trigger", &config.admin.trigger),
    };
    let Some(endpoint) = Admin::parse(key, address)? else {
        return Err(CliError::Config(format!(
            "`{key}` is empty: the service has no endpoint to ask; `127.0.0.1:9642` for example"
        )));
    };
    let path = if args.ready { "/-/ready" } else { "/-/healthy" };
    probe(endpoint, path).map_err(CliError::Unwell)?;
    render::say("ok")
}
