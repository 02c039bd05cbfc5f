//! What the trigger has to say for the audit: that something was asked, that it cannot be meant, and how it ended. Who may is for the
//! hosts to say, which have the signers.

use strobe_event::request::Unopened;
use strobe_event::{
    AuditAction, AuditId, AuditOutcome, AuditRecord, Phase, Request, RequestId, RequestState, codec,
};

/// Who says so.
const REPORTER: &str = "trigger";

/// Returns the record of a question, or of a cancellation, that the broker took at `taken_us`.
pub fn question(
    name: AuditId,
    id: RequestId,
    opened: &Result<Request, Unopened>,
    is_new: bool,
    taken_us: u64,
) -> AuditRecord {
    let asked = match opened {
        Ok(request) => AuditRecord::of(request),
        Err(error) => AuditRecord {
            action: AuditAction::Unreadable as u8,
            subject: id.to_string(),
            ..refused(error.reason(), &error.to_string())
        },
    };
    let is_repeat = !is_new && opened.is_ok() && asked.action != AuditAction::Cancel as u8;
    let asked = match is_repeat {
        true => AuditRecord {
            outcome: AuditOutcome::Refused as u8,
            reason: "replayed".into(),
            detail: "a request of this id was there already: the first counts".into(),
            ..asked
        },
        false => asked,
    };
    by_trigger(name, taken_us, asked)
}

/// Returns the record of a message that is no request.
pub fn unreadable(name: AuditId, place: &str, reason: &str, why: &str, taken_us: u64) -> AuditRecord {
    let record = AuditRecord {
        action: AuditAction::Unreadable as u8,
        subject: place.to_owned(),
        ..refused(reason, why)
    };
    by_trigger(name, taken_us, record)
}

/// Returns the record of how a request ended as a whole; nothing for what is no end, and for what was refused unread, which is said
/// already.
pub fn end(state: &RequestState, request: Option<&Request>) -> Option<AuditRecord> {
    let phase = Phase::from_code(state.phase).filter(|phase| phase.is_final())?;
    if !state.host.is_empty() || state.late {
        return None;
    }
    let record = AuditRecord {
        outcome: AuditOutcome::Ended as u8,
        reason: phase.name().to_owned(),
        detail: codec::clip(&state.detail).to_owned(),
        ..AuditRecord::of(request?)
    };
    let name = AuditId::of(&[&state.id.0, phase.name().as_bytes()]);
    Some(by_trigger(name, state.time_us, record))
}

fn refused(reason: &str, detail: &str) -> AuditRecord {
    AuditRecord {
        outcome: AuditOutcome::Refused as u8,
        reason: reason.to_owned(),
        detail: codec::clip(detail).to_owned(),
        ..AuditRecord::default()
    }
}

fn by_trigger(name: AuditId, time_us: u64, record: AuditRecord) -> AuditRecord {
    AuditRecord {
        id: name,
        time_us,
        reporter: REPORTER.to_owned(),
        ..record
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;

    fn state(phase: Phase, host: &str) -> RequestState {
        RequestState {
            id: request(1, 1).id,
            host: host.to_owned(),
            phase: phase as u8,
            late: false,
            time_us: 9,
            life: [0; 16],
            left_us: 0,
            run: strobe_event::request::NO_RUN,
            taken: 0,
            dropped: 0,
            detail: "1 finished".into(),
        }
    }

    /// Checks that each kind of question has its outcome and reason, and that nobody is said to be proved.
    #[test]
    fn questions_have_an_outcome_and_a_reason() {
        let asked = request(1, 1);
        let stale = Unopened::Stale {
            off_s: 600,
            before: true,
        };
        let of = |opened: Result<Request, Unopened>, is_new| {
            let record = question(AuditId::default(), asked.id, &opened, is_new, 5);
            assert!(!record.proved && record.time_us == 5 && record.subject == asked.id.to_string());
            (
                AuditAction::from_code(record.action).unwrap(),
                AuditOutcome::from_code(record.outcome).unwrap(),
                record.reason,
            )
        };
        use AuditAction::{Cancel, Profile, Unreadable};
        use AuditOutcome::{Asked, Refused};
        assert_eq!(of(Ok(asked.clone()), true), (Profile, Asked, String::new()));
        assert_eq!(
            of(Ok(asked.clone()), false),
            (Profile, Refused, "replayed".into())
        );
        assert_eq!(of(Err(stale), true), (Unreadable, Refused, "replayed".into()));
        let cancel = Request {
            action: strobe_event::Action::Cancel as u8,
            ..asked.clone()
        };
        // It has the id of what it ends.
        assert_eq!(of(Ok(cancel), false), (Cancel, Asked, String::new()));
    }

    /// Checks that a request's end is said once, as a whole, and under a name that follows from it.
    #[test]
    fn an_end_is_said_once() {
        let asked = request(1, 1);
        let record = end(&state(Phase::Finished, ""), Some(&asked)).unwrap();
        assert_eq!(
            (record.reason.as_str(), record.detail.as_str()),
            ("finished", "1 finished")
        );
        assert_eq!(Some(record), end(&state(Phase::Finished, ""), Some(&asked)));
        assert_eq!(end(&state(Phase::Finished, "web-1"), Some(&asked)), None);
        assert_eq!(end(&state(Phase::Asked, ""), Some(&asked)), None);
        assert_eq!(end(&state(Phase::Refused, ""), None), None);
    }
}
