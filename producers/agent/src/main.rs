//! `strobe-agent`: a thin shell around the library.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities};
use strobe_agent::config::UnwindConfig;
use strobe_agent::explain::{Code, explain};
use strobe_agent::halt;
use strobe_agent::mechanism::{Availability, availability};
use strobe_agent::profilers::{Profilers, Rate};
use strobe_agent::{AgentConfig, AgentError, Settings};
use strobe_bus::Shutdown;

/// Where the configuration is looked for when nobody names it.
const CONFIG_DEFAULT: &str = "/etc/strobe/agent.toml";

/// Profiles this host: samples every CPU, lifts stacks out of their processes, and sends them to the bus.
#[derive(Parser)]
#[command(
    name = "strobe-agent",
    version,
    after_help = "EXIT CODES\n  0   stopped as asked\n  1   failed\n  2   wrong usage\n  77  a privilege is missing\n  78  the \
                  configuration is wrong\n\nEXAMPLES\n  strobe-agent check\n  strobe-agent doctor --pid 4711\n  strobe-agent run --bootstrap kafka-1:9092\n  \
                  strobe-agent run --no-publish --state-dir /tmp/strobe --duration 10s"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Profile until SIGTERM or SIGINT.
    Run {
        #[command(flatten)]
        options: Options,
        /// Stop after this time, `30s` for example.
        #[arg(long, value_parser = parse_duration)]
        duration: Option<Duration>,
        /// Also write each framed raw batch into this folder, for benchmarks.
        #[arg(long, value_name = "DIR")]
        capture: Option<PathBuf>,
    },
    /// Manual pages and completions into a folder: for packages.
    #[command(hide = true)]
    Generate {
        /// The folder.
        folder: PathBuf,
    },
    /// Make the unwind table of the binary on stdin.
    #[command(hide = true)]
    UnwindWorker {
        /// The table's name.
        key: String,
    },
    /// Ask the agent that runs here how it is: for health checks of containers.
    Health {
        #[command(flatten)]
        options: Options,
        /// Ask whether it can work now, that is, whether what it samples goes somewhere; not only whether it moves.
        #[arg(long)]
        ready: bool,
    },
    /// Say what the stacks of one process run through, and what to do about what is missing.
    #[command(
        after_help = "EXAMPLES\n  strobe-agent doctor --pid 4711\n  strobe-agent doctor --pid $(pidof java) -o json | jq \
                      '.pieces[] | select(.code.state != \"table\")'"
    )]
    Doctor {
        /// The process.
        #[arg(long)]
        pid: u32,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Form,
    },
    /// List the profilers, and find out by trying which of them this host can run.
    #[command(
        after_help = "EXAMPLES\n  strobe-agent profilers\n  strobe-agent profilers -o json | jq -r \
                      '.[] | select(.availability.state == \"available\") | .name'"
    )]
    Profilers {
        #[command(flatten)]
        options: Options,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Form,
    },
    /// End all profiling on this host, now and after restarts, until `start`.
    #[command(
        after_help = "It writes the stop file, which needs neither the agent nor the bus: the agent sees it within a second.\n\nEXAMPLES\n  \
                      strobe-agent stop --reason 'latency of checkout'\n  strobe-agent start"
    )]
    Stop {
        #[command(flatten)]
        options: Options,
        /// Why, for whoever finds it.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Let profiling go on after `stop`.
    Start {
        #[command(flatten)]
        options: Options,
    },
    /// Check the configuration and what the kernel allows, and say what is missing.
    Check {
        #[command(flatten)]
        options: Options,
    },
}

/// How an answer is written.
#[derive(Clone, Copy, ValueEnum)]
enum Form {
    /// For people.
    Table,
    /// For scripts.
    Json,
}

#[derive(Args)]
struct Options {
    /// Configuration file (default: /etc/strobe/agent.toml, if it exists).
    #[arg(long, env = "STROBE_AGENT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kafka brokers, `host:port`, separated by commas.
    #[arg(long, env = "STROBE_BOOTSTRAP")]
    bootstrap: Option<String>,
    /// Ticks per second and CPU.
    #[arg(long, env = "STROBE_FREQUENCY", value_name = "HZ")]
    frequency: Option<u32>,
    /// Name of this host.
    #[arg(long, env = "STROBE_HOST")]
    host: Option<String>,
    /// Length of a run, `60s` for example.
    #[arg(long, value_parser = parse_duration)]
    run_length: Option<Duration>,
    /// Folder for the spool and the status file.
    #[arg(long, env = "STROBE_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Folder of the symbol store.
    #[arg(long, env = "STROBE_SYMBOL_STORE", value_name = "DIR")]
    symbol_store: Option<PathBuf>,
    /// Where metrics and health are served, `127.0.0.1:9641` for example.
    #[arg(long, env = "STROBE_ADMIN", value_name = "ADDRESS")]
    admin: Option<String>,
    /// Only fill the spool; send nothing.
    #[arg(long)]
    no_publish: bool,
    /// Log level: error, warn, info, debug, trace.
    #[arg(long, env = "STROBE_LOG", default_value = "info")]
    log_level: String,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; `30s` or `5m` are durations"))
}

impl Options {
    fn settings(&self) -> Result<Settings, AgentError> {
        let fallback = PathBuf::from(CONFIG_DEFAULT);
        let path = self
            .config
            .as_ref()
            .or_else(|| fallback.exists().then_some(&fallback));
        let mut config = AgentConfig::read(path.map(PathBuf::as_path))?;
        // A flag outranks the variable, which outranks the file.
        if let Some(bootstrap) = &self.bootstrap {
            config.bus.bootstrap.clone_from(bootstrap);
        }
        if let Some(frequency) = self.frequency {
            config.frequency_hz = frequency;
        }
        if let Some(host) = &self.host {
            config.host.clone_from(host);
        }
        if let Some(length) = self.run_length {
            config.run_length = length;
        }
        if let Some(folder) = &self.state_dir {
            config.state_dir.clone_from(folder);
        }
        if let Some(folder) = &self.symbol_store {
            config.symbol_store.clone_from(folder);
        }
        if let Some(admin) = &self.admin {
            config.admin.clone_from(admin);
        }
        config.publish &= !self.no_publish;
        config.validate()
    }

    fn start_log(&self) {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log_level)
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
}

fn run(options: &Options, duration: Option<Duration>, capture: Option<PathBuf>) -> Result<(), AgentError> {
    let settings = Settings {
        duration,
        capture,
        ..options.settings()?
    };
    strobe_bpf::probe::check_loadable()?;
    strobe_agent::run(&settings, &Shutdown::on_signals()?)
}

fn generate(folder: &Path) -> Result<(), AgentError> {
    let trouble = |source| AgentError::Folder {
        folder: folder.to_owned(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(trouble)?;
    let mut command = Cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "strobe-agent", folder).map_err(trouble)?;
    }
    clap_mangen::generate_to(command, folder).map_err(trouble)
}

fn health(options: &Options, ready: bool) -> Result<(), AgentError> {
    let Some(admin) = options.settings()?.admin else {
        return Err(AgentError::Config(
            "`admin` is empty: the agent has no endpoint to ask; give it `127.0.0.1:9641` for example".into(),
        ));
    };
    let path = if ready { "/-/ready" } else { "/-/healthy" };
    strobe_telemetry::probe(admin, path).map_err(AgentError::Unwell)?;
    println!("ok");
    Ok(())
}

fn check(options: &Options) -> Result<(), AgentError> {
    let settings = options.settings()?;
    println!(
        "configuration: ok (host {}, {} Hz)",
        settings.host, settings.frequency_hz
    );
    let report = strobe_bpf::probe::Report::look();
    println!(
        "kernel {}: {}",
        report.kernel_release,
        if report.kernel_supported { "ok" } else { "too old" }
    );
    println!("BTF: {}", if report.btf { "ok" } else { "missing" });
    for (capability, held) in &report.capabilities {
        let state = match (held, capability.required) {
            (true, _) => "ok",
            (false, true) => "missing",
            (false, false) => "missing, not required",
        };
        println!("{}: {state} ({})", capability.name, capability.purpose);
    }
    strobe_bpf::probe::check_loadable()?;
    println!("profiling: ok");
    Ok(())
}

/// Puts into effect the capabilities that this process may have. An executable whose file hands them over, as in a container
/// that runs as a user of its own, has them permitted only: then it also starts where some of them are withheld.
fn raise_capabilities() -> rustix::io::Result<()> {
    let held = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.permitted,
            ..held
        },
    )
}

fn doctor(pid: u32, output: Form) -> Result<(), AgentError> {
    let found = explain(pid, &UnwindConfig::default())?;
    if matches!(output, Form::Json) {
        let text = serde_json::to_string_pretty(&found).unwrap_or_default();
        println!("{text}");
        return Ok(());
    }
    for piece in &found.pieces {
        let what = match &piece.code {
            Code::Table {
                rows,
                unsupported,
                frame_pointers,
                unknown,
            } => {
                let mut what = format!(
                    "table of {rows} rows, {:.0} % of the code keeps frame pointers",
                    100.0 * frame_pointers
                );
                if *unknown >= 0.005 {
                    what += &format!(", nothing is said of {:.0} %", 100.0 * unknown);
                }
                if *unsupported > 0 {
                    what += &format!(", stacks end in {unsupported} of the rows");
                }
                what
            }
            Code::NoTable { why } => format!("no table: {why}"),
            Code::Generated => {
                "generated: stacks go through it by frame pointers, if it keeps any".to_owned()
            }
        };
        println!(
            "{:>9} KiB  {}\n               {what}",
            piece.bytes / 1024,
            piece.path
        );
    }
    match found.advice.as_slice() {
        [] => println!("nothing is missing: its stacks are whole"),
        advice => advice.iter().for_each(|line| println!("-> {line}")),
    }
    Ok(())
}

fn stop(options: &Options, reason: &str) -> Result<(), AgentError> {
    let file = options.settings()?.stop_file;
    let is_new = halt::stop(&file, reason).map_err(|source| AgentError::StopFile {
        file: file.clone(),
        source,
    })?;
    let state = if is_new { "stopped" } else { "was stopped already" };
    println!(
        "profiling on this host {state}: {}; `strobe-agent start` lets it go on",
        file.display()
    );
    Ok(())
}

fn start(options: &Options) -> Result<(), AgentError> {
    let file = options.settings()?.stop_file;
    let was_there = halt::start(&file).map_err(|source| AgentError::StopFile {
        file: file.clone(),
        source,
    })?;
    let state = if was_there { "goes on" } else { "was not stopped" };
    println!("profiling on this host {state}: {} is not there", file.display());
    Ok(())
}

fn profilers(options: &Options, output: Form) -> Result<(), AgentError> {
    let known = Profilers::read(options.settings()?.profilers.as_deref())?;
    if matches!(output, Form::Json) {
        let all: Vec<serde_json::Value> = known
            .all()
            .map(|profiler| {
                let mut value = serde_json::to_value(profiler).unwrap_or_default();
                value["availability"] = serde_json::to_value(availability(profiler)).unwrap_or_default();
                value
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&all).unwrap_or_default());
        return Ok(());
    }
    println!(
        "{:<18} {:<11} {:<16} {:<11} ABOUT",
        "NAME", "UNIT", "RATE", "HERE"
    );
    for profiler in known.all() {
        let rate = match profiler.rate {
            Rate::Hz(hz) => format!("{hz} Hz"),
            Rate::Period(period) => format!("1 in {period}"),
        };
        let (state, why) = match availability(profiler) {
            Availability::Available => ("yes", None),
            Availability::Taken { by } => ("taken", Some(format!("by {}", by.join(", ")))),
            Availability::Missing { why } => ("no", Some(why)),
        };
        let about = &profiler.about;
        println!(
            "{:<18} {:<11} {rate:<16} {state:<11} {about}",
            profiler.name,
            profiler.unit.name()
        );
        if let Some(why) = why {
            println!("{:>59} {why}", "->");
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    // Before any thread exists: each has its own. Without it the check that follows says what is missing.
    let _ = raise_capabilities();
    let result = match Cli::parse().command {
        Command::Run {
            options,
            duration,
            capture,
        } => {
            options.start_log();
            run(&options, duration, capture)
        }
        Command::UnwindWorker { key } => return strobe_unwind::worker_main(&key),
        Command::Generate { folder } => generate(&folder),
        Command::Health { options, ready } => health(&options, ready),
        Command::Doctor { pid, output } => doctor(pid, output),
        Command::Profilers { options, output } => profilers(&options, output),
        Command::Stop { options, reason } => stop(&options, &reason),
        Command::Start { options } => start(&options),
        Command::Check { options } => check(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strobe-agent: {}", strobe_agent::error::with_causes(&error));
            ExitCode::from(error.exit_code())
        }
    }
}
