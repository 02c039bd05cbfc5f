//! One part of the system, a process or a container: started, signalled, waited for.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::backend::Plan;
use crate::container::Container;

/// Longest wait for the end of a part: the sink and the processor drain for 10 s, the agent sends for 5 s.
const END: Duration = Duration::from_secs(30);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// One part of the system. It is killed when this is dropped, and by the kernel when the thread that started it is gone.
pub struct Part {
    name: String,
    handle: Handle,
}

enum Handle {
    Process(Child),
    Container(Box<Container>),
}

impl Part {
    /// Starts a command whose output goes to `log`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        // `setpriv` becomes the command, so that the pid is the command's own.
        let mut guarded = Command::new("setpriv");
        guarded
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(name, value),
                None => guarded.env_remove(name),
            };
        }
        let child = guarded
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn();
        Ok(Self {
            name: name.to_owned(),
            handle: Handle::Process(child.with_context(|| format!("starting {command:?}"))?),
        })
    }

    /// Starts a container.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn contained(name: &str, plan: &Plan<'_>) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            handle: Handle::Container(Box::new(Container::start(plan)?)),
        })
    }

    /// Returns its process id, as the host counts.
    ///
    /// # Errors
    /// Where it is a container that has ended.
    pub fn pid(&self) -> Result<u32> {
        match &self.handle {
            Handle::Process(child) => Ok(child.id()),
            Handle::Container(container) => container.pid(),
        }
    }

    /// Sends a signal. One that has ended already is as good as signalled.
    fn signal(&self, signal: Signal) {
        match &self.handle {
            // A child that was not waited for keeps its pid, so it can be nobody else's.
            Handle::Process(child) => {
                if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, signal);
                }
            }
            Handle::Container(container) => {
                let _ = match signal {
                    Signal::STOP => container.freeze(true),
                    Signal::CONT => container.freeze(false),
                    other => container.signal(&other.as_raw().to_string()),
                };
            }
        }
    }

    /// Stops it where it is, as a debugger or a frozen host would.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it as a crash would.
    ///
    /// # Errors
    /// Where it had ended by itself before: a test that kills what is dead shows nothing.
    pub fn kill(mut self) -> Result<()> {
        if !self.runs() {
            let end = self.ended(END)?;
            bail!("{} had ended before it was killed: {end}", self.name);
        }
        self.signal(Signal::KILL);
        self.ended(END)?;
        Ok(())
    }

    /// Asks it to end, and waits until it has, well.
    ///
    /// # Errors
    /// Where it does not end, or not with exit code 0.
    pub fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM);
        let end = self.ended(END)?;
        ensure!(end == End::Code(0), "{} ended with {end}", self.name);
        Ok(())
    }

    /// Waits until it has crashed at a point where it was told to.
    ///
    /// # Errors
    /// Where it does not end within `longest`, or ends by itself.
    pub fn crashes(mut self, longest: Duration) -> Result<()> {
        let end = self.ended(longest)?;
        let crashed = [Signal::ABORT, Signal::KILL].map(|signal| End::Signal(signal.as_raw()));
        ensure!(
            crashed.contains(&end),
            "{} ended with {end}, not where it was to crash",
            self.name
        );
        Ok(())
    }

    /// Returns whether it still runs.
    pub fn runs(&mut self) -> bool {
        match &mut self.handle {
            Handle::Process(child) => matches!(child.try_wait(), Ok(None)),
            Handle::Container(container) => container.runs(),
        }
    }

    fn ended(&mut self, longest: Duration) -> Result<End> {
        let child = match &mut self.handle {
            Handle::Process(child) => child,
            Handle::Container(container) => return container.ended(longest).map(End::of_container),
        };
        let deadline = Instant::now() + longest;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(End::of_process(status));
            }
            ensure!(
                Instant::now() < deadline,
                "{} did not end within {longest:?}",
                self.name
            );
            std::thread::sleep(LOOK);
        }
    }
}

/// How a part ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Code(i64),
    Signal(i32),
}

impl End {
    fn of_process(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Code(status.code().map_or(-1, i64::from)),
        }
    }

    /// Reads a container's exit code: shells and container engines add 128 to the number of the signal.
    fn of_container(code: i64) -> Self {
        match i32::try_from(code - 128) {
            Ok(signal) if signal > 0 => Self::Signal(signal),
            _ => Self::Code(code),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Handle::Process(child) = &mut self.handle
            && matches!(child.try_wait(), Ok(None))
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
