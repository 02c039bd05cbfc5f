//! What the benchmarks of the agent share: victims that run through all turns, and what a sample costs by what they lose.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use strobe_bpf::bench_support::{Counting, EmptySampler, run_stats_of_process};
use strobe_bpf::monotonic_ns;

/// How long a turn lasts.
pub const TURN: Duration = Duration::from_secs(3);
/// Standard error of the victim's part, in microseconds per sample, above which the kernel's count takes its place.
pub const SPREAD_US_MAX: f64 = 2.0;
/// Time for a profiler to read the host's processes before it is measured.
pub const WARM_UP: Duration = Duration::from_millis(2_500);
/// Time for the first agent to make the tables of all that runs.
const TABLES: Duration = Duration::from_secs(8);
/// Threads of the agent whose time is none of its samples': the mock broker, and the uploads.
pub const LEFT_OUT: [&str; 3] = ["rdk:mock", "binaries", "binaries-io"];

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub victim: PathBuf,
    pub agent: PathBuf,
    pub bootstrap: Option<String>,
    pub victims: Vec<Victim>,
}

/// A piece of a victim's time: when it ended (CLOCK_MONOTONIC), iterations, nanoseconds of own CPU time for each.
pub type Piece = (u64, f64, f64);

/// A victim that runs through all turns.
pub struct Victim {
    pub child: Child,
    pub pieces: Arc<Mutex<Vec<Piece>>>,
}

impl Victim {
    pub fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
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
    pub fn between(&self, from_ns: u64, until_ns: u64) -> Result<(f64, f64)> {
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
pub struct Profiler {
    pub child: Child,
    pub state: Option<PathBuf>,
}

impl Profiler {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM and waits.
    pub fn end(mut self) -> Result<Option<serde_json::Value>> {
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
pub struct Turn {
    /// Iterations per nanosecond of own CPU time.
    pub speed: f64,
    /// CPU time of the profiler's process, nanoseconds, and busy time of the host's CPUs meanwhile.
    pub own_ns: f64,
    pub busy_s: f64,
}

impl Turn {
    /// Returns the mean of two turns: what a turn between them would have been.
    pub fn mean(self, other: Self) -> Self {
        Self {
            speed: (self.speed + other.speed) / 2.0,
            ..self
        }
    }
}

impl Bench {
    /// Builds the victim, with these flags of the compiler beside -O2.
    pub fn new(bootstrap: Option<String>, flags: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("victim.c");
        let victim = folder.path().join("strobe-victim");
        fs::write(&source, include_str!("../bench_agent.c"))?;
        let built = Command::new("gcc")
            .arg("-O2")
            .args(flags)
            .arg("-o")
            .arg(&victim)
            .arg(&source)
            .status();
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

    pub fn start_agent(&self, frequency_hz: u32) -> Result<Profiler> {
        let state = self.folder.path().join("state");
        // Each binary's table is made once, whatever the number of samples: those stay.
        let _ = fs::remove_dir_all(state.join("spool"));
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

    /// Starts `perf record` with stacks by frame pointers (`fp`) or from copies of the stack (`dwarf`).
    pub fn start_perf(&self, frequency_hz: u32, call_graph: &str) -> Result<Profiler> {
        let child = Command::new("perf")
            .args([
                "record",
                "-q",
                "-e",
                "cpu-clock",
                "-F",
                &frequency_hz.to_string(),
                "--call-graph",
                call_graph,
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
    pub fn load(&mut self) -> Result<()> {
        for cpu in 0..std::thread::available_parallelism()?.get() {
            self.victims
                .push(Victim::start(&self.victim, &["busy", &cpu.to_string()])?);
        }
        let first = self.start_agent(997)?;
        sleep(TABLES);
        first.end()?;
        Ok(())
    }

    /// Measures one turn beside a profiler's process, if there is one.
    pub fn turn(&self, profiler: Option<&Profiler>) -> Result<Turn> {
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
    pub fn program_us(&self, frequency_hz: u32) -> Result<f64> {
        let _counting = Counting::start()?;
        let empty = {
            let sampler = EmptySampler::start(frequency_hz)?;
            let before = sampler.run_stats()?;
            sleep(TURN);
            sampler.run_stats()?.per_run_since(&before)
        };
        let agent = self.start_agent(frequency_hz)?;
        // A busy host takes its time to load the program.
        let until = Instant::now() + TABLES;
        while run_stats_of_process(agent.pid()).is_err() && Instant::now() < until {
            sleep(Duration::from_millis(100));
        }
        sleep(WARM_UP);
        let before = run_stats_of_process(agent.pid())?;
        sleep(TURN);
        let own = run_stats_of_process(agent.pid())?.per_run_since(&before);
        agent.end()?;
        Ok((own.context("no ticks")? - empty.context("no ticks")?) / 1e3)
    }

    pub fn beside(&self, profiler: Profiler) -> Result<(Turn, f64)> {
        sleep(WARM_UP);
        let turn = self.turn(Some(&profiler))?;
        let rss = rss_mib(profiler.pid())?;
        profiler.end()?;
        Ok((turn, rss))
    }
}

/// Returns the CPU time of the threads of a process but those of [`LEFT_OUT`], nanoseconds.
pub fn used_ns(pid: u32) -> Result<u64> {
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

pub fn rss_mib(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("VmRSS")? / 1024.0)
}

/// Returns the time for which the host's CPUs were busy since boot.
pub fn busy_s() -> Result<f64> {
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

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// What a sample costs, microseconds.
pub struct Cost {
    /// Lost by the victim, and the standard error of that.
    pub lost: f64,
    pub spread: f64,
    /// Used by the profiler's process.
    pub used: f64,
}

pub fn cost(turns: &[(Turn, Turn)], frequency_hz: u32) -> Cost {
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
    pub fn told(&self, what: &str) -> Option<f64> {
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

pub fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Returns lightswitch's cost at 997 Hz, or nothing where it is not installed.
pub fn lightswitch(bench: &Bench) -> Result<Option<f64>> {
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
