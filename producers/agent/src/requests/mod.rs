//! The requests thread: what is asked for on the bus → runs on this host, and what becomes of them → the bus.
//!
//! The [`Desk`] decides; this file is its shell. What the desk has promised is on disk before it is said.

mod desk;
mod host;
mod proof;
mod remember;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use strobe_bus::{
    BusSettings, Headers, Message, Outcome, Outgoing, ResendingProducer, Shutdown, Tail, Topic, WindowFull,
    WindowLimits,
};
use strobe_event::request::{CLOCK_SLACK_US, WAIT_US_MAX};
use strobe_event::{Phase, Request, RequestId, RunId, codec};

pub use desk::{Command, Desk, NotProved, Place, Prove, Remembered, Standing};
pub use proof::Proof;
pub use remember::{FILE, Memory};

use crate::audit::Auditor;
use crate::error::AgentError;
use crate::procfs::wall_us;

/// How far back an agent that starts reads: the longest time to live, and what clocks may be apart.
const READ_BACK_US: u64 = WAIT_US_MAX + CLOCK_SLACK_US;
/// Longest wait for messages while nothing is in hand: how late a wish to stop is seen.
const WAIT: Duration = Duration::from_millis(500);
/// The same while something is: how late the end of a run is seen.
const WAIT_IN_HAND: Duration = Duration::from_millis(50);
/// Shortest time between two reports of how far a run has come.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Pause before the bus is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// How long the broker may take to acknowledge the last reports.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Whoever runs profilers on this host.
pub trait Runs {
    /// Takes a request in hand, which begins within the time or never.
    ///
    /// # Errors
    /// Why it is refused, and what to do about it, for people.
    fn ask(&self, request: &Request, run: RunId, within: Duration) -> Result<Box<dyn InHand>, String>;
}

/// A run that was asked for.
pub trait InHand {
    /// Returns the run that answers: where it is another than was asked for, an equal request's.
    fn run(&self) -> RunId;
    /// Returns how it stands.
    fn standing(&self) -> Standing;
    /// Ends it, unless an equal request still wants it.
    fn stop(&self, why: &str);
}

/// One request that is in hand.
struct Ticket {
    hand: Box<dyn InHand>,
    last: Option<Standing>,
    told: Instant,
}

/// The thread's state.
pub struct Requests<'a> {
    desk: Desk,
    memory: Memory,
    tickets: BTreeMap<RequestId, Ticket>,
    producer: ResendingProducer,
    reports: Arc<str>,
    sent: u64,
    proof: &'a dyn Prove,
    runs: &'a dyn Runs,
    auditor: Auditor,
    shutdown: &'a Shutdown,
}

/// Follows the requests on the bus until the wish to stop. While the bus is away, what is in hand goes on; where the agent may not
/// read requests, it says so and profiles as before.
///
/// # Errors
/// [`AgentError::Bus`] where no producer can be made.
pub fn run(
    place: Place,
    bus: &BusSettings,
    memory: Memory,
    proof: &dyn Prove,
    runs: &dyn Runs,
    auditor: Auditor,
    shutdown: &Shutdown,
) -> Result<(), AgentError> {
    let bus = bus.clone().prompt();
    let mut requests = Requests {
        desk: Desk::new(place, crate::run::random_id(), memory.read()),
        memory,
        tickets: BTreeMap::new(),
        producer: ResendingProducer::new(&bus, WindowLimits::default())?,
        reports: bus.topic(Topic::Reports).as_str().into(),
        sent: 0,
        proof,
        runs,
        auditor,
        shutdown,
    };
    while !shutdown.is_requested() {
        if let Err(error) = requests.follow(&bus, shutdown) {
            tracing::warn!(%error, "requests cannot be read; `strobe topics apply` and `strobe topics acls` say what is missing");
            requests.turn();
            shutdown.wait_timeout(RETRY);
        }
    }
    // Whoever asked hears it from this life, not from the deadline.
    requests.stop_all();
    requests.turn();
    let Requests {
        mut producer,
        auditor,
        ..
    } = requests;
    // Spooling waits until nobody can say anything any more: not for the broker.
    drop(auditor);
    for outcome in producer.flush(FLUSH_WAIT) {
        complain(&outcome);
    }
    Ok(())
}

/// Returns microseconds since boot, also those in which the machine slept: a clock that nobody sets.
fn boot_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

impl Requests<'_> {
    /// Reads requests, those of the last hour first, until the wish to stop.
    fn follow(&mut self, bus: &BusSettings, shutdown: &Shutdown) -> Result<(), strobe_bus::Error> {
        let since_ms = (wall_us().saturating_sub(READ_BACK_US) / 1_000) as i64;
        let mut tail = Tail::open(bus, &bus.topic(Topic::Requests), since_ms)?;
        while !shutdown.is_requested() {
            let wait = if self.tickets.is_empty() {
                WAIT
            } else {
                WAIT_IN_HAND
            };
            tail.poll(wait, |message| self.take(&message))?;
            if tail.is_caught_up() {
                self.desk.caught_up(boot_us(), wall_us(), self.proof);
            }
            self.turn();
        }
        Ok(())
    }

    fn take(&mut self, message: &Message) {
        let taken_us = message.taken_us();
        let unreadable = |why: &dyn std::fmt::Display| {
            tracing::warn!(partition = %message.partition, offset = message.offset, "left out: {why}");
        };
        match codec::unframe(message.bytes()) {
            Ok((codec::SCHEMA_ID_SIGNED_REQUEST, _)) => match codec::decode_framed(message.bytes()) {
                Ok(signed) => self.desk.question(signed, taken_us, self.proof),
                Err(error) => unreadable(&error),
            },
            Ok((codec::SCHEMA_ID_REQUEST_STATE, _)) => match codec::decode_framed(message.bytes()) {
                Ok(state) => self.desk.state(&state, boot_us(), wall_us(), self.proof),
                Err(error) => unreadable(&error),
            },
            Ok((other, _)) => unreadable(&format_args!("schema {other} is none of a request")),
            Err(error) => unreadable(&error),
        }
    }

    /// Does what the desk has decided, and tells it how runs stand.
    fn turn(&mut self) {
        self.look();
        for command in self.desk.take_commands() {
            match command {
                Command::Start { request, run, within } => self.start(&request, run, within),
                Command::Stop { id, why } => {
                    if let Some(ticket) = self.tickets.get(&id) {
                        ticket.hand.stop(&why);
                    }
                }
            }
        }
        if let Some(remembered) = self.desk.to_remember()
            && let Err(error) = self.memory.write(remembered)
        {
            // A word that could not be kept over a restart is not given: the trigger asks another host.
            tracing::error!(%error, "no word is given: it cannot be noted");
            self.desk.take_back();
        }
        self.audit();
        for report in self.desk.take_reports() {
            let value = match codec::encode_framed(&report) {
                Ok(value) => value,
                Err(error) => {
                    tracing::error!(%error, request = %report.id, "a report cannot be put on the wire");
                    continue;
                }
            };
            self.sent += 1;
            let mut message = Outgoing {
                topic: Arc::clone(&self.reports),
                key: Some(report.id.0.to_vec().into()),
                headers: Headers::new(),
                payload: Some(value.into()),
            };
            while let Err(WindowFull(back)) = self.producer.push(self.sent, message) {
                if self.shutdown.is_requested() {
                    tracing::warn!(request = %report.id, "a report is lost: the bus was away when the agent ended");
                    break;
                }
                message = back;
                self.acknowledged(Duration::from_millis(100));
            }
        }
        self.acknowledged(Duration::ZERO);
    }

    fn audit(&mut self) {
        for record in self.desk.take_audits() {
            self.auditor.say(record, wall_us());
        }
    }

    fn acknowledged(&mut self, wait: Duration) {
        for outcome in self.producer.poll(wait) {
            complain(&outcome);
        }
    }

    fn start(&mut self, request: &Request, run: RunId, within: Duration) {
        let id = request.id;
        match self.runs.ask(request, run, within) {
            Ok(hand) => {
                tracing::info!(request = %id, run = %hand.run(), who = request.who, why = request.why,
                    profiler = request.profiler, "a profile was asked for");
                if hand.run() != run {
                    self.desk.joined(id, hand.run());
                }
                let ticket = Ticket {
                    hand,
                    last: None,
                    told: Instant::now(),
                };
                self.tickets.insert(id, ticket);
                self.look();
            }
            Err(why) => {
                let refused = Standing::Ended {
                    phase: Phase::Refused,
                    why,
                    taken: 0,
                    dropped: 0,
                };
                self.desk.standing(id, &refused);
            }
        }
    }

    fn look(&mut self) {
        let desk = &mut self.desk;
        self.tickets.retain(|id, ticket| {
            let now = ticket.hand.standing();
            let is_progress = matches!(
                (&ticket.last, &now),
                (Some(Standing::Running { .. }), Standing::Running { .. })
            );
            let is_due = !is_progress || ticket.told.elapsed() >= PROGRESS_EVERY;
            if ticket.last.as_ref() != Some(&now) && is_due {
                desk.standing(*id, &now);
                ticket.last = Some(now.clone());
                ticket.told = Instant::now();
            }
            !matches!(now, Standing::Ended { .. })
        });
    }

    fn stop_all(&mut self) {
        for (id, ticket) in std::mem::take(&mut self.tickets) {
            let why = "the agent was stopped";
            ticket.hand.stop(why);
            let (taken, dropped) = match ticket.hand.standing() {
                Standing::Queued(_) => (0, 0),
                Standing::Running { taken, dropped } | Standing::Ended { taken, dropped, .. } => {
                    (taken, dropped)
                }
            };
            let ended = Standing::Ended {
                phase: Phase::Failed,
                why: why.to_owned(),
                taken,
                dropped,
            };
            self.desk.standing(id, &ended);
        }
    }
}

fn complain(outcome: &Outcome) {
    if let Outcome::Refused { reason, message, .. } = outcome {
        tracing::error!(
            topic = &*message.topic,
            reason,
            "the broker refuses a report of a request"
        );
    }
}
