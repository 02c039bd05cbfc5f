//! What this host does about requests: pure, between the messages and whoever runs profilers.
//!
//! A host that was picked proves the request and gives its word, which is on disk before it is on the bus. It begins when the
//! trigger has answered, and only as long as the trigger says, measured from the moment at which it gave its word: so no clock
//! that somebody sets decides. A word is kept once: not twice, not by another life of the agent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strobe_event::request::{CLOCK_SLACK_US, DURATION_US_MAX, NO_RUN, WAIT_US_MAX};
use strobe_event::{
    Action, AuditOutcome, AuditRecord, HostReport, Phase, Request, RequestId, RequestState, RunId,
    SignedRequest,
};

/// Questions kept until the trigger says whom it picked: what a fleet asks in a minute of trouble. The oldest goes first.
const QUESTIONS_MAX: usize = 10_000;
/// Bytes of them.
const QUESTION_BYTES_MAX: usize = 16 << 20;
/// Requests remembered, so that none is run twice: more than a host can run in the time for which they are.
const REMEMBERED_MAX: usize = 10_000;
/// How long each is remembered: until nothing of it, however late, can be taken for something new.
const REMEMBER_US: u64 = WAIT_US_MAX + DURATION_US_MAX + 2 * CLOCK_SLACK_US;

/// Why whoever signed may not have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotProved {
    /// In one word.
    pub reason: &'static str,
    /// Whose signature it is, where that is known.
    pub principal: Option<String>,
    /// For people.
    pub why: String,
}

/// Says whether whoever signed a request may ask for it.
pub trait Prove {
    /// Returns the principal that signed. `of` is what is asked for, or what is to be cancelled, and `owner` who asked for that:
    /// everybody may cancel their own.
    ///
    /// # Errors
    /// Why not.
    fn prove(&self, signed: &SignedRequest, of: &Request, owner: Option<&str>) -> Result<String, NotProved>;
}

/// What is to be done beside reporting.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Run this, beginning within the time.
    Start {
        /// What is asked for.
        request: Box<Request>,
        /// The run's name.
        run: RunId,
        /// How long it may wait.
        within: Duration,
    },
    /// End what runs or waits for this request.
    Stop {
        /// The request.
        id: RequestId,
        /// Why.
        why: String,
    },
}

/// How a run stands, as whoever runs it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It waits behind these; behind nothing where that is empty, which is not worth a word.
    Queued(String),
    /// It samples.
    Running {
        /// Samples taken so far.
        taken: u64,
        /// Of those, the ones lost on the host.
        dropped: u64,
    },
    /// It is over.
    Ended {
        /// How: a final phase.
        phase: Phase,
        /// Why; empty where it went as planned.
        why: String,
        /// Samples taken.
        taken: u64,
        /// Of those, the ones lost on the host.
        dropped: u64,
    },
}

/// A request as it is remembered on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Until when, microseconds since 1970 by this host's clock.
    until_us: u64,
    /// Whether all has been said of it.
    ended: bool,
}

/// What this life of the agent has in hand.
#[derive(Debug)]
enum InHand {
    /// It gave its word, and waits for the answer.
    Promised {
        request: Box<Request>,
        owner: String,
        gave_us: u64,
    },
    /// Whoever runs profilers has it.
    Started {
        request: Box<Request>,
        owner: String,
        run: RunId,
        cancelled: Option<String>,
        joined: bool,
    },
}

/// Where the desk stands.
#[derive(Debug, Clone)]
pub struct Place {
    /// The host.
    pub host: String,
    /// Its region: its label `region=…`; empty where it has none.
    pub region: String,
}

/// A question, until the trigger says whom it picked.
#[derive(Debug)]
struct Question {
    signed: SignedRequest,
    taken_us: u64,
    /// By whom it was cancelled before this host was picked.
    cancelled: Option<String>,
}

/// The desk.
#[derive(Debug)]
pub struct Desk {
    place: Place,
    life: [u8; 16],
    questions: BTreeMap<RequestId, Question>,
    order: std::collections::VecDeque<RequestId>,
    question_bytes: usize,
    in_hand: BTreeMap<RequestId, InHand>,
    remembered: BTreeMap<String, Remembered>,
    /// What the trigger said last of this host, while the topic's past is read.
    past: Option<BTreeMap<RequestId, RequestState>>,
    /// Whether what is remembered has changed since it was last written.
    changed: bool,
    reports: Vec<HostReport>,
    commands: Vec<Command>,
    audits: Vec<AuditRecord>,
}

impl Desk {
    /// Returns a desk that knows what was remembered, and is reading the topic's past.
    pub fn new(place: Place, life: [u8; 16], remembered: BTreeMap<String, Remembered>) -> Self {
        Self {
            place,
            life,
            questions: BTreeMap::new(),
            order: std::collections::VecDeque::new(),
            question_bytes: 0,
            in_hand: BTreeMap::new(),
            remembered,
            past: Some(BTreeMap::new()),
            changed: false,
            reports: Vec::new(),
            commands: Vec::new(),
            audits: Vec::new(),
        }
    }

    /// Returns what is to be on disk before the reports are sent; nothing where that has not changed.
    pub fn to_remember(&mut self) -> Option<&BTreeMap<String, Remembered>> {
        std::mem::take(&mut self.changed).then_some(&self.remembered)
    }

    /// Takes back the words that could not be noted: they are not said, and forgotten.
    pub fn take_back(&mut self) {
        let audits = &mut self.audits;
        self.reports.retain(|report| {
            report.phase != Phase::Accepted as u8 || {
                self.in_hand.remove(&report.id);
                let name = report.id.to_string();
                self.remembered.remove(&name);
                audits.retain(|said| said.subject != name || said.outcome != AuditOutcome::Allowed as u8);
                false
            }
        });
    }

    /// Returns what is to be reported, in order.
    pub fn take_reports(&mut self) -> Vec<HostReport> {
        std::mem::take(&mut self.reports)
    }

    /// Returns what is to be done.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Returns what is to be audited, in order; name, time and reporter are left to whoever says it.
    pub fn take_audits(&mut self) -> Vec<AuditRecord> {
        std::mem::take(&mut self.audits)
    }

    /// Takes in a question, or a cancellation, that the broker took at `taken_us`.
    pub fn question(&mut self, signed: SignedRequest, taken_us: u64, proof: &dyn Prove) {
        let Ok(request) = signed.open(taken_us) else {
            // Kept all the same: picked for it, this host says why not.
            return self.keep(signed, taken_us);
        };
        if Action::from_code(request.action) == Some(Action::Cancel) {
            return self.cancel(&signed, proof);
        }
        self.keep(signed, taken_us);
    }

    fn keep(&mut self, signed: SignedRequest, taken_us: u64) {
        let id = signed.id;
        // The first of an id counts.
        if self.questions.contains_key(&id) {
            return;
        }
        self.question_bytes += bytes_of(&signed);
        self.order.push_back(id);
        let question = Question {
            signed,
            taken_us,
            cancelled: None,
        };
        self.questions.insert(id, question);
        while self.order.len() > QUESTIONS_MAX || self.question_bytes > QUESTION_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(question) = self.questions.remove(&oldest) {
                self.question_bytes -= bytes_of(&question.signed);
            }
        }
    }

    /// Returns how many questions are kept, and their bytes.
    #[cfg(test)]
    pub(super) fn questions(&self) -> (usize, usize) {
        (self.questions.len(), self.question_bytes)
    }

    fn cancel(&mut self, signed: &SignedRequest, proof: &dyn Prove) {
        let id = signed.id;
        let Some(in_hand) = self.in_hand.get_mut(&id) else {
            return self.cancel_question(signed, proof);
        };
        // Whose request it is decides who may end it; what the cancellation says of that is nothing.
        let (InHand::Promised { request, owner, .. } | InHand::Started { request, owner, .. }) = &*in_hand;
        let mut record = AuditRecord::of(request);
        record.action = strobe_event::AuditAction::Cancel as u8;
        let proved = proof.prove(signed, request, Some(owner));
        audit(&mut self.audits, record, &proved);
        let why = match proved {
            Ok(who) => format!("by {who}"),
            Err(NotProved { why, .. }) => {
                tracing::warn!(request = %id, why, "a cancellation is refused");
                return;
            }
        };
        match in_hand {
            InHand::Promised { .. } => self.end(id, Phase::Cancelled, &why, NO_RUN, 0, 0),
            InHand::Started { cancelled, .. } => {
                *cancelled = Some(why.clone());
                self.commands.push(Command::Stop { id, why });
            }
        }
    }

    /// Notes that a request is cancelled, for when this host is picked for it.
    fn cancel_question(&mut self, signed: &SignedRequest, proof: &dyn Prove) {
        let Some(question) = self.questions.get_mut(&signed.id) else {
            return;
        };
        let Ok(of) = question.signed.open(question.taken_us) else {
            return;
        };
        let Ok(owner) = proof.prove(&question.signed, &of, None) else {
            return;
        };
        if let Ok(who) = proof.prove(signed, &of, Some(&owner)) {
            question.cancelled = Some(who);
        }
    }

    /// Takes in what the trigger says.
    pub fn state(&mut self, state: &RequestState, now_us: u64, wall_us: u64, proof: &dyn Prove) {
        if state.host != self.place.host || state.late {
            return;
        }
        if let Some(past) = &mut self.past {
            past.insert(state.id, state.clone());
            return;
        }
        self.obey(state, now_us, wall_us, proof);
    }

    /// Acts upon the topic's past, once all of it is read: what another life left undone has failed.
    pub fn caught_up(&mut self, now_us: u64, wall_us: u64, proof: &dyn Prove) {
        let Some(past) = self.past.take() else { return };
        self.remembered.retain(|_, kept| kept.until_us > wall_us);
        let undone: Vec<RequestId> = self
            .remembered
            .iter()
            .filter(|(_, kept)| !kept.ended)
            .filter_map(|(id, _)| id.parse().ok())
            .collect();
        for id in undone {
            self.end(
                id,
                Phase::Failed,
                "the agent ended before the run did",
                NO_RUN,
                0,
                0,
            );
        }
        for state in past.values() {
            let phase = Phase::from_code(state.phase);
            if self.is_remembered(state.id) || phase.is_none_or(Phase::is_final) {
                continue;
            }
            if phase == Some(Phase::Picked) {
                self.obey(state, now_us, wall_us, proof);
            } else {
                let why = "the agent lost what it remembered, and does not run what it may have run already";
                self.report(state.id, Phase::Failed, why, NO_RUN, 0, 0);
            }
        }
    }

    fn is_remembered(&self, id: RequestId) -> bool {
        self.remembered.contains_key(&id.to_string())
    }

    fn obey(&mut self, state: &RequestState, now_us: u64, wall_us: u64, proof: &dyn Prove) {
        let id = state.id;
        match Phase::from_code(state.phase) {
            Some(Phase::Picked) if !self.is_remembered(id) => self.consider(id, now_us, wall_us, proof),
            Some(Phase::Accepted) if state.life == self.life => self.begin(id, state.left_us, now_us),
            // The trigger has given up on this host: nobody waits for what it does.
            Some(phase) if phase.is_final() => match self.in_hand.get_mut(&id) {
                Some(InHand::Promised { .. }) => {
                    self.in_hand.remove(&id);
                    self.note_end(id);
                }
                Some(InHand::Started { cancelled, .. }) => {
                    let why = format!("the request is over: {}", phase.name());
                    *cancelled = Some(why.clone());
                    self.commands.push(Command::Stop { id, why });
                }
                None => {}
            },
            _ => {}
        }
    }

    /// Proves a request for which this host was picked, and gives its word or says why not.
    fn consider(&mut self, id: RequestId, now_us: u64, wall_us: u64, proof: &dyn Prove) {
        let refused = |desk: &mut Self, asked: Option<&Request>, not: NotProved| {
            desk.report(id, Phase::Refused, &not.why, NO_RUN, 0, 0);
            let unread = || AuditRecord {
                action: strobe_event::AuditAction::Unreadable as u8,
                subject: id.to_string(),
                ..AuditRecord::default()
            };
            audit(
                &mut desk.audits,
                asked.map_or_else(unread, AuditRecord::of),
                &Err(not),
            );
        };
        let not = |reason, why: String| NotProved {
            reason,
            principal: None,
            why,
        };
        let Some(question) = self.questions.get(&id) else {
            let why = "the question is no longer on the bus".to_owned();
            return refused(self, None, not("gone", why));
        };
        if let Some(who) = &question.cancelled {
            let why = format!("by {who}");
            return self.report(id, Phase::Cancelled, &why, NO_RUN, 0, 0);
        }
        let signed = &question.signed;
        let request = match signed.open(question.taken_us) {
            Ok(request) => request,
            Err(error) => return refused(self, None, not(error.reason(), error.to_string())),
        };
        // What was signed says where, whatever the bus says of who was picked.
        let named = [
            ("host", &request.host, &self.place.host),
            ("region", &request.region, &self.place.region),
        ];
        let elsewhere = named
            .into_iter()
            .find(|(_, wanted, here)| !wanted.is_empty() && wanted != here)
            .map(|(what, wanted, here)| format!("it is for {what} `{wanted}`, and this is `{here}`"));
        if let Some(why) = elsewhere {
            return refused(self, Some(&request), not("elsewhere", why));
        }
        let owner = match proof.prove(signed, &request, None) {
            Ok(owner) => owner,
            Err(not) => {
                tracing::warn!(request = %id, why = not.why, "a request is refused");
                return refused(self, Some(&request), not);
            }
        };
        self.remembered.retain(|_, kept| kept.until_us > wall_us);
        if self.remembered.len() >= REMEMBERED_MAX {
            let why = format!("this host has given its word {REMEMBERED_MAX} times in two hours: ask later");
            return refused(self, Some(&request), not("full", why));
        }
        audit(&mut self.audits, AuditRecord::of(&request), &Ok(owner.clone()));
        let kept = Remembered {
            until_us: wall_us.saturating_add(REMEMBER_US),
            ended: false,
        };
        self.remembered.insert(id.to_string(), kept);
        self.changed = true;
        let request = Box::new(request);
        let promised = InHand::Promised {
            request,
            owner,
            gave_us: now_us,
        };
        self.in_hand.insert(id, promised);
        self.report(id, Phase::Accepted, "", NO_RUN, 0, 0);
    }

    fn begin(&mut self, id: RequestId, left_us: u64, now_us: u64) {
        let Some(InHand::Promised {
            request,
            owner,
            gave_us,
        }) = self.in_hand.get(&id)
        else {
            return;
        };
        let waited_us = now_us.saturating_sub(*gave_us);
        if waited_us >= left_us {
            return self.end(id, Phase::Expired, "its time to live is over", NO_RUN, 0, 0);
        }
        let run = id.run_on(&self.place.host);
        self.commands.push(Command::Start {
            request: request.clone(),
            run,
            within: Duration::from_micros(left_us - waited_us),
        });
        let started = InHand::Started {
            request: request.clone(),
            owner: owner.clone(),
            run,
            cancelled: None,
            joined: false,
        };
        self.in_hand.insert(id, started);
    }

    /// Takes in that a request shares the run of an equal one.
    pub fn joined(&mut self, id: RequestId, of: RunId) {
        if let Some(InHand::Started { run, joined, .. }) = self.in_hand.get_mut(&id) {
            (*run, *joined) = (of, true);
        }
    }

    /// Takes in how a run stands.
    pub fn standing(&mut self, id: RequestId, standing: &Standing) {
        let Some(InHand::Started {
            run,
            cancelled,
            joined,
            ..
        }) = self.in_hand.get(&id)
        else {
            return;
        };
        let (run, joined, cancelled) = (*run, *joined, cancelled.clone());
        match standing {
            Standing::Queued(behind) if behind.is_empty() => {}
            Standing::Queued(behind) => self.report(id, Phase::Queued, behind, run, 0, 0),
            Standing::Running { taken, dropped } => {
                let detail = if joined {
                    "shares the run of an equal request"
                } else {
                    ""
                };
                self.report(id, Phase::Running, detail, run, *taken, *dropped);
            }
            Standing::Ended {
                phase,
                why,
                taken,
                dropped,
            } => {
                if *phase == Phase::Refused
                    && let Some(InHand::Started { request, owner, .. }) = self.in_hand.get(&id)
                {
                    let not = NotProved {
                        reason: "cannot",
                        principal: Some(owner.clone()),
                        why: why.clone(),
                    };
                    audit(&mut self.audits, AuditRecord::of(request), &Err(not));
                }
                let (phase, why) = match (cancelled, phase) {
                    // Whatever it did until then, somebody no longer wanted it.
                    (Some(by), Phase::Finished | Phase::Cancelled | Phase::Refused) => (Phase::Cancelled, by),
                    (None, Phase::Finished) if joined => (Phase::Joined, why.clone()),
                    (_, phase) => (*phase, why.clone()),
                };
                self.end(id, phase, &why, run, *taken, *dropped);
            }
        }
    }

    fn end(&mut self, id: RequestId, phase: Phase, why: &str, run: RunId, taken: u64, dropped: u64) {
        self.in_hand.remove(&id);
        self.note_end(id);
        self.report(id, phase, why, run, taken, dropped);
    }

    fn note_end(&mut self, id: RequestId) {
        if let Some(kept) = self.remembered.get_mut(&id.to_string()) {
            kept.ended = true;
            self.changed = true;
        }
    }

    fn report(&mut self, id: RequestId, phase: Phase, detail: &str, run: RunId, taken: u64, dropped: u64) {
        self.reports.push(HostReport {
            id,
            host: self.place.host.clone(),
            life: self.life,
            phase: phase as u8,
            run,
            taken,
            dropped,
            detail: strobe_event::codec::clip(detail).to_owned(),
        });
    }
}

/// Notes what was decided about something that was asked.
fn audit(audits: &mut Vec<AuditRecord>, record: AuditRecord, proved: &Result<String, NotProved>) {
    let (outcome, principal, reason, detail) = match proved {
        Ok(principal) => (AuditOutcome::Allowed, Some(principal), "", ""),
        Err(not) => (
            AuditOutcome::Refused,
            not.principal.as_ref(),
            not.reason,
            not.why.as_str(),
        ),
    };
    audits.push(AuditRecord {
        outcome: outcome as u8,
        proved: principal.is_some(),
        who: principal.cloned().unwrap_or(record.who),
        reason: reason.to_owned(),
        detail: strobe_event::codec::clip(detail).to_owned(),
        ..record
    });
}

fn bytes_of(signed: &SignedRequest) -> usize {
    signed.payload.len() + signed.signature.len() + size_of::<(RequestId, SignedRequest)>()
}
