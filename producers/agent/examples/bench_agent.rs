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
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use strobe_bpf::bench_support::{Counting, EmptySampler, run_stats_of_process};
use strobe_bpf::monotonic_ns;

/// How long a turn lasts.
const TURN: Duration = Duration::from_secs(3);
/// Standard error of the victim's part, in microseconds per sample, above which the kernel's count takes its place.
const SPREAD_US_MAX: f64 = 2.0;
/// Time for a profiler to read the host's processes before it is measured.
const WARM_UP: Duration = Duration::from_millis(2_500);
/// Threads of the agent whose time is none of its samples': the mock broker, and the uploads.
const LEFT_OUT: [&str; 3] = ["rdk:mock", "binaries", "binaries-io"];

struct Bench {
    folder: tempfile::TempDir,
    victim: PathBuf,
    agent: PathBuf,
    bootstrap: Option<String>,
    victims: Vec<Victim>,
}

/// A piece of a victim's time: when it ended (CLOCK_MONOTONIC), iterations, nanoseconds of own CPU time for each.
type Piece = (u64, f64, f64);

/// A victim that runs through all turns.
struct Victim {
    child: Child,
    pieces: Arc<Mutex<Vec<Piece>>>,
}

impl Victim {
    fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("the victim's output")?;
        let pieces = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&pieces);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let numbers: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
                if let ([end, iterations, ns], Ok(mut pieces)) = (&numbers[..], taken.lock()) {
                    pieces.push((*end as u64, *iterations, *ns));
                }
            }
        });
        Ok(Self { child, pieces })
    }

    /// Returns iterations, and the median of nanoseconds for each, of the pieces that lie in a window of time.
    fn between(&self, from_ns: u64, until_ns: u64) -> Result<(f64, f64)> {
        let pieces = self.pieces.lock().map_err(|_| anyhow!("a reader broke off"))?;
        // The first one may have begun before the window.
        let inside: Vec<_> = pieces
            .iter()
            .filter(|(end, ..)| (from_ns..until_ns).contains(end))
            .skip(1)
            .collect();
        ensure!(inside.len() >= 5, "a victim got no CPU");
        let iterations = inside.iter().map(|(_, iterations, _)| iterations).sum();
        Ok((iterations, median(inside.iter().map(|(.., ns)| *ns).collect())))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A profiler's process under way.
struct Profiler {
    child: Child,
    state: Option<PathBuf>,
}

impl Profiler {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM and waits.
    fn end(mut self) -> Result<Option<serde_json::Value>> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        let Some(state) = self.state.take() else {
            return Ok(None);
        };
        let text = fs::read_to_string(state.join(strobe_agent::status::FILE))?;
        Ok(Some(serde_json::from_str(&text)?))
    }
}

/// What one turn showed.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Iterations per nanosecond of own CPU time.
    speed: f64,
    /// CPU time of the profiler's process, nanoseconds, and busy time of the host's CPUs meanwhile.
    own_ns: f64,
    busy_s: f64,
}

impl Turn {
    /// Returns the mean of two turns: what a turn between them would have been.
    fn mean(self, other: Self) -> Self {
        Self {
            speed: (self.speed + other.speed) / 2.0,
            ..self
        }
    }
}

impl Bench {
    fn new(bootstrap: Option<String>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("victim.c");
        let victim = folder.path().join("strobe-victim");
        fs::write(&source, include_str!("bench_agent.c"))?;
        let flags = [
            "-O2",
            "-fno-omit-frame-pointer",
            "-mno-omit-leaf-frame-pointer",
            "-o",
        ];
        let built = Command::new("gcc").args(flags).arg(&victim).arg(&source).status();
        ensure!(
            built.context("gcc builds the victim")?.success(),
            "gcc cannot build the victim"
        );
        let own = std::env::current_exe()?;
        let release = own.ancestors().nth(2).context("the folder of the executables")?;
        let agent = release.join("strobe-agent");
        ensure!(
            agent.exists(),
            "{} is not there: cargo build --release -p strobe-agent",
            agent.display()
        );
        Ok(Self {
            folder,
            victim,
            agent,
            bootstrap,
            victims: Vec::new(),
        })
    }

    fn start_agent(&self, frequency_hz: u32) -> Result<Profiler> {
        let state = self.folder.path().join("state");
        let _ = fs::remove_dir_all(&state);
        let config = self.folder.path().join("agent.toml");
        let bus = match &self.bootstrap {
            Some(bootstrap) => format!("bootstrap = \"{bootstrap}\""),
            None => {
                "bootstrap = \"127.0.0.1:18599\"\n[bus.options]\n\"test.mock.num.brokers\" = 1".to_owned()
            }
        };
        let store = self.folder.path().join("store");
        let text = format!(
            "state_dir = {state:?}\nsymbol_store = {store:?}\nfrequency_hz = {frequency_hz}\n\
             [binaries]\nbytes_per_second = 1073741824\n[bus]\n{bus}\n"
        );
        fs::write(&config, text)?;
        let log = fs::File::create(self.folder.path().join("agent.log"))?;
        let child = Command::new(&self.agent)
            .args(["run", "--log-level", "warn", "--config"])
            .arg(&config)
            .stderr(log)
            .spawn()?;
        Ok(Profiler {
            child,
            state: Some(state),
        })
    }

    fn start_perf(&self, frequency_hz: u32) -> Result<Profiler> {
        let child = Command::new("perf")
            .args([
                "record",
                "-q",
                "-e",
                "cpu-clock",
                "-F",
                &frequency_hz.to_string(),
                "-g",
                "-a",
                "-o",
            ])
            .arg(self.folder.path().join("perf.data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Profiler { child, state: None })
    }

    /// Starts a victim on each CPU.
    fn load(&mut self) -> Result<()> {
        for cpu in 0..std::thread::available_parallelism()?.get() {
            self.victims
                .push(Victim::start(&self.victim, &["busy", &cpu.to_string()])?);
        }
        sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Measures one turn beside a profiler's process, if there is one.
    fn turn(&self, profiler: Option<&Profiler>) -> Result<Turn> {
        let used = || profiler.map_or(Ok(0), |profiler| used_ns(profiler.pid()));
        let before = (monotonic_ns(), used()?, busy_s()?);
        sleep(TURN);
        let after = (monotonic_ns(), used()?, busy_s()?);
        let mut speed = 0.0;
        for victim in &self.victims {
            speed += 1.0 / victim.between(before.0, after.0)?.1;
        }
        Ok(Turn {
            speed,
            own_ns: (after.1 - before.1) as f64,
            busy_s: after.2 - before.2,
        })
    }

    /// Returns what the kernel counts for one run of the agent's program, less the empty one's, microseconds.
    fn program_us(&self, frequency_hz: u32) -> Result<f64> {
        let _counting = Counting::start()?;
        let empty = {
            let sampler = EmptySampler::start(frequency_hz)?;
            let before = sampler.run_stats()?;
            sleep(TURN);
            sampler.run_stats()?.per_run_since(&before)
        };
        let agent = self.start_agent(frequency_hz)?;
        sleep(WARM_UP);
        let before = run_stats_of_process(agent.pid())?;
        sleep(TURN);
        let own = run_stats_of_process(agent.pid())?.per_run_since(&before);
        agent.end()?;
        Ok((own.context("no ticks")? - empty.context("no ticks")?) / 1e3)
    }

    fn beside(&self, profiler: Profiler) -> Result<(Turn, f64)> {
        sleep(WARM_UP);
        let turn = self.turn(Some(&profiler))?;
        let rss = rss_mib(profiler.pid())?;
        profiler.end()?;
        Ok((turn, rss))
    }
}

/// Returns the CPU time of the threads of a process but those of [`LEFT_OUT`], nanoseconds.
fn used_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        if LEFT_OUT.contains(&name.trim_end()) {
            continue;
        }
        let stat = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
        sum += stat
            .split(' ')
            .next()
            .unwrap_or_default()
            .parse::<u64>()
            .unwrap_or_default();
    }
    Ok(sum)
}

fn rss_mib(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("VmRSS")? / 1024.0)
}

/// Returns the time for which the host's CPUs were busy since boot.
fn busy_s() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    // user, nice, system, irq, softirq, and what the hypervisor took: the timer ticks through it.
    let busy: f64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|&at| fields.get(at)).sum();
    Ok(busy / rustix::param::clock_ticks_per_second() as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// What a sample costs, microseconds.
struct Cost {
    /// Lost by the victim, and the standard error of that.
    lost: f64,
    spread: f64,
    /// Used by the profiler's process.
    used: f64,
}

fn cost(turns: &[(Turn, Turn)], frequency_hz: u32) -> Cost {
    let frequency = f64::from(frequency_hz);
    let lost = |(empty, with): &(Turn, Turn)| (1.0 - with.speed / empty.speed) / frequency * 1e6;
    let lost: Vec<f64> = turns.iter().map(lost).collect();
    let used = |(_, with): &(Turn, Turn)| with.own_ns / (with.busy_s * frequency) / 1e3;
    let middle = median(lost.clone());
    let deviation = median(lost.iter().map(|value| (value - middle).abs()).collect());
    Cost {
        lost: middle,
        // The median deviation is 1 / 1.48 of the standard one.
        spread: 1.48 * deviation / (turns.len() as f64).sqrt(),
        used: median(turns.iter().map(used).collect()),
    }
}

impl Cost {
    /// Prints where it comes from and returns the sum; nothing where the victim's part is too uncertain to say anything.
    fn told(&self, what: &str) -> Option<f64> {
        let Self { lost, spread, used } = self;
        println!(
            "{what}: {lost:.2} ± {spread:.2} us lost by the victim, {used:.2} us used by its own process"
        );
        let certain = *spread <= SPREAD_US_MAX && *lost >= -spread;
        if !certain {
            println!("{what}: the victim's part is too uncertain to count: the host's speed wanders by more");
        }
        certain.then_some(lost + used)
    }
}

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
            let (perf, _) = bench.beside(bench.start_perf(997)?)?;
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

fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Returns lightswitch's cost at 997 Hz, or nothing where it is not installed.
fn lightswitch(bench: &Bench) -> Result<Option<f64>> {
    if !has("lightswitch") {
        println!(
            "skipped: lightswitch: not installed; apt-get install libelf-dev zlib1g-dev libzstd-dev protobuf-compiler && \
             LIBBPF_SYS_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu RUSTFLAGS=\"-L native=/usr/lib/x86_64-linux-gnu\" cargo \
             install lightswitch --version 0.7.0"
        );
        return Ok(None);
    }
    let empty = {
        let _empty = EmptySampler::start(997)?;
        bench.turn(None)?
    };
    let command = "mount -t debugfs none /sys/kernel/debug; exec lightswitch --sample-freq 997 --sender none --profile-format none";
    let child = Command::new("unshare")
        .args(["-m", "sh", "-c", command])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    sleep(WARM_UP);
    let (turn, _) = bench.beside(Profiler { child, state: None })?;
    Ok(cost(&[(empty, turn)], 997).told("lightswitch at 997 Hz"))
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
    let mut bench = Bench::new(bootstrap)?;
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
