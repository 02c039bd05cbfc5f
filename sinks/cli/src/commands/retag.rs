//! `strobe retag`: what is stored, tagged anew by the stack schemas in force.

use std::collections::{BTreeMap, HashSet};

use serde_json::json;
use strobe_event::ContextKey;
use strobe_explore::{Explorer, Taggable};
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
    let program = schemas::on_bus(&config.bus()?)?.compile()?;
    let mut tagger = Tagger::new(program, MEMORY_BYTES);
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let store = config.clickhouse.writer()?.client();
    let mut done = Done::default();
    let mut seen: HashSet<(u64, u64)> = HashSet::new();
    wait(async {
        for hour in hours(&selection) {
            let mut stored = explorer.taggable(&hour).await?;
            stored
                .stacks
                .retain(|stack| seen.insert((stack.stack, stack.context)));
            done.unknown += stored.unknown;
            let rows = rows(&mut tagger, &stored, now, &mut done);
            write_tags(&store, &rows).await?;
        }
        Ok(())
    })?;
    let schemas = tagger.schemas().join(", ");
    match args.output {
        Output::Json => render::json(&json!({
            "stacks": done.rows, "tagged": done.tagged, "schemas": tagger.schemas(), "weight_not_stored": done.unknown,
        })),
        Output::Table => {
            let by = if schemas.is_empty() {
                "no schema".to_owned()
            } else {
                schemas
            };
            render::say(format!(
                "{} stacks tagged anew, {} of them have tags; by {by}",
                done.rows, done.tagged
            ))
        }
    }
}

/// Returns a row for each stack and context.
fn rows(tagger: &mut Tagger, stored: &Taggable, now_us: u64, done: &mut Done) -> TagRows {
    let mut session = tagger.begin((now_us / DAY_US) as u32);
    for frame in 0..stored.frames.len() as u32 {
        session.frame(locations(stored, frame));
    }
    let mut contexts: BTreeMap<u64, u32> = BTreeMap::new();
    for (at, stack) in stored.stacks.iter().enumerate() {
        let context = *contexts
            .entry(stack.context)
            .or_insert_with(|| session.context(&values(stack)));
        session.pair(at as u32, &stack.frames, context);
    }
    let tags = session.finish();
    let schemas: Vec<&str> = tags.schemas.iter().map(|&schema| tags.text(schema)).collect();
    let mut rows = TagRows::default();
    for (&at, &outcome) in tags.stack.iter().zip(&tags.outcome) {
        let stack = &stored.stacks[at as usize];
        let outcome = &tags.outcomes[outcome as usize];
        done.rows += 1;
        done.tagged += u64::from(!outcome.tags.is_empty());
        rows.push(&TagRow {
            stack: stack.stack,
            context: ContextKey(stack.context),
            generation: now_us,
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
