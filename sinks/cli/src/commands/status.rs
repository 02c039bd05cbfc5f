//! `strobe status`: runs, lag, both sides of the accounting, and how stacks ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;
use strobe_bus::dead_letter;
use strobe_bus::lag::group_lag;
use strobe_bus::{BusSettings, Topic};
use strobe_explore::{Explorer, HostEpochs, RunStatus, ServiceEnds, StackEnds, Status};

use crate::commands::wait;
use crate::config::Config;
use crate::error::{CliError, with_causes};
use crate::render::{self, Output};
use crate::times::{self, shown};

/// Longest wait for the broker's answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Dead letters looked at, of each topic.
const LETTERS_MAX: usize = 10_000;
/// Pause between two looks while waiting.
const LOOK: Duration = Duration::from_millis(250);
/// Hosts that were heard of so long before the moment that is waited for are waited for.
const ALIVE_US: u64 = 60_000_000;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe status\n  strobe status --since -1h -o json | jq '.sum'\n  strobe status \
                        --wait-until now --timeout 30s"
)]
pub struct Args {
    /// Runs with a sign of life since then.
    #[arg(long, default_value = "-1h", allow_hyphen_values = true)]
    since: String,
    /// Runs shown.
    #[arg(long, default_value_t = 10)]
    limit: usize,
    /// First wait until all that was sampled before this moment is stored.
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    wait_until: Option<String>,
    /// Longest wait.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    timeout: Duration,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// How far a service is behind on a topic.
struct Behind {
    service: &'static str,
    topic: String,
    messages: Result<u64, strobe_bus::Error>,
}

/// What lies among the dead letters.
#[derive(Default)]
struct Letters {
    /// By (topic, reason): messages and samples.
    by_reason: BTreeMap<(String, String), (u64, u64)>,
    /// Samples of each run; a batch that died twice counts once.
    of_runs: BTreeMap<String, u64>,
}

/// Prints the status.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let now = times::now_us();
    if let Some(moment) = &args.wait_until {
        let moment = times::moment(moment, now).map_err(CliError::Usage)?;
        wait(until_stored(&explorer, moment, args.timeout))?;
    }
    let since = times::moment(&args.since, now).map_err(CliError::Usage)?;
    // A store whose tables are older, or too busy for it, may not say how stacks ended, and says the rest.
    let (mut status, ends) =
        wait(async { Ok((explorer.status(since).await?, explorer.stack_ends(since).await)) })?;
    let bus = config.bus()?;
    let behind = behind(config, &bus);
    let letters = letters(&bus);
    if let Ok(letters) = &letters {
        for run in &mut status.runs {
            run.set_aside(letters.of_runs.get(&run.run).copied().unwrap_or(0));
        }
    }
    match args.output {
        Output::Json => render::json(&as_json(&status, &ends, &behind, &letters))?,
        Output::Table => {
            as_table(&status, &behind, &letters, args.limit)?;
            match &ends {
                Ok(ends) => ends_as_table(ends, args.limit)?,
                Err(error) => {
                    let error = with_causes(error);
                    render::say(format!("whole stacks: not known: {error}"))?;
                }
            }
        }
    }
    // Half an answer is an answer, and no success.
    letters?;
    ends?;
    behind
        .into_iter()
        .try_for_each(|behind| behind.messages.map(drop))?;
    Ok(())
}

/// Waits until every host that was alive at `moment_us` has a stored batch that ends later.
async fn until_stored(explorer: &Explorer, moment_us: u64, timeout: Duration) -> Result<(), CliError> {
    let deadline = Instant::now() + timeout;
    // Numbers only: nothing that anybody typed is in the statement.
    let sql = format!(
        "SELECT count(), countIf(last < {moment_us}) FROM (SELECT host, toUnixTimestamp64Micro(max(end_time)) AS last FROM \
         batches WHERE end_time >= fromUnixTimestamp64Micro({}) GROUP BY host)",
        moment_us.saturating_sub(ALIVE_US)
    );
    loop {
        let table = explorer.query(&sql).await?;
        let number = |at: usize| {
            let value = table.rows.first().and_then(|row| row.get(at));
            value
                .and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()))
                .unwrap_or(0)
        };
        if number(0) > 0 && number(1) == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(CliError::NotStored(timeout));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn behind(config: &Config, bus: &BusSettings) -> Vec<Behind> {
    let groups = [
        ("processor", &config.processor.group, Topic::StacksRaw),
        ("sink", &config.sink.group, Topic::Samples),
        ("sink", &config.sink.group, Topic::Runs),
        ("sink", &config.sink.group, Topic::Coverage),
        ("tuner", &config.tuner.group, Topic::Coverage),
    ];
    let ask = |(service, group, topic): (&'static str, &String, Topic)| {
        let topic = bus.topic(topic);
        let lag = group_lag(bus, group, &topic, ANSWER);
        // Tuning is for those who desire a rate: a tuner that never ran is not behind.
        let never = |lag: &Vec<strobe_bus::consumer::Lag>| lag.iter().all(|lag| lag.committed.is_none());
        if service == "tuner" && lag.as_ref().is_ok_and(never) {
            return None;
        }
        let messages = lag.map(|lag| lag.iter().map(strobe_bus::consumer::Lag::messages).sum());
        Some(Behind {
            service,
            topic,
            messages,
        })
    };
    groups.into_iter().filter_map(ask).collect()
}

fn letters(bus: &BusSettings) -> Result<Letters, strobe_bus::Error> {
    let mut letters = Letters::default();
    let mut seen = BTreeSet::new();
    for topic in Topic::STREAMS {
        let topic = bus.topic(topic);
        for item in dead_letter::list(bus, &topic, LETTERS_MAX)? {
            let of_item = item.samples.unwrap_or(0);
            if let (Some(run), Some(meta)) = (item.run, &item.meta)
                && seen.insert(meta.identity.to_string())
            {
                *letters.of_runs.entry(run.to_string()).or_default() += of_item;
            }
            let reason = (topic.clone(), item.reason);
            let (messages, samples) = letters.by_reason.entry(reason).or_default();
            *messages += 1;
            *samples += of_item;
        }
    }
    Ok(letters)
}

fn sum(runs: &[RunStatus], of: impl Fn(&RunStatus) -> u64) -> u64 {
    runs.iter().map(of).sum()
}

fn as_json(
    status: &Status,
    ends: &Result<StackEnds, strobe_explore::Error>,
    behind: &[Behind],
    letters: &Result<Letters, strobe_bus::Error>,
) -> serde_json::Value {
    let runs = status.runs.iter().map(|run| {
        json!({
            "run": run.run, "host": run.host, "profiler": run.profiler, "cause": run.cause, "state": run.state,
            "first": shown(run.first_us), "last": shown(run.last_us), "taken": run.taken, "stored": run.stored,
            "spooled": run.spooled, "dropped": run.dropped, "set_aside": run.set_aside, "under_way": run.under_way(), "excess": run.excess(),
            "batches": run.batches, "batches_stored": run.batches_stored, "idle": run.idle, "detail": run.detail,
        })
    });
    let all = &status.runs;
    let letters = match letters {
        Ok(letters) => letters
            .by_reason
            .iter()
            .map(|((topic, reason), (messages, samples))| {
                json!({ "topic": topic, "reason": reason, "messages": messages, "samples": samples })
            })
            .collect(),
        Err(error) => json!({ "error": with_causes(error) }),
    };
    json!({
        "sum": {
            "runs": all.len(), "taken": sum(all, |run| run.taken), "stored": sum(all, |run| run.stored),
            "dropped": sum(all, RunStatus::dropped_total), "set_aside": sum(all, |run| run.set_aside),
            "under_way": sum(all, RunStatus::under_way),
            "excess": sum(all, RunStatus::excess),
        },
        "runs": runs.collect::<Vec<_>>(),
        "lag": behind.iter().map(|behind| json!({
            "service": behind.service, "topic": behind.topic, "messages": behind.messages.as_ref().ok(),
            "error": behind.messages.as_ref().err().map(|error| with_causes(error)),
        })).collect::<Vec<_>>(),
        "dead_letters": letters,
        "stacks": ends.as_ref().map_or_else(|error| json!({ "error": with_causes(error) }), |ends| json!(ends.services)),
        "stacks_cut": ends.as_ref().is_ok_and(|ends| ends.cut),
        "hosts_with_several_epochs_alive": status.hosts_with_several_epochs_alive, "cut": status.cut,
    })
}

fn as_table(
    status: &Status,
    behind: &[Behind],
    letters: &Result<Letters, strobe_bus::Error>,
    limit: usize,
) -> Result<(), CliError> {
    let all = &status.runs;
    let aside = match sum(all, |run| run.set_aside) {
        0 => String::new(),
        samples => format!(" + {samples} set aside (dead letters)"),
    };
    render::say(format!(
        "{} {}: {} samples taken = {} stored + {} dropped{aside} + {} under way",
        all.len(),
        if all.len() == 1 { "run" } else { "runs" },
        sum(all, |run| run.taken),
        sum(all, |run| run.stored),
        sum(all, RunStatus::dropped_total),
        sum(all, RunStatus::under_way)
    ))?;
    let excess = sum(all, RunStatus::excess);
    if excess > 0 {
        render::say(format!(
            "{excess} samples are accounted for and were never taken: this is a fault"
        ))?;
    }
    if status.cut {
        eprintln!("there are more runs than are looked at: the oldest are left out; --since asks for fewer");
    }
    let columns = [
        ("run", false),
        ("host", false),
        ("state", false),
        ("started", false),
        ("taken", true),
        ("stored", true),
        ("dropped", true),
        ("under way", true),
        ("why dropped", false),
    ];
    let rows = all.iter().take(limit).map(|run| {
        let reasons = run.dropped.iter().filter(|(_, samples)| **samples > 0);
        let reasons: Vec<String> = reasons
            .map(|(reason, samples)| format!("{reason} {samples}"))
            .collect();
        vec![
            run.run.chars().take(8).collect(),
            run.host.clone(),
            if run.state.is_empty() {
                "-".into()
            } else {
                run.state.clone()
            },
            shown(run.first_us),
            run.taken.to_string(),
            run.stored.to_string(),
            run.dropped_total().to_string(),
            run.under_way().to_string(),
            reasons.join(", "),
        ]
    });
    render::say(render::table(&columns, rows))?;
    if all.len() > limit {
        render::say(format!("{} more; --limit shows more", all.len() - limit))?;
    }
    for behind in behind {
        render::say(match &behind.messages {
            Ok(messages) => format!(
                "{} on {}: {messages} messages behind",
                behind.service, behind.topic
            ),
            Err(error) => {
                let error = with_causes(error);
                format!("{} on {}: not known: {error}", behind.service, behind.topic)
            }
        })?;
    }
    match letters {
        Err(error) => {
            let error = with_causes(error);
            render::say(format!("dead letters: not known: {error}"))?;
        }
        Ok(letters) if letters.by_reason.is_empty() => render::say("dead letters: none")?,
        Ok(letters) => {
            for ((topic, reason), (messages, samples)) in &letters.by_reason {
                render::say(format!(
                    "dead letters on {topic}: {messages} {reason}, {samples} samples"
                ))?;
            }
        }
    }
    status
        .hosts_with_several_epochs_alive
        .iter()
        .try_for_each(several)
}

/// Says how much of the samples has its whole stack, and which services lack how much of it.
fn ends_as_table(ends: &StackEnds, limit: usize) -> Result<(), CliError> {
    if ends.cut {
        eprintln!(
            "more services have samples than are looked at: some with few are left out; --since asks for fewer"
        );
    }
    let ends = &ends.services;
    let mut all = ServiceEnds::default();
    ends.iter().for_each(|service| all.add(service));
    if all.samples == 0 {
        return Ok(());
    }
    render::say(format!(
        "whole stacks: {} of {} samples{}",
        render::per_cent(all.complete as f64, all.samples as f64),
        all.samples,
        if all.cut.is_empty() {
            String::new()
        } else {
            format!(" (cut: {})", why_cut(&all))
        }
    ))?;
    let columns = [
        ("service", false),
        ("samples", true),
        ("whole", true),
        ("why cut", false),
    ];
    let rows = ends.iter().take(limit).map(|service| {
        vec![
            service.service.clone(),
            service.samples.to_string(),
            render::per_cent(service.complete as f64, service.samples as f64),
            why_cut(service),
        ]
    });
    render::say(render::table(&columns, rows))?;
    if ends.len() > limit {
        render::say(format!(
            "{} services more; --limit shows more",
            ends.len() - limit
        ))?;
    }
    Ok(())
}

/// Returns the reasons, the most frequent first.
fn why_cut(service: &ServiceEnds) -> String {
    let mut cut: Vec<_> = service.cut.iter().collect();
    cut.sort_by_key(|(_, samples)| std::cmp::Reverse(**samples));
    let share = |(end, samples): (&String, &u64)| {
        format!(
            "{end} {}",
            render::per_cent(*samples as f64, service.samples as f64)
        )
    };
    cut.into_iter().map(share).collect::<Vec<_>>().join(", ")
}

fn several(host: &HostEpochs) -> Result<(), CliError> {
    render::say(format!(
        "{} names {} spools that were alive at the same time: two agents with one host name, or a copied spool. Nothing is \
         lost or doubled; give each host a name of its own.",
        host.host,
        host.epochs.len()
    ))?;
    host.epochs.iter().try_for_each(|epoch| {
        let (first, last) = (shown(epoch.first_us), shown(epoch.last_us));
        render::say(format!(
            "  {}: {} batches, {first} to {last}",
            epoch.epoch, epoch.batches
        ))
    })
}
