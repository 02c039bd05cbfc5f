//! Trigger rules: which alert starts which profilers, where, for how long, and how seldom: pure.
//!
//! A rule starts nothing for a resolved alert, nothing for one that it has answered less than `again_after` ago, and never more than
//! `starts_per_hour`, however many alerts there are. What it has started is on the bus ([`AlertAnswer`]), so a trigger that starts over
//! counts on from there.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use strobe_event::request::{DURATION_US_MAX, HOSTS_MAX, WAIT_US_MAX};
use strobe_event::{Action, Alert, AlertAnswer, AlertStatus, Cause, Request, RequestId};
use xxhash_rust::xxh3::xxh3_128;

/// Rules of one trigger.
pub const RULES_MAX: usize = 1_000;
/// Starts that a rule may have in an hour at most.
const STARTS_PER_HOUR_MAX: u32 = 3_600;
const HOUR_US: u64 = 3_600_000_000;
/// An alert that waited on the bus for longer starts nothing: its bad minute is over.
pub const ALERT_OLD_US: u64 = 300_000_000;
/// How long what a rule asks for may wait for its start.
const WAIT_US: u64 = 60_000_000;
const _: () = assert!(WAIT_US <= WAIT_US_MAX);

/// A rule, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// Its name.
    pub name: String,
    /// The alert's name.
    pub alert: String,
    /// Labels that the alert must have, `key=value`.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The label that names the service; without it, `service`.
    #[serde(default = "service_label")]
    pub service_label: String,
    /// The service, whatever the labels say; empty: as they say.
    #[serde(default)]
    pub service: String,
    /// What is started, each as a request of its own.
    #[serde(default = "cpu")]
    pub profilers: Vec<String>,
    /// On how many hosts.
    #[serde(default = "one")]
    pub hosts: u32,
    /// For how long.
    #[serde(with = "humantime_serde", default = "half_a_minute")]
    pub duration: Duration,
    /// How long the same alert starts nothing more.
    #[serde(with = "humantime_serde", default = "ten_minutes")]
    pub again_after: Duration,
    /// How many alerts it answers in an hour at most.
    #[serde(default = "six")]
    pub starts_per_hour: u32,
}

fn service_label() -> String {
    "service".into()
}

fn cpu() -> Vec<String> {
    vec!["cpu".into()]
}

fn one() -> u32 {
    1
}

fn six() -> u32 {
    6
}

fn half_a_minute() -> Duration {
    Duration::from_secs(30)
}

fn ten_minutes() -> Duration {
    Duration::from_secs(600)
}

impl RuleConfig {
    /// Proves that it can be meant.
    ///
    /// # Errors
    /// What is wrong with it, with the key, for people.
    pub fn validate(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("`trigger.rule` `{}`: {what}", self.name));
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if self.name.is_empty() || self.alert.is_empty() {
            return wrong("`name` and `alert` must not be empty");
        }
        if self.profilers.is_empty() {
            return wrong("`profilers` is empty: name at least one, `cpu` for example");
        }
        if self.labels.iter().any(|label| !label.contains('=')) {
            return wrong("`labels` are `key=value`");
        }
        if us(self.duration) > DURATION_US_MAX || self.duration < Duration::from_secs(1) {
            return wrong("`duration` must be 1s to 1h");
        }
        if us(self.again_after) > HOUR_US {
            return wrong("`again_after` must be 1h at most");
        }
        if self.hosts == 0 || self.hosts > HOSTS_MAX {
            return wrong("`hosts` must be 1 to 10000");
        }
        if self.starts_per_hour == 0 || self.starts_per_hour > STARTS_PER_HOUR_MAX {
            return wrong("`starts_per_hour` must be 1 to 3600");
        }
        Ok(())
    }

    fn fits(&self, alert: &Alert) -> bool {
        let has = |wanted: &String| alert.labels.contains(wanted);
        self.alert == alert.name && self.labels.iter().all(has)
    }

    fn requests(&self, alert: &Alert, service: &str, at_us: u64) -> Vec<Request> {
        let request = |profiler: &String| Request {
            id: id(&self.name, alert, profiler),
            action: Action::Profile as u8,
            who: format!("rule {}", self.name),
            why: alert.annotations.first().cloned().unwrap_or_default(),
            origin: format!("alert {} of {service}", alert.name),
            asked_us: at_us,
            service: service.to_owned(),
            region: String::new(),
            host: String::new(),
            pid: 0,
            hosts: self.hosts,
            profiler: profiler.clone(),
            arguments: Vec::new(),
            frequency_hz: 0.0,
            duration_us: self.duration.as_micros() as u64,
            wait_us: WAIT_US,
            cause: Cause::Triggered as u8,
        };
        self.profilers.iter().map(request).collect()
    }
}

/// Returns the name of what a rule starts for an alert: always the same, so that an alert that is read twice starts one.
fn id(rule: &str, alert: &Alert, profiler: &str) -> RequestId {
    let mut bytes = Vec::new();
    for field in [
        rule.as_bytes(),
        alert.fingerprint.as_bytes(),
        profiler.as_bytes(),
        &alert.started_us.to_le_bytes(),
    ] {
        // Lengths first, so that ("a", "bc") and ("ab", "c") differ.
        bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
        bytes.extend_from_slice(field);
    }
    RequestId(xxh3_128(&bytes).to_be_bytes())
}

/// What a rule makes of an alert.
#[derive(Debug, Clone, PartialEq)]
pub struct Fired {
    /// What is asked for.
    pub request: Request,
    /// What goes back to the alert.
    pub answer: AlertAnswer,
}

/// Why an alert starts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damped {
    /// No rule is for it.
    NoRule,
    /// It is resolved.
    Resolved,
    /// It is older than anybody cares for.
    Old,
    /// The rule has answered it a short while ago.
    Again,
    /// The rule has had its starts of this hour.
    Limit,
    /// It names no service, and nor does the rule.
    NoService,
}

/// The rules, and what they have started.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<(RuleConfig, VecDeque<(u64, String)>)>,
}

impl Rules {
    /// Returns rules that have started nothing yet.
    pub fn new(rules: Vec<RuleConfig>) -> Self {
        Self {
            rules: rules.into_iter().map(|rule| (rule, VecDeque::new())).collect(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Takes in what a rule has started, as the bus remembers it.
    pub fn restore(&mut self, answer: &AlertAnswer) {
        for (rule, started) in &mut self.rules {
            if rule.name == answer.rule
                && !started
                    .iter()
                    .any(|(at_us, of)| (*at_us, of) == (answer.time_us, &answer.fingerprint))
            {
                started.push_back((answer.time_us, answer.fingerprint.clone()));
            }
        }
    }

    /// Forgets what was started, before it is read again.
    pub fn forget(&mut self) {
        self.rules.iter_mut().for_each(|(_, started)| started.clear());
    }

    /// Returns what an alert starts that the broker took at `at_us`, now that it is `now_us`; and for each rule that is for it and
    /// starts nothing, why.
    pub fn on(&mut self, alert: &Alert, at_us: u64, now_us: u64) -> (Vec<Fired>, Vec<Damped>) {
        let (mut fired, mut damped) = (Vec::new(), Vec::new());
        for (rule, started) in self.rules.iter_mut().filter(|(rule, _)| rule.fits(alert)) {
            match answer(rule, started, alert, at_us, now_us) {
                Ok(of_rule) => fired.extend(of_rule),
                Err(why) => damped.push(why),
            }
        }
        if fired.is_empty() && damped.is_empty() {
            damped.push(Damped::NoRule);
        }
        (fired, damped)
    }
}

fn answer(
    rule: &RuleConfig,
    started: &mut VecDeque<(u64, String)>,
    alert: &Alert,
    at_us: u64,
    now_us: u64,
) -> Result<Vec<Fired>, Damped> {
    if AlertStatus::from_code(alert.status) != Some(AlertStatus::Firing) {
        return Err(Damped::Resolved);
    }
    if now_us.saturating_sub(at_us) > ALERT_OLD_US {
        return Err(Damped::Old);
    }
    let service = match rule.service.as_str() {
        "" => alert
            .label(&rule.service_label)
            .filter(|service| !service.is_empty()),
        fixed => Some(fixed),
    };
    let service = service.ok_or(Damped::NoService)?;
    while started
        .front()
        .is_some_and(|(start_us, _)| start_us + HOUR_US <= at_us)
    {
        started.pop_front();
    }
    let again_us = rule.again_after.as_micros() as u64;
    if started
        .iter()
        .any(|(start_us, of)| *of == alert.fingerprint && at_us < start_us + again_us)
    {
        return Err(Damped::Again);
    }
    if started.len() >= rule.starts_per_hour as usize {
        return Err(Damped::Limit);
    }
    started.push_back((at_us, alert.fingerprint.clone()));
    let fired = rule
        .requests(alert, service, now_us)
        .into_iter()
        .map(|request| Fired {
            answer: AlertAnswer {
                fingerprint: alert.fingerprint.clone(),
                rule: rule.name.clone(),
                request: request.id,
                time_us: at_us,
                link: format!("strobe runs show {}", request.id),
            },
            request,
        });
    Ok(fired.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;
    const SECOND: u64 = 1_000_000;

    fn rule(starts_per_hour: u32) -> RuleConfig {
        let text = format!(
            "name = \"slow\"\nalert = \"HighLatency\"\nlabels = [\"severity=page\"]\nstarts_per_hour = {starts_per_hour}"
        );
        toml::from_str(&text).unwrap()
    }

    fn alert(number: u64) -> Alert {
        Alert {
            fingerprint: format!("{number:x}"),
            name: "HighLatency".into(),
            status: AlertStatus::Firing as u8,
            started_us: NOW,
            labels: vec!["severity=page".into(), "service=orders".into()],
            ..Alert::default()
        }
    }

    /// Checks that a storm of 10,000 alerts within a minute, each sent twice, starts as many profiles as the rule says and no more.
    #[test]
    fn a_storm_starts_as_many_as_the_rule_says() {
        let mut rules = Rules::new(vec![rule(6)]);
        let mut fired = Vec::new();
        for number in 0..10_000 {
            for _ in 0..2 {
                let at_us = NOW + number * 6_000;
                fired.extend(rules.on(&alert(number), at_us, at_us).0);
            }
        }
        assert_eq!(fired.len(), 6);
        assert!(fired.iter().all(|fired| fired.request.validate().is_ok()));
        // The hour is over.
        let later = NOW + HOUR_US + 60 * SECOND;
        assert_eq!(rules.on(&alert(1), later, later).0.len(), 1);
    }

    /// Checks that the same alert starts nothing again before its time, and the same request when it is read twice.
    #[test]
    fn the_same_alert_starts_nothing_again() {
        let mut rules = Rules::new(vec![rule(100)]);
        let (first, _) = rules.on(&alert(1), NOW, NOW);
        assert_eq!(
            rules.on(&alert(1), NOW + 599 * SECOND, NOW + 599 * SECOND).1,
            [Damped::Again]
        );
        assert_eq!(
            rules
                .on(&alert(1), NOW + 600 * SECOND, NOW + 600 * SECOND)
                .0
                .len(),
            1
        );
        let mut another = Rules::new(vec![rule(100)]);
        assert_eq!(
            another.on(&alert(1), NOW, NOW).0[0].request.id,
            first[0].request.id
        );
        // What the bus remembers of the first counts for whoever takes over.
        let mut next = Rules::new(vec![rule(1)]);
        next.restore(&first[0].answer);
        next.restore(&first[0].answer);
        assert_eq!(next.on(&alert(1), NOW + SECOND, NOW + SECOND).1, [Damped::Again]);
        assert_eq!(next.on(&alert(2), NOW + SECOND, NOW + SECOND).1, [Damped::Limit]);
    }

    /// Checks that a resolved alert, an old one, one without a service and one of another rule start nothing, and say why.
    #[test]
    fn what_starts_nothing_says_why() {
        let mut rules = Rules::new(vec![rule(6)]);
        let mut why = |change: fn(&mut Alert), at_us| {
            let mut alert = alert(9);
            change(&mut alert);
            let (fired, damped) = rules.on(&alert, at_us, NOW);
            assert!(fired.is_empty());
            damped
        };
        assert_eq!(
            why(|alert| alert.status = AlertStatus::Resolved as u8, NOW),
            [Damped::Resolved]
        );
        assert_eq!(why(|_| {}, NOW - ALERT_OLD_US - 1), [Damped::Old]);
        assert_eq!(why(|alert| alert.labels.truncate(1), NOW), [Damped::NoService]);
        assert_eq!(why(|alert| alert.name = "Other".into(), NOW), [Damped::NoRule]);
        assert_eq!(why(|alert| alert.labels.clear(), NOW), [Damped::NoRule]);
    }

    /// Checks that a rule that cannot be meant is refused with its key.
    #[test]
    fn rules_are_proved() {
        assert_eq!(rule(6).validate(), Ok(()));
        type Change = fn(&mut RuleConfig);
        let changes: [(&str, Change); 5] = [
            ("`profilers`", |rule| rule.profilers.clear()),
            ("`labels`", |rule| rule.labels.push("severity".into())),
            ("`duration`", |rule| rule.duration = Duration::from_secs(7_200)),
            ("`hosts`", |rule| rule.hosts = 0),
            ("`starts_per_hour`", |rule| rule.starts_per_hour = 0),
        ];
        for (key, change) in changes {
            let mut changed = rule(6);
            change(&mut changed);
            assert!(changed.validate().unwrap_err().contains(key));
        }
    }
}
