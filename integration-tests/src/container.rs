//! One container, through `testcontainers`: started, signalled, waited for, started again. It is removed when dropped.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testcontainers::core::Mount;
use testcontainers::runners::SyncRunner;
use testcontainers::{Container as Running, ContainerRequest, GenericImage, ImageExt};

use crate::backend::{Plan, image};

/// What every container of these tests is labelled with; the value is the pid of the test's process.
pub const LABEL: &str = "io.strobe.test";
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// What the agent's container may do, as `infra/compose.yaml` says it.
const AGENT_CAPABILITIES: [&str; 6] = [
    "BPF",
    "PERFMON",
    "SYSLOG",
    "SYS_PTRACE",
    "DAC_READ_SEARCH",
    "CHECKPOINT_RESTORE",
];
/// The same for engines that cannot name the first two.
const OLDER_CAPABILITIES: [&str; 4] = ["SYS_ADMIN", "SYSLOG", "SYS_PTRACE", "DAC_READ_SEARCH"];

/// A container.
pub struct Container {
    running: Running<GenericImage>,
    /// Copies its output to the log; ends with it.
    copier: Child,
    log: std::path::PathBuf,
}

impl Container {
    /// Starts one. It uses the host's network, so that ports mean the same on both sides.
    ///
    /// # Errors
    /// Where the engine refuses.
    pub fn start(plan: &Plan<'_>) -> Result<Self> {
        let mut request: ContainerRequest<GenericImage> =
            GenericImage::new(image(plan.image), "latest".into())
                .with_cmd(plan.arguments.clone())
                .with_network("host")
                .with_cap_drop("ALL")
                .with_label(LABEL, std::process::id().to_string());
        for (name, value) in &plan.variables {
            request = request.with_env_var(name, value);
        }
        for (host, inside) in &plan.folders {
            request = request.with_mount(Mount::bind_mount(host.display().to_string(), inside.clone()));
        }
        let agent = plan.image == "agent";
        if agent {
            let newer =
                crate::backend::quiet(&["run", "--rm", "--cap-add", "BPF", &image("agent"), "--version"]);
            let capabilities = if newer {
                &AGENT_CAPABILITIES[..]
            } else {
                &OLDER_CAPABILITIES[..]
            };
            for capability in capabilities {
                request = request.with_cap_add(*capability);
            }
            request = request.with_security_opt("apparmor:unconfined");
        }
        let request = request.with_host_config_modifier(move |host| {
            // A process that is number 1 does not die of its own signals, and these tests kill.
            host.init = Some(true);
            if agent {
                host.pid_mode = Some("host".into());
            }
        });
        let running = request
            .start()
            .with_context(|| format!("starting a container of {}", plan.image))?;
        let copier = copy_log(running.id(), plan.log)?;
        Ok(Self {
            running,
            copier,
            log: plan.log.to_owned(),
        })
    }

    /// Returns the host's number of its first process.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn pid(&self) -> Result<u32> {
        let pid = docker(&["inspect", "--format", "{{.State.Pid}}", self.running.id()])?;
        Ok(pid.trim().parse()?)
    }

    /// Sends a signal to its process: `KILL`, `TERM`.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn signal(&self, signal: &str) -> Result<()> {
        docker(&["kill", "--signal", signal, self.running.id()]).map(drop)
    }

    /// Stops all its processes where they are, or lets them go on.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn freeze(&self, still: bool) -> Result<()> {
        docker(&[if still { "pause" } else { "unpause" }, self.running.id()]).map(drop)
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// Where the engine does not do it.
    pub fn stop(&self, longest: Duration) -> Result<()> {
        Ok(self
            .running
            .stop_with_timeout(Some(i32::try_from(longest.as_secs())?))?)
    }

    /// Starts it again after it has ended; what it wrote is still there.
    ///
    /// # Errors
    /// Where the engine refuses.
    pub fn start_again(&mut self) -> Result<()> {
        self.running.start()?;
        self.copier.wait()?;
        self.copier = copy_log(self.running.id(), &self.log)?;
        Ok(())
    }

    /// Returns whether it runs.
    pub fn runs(&self) -> bool {
        self.running.is_running().unwrap_or(false)
    }

    /// Waits for its end; returns its exit code, which is 128 and the signal's number where one ended it.
    ///
    /// # Errors
    /// Where it does not end.
    pub fn ended(&self, longest: Duration) -> Result<i64> {
        let deadline = Instant::now() + longest;
        while self.runs() {
            ensure!(
                Instant::now() < deadline,
                "its container did not end within {longest:?}"
            );
            std::thread::sleep(LOOK);
        }
        self.running
            .exit_code()?
            .context("an ended container without an exit code")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The library removes the container when its own value goes, and with it whatever the copier follows.
        let _ = docker(&["kill", self.running.id()]);
        let _ = self.copier.wait();
    }
}

/// Returns a command of the shell that removes whatever containers this process started: for when it is gone.
pub fn removal() -> String {
    let ours = format!("label={LABEL}={}", std::process::id());
    format!("docker ps -aq --filter {ours} | xargs -r docker rm -f >/dev/null 2>&1")
}

/// Runs `docker` to its end, and returns what it printed.
fn docker(arguments: &[&str]) -> Result<String> {
    let output = Command::new("docker")
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "docker {arguments:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Appends what a container prints from now on to a file, until it ends.
fn copy_log(id: &str, log: &Path) -> Result<Child> {
    let out = File::options().create(true).append(true).open(log)?;
    let copier = Command::new("docker")
        .args(["logs", "--follow", "--since", "0s", id])
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn();
    copier.context("following the log of a container")
}
