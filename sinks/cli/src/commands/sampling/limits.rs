//! `strobe sampling limit` and `lift`: what may pass in an hour, and who may pass more for a while.

use serde_json::json;
use strobe_bus::BusSettings;
use strobe_event::AuditAction;
use strobe_sampling::config::{LimitConfig, LimitsConfig, NAME};
use strobe_sampling::slot::HOUR_US;

use super::{configured, put};
use crate::auditing::changed;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::{now_us, shown};

/// Longest time for which a limit can be lifted: what takes longer is another limit.
const LIFT_MAX_US: u64 = 7 * 24 * HOUR_US;

/// Whose limit, and what it is. Without any, the limits in force are shown.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe sampling limit\n  strobe sampling limit --each --samples 100000\n  strobe sampling limit \
                        --service orders --samples 20000\n  strobe sampling limit --team payments --samples 500000 --member \
                        orders --member ledger\n  strobe sampling limit --fleet --stored-bytes 2e9\n  strobe sampling limit \
                        --service orders --none"
)]
pub struct LimitArgs {
    /// Of every service that has no limit of its own.
    #[arg(long, group = "whose")]
    each: bool,
    /// Of this service.
    #[arg(long, group = "whose", value_name = "SERVICE")]
    service: Option<String>,
    /// Of this team: all of its services together.
    #[arg(long, group = "whose", value_name = "TEAM")]
    team: Option<String>,
    /// Of all services together.
    #[arg(long, group = "whose")]
    fleet: bool,
    /// Most samples per hour.
    #[arg(long, value_name = "N", requires = "whose")]
    samples: Option<f64>,
    /// Most bytes per hour to the bus.
    #[arg(long, value_name = "BYTES", requires = "whose")]
    bus_bytes: Option<f64>,
    /// Most bytes per hour to storage.
    #[arg(long, value_name = "BYTES", requires = "whose")]
    stored_bytes: Option<f64>,
    /// A service of the team; repeat it for more.
    #[arg(long, value_name = "SERVICE", requires = "team")]
    member: Vec<String>,
    /// Take the limit away.
    #[arg(long, requires = "whose", conflicts_with_all = ["samples", "bus_bytes", "stored_bytes", "member"])]
    none: bool,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Whose limit is lifted, and for how long.
#[derive(clap::Args)]
#[command(
    after_help = "What stays of samples is fixed before the hour that it applies to: lifting begins with the next full \
                        hour.\nThe limits of the service's team and of the fleet stay in force: they are theirs to lift.\n\n\
                        EXAMPLES\n  strobe sampling lift orders --for 2h\n  strobe sampling lift orders --for 0s"
)]
pub struct LiftArgs {
    /// The service.
    service: String,
    /// For how long, from the next full hour on; `0s` ends it.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: std::time::Duration,
}

/// Sets a limit, or shows all.
///
/// # Errors
/// [`CliError`].
pub fn limit(bus: &BusSettings, args: &LimitArgs) -> Result<(), CliError> {
    let mut config = configured(bus)?;
    let limits = &mut config.limits;
    if !(args.each || args.fleet || args.service.is_some() || args.team.is_some()) {
        return show(limits, args.output);
    }
    let (whose, now) = set(limits, args)?;
    put(bus, config)?;
    let said = match now {
        Some(limit) => format!("{whose}: {} from the next full hour on", words(&limit)),
        None => format!("{whose}: no limit from the next full hour on"),
    };
    let service = args.service.as_deref().unwrap_or_default();
    changed(bus, AuditAction::Limit, NAME, service, &said);
    render::say(said)
}

/// Lifts a limit.
///
/// # Errors
/// [`CliError`].
pub fn lift(bus: &BusSettings, args: &LiftArgs) -> Result<(), CliError> {
    let mut config = configured(bus)?;
    let (from_us, until_us) = lifted(args.time, now_us())?;
    let limits = &mut config.limits;
    if !limits.services.contains_key(&args.service) && limits.service == LimitConfig::default() {
        return Err(CliError::Usage(format!(
            "`{}` has no limit that could be lifted: `strobe sampling limit` shows those that are set",
            args.service
        )));
    }
    let own = limits.services.entry(args.service.clone()).or_default();
    own.lifted_until_us = until_us;
    put(bus, config)?;
    let said = match from_us < until_us {
        true => format!(
            "the limit of `{}` is lifted from {} until {}; those of its team and of the fleet stay in force",
            args.service,
            shown(from_us),
            shown(until_us)
        ),
        false => format!(
            "the limit of `{}` is in force again from {} on",
            args.service,
            shown(from_us)
        ),
    };
    changed(bus, AuditAction::Lift, NAME, &args.service, &said);
    render::say(said)
}

/// Returns from when until when a limit is lifted that is lifted now for `time`.
fn lifted(time: std::time::Duration, now_us: u64) -> Result<(u64, u64), CliError> {
    let from_us = (now_us / HOUR_US + 1) * HOUR_US;
    let for_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    if for_us > LIFT_MAX_US {
        return Err(CliError::Usage(
            "a limit is lifted for 7 days at most: for longer, set another with `strobe sampling limit`"
                .to_owned(),
        ));
    }
    Ok((from_us, from_us + for_us))
}

/// Puts the limit in its place; returns whose it is, in words, and what it is now.
fn set(limits: &mut LimitsConfig, args: &LimitArgs) -> Result<(String, Option<LimitConfig>), CliError> {
    if !args.none
        && args.samples.is_none()
        && args.bus_bytes.is_none()
        && args.stored_bytes.is_none()
        && args.member.is_empty()
    {
        return Err(CliError::Usage(
            "what is the limit? Give `--samples`, `--bus-bytes` or `--stored-bytes`, or take it away with `--none`".to_owned(),
        ));
    }
    let change = |limit: &mut LimitConfig| {
        if args.none {
            *limit = LimitConfig {
                lifted_until_us: limit.lifted_until_us,
                ..LimitConfig::default()
            };
        }
        limit.samples = args.samples.or(limit.samples);
        limit.bus_bytes = args.bus_bytes.or(limit.bus_bytes);
        limit.stored_bytes = args.stored_bytes.or(limit.stored_bytes);
        (!args.none).then_some(*limit)
    };
    if let Some(service) = &args.service {
        let now = change(limits.services.entry(service.clone()).or_default());
        if args.none {
            limits.services.remove(service);
        }
        return Ok((format!("service `{service}`"), now));
    }
    if let Some(team) = &args.team {
        let now = change(limits.teams.entry(team.clone()).or_default());
        if args.none {
            limits.teams.remove(team);
            limits.team_of.retain(|_, of| of != team);
        }
        for member in &args.member {
            limits.team_of.insert(member.clone(), team.clone());
        }
        return Ok((format!("team `{team}`"), now));
    }
    Ok(match args.each {
        true => (
            "every service without a limit of its own".to_owned(),
            change(&mut limits.service),
        ),
        false => ("the fleet".to_owned(), change(&mut limits.fleet)),
    })
}

fn words(limit: &LimitConfig) -> String {
    let parts = [
        (limit.samples, "samples"),
        (limit.bus_bytes, "bytes to the bus"),
        (limit.stored_bytes, "bytes to storage"),
    ];
    let said: Vec<String> = parts
        .iter()
        .filter_map(|(most, of)| Some(format!("{:.0} {of}", (*most)?)))
        .collect();
    match said.is_empty() {
        true => "no number of its own".to_owned(),
        false => format!("at most {} per hour", said.join(", ")),
    }
}

fn show(limits: &LimitsConfig, output: Output) -> Result<(), CliError> {
    let rows: Vec<(String, String, &LimitConfig)> =
        [("each", "", &limits.service), ("fleet", "", &limits.fleet)]
            .into_iter()
            .map(|(whose, name, limit)| (whose.to_owned(), name.to_owned(), limit))
            .chain(
                limits
                    .teams
                    .iter()
                    .map(|(name, limit)| ("team".to_owned(), name.clone(), limit)),
            )
            .chain(
                limits
                    .services
                    .iter()
                    .map(|(name, limit)| ("service".to_owned(), name.clone(), limit)),
            )
            .collect();
    let members = |team: &str| -> Vec<&str> {
        let members = limits.team_of.iter().filter(|(_, of)| *of == team);
        members.map(|(service, _)| service.as_str()).collect()
    };
    if output == Output::Json {
        let rows = rows.iter().map(|(whose, name, limit)| {
            json!({
                "whose": whose, "name": name, "samples": limit.samples, "bus_bytes": limit.bus_bytes,
                "stored_bytes": limit.stored_bytes, "lifted_until_us": limit.lifted_until_us,
                "members": if whose == "team" { members(name) } else { Vec::new() },
            })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    let columns = [
        ("whose", false),
        ("name", false),
        ("samples/h", true),
        ("bus bytes/h", true),
        ("stored bytes/h", true),
        ("note", false),
    ];
    let number = |most: Option<f64>| most.map_or_else(|| "-".to_owned(), |most| format!("{most:.0}"));
    let now_us = now_us();
    let rows = rows.iter().map(|(whose, name, limit)| {
        let note = match (whose.as_str(), limit.lifted_until_us) {
            ("team", _) => members(name).join(", "),
            (_, until_us) if until_us > now_us => format!("lifted until {}", shown(until_us)),
            _ => String::new(),
        };
        vec![
            whose.clone(),
            name.clone(),
            number(limit.samples),
            number(limit.bus_bytes),
            number(limit.stored_bytes),
            note,
        ]
    });
    render::say(render::table(&columns, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a limit is lifted from the next full hour on, as nothing changes within one, and not for ever.
    #[test]
    fn lifting_begins_with_an_hour_and_ends() {
        let now_us = 490_000 * HOUR_US + 17;
        let (from_us, until_us) = lifted(std::time::Duration::from_secs(7_200), now_us).unwrap();
        assert_eq!((from_us, until_us), (490_001 * HOUR_US, 490_003 * HOUR_US));
        assert!(lifted(std::time::Duration::from_secs(8 * 86_400), now_us).is_err());
    }
}
