//! The parts of the pipeline as processes: started, held up, and what CPU time they took.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Longest time for a service to stop before it is killed.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// A service of ours.
pub struct Service {
    child: Child,
}

impl Service {
    /// Starts `strobe --config CONFIG run ROLE`, with a log in `logs`.
    pub fn start(strobe: &Path, config: &Path, role: &str, logs: &Path) -> Result<Self> {
        let mut command = Command::new(strobe);
        command.arg("--config").arg(config).args(["run", role]);
        Self::spawn(command, role, logs)
    }

    /// Starts `command`, with a log in `logs`.
    pub fn spawn(mut command: Command, name: &str, logs: &Path) -> Result<Self> {
        let log = File::create(logs.join(format!("bench-pipeline-{name}.log")))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self { child })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error when it has ended.
    pub fn check(&mut self, name: &str) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the {name} ended ({ended:?}); see its log");
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    /// Holds it up, or lets it go on.
    pub fn hold(&self, held: bool) -> Result<()> {
        self.signal(if held { Signal::STOP } else { Signal::CONT })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process id")?, signal)?;
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = self.hold(false);
        let _ = self.signal(Signal::TERM);
        let deadline = Instant::now() + STOPPED_WITHIN;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU seconds that a process and its children took so far.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    // The name, in parentheses, may hold anything; fields are counted after it.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_ascii_whitespace()
        .collect();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok());
    let own = ticks(11).zip(ticks(12)).context("no times in its stat")?;
    let mut seconds = (own.0 + own.1) / rustix::param::clock_ticks_per_second() as f64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace() {
            // A child that has just ended is no longer there to be asked.
            seconds += child
                .parse()
                .ok()
                .map_or(0.0, |child| cpu_seconds(child).unwrap_or(0.0));
        }
    }
    Ok(seconds)
}

/// Returns the CPU seconds that all of this machine's processes took so far.
pub fn machine_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let times: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|text| text.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let idle: f64 = times.iter().skip(3).take(2).sum();
    Ok((times.iter().sum::<f64>() - idle) / rustix::param::clock_ticks_per_second() as f64)
}
