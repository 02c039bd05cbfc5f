//! What unwinding costs: CPU per sample with frame pointers and without, and the agent's memory. Needs root, BTF and gcc.
//!
//! `cargo run --release -p strobe-agent --example bench_unwind`, about half a minute. A victim on each CPU runs 40 frames deep, once
//! built with frame pointers (but for the leaf's caller, which tables find), once without any. The cost of a sample is the
//! kernel's own count of the program's time, less an empty program's, and the CPU time of the agent's process, both divided by the
//! samples taken. Both are walked by tables, where there are some: the figure says so.
//!
//! Peers are not run: they unwind other programs at other rates of their own choosing. `cargo install lightswitch` gives one; its
//! cost is measured in the same way, by `bpftool prog` and `/proc/PID/schedstat`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use strobe_bpf::bench_support::{Counting, EmptySampler};

const FREQUENCY_HZ: u32 = 997;
const TURN: Duration = Duration::from_secs(5);
/// Until the victims' tables are in the kernel; more than that is an error.
const TABLES_MAX: Duration = Duration::from_secs(20);

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn victim(folder: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let (source, program) = (folder.join("victim.c"), folder.join(name));
    fs::write(&source, include_str!("bench_agent.c"))?;
    let built = Command::new("gcc")
        .args(["-O2", "-fasynchronous-unwind-tables"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status();
    ensure!(
        built.context("gcc builds the victim")?.success(),
        "gcc cannot build the victim"
    );
    Ok(program)
}

fn start_agent(folder: &Path, tables: bool) -> Result<Running> {
    let own = std::env::current_exe()?;
    let agent = own
        .ancestors()
        .nth(2)
        .context("the folder of the executables")?
        .join("strobe-agent");
    ensure!(
        agent.exists(),
        "{} is not there: cargo build --release -p strobe-agent",
        agent.display()
    );
    let (state, config) = (folder.join("state"), folder.join("agent.toml"));
    let bytes = if tables { 128 << 20 } else { 0 };
    fs::write(
        &config,
        format!(
            "state_dir = {state:?}\nfrequency_hz = {FREQUENCY_HZ}\npublish = false\n[unwind]\nkernel_bytes_max = {bytes}\n"
        ),
    )?;
    let log = fs::File::create(folder.join("agent.log"))?;
    let child = Command::new(agent)
        .args(["run", "--log-level", "warn", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()?;
    Ok(Running(child))
}

fn status(folder: &Path) -> Option<serde_json::Value> {
    let text = fs::read_to_string(folder.join("state").join(strobe_agent::status::FILE)).ok()?;
    serde_json::from_str(&text).ok()
}

fn ends(folder: &Path) -> Result<(f64, f64)> {
    let status = status(folder).context("the agent has written no status")?;
    let ends = status["user_stack_ends"].as_object().context("no ends")?;
    let count = |name: &str| ends.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let all: f64 = ends.values().filter_map(serde_json::Value::as_f64).sum();
    let without = count("not_taken") + count("no_user") + count("exec");
    Ok((count("root"), all - without))
}

/// Returns nanoseconds and runs of the programs that a process holds.
fn program(pid: u32) -> Result<(f64, f64)> {
    let mut sum = (0.0, 0.0);
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let field = |name: &str| -> Option<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        if let (Some(ns), Some(runs)) = (field("run_time_ns:"), field("run_cnt:"))
            && runs > sum.1
        {
            sum = (ns, runs);
        }
    }
    Ok(sum)
}

fn used_ns(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        sum += text
            .split(' ')
            .next()
            .and_then(|ns| ns.parse::<f64>().ok())
            .unwrap_or(0.0);
    }
    Ok(sum)
}

fn rss_mib(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("VmRSS")? / 1024.0)
}

struct Cost {
    program_us: f64,
    used_us: f64,
    complete: f64,
    rss_mib: f64,
    tables_mib: f64,
}

fn measure(program_path: &Path, tables: bool, empty_ns: f64) -> Result<Cost> {
    let folder = tempfile::tempdir()?;
    let agent = start_agent(folder.path(), tables)?;
    let pid = agent.0.id();
    let cpus = std::thread::available_parallelism()?.get();
    let victims: Vec<Running> = (0..cpus)
        .map(|cpu| {
            let child = Command::new(program_path)
                .args(["busy", &cpu.to_string()])
                .stdout(Stdio::null())
                .spawn()?;
            Ok(Running(child))
        })
        .collect::<Result<_>>()?;
    let since = Instant::now();
    while tables
        && status(folder.path())
            .and_then(|status| status["unwinding"]["processes"].as_u64())
            .is_none_or(|processes| processes < cpus as u64)
    {
        ensure!(
            since.elapsed() < TABLES_MAX,
            "the victims have no tables: see the agent's log"
        );
        sleep(Duration::from_millis(200));
    }
    sleep(Duration::from_secs(3));
    let before = (program(pid)?, used_ns(pid)?, ends(folder.path())?);
    sleep(TURN);
    let after = (program(pid)?, used_ns(pid)?, ends(folder.path())?);
    let runs = after.0.1 - before.0.1;
    ensure!(runs > 100.0, "no ticks: is kernel.bpf_stats_enabled to be had?");
    let held = status(folder.path()).and_then(|status| status["unwinding"]["held_bytes"].as_f64());
    let cost = Cost {
        program_us: ((after.0.0 - before.0.0) / runs - empty_ns) / 1e3,
        used_us: (after.1 - before.1) / runs / 1e3,
        complete: (after.2.0 - before.2.0) / (after.2.1 - before.2.1).max(1.0) * 100.0,
        rss_mib: rss_mib(pid)?,
        tables_mib: held.unwrap_or(0.0) / f64::from(1 << 20),
    };
    drop(victims);
    Ok(cost)
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let with = victim(folder.path(), "with", &["-fno-omit-frame-pointer"])?;
    let without = victim(folder.path(), "without", &["-fomit-frame-pointer"])?;
    let _counting = Counting::start()?;
    let empty_ns = {
        let sampler = EmptySampler::start(FREQUENCY_HZ)?;
        let before = sampler.run_stats()?;
        sleep(TURN);
        sampler.run_stats()?.per_run_since(&before).context("no ticks")?
    };
    let mut figures = Vec::new();
    for (what, path, tables) in [
        ("frame pointers, walked by them alone", &with, false),
        ("frame pointers, walked by tables", &with, true),
        ("no frame pointers, walked by tables", &without, true),
    ] {
        let cost = measure(path, tables, empty_ns)?;
        println!(
            "{what}: {:.2} us in the program, {:.2} us in the agent; {:.2} % complete; {:.0} MiB, and {:.0} MiB of tables",
            cost.program_us, cost.used_us, cost.complete, cost.rss_mib, cost.tables_mib,
        );
        figures.push(cost);
    }
    if let [_, with, without] = &figures[..] {
        println!(
            "figure unwind.fp_us value={:.1} target<=8",
            with.program_us + with.used_us
        );
        println!(
            "figure unwind.table_us value={:.1} target<=15",
            without.program_us + without.used_us
        );
        println!(
            "figure unwind.rss_mib value={:.0} target<=100",
            without.rss_mib.max(with.rss_mib)
        );
    }
    println!("peer lightswitch: not run; cargo install lightswitch");
    Ok(())
}
