//! From a message to a configuration that counts: who signed it, whether they may, and whether it is news.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strobe_event::config::{CONFIG_SKEW_US, CONFIG_VALID_US_MAX};
use strobe_event::{ConfigSet, SignedConfig, codec};
use strobe_sampling::config::LimitConfig;
use strobe_signing::{Action, Namespace, Refusal, Signers};

use crate::LIFT_US_MAX;
use crate::fleet::Fleet;

/// A configuration that may be put in force.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// What was signed.
    pub set: ConfigSet,
    /// What it says.
    pub fleet: Fleet,
    /// Who signed it.
    pub principal: String,
}

/// Why one is not put in force. What was stays so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// In one word, for counters and the audit.
    pub reason: &'static str,
    /// Who signed it, where that is known.
    pub principal: Option<String>,
    /// For people.
    pub why: String,
}

impl Refused {
    fn new(reason: &'static str, why: impl Into<String>) -> Self {
        Self {
            reason,
            principal: None,
            why: why.into(),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.reason(), refusal.to_string())
    }
}

/// Returns the configuration of a message, proved at `now`; `last_us` is when the one in force was made, 0 where none is.
///
/// # Errors
/// [`Refused`]; nothing is then to change.
pub fn open(
    signed: &SignedConfig,
    signers: &Signers,
    last_us: u64,
    now: SystemTime,
) -> Result<InForce, Refused> {
    let verified = signers.verify(Namespace::Config, &signed.payload, &signed.signature, now)?;
    let principal = verified.principal().to_owned();
    let by = |refused: Refused| Refused {
        principal: Some(principal.clone()),
        ..refused
    };
    let set: ConfigSet = codec::decode_framed(&signed.payload)
        .map_err(|error| by(Refused::new("undecodable", error.to_string())))?;
    let now_us = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_micros() as u64;
    if let Err((reason, why)) = is_news(&set, last_us, now_us) {
        return Err(by(Refused::new(reason, why)));
    }
    let fleet = Fleet::read(&set.files).map_err(|errors| {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        by(Refused::new("senseless", first))
    })?;
    for rule in fleet.rules() {
        let service = rule.services.to_string();
        verified
            .may(Action::Configure, &service, &rule.profiler)
            .map_err(|refusal| by(refusal.into()))?;
    }
    let limits = fleet.limits();
    // Limits of teams and of all are for who may configure every service.
    let of_all = [limits.fleet, limits.service]
        .iter()
        .any(|limit| *limit != Default::default());
    let whole = (of_all || !limits.teams.is_empty()).then(|| "*".to_owned());
    let says = |limit: &LimitConfig| limit.samples.or(limit.bus_bytes).or(limit.stored_bytes).is_some();
    let limited = limits.services.iter().filter(|(_, limit)| says(limit));
    for service in limited.map(|(service, _)| service.clone()).chain(whole) {
        verified
            .may(Action::Configure, &service, "*")
            .map_err(|refusal| by(refusal.into()))?;
    }
    for lift in fleet.lifts() {
        verified
            .may(Action::Override, &lift.service, "*")
            .map_err(|refusal| by(refusal.into()))?;
        if lift.until_us > set.made_us.saturating_add(LIFT_US_MAX) {
            let why = format!(
                "the limit of {} would be lifted for more than 7 days: make it another limit",
                lift.service
            );
            return Err(by(Refused::new("senseless", why)));
        }
    }
    Ok(InForce {
        set,
        fleet,
        principal,
    })
}

fn is_news(set: &ConfigSet, last_us: u64, now_us: u64) -> Result<(), (&'static str, String)> {
    if set.made_us < last_us {
        let why =
            "a newer one is in force already: this is a replay, or the clock of whoever made it is wrong";
        return Err(("replayed", why.into()));
    }
    if set.made_us > now_us.saturating_add(CONFIG_SKEW_US) {
        let ahead_s = (set.made_us - now_us) / 1_000_000;
        return Err(("replayed", format!("it is from {ahead_s} s in the future")));
    }
    if set.until_us <= now_us {
        let ago_s = (now_us - set.until_us) / 1_000_000;
        return Err(("expired", format!("it expired {ago_s} s ago: apply it again")));
    }
    if set.until_us.saturating_sub(set.made_us) > CONFIG_VALID_US_MAX {
        return Err(("senseless", "it would be valid for more than 400 days".into()));
    }
    Ok(())
}
