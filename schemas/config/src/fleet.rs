//! All files together, proved.

use std::collections::BTreeMap;
use std::fmt;

use strobe_event::ConfigFile;
use strobe_event::codec::TEXT_BYTES_MAX;
use strobe_event::request::NAME_BYTES_MAX;
use strobe_sampling::config::{LimitConfig, LimitsConfig, ProfilerConfig};

use crate::error::ConfigError;
use crate::written::{Text, WrittenLift, WrittenLimit, WrittenProfile};
use crate::{ENTRIES_MAX, FILES_MAX};

/// Which services an entry is for: one, those whose names begin so (`check*`), or every one (`*`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// This one.
    Exactly(String),
    /// Those whose names begin so; all where it is empty.
    Beginning(String),
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        name("service", text)?;
        match text.strip_suffix('*') {
            Some(begin) if !begin.contains('*') => Ok(Self::Beginning(begin.to_owned())),
            None if !text.contains('*') => Ok(Self::Exactly(text.to_owned())),
            _ => Err(format!("`service` `{text}`: `*` may stand at its end alone")),
        }
    }

    /// Returns how exactly it names a service; nothing where it is not for it.
    fn fits(&self, service: &str) -> Option<usize> {
        match self {
            Self::Exactly(name) => (name == service).then_some(usize::MAX),
            Self::Beginning(begin) => service.starts_with(begin).then_some(begin.len()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => f.write_str(name),
            Self::Beginning(begin) => write!(f, "{begin}*"),
        }
    }
}

/// What is desired of services.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Whose they are; empty where nobody says.
    pub team: String,
    /// Which.
    pub services: Pattern,
    /// By which profiler.
    pub profiler: String,
    /// How much, and between what plans may lie.
    pub desired: ProfilerConfig,
    /// Where it stands: file and line.
    pub place: (String, usize),
}

/// A limit that does not apply for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lift {
    /// The service.
    pub service: String,
    /// Until when, microseconds since 1970 (UTC).
    pub until_us: u64,
    /// Why, for people.
    pub why: String,
}

/// A whole configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    rules: Vec<Rule>,
    limits: LimitsConfig,
    lifts: Vec<Lift>,
}

impl Fleet {
    /// Reads and proves all files together.
    ///
    /// # Errors
    /// All that is wrong, file by file.
    pub fn read(files: &[ConfigFile]) -> Result<Self, Vec<ConfigError>> {
        let many = |what, count, most| (count > most).then_some(ConfigError::TooMany { what, count, most });
        if let Some(error) = many("files", files.len(), FILES_MAX) {
            return Err(vec![error]);
        }
        let mut reading = Reading::default();
        for file in files {
            if file.text.len() > TEXT_BYTES_MAX {
                reading.errors.push(ConfigError::TooLarge {
                    file: file.name.clone(),
                    bytes: file.text.len(),
                    most: TEXT_BYTES_MAX,
                });
                continue;
            }
            reading.file(file);
        }
        let fleet = &reading.fleet;
        let entries = fleet.rules.len() + reading.limits + fleet.lifts.len();
        reading.errors.extend(many("entries", entries, ENTRIES_MAX));
        if reading.errors.is_empty() {
            Ok(reading.fleet)
        } else {
            Err(reading.errors)
        }
    }

    /// Returns what is desired of a service by a profiler, where an entry says.
    pub fn rule(&self, service: &str, profiler: &str) -> Option<&Rule> {
        let of_profiler = self.rules.iter().filter(|rule| rule.profiler == profiler);
        let fitting = of_profiler.filter_map(|rule| Some((rule.services.fits(service)?, rule)));
        fitting
            .max_by_key(|(exactness, _)| *exactness)
            .map(|(_, rule)| rule)
    }

    /// Returns every entry that says what is desired.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the limits that entries say, without those of services that are only lifted.
    pub fn limits(&self) -> &LimitsConfig {
        &self.limits
    }

    /// Returns the limits in force where `base` are those that were set otherwise: each number that an entry says counts, the rest stays.
    /// Whose a service is stays as it was set: an entry could else take it out of its team's limit.
    pub fn limits_over(&self, base: &LimitsConfig) -> LimitsConfig {
        let over = |own: &LimitConfig, base: LimitConfig| LimitConfig {
            samples: own.samples.or(base.samples),
            bus_bytes: own.bus_bytes.or(base.bus_bytes),
            stored_bytes: own.stored_bytes.or(base.stored_bytes),
            lifted_until_us: base.lifted_until_us,
        };
        let mut limits = base.clone();
        limits.service = over(&self.limits.service, base.service);
        limits.fleet = over(&self.limits.fleet, base.fleet);
        for (service, own) in &self.limits.services {
            let known = base.services.get(service).copied().unwrap_or_default();
            let lifted_until_us = match own.lifted_until_us {
                0 => known.lifted_until_us,
                until_us => until_us,
            };
            let limit = LimitConfig {
                lifted_until_us,
                ..over(own, known)
            };
            limits.services.insert(service.clone(), limit);
        }
        for (team, own) in &self.limits.teams {
            let known = base.teams.get(team).copied().unwrap_or_default();
            limits.teams.insert(team.clone(), over(own, known));
        }
        for (service, team) in &self.limits.team_of {
            limits
                .team_of
                .entry(service.clone())
                .or_insert_with(|| team.clone());
        }
        limits
    }

    /// Returns what is lifted.
    pub fn lifts(&self) -> &[Lift] {
        &self.lifts
    }

    /// Returns it sentence by sentence, sorted: what people compare. Where something stands is not part of it.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences: Vec<String> = self.rules.iter().map(sentence).collect();
        let limits = &self.limits;
        let mut limit = |whose: String, limit: &LimitConfig| {
            let parts = [
                ("samples", limit.samples),
                ("bytes to the bus", limit.bus_bytes),
                ("bytes to storage", limit.stored_bytes),
            ];
            for (what, most) in parts {
                if let Some(most) = most {
                    sentences.push(format!("limit of {whose}: {most} {what} per hour"));
                }
            }
        };
        limit("each service".into(), &limits.service);
        limit("the fleet".into(), &limits.fleet);
        for (service, own) in &limits.services {
            limit(format!("service {service}"), own);
        }
        for (team, own) in &limits.teams {
            limit(format!("team {team}"), own);
        }
        for lift in &self.lifts {
            sentences.push(format!(
                "limit of service {} lifted until {}: {}",
                lift.service,
                moment(lift.until_us),
                lift.why
            ));
        }
        sentences.sort();
        sentences
    }
}

fn moment(us: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_micros(us);
    humantime::format_rfc3339_seconds(time).to_string()
}

fn sentence(rule: &Rule) -> String {
    let (desired, usual) = (&rule.desired, ProfilerConfig::default());
    let mut text = format!(
        "service {}, profiler {}: {} samples per hour",
        rule.services, rule.profiler, desired.samples_per_hour
    );
    for (what, value, usual) in [
        ("runs of at least (s)", desired.run_min_s, usual.run_min_s),
        ("runs of at most (s)", desired.run_max_s, usual.run_max_s),
        (
            "probability of at least",
            desired.run_probability_min,
            usual.run_probability_min,
        ),
        ("at least (Hz)", desired.frequency_min_hz, usual.frequency_min_hz),
        ("at most (Hz)", desired.frequency_max_hz, usual.frequency_max_hz),
    ] {
        if value != usual {
            text += &format!(", {what} {value}");
        }
    }
    if !rule.team.is_empty() {
        text += &format!(", team {}", rule.team);
    }
    text
}

#[derive(Default)]
struct Reading {
    fleet: Fleet,
    limits: usize,
    errors: Vec<ConfigError>,
    /// Where each entry stands that may be there once.
    seen: BTreeMap<String, (String, usize)>,
}

impl Reading {
    fn file(&mut self, file: &ConfigFile) {
        let (text, written) = match Text::read(&file.name, &file.text) {
            Ok(read) => read,
            Err(error) => return self.errors.push(error),
        };
        let whole_team = match written.team.is_empty() {
            true => Ok(()),
            false => name("team", &written.team),
        };
        if let Err(what) = whole_team {
            self.errors.push(text.wrong(0, what));
        }
        for entry in written.profile {
            let at = entry.span().start;
            let place = (text.name.to_owned(), text.line(at));
            let taken = rule(entry.into_inner(), &written.team, place.clone())
                .and_then(|rule| {
                    self.once(format!("{} of service {}", rule.profiler, rule.services), place)
                        .map(|()| rule)
                })
                .and_then(|rule| self.team(&rule).map(|()| rule));
            match taken {
                Ok(rule) => self.fleet.rules.push(rule),
                Err(what) => self.errors.push(text.wrong(at, what)),
            }
        }
        for entry in written.limit {
            let at = entry.span().start;
            let place = (text.name.to_owned(), text.line(at));
            self.limits += 1;
            if let Err(what) = self.limit(entry.into_inner(), place) {
                self.errors.push(text.wrong(at, what));
            }
        }
        for entry in written.lift {
            let at = entry.span().start;
            let place = (text.name.to_owned(), text.line(at));
            if let Err(what) = self.lift(entry.into_inner(), place) {
                self.errors.push(text.wrong(at, what));
            }
        }
    }

    /// Notes something that may be said once.
    fn once(&mut self, what: String, place: (String, usize)) -> Result<(), String> {
        if let Some((file, line)) = self.seen.get(&what) {
            return Err(format!(
                "{what} is said already at {file}:{line}: leave one of them"
            ));
        }
        self.seen.insert(what, place);
        Ok(())
    }

    /// Notes whose service it is.
    fn team(&mut self, rule: &Rule) -> Result<(), String> {
        let (Pattern::Exactly(service), false) = (&rule.services, rule.team.is_empty()) else {
            return Ok(());
        };
        let known = self
            .fleet
            .limits
            .team_of
            .insert(service.clone(), rule.team.clone());
        match known.filter(|known| *known != rule.team) {
            Some(known) => Err(format!(
                "service {service} is of team {known} elsewhere, and of {} here",
                rule.team
            )),
            None => Ok(()),
        }
    }

    fn limit(&mut self, written: WrittenLimit, place: (String, usize)) -> Result<(), String> {
        let limit = LimitConfig {
            samples: written.samples_per_hour,
            bus_bytes: written.bus_bytes_per_hour,
            stored_bytes: written.stored_bytes_per_hour,
            lifted_until_us: 0,
        };
        if limit == LimitConfig::default() {
            return Err(
                "it limits nothing: give it `samples_per_hour`, `bus_bytes_per_hour` or `stored_bytes_per_hour`".into(),
            );
        }
        let limits = &mut self.fleet.limits;
        let (whose, slot) = match (written.service, written.team, written.each, written.fleet) {
            (Some(service), None, false, false) => {
                name("service", &service)?;
                if service.contains('*') {
                    return Err(
                        "a limit is of one `service`, of a `team`, of `each` service, or of the `fleet`"
                            .into(),
                    );
                }
                let whose = format!("the limit of service {service}");
                (whose, limits.services.entry(service).or_default())
            }
            (None, Some(team), false, false) => {
                name("team", &team)?;
                (
                    format!("the limit of team {team}"),
                    limits.teams.entry(team).or_default(),
                )
            }
            (None, None, true, false) => ("the limit of each service".to_owned(), &mut limits.service),
            (None, None, false, true) => ("the limit of the fleet".to_owned(), &mut limits.fleet),
            _ => {
                return Err(
                    "say of what it is, and of one thing alone: `service`, `team`, `each = true` or `fleet = true`".into(),
                );
            }
        };
        // A lift of the same service may stand before it.
        *slot = LimitConfig {
            lifted_until_us: slot.lifted_until_us,
            ..limit
        };
        self.fleet.limits.limits().map_err(|error| error.to_string())?;
        self.once(whose, place)
    }

    fn lift(&mut self, written: WrittenLift, place: (String, usize)) -> Result<(), String> {
        name("service", &written.service)?;
        if written.service.contains('*') {
            return Err("a lift is of one service: name it".into());
        }
        if written.why.trim().is_empty() {
            return Err("`why` is empty: say why the limit is lifted".into());
        }
        let until = humantime::parse_rfc3339_weak(&written.until);
        let until = until
            .ok()
            .and_then(|until| until.duration_since(std::time::UNIX_EPOCH).ok());
        let until = until.ok_or_else(|| {
            format!(
                "`until` `{}` is no moment: `2026-12-01T12:00:00Z` is one",
                written.until
            )
        })?;
        self.once(format!("the lift of service {}", written.service), place)?;
        let until_us = until.as_micros() as u64;
        let limits = &mut self.fleet.limits;
        limits
            .services
            .entry(written.service.clone())
            .or_default()
            .lifted_until_us = until_us;
        self.fleet.lifts.push(Lift {
            service: written.service,
            until_us,
            why: written.why,
        });
        Ok(())
    }
}

fn rule(written: WrittenProfile, team: &str, place: (String, usize)) -> Result<Rule, String> {
    let usual = ProfilerConfig::default();
    let seconds = |time: Option<std::time::Duration>, usual| time.map_or(usual, |time| time.as_secs_f64());
    let desired = ProfilerConfig {
        samples_per_hour: written.samples_per_hour,
        slot_s: usual.slot_s,
        run_probability_min: written.run_probability_min.unwrap_or(usual.run_probability_min),
        run_min_s: seconds(written.run_min, usual.run_min_s),
        run_max_s: seconds(written.run_max, usual.run_max_s),
        frequency_min_hz: written.frequency_min_hz.unwrap_or(usual.frequency_min_hz),
        frequency_max_hz: written.frequency_max_hz.unwrap_or(usual.frequency_max_hz),
    };
    desired.desired(1.0).map_err(|error| error.to_string())?;
    name("profiler", &written.profiler)?;
    let team = written.team.unwrap_or_else(|| team.to_owned());
    if !team.is_empty() {
        name("team", &team)?;
    }
    Ok(Rule {
        team,
        services: Pattern::parse(&written.service)?,
        profiler: written.profiler,
        desired,
        place,
    })
}

fn name(what: &str, text: &str) -> Result<(), String> {
    let fits = (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(format!(
            "`{what}` must be 1 to {NAME_BYTES_MAX} bytes of printable text"
        )),
    }
}
