//! `strobe profile`: a profile now, from live hosts, with progress as it goes; then the hottest functions.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use strobe_bus::Shutdown;
use strobe_event::{Action, Cause, Phase, Request, RequestId, RequestState};
use strobe_explore::{Explorer, Range, Selection, StoredOfRuns, View};

use crate::asking::{Asker, Life, who};
use crate::commands::{runs, top, wait};
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::{now_us, shown};

/// Longest wait for what is said: how late Ctrl-C is seen.
const WAIT: Duration = Duration::from_millis(50);
/// By when somebody should have read the request.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// How long the samples of the last run may take to the store: a second when all is well.
const STORED_WITHIN: Duration = Duration::from_secs(60);
/// Pause between two looks into the store.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How far clocks of hosts may be behind this one: samples bear their host's time.
const CLOCKS_US: u64 = 3_600_000_000;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe profile --service checkout --duration 30s --hosts 5\n  strobe profile --host web-17 --pid 4711 \
                  --frequency 499\n  strobe profile --region eu --service search --why 'slow since the deploy'\n  strobe profile \
                  --service checkout -o json | jq '.top.rows[0].name'\n\nCtrl-C ends it on the hosts. `strobe runs list` shows what \
                  everybody asked for."
)]
pub struct Args {
    /// On hosts where this service lives; the answer is of it alone.
    #[arg(long)]
    service: Option<String>,
    /// On hosts of this region: those with the label `region=…`.
    #[arg(long)]
    region: Option<String>,
    /// On this host.
    #[arg(long)]
    host: Option<String>,
    /// Only this process of that host.
    #[arg(long, requires = "host")]
    pid: Option<u32>,
    /// On how many of the hosts that match; 0 for all.
    #[arg(long, default_value_t = 1)]
    hosts: u32,
    /// Which profiler.
    #[arg(long, default_value = "cpu")]
    profiler: String,
    /// What the profiler wants to know beside, `tracepoint=sched:sched_switch` for example; may be said more than once.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    arguments: Vec<String>,
    /// For how long, `30s` for example.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Samples per second and CPU; else as the profiler has it.
    #[arg(long, value_name = "HZ", default_value_t = 0.0)]
    frequency: f64,
    /// How long it may wait for its start behind others.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Why: for those who read what was asked for.
    #[arg(long, default_value = "")]
    why: String,
    /// The SSH key to sign with; else `ask.key` of the configuration, else ~/.ssh/id_ed25519.
    #[arg(long, env = "STROBE_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Rows of the answer.
    #[arg(long, default_value_t = 10)]
    limit: usize,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// The same as `--output json`.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn request(&self) -> Request {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Request {
            id: RequestId(random_id()),
            action: Action::Profile as u8,
            who: who(),
            why: self.why.clone(),
            origin: String::new(),
            asked_us: now_us(),
            service: self.service.clone().unwrap_or_default(),
            region: self.region.clone().unwrap_or_default(),
            host: self.host.clone().unwrap_or_default(),
            pid: self.pid.unwrap_or(0),
            hosts: self.hosts,
            profiler: self.profiler.clone(),
            arguments: self.arguments.clone(),
            frequency_hz: self.frequency,
            duration_us: micros(self.duration),
            wait_us: micros(self.wait),
            cause: Cause::OnDemand as u8,
        }
    }
}

/// Returns 128 random bits.
fn random_id() -> [u8; 16] {
    use rand::RngCore as _;
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// Asks, follows, and prints what was found.
///
/// # Errors
/// [`CliError`]: where nobody ran it, with the reason.
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let request = args.request();
    request
        .validate()
        .map_err(|error| CliError::Usage(error.to_string()))?;
    // Before it is asked: who cannot read the answer need not profile for it.
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let mut asker = Asker::open(
        config,
        args.key.as_deref(),
        request.asked_us.saturating_sub(10_000_000),
    )?;
    let shutdown = Shutdown::on_signals()?;
    asker.ask(&request)?;
    let mut progress = Progress::new();
    progress.line(&format!("request {} is on the bus", request.id))?;
    let life = follow(&mut asker, &request, &shutdown, &mut progress)?;
    let (taken, dropped) = life.samples();
    if life.end() != Some(Phase::Finished) {
        let why = life
            .whole
            .as_ref()
            .map(|whole| whole.detail.clone())
            .unwrap_or_default();
        let of_hosts: Vec<String> = life
            .hosts
            .values()
            .filter(|state| !state.detail.is_empty())
            .map(|state| format!("{}: {}", state.host, state.detail))
            .collect();
        return Err(CliError::Unwell(format!(
            "request {} {}: {}",
            request.id,
            life.phase(),
            if of_hosts.is_empty() {
                why
            } else {
                of_hosts.join("; ")
            }
        )));
    }
    if taken == 0 {
        return Err(CliError::Missing(
            "it ran and took no sample: nothing of it happened in that time".into(),
        ));
    }
    let stored = stored(
        &explorer,
        &request,
        &life,
        taken.saturating_sub(dropped),
        &mut progress,
    )?;
    progress.end()?;
    show(config, args, &request, &life, stored.range)
}

/// Follows a request to its end; ends it on the hosts where the person no longer wants it.
fn follow(
    asker: &mut Asker,
    request: &Request,
    shutdown: &Shutdown,
    progress: &mut Progress,
) -> Result<Life, CliError> {
    let (mut life, asked) = (Life::default(), Instant::now());
    let mut warned = false;
    while life.end().is_none() {
        let mut said = Vec::new();
        asker.listen(WAIT, |id, heard| {
            if id == request.id {
                said.extend(life.take(heard));
            }
        })?;
        for state in &said {
            progress.state(state, request)?;
        }
        if shutdown.is_requested() {
            progress.line("cancelling on the hosts")?;
            let phase = runs::cancel(asker, request.id, &mut life)?;
            progress.end()?;
            return Err(CliError::Unwell(format!(
                "request {}: {}",
                request.id,
                phase.name()
            )));
        }
        if life.whole.is_none() && !warned && asked.elapsed() >= READ_WITHIN {
            warned = true;
            progress.line("nobody has read it yet: is `strobe run trigger` running?")?;
        }
        let longest = Duration::from_micros(request.wait_us) + READ_WITHIN;
        if life.whole.is_none() && asked.elapsed() >= longest {
            return Err(CliError::Unwell(format!(
                "nobody has read request {} within its time to live: is `strobe run trigger` running?",
                request.id
            )));
        }
    }
    Ok(life)
}

/// Waits until all samples that were taken and not lost are in the store.
fn stored(
    explorer: &Explorer,
    request: &Request,
    life: &Life,
    expected: u64,
    progress: &mut Progress,
) -> Result<StoredOfRuns, CliError> {
    let (runs, since_us) = (life.runs(), request.asked_us.saturating_sub(CLOCKS_US));
    let began = Instant::now();
    loop {
        let stored = wait(async { Ok(explorer.stored_of_runs(&runs, since_us).await?) })?;
        progress.status(&format!(
            "symbolizing and storing: {} of {expected} samples",
            stored.samples
        ))?;
        if stored.samples >= expected {
            return Ok(stored);
        }
        if began.elapsed() >= STORED_WITHIN {
            progress.line("not everything is stored yet: `strobe status` shows what is under way")?;
            return match stored.samples {
                0 => Err(CliError::NotStored(STORED_WITHIN)),
                _ => Ok(stored),
            };
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn show(config: &Config, args: &Args, request: &Request, life: &Life, range: Range) -> Result<(), CliError> {
    let mut selection = Selection::new(range.since_us, range.until_us);
    selection.profiler.clone_from(&request.profiler);
    selection.service.clone_from(&args.service);
    selection.pid = args.pid;
    selection.runs = life.runs();
    selection.view = View::Runs;
    let found = top::functions(config, &selection, args.limit)?;
    if args.json || args.output == Output::Json {
        return render::json(&json!({ "request": life.as_json(request.id), "top": top::as_json(&found) }));
    }
    top::print_functions(&found, &selection)?;
    let runs: String = life.runs().iter().map(|run| format!(" --run {run}")).collect();
    let of = format!(
        "--since {} --profiler {}{runs}",
        shown(range.since_us),
        request.profiler
    );
    render::say(format!(
        "\nmore of it: strobe top --by line {of}\n            strobe flamegraph --output profile.svg {of}"
    ))
}

/// What is said as it goes: lines, and on a terminal a last line that changes.
struct Progress {
    is_terminal: bool,
    open: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            open: false,
        }
    }

    fn state(&mut self, state: &RequestState, request: &Request) -> Result<(), CliError> {
        if Phase::from_code(state.phase) == Some(Phase::Running) && state.taken > 0 {
            let seconds = Duration::from_micros(request.duration_us).as_secs();
            return self.status(&format!(
                "{}: running for {seconds} s, {} samples so far",
                state.host, state.taken
            ));
        }
        self.line(&runs::line(state))
    }

    /// Says something that stays.
    fn line(&mut self, text: &str) -> Result<(), CliError> {
        self.end()?;
        render::written(writeln!(std::io::stderr(), "{}", render::plain(text)))
    }

    /// Says something that the next word overwrites; nothing where nobody looks.
    fn status(&mut self, text: &str) -> Result<(), CliError> {
        if !self.is_terminal {
            return Ok(());
        }
        self.open = true;
        let mut out = std::io::stderr();
        render::written(write!(out, "\r\x1b[2K{}", render::plain(text)).and_then(|()| out.flush()))
    }

    fn end(&mut self) -> Result<(), CliError> {
        match std::mem::take(&mut self.open) {
            true => render::written(write!(std::io::stderr(), "\r\x1b[2K")),
            false => Ok(()),
        }
    }
}
