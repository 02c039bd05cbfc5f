//! One process of the system: started, signalled, waited for.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for the end of a part: the sink and the processor drain for 10 s, the agent sends for 5 s.
const END: Duration = Duration::from_secs(30);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// One part of the system. It is killed when this is dropped, and by the kernel when the thread that started it is gone.
pub struct Part {
    name: String,
    child: Child,
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
            child: child.with_context(|| format!("starting {command:?}"))?,
        })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal. A child that was not waited for keeps its pid, so it can be nobody else's.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // One that has ended already is as good as signalled.
            let _ = kill_process(pid, signal);
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
        if let Some(status) = self.child.try_wait()? {
            bail!("{} had ended before it was killed: {status}", self.name);
        }
        self.signal(Signal::KILL);
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits until it has, well.
    ///
    /// # Errors
    /// Where it does not end, or not with exit code 0.
    pub fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM);
        let status = self.ended(END)?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    /// Waits until it has crashed at a point where it was told to.
    ///
    /// # Errors
    /// Where it does not end within `longest`, or ends by itself.
    pub fn crashes(mut self, longest: Duration) -> Result<()> {
        let status = self.ended(longest)?;
        let crashed = [Signal::ABORT, Signal::KILL].map(|signal| Some(signal.as_raw()));
        ensure!(
            crashed.contains(&status.signal()),
            "{} ended with {status}, not where it was to crash",
            self.name
        );
        Ok(())
    }

    /// Returns whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn ended(&mut self, longest: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + longest;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
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

impl Drop for Part {
    fn drop(&mut self) {
        if self.runs() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
