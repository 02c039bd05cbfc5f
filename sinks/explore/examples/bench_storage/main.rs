//! Bytes per sample and per stack, and the time of a flame graph over 10 million samples.
//!
//! `bench_storage --url URL --user USER --password-file FILE [--capture DATABASE] [--keep] [--reuse]`
//!
//! Makes a database `bench_storage` with the project's own tables, fills it with the synthetic fleet (see
//! [`synthetic`]), merges, measures, and drops it. Bytes are those of `system.parts` after `OPTIMIZE FINAL`, all columns,
//! marks, indexes and projections. `--keep` leaves the database, `--reuse` measures one that was left. With `--capture`, the rows of another database (what a real pipeline has stored) are
//! copied into fresh tables and measured the same way.

mod measure;
mod rows;
mod synthetic;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clickhouse::Client;
use strobe_explore::{By, ClickHouse, ClickHouseConfig, Explorer, Selection, Sort, ddl};
use synthetic::{DAY_US, HOSTS, RUNS, SAMPLES, SERVICES, START_US};

const DATABASE: &str = "bench_storage";
const CAPTURE: &str = "bench_storage_capture";
/// Bodies of about 45 MB: what a sink would send.
const RUNS_PER_INSERT: u64 = 500;
/// The synthetic day, in days since 1970.
const DAY: u16 = (START_US / DAY_US) as u16;
/// How often what is timed is done, warm; the median counts.
const ROUNDS: usize = 9;

struct Args {
    config: ClickHouseConfig,
    capture: Option<String>,
    keep: bool,
    reuse: bool,
}

fn args() -> Result<Args> {
    let mut args = Args {
        config: ClickHouseConfig::default(),
        capture: None,
        keep: false,
        reuse: false,
    };
    args.config.user = "strobe_writer".into();
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let mut value = || given.next().with_context(|| format!("{flag} needs a value"));
        match &*flag {
            "--url" => args.config.url = value()?,
            "--user" => args.config.user = value()?,
            "--password-file" => args.config.password_file = Some(value()?.into()),
            "--capture" => args.capture = Some(value()?),
            "--keep" => args.keep = true,
            "--reuse" => args.reuse = true,
            // What cargo adds when it runs an example as a benchmark.
            "--bench" => {}
            _ => bail!("unknown flag {flag}: --url, --user, --password-file, --capture, --keep, --reuse"),
        }
    }
    Ok(args)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = args()?;
    let database = |name: &str| {
        ClickHouseConfig {
            database: name.into(),
            ..args.config.clone()
        }
        .validate()
    };
    let bench = database(DATABASE)?;
    if !args.reuse {
        measure::drop(&bench).await?;
    }
    let result = synthetic_figures(&bench, args.reuse).await;
    if !args.keep {
        measure::drop(&bench).await?;
    }
    result?;
    if let Some(from) = &args.capture {
        // Proves the name before it gets into SQL.
        let (from, into) = (database(from)?, database(CAPTURE)?);
        measure::drop(&into).await?;
        let result = measure::capture_figures(&from, &into).await;
        measure::drop(&into).await?;
        result?;
    }
    Ok(())
}

async fn synthetic_figures(settings: &ClickHouse, filled: bool) -> Result<()> {
    println!(
        "Synthetic fleet: {SAMPLES} samples, {} stacks, {HOSTS} hosts, {SERVICES} services, {RUNS} runs, one day",
        SERVICES * synthetic::SERVICE_STACKS as u64
    );
    let began = Instant::now();
    let client = settings.client();
    if !filled {
        ddl::apply(settings).await?;
        fill(&client).await?;
    }
    println!("Filled and merged after {:.0} s", began.elapsed().as_secs_f64());

    let subset = measure::Subset::make(&client).await?;
    let samples = measure::size(&client, "samples").await?;
    println!("Peers on {} of the samples: {}", subset.rows, measure::PEERS);
    println!(
        "figure storage.bytes_per_sample value={:.2} target<=5 peer:names_per_row={:.1} peer:ids_per_row={:.1}",
        samples.bytes_per_row(),
        subset.names_bytes,
        subset.ids_bytes,
    );
    let stacks = measure::size(&client, "stacks").await?;
    let plain = measure::plain_stacks(&client).await?;
    println!(
        "figure storage.bytes_per_stack value={:.1} target<=60 peer:plain={plain:.1}",
        stacks.bytes_per_row()
    );
    flame_graphs(settings, &client, &subset).await
}

async fn fill(client: &Client) -> Result<()> {
    let stacks: Vec<Vec<synthetic::Stack>> = (0..SERVICES).map(synthetic::stacks).collect();
    let mut frames: Vec<synthetic::Frame> = stacks
        .iter()
        .flatten()
        .flat_map(|stack| stack.frames.clone())
        .collect();
    println!(
        "{:.1} frames per stack on average",
        frames.len() as f64 / (stacks.len() * stacks[0].len()) as f64
    );
    frames.sort_unstable();
    frames.dedup();

    let mut body = Vec::new();
    frames
        .iter()
        .for_each(|frame| rows::frame_row(&mut body, *frame, DAY));
    insert(client, &format!("frames ({})", rows::FRAME_COLUMNS), body).await?;
    let mut body = Vec::new();
    stacks
        .iter()
        .for_each(|stacks| rows::stack_rows(&mut body, stacks, DAY));
    insert(client, &format!("stacks ({})", rows::STACK_COLUMNS), body).await?;

    let zipf = synthetic::Zipf::new();
    let began = Instant::now();
    for first in (0..RUNS).step_by(RUNS_PER_INSERT as usize) {
        let mut body = Vec::new();
        for index in first..RUNS.min(first + RUNS_PER_INSERT) {
            let run = synthetic::run(index, &zipf);
            rows::sample_rows(&mut body, &run, &stacks[run.service as usize]);
        }
        insert(client, &format!("samples ({})", rows::SAMPLE_COLUMNS), body).await?;
    }
    let rate = SAMPLES as f64 / began.elapsed().as_secs_f64();
    println!("{rate:.0} samples per second made and inserted, RowBinary over HTTP, from one thread");
    measure::fill_totals(client).await?;
    for table in [
        "OPTIMIZE TABLE samples FINAL",
        "OPTIMIZE TABLE stacks FINAL",
        "OPTIMIZE TABLE frames FINAL",
    ] {
        client.query_raw(table).execute().await?;
    }
    Ok(())
}

async fn insert(client: &Client, into: &str, body: Vec<u8>) -> Result<()> {
    let mut insert = client.insert_formatted_with(format!("INSERT INTO {into} FORMAT RowBinary"));
    let body = Bytes::from(body);
    // Pieces, so that sending and reading overlap.
    for at in (0..body.len()).step_by(1 << 20) {
        insert
            .send(body.slice(at..body.len().min(at + (1 << 20))))
            .await?;
    }
    insert.end().await?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn flame_graphs(settings: &ClickHouse, client: &Client, subset: &measure::Subset) -> Result<()> {
    let explorer = Explorer::new(settings);
    let day = Selection::new(START_US as u64, (START_US + 2 * DAY_US) as u64);
    // Asks by cause, which hourly totals do not know.
    let raw = Selection {
        cause: Some(strobe_event::Cause::Continuous),
        ..day.clone()
    };

    let began = Instant::now();
    let tree = explorer
        .tree(&day, None, strobe_explore::TREE_NODES_DEFAULT)
        .await?;
    println!(
        "Cold, with 100,000 stacks and their names fetched: {:.0} ms",
        began.elapsed().as_secs_f64() * 1e3
    );
    println!(
        "{} nodes; {:.0} cores",
        tree.nodes.len(),
        tree.range.cores(tree.nodes[0].total)
    );

    let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let began = Instant::now();
        explorer
            .tree(&day, None, strobe_explore::TREE_NODES_DEFAULT)
            .await?;
        times[0].push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        let other = explorer
            .tree(&raw, None, strobe_explore::TREE_NODES_DEFAULT)
            .await?;
        times[1].push(began.elapsed().as_secs_f64() * 1e3);
        if (other.nodes[0].total - tree.nodes[0].total).abs() > tree.nodes[0].total * 1e-9 {
            bail!(
                "samples and hourly totals disagree: {} and {}",
                other.nodes[0].total,
                tree.nodes[0].total
            );
        }
        let began = Instant::now();
        explorer.stack_totals(&day).await?;
        times[2].push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        explorer
            .top(&day, None, By::Function, Sort::SelfWeight, 50)
            .await?;
        times[3].push(began.elapsed().as_secs_f64() * 1e3);
    }
    let fastest = times
        .clone()
        .map(|times| times.into_iter().fold(f64::INFINITY, f64::min));
    let [hours, raw, totals, top] = times.map(median);
    println!(
        "Medians of {ROUNDS}, warm; the fastest: {:.0} ms, {:.0} ms raw",
        fastest[0], fastest[1]
    );
    println!(
        "Of it {totals:.0} ms until the totals of all stacks are here; a top of functions takes {top:.0} ms"
    );
    let names = measure::names_group_by_ms(client, subset).await?;
    let flame_graph = measure::flame_graph_function_ms(client).await;
    if let Err(error) = &flame_graph {
        println!("skipped peer flameGraph(): {error:#}");
    }
    let flame_graph = flame_graph
        .map(|ms| format!(" peer:flame_graph_function={ms:.0}"))
        .unwrap_or_default();
    println!(
        "names_group_by_10pct groups {} rows of names, a tenth of the set",
        subset.rows
    );
    println!(
        "figure storage.flamegraph_10m_ms value={hours:.0} target<150 peer:names_group_by_10pct={names:.0}{flame_graph}"
    );
    println!("figure storage.flamegraph_10m_raw_ms value={raw:.0} target<150");
    Ok(())
}
