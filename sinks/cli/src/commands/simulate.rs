//! `strobe simulate`: what sampling would do with a fleet, against a truth that is known.

use std::path::PathBuf;

use strobe_simulate::{Scenario, SimulateError, World, simulate};

use crate::error::CliError;
use crate::{input, render};

/// `strobe simulate soft-server.toml --seed 7 --plot soft-server.svg`
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    strobe simulate schemas/sampling/simulate/scenarios/soft-server.toml\n  \
    strobe simulate fleet.toml --seed 7 --plot fleet.svg --services 4")]
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
}

/// Simulates a scenario.
///
/// # Errors
/// [`CliError`].
pub fn run(args: &Args) -> Result<(), CliError> {
    let text = input::text(&args.scenario)?;
    let wrong = |error: SimulateError| CliError::Usage(format!("{}: {error}", args.scenario.display()));
    let scenario = Scenario::from_toml(&text).map_err(wrong)?;
    let world = World::new(&scenario).map_err(wrong)?;
    let outcome = simulate(&scenario, &world, args.seed, None).map_err(wrong)?;
    let truth = world.truth();
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
