//! Alertmanager's message, version 4, and the alerts in it: pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use strobe_event::alert::{LABEL_BYTES_MAX, LABELS_MAX};
use strobe_event::{Alert, AlertStatus, codec};

/// Most alerts of one message: Alertmanager groups, and `max_alerts` bounds what it sends.
pub const ALERTS_MAX: usize = 10_000;

/// The version that is understood.
const VERSION: &str = "4";

/// The message. Keys that are not looked at may be there: Alertmanager adds some from time to time.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Webhook {
    version: String,
    #[serde(default)]
    group_key: String,
    #[serde(rename = "externalURL", default)]
    external_url: String,
    alerts: Vec<WrittenAlert>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenAlert {
    status: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    starts_at: String,
    #[serde(default)]
    ends_at: String,
    #[serde(default)]
    fingerprint: String,
}

/// Why a message is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not the JSON that it should be.
    #[error("this is no webhook message of Alertmanager: {0}")]
    Malformed(String),
    /// Another version.
    #[error("webhook version `{0}` is not understood; `4` is")]
    Version(String),
    /// Too many alerts at once.
    #[error(
        "{0} alerts in one message, of at most {ALERTS_MAX}: set `max_alerts` in Alertmanager's webhook_config"
    )]
    TooMany(usize),
    /// An alert that cannot be meant.
    #[error("alert {number}: {what}")]
    Alert {
        /// Which, counted from 1.
        number: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// Returns the alerts of a message.
///
/// # Errors
/// [`Unreadable`]: then none of it is taken.
pub fn read(body: &[u8]) -> Result<Vec<Alert>, Unreadable> {
    let message: Webhook =
        serde_json::from_slice(body).map_err(|error| Unreadable::Malformed(error.to_string()))?;
    if message.version != VERSION {
        return Err(Unreadable::Version(message.version.chars().take(32).collect()));
    }
    if message.alerts.len() > ALERTS_MAX {
        return Err(Unreadable::TooMany(message.alerts.len()));
    }
    let one = |(at, alert): (usize, &WrittenAlert)| {
        alert
            .read(&message)
            .map_err(|what| Unreadable::Alert { number: at + 1, what })
    };
    message.alerts.iter().enumerate().map(one).collect()
}

impl WrittenAlert {
    fn read(&self, message: &Webhook) -> Result<Alert, String> {
        let status = match self.status.as_str() {
            "firing" => AlertStatus::Firing,
            "resolved" => AlertStatus::Resolved,
            other => return Err(format!("status `{}` is not known", other.escape_debug())),
        };
        let pairs = |pairs: &BTreeMap<String, String>| -> Result<Vec<String>, String> {
            if pairs.len() > LABELS_MAX {
                return Err(format!("{} labels, of at most {LABELS_MAX}", pairs.len()));
            }
            Ok(pairs
                .iter()
                .map(|(key, value)| {
                    let mut pair = format!("{key}={value}");
                    pair.truncate(pair.floor_char_boundary(LABEL_BYTES_MAX));
                    pair
                })
                .collect())
        };
        let labels = pairs(&self.labels)?;
        // What sends none, as some that imitate Alertmanager do, has its labels for one.
        let fingerprint = match self.fingerprint.as_str() {
            "" => labels.join(","),
            given => given.to_owned(),
        };
        Ok(Alert {
            fingerprint: codec::clip(&fingerprint).to_owned(),
            name: self.labels.get("alertname").cloned().unwrap_or_default(),
            status: status as u8,
            started_us: time(&self.starts_at)?,
            // The year 1 stands for "not yet".
            ended_us: if status == AlertStatus::Resolved {
                time(&self.ends_at)?
            } else {
                0
            },
            labels,
            annotations: pairs(&self.annotations)?,
            group: codec::clip(&message.group_key).to_owned(),
            source: codec::clip(&message.external_url).to_owned(),
        })
    }
}

fn time(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{}` is no time: RFC 3339 is", text.escape_debug());
    // With an offset, as Alertmanager writes it where its zone is not UTC.
    let (local, offset_s) = match text.char_indices().nth_back(5) {
        Some((at, sign @ ('+' | '-'))) => {
            let (hours, minutes) = text[at + 1..].split_once(':').ok_or_else(wrong)?;
            let number = |text: &str| text.parse::<i64>().map_err(|_| wrong());
            let seconds = number(hours)? * 3_600 + number(minutes)? * 60;
            (
                format!("{}Z", &text[..at]),
                if sign == '-' { -seconds } else { seconds },
            )
        }
        _ => (text.to_owned(), 0),
    };
    let time = humantime::parse_rfc3339(&local).map_err(|_| wrong())?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|_| wrong())?;
    let us = i128::try_from(since.as_micros()).map_err(|_| wrong())? - i128::from(offset_s) * 1_000_000;
    u64::try_from(us).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as Alertmanager 0.28 sends it.
    const MESSAGE: &str = r#"{
        "receiver": "strobe", "status": "firing", "version": "4", "groupKey": "{}:{alertname=\"HighLatency\"}",
        "truncatedAlerts": 0, "groupLabels": {"alertname": "HighLatency"}, "commonLabels": {}, "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093", "notification_reason": "new",
        "alerts": [
            {"status": "firing", "labels": {"alertname": "HighLatency", "service": "orders"}, "annotations": {"summary": "slow"},
             "startsAt": "2026-11-30T12:00:00.25Z", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://prometheus",
             "fingerprint": "b5d4045c3f466fa9"},
            {"status": "resolved", "labels": {"alertname": "HighLatency", "service": "mail"}, "annotations": {},
             "startsAt": "2026-11-30T13:00:00+01:00", "endsAt": "2026-11-30T12:10:00Z", "generatorURL": "",
             "fingerprint": "aaaa045c3f466fa9"}
        ]}"#;

    /// Checks that each alert of a message becomes an event with its labels, its times in UTC, and its identity.
    #[test]
    fn a_message_becomes_its_alerts() {
        let alerts = read(MESSAGE.as_bytes()).unwrap();
        assert_eq!(alerts.len(), 2);
        assert_eq!(alerts[0].labels, ["alertname=HighLatency", "service=orders"]);
        assert_eq!((alerts[0].name.as_str(), alerts[0].ended_us), ("HighLatency", 0));
        assert_eq!(alerts[0].fingerprint, "b5d4045c3f466fa9");
        assert_eq!(
            alerts[0].started_us - 250_000,
            alerts[1].started_us,
            "12:00 UTC is 13:00+01:00"
        );
        assert_eq!(alerts[1].ended_us - alerts[1].started_us, 600_000_000);
        assert_eq!(alerts[1].status, AlertStatus::Resolved as u8);
    }

    /// Checks that what is no such message is refused whole, with the place.
    #[test]
    fn what_is_no_message_is_refused_whole() {
        for (from, to, why) in [
            ("\"version\": \"4\"", "\"version\": \"5\"", "version `5`"),
            (
                "\"firing\", \"labels\"",
                "\"odd\", \"labels\"",
                "alert 1: status `odd`",
            ),
            (
                "2026-11-30T13:00:00+01:00",
                "yesterday",
                "alert 2: `yesterday` is no time",
            ),
            ("\"alerts\": [", "\"alerts\": {", "no webhook message"),
        ] {
            let changed = MESSAGE.replacen(from, to, 1);
            assert_ne!(changed, MESSAGE, "{from}");
            let said = read(changed.as_bytes()).expect_err(to).to_string();
            assert!(said.contains(why), "{said}");
        }
        assert!(read(b"").is_err() && read(b"null").is_err());
    }
}
