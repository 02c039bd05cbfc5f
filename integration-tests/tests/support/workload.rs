//! The demo's programs, and its service with its own clock.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, Part, repository};

/// `orders`, running.
pub struct Orders {
    _part: Part,
    report: PathBuf,
}

/// One line of its report, nanoseconds since its start.
#[derive(Debug, Clone)]
pub struct Line {
    /// When it was written, microseconds since 1970.
    pub time_us: u64,
    /// CPU time of its thread.
    pub thread_cpu_ns: f64,
    phases: serde_json::Value,
}

impl Line {
    /// Returns the CPU time of a phase.
    pub fn phase(&self, name: &str) -> Result<f64> {
        self.phases[name]
            .as_f64()
            .with_context(|| format!("no phase {name}"))
    }
}

/// Builds the demo's programs and returns the folder that they are in.
pub fn build(cluster: &Cluster) -> Result<PathBuf> {
    let folder = cluster.path("home");
    let build = Command::new("make")
        .args(["-s", "-C"])
        .arg(repository().join("infra/demo"))
        .env("STROBE_HOME", &folder)
        .output()?;
    ensure!(
        build.status.success(),
        "{}",
        String::from_utf8_lossy(&build.stderr)
    );
    Ok(folder.join("demo"))
}

impl Orders {
    /// Builds it and starts it, as a service named `orders`.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let folder = build(cluster)?;
        let report = cluster.path("orders.jsonl");
        let mut command = Command::new(folder.join("orders"));
        command
            .args(["--cpu-share", "0.9", "--seconds", "600", "--report"])
            .arg(&report)
            .env("STROBE_SERVICE", "orders");
        let part = Part::start("orders", &command, &cluster.path("orders.log"))?;
        Ok(Self { _part: part, report })
    }

    /// Returns the newest line of its report.
    pub fn clock(&self) -> Result<Line> {
        let text = std::fs::read_to_string(&self.report)?;
        let last = text.lines().last().context("no report yet")?;
        let line: serde_json::Value = serde_json::from_str(last)?;
        Ok(Line {
            time_us: line["time_unix_ns"].as_u64().context("no time")? / 1_000,
            thread_cpu_ns: line["thread_cpu_ns"].as_f64().context("no clock")?,
            phases: line["phases"].clone(),
        })
    }
}
