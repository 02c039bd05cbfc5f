//! `strobe sampling explain`: why the plan of a service is as it is, and what comes next.

use std::collections::HashMap;

use strobe_bus::{BusSettings, Topic, compacted};
use strobe_event::{HostRecord, TunerRecord, codec};
use strobe_sampling::neighbours::Neighbours;

use super::{configured, states};
use crate::error::CliError;
use crate::render;
use crate::times::shown;

/// Says what is desired, observed and in force of a service, since when and why, and what the next window will do.
///
/// # Errors
/// [`CliError`].
pub fn explain(bus: &BusSettings, service: &str, profiler: &str) -> Result<(), CliError> {
    let states = states(bus)?;
    let state = states
        .iter()
        .find(|state| state.plan.service == service && state.plan.profiler == profiler);
    let Some(state) = state else {
        let desired = configured(bus)?
            .profilers
            .get(profiler)
            .map(|config| config.samples_per_hour);
        return Err(CliError::Usage(match desired {
            Some(rate) => format!(
                "no plan is in force for `{service}` and `{profiler}`: {rate:.0} samples per hour are desired; the tuner \
                 makes a plan when its hosts have reported a window of 5 minutes (is `strobe run tuner` running?)"
            ),
            None => format!(
                "nothing is desired of `{profiler}`: `strobe sampling set --profiler {profiler} --samples-per-hour N` says it"
            ),
        }));
    };
    let plan = &state.plan;
    let mut lines = vec![
        format!("{service}, {profiler}"),
        format!("  desired    {:.0} samples per hour", state.desired_per_hour),
        format!("  reached    {}", reach(state)),
        format!(
            "  in force   each slot runs with probability {:.6}, for {:.1} s at {:.1} Hz, since {}",
            plan.run_probability,
            plan.planned_us as f64 / 1e6,
            plan.frequency_hz,
            shown(plan.since_us)
        ),
        format!("  why        {}", plan.why),
        format!(
            "  observed   {:.0} samples per hour in the window from {}, on {} live hosts",
            state.observed_per_hour,
            shown(state.window_us),
            state.live_hosts
        ),
        format!(
            "  expected   {:.0} samples per hour, on average over the day to come",
            state.expected_per_hour
        ),
    ];
    lines.extend(shared(bus, &states, state)?);
    if plan.keep < 1.0 || plan.keep_before < 1.0 {
        lines.push(format!(
            "  limits     {:.1} % of the samples stay since {}, {:.1} % before",
            100.0 * plan.keep,
            shown(plan.keep_since_us),
            100.0 * plan.keep_before
        ));
    }
    for host in &state.doubted {
        lines.push(format!(
            "  doubted    {host}: a host is believed up to ten times the median"
        ));
    }
    for host in &state.same_name {
        lines.push(format!(
            "  same name  {host} reports more slots than an hour has: give each host a name of its own"
        ));
    }
    lines.push(format!("  next       {}", next(state)));
    render::say(lines.join("\n"))
}

fn reach(state: &TunerRecord) -> String {
    match state.reachable_per_hour {
        0.0 => "yes".into(),
        most if most < state.desired_per_hour => {
            format!("no: {most:.0} per hour at most, though every slot of every host runs")
        }
        least => format!("{least:.0} per hour at least: q, duration and frequency are at their lowest"),
    }
}

/// Returns why more comes than is desired, where a service shares hosts with others that need more.
fn shared(
    bus: &BusSettings,
    states: &[TunerRecord],
    state: &TunerRecord,
) -> Result<Option<String>, CliError> {
    let plans = states.iter().map(|state| &state.plan);
    let strengths: HashMap<&str, f64> = plans
        .filter(|plan| plan.profiler == state.plan.profiler)
        .map(|plan| {
            let seconds = plan.planned_us as f64 / 1e6;
            let strength = plan.run_probability * seconds * plan.frequency_hz;
            (plan.service.as_str(), strength)
        })
        .collect();
    let hosts = compacted::read_all(bus, &bus.topic(Topic::Hosts))?;
    let hosts: Vec<HostRecord> = hosts
        .values()
        .filter_map(|value| codec::decode_framed(value).ok())
        .collect();
    let services = hosts.iter().map(|host| host.services.as_slice());
    let found = Neighbours::of(&state.plan.service, services, &strengths);
    if found.led.is_empty() {
        return Ok(None);
    }
    let led: Vec<String> = found
        .led
        .iter()
        .map(|(service, count)| format!("`{service}` on {count}"))
        .collect();
    Ok(Some(format!(
        "  shared     a host follows the strongest plan of its services: of {} hosts, that of {}; so {:.1} times as many samples come as \
         by this plan. Weights undo it; who wants fewer sets a limit (`strobe sampling limit`)",
        found.hosts,
        led.join(", of "),
        found.times
    )))
}

/// Returns what the tuner will do with the next window: asked of itself, with a window like the last.
fn next(state: &TunerRecord) -> String {
    let tuner: Result<strobe_sampling::tuner::Tuner, _> = serde_json::from_str(&state.state);
    let Ok(tuner) = tuner else {
        return "the state of the tuner cannot be read: it begins anew".into();
    };
    let history = tuner.history();
    match history.busy() {
        Some((busy, runs)) if history.is_whole() => format!(
            "{busy:.2} busy CPUs per host are believed, from {runs:.0} runs over a day; q follows at each full hour, or at \
             once when load or hosts change beyond chance"
        ),
        Some((busy, runs)) => format!(
            "{busy:.2} busy CPUs per host are believed, from {runs:.0} runs of the first day; q follows with each window \
             once 100 runs are known"
        ),
        None => "no run was seen yet: q is raised each hour until one is".into(),
    }
}
