//! What this host has decided about what was asked of it → the spool, and from there `strobe.audit`.
//!
//! It goes by the spool, in order and over restarts, so that a host that the bus cannot reach is audited too. Whoever floods a host
//! with what it refuses gets [`PER_MINUTE_MAX`] records a minute; how many were left out is said in one more.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use strobe_event::{AuditAction, AuditId, AuditOutcome, AuditRecord};

use crate::spooling::{Said, ToSpool};

/// Records said in a minute: more than people and rules ask of one host, and some 100 KiB.
pub const PER_MINUTE_MAX: u32 = 300;
const MINUTE_US: u64 = 60_000_000;

/// Says what was decided. Clones share the bound.
#[derive(Debug, Clone)]
pub struct Auditor {
    reporter: String,
    life: [u8; 16],
    to_spool: SyncSender<ToSpool>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    number: u64,
    minute: u64,
    said: u32,
    left_out: u64,
}

impl Auditor {
    /// Returns the one of a host.
    pub fn new(host: &str, to_spool: SyncSender<ToSpool>) -> Self {
        Self {
            reporter: format!("agent {host}"),
            life: crate::run::random_id(),
            to_spool,
            state: Arc::default(),
        }
    }

    /// Says what was decided at `now_us`, microseconds since 1970. Never waits: where the spooling thread is behind, it is left out
    /// and counted.
    pub fn say(&self, record: AuditRecord, now_us: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = now_us / MINUTE_US;
        if minute != state.minute {
            (state.minute, state.said) = (minute, 0);
            if state.left_out > 0 {
                let left_out = AuditRecord {
                    action: AuditAction::Unreadable as u8,
                    outcome: AuditOutcome::Refused as u8,
                    reason: "left_out".into(),
                    detail: format!(
                        "{} decisions of this host were left out of the audit: there were more than {PER_MINUTE_MAX} \
                         within a minute",
                        state.left_out
                    ),
                    ..AuditRecord::default()
                };
                if self.send(&mut state, left_out, now_us) {
                    state.left_out = 0;
                }
            }
        }
        let has_room = state.said < PER_MINUTE_MAX;
        if !(has_room && self.send(&mut state, record, now_us)) {
            if state.left_out == 0 {
                tracing::warn!("decisions are left out of the audit: there are too many");
            }
            state.left_out += 1;
        }
    }

    fn send(&self, state: &mut State, record: AuditRecord, now_us: u64) -> bool {
        state.number += 1;
        let record = AuditRecord {
            id: AuditId::of(&[&self.life, &state.number.to_le_bytes()]),
            time_us: now_us,
            reporter: self.reporter.clone(),
            ..record
        };
        let sent = self
            .to_spool
            .try_send(ToSpool::Said(Box::new(Said::Audit(record))));
        state.said += u32::from(sent.is_ok());
        sent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    fn said(from: &Receiver<ToSpool>) -> Vec<AuditRecord> {
        let record = |to_spool| match to_spool {
            ToSpool::Said(said) => match *said {
                Said::Audit(record) => Some(record),
                _ => None,
            },
            _ => None,
        };
        from.try_iter().filter_map(record).collect()
    }

    /// Checks that a flood is bounded, that what was left out is counted in one record, and that no two records share a name.
    #[test]
    fn a_flood_is_bounded_and_counted() {
        let (to_spool, from) = sync_channel(1_000);
        let auditor = Auditor::new("web-1", to_spool);
        for _ in 0..1_000 {
            auditor.say(AuditRecord::default(), 1);
        }
        let first = said(&from);
        assert_eq!(first.len(), PER_MINUTE_MAX as usize);
        auditor.say(AuditRecord::default(), MINUTE_US);
        let second = said(&from);
        assert_eq!(second.len(), 2);
        assert_eq!(second[0].reason, "left_out");
        assert!(
            second[0].detail.starts_with("700 decisions"),
            "{}",
            second[0].detail
        );
        let mut names: Vec<AuditId> = first.iter().chain(&second).map(|record| record.id).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), PER_MINUTE_MAX as usize + 2);
        assert!(first.iter().all(|record| record.reporter == "agent web-1"));
    }

    /// Checks that a spooling thread that is behind holds nobody up, and that what it did not take is counted.
    #[test]
    fn nobody_waits_for_the_spool() {
        let (to_spool, from) = sync_channel(1);
        let auditor = Auditor::new("web-1", to_spool);
        auditor.say(AuditRecord::default(), 1);
        auditor.say(AuditRecord::default(), 1);
        assert_eq!(said(&from).len(), 1);
        auditor.say(AuditRecord::default(), MINUTE_US);
        assert!(said(&from)[0].detail.starts_with("1 decisions"));
    }
}
