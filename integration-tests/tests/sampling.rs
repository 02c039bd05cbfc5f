//! Sampling on a real machine: two agents with plans of their own, and the weighted totals against the kernel's account.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, Need, Part, journey};
use strobe_sampling::spread::RunSums;
use support::truth::caught_up;

/// Slots of a second, of which each agent judges at least so many.
const SLOTS: f64 = 240.0;
/// Half the width of a 99.99 % interval, in standard deviations.
const DEVIATIONS: f64 = 3.89;
/// A 99.99 % interval must be no wider than this.
const WIDTH_MAX: f64 = 0.05;

/// A workload in a control group of its own, and the agent that is asked about it.
struct Side {
    host: &'static str,
    service: &'static str,
    q: f64,
    planned_us: u64,
    frequency_hz: f64,
}

const SIDES: [Side; 2] = [
    Side {
        host: "host-a",
        service: "load-a",
        q: 0.5,
        planned_us: 400_000,
        frequency_hz: 797.0,
    },
    Side {
        host: "host-b",
        service: "load-b",
        q: 0.75,
        planned_us: 300_000,
        frequency_hz: 997.0,
    },
];

/// A control group that is removed at the end.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Result<Self> {
        let roots = ["/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup"];
        let root = roots
            .iter()
            .map(PathBuf::from)
            .find(|root| root.join("cgroup.procs").exists());
        let folder = root
            .context("no control groups")?
            .join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The processes in it end with their parts a moment earlier.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Starts a process that is busy for the first `busy_ms` of every `period_ms`, first in line for its CPU.
fn workload(cluster: &Cluster, group: &Group, side: &Side, busy_ms: f64, period_ms: f64) -> Result<Part> {
    let script = format!(
        "import time, os\nos.nice(-20)\nopen('{}/cgroup.procs','w').write(str(os.getpid()))\n\
         while True:\n  start = time.monotonic()\n  while time.monotonic() - start < {}: pass\n  \
         time.sleep(max(0, {} - (time.monotonic() - start)))\n",
        group.0.display(),
        busy_ms / 1e3,
        period_ms / 1e3
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]).env("STROBE_SERVICE", side.service);
    Part::start(
        side.service,
        &command,
        &cluster.path(&format!("{}.log", side.service)),
    )
}

/// Starts an agent that knows its plan from its last life.
fn agent(cluster: &Cluster, side: &Side) -> Result<Part> {
    let state = cluster.path(side.host);
    fs::create_dir_all(&state)?;
    let plan = serde_json::json!([{
        "service": side.service,
        "plan": {
            "run_probability": side.q, "planned_us": side.planned_us, "frequency_hz": side.frequency_hz, "keep": 1.0,
            "since_us": 0,
        },
    }]);
    fs::write(state.join("plans.json"), plan.to_string())?;
    let state = state.display().to_string();
    cluster.agent(&["--host", side.host, "--state-dir", &state], None)
}

/// What is known of a side in the end, CPU seconds.
#[derive(Debug)]
struct Found {
    /// Σ of t and u of the runs, by the stored samples; t in CPU seconds.
    sums: RunSums,
    planned: f64,
    /// The kernel's own account.
    kernel: f64,
    q: f64,
}

impl Found {
    fn read(cluster: &Cluster, side: &Side) -> Result<Self> {
        let (host, service) = (side.host, side.service);
        let coverage = cluster.rows(&format!(
            "SELECT sum(planned), sum(cpu_us) / 1e6, sum(runs), any(cpu_source) FROM coverage FINAL WHERE host = '{host}' AND \
             service = '{service}' AND slot_us = 1000000"
        ))?;
        let row = coverage.first().context("no coverage")?;
        ensure!(row[3] == "control_group", "the account is of {}", row[3]);
        let runs = cluster.rows(&format!(
            "SELECT r.done_us / r.planned_us / r.run_probability, s.weight / 1e9 FROM (SELECT * FROM runs FINAL WHERE host = \
             '{host}' AND state = 'finished' AND run_probability < 1) AS r LEFT JOIN (SELECT run, sum(fleet_weight) AS weight \
             FROM samples WHERE host = '{host}' AND service = '{service}' GROUP BY run) AS s ON r.run = s.run"
        ))?;
        let mut sums = RunSums::default();
        for run in &runs {
            sums.add(run[0].parse()?, run[1].parse()?);
        }
        let told: u64 = row[2].parse()?;
        ensure!(
            told.abs_diff(sums.runs) <= 1,
            "{told} runs were told, {} are stored",
            sums.runs
        );
        Ok(Self {
            sums,
            planned: row[0].parse()?,
            kernel: row[1].parse()?,
            q: side.q,
        })
    }

    /// Checks that the weighted total is the kernel's, and that without q it would not be.
    fn agrees(&self) -> Result<()> {
        let correction = self.planned / self.sums.u * self.sums.small_sample_factor();
        let total = correction * self.sums.t;
        let error = self.sums.variance(self.planned).context("too few runs")?.sqrt();
        let width = DEVIATIONS * error;
        println!(
            "{} runs of {} slots: {total:.2} ± {width:.2} CPU s by the samples, {:.2} by the kernel",
            self.sums.runs, self.planned, self.kernel
        );
        ensure!(self.planned >= SLOTS, "only {} slots", self.planned);
        ensure!(width <= WIDTH_MAX * total, "± {width} of {total}");
        // The edges of the hour and of the first and last slot are no sampling error.
        let edge = 1.5 * self.kernel / self.planned;
        ensure!(
            (total - self.kernel).abs() <= width + edge,
            "{total} ± {width} by the samples, {} by the kernel",
            self.kernel
        );
        let without_q = self.q * self.sums.t;
        ensure!(
            (without_q - self.kernel).abs() > width + edge,
            "left out, q makes no difference: {without_q}"
        );
        Ok(())
    }
}

/// Checks that two agents, each with its own q, duration and frequency, find the CPU time of a workload as the kernel accounts it,
/// within intervals of 99.99 % no wider than 5 %, and that weights without q would not.
#[test]
#[ignore = "fails: with slots of one second the weighted total reads some 10 % low, as docs/limits.md says"]
fn weighted_cpu_time_is_the_kernels() -> Result<()> {
    let needs = [Need::Profiling, Need::Program("python3")];
    journey("weighted_cpu_time_is_the_kernels", &needs, |cluster| {
        for (key, value) in [
            ("slot", "\"1s\""),
            ("run_min", "\"100ms\""),
            ("run_max", "\"1s\""),
            ("frequency_max_hz", "997.0"),
        ] {
            cluster.set_agent("schedule", key, value)?;
        }
        let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
        let groups = [Group::make("strobe-load-a")?, Group::make("strobe-load-b")?];
        // Neither in step with the slots, nor with each other.
        let loads = [
            workload(cluster, &groups[0], &SIDES[0], 9.0, 19.7)?,
            workload(cluster, &groups[1], &SIDES[1], 7.0, 17.3)?,
        ];
        std::thread::sleep(Duration::from_secs(1));
        let agents = [agent(cluster, &SIDES[0])?, agent(cluster, &SIDES[1])?];
        std::thread::sleep(Duration::from_secs_f64(SLOTS + 40.0));
        for agent in agents {
            agent.stop()?;
        }
        drop(loads);
        caught_up(cluster)?;
        for side in &SIDES {
            Found::read(cluster, side)?.agrees()?;
        }
        processor.stop()?;
        sink.stop()
    })
}
