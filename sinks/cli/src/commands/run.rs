//! `strobe run`: a service, until SIGTERM.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strobe_bus::{BusSettings, Shutdown, admin};
use strobe_explore::Explorer;
use strobe_processor::{ProcessorTelemetry, TriggerTelemetry, TunerTelemetry};
use strobe_sink::SinkTelemetry;
use strobe_store::Store;
use strobe_symbols::Binaries;
use strobe_symbols::api::Api;
use strobe_telemetry::{Admin, Health, Pulse, Reading, Source, supervise};

use crate::commands::wait;
use crate::config::Config;
use crate::error::{CliError, with_causes};

/// Longest time between two turns of a service's loop: each turns ten times a second, but it may wait for a drain of 10 s.
const LONGEST_TURN: Duration = Duration::from_secs(60);
/// How long an answer of the bus and the store is good for, so that probing costs them nothing.
const READY_FOR: Duration = Duration::from_secs(10);
/// How long the bus may take to answer: within what probes usually wait.
const PATIENCE: Duration = Duration::from_secs(2);

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
    /// Answers other tools over HTTP from the symbol store: Mozilla's symbolication API, version 5, on `symbols.listen`.
    Symbols,
    /// Tunes sampling to the rates that are desired: strobe.coverage to strobe.plans.
    Tuner,
    /// Picks hosts for what is asked for, and says what became of it: strobe.requests and strobe.reports.
    Trigger,
    /// Takes alerts at Alertmanager's webhook: HTTP to strobe.alerts.
    Alerts,
}

/// Runs the service.
///
/// # Errors
/// [`CliError`].
pub fn run(config: Config, command: &Command) -> Result<(), CliError> {
    if let Command::Symbols = command {
        return symbols(&config);
    }
    let bus = config.bus()?;
    let shutdown = Shutdown::on_signals()?;
    match command {
        Command::Symbols => Ok(()),
        Command::Processor => {
            let telemetry = Arc::new(ProcessorTelemetry::default());
            let endpoint = Admin::parse("admin.processor", &config.admin.processor)?;
            let settings = config.processor.validate(bus.clone())?;
            let counts = Arc::clone(&telemetry);
            let role = Role {
                readings: Box::new(move || counts.readings()),
                ready: Box::new(move || bus_answers(&bus)),
                remembered: Mutex::default(),
            };
            let mut health = health("processor", &telemetry.drive.pulse);
            if let Some(convert) = &settings.convert {
                // A turn lasts as long as the making of one symbol file.
                let longest = convert.time + LONGEST_TURN;
                health = health.with("symbol keeper", longest, Arc::clone(&telemetry.keeping.pulse));
            }
            start(role, health, endpoint, &shutdown)?;
            Ok(strobe_processor::run_with(&settings, &shutdown, &telemetry)?)
        }
        Command::Tuner => {
            let telemetry = Arc::new(TunerTelemetry::default());
            let endpoint = Admin::parse("admin.tuner", &config.admin.tuner)?;
            let settings = config.tuner.validate(bus.clone())?;
            let counts = Arc::clone(&telemetry);
            let role = Role {
                readings: Box::new(move || counts.readings()),
                ready: Box::new(move || bus_answers(&bus)),
                remembered: Mutex::default(),
            };
            start(role, health("tuner", &telemetry.pulse), endpoint, &shutdown)?;
            Ok(strobe_processor::tuner::run_with(
                &settings, &shutdown, &telemetry,
            )?)
        }
        Command::Trigger => {
            let telemetry = Arc::new(TriggerTelemetry::default());
            let endpoint = Admin::parse("admin.trigger", &config.admin.trigger)?;
            let settings = config.trigger.validate(bus.clone())?;
            let role = Role {
                readings: Box::new(Vec::new),
                ready: Box::new(move || bus_answers(&bus)),
                remembered: Mutex::default(),
            };
            start(role, health("trigger", &telemetry.pulse), endpoint, &shutdown)?;
            Ok(strobe_processor::trigger::run_with(
                &settings, &shutdown, &telemetry,
            )?)
        }
        Command::Alerts => {
            let pulse = Arc::new(Pulse::default());
            let settings = config.alerts.validate(bus.clone())?;
            let role = Role {
                readings: Box::new(Vec::new),
                ready: Box::new(move || bus_answers(&bus)),
                remembered: Mutex::default(),
            };
            start(role, health("alerts", &pulse), None, &shutdown)?;
            Ok(strobe_alerts::run(&settings, &shutdown, &pulse)?)
        }
        Command::Sink => {
            let telemetry = Arc::new(SinkTelemetry::default());
            let endpoint = Admin::parse("admin.sink", &config.admin.sink)?;
            let writer = config.clickhouse.writer()?;
            let settings = config.sink.validate(bus.clone(), writer.client())?;
            let counts = Arc::clone(&telemetry);
            let role = Role {
                readings: Box::new(move || counts.readings()),
                ready: Box::new(move || {
                    bus_answers(&bus)?;
                    let asked = wait(async { Ok(Explorer::new(&writer).query("SELECT 1").await?) });
                    asked.map(drop).map_err(|error| with_causes(&error))
                }),
                remembered: Mutex::default(),
            };
            start(role, health("sink", &telemetry.pulse), endpoint, &shutdown)?;
            Ok(strobe_sink::run_with(&settings, &shutdown, &telemetry)?)
        }
    }
}

fn bus_answers(bus: &BusSettings) -> Result<(), String> {
    admin::answers(bus, PATIENCE).map_err(|error| with_causes(&error))
}

/// Answers other tools from the symbol store. It needs neither bus nor ClickHouse.
fn symbols(config: &Config) -> Result<(), CliError> {
    let failed = |error: strobe_symbols::SymbolsError| strobe_processor::ProcessorError::from(error);
    let store = &config.processor.symbol_store;
    if store.as_os_str().is_empty() {
        return Err(strobe_processor::ProcessorError::NoSymbolStore.into());
    }
    let address = config.symbols.listen.trim().parse().map_err(|_| {
        CliError::Config(format!(
            "`symbols.listen` is `{}`: write an address and a port, `127.0.0.1:9644` for example",
            config.symbols.listen
        ))
    })?;
    let shutdown = Shutdown::on_signals()?;
    let store = Store::in_folder(store).map_err(strobe_processor::ProcessorError::from)?;
    let api = Api::new(address, Binaries::of_folder(store)).map_err(failed)?;
    let address = api.address().map_err(failed)?;
    tracing::info!(%address, "symbols are served: POST /symbolicate/v5");
    Ok(api.run(|| shutdown.is_requested()).map_err(failed)?)
}

/// Returns the health of a service that is one loop.
fn health(name: &'static str, pulse: &Arc<Pulse>) -> Health {
    Health::default().with(name, LONGEST_TURN, Arc::clone(pulse))
}

/// Starts what looks at a service from beside: the endpoint, and the word to the service manager.
fn start(role: Role, health: Health, endpoint: Option<Admin>, shutdown: &Shutdown) -> Result<(), CliError> {
    if let Some(endpoint) = endpoint {
        endpoint.serve(Arc::new(role), health.clone())?;
    }
    let token = shutdown.clone();
    Ok(supervise(health, move || token.is_requested())?)
}

/// When somebody last asked whether the service is ready, and the answer.
type Remembered = Option<(Instant, Result<(), String>)>;

/// What the endpoint reads of a service.
struct Role {
    readings: Box<dyn Fn() -> Vec<Reading> + Send + Sync>,
    ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    remembered: Mutex<Remembered>,
}

impl Source for Role {
    fn readings(&self) -> Vec<Reading> {
        (self.readings)()
    }

    fn ready(&self) -> Result<(), String> {
        // Held while asking: who comes meanwhile gets the same answer, and asks nobody.
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        match &*remembered {
            Some((asked, answer)) if asked.elapsed() < READY_FOR => answer.clone(),
            _ => {
                let answer = (self.ready)();
                *remembered = Some((Instant::now(), answer.clone()));
                answer
            }
        }
    }
}
