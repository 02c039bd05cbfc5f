//! Alerts: something is wrong somewhere, says somebody; and which requests that started.

use crate::request::RequestId;

/// Most labels, and annotations, of an alert.
pub const LABELS_MAX: usize = 64;
/// Longest label or annotation, `key=value`.
pub const LABEL_BYTES_MAX: usize = 4_096;

/// Whether an alert fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AlertStatus {
    /// It fires.
    Firing = 1,
    /// It no longer does.
    Resolved = 2,
}

impl AlertStatus {
    /// Returns the status that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Firing, Self::Resolved]
            .get(usize::from(code).checked_sub(1)?)
            .copied()
    }
}

/// An alert, as whoever raises it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alert {
    /// What makes it the same alert when it is said again.
    pub fingerprint: String,
    /// Its name: the label `alertname`.
    pub name: String,
    /// Code of an [`AlertStatus`].
    pub status: u8,
    /// Since when, microseconds since 1970 (UTC).
    pub started_us: u64,
    /// Until when; 0 while it fires.
    pub ended_us: u64,
    /// Its labels, `key=value`.
    pub labels: Vec<String>,
    /// Its annotations, `key=value`.
    pub annotations: Vec<String>,
    /// The group in which it was sent.
    pub group: String,
    /// Where to look: the address of whoever raised it.
    pub source: String,
}

impl Alert {
    /// Returns the value of a label; nothing where it has none of that name.
    pub fn label(&self, name: &str) -> Option<&str> {
        let of_name = |label: &'_ str| label.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        let label = self.labels.iter().find(|label| of_name(label))?;
        Some(&label[name.len() + 1..])
    }
}

/// What a rule made of an alert: it goes back to where the alert came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertAnswer {
    /// The alert.
    pub fingerprint: String,
    /// The rule.
    pub rule: String,
    /// The request that it started: `strobe runs show` shows it.
    pub request: RequestId,
    /// When, microseconds since 1970 (UTC), by the broker's clock.
    pub time_us: u64,
    /// What is to be seen where, for people.
    pub link: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a label is found by its whole name.
    #[test]
    fn labels_are_found_by_their_whole_name() {
        let alert = Alert {
            labels: vec!["service_group=a".into(), "service=b=c".into(), "empty=".into()],
            ..Alert::default()
        };
        assert_eq!(alert.label("service"), Some("b=c"));
        assert_eq!((alert.label("empty"), alert.label("serv")), (Some(""), None));
    }
}
