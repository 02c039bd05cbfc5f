//! The figures of sampling: does the tuner find its rate, are totals unbiased and as sure as they say, how
//! long does a week of ten thousand hosts take to simulate. Every go has a seed; the same seeds give the same
//! figures.
//!
//! `bench_sampling [--seeds N] [--soft-seeds N] [--threads N] [--svg FOLDER]`

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use strobe_simulate::{Cell, Outcome, Scenario, Trials, World, each_seed, simulate};

const SOFT_SERVER: &str = include_str!("../scenarios/soft-server.toml");
const UNBIASED: &str = include_str!("../scenarios/unbiased.toml");
const EVERYTHING: &str = include_str!("../scenarios/everything.toml");
const FOLLOWING: &str = include_str!("../scenarios/refusals-follow-load.toml");
const WEEK: &str = include_str!("../scenarios/week.toml");

/// The day on which the hosts of the soft server double, from 0.
const DOUBLED: usize = 9;

struct Settings {
    seeds: u64,
    soft_seeds: u64,
    threads: u64,
    svg: Option<PathBuf>,
}

fn settings() -> Result<Settings> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut settings = Settings {
        seeds: 1_000,
        soft_seeds: 100,
        threads,
        svg: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--seeds" => settings.seeds = value.parse()?,
            "--soft-seeds" => settings.soft_seeds = value.parse()?,
            "--threads" => settings.threads = value.parse()?,
            "--svg" => settings.svg = Some(value.into()),
            _ => bail!("unknown flag {word}: --seeds, --soft-seeds, --threads, --svg"),
        }
    }
    Ok(settings)
}

fn main() -> Result<()> {
    let settings = settings()?;
    let seeds = settings.seeds.max(2);
    week(&settings)?;
    soft_server(&settings)?;
    let alone = trials("unbiased", UNBIASED, seeds, settings.threads)?;
    let all = trials("everything at once", EVERYTHING, seeds, settings.threads)?;
    let following = trials(
        "refusals that follow the load",
        FOLLOWING,
        seeds.div_ceil(4),
        settings.threads,
    )?;
    if let Some(cell) = following.worst() {
        println!(
            "  the bias that remains where refusals follow the load within the hour: {}",
            of(cell)
        );
    }
    let worst = [&alone, &all].into_iter().filter_map(Trials::worst);
    if let Some(cell) = worst.max_by(|a, b| a.mean.abs().total_cmp(&b.mean.abs())) {
        println!(
            "figure sampling.bias_pct value={:.3} target<=0.3 standard_error={:.3} seeds=1..={seeds} of_cells={}",
            cell.mean.abs() * 100.0,
            cell.error * 100.0,
            alone.cells.len() + all.cells.len(),
        );
    }
    let held = if alone.held.0 < all.held.0 {
        alone.held
    } else {
        all.held
    };
    println!(
        "figure sampling.coverage_pct value={:.2} target=93..97 standard_error={:.2} seeds=1..={seeds} unbiased={:.2} everything={:.2}",
        100.0 * held.0,
        100.0 * held.1,
        100.0 * alone.held.0,
        100.0 * all.held.0,
    );
    Ok(())
}

fn of(cell: &Cell) -> String {
    format!(
        "{:+.3} % ± {:.3} % ({})",
        cell.mean * 100.0,
        cell.error * 100.0,
        cell.what
    )
}

fn trials(name: &str, scenario: &str, seeds: u64, threads: u64) -> Result<Trials> {
    let scenario = Scenario::from_toml(scenario)?;
    let start = Instant::now();
    let trials = Trials::run(&scenario, 1, seeds, threads, None)?;
    println!(
        "{name}: {seeds} seeds of {} days, {} cells (service, hour of the day, function), {:.0} s",
        scenario.days,
        trials.cells.len(),
        start.elapsed().as_secs_f64(),
    );
    for (what, cell) in [
        ("largest mean error", trials.worst()),
        ("most significant one", trials.most_significant()),
    ] {
        if let Some(cell) = cell {
            println!(
                "  {what}: {}, {:.1} standard errors",
                of(cell),
                cell.mean.abs() / cell.error
            );
        }
    }
    println!(
        "  95 % intervals that hold the truth: {:.2} % of services' hours, {:.2} % of functions' hours",
        trials.held.0 * 100.0,
        trials.held_parts.0 * 100.0,
    );
    Ok(trials)
}

fn soft_server(settings: &Settings) -> Result<()> {
    let scenario = Scenario::from_toml(SOFT_SERVER)?;
    let world = World::new(&scenario)?;
    let start = Instant::now();
    let seeds = settings.soft_seeds.max(2);
    let goes = each_seed(1, seeds, settings.threads, |seed| {
        simulate(&scenario, &world, seed, None)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "soft server: {seeds} seeds of {} days, {seconds:.0} s",
        scenario.days
    );
    for day in 0..scenario.days as usize {
        let (mean, _) = mean_and_error(goes.iter().map(|go| error(go, day)));
        let (squares, _) = mean_and_error(goes.iter().map(|go| error(go, day).powi(2)));
        let (runs, chance) = goes[0].services[0].chance(day);
        println!(
            "  day {:2}: error {:+.2} % on average, {:.2} % root mean square; chance alone {:.2} % ({runs:.0} runs)",
            day + 1,
            mean * 100.0,
            squares.sqrt() * 100.0,
            chance * 100.0,
        );
    }
    let second: Vec<f64> = goes.iter().map(|go| error(go, 1).abs()).collect();
    println!(
        "figure sampling.day2_error_pct value={:.2} target<=10 standard_error={:.2} seeds=1..={seeds}",
        quantile_95(second.clone()) * 100.0,
        jackknife(&second) * 100.0,
    );
    // Of each seed the mean over the days; seeds are independent, days of one seed are not quite.
    let later = |value: &dyn Fn(&Outcome, usize) -> f64| {
        let days = (2..scenario.days as usize).filter(|day| *day != DOUBLED);
        mean_and_error(
            goes.iter()
                .map(|go| mean_and_error(days.clone().map(|day| value(go, day))).0),
        )
    };
    let (squares, spread) = later(&|go, day| error(go, day).powi(2));
    let (chance, _) = later(&|go, day| go.services[0].chance(day).1.powi(2));
    println!(
        "figure sampling.later_error_pct value={:.2} target<=5 standard_error={:.2} chance={:.2} times_chance={:.2} times_chance_target<=2 seeds=1..={seeds}",
        squares.sqrt() * 100.0,
        spread / 2.0 / squares.sqrt() * 100.0,
        chance.sqrt() * 100.0,
        (squares / chance).sqrt(),
    );
    doubled("hosts doubled", &goes);
    write_svg(settings, "soft-server.svg", &goes[0].plot(&world.truth(), 1)?)?;

    // The same, but the load doubles on the same hosts: nothing but the samples says so.
    let mut scenario = scenario;
    scenario.service[0].level = Some((DOUBLED as f64, 2.0));
    scenario.hosts.truncate(1);
    let world = World::new(&scenario)?;
    let goes = each_seed(1, seeds.div_ceil(10), settings.threads, |seed| {
        simulate(&scenario, &world, seed, None)
    })?;
    doubled("load doubled", &goes);
    Ok(())
}

/// Prints what the first hours of the doubling yield against the same hours of the day before.
fn doubled(what: &str, goes: &[Outcome]) {
    let taken =
        |go: &Outcome, day: usize, hour: usize| go.services[0].hours[day * 24 + hour].coverage.taken as f64;
    for hour in 0..4 {
        let ratios = goes
            .iter()
            .map(|go| taken(go, DOUBLED, hour) / taken(go, DOUBLED - 1, hour));
        let (ratio, _) = mean_and_error(ratios);
        println!(
            "  {what}: hour {} yields {ratio:.2} times that of the day before",
            hour + 1
        );
    }
}

fn error(go: &Outcome, day: usize) -> f64 {
    go.services[0].rate(day) / go.services[0].desired - 1.0
}

fn mean_and_error(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0) / n).sqrt())
}

fn quantile_95(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * 0.95).ceil() as usize;
    values[at.clamp(1, values.len()) - 1]
}

/// Returns the standard error of the 95th percentile: by leaving out a tenth of the values at a time.
fn jackknife(values: &[f64]) -> f64 {
    let blocks = 10.min(values.len());
    let without = |block: usize| {
        let kept = values.iter().enumerate().filter(|(at, _)| at % blocks != block);
        quantile_95(kept.map(|(_, value)| *value).collect())
    };
    let (_, error) = mean_and_error((0..blocks).map(without));
    error * (blocks as f64 - 1.0)
}

fn week(settings: &Settings) -> Result<()> {
    let scenario = Scenario::from_toml(WEEK)?;
    let start = Instant::now();
    let world = World::new(&scenario)?;
    let outcome = simulate(&scenario, &world, 1, None)?;
    let truth = world.truth();
    let table = outcome.table(&truth);
    let elapsed = start.elapsed().as_secs_f64();
    table.lines().take(10).for_each(|line| println!("{line}"));
    let runs: u64 = outcome
        .services
        .iter()
        .flat_map(|s| &s.hours)
        .map(|hour| hour.coverage.done.runs)
        .sum();
    println!(
        "  {} hosts, {} services, {runs} services' runs",
        world.hosts.len(),
        outcome.services.len()
    );
    println!("figure sampling.simulate_s value={elapsed:.1} target<=60 seed=1");
    write_svg(settings, "week.svg", &outcome.plot(&truth, 2)?)
}

fn write_svg(settings: &Settings, name: &str, svg: &str) -> Result<()> {
    let Some(folder) = &settings.svg else {
        return Ok(());
    };
    let path: &Path = &folder.join(name);
    fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}
