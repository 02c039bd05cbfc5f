//! `strobe retag`: what is stored, tagged anew by the stack schemas in force.

use std::collections::{BTreeMap, HashSet};

use serde_json::json;
use strobe_event::tags::OUTCOME_ENTRIES_MAX;
use strobe_event::{ContextKey, Generation};
use strobe_explore::{Explorer, TagStack, Taggable};
use strobe_processor::schemas;
use strobe_processor::tag::{MEMORY_BYTES, Tagger};
use strobe_sink::{TagRow, TagRows, write_tags};

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::tagging::{hours, locations, values};
use crate::times;

/// Microseconds of a day.
const DAY_US: u64 = 86_400_000_000;

/// Stacks that are tagged and written at a time: blocks of some megabytes.
const STACKS_PER_INSERT: usize = 4_096;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  strobe retag --since -1h\n  strobe retag --since -7d --service orders\n\nRows of tags are added \
                  and count instead of those before; samples and weights are not touched, and doing it twice changes nothing."
)]
pub struct Args {
    /// From when: `-15m`, `now-1h` or RFC 3339.
    #[arg(long, allow_hyphen_values = true)]
    since: String,
    /// Until when.
    #[arg(long, default_value = "now", allow_hyphen_values = true)]
    until: String,
    /// Only this service.
    #[arg(long)]
    service: Option<String>,
    /// Profiler.
    #[arg(long, default_value = "cpu")]
    profiler: String,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// What was done.
#[derive(Debug, Default)]
struct Done {
    /// Stacks in contexts.
    rows: u64,
    /// Those that have a tag.
    tagged: u64,
    /// Weight of samples whose stack is not stored any more.
    unknown: f64,
}

/// Tags anew.
///
/// # Errors
/// [`CliError`]; what was written before it stays, and the same command may be given again.
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let now = times::now_us();
    let moment = |text: &str| times::moment(text, now).map_err(CliError::Usage);
    let mut selection = strobe_explore::Selection::new(moment(&args.since)?, moment(&args.until)?);
    selection.profiler.clone_from(&args.profiler);
    selection.service.clone_from(&args.service);
    // Whatever caused a run, its stacks are tagged.
    selection.view = strobe_explore::View::Runs;
    let files = schemas::on_bus(&config.bus()?)?;
    if let Some((_, why)) = files.unreadable().next() {
        // Its tags would be taken from everything.
        return Err(CliError::Usage(why.to_owned()));
    }
    let program = files.compile()?;
    let mut tagger = Tagger::new(program, MEMORY_BYTES);
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let store = config.clickhouse.writer()?.client();
    let mut done = Done::default();
    let mut seen: HashSet<(u64, u64)> = HashSet::new();
    wait(async {
        // Clocks differ: what is written now counts, whoever wrote what is there.
        let made_us = now.max(explorer.newest_tags().await? + 1);
        let contexts = explorer.context_values().await?;
        for hour in hours(&selection) {
            let mut stored = explorer.taggable(&hour, &contexts, false).await?;
            stored
                .stacks
                .retain(|stack| seen.insert((stack.stack, stack.context)));
            done.unknown += stored.unknown;
            for stacks in stored.stacks.chunks(STACKS_PER_INSERT) {
                let rows = rows(&mut tagger, &stored, stacks, (now, made_us), &mut done);
                if tagger.cut() > 0 {
                    return Err(CliError::Usage(format!(
                        "over {OUTCOME_ENTRIES_MAX} tags and marks for {STACKS_PER_INSERT} stacks: enable fewer schemas"
                    )));
                }
                write_tags(&store, &rows).await?;
            }
        }
        Ok(())
    })?;
    let refused = tagger.refused_values();
    match args.output {
        Output::Json => render::json(&json!({
            "stacks": done.rows, "tagged": done.tagged, "schemas": tagger.schemas(), "weight_not_stored": done.unknown,
            "values_refused": refused,
        }))?,
        Output::Table => {
            let schemas = tagger.schemas().join(", ");
            let by = if schemas.is_empty() { "no schema" } else { &schemas };
            render::say(format!(
                "{} stacks tagged anew, {} of them have tags; by {by}",
                done.rows, done.tagged
            ))?;
            if refused > 0 {
                render::say(format!(
                    "{refused} tags became `other`: their key has a thousand values of the service already"
                ))?;
            }
            if done.unknown > 0.0 {
                let seconds = done.unknown / 1e9;
                render::say(format!(
                    "{seconds:.1} s of CPU time keep their tags: their stacks are not stored"
                ))?;
            }
        }
    }
    // Half an answer is told by the exit code, too.
    if done.unknown > 0.0 {
        Err(CliError::Said)
    } else {
        Ok(())
    }
}

/// Returns a row for each of some stacks and contexts, written now, as made at a time.
fn rows(
    tagger: &mut Tagger,
    stored: &Taggable,
    stacks: &[TagStack],
    (now_us, made_us): (u64, u64),
    done: &mut Done,
) -> TagRows {
    let mut session = tagger.begin((now_us / DAY_US) as u32);
    // Frames of these stacks alone, in the order in which they come.
    let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
    for &frame in stacks.iter().flat_map(|stack| &stack.frames) {
        let next = numbers.len() as u32;
        if *numbers.entry(frame).or_insert(next) == next {
            session.frame(locations(stored, frame));
        }
    }
    let mut contexts: BTreeMap<u64, u32> = BTreeMap::new();
    for (at, stack) in stacks.iter().enumerate() {
        let context = *contexts
            .entry(stack.context)
            .or_insert_with(|| session.context(&values(stack)));
        let frames: Vec<u32> = stack.frames.iter().map(|frame| numbers[frame]).collect();
        session.pair(at as u32, &frames, context);
    }
    let tags = session.finish();
    let schemas: Vec<&str> = tags.schemas.iter().map(|&schema| tags.text(schema)).collect();
    let mut rows = TagRows::default();
    for (&at, &outcome) in tags.stack.iter().zip(&tags.outcome) {
        let stack = &stacks[at as usize];
        let outcome = &tags.outcomes[outcome as usize];
        done.rows += 1;
        done.tagged += u64::from(!outcome.tags.is_empty());
        rows.push(&TagRow {
            stack: stack.stack,
            context: ContextKey(stack.context),
            generation: Generation::new(stored.unnamed(stack), made_us),
            // As it was when the samples came: the context's key stands for these values.
            values: &values(stack),
            outcome,
            schemas: &schemas,
            text: &tags.text,
            day: (now_us / DAY_US).min(u64::from(u16::MAX)) as u16,
        });
    }
    rows
}
