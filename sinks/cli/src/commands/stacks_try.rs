//! `strobe stacks try`: what schemas would do to samples that are stored.

use std::sync::Arc;

use serde_json::json;
use strobe_explore::Explorer;
use strobe_stack_schema::{Context, Library, Location, Program, Trial, TrialReport};

use crate::commands::stacks::{Files, refused};
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
                  team.stacks --enable team -o json"
)]
pub struct Args {
    #[command(flatten)]
    files: Files,
    /// Enable these alone; the others are there to be included. All are enabled otherwise.
    #[arg(long, value_name = "NAME")]
    enable: Vec<String>,
    #[command(flatten)]
    selection: selection::Args,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Tries schemas, and prints what came out. Nothing is changed.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let library = Library::parse(&args.files.sources()?).map_err(refused)?;
    let all: Vec<&str> = library.schemas().map(|schema| &*schema.name).collect();
    let enabled: Vec<&str> = match args.enable.is_empty() {
        true => all,
        false => args.enable.iter().map(String::as_str).collect(),
    };
    let program = Arc::new(Program::compile(&library, &enabled).map_err(refused)?);
    let mut trial = Trial::new(program);
    let selection = args.selection.selection()?;
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let mut unknown = 0.0;
    wait(async {
        for hour in hours(&selection) {
            let stored = explorer.taggable(&hour).await?;
            unknown += stored.unknown;
            for stack in &stored.stacks {
                let known = values(stack);
                let value = |wanted: &str| {
                    known
                        .iter()
                        .find(|(name, _)| *name == wanted)
                        .map_or("", |found| found.1)
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
                let locations: Vec<Location<'_>> = stack
                    .frames
                    .iter()
                    .flat_map(|&frame| locations(&stored, frame))
                    .collect();
                trial.add(&locations, &context, stack.weight);
            }
        }
        Ok(())
    })?;
    let report = trial.report();
    if report.total <= 0.0 {
        return Err(render::nothing(selection.range));
    }
    match args.output {
        Output::Json => render::json(&as_json(&report, unknown)),
        Output::Table => as_table(&report, unknown),
    }
}

fn as_json(report: &TrialReport, unknown: f64) -> serde_json::Value {
    let shares = |list: &[(String, f64)]| -> Vec<_> {
        list.iter()
            .map(|(tag, share)| json!({"tag": tag, "share": share}))
            .collect()
    };
    json!({
        "weight": report.total, "weight_not_stored": unknown, "untagged_share": report.untagged,
        "hidden_share": report.hidden, "frames_left_out_share": report.frames_left_out,
        "frames_renamed_share": report.frames_renamed, "tags": shares(&report.tags),
        "frame_tags": shares(&report.frame_tags),
    })
}

fn as_table(report: &TrialReport, unknown: f64) -> Result<(), CliError> {
    let share = |share: f64| render::per_cent(share, 1.0);
    for (what, list) in [("tag", &report.tags), ("tag of frames", &report.frame_tags)] {
        if list.is_empty() {
            continue;
        }
        let rows = list.iter().map(|(tag, part)| vec![share(*part), tag.clone()]);
        render::say(render::table(&[("share", true), (what, false)], rows))?;
    }
    render::say(format!(
        "\n{} of the time has no tag; {} of frames are left out, {} renamed; {} is hidden whole",
        share(report.untagged),
        share(report.frames_left_out),
        share(report.frames_renamed),
        share(report.hidden)
    ))?;
    if unknown > 0.0 {
        let part = render::per_cent(unknown, unknown + report.total);
        render::say(format!(
            "{part} of the time could not be tried: its stacks are not stored"
        ))?;
    }
    Ok(())
}
