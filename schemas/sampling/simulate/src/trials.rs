//! Many goes through one scenario, each with a seed of its own: is what they say right on average, and as
//! sure as it says?

use std::thread;

use strobe_sampling::spread::Total;

use crate::error::SimulateError;
use crate::fleet::simulate;
use crate::load::World;
use crate::outcome::Outcome;
use crate::run::Factor;
use crate::scenario::Scenario;

/// What the cells are called that are pooled over all hours.
const WHOLE_DAY: &str = "day";
/// Parts whose share is at least this are judged.
pub const SHARE_MIN: f64 = 0.01;

/// What one go said.
#[derive(Debug, Clone)]
struct Trial {
    /// Relative error of each cell: (service, hour of the day, part), pooled over the days; and (service,
    /// part), pooled over all hours.
    errors: Vec<f64>,
    /// Intervals that hold the truth, and intervals: of services' hours, and of their parts.
    held: [(u64, u64); 2],
}

/// A cell of the trials: what it is, and how far off it is on average.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Service, hour of the day and part.
    pub what: String,
    /// Mean relative error.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

/// What all goes said.
#[derive(Debug, Clone)]
pub struct Trials {
    /// Every cell.
    pub cells: Vec<Cell>,
    /// Share of the 95 % intervals of services' hours that hold the truth, and its standard error.
    pub held: (f64, f64),
    /// The same of their parts.
    pub held_parts: (f64, f64),
    /// Goes.
    pub goes: u64,
}

impl Trials {
    /// Goes through `scenario` with each of the seeds from `first` on, on as many threads; the result does
    /// not depend on how many.
    ///
    /// # Errors
    /// [`SimulateError`] where sampling refuses a number.
    pub fn run(
        scenario: &Scenario,
        first: u64,
        goes: u64,
        threads: u64,
        omit: Option<Factor>,
    ) -> Result<Self, SimulateError> {
        let world = World::new(scenario)?;
        let truth = world.truth();
        let trials = each_seed(first, goes, threads, |seed| {
            let outcome = simulate(scenario, &world, seed, omit)?;
            Ok(judge(&outcome, &world, &truth, omit))
        })?;
        Ok(Self::of(&trials, &world))
    }

    fn of(trials: &[Trial], world: &World) -> Self {
        let cells = cells(world)
            .iter()
            .enumerate()
            .map(|(at, what)| {
                let errors: Vec<f64> = trials.iter().map(|trial| trial.errors[at]).collect();
                let (mean, error) = mean_and_error(&errors);
                Cell {
                    what: what.clone(),
                    mean,
                    error,
                }
            })
            .collect();
        let held = |kind: usize| {
            let shares: Vec<f64> = trials
                .iter()
                .map(|trial| trial.held[kind].0 as f64 / trial.held[kind].1 as f64)
                .collect();
            mean_and_error(&shares)
        };
        Self {
            cells,
            held: held(0),
            held_parts: held(1),
            goes: trials.len() as u64,
        }
    }

    /// Returns the cell with the largest mean error.
    pub fn worst(&self) -> Option<&Cell> {
        self.cells
            .iter()
            .max_by(|a, b| a.mean.abs().total_cmp(&b.mean.abs()))
    }

    /// Returns the error of a whole service, over all hours.
    pub fn whole(&self, service: &str) -> Option<&Cell> {
        let what = format!("{service} {WHOLE_DAY} all");
        self.cells.iter().find(|cell| cell.what == what)
    }

    /// Returns the cell whose mean error is the most standard errors from nothing.
    pub fn most_significant(&self) -> Option<&Cell> {
        let errors = |cell: &Cell| cell.mean.abs() / cell.error.max(f64::MIN_POSITIVE);
        self.cells.iter().max_by(|a, b| errors(a).total_cmp(&errors(b)))
    }
}

/// Returns the mean of some values and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

/// Calls `go` for each seed and returns the results in the order of the seeds.
///
/// # Errors
/// The first error of any.
pub fn each_seed<T: Send>(
    first: u64,
    goes: u64,
    threads: u64,
    go: impl Fn(u64) -> Result<T, SimulateError> + Sync,
) -> Result<Vec<T>, SimulateError> {
    let threads = threads.clamp(1, goes.max(1));
    let mut of_thread: Vec<std::vec::IntoIter<Result<T, SimulateError>>> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let go = &go;
                scope.spawn(move || {
                    (thread..goes)
                        .step_by(threads as usize)
                        .map(|n| go(first + n))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let ended = started.into_iter().map(|thread| match thread.join() {
            Ok(results) => results.into_iter(),
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    });
    (0..goes)
        .filter_map(|n| of_thread[(n % threads) as usize].next())
        .collect()
}

/// Returns what each cell is, in order: of every service the hours of the day, each with its judged parts and
/// the whole.
fn cells(world: &World) -> Vec<String> {
    let mut cells = Vec::new();
    for load in &world.services {
        for hour in 0..=24 {
            let hour = if hour == 24 {
                WHOLE_DAY.to_owned()
            } else {
                format!("{hour:02}h")
            };
            for part in judged(world, load.parts(), &load.name) {
                let part = if part == load.parts() {
                    "all".to_owned()
                } else {
                    format!("part {part}")
                };
                cells.push(format!("{} {hour} {part}", load.name));
            }
        }
    }
    cells
}

/// Returns the parts of a service that are judged; the whole comes after its last part.
fn judged(world: &World, parts: usize, service: &str) -> Vec<usize> {
    let load = world.services.iter().find(|load| load.name == service);
    (0..=parts)
        .filter(|&part| part == parts || load.is_some_and(|load| load.share(part) >= SHARE_MIN))
        .collect()
}

fn judge(outcome: &Outcome, world: &World, truth: &[Vec<Vec<f64>>], omit: Option<Factor>) -> Trial {
    let mut trial = Trial {
        errors: Vec::new(),
        held: [(0, 0); 2],
    };
    for (service, (load, truth)) in outcome.services.iter().zip(world.services.iter().zip(truth)) {
        let corrections = service.corrections(omit);
        let parts = judged(world, load.parts(), &load.name);
        let mut whole = vec![(0.0, 0.0); parts.len()];
        for of_day in 0..24 {
            for (&part, whole) in parts.iter().zip(&mut whole) {
                let (mut said, mut is) = (0.0, 0.0);
                for hour in (of_day..service.hours.len()).step_by(24) {
                    let exact = match truth[hour].get(part) {
                        Some(&exact) => exact,
                        None => truth[hour].iter().sum(),
                    };
                    is += exact;
                    match service.hours[hour].total(part, corrections[hour]) {
                        Total::Known {
                            total, plus_minus, ..
                        } => {
                            said += total;
                            let kind = usize::from(part != load.parts());
                            trial.held[kind].0 += u64::from((total - exact).abs() <= plus_minus);
                            trial.held[kind].1 += 1;
                        }
                        Total::FewRuns { total, .. } => said += total,
                        Total::NotSampled => {}
                    }
                }
                trial.errors.push(said / is - 1.0);
                *whole = (whole.0 + said, whole.1 + is);
            }
        }
        trial
            .errors
            .extend(whole.iter().map(|(said, is)| said / is - 1.0));
    }
    trial
}
