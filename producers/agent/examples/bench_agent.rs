//! What the agent costs: CPU per sample and per fork, memory, losses. `make bench-agent`; needs root, BTF and gcc.
//!
//! `cargo run --release -p strobe-agent --example bench_agent -- [--bootstrap HOST:PORT] [--rounds N]`, about four minutes.
//!
//! One victim on each CPU runs 40 frames deep and counts its iterations per second of its own CPU time: that sees timer, BPF
//! program and caches, and does not see who else wanted the CPU. All are measured in turns, round by round:
//!
//!   cost of a sample = what the victim lost against an empty BPF program at the same rate
//!                    + what the profiler's process used itself, publishing included
//!
//! The empty program stands for the timer, which every profiler pays. A host whose speed wanders by more than a profiler costs
//! hides the first part; the kernel's own count of the program's time (less the empty program's) is printed beside it, and takes
//! its place where the rounds agree no better than to [`SPREAD_US_MAX`], or say that a profiler made the victim faster. A line says
//! so. That count leaves out what the program evicts from the caches. Peers have no such count, and then no figure.
//!
//! Without `--bootstrap` the publisher sends to librdkafka's own mock broker, which lives in a thread of the agent's process; that
//! thread's CPU time is left out. So is that of the threads that upload binaries: each is uploaded once, at a limited rate,
//! whatever the number of samples.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use measuring::{
    Bench, Profiler, TURN, Turn, Victim, WARM_UP, busy_s, cost, has, lightswitch, median, rss_mib, used_ns,
};
use strobe_bpf::bench_support::EmptySampler;
use strobe_bpf::monotonic_ns;

mod measuring;

/// How the victim is built: with frame pointers, also in leaves.
const FRAME_POINTERS: [&str; 2] = ["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"];

/// Prints and returns what a sample of the agent costs.
fn of_agent(bench: &Bench, turns: &[(Turn, Turn)], frequency_hz: u32) -> Result<f64> {
    let what = format!("agent at {frequency_hz} Hz");
    let cost = cost(turns, frequency_hz);
    let by_victim = cost.told(&what);
    let program = bench.program_us(frequency_hz)?;
    println!("{what}: {program:.2} us in the BPF program, by the kernel's count");
    Ok(by_victim.unwrap_or_else(|| {
        println!("{what}: the kernel's count stands for the victim's part");
        program + cost.used
    }))
}

struct Costs {
    agent_101: Vec<(Turn, Turn)>,
    agent_997: Vec<(Turn, Turn)>,
    perf_997: Vec<(Turn, Turn)>,
    rss: f64,
}

fn measure(bench: &Bench, rounds: usize, perf: bool) -> Result<Costs> {
    let mut costs = Costs {
        agent_101: Vec::new(),
        agent_997: Vec::new(),
        perf_997: Vec::new(),
        rss: 0.0,
    };
    let empty = |frequency| -> Result<Turn> {
        let _empty = EmptySampler::start(frequency)?;
        bench.turn(None)
    };
    for round in 1..=rounds {
        println!(
            "round {round} of {rounds}: empty program and agent at 101 Hz; empty program, agent and perf at 997 Hz"
        );
        let before = empty(101)?;
        let (agent, _) = bench.beside(bench.start_agent(101)?)?;
        costs.agent_101.push((before.mean(empty(101)?), agent));
        let before = empty(997)?;
        let (agent, rss) = bench.beside(bench.start_agent(997)?)?;
        let between = empty(997)?;
        costs.agent_997.push((before.mean(between), agent));
        costs.rss = costs.rss.max(rss);
        if perf {
            let (perf, _) = bench.beside(bench.start_perf(997, "fp")?)?;
            costs.perf_997.push((between.mean(empty(997)?), perf));
        }
    }
    Ok(costs)
}

/// Runs the agent beside busy CPUs; returns (lost, taken, busy seconds × rate).
fn losses(bench: &Bench, frequency_hz: u32, duration: Duration) -> Result<(u64, u64, f64, f64)> {
    let agent = bench.start_agent(frequency_hz)?;
    sleep(WARM_UP);
    let status = |agent: &Profiler| -> Result<serde_json::Value> {
        let file = agent
            .state
            .as_ref()
            .context("an agent")?
            .join(strobe_agent::status::FILE);
        // Right after it was written, so that it is as old as the clock that it is held against.
        let written = fs::metadata(&file)?.modified()?;
        let until = Instant::now() + Duration::from_secs(12);
        while fs::metadata(&file)?.modified()? == written && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
    };
    let taken = |status: &serde_json::Value| status["taken"].as_u64().unwrap_or_default();
    let (first, busy, started) = (status(&agent)?, busy_s()?, Instant::now());
    sleep(duration);
    let (second, busy) = (status(&agent)?, busy_s()? - busy);
    let cpus = bench.victims.len() as f64;
    let share = (busy / (started.elapsed().as_secs_f64() * cpus)).min(1.0);
    // The counts are older than the clock read here: it is their own time that they are held against.
    let time_ns = |status: &serde_json::Value| status["kernel_time_ns"].as_u64().unwrap_or_default();
    let busy = (time_ns(&second) - time_ns(&first)) as f64 / 1e9 * cpus * share;
    let rss = rss_mib(agent.pid())?;
    let last = agent.end()?.context("the agent's status")?;
    let dropped = last["dropped"].as_object().context("dropped")?;
    let lost = last["kernel_dropped"].as_u64().unwrap_or(u64::MAX)
        + dropped
            .values()
            .filter_map(serde_json::Value::as_u64)
            .sum::<u64>()
        + last["stacks_forgotten"].as_u64().unwrap_or(u64::MAX);
    let in_time = taken(&second) - taken(&first);
    Ok((lost, in_time, busy * f64::from(frequency_hz), rss))
}

fn print_losses(name: &str, (lost, taken, due, _): (u64, u64, f64, f64)) {
    let share = taken as f64 / due;
    println!(
        "{name}: {taken} samples taken, {:.2} % of busy time × rate",
        share * 100.0
    );
    if share < 0.99 {
        println!("{name}: fewer than 99 % were taken, so that what was lost says little");
    }
    println!("figure {name} value={lost} target=0");
}

fn fork_exec_us(bench: &Bench) -> Result<f64> {
    let victim = Victim::start(&bench.victim, &["fork"])?;
    let turn = |profiler: Option<&Profiler>| -> Result<(f64, f64)> {
        let used = || profiler.map_or(Ok(0), |profiler| used_ns(profiler.pid()));
        let before = (monotonic_ns(), used()?);
        sleep(TURN);
        let (forks, ns) = victim.between(before.0, monotonic_ns())?;
        Ok((ns / 1e3, (used()? - before.1) as f64 / forks / 1e3))
    };
    let mut costs = Vec::new();
    let mut before = turn(None)?.0;
    for _ in 0..4 {
        // One tick a second: what is left is the price of following processes.
        let agent = bench.start_agent(1)?;
        sleep(WARM_UP);
        let (with, own) = turn(Some(&agent))?;
        agent.end()?;
        let after = turn(None)?.0;
        let without = (before + after) / 2.0;
        println!(
            "fork and exec: {without:.0} us alone, {with:.0} us beside the agent, which used {own:.1} us for each"
        );
        costs.push(with - without + own);
        before = after;
    }
    Ok(median(costs))
}

fn main() -> Result<()> {
    let (mut bootstrap, mut rounds) = (None, 5);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bootstrap" => bootstrap = Some(arguments.next().context("--bootstrap needs HOST:PORT")?),
            "--rounds" => rounds = arguments.next().context("--rounds needs a number")?.parse()?,
            other => bail!("{other} is not known: --bootstrap HOST:PORT, --rounds N"),
        }
    }
    strobe_bpf::probe::check_loadable()?;
    let mut bench = Bench::new(bootstrap, &FRAME_POINTERS)?;
    let perf = has("perf");
    if !perf {
        println!("skipped: perf: not installed; apt-get install linux-perf");
    }
    bench.load()?;
    let costs = measure(&bench, rounds, perf)?;
    let lightswitch = lightswitch(&bench)?;
    let at_101 = of_agent(&bench, &costs.agent_101, 101)?;
    println!("figure agent.cpu_per_sample_us_101hz value={at_101:.2} target<=20");
    let at_997 = of_agent(&bench, &costs.agent_997, 997)?;
    let mut figure = format!("figure agent.cpu_per_sample_us_997hz value={at_997:.2} target<=10");
    if let Some(peer) = lightswitch {
        figure += &format!(" peer:lightswitch={peer:.2}");
    }
    if perf && let Some(peer) = cost(&costs.perf_997, 997).told("perf record -g at 997 Hz") {
        figure += &format!(" peer:perf_record_g={peer:.2}");
    }
    println!("{figure}");
    let slow = losses(&bench, 997, Duration::from_secs(60))?;
    println!(
        "figure agent.rss_mib value={:.1} target<40",
        costs.rss.max(slow.3)
    );
    print_losses("agent.lost_997hz", slow);
    print_losses(
        "agent.lost_9973hz",
        losses(&bench, 9_973, Duration::from_secs(10))?,
    );
    bench.victims.clear();
    println!("figure agent.fork_exec_us value={:.1}", fork_exec_us(&bench)?);
    Ok(())
}
