//! `strobe stacks try`: what schemas would do to samples that are stored, beside what those in force do.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use strobe_explore::{Explorer, TagStack};
use strobe_processor::schemas::{self, Files as OnBus};
use strobe_stack_schema::model::Subject;
use strobe_stack_schema::{Context, Library, Location, Program, Trial, TrialReport};

use crate::commands::stacks::{Files, refused};
use crate::commands::stacks_on_bus::{Enable, files_of};
use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::selection;
use crate::tagging::{hours, locations, values};

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  strobe stacks try team.stacks --since -1h --service checkout\n  strobe stacks try shared.stacks \
                  team.stacks --enable team -o json\n  strobe stacks try team.stacks --alone\n\nThe schemas are tried together \
                  with those in force, as `strobe stacks apply` would add or replace them: `now` is what those in force \
                  give, `then` what would be given. Nothing is changed."
)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    enable: Enable,
    /// Try them without the schemas in force, and without asking the bus for those.
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    selection: selection::Args,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// What came out.
struct Tried {
    /// By the schemas in force; nothing where they were not asked.
    now: Option<TrialReport>,
    /// By those that would be.
    then: TrialReport,
    /// Weight of samples whose stacks are not stored.
    unknown: f64,
}

/// Tries schemas, and prints what came out. Nothing is changed.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let library = Library::parse(&args.files.sources()?).map_err(refused)?;
    let mut together = match args.alone {
        true => OnBus::default(),
        false => schemas::on_bus(&config.bus()?)?,
    };
    let now = (!args.alone).then(|| together.compile()).transpose()?;
    for file in files_of(&library, &args.enable)? {
        together.put(file)?;
    }
    let then = together.compile()?;
    let asks_host = |program: &Arc<Program>| program.subjects().contains(&Subject::Host);
    // Stored contexts are of all hosts together where no schema asked for the host; samples know theirs.
    let per_host = asks_host(&then) || now.as_ref().is_some_and(asks_host);
    let (mut now, mut then) = (now.map(Trial::new), Trial::new(then));
    let selection = args.selection.selection()?;
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let mut unknown = 0.0;
    wait(async {
        let contexts = explorer.context_values().await?;
        for hour in hours(&selection) {
            let stored = explorer.taggable(&hour, &contexts, per_host).await?;
            unknown += stored.unknown;
            for stack in &stored.stacks {
                let locations: Vec<Location<'_>> = stack
                    .frames
                    .iter()
                    .flat_map(|&frame| locations(&stored, frame))
                    .collect();
                for trial in now.iter_mut().chain([&mut then]) {
                    add(trial, stack, &locations);
                }
            }
        }
        Ok(())
    })?;
    let tried = Tried {
        now: now.map(|now| now.report()),
        then: then.report(),
        unknown,
    };
    if tried.then.total <= 0.0 {
        return Err(render::nothing(selection.range));
    }
    match args.output {
        Output::Json => render::json(&as_json(&tried)),
        Output::Table => as_table(&tried),
    }
}

fn add(trial: &mut Trial, stack: &TagStack, locations: &[Location<'_>]) {
    let known = values(stack);
    let value = |wanted: &str| {
        let found = known.iter().find(|(name, _)| *name == wanted);
        found.map_or("", |found| found.1)
    };
    let named = |prefix: &str| -> Vec<(&str, &str)> {
        let found = known.iter();
        found
            .filter_map(|&(name, value)| Some((name.strip_prefix(prefix)?, value)))
            .collect()
    };
    let context = Context {
        service: value("service"),
        profiler: value("profiler"),
        region: value("region"),
        host: value("host"),
        labels: &named("label "),
        annotations: &named("annotation "),
    };
    trial.add(locations, &context, stack.weight);
}

fn report(report: &TrialReport) -> serde_json::Value {
    let shares = |list: &[(String, f64)]| -> Vec<_> {
        list.iter()
            .map(|(tag, share)| json!({"tag": tag, "share": share}))
            .collect()
    };
    json!({
        "weight": report.total, "untagged_share": report.untagged, "hidden_share": report.hidden,
        "frames_left_out_share": report.frames_left_out, "frames_renamed_share": report.frames_renamed,
        "tags": shares(&report.tags), "frame_tags": shares(&report.frame_tags),
    })
}

fn as_json(tried: &Tried) -> serde_json::Value {
    let mut answer = report(&tried.then);
    answer["weight_not_stored"] = json!(tried.unknown);
    answer["now"] = tried.now.as_ref().map_or(serde_json::Value::Null, report);
    answer
}

fn as_table(tried: &Tried) -> Result<(), CliError> {
    let share = |share: f64| render::per_cent(share, 1.0);
    let nothing = Vec::new();
    let (now, then) = (tried.now.as_ref(), &tried.then);
    for (what, before, after) in [
        ("tag", now.map(|now| &now.tags), &then.tags),
        ("tag of frames", now.map(|now| &now.frame_tags), &then.frame_tags),
    ] {
        let mut all: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
        for (side, list) in [before.unwrap_or(&nothing), after].into_iter().enumerate() {
            for (tag, part) in list {
                all.entry(tag).or_default()[side] = *part;
            }
        }
        if all.is_empty() {
            continue;
        }
        let mut all: Vec<(&str, [f64; 2])> = all.into_iter().collect();
        all.sort_by(|a, b| b.1[1].total_cmp(&a.1[1]).then(b.1[0].total_cmp(&a.1[0])));
        let table = match before.is_some() {
            true => {
                let rows = all
                    .iter()
                    .map(|(tag, [now, then])| vec![share(*now), share(*then), (*tag).to_owned()]);
                render::table(&[("now", true), ("then", true), (what, false)], rows)
            }
            false => {
                let rows = all
                    .iter()
                    .map(|(tag, [_, then])| vec![share(*then), (*tag).to_owned()]);
                render::table(&[("share", true), (what, false)], rows)
            }
        };
        render::say(table)?;
    }
    let said = |of: fn(&TrialReport) -> f64| match now {
        Some(now) if share(of(now)) != share(of(then)) => {
            format!("{} (now {})", share(of(then)), share(of(now)))
        }
        _ => share(of(then)),
    };
    render::say(format!(
        "\n{} of the time has no tag; {} of frames are left out, {} renamed; {} is hidden whole",
        said(|report| report.untagged),
        said(|report| report.frames_left_out),
        said(|report| report.frames_renamed),
        said(|report| report.hidden)
    ))?;
    if tried.unknown > 0.0 {
        let part = render::per_cent(tried.unknown, tried.unknown + then.total);
        render::say(format!(
            "{part} of the time could not be tried: its stacks are not stored"
        ))?;
    }
    Ok(())
}
