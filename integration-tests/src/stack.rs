//! Broker and engine: one of each for all tests of a test binary, on ports of their own.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, test_kill_process};

use crate::backend::{Backend, Plan};
use crate::container::{self, Container};
use crate::{home, repository};

/// Longest wait for the first answer of a service in a container.
const START: Duration = Duration::from_secs(60);
/// Longest wait for the end of one: the engine lets requests finish for 30 s.
const END: Duration = Duration::from_secs(45);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Broker and engine. They may be killed and started again; their data stays.
pub struct Stack {
    folder: PathBuf,
    /// The broker's port; its controller has the next one.
    pub kafka_port: u16,
    /// The engine's port.
    pub engine_port: u16,
    /// Where both run.
    pub backend: Backend,
    containers: Mutex<[Option<Container>; 2]>,
    // Its standard input closes with this process: then it ends what was started here and removes the folder.
    _guardian: Option<Child>,
}

/// Both services, to be started, stopped or killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Kafka.
    Broker,
    /// ClickHouse.
    Engine,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Engine => "engine",
        }
    }

    fn script(self) -> PathBuf {
        repository().join(match self {
            Self::Broker => "infra/kafka/broker.sh",
            Self::Engine => "infra/clickhouse/engine.sh",
        })
    }
}

/// The file in a stack's folder that names its guardian.
const GUARDIAN: &str = "guardian.pid";

/// The turn of one test: the others wait, since it may kill what they use.
pub struct Turn(MutexGuard<'static, Option<Stack>>);

impl Turn {
    /// Waits for its turn, and starts what does not run.
    ///
    /// # Errors
    /// Where broker or engine do not start.
    pub fn take() -> Result<Self> {
        static STACK: Mutex<Option<Stack>> = Mutex::new(None);
        let mut stack = STACK.lock().unwrap_or_else(PoisonError::into_inner);
        if stack.is_none() {
            *stack = Some(Stack::new()?);
        }
        let turn = Self(stack);
        turn.stack()?.run(Service::Broker, "start")?;
        turn.stack()?.run(Service::Engine, "start")?;
        Ok(turn)
    }

    /// Returns the stack.
    ///
    /// # Errors
    /// Never: whoever has the turn has the stack.
    pub fn stack(&self) -> Result<&Stack> {
        self.0.as_ref().context("there is no stack")
    }
}

impl Stack {
    fn new() -> Result<Self> {
        let mut stack = Self {
            folder: fresh_folder("stack")?,
            kafka_port: free_ports()?,
            engine_port: free_ports()?,
            backend: Backend::chosen()?,
            containers: Mutex::default(),
            _guardian: None,
        };
        let quoted = |words: Vec<String>| {
            let quote = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
            words.iter().map(quote).collect::<Vec<_>>().join(" ")
        };
        let kills = [Service::Broker, Service::Engine].map(|service| quoted(stack.command(service, "kill")));
        let mut guardian = Command::new("bash");
        guardian
            .args([
                "-c",
                "read -r _; cd /; eval \"$1\"; eval \"$2\"; eval \"$4\"; rm -rf -- \"$3\"",
                "guardian",
            ])
            .args(kills)
            .arg(&stack.folder)
            .arg(match stack.backend {
                Backend::Native => ":".to_owned(),
                Backend::Containers => container::removal(),
            })
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal ends this process, and must not end the guardian.
            .process_group(0);
        let guardian = guardian.spawn()?;
        fs::write(stack.path(GUARDIAN), guardian.id().to_string())?;
        stack._guardian = Some(guardian);
        Ok(stack)
    }

    fn command(&self, service: Service, command: &str) -> Vec<String> {
        let what = service.name();
        let path = |suffix: &str| self.path(&format!("{what}.{suffix}")).display().to_string();
        let (port, more) = match service {
            Service::Broker => (self.kafka_port, ["--heap", "384m"]),
            Service::Engine => (self.engine_port, ["--host", "127.0.0.1"]),
        };
        let own = format!("test-{}-{what}", std::process::id());
        let mut words = vec![service.script().display().to_string(), command.to_owned()];
        words.extend(["--port", &port.to_string(), "--name", &own].map(str::to_owned));
        for (flag, suffix) in [("--data", "data"), ("--log", "log"), ("--pid-file", "pid")] {
            words.extend([flag.to_owned(), path(suffix)]);
        }
        words.extend(more.map(str::to_owned));
        words
    }

    /// Starts, stops or kills a service.
    ///
    /// # Errors
    /// With what its script says.
    pub fn run(&self, service: Service, command: &str) -> Result<()> {
        match self.backend {
            Backend::Native => self.run_script(service, command),
            Backend::Containers => self.run_container(service, command),
        }
    }

    fn run_script(&self, service: Service, command: &str) -> Result<()> {
        let words = self.command(service, command);
        let output = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "{} {command}: {}",
            service.name(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn run_container(&self, service: Service, command: &str) -> Result<()> {
        let mut containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut containers[service as usize];
        match (command, slot.as_mut()) {
            ("start", Some(container)) if container.runs() => {}
            ("start", Some(container)) => container.start_again()?,
            ("start", None) => *slot = Some(self.first_container(service)?),
            ("stop", Some(container)) => container.stop(END)?,
            ("kill", Some(container)) => {
                container.signal("KILL")?;
                container.ended(END)?;
            }
            (other, _) => bail!("{} cannot {other}", service.name()),
        }
        if command == "start" {
            self.wait_for_answer(service)?;
        }
        Ok(())
    }

    fn first_container(&self, service: Service) -> Result<Container> {
        let (port, log) = match service {
            Service::Broker => (self.kafka_port, self.path("broker.log")),
            Service::Engine => (self.engine_port, self.path("engine.log")),
        };
        let mut arguments = vec!["run".to_owned(), "--host".into(), "127.0.0.1".into()];
        arguments.extend(["--port".to_owned(), port.to_string()]);
        let mut folders = Vec::new();
        let passwords = self.path("passwords");
        if service == Service::Broker {
            arguments.extend(["--heap", "384m"].map(str::to_owned));
        } else {
            fs::create_dir_all(&passwords)?;
            self.backend.hand_over(&passwords)?;
            for user in ["writer", "reader"] {
                arguments.push(format!("--{user}-password-file"));
                arguments.push(format!("/passwords/{user}.password"));
            }
            folders.push((passwords.as_path(), "/passwords".to_owned()));
        }
        let plan = Plan {
            image: service.name(),
            arguments,
            variables: Vec::new(),
            folders,
            log: &log,
        };
        Container::start(&plan)
    }

    fn wait_for_answer(&self, service: Service) -> Result<()> {
        let deadline = Instant::now() + START;
        let answers = || match service {
            Service::Broker => Command::new(Service::Broker.script())
                .args(["ping", "--port", &self.kafka_port.to_string()])
                .stdin(Stdio::null())
                .output()
                .is_ok_and(|output| output.status.success()),
            Service::Engine => Command::new("curl")
                .args(["-fsS", "--max-time", "2"])
                .arg(format!("http://127.0.0.1:{}/ping", self.engine_port))
                .output()
                .is_ok_and(|output| output.status.success()),
        };
        while !answers() {
            ensure!(
                Instant::now() < deadline,
                "{} does not answer after {START:?}",
                service.name()
            );
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Returns the file with the password of the engine's `writer` or `reader`.
    pub fn password_file(&self, user: &str) -> PathBuf {
        match self.backend {
            Backend::Native => self.path(&format!("engine.data.{user}.password")),
            Backend::Containers => self.path(&format!("passwords/{user}.password")),
        }
    }

    /// Returns a file of the stack.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Returns a new folder below `$STROBE_HOME/test`, and removes those that ended processes left there.
///
/// # Errors
/// Where it cannot be made.
pub fn fresh_folder(name: &str) -> Result<PathBuf> {
    let all = home().join("test");
    fs::create_dir_all(&all)?;
    for entry in fs::read_dir(&all)?.flatten() {
        let file_name = entry.file_name();
        let owner = file_name.to_str().and_then(|name| name.split_once('.'));
        if let Some((_, pid)) = owner.filter(|(kind, _)| *kind == name)
            && !is_alive(pid)
            && !is_guarded(&entry.path())
        {
            // A folder that somebody else removes at the same time is gone as well.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let folder = all.join(format!("{name}.{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Returns whether a guardian is still ending what runs in a folder: without its pid files it would leave that running.
fn is_guarded(folder: &Path) -> bool {
    fs::read_to_string(folder.join(GUARDIAN)).is_ok_and(|pid| is_alive(&pid))
}

fn is_alive(pid: &str) -> bool {
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Returns a port that nobody listens on, with the next one free too.
///
/// # Errors
/// Where none is found.
pub fn free_ports() -> Result<u16> {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no two free ports side by side")
}

/// Returns the last lines of a file.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
