//! What people and programs ask for and change, and what is refused: what `strobe.audit` carries.
//!
//! Whoever decides says so: the trigger of what was asked and how it ended, each agent of what it allowed or refused on its host
//! (it alone has the signatures proved), the command line of what it changed. A record that is said again has the same id.

use std::fmt;

use xxhash_rust::xxh3::Xxh3;

use crate::request::{Action, Request};
use crate::run::Cause;

/// What was done, or was to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AuditAction {
    /// A profile, asked for by somebody.
    Profile = 1,
    /// A profile, asked for by a rule.
    Trigger = 2,
    /// The last minutes that a host keeps.
    Ring = 3,
    /// The end of what was asked for.
    Cancel = 4,
    /// A change of the configuration.
    Configure = 5,
    /// A change of a limit.
    Limit = 6,
    /// A limit lifted for a time.
    Lift = 7,
    /// All profiling of a host, ended.
    Stop = 8,
    /// The end of that.
    Start = 9,
    /// Something that could not be read.
    Unreadable = 10,
}

impl AuditAction {
    /// Every action, by code.
    pub const ALL: [Self; 10] = [
        Self::Profile,
        Self::Trigger,
        Self::Ring,
        Self::Cancel,
        Self::Configure,
        Self::Limit,
        Self::Lift,
        Self::Stop,
        Self::Start,
        Self::Unreadable,
    ];

    /// Returns the action that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns what a request is in the audit.
    pub fn of(request: &Request) -> Self {
        match (Action::from_code(request.action), Cause::from_code(request.cause)) {
            (Some(Action::Cancel), _) => Self::Cancel,
            (_, Some(Cause::Triggered)) => Self::Trigger,
            (_, Some(Cause::Ring)) => Self::Ring,
            _ => Self::Profile,
        }
    }

    /// Returns the action's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Trigger => "trigger",
            Self::Ring => "ring",
            Self::Cancel => "cancel",
            Self::Configure => "configure",
            Self::Limit => "limit",
            Self::Lift => "lift",
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Unreadable => "unreadable",
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AuditOutcome {
    /// It was asked; others decide.
    Asked = 1,
    /// Whoever decides allowed it.
    Allowed = 2,
    /// Whoever decides refused it.
    Refused = 3,
    /// It is over.
    Ended = 4,
    /// It was done at once.
    Done = 5,
}

impl AuditOutcome {
    /// Every outcome, by code.
    pub const ALL: [Self; 5] = [Self::Asked, Self::Allowed, Self::Refused, Self::Ended, Self::Done];

    /// Returns the outcome that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the outcome's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Ended => "ended",
            Self::Done => "done",
        }
    }
}

/// 128 bits that name a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuditId(pub [u8; 16]);

impl AuditId {
    /// Returns the name that follows from these: the same each time.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Xxh3::new();
        for part in parts {
            // Lengths first, so that ("a", "bc") and ("ab", "c") differ.
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.digest128().to_be_bytes())
    }
}

impl fmt::Display for AuditId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Somebody asked for something, changed something, or was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its name.
    pub id: AuditId,
    /// When, microseconds since 1970 (UTC).
    pub time_us: u64,
    /// The principal of the signature, or else who it says that it is.
    pub who: String,
    /// Whether a signature proved who.
    pub proved: bool,
    /// Who says so: `agent web-17`, `trigger`, `cli ana@laptop`.
    pub reporter: String,
    /// Code of an [`AuditAction`].
    pub action: u8,
    /// Code of an [`AuditOutcome`].
    pub outcome: u8,
    /// Why it was refused, or how it ended, in one word; else empty.
    pub reason: String,
    /// The same for people.
    pub detail: String,
    /// Name of the request, or of what was configured.
    pub subject: String,
    /// Service that it is about; empty for none.
    pub service: String,
    /// Profiler that it is about; empty for none.
    pub profiler: String,
    /// Which hosts and processes it is about; empty for all.
    pub target: String,
    /// What it is for, as whoever asked says.
    pub why: String,
}

impl AuditRecord {
    /// Returns what a request says of itself: unproved, asked, without a name and a time.
    pub fn of(request: &Request) -> Self {
        let mut target = Vec::new();
        for (name, value) in [("region", &request.region), ("host", &request.host)] {
            if !value.is_empty() {
                target.push(format!("{name} {value}"));
            }
        }
        if request.pid != 0 {
            target.push(format!("pid {}", request.pid));
        }
        Self {
            who: request.who.clone(),
            action: AuditAction::of(request) as u8,
            outcome: AuditOutcome::Asked as u8,
            subject: request.id.to_string(),
            service: request.service.clone(),
            profiler: request.profiler.clone(),
            target: target.join(", "),
            why: if request.why.is_empty() {
                request.origin.clone()
            } else {
                request.why.clone()
            },
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that codes lead back to what they stand for, and that no other does.
    #[test]
    fn codes_lead_back() {
        for action in AuditAction::ALL {
            assert_eq!(AuditAction::from_code(action as u8), Some(action));
        }
        for outcome in AuditOutcome::ALL {
            assert_eq!(AuditOutcome::from_code(outcome as u8), Some(outcome));
        }
        assert_eq!(
            (AuditAction::from_code(0), AuditAction::from_code(11)),
            (None, None)
        );
        assert_eq!(
            (AuditOutcome::from_code(0), AuditOutcome::from_code(6)),
            (None, None)
        );
    }

    /// Checks that a name follows from its parts alone, and that where one part ends counts.
    #[test]
    fn names_follow_from_their_parts() {
        assert_eq!(AuditId::of(&[b"a", b"bc"]), AuditId::of(&[b"a", b"bc"]));
        assert_ne!(AuditId::of(&[b"a", b"bc"]), AuditId::of(&[b"ab", b"c"]));
    }
}
