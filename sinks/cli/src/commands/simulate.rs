//! `strobe simulate`: what sampling would do with a fleet, against a truth that is known.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use strobe_explore::{Explorer, Range};
use strobe_sampling::spread::Total;
use strobe_simulate::{Outcome, Scenario, SimulateError, World, simulate, simulate_with};

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::{input, render};

mod bus;

use bus::Bus;

/// Longest wait until what was sent is stored.
const STORED: Duration = Duration::from_secs(120);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// `strobe simulate soft-server.toml --seed 7 --plot soft-server.svg`
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES\n  \
    strobe simulate schemas/sampling/simulate/scenarios/soft-server.toml\n  \
    strobe simulate fleet.toml --seed 7 --plot fleet.svg --services 4\n  \
    strobe --config simulated.toml simulate fleet.toml --through-bus")]
pub struct Args {
    /// The scenario: hosts, services, loads, faults.
    scenario: PathBuf,
    /// One seed, one result.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a picture of the rates and of the error of the totals, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Services in the picture, from the first on.
    #[arg(long, default_value_t = 4)]
    services: usize,
    /// Let the hosts report to the bus of the configuration, whose topics must not be those of real hosts; a tuner, a processor and a
    /// sink must be running. The plans are theirs, and the totals are compared as they are stored.
    #[arg(long)]
    through_bus: bool,
}

/// Simulates a scenario.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let text = input::text(&args.scenario)?;
    let wrong = |error: SimulateError| CliError::Usage(format!("{}: {error}", args.scenario.display()));
    let scenario = Scenario::from_toml(&text).map_err(wrong)?;
    let world = World::new(&scenario).map_err(wrong)?;
    let truth = world.truth();
    let outcome = if args.through_bus {
        through_bus(config, &scenario, &world, args.seed)?
    } else {
        simulate(&scenario, &world, args.seed, None).map_err(wrong)?
    };
    render::say(outcome.table(&truth))?;
    if let Some(file) = &args.plot {
        let picture = outcome
            .plot(&truth, args.services)
            .map_err(|error| CliError::Usage(error.to_string()))?;
        std::fs::write(file, picture).map_err(input::failed("write", file))?;
        eprintln!("written to {}", file.display());
    }
    Ok(())
}

fn through_bus(config: &Config, scenario: &Scenario, world: &World, seed: u64) -> Result<Outcome, CliError> {
    let mut bus = Bus::open(&config.bus()?, scenario, world, seed)?;
    let failed = |error: SimulateError| CliError::Usage(error.to_string());
    let outcome = simulate_with(scenario, world, seed, &mut bus).map_err(failed)?;
    bus.flush().map_err(|error| CliError::Usage(error.to_string()))?;
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    eprintln!(
        "{} samples are on the bus; waiting until they are stored",
        bus.samples
    );
    wait(stored(&explorer, &bus))?;
    compare(&explorer, &bus, world)?;
    Ok(outcome)
}

/// Waits until all samples are stored.
async fn stored(explorer: &Explorer, bus: &Bus) -> Result<(), CliError> {
    let deadline = Instant::now() + STORED;
    // Made of hexadecimal digits alone.
    let sql = format!(
        "SELECT count() FROM samples WHERE epoch = toUUID('{}')",
        bus.epoch()
    );
    loop {
        let table = explorer.query(&sql).await?;
        let count = table.rows.first().and_then(|row| row.first());
        let count = count.and_then(|count| count.as_u64().or_else(|| count.as_str()?.parse().ok()));
        if count == Some(bus.samples) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(CliError::Usage(format!(
                "{} of {} samples are stored after {} s: are `strobe run processor` and `strobe run sink` running? `strobe status` says \
                 more",
                count.unwrap_or(0),
                bus.samples,
                STORED.as_secs()
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Prints what the store says of each service, against the truth.
fn compare(explorer: &Explorer, bus: &Bus, world: &World) -> Result<(), CliError> {
    let (since_us, until_us) = bus.span(world);
    let range = Range { since_us, until_us };
    let hours = wait(async { Ok(explorer.service_hours("cpu", range).await?) })?;
    let rows = world.services.iter().zip(world.truth()).map(|(load, truth)| {
        let (mut total, mut variance, mut sampled) = (0.0, 0.0, 0_u64);
        for hour in hours.iter().filter(|hour| hour.service == load.name) {
            match hour.total {
                Total::NotSampled => continue,
                Total::FewRuns { total: known, .. } => total += known,
                Total::Known {
                    total: known,
                    plus_minus,
                    ..
                } => {
                    total += known;
                    variance += plus_minus * plus_minus;
                }
            }
            sampled += 1;
        }
        let true_seconds: f64 = truth.iter().flatten().sum();
        vec![
            load.name.clone(),
            sampled.to_string(),
            format!("{total:.0}"),
            format!("{:.0}", variance.sqrt()),
            format!("{true_seconds:.0}"),
            format!("{:+.2}", 100.0 * (total / true_seconds - 1.0)),
        ]
    });
    let columns = [
        ("service", false),
        ("hours", true),
        ("CPU s stored", true),
        ("±", true),
        ("CPU s true", true),
        ("error %", true),
    ];
    render::say(render::table(&columns, rows))
}
