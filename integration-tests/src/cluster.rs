//! A place for one test in the shared stack: topics, a database, a folder, and the parts that run there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::backend::{Backend, Plan};
use crate::stack::{Service, Turn, fresh_folder, tail};
use crate::{Need, Part, executable, missing, skipped};

/// Longest wait for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(150);
/// Lines of each log that a failure shows.
const LOG_LINES: usize = 12;

/// Who asks the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The sink.
    Writer,
    /// People.
    Reader,
}

/// Runs `test` in a cluster of its own, or says why it cannot run here.
///
/// # Errors
/// Those of `test`, with the ends of the logs.
pub fn journey(name: &str, needs: &[Need], test: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let always = [
        Need::Broker,
        Need::Engine,
        Need::Program("setpriv"),
        Need::Program("curl"),
    ];
    let backend = Backend::chosen()?;
    if let Some(reason) = missing(&always)
        .or_else(|| missing(needs))
        .or_else(|| backend.missing())
    {
        skipped(name, &reason);
        return Ok(());
    }
    let cluster = Cluster::start(name)?;
    test(&cluster).map_err(|error| anyhow!("{error:#}\n{}", cluster.logs()))?;
    fs::remove_dir_all(&cluster.folder)?;
    Ok(())
}

/// A configuration file: sections, keys, values as TOML.
type Toml = BTreeMap<&'static str, BTreeMap<String, String>>;

/// A place for one test.
pub struct Cluster {
    folder: PathBuf,
    name: String,
    turn: Turn,
    strobe: Mutex<Toml>,
    agent: Mutex<Toml>,
}

impl Cluster {
    fn start(test: &str) -> Result<Self> {
        let turn = Turn::take()?;
        // As short as a database's name and a topic's prefix should be, and never a number at the front.
        let name: String = test
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
            .take(48)
            .collect();
        let cluster = Self {
            folder: fresh_folder(&name)?,
            name,
            turn,
            strobe: Mutex::default(),
            agent: Mutex::default(),
        };
        cluster.turn.stack()?.backend.hand_over(&cluster.folder)?;
        cluster.write_first_config()?;
        // A broker that has just answered for the first time may not yet count itself among those that can hold topics.
        let applied = cluster.wait_for("topics can be made", || {
            cluster.strobe(&["topics", "apply"]).is_ok()
        });
        if applied.is_err() {
            cluster.strobe(&["topics", "apply"])?;
        }
        cluster.strobe(&["ddl", "apply"])?;
        Ok(cluster)
    }

    fn write_first_config(&self) -> Result<()> {
        let stack = self.turn.stack()?;
        let text = |value: &dyn std::fmt::Display| format!("\"{value}\"");
        let file = |path: PathBuf| text(&path.display());
        let bootstrap = text(&format_args!("127.0.0.1:{}", stack.kafka_port));
        let symbols = file(self.path("symbols"));
        fs::create_dir_all(self.path("symbols"))?;
        stack.backend.hand_over(&self.path("symbols"))?;
        let prefix = text(&format_args!("{}.", self.name));
        let common = [
            ("bus", "bootstrap", bootstrap.clone()),
            ("bus", "topic_prefix", prefix.clone()),
            ("bus", "partitions", "2".into()),
        ];
        let strobe = [
            // Short, so that a killed member's partitions are handed over within a test's patience.
            ("bus.options", "session.timeout.ms", "3000".into()),
            ("bus.options", "heartbeat.interval.ms", "500".into()),
            (
                "clickhouse",
                "url",
                text(&format_args!("http://127.0.0.1:{}", stack.engine_port)),
            ),
            ("clickhouse", "database", text(&self.name)),
            ("clickhouse", "user", text(&"strobe_writer")),
            ("clickhouse", "password_file", file(stack.password_file("writer"))),
            ("clickhouse", "reader_user", text(&"strobe_reader")),
            (
                "clickhouse",
                "reader_password_file",
                file(stack.password_file("reader")),
            ),
            ("processor", "symbol_store", symbols.clone()),
            (
                "processor",
                "group",
                text(&format_args!("{}.processor", self.name)),
            ),
            ("sink", "group", text(&format_args!("{}.sink", self.name))),
            ("trigger", "group", text(&format_args!("{}.trigger", self.name))),
        ];
        let agent = [
            ("", "state_dir", file(self.path("agent"))),
            ("", "symbol_store", symbols),
            // The store is a folder on this host: nothing that a network would have to be spared.
            ("binaries", "bytes_per_second", "1000000000".into()),
        ];
        for (section, key, value) in common.iter().chain(&strobe) {
            self.set_strobe(section, key, value)?;
        }
        for (section, key, value) in common.iter().chain(&agent) {
            self.set_agent(section, key, value)?;
        }
        Ok(())
    }

    /// Sets a key of `strobe.toml`; `value` is TOML.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn set_strobe(&self, section: &'static str, key: &str, value: &str) -> Result<()> {
        set(&self.strobe, &self.path("strobe.toml"), section, key, value)
    }

    /// Sets a key of `agent.toml`; `value` is TOML.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn set_agent(&self, section: &'static str, key: &str, value: &str) -> Result<()> {
        set(&self.agent, &self.path("agent.toml"), section, key, value)
    }

    /// Returns a file or folder of the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the broker's address.
    ///
    /// # Errors
    /// Never: a cluster has a broker.
    pub fn bootstrap(&self) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.turn.stack()?.kafka_port))
    }

    /// Returns what every topic's name begins with.
    pub fn topic_prefix(&self) -> String {
        format!("{}.", self.name)
    }

    /// Starts, stops or kills the broker.
    ///
    /// # Errors
    /// Where its script fails.
    pub fn broker(&self, command: &str) -> Result<()> {
        self.turn.stack()?.run(Service::Broker, command)
    }

    /// Starts, stops or kills the engine.
    ///
    /// # Errors
    /// Where its script fails.
    pub fn engine(&self, command: &str) -> Result<()> {
        self.turn.stack()?.run(Service::Engine, command)
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

    /// Runs `strobe` to its end, however that is.
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

    /// Asks the engine over plain HTTP; returns the status and what it said.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub fn http(&self, user: User, sql: &str) -> Result<(u16, String)> {
        self.http_with(user, "", sql)
    }

    /// Asks like [`Cluster::http`], with settings for the address: `&max_threads=1`.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub fn http_with(&self, user: User, settings: &str, sql: &str) -> Result<(u16, String)> {
        let stack = self.turn.stack()?;
        let (name, file) = match user {
            User::Writer => ("strobe_writer", stack.password_file("writer")),
            User::Reader => ("strobe_reader", stack.password_file("reader")),
        };
        let password = fs::read_to_string(file)?;
        let url = format!(
            "http://127.0.0.1:{}/?database={}{settings}",
            stack.engine_port, self.name
        );
        // The headers come by standard input: command lines can be read by everybody.
        let mut child = Command::new("curl")
            .args([
                "-sS",
                "--max-time",
                "90",
                "-w",
                "\n%{http_code}",
                "-K",
                "-",
                "--data-binary",
            ])
            .arg(sql)
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            let password = password.trim();
            writeln!(stdin, "header = \"X-ClickHouse-User: {name}\"")?;
            writeln!(stdin, "header = \"X-ClickHouse-Key: {password}\"")?;
        }
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "the engine does not answer: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').context("no status")?;
        Ok((code.parse()?, body.to_owned()))
    }

    /// Asks the engine, as the reader, and returns the fields of each row.
    ///
    /// # Errors
    /// With what the engine says.
    pub fn rows(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        let (status, body) = self.http(User::Reader, &format!("{sql} FORMAT TabSeparated"))?;
        ensure!(status == 200, "{sql}: {status}: {body}");
        let fields = |line: &str| line.split('\t').map(str::to_owned).collect();
        Ok(body.lines().map(fields).collect())
    }

    /// Asks the engine for one number.
    ///
    /// # Errors
    /// Where the answer is none.
    pub fn number(&self, sql: &str) -> Result<f64> {
        let rows = self.rows(sql)?;
        let text = rows.first().and_then(|row| row.first()).context("no row")?;
        text.parse().with_context(|| format!("{text} is no number"))
    }

    /// Starts `strobe run ROLE`; `fail_at` names the point at which it crashes.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn run(&self, role: &str, fail_at: Option<&str>) -> Result<Part> {
        let config = self.path("strobe.toml").display().to_string();
        let variables: Vec<(&str, &str)> = fail_at.iter().map(|point| ("STROBE_FAIL_AT", *point)).collect();
        self.start_part(role, "strobe", &["--config", &config, "run", role], &variables)
    }

    /// Starts the agent with more arguments; `fail_at` names the point at which it crashes.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn agent(&self, arguments: &[&str], fail_at: Option<&str>) -> Result<Part> {
        let variables: Vec<(&str, &str)> = fail_at.iter().map(|point| ("STROBE_FAIL_AT", *point)).collect();
        self.agent_with(arguments, &variables)
    }

    /// Starts the agent with more arguments, and with variables of its own in its environment.
    ///
    /// # Errors
    /// As [`Cluster::agent`].
    pub fn agent_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Part> {
        let config = self.path("agent.toml").display().to_string();
        let arguments = [&["run", "--config", &config], arguments].concat();
        self.start_part("agent", "strobe-agent", &arguments, variables)
    }

    fn start_part(
        &self,
        name: &str,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Part> {
        let log = self.path(&format!("{name}.log"));
        let stack = self.turn.stack()?;
        if stack.backend == Backend::Native {
            let mut command = Command::new(executable(program)?);
            command.args(arguments).envs(variables.iter().copied());
            return Part::start(name, &command, &log);
        }
        let mut folders = vec![(self.folder.as_path(), self.folder.display().to_string())];
        let passwords = stack.path("passwords");
        if program == "strobe" {
            folders.push((&passwords, passwords.display().to_string()));
        }
        let plan = Plan {
            image: if program == "strobe" { "strobe" } else { "agent" },
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            variables: variables
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            folders,
            log: &log,
        };
        Part::contained(name, &plan)
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// With `what`, where it does not within [`PATIENCE`].
    pub fn wait_for(&self, what: &str, condition: impl FnMut() -> bool) -> Result<()> {
        self.wait_longer(what, PATIENCE, condition)
    }

    /// Waits until `condition` holds, for `longest` at most.
    ///
    /// # Errors
    /// With `what`, where it does not.
    pub fn wait_longer(
        &self,
        what: &str,
        longest: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + longest;
        while !condition() {
            if Instant::now() >= deadline {
                bail!("waited in vain for {longest:?}: {what}");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Returns the ends of all logs, and where they are.
    fn logs(&self) -> String {
        let mut text = format!("logs are kept in {}\n", self.folder.display());
        let shared = ["broker.log", "engine.log"];
        let shared = self.turn.stack().map(|stack| shared.map(|name| stack.path(name)));
        let own = ["agent.log", "processor.log", "sink.log", "trigger.log"].map(|name| self.path(name));
        for path in own.into_iter().chain(shared.into_iter().flatten()) {
            // A text that is too long for memory cannot be shown either.
            let _ = write!(text, "-- {}\n{}\n", path.display(), tail(&path, LOG_LINES));
        }
        text
    }
}

fn set(toml: &Mutex<Toml>, file: &Path, section: &'static str, key: &str, value: &str) -> Result<()> {
    let mut toml = toml.lock().unwrap_or_else(PoisonError::into_inner);
    let keys = toml.entry(section).or_default();
    keys.insert(format!("\"{key}\""), value.to_owned());
    let mut text = String::new();
    // The section without a name sorts first, as TOML wants it.
    for (section, keys) in toml.iter() {
        if !section.is_empty() {
            writeln!(text, "[{section}]")?;
        }
        for (key, value) in keys {
            writeln!(text, "{key} = {value}")?;
        }
    }
    Ok(fs::write(file, text)?)
}
