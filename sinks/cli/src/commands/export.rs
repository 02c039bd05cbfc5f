//! `strobe export`: stacks for other tools.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use strobe_explore::{Explorer, Profile};
use strobe_export::pprof::{Location, PprofFrame, PprofProfile, PprofStack};
use strobe_export::{folded, pprof};

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render;
use crate::selection;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe export --format folded --service orders > orders.folded\n  strobe export --format \
                        pprof --output cpu.pb.gz && go tool pprof -top cpu.pb.gz"
)]
pub struct Args {
    #[command(flatten)]
    selection: selection::Args,
    /// The form.
    #[arg(long, value_enum)]
    format: Format,
    /// Where to write; standard output unless said.
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Text: `root;…;leaf nanoseconds`, for flame graph tools.
    Folded,
    /// Gzipped protobuf, for `go tool pprof` and everything that reads it.
    Pprof,
}

/// Writes the export.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    if args.format == Format::Pprof && args.output.is_none() && std::io::stdout().is_terminal() {
        return Err(CliError::Usage(
            "pprof is binary: name a file with --output, or redirect".into(),
        ));
    }
    let selection = args.selection.selection()?;
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let profile = wait(async { Ok(explorer.profile(&selection).await?) })?;
    if profile.stacks.is_empty() {
        return Err(render::nothing(selection.range));
    }
    match &args.output {
        None => render::written(write(&profile, args.format, &mut std::io::stdout().lock())),
        Some(path) => File::create(path)
            .and_then(|file| {
                let mut out = BufWriter::new(file);
                write(&profile, args.format, &mut out)?;
                out.flush()
            })
            .map_err(|source| CliError::Io {
                action: "write",
                what: path.display().to_string(),
                source,
            }),
    }
}

fn write(profile: &Profile, format: Format, out: &mut impl Write) -> std::io::Result<()> {
    match format {
        Format::Folded => {
            for stack in &profile.stacks {
                let frames = stack
                    .frames
                    .iter()
                    .flat_map(|&frame| &profile.frames[frame as usize].lines);
                folded::write_line(
                    out,
                    frames.map(|line| line.function.as_str()),
                    stack.weight.round() as u64,
                )?;
            }
            Ok(())
        }
        Format::Pprof => pprof::write(&converted(profile), out),
    }
}

fn converted(profile: &Profile) -> PprofProfile {
    let frames = profile.frames.iter().map(|frame| PprofFrame {
        module: frame.module.clone(),
        build_id: frame.build_id.clone(),
        address: frame.address,
        locations: frame
            .lines
            .iter()
            .map(|line| Location {
                function: line.function.clone(),
                file: line.file.clone(),
                line: line.line,
            })
            .collect(),
    });
    let stacks = profile.stacks.iter().map(|stack| PprofStack {
        frames: stack.frames.clone(),
        samples: stack.samples,
        nanoseconds: stack.weight.round() as u64,
    });
    PprofProfile {
        frames: frames.collect(),
        stacks: stacks.collect(),
        start_us: profile.range.since_us,
        duration_us: profile.range.until_us - profile.range.since_us,
    }
}
