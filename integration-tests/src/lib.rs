//! The whole system, each part a real process: broker, engine, processor, sink, agent. Journeys through it are in `tests/`.
//!
//! A [`Cluster`] lives in a temporary folder, on ports of its own, and ends everything that it started when it is dropped.
//! What cannot run here (no jars, no engine, no root) is said by [`Cluster::start`] in words, and the test prints them as
//! `skipped: NAME: REASON`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the repository's root.
pub fn repository() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.parent().unwrap_or(crate_folder).to_path_buf()
}

/// Says, past the capture of the test runner, that a test did not run.
pub fn skipped(test: &str, reason: &str) {
    use std::io::Write;
    // A closed standard error is nobody's loss.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Returns a built executable of the workspace.
///
/// # Errors
/// Where it is not built.
pub fn executable(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own
        .parent()
        .and_then(Path::parent)
        .context("no folder of executables")?;
    let path = folder.join(name);
    ensure!(
        path.exists(),
        "{} is not built: cargo build --release --workspace",
        path.display()
    );
    Ok(path)
}

/// One part of the system.
pub struct Part {
    child: Child,
}

impl Part {
    /// Starts a command whose output goes to `log`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn();
        Ok(Self {
            child: child.with_context(|| format!("starting {command:?}"))?,
        })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // One that has ended already is as good as signalled.
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// Asks it to end and waits; returns whether it ended well.
    ///
    /// # Errors
    /// Where it does not end.
    pub fn stop(mut self) -> Result<bool> {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            ensure!(Instant::now() < deadline, "a part did not end on SIGTERM");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A broker and an engine of its own, with topics and tables, and a place for the other parts.
pub struct Cluster {
    folder: tempfile::TempDir,
    name: String,
    kafka_port: u16,
    engine_port: u16,
}

impl Cluster {
    /// Starts broker and engine, and makes topics and tables.
    ///
    /// # Errors
    /// The reason why it cannot run here.
    pub fn start(name: &str) -> Result<Self> {
        let home =
            std::env::var_os("STROBE_HOME").map_or_else(|| repository().join(".strobe"), PathBuf::from);
        ensure!(
            home.join("kafka/jars/.stamp").exists(),
            "the broker's jars are missing: infra/kafka/broker.sh install"
        );
        ensure!(
            home.join("venv/bin/python").exists(),
            "the engine is missing: infra/clickhouse/engine.sh install"
        );
        ensure!(rustix::process::getuid().is_root(), "profiling needs root");
        ensure!(
            Path::new("/sys/kernel/btf/vmlinux").exists(),
            "profiling needs a kernel with BTF"
        );
        executable("strobe-agent")?;
        let cluster = Self {
            folder: tempfile::Builder::new().prefix("strobe-test-").tempdir()?,
            name: format!("{name}-{}", std::process::id()),
            kafka_port: free_port()?,
            engine_port: free_port()?,
        };
        cluster.broker("start")?;
        cluster.engine("start")?;
        cluster.write_config()?;
        cluster.strobe(&["topics", "apply"])?;
        cluster.strobe(&["ddl", "apply"])?;
        Ok(cluster)
    }

    /// Returns a file or folder of the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, script: &str, what: &str, command: &str, extra: &[String]) -> Result<()> {
        let mut run = Command::new(repository().join(script));
        run.arg(command)
            .args(["--name", &format!("{what}-{}", self.name)]);
        for (flag, file) in [("--data", "data"), ("--log", "log"), ("--pid-file", "pid")] {
            run.arg(flag).arg(self.path(&format!("{what}.{file}")));
        }
        let output = run.args(extra).stdin(Stdio::null()).output()?;
        ensure!(
            output.status.success(),
            "{script} {command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Starts, stops or kills the broker.
    ///
    /// # Errors
    /// Where its script fails.
    pub fn broker(&self, command: &str) -> Result<()> {
        let ports = ["--port".to_owned(), self.kafka_port.to_string()];
        self.script("infra/kafka/broker.sh", "broker", command, &ports)
    }

    /// Starts, stops or kills the engine.
    ///
    /// # Errors
    /// Where its script fails.
    pub fn engine(&self, command: &str) -> Result<()> {
        let mut flags = vec!["--port".to_owned(), self.engine_port.to_string()];
        for user in ["writer", "reader"] {
            flags.push(format!("--{user}-password-file"));
            flags.push(self.path(user).display().to_string());
        }
        self.script("infra/clickhouse/engine.sh", "engine", command, &flags)
    }

    fn write_config(&self) -> Result<()> {
        let (kafka, engine) = (self.kafka_port, self.engine_port);
        let path = |name: &str| self.path(name).display().to_string();
        fs::create_dir_all(self.path("symbols"))?;
        // A short session, so that a killed consumer's partitions are handed over within a test's patience.
        let bus = format!(
            "[bus]\nbootstrap = \"127.0.0.1:{kafka}\"\n[bus.options]\n\"session.timeout.ms\" = 6000\n"
        );
        fs::write(
            self.path("strobe.toml"),
            format!(
                "{bus}[clickhouse]\nurl = \"http://127.0.0.1:{engine}\"\nuser = \"strobe_writer\"\npassword_file = \
                 \"{}\"\nreader_user = \"strobe_reader\"\nreader_password_file = \"{}\"\n[processor]\nsymbol_store = \
                 \"{}\"\n",
                path("writer"),
                path("reader"),
                path("symbols")
            ),
        )?;
        fs::write(
            self.path("agent.toml"),
            format!(
                "state_dir = \"{}\"\nsymbol_store = \"{}\"\n[bus]\nbootstrap = \
                 \"127.0.0.1:{kafka}\"\n[binaries]\nbytes_per_second = 1000000000\n",
                path("agent"),
                path("symbols")
            ),
        )?;
        Ok(())
    }

    /// Runs `strobe` to its end and returns what it printed.
    ///
    /// # Errors
    /// With what it said, where it fails.
    pub fn strobe(&self, arguments: &[&str]) -> Result<String> {
        let output = self.strobe_output(arguments)?;
        ensure!(
            output.status.success(),
            "strobe {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs `strobe` to its end, whatever it is.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn strobe_output(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(executable("strobe")?);
        Ok(command
            .arg("--config")
            .arg(self.path("strobe.toml"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()?)
    }

    /// Runs `strobe` and reads its answer as JSON.
    ///
    /// # Errors
    /// As [`Cluster::strobe`].
    pub fn json(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.strobe(arguments)?)?)
    }

    /// Asks the store for one number.
    ///
    /// # Errors
    /// Where the answer is none.
    pub fn number(&self, sql: &str) -> Result<f64> {
        let rows = self.json(&["query", "-o", "json", sql])?;
        let row = rows.get(0).and_then(|row| row.as_object()).context("no row")?;
        let value = row.values().next().context("no column")?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.parse().with_context(|| format!("{text} is no number"))
    }

    /// Starts `strobe run ROLE`; `fail_at` names the point at which it kills itself.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn run(&self, role: &str, fail_at: Option<&str>) -> Result<Part> {
        let mut command = Command::new(executable("strobe")?);
        command
            .arg("--config")
            .arg(self.path("strobe.toml"))
            .args(["run", role]);
        if let Some(point) = fail_at {
            command.env("STROBE_FAIL_AT", point);
        }
        Part::start(&mut command, &self.path(&format!("{role}.log")))
    }

    /// Starts the agent with more arguments.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn agent(&self, arguments: &[&str], fail_at: Option<&str>) -> Result<Part> {
        let mut command = Command::new(executable("strobe-agent")?);
        command
            .args(["run", "--config"])
            .arg(self.path("agent.toml"))
            .args(arguments);
        if let Some(point) = fail_at {
            command.env("STROBE_FAIL_AT", point);
        }
        Part::start(&mut command, &self.path("agent.log"))
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// With `what` and the ends of the logs, where it does not in time.
    pub fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            if Instant::now() >= deadline {
                bail!("waited in vain: {what}\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(8).collect();
            format!(
                "-- {name}\n{}\n",
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            )
        };
        ["agent.log", "processor.log", "sink.log"].map(tail).concat()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What was not started cannot be stopped; the folder goes in any case.
        let _ = self.engine("kill");
        let _ = self.broker("kill");
    }
}

/// Returns a port that nobody listens on, with the next one free too (the broker's controller).
fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no two free ports side by side")
}
