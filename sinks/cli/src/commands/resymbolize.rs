//! `strobe resymbolize`: what is stored, named anew by what the symbol store has by now.

use std::collections::BTreeMap;

use serde_json::json;
use strobe_event::{BinaryKind, Reason};
use strobe_explore::{Explorer, FramesAsked, NamedFrame};
use strobe_sink::{FrameRow, FrameRows, write_frames};
use strobe_store::{BinaryKey, Store};
use strobe_symbols::{Binaries, Resolved, Settings, Symbolizer};

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times;

/// Microseconds of a day.
const DAY_US: u64 = 86_400_000_000;

/// Frames that are read and written at a time: some tens of megabytes with long names.
const PAGE_FRAMES: u64 = 50_000;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  strobe resymbolize --since -7d\n  strobe resymbolize --since -1h --build-id 5f3e --all\n\nRows \
                  of names are added and count instead of those before; samples, stacks and weights are not touched, and doing \
                  it twice changes nothing. A name never gives way to its absence. Tags that depend on names: `strobe retag`."
)]
pub struct Args {
    /// Frames used since: `-15m`, `now-1h` or RFC 3339, by whole days.
    #[arg(long, allow_hyphen_values = true)]
    since: String,
    /// Only binaries whose build id begins so.
    #[arg(long, default_value = "")]
    build_id: String,
    /// Also frames that have a name: better debug information may have come since.
    #[arg(long)]
    all: bool,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// What was done.
#[derive(Debug, Default)]
struct Done {
    frames: u64,
    /// Rows written, because the frame had no name, or another one.
    named: u64,
    renamed: u64,
    /// Frames that have no name still, by reason.
    unnamed: BTreeMap<&'static str, u64>,
}

/// Names anew.
///
/// # Errors
/// [`CliError`]; what was written before it stays, and the same command may be given again.
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let now = times::now_us();
    let since = times::moment(&args.since, now).map_err(CliError::Usage)?;
    let asked = FramesAsked {
        since_day: u16::try_from(since / DAY_US).unwrap_or(u16::MAX),
        build_id: args.build_id.to_ascii_lowercase(),
        unnamed: !args.all,
    };
    let mut symbolizer = symbolizer(config)?;
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let store = config.clickhouse.writer()?.client();
    let mut done = Done::default();
    wait(async {
        // Clocks differ: what is written now counts, whoever wrote what is there.
        let made_us = now.max(explorer.newest_names().await? + 1);
        let mut after = None;
        loop {
            let page = explorer.frames_after(after, &asked, PAGE_FRAMES).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.frame);
            let rows = rows(&mut symbolizer, &page, made_us, &mut done)?;
            write_frames(&store, &rows).await?;
            eprint!(
                "\r{} frames read, {} named",
                done.frames,
                done.named + done.renamed
            );
        }
        if done.frames > 0 {
            eprintln!();
        }
        Ok(())
    })?;
    if args.output == Output::Json {
        return render::json(&json!({
            "frames": done.frames, "named": done.named, "renamed": done.renamed, "unnamed": done.unnamed,
        }));
    }
    render::say(format!(
        "{} frames looked at: {} named that had no name, {} named otherwise than before",
        done.frames, done.named, done.renamed
    ))?;
    for (reason, count) in &done.unnamed {
        render::say(format!("  {count} without a name still: {reason}"))?;
    }
    if done.unnamed.contains_key(Reason::MissingBinary.name()) {
        render::say("  `strobe symbols wanted` lists the binaries that are missing, and where they are")?;
    }
    Ok(())
}

fn symbolizer(config: &Config) -> Result<Symbolizer, CliError> {
    let failed = strobe_processor::ProcessorError::from;
    if config.processor.symbol_store.as_os_str().is_empty() {
        return Err(strobe_processor::ProcessorError::NoSymbolStore.into());
    }
    let store =
        Store::in_folder(&config.processor.symbol_store).map_err(strobe_processor::ProcessorError::from)?;
    let mut settings = Settings::new(Binaries::of_folder(store)).map_err(failed)?;
    settings.debug_folders.clone_from(&config.processor.debug_folders);
    settings.limits.memory_bytes = config.processor.symbol_memory_bytes;
    settings.limits.binary_bytes = config.processor.symbol_binary_bytes;
    Ok(Symbolizer::new(settings).map_err(strobe_processor::ProcessorError::from)?)
}

/// Returns rows for those frames of a page whose names are other ones now.
fn rows(
    symbolizer: &mut Symbolizer,
    page: &[NamedFrame],
    made_us: u64,
    done: &mut Done,
) -> Result<FrameRows, CliError> {
    let mut binaries: BTreeMap<(u8, &str), Vec<&NamedFrame>> = BTreeMap::new();
    for frame in page {
        binaries
            .entry((frame.kind, &frame.build_id))
            .or_default()
            .push(frame);
    }
    let mut rows = FrameRows::default();
    for ((kind, id), frames) in binaries {
        done.frames += frames.len() as u64;
        let Some(key) = BinaryKind::from_code(kind).and_then(|kind| BinaryKey::from_digits(kind, id)) else {
            continue;
        };
        let addresses: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
        let names = symbolizer
            .resolve(key.kind, &key.id, &addresses)
            .map_err(strobe_processor::ProcessorError::from)?;
        for (frame, resolved) in frames.into_iter().zip(&names) {
            add(&mut rows, frame, resolved, made_us, done);
        }
    }
    Ok(rows)
}

fn add(rows: &mut FrameRows, frame: &NamedFrame, resolved: &Resolved, made_us: u64, done: &mut Done) {
    let had_name = !frame.functions.is_empty();
    let row = |reason| FrameRow {
        frame: frame.frame,
        made_us,
        module: &frame.module,
        build_id: &frame.build_id,
        kind: frame.kind,
        address: frame.address,
        reason,
        day: frame.day,
    };
    match resolved {
        Resolved::Symbols(levels) => {
            let before = frame.functions.iter().zip(&frame.files).zip(&frame.lines);
            let same = frame.functions.len() == levels.len()
                && before
                    .zip(levels.iter())
                    .all(|(((function, file), line), level)| {
                        (function.as_str(), file.as_str(), *line)
                            == (&*level.function, &*level.file, level.line)
                    });
            if same {
                return;
            }
            match had_name {
                true => done.renamed += 1,
                false => done.named += 1,
            }
            let levels = levels
                .iter()
                .map(|level| (&*level.function, &*level.file, level.line));
            rows.push_row(&row(""), levels);
        }
        // A name that is there stays, whatever has become of its binary.
        Resolved::Unknown(_) if had_name => {}
        Resolved::Unknown(reason) => {
            *done.unnamed.entry(reason.name()).or_default() += 1;
            if frame.reason != reason.name() {
                rows.push_row(&row(reason.name()), std::iter::empty::<(&str, &str, u32)>());
            }
        }
    }
}
