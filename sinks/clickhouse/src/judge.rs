//! What a message is, and whether it can be stored: proved before any of it becomes a row.

use std::time::Duration;

use strobe_bus::{DeadReason, MESSAGE_BYTES_MAX, Message, Meta};
use strobe_event::codec::{self, DecodeError};
use strobe_event::{
    AuditAction, AuditOutcome, AuditRecord, Cause, CoverageRecord, CpuSource, Part, RunEvent, RunState,
    SamplesBatch,
};

use crate::lane::Kind;
use crate::stored::{Known, Spool, Verdict};

/// Clocks of hosts may be ahead by this much; more is no time of ours.
const AHEAD_MAX: Duration = Duration::from_secs(600);

/// Microseconds of an hour.
const HOUR_US: u64 = 3_600_000_000;

/// What a message is.
pub enum Judged {
    /// A batch, and what of it is inserted.
    Batch {
        meta: Meta,
        batch: Box<SamplesBatch>,
        part: Part,
        pieces: Vec<Part>,
    },
    /// An event of a run.
    Event { meta: Meta, event: Box<RunEvent> },
    /// What became of slots.
    Coverage { meta: Meta, record: Box<CoverageRecord> },
    /// Who asked for what, and who was refused.
    Audit { record: Box<AuditRecord> },
    /// It was stored before.
    Repeat { samples: u64 },
    /// A predecessor left it out.
    Left,
}

/// Why a message is put aside.
pub struct Refusal {
    /// The kind of reason.
    pub reason: DeadReason,
    /// What went wrong, by name.
    pub exception: &'static str,
    /// For people.
    pub message: String,
}

fn refuse<T>(reason: DeadReason, exception: &'static str, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        reason,
        exception,
        message: message.into(),
    })
}

/// Returns what a message is; without `news` it is taken whole, whatever is stored and however old it is.
pub fn judge(
    kind: Kind,
    message: &Message,
    news: Option<(&Known, Duration, u64)>,
) -> Result<Judged, Refusal> {
    let bytes = message.bytes().len();
    if bytes > MESSAGE_BYTES_MAX {
        let text = format!("value of {bytes} bytes is over the limit of {MESSAGE_BYTES_MAX}");
        return refuse(DeadReason::Oversized, "MessageTooLarge", text);
    }
    // It comes from whoever decides, not from a spool alone: its identity is in the record.
    if kind == Kind::Audit {
        return judge_audit(message, news);
    }
    let meta = match Meta::from_headers(&message.headers) {
        Ok(meta) => meta,
        Err(error) => return refuse(DeadReason::BadHeaders, "HeaderError", error.to_string()),
    };
    match kind {
        Kind::Samples => judge_batch(meta, message, news),
        Kind::Runs => judge_event(meta, message, news),
        Kind::Coverage => judge_coverage(meta, message, news),
        Kind::Audit => judge_audit(message, news),
    }
}

fn judge_batch(
    meta: Meta,
    message: &Message,
    news: Option<(&Known, Duration, u64)>,
) -> Result<Judged, Refusal> {
    let Some(part) = Part::from_number(meta.identity.part) else {
        return refuse(DeadReason::BadHeaders, "PartNumber", "part 1 is none's");
    };
    let mut pieces = vec![part];
    if let Some((known, ..)) = news {
        let spool: Spool = (meta.identity.host.as_str().into(), meta.identity.epoch);
        let verdict = known
            .get(&spool)
            .map(|coverage| coverage.verdict(meta.identity.sequence, part, meta.samples));
        match verdict {
            None | Some(Verdict::News) => {}
            Some(Verdict::Repeat) => {
                return Ok(Judged::Repeat {
                    samples: meta.samples,
                });
            }
            Some(Verdict::Cut(missing)) => pieces = missing,
            Some(Verdict::Torn) => {
                let text = format!("{}: what is stored of it was split by other rules", meta.identity);
                return refuse(DeadReason::Rejected, "Torn", text);
            }
        }
        // Far under what the note of a range has room for.
        if pieces.len() > 256 {
            let text = format!("{}: {} pieces of it are missing", meta.identity, pieces.len());
            return refuse(DeadReason::Rejected, "Torn", text);
        }
    }
    let batch = decode::<SamplesBatch>(message)?;
    if let Err(error) = batch.validate() {
        return refuse(DeadReason::Undecodable, "Malformed", error.to_string());
    }
    if batch.raw.samples.len() as u64 != meta.samples {
        let text = format!(
            "the headers name {} samples, the batch has {}",
            meta.samples,
            batch.raw.samples.len()
        );
        return refuse(DeadReason::Undecodable, "WrongCount", text);
    }
    if let Some((_, oldest, now_us)) = news {
        let deltas = batch.raw.samples.time_delta_us.iter();
        let last_us = deltas.fold(batch.raw.start_us, |sum, &delta| sum.saturating_add(delta));
        in_time(batch.raw.start_us, last_us.max(batch.raw.end_us), oldest, now_us)?;
    }
    Ok(Judged::Batch {
        meta,
        batch: Box::new(batch),
        part,
        pieces,
    })
}

fn judge_event(
    meta: Meta,
    message: &Message,
    news: Option<(&Known, Duration, u64)>,
) -> Result<Judged, Refusal> {
    let event = decode::<RunEvent>(message)?;
    if RunState::from_code(event.state).is_none() || Cause::from_code(event.run.cause).is_none() {
        let text = format!("state {} or cause {} is not known", event.state, event.run.cause);
        return refuse(DeadReason::Undecodable, "Malformed", text);
    }
    if let Some((_, oldest, now_us)) = news {
        in_time(event.time_us, event.time_us, oldest, now_us)?;
    }
    Ok(Judged::Event {
        meta,
        event: Box::new(event),
    })
}

fn judge_coverage(
    meta: Meta,
    message: &Message,
    news: Option<(&Known, Duration, u64)>,
) -> Result<Judged, Refusal> {
    let record = decode::<CoverageRecord>(message)?;
    let sums = [
        record.drawn_inverse,
        record.u,
        record.uu,
        record.t,
        record.tt,
        record.tu,
    ];
    let wrong = if CpuSource::from_code(record.cpu_source).is_none() {
        "its source of CPU time is not known"
    } else if !sums.iter().all(|sum| sum.is_finite() && *sum >= 0.0) {
        "a sum is negative or not a number"
    } else if record.slot_us == 0 || record.until_us.div_ceil(HOUR_US).saturating_sub(1) != record.hour {
        "it reaches out of its hour, or its slots have no length"
    } else {
        ""
    };
    if !wrong.is_empty() {
        return refuse(DeadReason::Undecodable, "Malformed", wrong);
    }
    if let Some((_, oldest, now_us)) = news {
        in_time(record.until_us, record.until_us, oldest, now_us)?;
    }
    Ok(Judged::Coverage {
        meta,
        record: Box::new(record),
    })
}

fn judge_audit(message: &Message, news: Option<(&Known, Duration, u64)>) -> Result<Judged, Refusal> {
    let record = decode::<AuditRecord>(message)?;
    if AuditAction::from_code(record.action).is_none() || AuditOutcome::from_code(record.outcome).is_none() {
        let text = format!(
            "action {} or outcome {} is not known",
            record.action, record.outcome
        );
        return refuse(DeadReason::Undecodable, "Malformed", text);
    }
    // However late it comes: a host that was cut off for a week is audited all the same.
    if let Some((_, oldest, now_us)) = news {
        in_time(now_us, record.time_us, oldest, now_us)?;
    }
    Ok(Judged::Audit {
        record: Box::new(record),
    })
}

fn decode<T: codec::Wire>(message: &Message) -> Result<T, Refusal> {
    codec::decode_framed(message.bytes()).or_else(|error| {
        let reason = match &error {
            DecodeError::Unframed { .. } | DecodeError::ForeignSchema { .. } => DeadReason::Foreign,
            error if error.is_truncated() => DeadReason::Truncated,
            DecodeError::Malformed { .. } => DeadReason::Undecodable,
        };
        refuse(reason, "Undecodable", error.to_string())
    })
}

fn in_time(start_us: u64, end_us: u64, oldest: Duration, now_us: u64) -> Result<(), Refusal> {
    let age_us = now_us.saturating_sub(start_us);
    if u128::from(age_us) > oldest.as_micros() {
        let text = format!(
            "it is {} s old, and {} are kept",
            age_us / 1_000_000,
            oldest.as_secs()
        );
        return refuse(DeadReason::Rejected, TOO_OLD, text);
    }
    let ahead_us = end_us.saturating_sub(now_us);
    if u128::from(ahead_us) > AHEAD_MAX.as_micros() {
        let text = format!("it is {} s ahead of our clock", ahead_us / 1_000_000);
        return refuse(DeadReason::Rejected, FUTURE, text);
    }
    Ok(())
}

/// Name of what is older than is kept.
pub const TOO_OLD: &str = "TooOld";
/// Name of what is ahead of our clock.
pub const FUTURE: &str = "Future";
