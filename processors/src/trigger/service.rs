//! The trigger between its topics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strobe_bus::{
    Compacted, Consumer, Event, Headers, Message, Outcome, Outgoing, Partition, ResendingProducer, Shutdown,
    Topic, WindowFull, WindowLimits,
};
use strobe_event::{
    Action, Alert, AlertAnswer, AuditId, AuditRecord, HostRecord, HostReport, Phase, Request, RequestId,
    RequestState, SignedRequest, codec,
};
use strobe_signing::{Namespace, SigningKey};

use super::audit;
use super::book::{Book, REMEMBER_US};
use super::clock::BrokerClock;
use super::inventory::Inventory;
use super::rules::{Damped, Rules};
use crate::config::TriggerSettings;
use crate::error::ProcessorError;
use crate::service::now_us;
use crate::telemetry::TriggerTelemetry;

/// Longest wait for a message: how late a deadline, and a wish to stop, is seen.
const WAIT: Duration = Duration::from_millis(50);
/// Messages taken in between two looks at what is due.
const MESSAGES_PER_LOOK: usize = 1_024;
/// Shortest time between two commits, which only say how far it is behind: it starts over by time.
const COMMIT_EVERY: Duration = Duration::from_secs(5);
/// Pause before the bus is asked again.
const RETRY: Duration = Duration::from_millis(500);
/// How long the broker may take to acknowledge the last states.
const FLUSH_WAIT: Duration = Duration::from_secs(10);

/// Runs the trigger until the wish to stop.
///
/// # Errors
/// [`ProcessorError`] where it cannot start, or the bus has trouble that waiting does not heal.
pub fn run(settings: &TriggerSettings, shutdown: &Shutdown) -> Result<(), ProcessorError> {
    run_with(settings, shutdown, &TriggerTelemetry::default())
}

/// Like [`run`], with metrics that the caller can read meanwhile.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    settings: &TriggerSettings,
    shutdown: &Shutdown,
    telemetry: &TriggerTelemetry,
) -> Result<(), ProcessorError> {
    let bus = settings.bus.clone().with_client_id("strobe-trigger").prompt();
    let [requests, reports, alerts, audit] =
        [Topic::Requests, Topic::Reports, Topic::Alerts, Topic::Audit].map(|topic| bus.topic(topic));
    let Some(hosts) = open_hosts(&bus, shutdown) else {
        return Ok(());
    };
    let mut service = Service {
        consumer: Consumer::new(&bus, &settings.group, &[&requests, &reports, &alerts])?,
        hosts,
        inventory: Inventory::default(),
        book: Book::default(),
        clock: BrokerClock::new(now_us()),
        producer: ResendingProducer::new(&bus, WindowLimits::default())?,
        requests: requests.as_str().into(),
        alerts: alerts.as_str().into(),
        audit: audit.as_str().into(),
        rules: Rules::new(settings.rules.clone()),
        key: settings.key.as_deref(),
        positions: BTreeMap::new(),
        restoring: Restoring::default(),
        sent: 0,
        telemetry,
        shutdown,
    };
    service.read_hosts()?;
    tracing::info!(group = settings.group, "trigger runs");
    let ended = service.run();
    for outcome in service.producer.flush(FLUSH_WAIT) {
        complain(&outcome);
    }
    service.consumer.stop();
    tracing::info!(
        requests = telemetry.requests.get(),
        refused = telemetry.refused.get(),
        states = telemetry.states.get(),
        reports = telemetry.reports.get(),
        alerts = telemetry.alerts.get(),
        fired = telemetry.fired.get(),
        "trigger stopped"
    );
    ended
}

fn open_hosts(bus: &strobe_bus::BusSettings, shutdown: &Shutdown) -> Option<Compacted> {
    loop {
        match Compacted::open(bus, &bus.topic(Topic::Hosts)) {
            Ok(hosts) => return Some(hosts),
            Err(error) => {
                tracing::warn!(%error, "the hosts cannot be read yet");
                if shutdown.wait_timeout(RETRY) {
                    return None;
                }
            }
        }
    }
}

/// How far a partition was read, and how far it must be before anything is decided.
#[derive(Debug, Clone, Copy)]
struct Position {
    next: i64,
    end: i64,
    committed: i64,
    /// Alerts before this were dealt with, and questions before it audited, by whoever had the partition.
    from: i64,
}

/// What was read while the book is not whole.
#[derive(Debug, Default)]
struct Restoring {
    under_way: bool,
    asked: Vec<(RequestId, Result<(), String>)>,
    reports: Vec<(HostReport, u64)>,
    alerts: Vec<(Alert, u64)>,
}

struct Service<'a> {
    consumer: Consumer,
    hosts: Compacted,
    inventory: Inventory,
    book: Book,
    clock: BrokerClock,
    producer: ResendingProducer,
    requests: Arc<str>,
    alerts: Arc<str>,
    audit: Arc<str>,
    rules: Rules,
    key: Option<&'a SigningKey>,
    positions: BTreeMap<Partition, Position>,
    restoring: Restoring,
    sent: u64,
    telemetry: &'a TriggerTelemetry,
    shutdown: &'a Shutdown,
}

impl Service<'_> {
    fn run(&mut self) -> Result<(), ProcessorError> {
        let mut commit_at = Instant::now() + COMMIT_EVERY;
        let mut wait = WAIT;
        while !self.shutdown.is_requested() {
            self.telemetry.pulse.beat();
            self.poll_hosts()?;
            let all_read = self.read(wait)?;
            wait = WAIT;
            // While words wait to be read, nobody is late: what is overdue may be among them.
            if all_read && !self.restoring.under_way {
                let mut out = Vec::new();
                let now_us = self.clock.now_us();
                if let Some(due_us) = self.book.tick(now_us, &mut out) {
                    wait = wait.min(Duration::from_micros(due_us.saturating_sub(now_us)));
                }
                self.say(out)?;
            }
            for outcome in self.producer.poll(Duration::ZERO) {
                complain(&outcome);
            }
            if Instant::now() >= commit_at {
                commit_at = Instant::now() + COMMIT_EVERY;
                self.commit();
            }
        }
        Ok(())
    }

    fn read_hosts(&mut self) -> Result<(), ProcessorError> {
        let inventory = &mut self.inventory;
        Ok(self.hosts.catch_up(|message| take_host(inventory, &message))?)
    }

    fn poll_hosts(&mut self) -> Result<(), ProcessorError> {
        let inventory = &mut self.inventory;
        Ok(self
            .hosts
            .poll(Duration::ZERO, |message| take_host(inventory, &message))?)
    }

    /// Reads what has come; returns whether that was all.
    fn read(&mut self, mut wait: Duration) -> Result<bool, ProcessorError> {
        let mut all_read = false;
        for _ in 0..MESSAGES_PER_LOOK {
            match self.consumer.poll(wait)? {
                Event::Message(message) => self.take(&message)?,
                Event::Assigned(partitions) => {
                    tracing::info!(?partitions, "partitions assigned");
                    self.start_over(&partitions);
                }
                Event::Revoked(partitions) | Event::Lost(partitions) => {
                    tracing::info!(?partitions, "partitions given up");
                    // What is under way is said before somebody else goes on from it.
                    for outcome in self.producer.flush(FLUSH_WAIT) {
                        complain(&outcome);
                    }
                    self.forget();
                }
                Event::Idle => {
                    all_read = true;
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        self.finish_restoring()?;
        Ok(all_read)
    }

    fn forget(&mut self) {
        self.book = Book::default();
        self.rules.forget();
        self.restoring = Restoring::default();
        self.positions.clear();
    }

    /// Reads everything again that can still matter.
    fn start_over(&mut self, partitions: &[Partition]) {
        self.forget();
        self.restoring.under_way = true;
        let since_ms = (self.clock.now_us().saturating_sub(REMEMBER_US) / 1_000) as i64;
        while !self.shutdown.is_requested() {
            match self.place(partitions, since_ms) {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, "the position is asked for again");
                    self.shutdown.wait_timeout(RETRY);
                }
            }
        }
    }

    fn place(&mut self, partitions: &[Partition], since_ms: i64) -> Result<(), strobe_bus::Error> {
        let ends: BTreeMap<Partition, (i64, i64, Option<i64>)> = self
            .consumer
            .lag()?
            .into_iter()
            .map(|lag| (lag.partition, (lag.start, lag.end, lag.committed)))
            .collect();
        for partition in partitions {
            let (start, end, committed) = ends.get(partition).copied().unwrap_or_default();
            let next = self
                .consumer
                .offset_at(partition, since_ms)?
                .clamp(start, end.max(start));
            self.consumer.seek(partition, next)?;
            let position = Position {
                next,
                end,
                committed: -1,
                from: committed.unwrap_or(next),
            };
            self.positions.insert(partition.clone(), position);
        }
        Ok(())
    }

    /// Begins to decide, once the book holds all that was there.
    fn finish_restoring(&mut self) -> Result<(), ProcessorError> {
        let is_whole = !self.positions.is_empty()
            && self
                .positions
                .values()
                .all(|position| position.next >= position.end);
        if !self.restoring.under_way || !is_whole {
            return Ok(());
        }
        let read = std::mem::take(&mut self.restoring);
        tracing::info!(
            requests = self.book.len(),
            reports = read.reports.len(),
            "goes on from what is on the bus"
        );
        let mut out = Vec::new();
        for (id, proved) in read.asked {
            self.decide(id, proved, &mut out);
        }
        for (report, at_us) in read.reports {
            self.book.report(&report, at_us, self.clock.now_us(), &mut out);
        }
        self.say(out)?;
        read.alerts
            .iter()
            .try_for_each(|(alert, at_us)| self.alarm(alert, *at_us))
    }

    fn decide(&mut self, id: RequestId, proved: Result<(), String>, out: &mut Vec<RequestState>) {
        let now_us = self.clock.now_us();
        match proved {
            Ok(()) => self.book.resume(id, &self.inventory, now_us, out),
            Err(why) => self.book.refuse(id, &why, now_us, out),
        }
    }

    fn take(&mut self, message: &Message) -> Result<(), ProcessorError> {
        if let Some(position) = self.positions.get_mut(&message.partition) {
            position.next = message.offset + 1;
        }
        let taken_us = message.taken_us();
        let Ok((schema, _)) = codec::unframe(message.bytes()) else {
            return self.unreadable(message, &"it has no framing");
        };
        match schema {
            codec::SCHEMA_ID_SIGNED_REQUEST => match codec::decode_framed(message.bytes()) {
                Ok(signed) => self.take_request(&signed, message, taken_us)?,
                Err(error) => self.unreadable(message, &error)?,
            },
            codec::SCHEMA_ID_REQUEST_STATE => match codec::decode_framed::<RequestState>(message.bytes()) {
                Ok(state) if self.restoring.under_way => self.book.restore(&state),
                // Its own words come back, and say what the broker's clock shows.
                Ok(_) => self.clock.set(taken_us),
                Err(error) => self.unreadable(message, &error)?,
            },
            codec::SCHEMA_ID_HOST_REPORT => match codec::decode_framed(message.bytes()) {
                Ok(report) => self.take_report(report, taken_us)?,
                Err(error) => self.unreadable(message, &error)?,
            },
            codec::SCHEMA_ID_ALERT => match codec::decode_framed(message.bytes()) {
                Ok(alert) => self.take_alert(alert, message, taken_us)?,
                Err(error) => self.unreadable(message, &error)?,
            },
            codec::SCHEMA_ID_ALERT_ANSWER => match codec::decode_framed::<AlertAnswer>(message.bytes()) {
                Ok(answer) => self.rules.restore(&answer),
                Err(error) => self.unreadable(message, &error)?,
            },
            other => self.unreadable(message, &format!("schema {other} is none of a request"))?,
        }
        Ok(())
    }

    fn take_request(
        &mut self,
        signed: &SignedRequest,
        message: &Message,
        taken_us: u64,
    ) -> Result<(), ProcessorError> {
        let id = signed.id;
        let opened = signed.open(taken_us);
        let is_new = !self.book.knows(id);
        self.audit_question(message, |name| {
            audit::question(name, id, &opened, is_new, taken_us)
        })?;
        // Who may cancel is for the hosts to say, which have the file of signers: they end it and report so.
        if let Ok(request) = &opened
            && Action::from_code(request.action) == Some(Action::Cancel)
        {
            return Ok(());
        }
        let (request, proved) = match opened {
            Ok(request) => (Some(request), Ok(())),
            Err(error) => (None, Err(error.to_string())),
        };
        if !self.book.note(id, request, taken_us) {
            return Ok(());
        }
        self.telemetry.requests.add(1);
        if proved.is_err() {
            self.telemetry.refused.add(1);
        }
        if self.restoring.under_way {
            self.restoring.asked.push((id, proved));
            return Ok(());
        }
        let mut out = Vec::new();
        self.decide(id, proved, &mut out);
        self.say(out)
    }

    fn take_report(&mut self, report: HostReport, taken_us: u64) -> Result<(), ProcessorError> {
        self.telemetry.reports.add(1);
        if self.restoring.under_way {
            self.restoring.reports.push((report, taken_us));
            return Ok(());
        }
        let mut out = Vec::new();
        if !self.book.report(&report, taken_us, self.clock.now_us(), &mut out) {
            self.telemetry.unknown.add(1);
        }
        self.say(out)
    }

    fn take_alert(&mut self, alert: Alert, message: &Message, taken_us: u64) -> Result<(), ProcessorError> {
        let known = self.positions.get(&message.partition);
        if known.is_some_and(|position| message.offset < position.from) {
            return Ok(());
        }
        if self.restoring.under_way {
            self.restoring.alerts.push((alert, taken_us));
            return Ok(());
        }
        self.alarm(&alert, taken_us)
    }

    /// Asks for what the rules make of an alert. First the question, then the answer: whoever finds no answer asks for the same again,
    /// under the same name.
    fn alarm(&mut self, alert: &Alert, taken_us: u64) -> Result<(), ProcessorError> {
        self.telemetry.alerts.add(1);
        let (fired, damped) = self.rules.on(alert, taken_us, self.clock.now_us());
        let storm = damped
            .iter()
            .filter(|why| matches!(why, Damped::Again | Damped::Limit));
        self.telemetry.damped.add(storm.count() as u64);
        for fired in fired {
            self.telemetry.fired.add(1);
            tracing::info!(alert = alert.name, fingerprint = alert.fingerprint, rule = fired.answer.rule,
                request = %fired.request.id, "an alert asks for a profile");
            let signed = self.sign(&fired.request)?;
            let key = fired.request.id.0.to_vec();
            self.send(&self.requests.clone(), key, codec::encode_framed(&signed)?);
            let key = alert.fingerprint.clone().into_bytes();
            self.send(&self.alerts.clone(), key, codec::encode_framed(&fired.answer)?);
        }
        Ok(())
    }

    fn sign(&self, request: &Request) -> Result<SignedRequest, ProcessorError> {
        let payload = codec::encode_framed(request)?;
        let key = self.key.ok_or(ProcessorError::NoTriggerKey)?;
        Ok(SignedRequest {
            id: request.id,
            signature: key.sign(Namespace::Request, &payload)?.into_bytes(),
            payload,
        })
    }

    fn say(&mut self, states: Vec<RequestState>) -> Result<(), ProcessorError> {
        for state in states {
            self.telemetry.states.add(1);
            if state.host.is_empty() || Phase::from_code(state.phase).is_some_and(Phase::is_final) {
                let phase = Phase::from_code(state.phase).map_or("?", Phase::name);
                tracing::info!(request = %state.id, host = state.host, phase, late = state.late, detail = state.detail, "request");
            }
            // First: whoever takes over and finds the state does not say its end again.
            if let Some(record) = audit::end(&state, self.book.request(state.id)) {
                self.put_audit(&record)?;
            }
            let topic = Arc::clone(&self.requests);
            self.send(&topic, state.id.0.to_vec(), codec::encode_framed(&state)?);
        }
        Ok(())
    }

    fn send(&mut self, topic: &Arc<str>, key: Vec<u8>, value: Vec<u8>) {
        self.sent += 1;
        let mut message = Outgoing {
            topic: Arc::clone(topic),
            key: Some(key.into()),
            headers: Headers::new(),
            payload: Some(value.into()),
        };
        while let Err(WindowFull(back)) = self.producer.push(self.sent, message) {
            message = back;
            self.telemetry.pulse.beat();
            for outcome in self.producer.poll(Duration::from_millis(100)) {
                complain(&outcome);
            }
        }
    }

    fn unreadable(&mut self, message: &Message, why: &dyn std::fmt::Display) -> Result<(), ProcessorError> {
        self.telemetry.unreadable.add(1);
        tracing::warn!(partition = %message.partition, offset = message.offset, "left out: {why}");
        // Alerts are no request, and reports are made by agents of ours.
        if message.partition.topic != self.requests {
            return Ok(());
        }
        let is_oversized =
            codec::decode_framed::<SignedRequest>(message.bytes()).is_err_and(|error| error.is_oversized());
        let reason = if is_oversized { "oversized" } else { "undecodable" };
        let taken_us = message.taken_us();
        self.audit_question(message, |name| {
            audit::unreadable(
                name,
                &format!("{}@{}", message.partition, message.offset),
                reason,
                &why.to_string(),
                taken_us,
            )
        })
    }

    /// Audits a message, unless whoever had the partition before has. The name follows from where it stands, so that it is the
    /// same where that was not known.
    fn audit_question(
        &mut self,
        message: &Message,
        record: impl FnOnce(AuditId) -> AuditRecord,
    ) -> Result<(), ProcessorError> {
        let is_audited = |position: &Position| message.offset < position.from;
        if self.positions.get(&message.partition).is_some_and(is_audited) {
            return Ok(());
        }
        let place = message.partition.to_string();
        let name = AuditId::of(&[place.as_bytes(), &message.offset.to_le_bytes()]);
        self.put_audit(&record(name))
    }

    fn put_audit(&mut self, record: &AuditRecord) -> Result<(), ProcessorError> {
        let topic = Arc::clone(&self.audit);
        self.send(
            &topic,
            record.who.clone().into_bytes(),
            codec::encode_framed(record)?,
        );
        Ok(())
    }

    fn commit(&mut self) {
        // An alert that is committed is never looked at again: only when the broker has what it asked for.
        if self.producer.under_way() > 0 || self.restoring.under_way {
            return;
        }
        for (partition, position) in &mut self.positions {
            if position.next == position.committed {
                continue;
            }
            match self.consumer.commit(partition, position.next, "") {
                Ok(()) => position.committed = position.next,
                Err(error) => tracing::debug!(%error, "how far it has come is not told"),
            }
        }
    }
}

fn take_host(inventory: &mut Inventory, message: &Message) {
    let key = String::from_utf8_lossy(message.key.as_deref().unwrap_or_default());
    match &message.payload {
        None => inventory.forget(&key),
        Some(value) => match codec::decode_framed::<HostRecord>(value) {
            Ok(host) => inventory.put(host),
            Err(error) => {
                tracing::warn!(partition = %message.partition, offset = message.offset, "left out: {error}");
            }
        },
    }
}

fn complain(outcome: &Outcome) {
    if let Outcome::Refused { reason, message, .. } = outcome {
        tracing::error!(
            topic = &*message.topic,
            reason,
            "the broker refuses a word of the trigger"
        );
    }
}
