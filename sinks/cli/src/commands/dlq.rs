//! `strobe dlq`: messages that could not be processed.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::json;
use strobe_bus::dead_letter::{self, Item, Selection};
use strobe_bus::{BusSettings, Topic};

use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::shown;

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe dlq list\n  strobe dlq show strobe.samples 3:17 > letter.bin\n  strobe dlq replay \
                        strobe.samples 3:17 3:18\n  strobe dlq replay strobe.samples --all"
)]
pub enum Command {
    /// Dead letters of all topics, or of one.
    List {
        /// The topic they died on, `strobe.samples` for example.
        topic: Option<String>,
        /// Letters of each topic at most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// The value of one, byte for byte, on standard output.
    Show {
        /// The topic it died on.
        topic: String,
        /// Its place: `partition:offset`.
        #[arg(value_parser = place)]
        place: (i32, i64),
    },
    /// Put letters back on their topic. Repeats are harmless: what is stored already is recognized.
    Replay {
        /// The topic they died on.
        topic: String,
        /// Their places: `partition:offset`.
        #[arg(value_parser = place, required_unless_present = "all")]
        places: Vec<(i32, i64)>,
        /// All of them.
        #[arg(long, conflicts_with = "places")]
        all: bool,
    },
}

fn place(text: &str) -> Result<(i32, i64), String> {
    let place = text
        .split_once(':')
        .and_then(|(partition, offset)| Some((partition.parse().ok()?, offset.parse().ok()?)));
    place.ok_or_else(|| format!("`{text}` is no place: type `partition:offset`, as `strobe dlq list` shows"))
}

/// Returns the name of a topic of the bus, so that a slip is answered by what there is.
fn checked<'a>(bus: &BusSettings, topic: &'a str) -> Result<&'a str, CliError> {
    let topic = topic.strip_suffix(".dlq").unwrap_or(topic);
    if bus
        .topic_of(topic)
        .is_some_and(|topic| Topic::STREAMS.contains(&topic))
    {
        return Ok(topic);
    }
    let names: Vec<String> = Topic::STREAMS.into_iter().map(|topic| bus.topic(topic)).collect();
    Err(CliError::Usage(format!(
        "`{topic}` is no topic of the bus: choose {}",
        names.join(", ")
    )))
}

/// Lists, shows or replays.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    let bus = config.bus()?;
    match command {
        Command::List { topic, limit, output } => {
            let topics = match topic {
                Some(topic) => vec![checked(&bus, topic)?.to_owned()],
                None => Topic::STREAMS.into_iter().map(|topic| bus.topic(topic)).collect(),
            };
            let mut letters = Vec::new();
            for topic in topics {
                letters.extend(
                    dead_letter::list(&bus, &topic, *limit)?
                        .into_iter()
                        .map(|item| (topic.clone(), item)),
                );
            }
            list(&letters, *output)
        }
        Command::Show { topic, place } => {
            let topic = checked(&bus, topic)?;
            match dead_letter::show(&bus, topic, *place)? {
                Some((_, letter)) => render::written(std::io::stdout().write_all(letter.bytes())),
                None => Err(CliError::Missing(format!(
                    "{topic}.dlq has nothing at {}:{}",
                    place.0, place.1
                ))),
            }
        }
        Command::Replay { topic, places, all } => {
            let selection = match all {
                true => Selection::All,
                false => Selection::Places(places.iter().copied().collect::<BTreeSet<_>>()),
            };
            let replayed = dead_letter::replay(&bus, checked(&bus, topic)?, &selection)?;
            render::say(format!("{} messages are back on {topic}", replayed.count))?;
            if replayed.without_value > 0 {
                eprintln!(
                    "{} were left: their value could not be kept when they died",
                    replayed.without_value
                );
            }
            if replayed.missing.is_empty() {
                return Ok(());
            }
            let places = replayed
                .missing
                .iter()
                .map(|(partition, offset)| format!("{partition}:{offset}"));
            Err(CliError::Missing(format!(
                "{topic}.dlq has nothing at {}: `strobe dlq list {topic}` shows what there is",
                places.collect::<Vec<_>>().join(", ")
            )))
        }
    }
}

fn list(letters: &[(String, Item)], output: Output) -> Result<(), CliError> {
    if output == Output::Json {
        let rows = letters.iter().map(|(topic, item)| {
            json!({
                "topic": topic, "place": format!("{}:{}", item.place.0, item.place.1), "reason": item.reason,
                "stage": item.stage, "detail": item.detail, "bytes": item.bytes, "samples": item.samples,
                "run": item.run.map(|run| run.to_string()), "timestamp_ms": item.timestamp_ms,
                "identity": item.meta.as_ref().map(|meta| meta.identity.to_string()),
            })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    if letters.is_empty() {
        return render::say("There are no dead letters.");
    }
    let columns = [
        ("topic", false),
        ("place", false),
        ("time", false),
        ("reason", false),
        ("samples", true),
        ("bytes", true),
        ("what", false),
    ];
    let rows = letters.iter().map(|(topic, item)| {
        vec![
            topic.clone(),
            format!("{}:{}", item.place.0, item.place.1),
            item.timestamp_ms
                .map_or_else(String::new, |ms| shown((ms.max(0) as u64).saturating_mul(1_000))),
            item.reason.clone(),
            item.samples
                .map_or_else(|| "?".into(), |samples| samples.to_string()),
            item.bytes.to_string(),
            item.detail.clone(),
        ]
    });
    render::say(render::table(&columns, rows))
}
