//! From raw batches to queryable rows: how many samples per second, and how long after a run its samples are there.
//!
//! Recorded batches are given fresh identities, as of a fleet of [`fleet::HOSTS`] hosts, and put into
//! `strobe.stacks.raw` while the processor is held up. Then it is let go, and the clock runs until the last row can be
//! queried: broker, engine, processor and sink are the real ones, each a process of its own. Before, one round of the
//! recording goes through, so that names are known and groups have met: what is measured is a pipeline that runs.
//!
//! The stack must be up, but for processor and sink, with topics and tables made; `infra/bench.sh pipeline` does that.

mod fleet;
mod parts;
mod peer;
mod store;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fleet::Fleet;
use parts::{Service, cpu_seconds, machine_seconds};
use store::Store;
use strobe_bus::{Bus, BusSettings};
use strobe_event::RawBatch;
use strobe_explore::{ClickHouse, ClickHouseConfig};

#[derive(Parser)]
struct Args {
    /// The executable.
    #[arg(long)]
    strobe: PathBuf,
    /// Its configuration, with `[bus]` and `[clickhouse]`.
    #[arg(long)]
    config: PathBuf,
    /// Folder of recorded raw batches.
    #[arg(long)]
    capture: PathBuf,
    /// Samples that go through.
    #[arg(long, default_value_t = 6_000_000)]
    samples: u64,
    /// Samples that go through the peer; 0 leaves it out.
    #[arg(long, default_value_t = 300_000)]
    peer_samples: u64,
    /// Process of the broker.
    #[arg(long)]
    broker_pid: u32,
    /// Process of the engine.
    #[arg(long)]
    engine_pid: u32,
    /// The agent's executable; without it the time after a run is not measured.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The agent's configuration.
    #[arg(long)]
    agent_config: Option<PathBuf>,
    /// Runs of the agent, of which the median counts.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Only let the recording through once, so that a store has rows of a real pipeline.
    #[arg(long)]
    only_store: bool,
    /// Folder for logs.
    #[arg(long)]
    logs: PathBuf,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Longest time for everything to come through: a fiftieth of the rate that is asked for.
const THROUGH_WITHIN: Duration = Duration::from_secs(600);

/// What the store goes on working at after the last row can be queried is charged to it for so long.
const MERGES_FOR: Duration = Duration::from_secs(10);

/// Samples per second that are asked for, and those after them.
const TARGET: f64 = 300_000.0;
const NEXT_TARGET: f64 = 1_000_000.0;

/// Longest time from the end of a run to its samples that is asked for.
const AFTER_TARGET_S: f64 = 3.0;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_pipeline: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the two parts of the configuration that are needed here.
fn read_config(path: &Path) -> Result<(Bus, ClickHouse)> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut config: toml::Table = text.parse()?;
    let bus = config.remove("bus").context("no [bus]")?.try_into()?;
    let store = config.remove("clickhouse").context("no [clickhouse]")?;
    let text = |key: &str| store.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let mut clickhouse = ClickHouseConfig::default();
    clickhouse.url = text("url").unwrap_or(clickhouse.url);
    clickhouse.database = text("database").unwrap_or(clickhouse.database);
    clickhouse.user = text("user").unwrap_or(clickhouse.user);
    clickhouse.password_file = text("password_file").map(PathBuf::from);
    Ok((bus, clickhouse.validate()?))
}

fn run(args: &Args) -> Result<()> {
    let (bus_config, clickhouse) = read_config(&args.config)?;
    let bus = bus_config.clone().validate()?;
    let store = Store {
        client: clickhouse.client(),
        runtime: tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?,
    };
    let recorded = fleet::recorded(&args.capture)?;
    describe(&recorded, &args.capture);
    if args.only_store {
        return store_once(args, &bus, &store, recorded);
    }
    let peer = if args.peer_samples > 0 {
        // Topics of its own: the prefix sets them apart.
        let peer_bus = Bus {
            topic_prefix: "bench-peer.".into(),
            ..bus_config
        };
        Some(peer::samples_per_second(
            &peer_bus.validate()?,
            &store,
            &recorded,
            args.peer_samples,
        )?)
    } else {
        println!("peer row_per_message: skipped (--peer-samples 0)");
        None
    };
    let mut processor = Service::start(&args.strobe, &args.config, "processor", &args.logs)?;
    let mut sink = Service::start(&args.strobe, &args.config, "sink", &args.logs)?;
    let went = go_through(args, &bus, &store, &recorded, &mut processor, &mut sink)?;
    went.print(peer);
    match (&args.agent, &args.agent_config) {
        (Some(agent), Some(config)) => after_runs(args, agent, config, &store)?,
        _ => println!("pipeline.queryable_after_s: skipped (no --agent and --agent-config)"),
    }
    processor.check("processor")?;
    sink.check("sink")
}

/// Lets the recording through once, as of one host.
fn store_once(args: &Args, bus: &BusSettings, store: &Store, recorded: Vec<RawBatch>) -> Result<()> {
    let mut processor = Service::start(&args.strobe, &args.config, "processor", &args.logs)?;
    let mut sink = Service::start(&args.strobe, &args.config, "sink", &args.logs)?;
    let before = store.rows(ROWS)?;
    let sent = Fleet::new(recorded, 1)?.send_round(bus)?;
    store.wait_for_rows(ROWS, before + sent.samples, THROUGH_WITHIN, || {
        processor.check("processor")?;
        sink.check("sink")
    })?;
    println!("{} samples of the recording are stored", sent.samples);
    Ok(())
}

fn describe(recorded: &[RawBatch], directory: &Path) {
    let samples: usize = recorded.iter().map(|batch| batch.samples.len()).sum();
    let stacks: usize = recorded.iter().map(|batch| batch.stacks.len()).sum();
    println!(
        "input: {} recorded batches of {} samples on average, {:.0} % of them the first of their stack in the batch ({})",
        recorded.len(),
        samples / recorded.len(),
        100.0 * stacks as f64 / samples as f64,
        directory.display()
    );
}

/// What one go took.
struct Went {
    sent: fleet::SentOff,
    seconds: f64,
    /// CPU seconds of each stage, and of what else ran on the machine.
    stages: Vec<(&'static str, f64)>,
    others: f64,
    merges: f64,
}

const ROWS: &str = "samples";

fn go_through(
    args: &Args,
    bus: &BusSettings,
    store: &Store,
    recorded: &[RawBatch],
    processor: &mut Service,
    sink: &mut Service,
) -> Result<Went> {
    let before = store.rows(ROWS)?;
    let mut fleet = Fleet::new(recorded.to_vec(), fleet::HOSTS)?;
    let start = Instant::now();
    let warm = fleet.send_round(bus)?;
    let mut check = || -> Result<()> {
        processor.check("processor")?;
        sink.check("sink")
    };
    store.wait_for_rows(ROWS, before + warm.samples, THROUGH_WITHIN, &mut check)?;
    println!(
        "cold: {} samples in {:.1} s, with the start of processor and sink and the first look at every binary",
        warm.samples,
        start.elapsed().as_secs_f64()
    );
    processor.hold(true)?;
    let sent = fleet.send_samples(bus, args.samples);
    let parts = [
        ("broker", args.broker_pid),
        ("engine", args.engine_pid),
        ("processor", processor.pid()),
        ("sink", sink.pid()),
    ];
    let used = || {
        parts
            .iter()
            .map(|&(_, pid)| cpu_seconds(pid))
            .collect::<Result<Vec<_>>>()
    };
    let (used_before, machine_before) = (used()?, machine_seconds()?);
    let start = Instant::now();
    // Also when something went wrong: a process that is held up cannot be ended.
    processor.hold(false)?;
    let sent = sent?;
    let rows = before + warm.samples + sent.samples;
    let mut check = || -> Result<()> {
        processor.check("processor")?;
        sink.check("sink")
    };
    store.wait_for_rows(ROWS, rows, THROUGH_WITHIN, &mut check)?;
    let seconds = start.elapsed().as_secs_f64();
    let (used_after, machine_after) = (used()?, machine_seconds()?);
    verify(store, before, warm, sent)?;
    std::thread::sleep(MERGES_FOR);
    let merges = cpu_seconds(args.engine_pid)? - used_after[1];
    let stages: Vec<_> = parts
        .iter()
        .zip(used_before.iter().zip(&used_after))
        .map(|(&(name, _), (before, after))| (name, after - before))
        .collect();
    let ours: f64 = stages.iter().map(|(_, seconds)| seconds).sum();
    Ok(Went {
        sent,
        seconds,
        others: (machine_after - machine_before - ours).max(0.0),
        stages,
        merges,
    })
}

/// Proves that every sample is there once, and that the hourly totals say the same.
fn verify(store: &Store, before: u64, warm: fleet::SentOff, sent: fleet::SentOff) -> Result<()> {
    let rows = store.rows(ROWS)? - before;
    let samples = warm.samples + sent.samples;
    ensure!(rows == samples, "{rows} rows of {samples} samples");
    let (batches, totals) = store.two(
        "SELECT uniqExact(host, epoch, sequence, part) AS first, \
         toUInt64(ifNull((SELECT sum(samples) FROM totals_hourly), 0)) AS second FROM samples",
    )?;
    ensure!(
        before > 0 || (batches == warm.batches + sent.batches && totals == samples),
        "{batches} batches of {}, totals of {totals} samples of {samples}",
        warm.batches + sent.batches
    );
    Ok(())
}

impl Went {
    fn print(&self, peer: Option<f64>) {
        let samples = self.sent.samples as f64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let per_sample = |seconds: f64| seconds * 1e6 / samples;
        println!(
            "{} samples in {} batches ({:.1} bytes of Avro per sample) in {:.1} s; cost of each stage:",
            self.sent.samples,
            self.sent.batches,
            self.sent.bytes as f64 / samples,
            self.seconds
        );
        for (name, seconds) in &self.stages {
            println!(
                "  {name:<10} {:>6.2} us of CPU per sample  {:>5.2} cores",
                per_sample(*seconds),
                seconds / self.seconds
            );
        }
        let ours: f64 = self.stages.iter().map(|(_, seconds)| seconds).sum();
        println!(
            "  {:<10} {:>6.2} us of CPU per sample  {:>5.2} cores of {cores}",
            "together",
            per_sample(ours),
            ours / self.seconds
        );
        println!(
            "  other processes of this machine took {:.2} cores; the engine merged for another {:.2} us per sample in \
             the {} s after",
            self.others / self.seconds,
            per_sample(self.merges),
            MERGES_FOR.as_secs()
        );
        let rate = samples / self.seconds;
        let peer = peer.map_or_else(String::new, |peer| format!(" peer:row_per_message={peer:.0}"));
        println!("figure pipeline.samples_per_s value={rate:.0} target>={TARGET:.0}{peer}");
        self.explain(per_sample(ours), cores);
    }

    /// Says what bounds the figure, and what the next step is.
    fn explain(&self, us_per_sample: f64, cores: f64) {
        let busy = (self.stages.iter().map(|(_, seconds)| seconds).sum::<f64>() + self.others) / self.seconds;
        let alone = cores * 1e6 / us_per_sample;
        if busy > 0.9 * cores {
            println!(
                "bound by CPU: {busy:.2} of {cores} cores were busy; with the cores to itself the pipeline's own CPU \
                 would allow {alone:.0} samples per second at most"
            );
        } else {
            println!(
                "bound by waiting: {busy:.2} of {cores} cores were busy; CPU alone would allow {alone:.0} samples per \
                 second. The sink stores one range at a time, and the processor names one batch at a time"
            );
        }
        let Some((name, most)) = self.stages.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return;
        };
        let next = match *name {
            "engine" => {
                "fewer parts and less sorting: larger ranges, and rows sent in the order of the table, so that an insert \
                 does not sort"
            }
            "sink" => {
                "fewer bytes per row: columns that are constant in a batch are made once per range, not per row"
            }
            "processor" => "one thread per core that names and encodes, each with the partitions of its own",
            _ => "larger messages: the broker's work is per message and byte, not per sample",
        };
        println!(
            "next step toward {NEXT_TARGET:.0}: all stages together must take {:.2} us per sample instead of \
             {us_per_sample:.2}; the largest is the {name} with {:.2}: {next}",
            cores * 1e6 / NEXT_TARGET,
            most * 1e6 / self.sent.samples as f64
        );
    }
}

/// Longest time from the start of a run of 10 seconds until its samples can be queried.
const RUN_WITHIN: Duration = Duration::from_secs(40);

/// Profiles this host for 10 seconds, several times, and measures when the last samples of each run can be queried.
fn after_runs(args: &Args, agent: &Path, config: &Path, store: &Store) -> Result<()> {
    let mut times = Vec::new();
    for run in 1..=args.runs {
        let host = format!("bench-run-{run}-{}", std::process::id());
        let mut command = Command::new(agent);
        command
            .arg("run")
            .arg("--config")
            .arg(config)
            .args(["--host", &host, "--duration", "10s"]);
        let mut service = Service::spawn(command, "agent", &args.logs)?;
        match after_run(store, &host)? {
            Some((after, samples)) => {
                println!(
                    "run {run}: {samples} samples, the last of them queryable {after:.2} s after its end"
                );
                times.push(after);
            }
            None => println!("run {run}: does not count, its end was not told within {RUN_WITHIN:?}"),
        }
        service.wait()?;
    }
    times.sort_by(f64::total_cmp);
    let Some(median) = times.get(times.len() / 2) else {
        bail!("no run came through");
    };
    println!("figure pipeline.queryable_after_s value={median:.2} target<={AFTER_TARGET_S:.0}");
    println!(
        "it is the sum of the agent's drain, the producer's linger of 50 ms (twice: agent and processor), fetches, and the \
         age of 1 s at which the sink closes a range that is not full; `sink.range_time` shortens the last, for more \
         inserts"
    );
    Ok(())
}

/// Waits until all samples of a host's run can be queried; returns the seconds since the run's end, and the samples.
///
/// Not since the agent has ended: that waits for the broker, and the samples need not wait for it.
fn after_run(store: &Store, host: &str) -> Result<Option<(f64, u64)>> {
    let sql = format!(
        "SELECT count() AS first, toUInt64(ifNull((SELECT sum(spooled) FROM runs FINAL WHERE host = '{host}' AND \
         state = 'finished'), 0)) AS second FROM samples WHERE host = '{host}'"
    );
    let deadline = Instant::now() + RUN_WITHIN;
    let samples = loop {
        let (stored, spooled) = store.two(&sql)?;
        if spooled > 0 && stored >= spooled {
            break stored;
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let seen_us = fleet::now_us();
    let (ended_us, _) = store.two(&format!(
        "SELECT toUInt64(toUnixTimestamp64Micro(max(time))) AS first, toUInt64(0) AS second FROM runs \
         WHERE host = '{host}' AND state = 'finished'"
    ))?;
    Ok(Some((seen_us.saturating_sub(ended_us) as f64 / 1e6, samples)))
}
