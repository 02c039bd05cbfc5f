//! This host's profilers, as the desk asks for them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strobe_event::{Cause, Phase, Request, RunId};

use super::desk::Standing;
use super::{InHand, Runs};
use crate::profilers::Rate;
use crate::runner::{self, Ask, How, Runner, Target, Ticket};

impl Runs for Runner {
    fn ask(&self, request: &Request, run: RunId, within: Duration) -> Result<Box<dyn InHand>, String> {
        let ask = Ask {
            run,
            profiler: request.profiler.clone(),
            duration: Duration::from_micros(request.duration_us),
            rate: (request.frequency_hz > 0.0)
                .then(|| Rate::Hz(request.frequency_hz.round().max(1.0) as u32)),
            target: target(request),
            parameters: parameters(&request.arguments)?,
            cause: Cause::from_code(request.cause).unwrap_or(Cause::OnDemand),
            start_within: within,
        };
        match Runner::ask(self, ask) {
            Ok(ticket) => Ok(Box::new(OfRunner {
                ticket,
                asked: Instant::now(),
                within,
            })),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

/// Returns whom a run looks at: who asks for a service on any host wants to see that, who names the host all of it.
fn target(request: &Request) -> Target {
    match (request.pid, request.service.as_str()) {
        (0, "") => Target::Host,
        (0, service) => Target::Service(service.to_owned()),
        (pid, _) => Target::Pids(vec![pid]),
    }
}

/// Returns the arguments, `key=value`, by key.
fn parameters(arguments: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut parameters = BTreeMap::new();
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("`{argument}` is no argument: give `key=value`"))?;
        if parameters.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok(parameters)
}

/// A run, and how long it may wait for its start.
struct OfRunner {
    ticket: Ticket,
    asked: Instant,
    within: Duration,
}

impl InHand for OfRunner {
    fn run(&self) -> RunId {
        self.ticket.run()
    }

    fn standing(&self) -> Standing {
        match self.ticket.standing() {
            runner::Standing::Queued { behind, place } => {
                // What is behind nothing begins in a moment.
                match behind.is_empty() {
                    true => Standing::Queued(String::new()),
                    false => Standing::Queued(format!("place {place}, behind {}", behind.join(", "))),
                }
            }
            runner::Standing::Running { taken, kept, .. } => Standing::Running {
                taken,
                dropped: taken.saturating_sub(kept),
            },
            runner::Standing::Ended(ending) => Standing::Ended {
                phase: match ending.how {
                    How::Done | How::Stopped => Phase::Finished,
                    How::Failed => Phase::Failed,
                    // It waited for as long as it might.
                    How::Refused if self.asked.elapsed() >= self.within => Phase::Expired,
                    How::Refused => Phase::Refused,
                },
                why: ending.why,
                taken: ending.taken,
                dropped: ending.taken.saturating_sub(ending.kept),
            },
        }
    }

    fn stop(&self, why: &str) {
        self.ticket.stop(why);
    }
}
