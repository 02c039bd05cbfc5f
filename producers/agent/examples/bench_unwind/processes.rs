//! How soon a process has its tables, and what the agent needs for many of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use strobe_event::{RawBatch, StackEnd, codec};

use crate::measuring::{median, rss_mib};

/// Distinct binaries, and processes of each.
const BINARIES: usize = 50;
const PROCESSES_EACH: usize = 4;
/// Starts of a program that is known already.
const STARTS: usize = 20;
/// A host that samples at the usual rate would find a process's first sample after up to 10 ms: this rate leaves that out.
const FAST_HZ: u32 = 1_999;
/// Until the agent knows what runs, and until the last samples are in a batch.
const SETTLE: Duration = Duration::from_secs(3);

/// Without frame pointers, 20 deep, and either busy or nearly idle.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
volatile unsigned long spins;
__attribute__((noinline)) int dive(int depth, unsigned long count)
{
	if (depth) return dive(depth - 1, count) + 1;
	for (unsigned long i = 0; i < count; i++) spins++;
	return NUMBER;
}
int main(int argc, char **argv)
{
	int sum = 0;
	if (argc > 1 && !strcmp(argv[1], "once")) {
		for (int i = 0; i < 100; i++) sum += dive(20, 1000000);
		return sum == 7;
	}
	for (;;) { sum += dive(20, 3000000); usleep(200000); }
}
"#;

/// An agent under way, with its own folders.
pub struct Agent {
    child: Child,
}

impl Agent {
    /// Returns its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as its supervisor would, and waits.
    pub fn end(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts an agent that publishes nothing, by `agent.toml` in its folder if there is one, and waits until it has looked around.
pub fn start_agent(folder: &Path, frequency_hz: u32, capture: Option<&Path>) -> Result<Agent> {
    let own = std::env::current_exe()?;
    let release = own.ancestors().nth(2).context("the folder of the executables")?;
    let mut command = Command::new(release.join("strobe-agent"));
    command
        .args(["run", "--log-level", "warn", "--no-publish", "--frequency"])
        .arg(frequency_hz.to_string())
        .arg("--state-dir")
        .arg(folder.join("state"))
        .stdin(Stdio::null())
        .stderr(fs::File::create(folder.join("agent.log"))?);
    let config = folder.join("agent.toml");
    if config.exists() {
        command.arg("--config").arg(config);
    }
    if let Some(capture) = capture {
        command.arg("--capture").arg(capture);
    }
    let agent = Agent {
        child: command.spawn()?,
    };
    sleep(SETTLE);
    Ok(agent)
}

fn build(folder: &Path, number: usize) -> Result<PathBuf> {
    let (source, program) = (
        folder.join("program.c"),
        folder.join(format!("bench-unwind-{number}")),
    );
    fs::write(&source, PROGRAM)?;
    // Static, so that each has the C library's thousands of functions as its own.
    let built = Command::new("gcc")
        .args([
            "-O2",
            "-fomit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-static",
            "-Wl,--build-id=sha1",
        ])
        .arg(format!("-DNUMBER={number}"))
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status();
    ensure!(built.context("gcc")?.success(), "gcc cannot build a program");
    Ok(program)
}

/// Prints how long it takes from the start of a program that is known already to its first whole stack.
///
/// # Errors
/// Where gcc or the agent fails.
pub fn exec_to_table() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = build(folder.path(), 0)?;
    let capture = folder.path().join("capture");
    let agent = start_agent(folder.path(), FAST_HZ, Some(&capture))?;
    let mut starts = Vec::new();
    for _ in 0..=STARTS {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let mut child = Command::new(&program).arg("once").spawn()?;
        child.wait()?;
        starts.push((child.id(), started.as_micros() as u64));
    }
    sleep(SETTLE);
    agent.end()?;
    let mut whole: Vec<(u32, u64)> = Vec::new();
    for entry in fs::read_dir(&capture)? {
        let batch: RawBatch = codec::decode_framed(&fs::read(entry?.path())?)?;
        let at = |index: u32| usize::try_from(index).unwrap_or(usize::MAX);
        let samples = &batch.samples;
        let mut time_us = batch.start_us;
        for ((&thread, &stack), delta_us) in samples
            .thread
            .iter()
            .zip(&samples.stack)
            .zip(&samples.time_delta_us)
        {
            time_us += delta_us;
            let process = batch.threads.process.get(at(thread)).context("a thread")?;
            let process = batch.processes.get(at(*process)).context("a process")?;
            if batch.stacks.end.get(at(stack)).copied() == Some(StackEnd::Root as u8) {
                whole.push((process.pid, time_us));
            }
        }
    }
    // The first one made the table.
    let times = starts.iter().skip(1).filter_map(|(pid, started)| {
        let times = whole
            .iter()
            .filter(|(of, time)| of == pid && time >= started)
            .map(|(_, time)| *time);
        Some((times.min()? - started) as f64 / 1e3)
    });
    let times: Vec<f64> = times.collect();
    ensure!(
        times.len() > STARTS / 2,
        "{} of {STARTS} starts have whole stacks",
        times.len()
    );
    let most = times.iter().copied().fold(0.0, f64::max);
    println!("from fork and exec of a known binary to the first stack by its table: at most {most:.1} ms");
    println!(
        "figure unwind.exec_to_table_ms value={:.1} target<=100",
        median(times)
    );
    Ok(())
}

/// Prints the agent's memory beside 200 processes of 50 binaries.
///
/// # Errors
/// Where gcc or the agent fails.
pub fn memory() -> Result<()> {
    struct Running(Child);
    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let folder = tempfile::tempdir()?;
    let agent = start_agent(folder.path(), 997, None)?;
    let mut running = Vec::new();
    for number in 0..BINARIES {
        let program = build(folder.path(), number)?;
        for _ in 0..PROCESSES_EACH {
            running.push(Running(Command::new(&program).spawn()?));
        }
    }
    let status = folder.path().join("state").join(strobe_agent::status::FILE);
    let walked = || -> Option<u64> {
        let status: serde_json::Value = serde_json::from_str(&fs::read_to_string(&status).ok()?).ok()?;
        status["unwinding"]["processes"].as_u64()
    };
    let (mut tries, wanted) = (0, (BINARIES * PROCESSES_EACH) as u64);
    while walked().unwrap_or(0) < wanted && tries < 60 {
        sleep(Duration::from_secs(1));
        tries += 1;
    }
    let walked = walked().unwrap_or(0);
    println!(
        "{walked} processes are walked by tables, of {wanted} of {BINARIES} binaries and what else runs"
    );
    println!(
        "figure unwind.rss_mib value={:.1} target<=100",
        rss_mib(agent.pid())?
    );
    drop(running);
    agent.end()
}
