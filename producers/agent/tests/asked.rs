//! Runs that somebody asks for, beside the continuous one: on a real agent, in this process.

mod common;

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{CHAIN, Place, Spooled, build};
use strobe_agent::config::WORKER_COMMAND;
use strobe_agent::profilers::Rate;
use strobe_agent::run::random_id;
use strobe_agent::runner::{Ask, Ending, How, Refusal, Runner, Standing, Target, Ticket};
use strobe_agent::{AgentConfig, AgentError};
use strobe_bus::Shutdown;
use strobe_event::{Cause, RawBatch, RunEvent, RunId, RunState};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// An agent in this process.
struct Inside {
    runner: Runner,
    shutdown: Shutdown,
    thread: JoinHandle<Result<(), AgentError>>,
}

impl Inside {
    fn start(place: &Place) -> Self {
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
        let settings = config.validate().unwrap();
        let shutdown = Shutdown::default();
        let (give, runner) = channel();
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

    fn end(self) {
        self.shutdown.request();
        self.thread.join().unwrap().unwrap();
    }
}

/// Burns CPU time until it is dropped.
struct Victim(Child);

impl Victim {
    fn start(place: &Place, name: &str) -> Self {
        let path = place.path(name);
        build(CHAIN, &path);
        Self(Command::new(path).arg("60000").spawn().unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn ask(profiler: &str, seconds: u64) -> Ask {
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
fn end_of(ticket: &Ticket) -> Ending {
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
fn wait_for_start(ticket: &Ticket) {
    let until = Instant::now() + PATIENCE;
    while !matches!(ticket.standing(), Standing::Running { .. }) {
        assert!(Instant::now() < until, "{:?}", ticket.standing());
        ticket.wait(&ticket.standing(), Duration::from_millis(100));
    }
}

/// Returns the batches and events of one run.
fn of_run(place: &Place, run: RunId) -> (Vec<RawBatch>, Vec<RunEvent>) {
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

/// Checks that a CPU profile that is asked for runs beside the continuous one, at its own rate, of the named process alone; that
/// its account adds up; and that the continuous run loses nothing by it.
#[test]
fn a_profile_on_demand_runs_beside_the_continuous_one() {
    let _alone = common::alone();
    if common::skipped("a_profile_on_demand_runs_beside_the_continuous_one") {
        return;
    }
    let place = Place::new();
    let victim = Victim::start(&place, "victim-asked");
    let agent = Inside::start(&place);
    let ticket = agent
        .runner
        .ask(Ask {
            rate: Some(Rate::Hz(499)),
            target: Target::Pids(vec![victim.0.id()]),
            ..ask("cpu", 2)
        })
        .unwrap();
    let ending = end_of(&ticket);
    agent.end();
    assert_eq!((ending.how, ending.why.as_str()), (How::Done, ""));
    assert!((2_000_000..3_000_000).contains(&ending.done_us), "{ending:?}");
    let (batches, events) = of_run(&place, ticket.run());
    let mut kept = 0;
    for batch in &batches {
        assert_eq!(batch.validate(), Ok(()));
        assert_eq!(
            (batch.run.profiler.as_str(), batch.run.cause),
            ("cpu", Cause::OnDemand as u8)
        );
        assert_eq!(batch.run.period, 1_000_000_000 / 499);
        assert!(batch.processes.iter().all(|process| process.pid == victim.0.id()));
        kept += batch.samples.len() as u64;
    }
    assert_eq!((kept, ending.kept), (ending.kept, ending.taken));
    // The victim has one CPU for most of the time: never more than its ticks, and not a fraction of them.
    let ticks = 499.0 * ending.done_us as f64 / 1e6;
    assert!(
        (0.3 * ticks..1.02 * ticks + 2.0).contains(&(kept as f64)),
        "{kept} of {ticks}"
    );
    let all: u64 = batches
        .iter()
        .flat_map(|batch| &batch.cpus)
        .map(|cpu| cpu.taken + cpu.idle)
        .sum();
    let cpus = thread::available_parallelism().unwrap().get() as f64;
    assert!(
        (0.9..1.02).contains(&(all as f64 / (ticks * cpus))),
        "{all} ticks of {}",
        ticks * cpus
    );
    let states: Vec<u8> = events.iter().map(|event| event.state).collect();
    assert_eq!(states, [RunState::Started as u8, RunState::Finished as u8]);
    assert_eq!((events[1].taken, events[1].spooled), (ending.taken, kept));
    let continuous: u64 = place
        .spooled()
        .iter()
        .filter_map(|(_, _, what)| match what {
            Spooled::Batch(batch) if batch.run.cause == Cause::Continuous as u8 => {
                Some(batch.drops.iter().map(|count| count.samples).sum::<u64>())
            }
            _ => None,
        })
        .sum();
    assert_eq!(continuous, 0, "dropped of the continuous run");
}

/// Checks that equal asks share a run, that it ends when the last of them no longer wants it, within a second, and that the same run
/// asked for twice runs once.
#[test]
fn equal_asks_share_a_run() {
    let _alone = common::alone();
    if common::skipped("equal_asks_share_a_run") {
        return;
    }
    let place = Place::new();
    let agent = Inside::start(&place);
    let first = ask("cpu", 60);
    let one = agent.runner.ask(first.clone()).unwrap();
    let two = agent.runner.ask(ask("cpu", 60)).unwrap();
    let again = agent.runner.ask(first).unwrap();
    assert_eq!((one.joined(), two.joined(), again.joined()), (false, true, false));
    assert!(one.run() == two.run() && one.run() == again.run());
    wait_for_start(&one);
    one.stop("the first left");
    thread::sleep(Duration::from_millis(500));
    assert!(
        matches!(two.standing(), Standing::Running { .. }),
        "{:?}",
        two.standing()
    );
    let stopped = Instant::now();
    two.stop("nobody wants it");
    let ending = end_of(&two);
    assert!(
        stopped.elapsed() < Duration::from_secs(1),
        "{:?}",
        stopped.elapsed()
    );
    assert_eq!(
        (ending.how, ending.why.as_str()),
        (How::Stopped, "nobody wants it")
    );
    agent.end();
}

/// Checks that what cannot be run is refused at once, and says what to do.
#[test]
fn what_cannot_run_is_refused_with_a_remedy() {
    let _alone = common::alone();
    if common::skipped("what_cannot_run_is_refused_with_a_remedy") {
        return;
    }
    let place = Place::new();
    let agent = Inside::start(&place);
    let refused = |ask: Ask| agent.runner.ask(ask).unwrap_err();
    let refusal = refused(ask("cpuu", 1));
    assert_eq!(refusal.code(), "unknown_profiler");
    assert!(refusal.to_string().contains("did you mean `cpu`?"), "{refusal}");
    let refusal = refused(ask("cpu", 86_400));
    assert!(matches!(refusal, Refusal::Limit(_)), "{refusal}");
    let refusal = refused(Ask {
        target: Target::Pids(vec![u32::MAX]),
        ..ask("cpu", 1)
    });
    assert_eq!(refusal.code(), "target");
    let refusal = refused(Ask {
        parameters: BTreeMap::from([("adress".to_owned(), "0".to_owned())]),
        ..ask("cpu", 1)
    });
    assert_eq!(refusal.code(), "parameter");
    agent.end();
}
