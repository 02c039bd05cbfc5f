//! A real agent in this process, that can be asked for runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strobe_agent::config::WORKER_COMMAND;
use strobe_agent::run::random_id;
use strobe_agent::runner::{Ask, Ending, Runner, Standing, Target, Ticket};
use strobe_agent::{AgentConfig, AgentError};
use strobe_bus::Shutdown;
use strobe_event::{Cause, RawBatch, RunEvent, RunId};

use super::{CHAIN, Place, Spooled, build};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An agent in this process.
pub struct Inside {
    pub runner: Runner,
    shutdown: Shutdown,
    thread: JoinHandle<Result<(), AgentError>>,
}

impl Inside {
    pub fn start(place: &Place) -> Self {
        Self::start_with(place, |_| ())
    }

    /// Starts one whose configuration `change` has changed.
    pub fn start_with(place: &Place, change: impl FnOnce(&mut AgentConfig)) -> Self {
        let mut config = AgentConfig {
            host: "test-host".to_owned(),
            state_dir: place.path("state"),
            publish: false,
            ..AgentConfig::default()
        };
        // This process is no agent that could make tables.
        config.unwind.worker = [env!("CARGO_BIN_EXE_strobe-agent"), WORKER_COMMAND]
            .map(Into::into)
            .to_vec();
        change(&mut config);
        let settings = config.validate().unwrap();
        let shutdown = Shutdown::default();
        let (give, runner) = sync_channel(1);
        let token = shutdown.clone();
        let thread = thread::spawn(move || {
            strobe_agent::run_with(&settings, &token, |runner| give.send(runner).unwrap())
        });
        Self {
            runner: runner.recv_timeout(PATIENCE).unwrap(),
            shutdown,
            thread,
        }
    }

    pub fn end(self) {
        self.shutdown.request();
        self.thread.join().unwrap().unwrap();
    }
}

/// Burns CPU time until it is dropped.
pub struct Victim(pub Child);

impl Victim {
    pub fn start(place: &Place, name: &str) -> Self {
        let path = place.path(name);
        build(CHAIN, &path);
        Self(Command::new(path).arg("60000").spawn().unwrap())
    }

    /// Returns what it has used, by the kernel's account.
    pub fn cpu_seconds(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.0.id())).unwrap();
        let ns: u64 = text.split(' ').next().unwrap().parse().unwrap();
        ns as f64 / 1e9
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub fn ask(profiler: &str, seconds: u64) -> Ask {
    Ask {
        run: RunId(random_id()),
        profiler: profiler.to_owned(),
        duration: Duration::from_secs(seconds),
        rate: None,
        target: Target::Host,
        parameters: BTreeMap::new(),
        cause: Cause::OnDemand,
        start_within: PATIENCE,
    }
}

/// Waits for the end of a run.
pub fn end_of(ticket: &Ticket) -> Ending {
    let until = Instant::now() + 2 * PATIENCE;
    let mut standing = ticket.standing();
    loop {
        if let Standing::Ended(ending) = standing {
            return ending;
        }
        assert!(Instant::now() < until, "{standing:?}");
        standing = ticket.wait(&standing, PATIENCE);
    }
}

/// Waits until a run samples.
pub fn wait_for_start(ticket: &Ticket) {
    let until = Instant::now() + PATIENCE;
    while !matches!(ticket.standing(), Standing::Running { .. }) {
        assert!(Instant::now() < until, "{:?}", ticket.standing());
        ticket.wait(&ticket.standing(), Duration::from_millis(100));
    }
}

/// Returns the batches and events of one run.
pub fn of_run(place: &Place, run: RunId) -> (Vec<RawBatch>, Vec<RunEvent>) {
    let (mut batches, mut events) = (Vec::new(), Vec::new());
    for (_, _, what) in place.spooled() {
        match what {
            Spooled::Batch(batch) if batch.run.id == run => batches.push(*batch),
            Spooled::Event(event) if event.run.id == run => events.push(*event),
            _ => {}
        }
    }
    (batches, events)
}
