//! What the command line has changed → `strobe.audit`.

use std::time::Duration;

use strobe_bus::{BusSettings, Headers, Outcome, Outgoing, ResendingProducer, Topic, WindowLimits};
use strobe_event::{AuditAction, AuditId, AuditOutcome, AuditRecord, codec};

use crate::asking::who;
use crate::times::now_us;

/// How long the bus may take to acknowledge it.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// Says what was changed, for the audit. The change is done: where the audit cannot have it, people are told so and nothing is undone.
pub fn changed(bus: &BusSettings, action: AuditAction, subject: &str, service: &str, detail: &str) {
    let who = who();
    let time_us = now_us();
    let parts: [&[u8]; 4] = [
        who.as_bytes(),
        subject.as_bytes(),
        detail.as_bytes(),
        &time_us.to_le_bytes(),
    ];
    let record = AuditRecord {
        id: AuditId::of(&parts),
        time_us,
        reporter: format!("cli {who}"),
        action: action as u8,
        outcome: AuditOutcome::Done as u8,
        detail: codec::clip(detail).to_owned(),
        subject: subject.to_owned(),
        service: service.to_owned(),
        who,
        ..AuditRecord::default()
    };
    if let Err(why) = put(bus, &record) {
        eprintln!("strobe: done, but the audit does not know of it: {why}");
    }
}

fn put(bus: &BusSettings, record: &AuditRecord) -> Result<(), String> {
    let value = codec::encode_framed(record).map_err(|error| error.to_string())?;
    let message = Outgoing {
        topic: bus.topic(Topic::Audit).into(),
        key: Some(record.who.clone().into_bytes().into()),
        headers: Headers::new(),
        payload: Some(value.into()),
    };
    let mut producer =
        ResendingProducer::new(bus, WindowLimits::default()).map_err(|error| error.to_string())?;
    if producer.push(1, message).is_err() {
        return Err("the record is too large".into());
    }
    match producer.flush(ACKNOWLEDGED_WITHIN).first() {
        Some(Outcome::Refused { reason, .. }) => Err(reason.to_string()),
        Some(_) => Ok(()),
        None => Err("the broker did not take it in time".into()),
    }
}
