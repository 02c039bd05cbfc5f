//! `strobe symbols`: what the symbol store has of each binary, what it lacks, and what it answers.

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};

use serde_json::json;
use strobe_store::index::now;
use strobe_store::{BinaryKey, Failure, Holding, State, Store, Wanted};
use strobe_symbols::file::{Facts, Sizes, SymbolFile, VERSION};
use strobe_symbols::{Conversion, ConvertLimits, ConvertSources, Converter};

use crate::commands::levels::{Level, levels, say_levels};
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};

/// Memory for looking something up: a command asks once.
const LOOK_BYTES: usize = 16 << 20;

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe symbols list\n  strobe symbols list --state failed -o json\n  strobe symbols \
                        show 5f3e\n  strobe symbols wanted\n  strobe symbols why 5f3e 0x12f40\n  strobe symbols make \
                        ./server --debug ./server.debug --output server.symbols\n  strobe symbols lookup \
                        server.symbols 0x12f40"
)]
pub enum Command {
    /// All binaries that the store knows of, and how far each is.
    List {
        /// Only those in this state.
        #[arg(long, value_enum)]
        state: Option<StateName>,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// All that the store has of one binary.
    Show {
        /// Its build id, or the beginning of it.
        build_id: String,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Binaries whose frames were seen, and which nobody has uploaded.
    Wanted {
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Why frames of a binary have no names, or what its symbol file says of an address, and what to do.
    Why {
        /// Its build id, or the beginning of it.
        build_id: String,
        /// ELF virtual addresses, as `0x12f40` or in decimal.
        #[arg(value_parser = address)]
        addresses: Vec<u64>,
    },
    /// Make the symbol file of a binary on this host.
    Make {
        /// The binary.
        binary: PathBuf,
        /// Its separate debug information.
        #[arg(long, value_name = "FILE")]
        debug: Option<PathBuf>,
        /// What was split off from its debug information.
        #[arg(long, value_name = "FILE")]
        dwp: Option<PathBuf>,
        /// Where to.
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Look addresses up in a symbol file on this host.
    Lookup {
        /// The symbol file.
        file: PathBuf,
        /// ELF virtual addresses, as `0x12f40` or in decimal.
        #[arg(value_parser = address, required = true)]
        addresses: Vec<u64>,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

/// A state, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StateName {
    /// Frames of it were seen; it is not there.
    Wanted,
    /// It is there, and nobody has begun with it.
    Uploaded,
    /// Somebody makes its symbol file.
    Converting,
    /// Its symbol file is there.
    Ready,
    /// No symbol file could be made of it.
    Failed,
}

impl StateName {
    fn is(self, state: State) -> bool {
        let named = match self {
            Self::Wanted => State::Wanted,
            Self::Uploaded => State::Uploaded,
            Self::Converting => State::Converting,
            Self::Ready => State::Ready,
            Self::Failed => State::Failed,
        };
        named == state
    }
}

fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}: write `0x12f40`, or a decimal number"))
}

/// Answers.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    match command {
        Command::List { state, output } => list(config, *state, *output),
        Command::Show { build_id, output } => show(config, build_id, *output),
        Command::Wanted { output } => wanted(config, *output),
        Command::Why { build_id, addresses } => why(config, build_id, addresses),
        Command::Make {
            binary,
            debug,
            dwp,
            output,
        } => make(config, binary, debug.as_deref(), dwp.as_deref(), output),
        Command::Lookup {
            file,
            addresses,
            output,
        } => lookup(file, addresses, *output),
    }
}

fn store(config: &Config) -> Result<Store, CliError> {
    if config.processor.symbol_store.as_os_str().is_empty() {
        return Err(strobe_processor::ProcessorError::NoSymbolStore.into());
    }
    Ok(Store::in_folder(&config.processor.symbol_store).map_err(strobe_processor::ProcessorError::from)?)
}

/// Returns the answer of a question to the store.
fn ask<T>(question: impl Future<Output = Result<T, strobe_store::StoreError>>) -> Result<T, CliError> {
    super::wait(async { Ok(question.await.map_err(strobe_processor::ProcessorError::from)?) })
}

fn state_of(config: &Config, holding: &Holding) -> State {
    holding.state(now(), config.processor.symbol_convert_time)
}

fn list(config: &Config, wanted: Option<StateName>, output: Output) -> Result<(), CliError> {
    let store = store(config)?;
    let holdings = ask(store.holdings(VERSION))?;
    let rows = holdings
        .iter()
        .map(|(key, holding)| (key, holding, state_of(config, holding)))
        .filter(|(.., state)| wanted.is_none_or(|name| name.is(*state)));
    let bytes = |object: Option<strobe_store::Object>| object.map(|object| object.bytes);
    if output == Output::Json {
        let rows = rows.map(|(key, holding, state)| {
            json!({
                "kind": key.kind_name(), "build_id": key.id.to_string(), "state": state.name(),
                "binary_bytes": bytes(holding.executable), "debug_bytes": bytes(holding.debuginfo),
                "symbol_file_bytes": bytes(holding.symbols),
            })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    let size = |object| bytes(object).map_or(String::from("-"), mib);
    let mut counts = std::collections::BTreeMap::new();
    let rows: Vec<Vec<String>> = rows
        .map(|(key, holding, state)| {
            *counts.entry(state.name()).or_insert(0_u32) += 1;
            vec![
                state.name().to_owned(),
                key.kind_name().to_owned(),
                key.id.to_string(),
                size(holding.executable),
                size(holding.debuginfo),
                size(holding.symbols),
            ]
        })
        .collect();
    let columns = [
        ("state", false),
        ("kind", false),
        ("build id", false),
        ("binary", true),
        ("debug file", true),
        ("symbol file", true),
    ];
    render::say(render::table(&columns, rows))?;
    let counts: Vec<_> = counts
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    render::say(if counts.is_empty() {
        "no binaries: agents upload what they see, once `symbol_store` names the same folder for both"
            .to_owned()
    } else {
        counts.join(", ")
    })
}

fn wanted(config: &Config, output: Output) -> Result<(), CliError> {
    let store = store(config)?;
    let mut rows: Vec<(BinaryKey, Wanted)> = Vec::new();
    for (key, holding) in ask(store.holdings(VERSION))? {
        if state_of(config, &holding) == State::Wanted
            && let Some(wanted) = ask(store.wanted(&key))?
        {
            rows.push((key, wanted));
        }
    }
    rows.sort_by_key(|(_, wanted)| wanted.since);
    if output == Output::Json {
        let rows = rows.iter().map(|(key, wanted)| {
            json!({
                "kind": key.kind_name(), "build_id": key.id.to_string(), "since": wanted.since,
                "path": wanted.path, "host": wanted.host,
            })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    if rows.is_empty() {
        return render::say("nothing is wanted: all binaries whose frames were seen are there");
    }
    let rows = rows.into_iter().map(|(key, wanted)| {
        let hours = now().saturating_sub(wanted.since) as f64 / 3_600.0;
        vec![
            format!("{hours:.1} h"),
            key.kind_name().to_owned(),
            key.id.to_string(),
            wanted.host,
            wanted.path,
        ]
    });
    let columns = [
        ("since", true),
        ("kind", false),
        ("build id", false),
        ("host", false),
        ("path", false),
    ];
    render::say(render::table(&columns, rows))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Returns the binary whose build id begins so.
fn find(store: &Store, beginning: &str) -> Result<(BinaryKey, Holding), CliError> {
    let beginning = beginning.to_ascii_lowercase();
    let holdings = ask(store.holdings(VERSION))?;
    let mut found = holdings
        .into_iter()
        .filter(|(key, _)| key.id.to_string().starts_with(&beginning));
    match (found.next(), found.next()) {
        (Some(found), None) => Ok(found),
        (None, _) => Err(CliError::Usage(format!(
            "no binary's build id begins with `{beginning}`: `strobe symbols list` shows all"
        ))),
        (Some((one, _)), Some((other, _))) => Err(CliError::Usage(format!(
            "several build ids begin with `{beginning}`, {} and {} for example: write more of it",
            one.id, other.id
        ))),
    }
}

/// All that is recorded of a binary.
struct Known {
    key: BinaryKey,
    holding: Holding,
    state: State,
    failure: Option<Failure>,
    wanted: Option<Wanted>,
    file: Option<SymbolFile>,
}

fn known(config: &Config, build_id: &str) -> Result<Known, CliError> {
    let store = store(config)?;
    let (key, holding) = find(&store, build_id)?;
    let file = match (holding.symbols, store.folder()) {
        (Some(_), Some(folder)) => Some(open(&folder.join(key.symbols(VERSION)))?),
        _ => None,
    };
    Ok(Known {
        state: state_of(config, &holding),
        failure: ask(store.failure(&key))?,
        wanted: ask(store.wanted(&key))?,
        key,
        holding,
        file,
    })
}

fn open(path: &Path) -> Result<SymbolFile, CliError> {
    let source = File::open(path).map_err(|source| CliError::Io {
        action: "open",
        what: path.display().to_string(),
        source,
    })?;
    let length = source.metadata().map_or(0, |meta| meta.len());
    Ok(SymbolFile::open(Box::new(source), length, LOOK_BYTES)
        .map_err(strobe_processor::ProcessorError::from)?)
}

fn show(config: &Config, build_id: &str, output: Output) -> Result<(), CliError> {
    let known = known(config, build_id)?;
    let file = known.file.as_ref().map(|file| (file.facts(), file.sizes()));
    if output == Output::Json {
        return render::json(&json!({
            "kind": known.key.kind_name(), "build_id": known.key.id.to_string(), "state": known.state.name(),
            "binary_bytes": known.holding.executable.map(|object| object.bytes),
            "debug_bytes": known.holding.debuginfo.map(|object| object.bytes),
            "attempts": known.holding.claim.map_or(0, |(last, _)| u64::from(last) + 1),
            "failure": known.failure, "wanted": known.wanted,
            "symbol_file": file.map(|(facts, sizes)| facts_json(&facts, &sizes)),
        }));
    }
    render::say(format!(
        "{} {}: {}",
        known.key.kind_name(),
        known.key.id,
        known.state.name()
    ))?;
    for (name, object) in [
        ("binary", known.holding.executable),
        ("debug file", known.holding.debuginfo),
        ("split off", known.holding.package),
        ("symbol file", known.holding.symbols),
    ] {
        if let Some(object) = object {
            render::say(format!("  {name}: {}", mib(object.bytes)))?;
        }
    }
    if let Some((facts, sizes)) = file {
        say_facts(&facts, &sizes)?;
    }
    explain(&known)
}

fn facts_json(facts: &Facts, sizes: &Sizes) -> serde_json::Value {
    json!({
        "debug_info": facts.debug_info, "symbol_table": facts.symbol_table,
        "units": facts.units, "units_damaged": facts.units_damaged, "parts_refused": facts.parts_refused,
        "units_elsewhere": facts.units_elsewhere,
        "rows": facts.rows, "scopes": facts.scopes, "functions": facts.functions, "files": facts.files,
        "bytes": { "file": sizes.file, "rows": sizes.rows, "scopes": sizes.scopes, "files": sizes.files,
                   "raw_names": sizes.raw, "names": sizes.names },
    })
}

fn say_facts(facts: &Facts, sizes: &Sizes) -> Result<(), CliError> {
    let source = match (facts.debug_info, facts.symbol_table) {
        (true, _) => "debug information",
        (false, true) => "the symbol table alone: names, no lines, no inlined functions",
        (false, false) => "exported names alone: the binary is stripped",
    };
    render::say(format!("  made of {source}"))?;
    render::say(format!(
        "  {} functions, {} source files, {} calls and functions, {} rows",
        facts.functions, facts.files, facts.scopes, facts.rows
    ))?;
    render::say(format!(
        "  rows {}, calls {}, paths {}, raw names {}, names {}",
        mib(sizes.rows),
        mib(sizes.scopes),
        mib(sizes.files),
        mib(sizes.raw),
        mib(sizes.names)
    ))?;
    if facts.units_damaged > 0 {
        render::say(format!(
            "  {} of {} compilation units could not be read",
            facts.units_damaged,
            facts.units + facts.units_damaged
        ))?;
    }
    if facts.parts_refused {
        render::say("  debug information, or a file beside the binary, could not be read and was left out")?;
    }
    if facts.units_elsewhere > 0 {
        render::say(format!(
            "  {} compilation units have their debug information in other files (-gsplit-dwarf): pack them with `dwp` and \
             make the symbol file with --dwp",
            facts.units_elsewhere
        ))?;
    }
    Ok(())
}

/// Says why a binary's frames have no names, and what to do.
fn explain(known: &Known) -> Result<(), CliError> {
    if let Some(failure) = known.failure.as_ref().filter(|_| known.state == State::Failed) {
        render::say(format!(
            "  no symbol file: {} ({})",
            failure.detail, failure.reason
        ))?;
        let minutes = failure.retry_at.saturating_sub(now()).div_ceil(60);
        render::say(format!(
            "  tried {} times, again in {minutes} min",
            failure.attempts
        ))?;
    }
    let advice = match known.state {
        State::Wanted => {
            "nobody has uploaded it: is an agent with the same `symbol_store` on the host, and is the file \
                          below its limit `binaries.file_bytes_max`?"
        }
        State::Uploaded => {
            "its symbol file is not made yet: a processor with `symbol_convert = true` makes it"
        }
        State::Converting => "its symbol file is being made; until then names come from the binary itself",
        _ => "",
    };
    if !advice.is_empty() {
        render::say(format!("  {advice}"))?;
    }
    match &known.wanted {
        Some(wanted) if known.state == State::Wanted => render::say(format!(
            "  {} has it as {}",
            render::plain(&wanted.host),
            render::plain(&wanted.path)
        )),
        _ => Ok(()),
    }
}

fn why(config: &Config, build_id: &str, addresses: &[u64]) -> Result<(), CliError> {
    let mut known = known(config, build_id)?;
    render::say(format!(
        "{} {}: {}",
        known.key.kind_name(),
        known.key.id,
        known.state.name()
    ))?;
    explain(&known)?;
    let Some(file) = &mut known.file else {
        return Ok(());
    };
    let facts = file.facts();
    if addresses.is_empty() {
        return say_facts(&facts, &file.sizes());
    }
    for &address in addresses {
        let levels = levels(file, address)?;
        if levels.is_empty() {
            let reason = match (facts.debug_info || facts.symbol_table, facts.functions) {
                (true, _) => "no function covers it: padding, data in code, or generated stubs",
                (false, 0) => "the binary has no symbols at all: build with -g, or upload its debug file",
                (false, _) => {
                    "the binary is stripped, and no exported function covers it: upload its debug file"
                }
            };
            render::say(format!("{address:#x}: {reason}"))?;
        }
        say_levels(address, &levels)?;
    }
    Ok(())
}

fn lookup(file: &Path, addresses: &[u64], output: Output) -> Result<(), CliError> {
    let mut file = open(file)?;
    let mut found = Vec::new();
    for &address in addresses {
        found.push((address, levels(&mut file, address)?));
    }
    if output == Output::Json {
        let level = |level: &Level| {
            json!({
                "function": level.name, "raw": level.raw, "belongs_to": level.belongs_to, "generic": level.generic,
                "parameters": level.parameters, "file": level.file, "line": level.line,
            })
        };
        let rows = found.iter().map(|(address, levels)| {
            json!({ "address": format!("{address:#x}"), "levels": levels.iter().map(level).collect::<Vec<_>>() })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    for (address, levels) in &found {
        if levels.is_empty() {
            render::say(format!("{address:#x}: no function covers it"))?;
        }
        say_levels(*address, levels)?;
    }
    Ok(())
}

fn make(
    config: &Config,
    binary: &Path,
    debug: Option<&Path>,
    package: Option<&Path>,
    output: &Path,
) -> Result<(), CliError> {
    let same = |input: &Path| matches!((input.canonicalize(), output.canonicalize()), (Ok(input), Ok(output)) if input == output);
    if let Some(input) = [Some(binary), debug, package]
        .into_iter()
        .flatten()
        .find(|input| same(input))
    {
        return Err(CliError::Usage(format!(
            "`--output` is {}, which the symbol file is made of: name another file",
            input.display()
        )));
    }
    let own = std::env::current_exe().map_err(|source| CliError::Io {
        action: "find",
        what: "this executable".into(),
        source,
    })?;
    let converter = Converter {
        worker: vec![own.into(), "symbol-worker".into()],
        debug_folders: config.processor.debug_folders.clone(),
        limits: ConvertLimits {
            time: config.processor.symbol_convert_time,
            memory_bytes: config.processor.symbol_convert_memory_bytes,
            ..ConvertLimits::default()
        },
    };
    let sources = ConvertSources {
        binary: Some(binary),
        debug,
        package,
    };
    let start = std::time::Instant::now();
    match converter
        .convert(sources, output)
        .map_err(strobe_processor::ProcessorError::from)?
    {
        Conversion::Made { facts, sizes } => {
            render::say(format!(
                "{}: {} in {:.1} s",
                output.display(),
                mib(sizes.file),
                start.elapsed().as_secs_f64()
            ))?;
            say_facts(&facts, &sizes)
        }
        Conversion::Failed { reason, detail } => {
            eprintln!(
                "{}: no symbol file: {detail} ({})",
                binary.display(),
                reason.name()
            );
            Err(CliError::Said)
        }
    }
}
