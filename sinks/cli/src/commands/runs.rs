//! `strobe runs`: what was asked for, and what became of it.

use std::path::PathBuf;
use std::time::Duration;

use strobe_bus::Shutdown;
use strobe_event::request::NO_RUN;
use strobe_event::{Action, Phase, Request, RequestId, RequestState};

use crate::asking::{Asker, Life, Lives, who};
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::{self, now_us, shown};

/// Longest wait for what is said: how late Ctrl-C is seen.
const WAIT: Duration = Duration::from_millis(200);
/// How long hosts have to end what is cancelled.
const CANCELLED_WITHIN: Duration = Duration::from_secs(15);

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe runs list --since -1h\n  strobe runs show 5f3e\n  strobe runs watch 5f3e\n  strobe runs \
                  cancel 5f3e\n  strobe runs list -o json | jq '.[] | select(.phase == \"refused\").detail'"
)]
pub enum Command {
    /// What was asked for, the newest last.
    List {
        #[command(flatten)]
        since: Since,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// One request and what became of it on each host.
    Show {
        /// Its id, or how that begins.
        id: String,
        #[command(flatten)]
        since: Since,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Follow a request to its end.
    Watch {
        /// Its id, or how that begins.
        id: String,
        #[command(flatten)]
        since: Since,
    },
    /// End a request on every host.
    Cancel {
        /// Its id, or how that begins.
        id: String,
        #[command(flatten)]
        since: Since,
        /// The SSH key to sign with; else `ask.key` of the configuration, else ~/.ssh/id_ed25519.
        #[arg(long, env = "STROBE_KEY", value_name = "FILE")]
        key: Option<PathBuf>,
    },
}

/// How far back.
#[derive(clap::Args)]
pub struct Since {
    /// From when: `-6h`, `now-1d` or RFC 3339.
    #[arg(long, default_value = "-6h", allow_hyphen_values = true)]
    since: String,
}

impl Since {
    fn us(&self) -> Result<u64, CliError> {
        times::moment(&self.since, now_us()).map_err(CliError::Usage)
    }
}

/// Runs the command.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    match command {
        Command::List { since, output } => {
            let (_, lives) = heard(config, None, since)?;
            list(&lives, *output)
        }
        Command::Show { id, since, output } => {
            let (_, lives) = heard(config, None, since)?;
            let id = lives.find(id).map_err(CliError::Missing)?;
            show(id, &lives.0[&id], *output)
        }
        Command::Watch { id, since } => {
            let (asker, lives) = heard(config, None, since)?;
            watch(asker, lives, id)
        }
        Command::Cancel { id, since, key } => {
            let (mut asker, mut lives) = heard(config, key.as_deref(), since)?;
            let id = lives.find(id).map_err(CliError::Missing)?;
            let life = lives.0.entry(id).or_default();
            if let Some(phase) = life.end() {
                return Err(CliError::Missing(format!(
                    "request {id} is over already: {}",
                    phase.name()
                )));
            }
            let phase = cancel(&mut asker, id, life)?;
            render::say(format!("request {id}: {}", phase.name()))
        }
    }
}

fn heard(config: &Config, key: Option<&std::path::Path>, since: &Since) -> Result<(Asker, Lives), CliError> {
    let mut asker = Asker::open(config, key, since.us()?)?;
    let mut lives = Lives::default();
    asker.catch_up(|id, heard| {
        lives.take(id, heard);
    })?;
    Ok((asker, lives))
}

/// Cancels a request, and waits until its hosts have ended it.
///
/// # Errors
/// [`CliError::Unwell`] where they do not say so in time.
pub fn cancel(asker: &mut Asker, id: RequestId, life: &mut Life) -> Result<Phase, CliError> {
    let asked = life.request.clone();
    asker.ask(&cancellation(id, asked.as_ref()))?;
    let deadline = std::time::Instant::now() + CANCELLED_WITHIN;
    while std::time::Instant::now() < deadline {
        asker.listen(WAIT, |of, heard| {
            if of == id {
                life.take(heard);
            }
        })?;
        if let Some(phase) = life.end() {
            return Ok(phase);
        }
    }
    Err(CliError::Unwell(format!(
        "request {id} is not over {} s after it was cancelled: `strobe runs show {id}` says on which hosts; may the key that \
         signed cancel it there?",
        CANCELLED_WITHIN.as_secs()
    )))
}

fn cancellation(id: RequestId, of: Option<&Request>) -> Request {
    Request {
        id,
        action: Action::Cancel as u8,
        who: who(),
        why: String::new(),
        origin: String::new(),
        asked_us: now_us(),
        service: of.map(|of| of.service.clone()).unwrap_or_default(),
        region: String::new(),
        host: String::new(),
        pid: 0,
        hosts: 0,
        profiler: of.map(|of| of.profiler.clone()).unwrap_or_default(),
        arguments: Vec::new(),
        frequency_hz: 0.0,
        duration_us: 0,
        wait_us: 0,
        cause: 0,
    }
}

fn list(lives: &Lives, output: Output) -> Result<(), CliError> {
    let mut lives: Vec<(&RequestId, &Life)> = lives.0.iter().collect();
    lives.sort_by_key(|(id, life)| (life.asked_us, **id));
    if output == Output::Json {
        let all: Vec<_> = lives.iter().map(|(id, life)| life.as_json(**id)).collect();
        return render::json(&all);
    }
    let columns = [
        ("request", false),
        ("asked", false),
        ("who", false),
        ("profiler", false),
        ("of", false),
        ("hosts", true),
        ("samples", true),
        ("state", false),
        ("", false),
    ];
    let rows = lives.iter().map(|(id, life)| {
        let of = |text: fn(&Request) -> String| life.request.as_ref().map(text).unwrap_or_default();
        vec![
            id.to_string().chars().take(12).collect(),
            shown(life.asked_us),
            of(|request| request.who.clone()),
            of(|request| request.profiler.clone()),
            life.target(),
            life.hosts.len().to_string(),
            life.samples().0.to_string(),
            life.phase().to_owned(),
            life.whole
                .as_ref()
                .map(|whole| whole.detail.clone())
                .unwrap_or_default(),
        ]
    });
    render::say(render::table(&columns, rows))
}

fn show(id: RequestId, life: &Life, output: Output) -> Result<(), CliError> {
    if output == Output::Json {
        return render::json(&life.as_json(id));
    }
    let mut lines = vec![
        format!("request   {id}"),
        format!("asked     {}", shown(life.asked_us)),
    ];
    if let Some(request) = &life.request {
        lines.push(format!("by        {}", request.who));
        for (name, text) in [("because", &request.why), ("origin", &request.origin)] {
            if !text.is_empty() {
                lines.push(format!("{name:9} {text}"));
            }
        }
        lines.push(format!(
            "profiler  {} for {:?} of {}",
            request.profiler,
            Duration::from_micros(request.duration_us),
            life.target()
        ));
    }
    let detail = life
        .whole
        .as_ref()
        .map(|whole| whole.detail.as_str())
        .unwrap_or_default();
    lines.push(format!("state     {} {detail}", life.phase()));
    render::say(render::plain(&lines.join("\n")))?;
    if life.hosts.is_empty() {
        return Ok(());
    }
    let columns = [
        ("host", false),
        ("state", false),
        ("since", false),
        ("samples", true),
        ("lost", true),
        ("run", false),
        ("", false),
    ];
    render::say("")?;
    render::say(render::table(&columns, life.hosts.values().map(host_row)))
}

fn host_row(state: &RequestState) -> Vec<String> {
    vec![
        state.host.clone(),
        Phase::from_code(state.phase).map_or("?", Phase::name).to_owned(),
        shown(state.time_us),
        state.taken.to_string(),
        state.dropped.to_string(),
        if state.run == NO_RUN {
            String::new()
        } else {
            state.run.to_string()
        },
        state.detail.clone(),
    ]
}

fn watch(mut asker: Asker, mut lives: Lives, id: &str) -> Result<(), CliError> {
    let id = lives.find(id).map_err(CliError::Missing)?;
    let shutdown = Shutdown::on_signals()?;
    let life = lives.0.entry(id).or_default();
    show(id, life, Output::Table)?;
    while life.end().is_none() && !shutdown.is_requested() {
        let mut lines = Vec::new();
        asker.listen(WAIT, |of, heard| {
            if of == id
                && let Some(state) = life.take(heard)
            {
                lines.push(line(&state));
            }
        })?;
        lines.iter().try_for_each(render::say)?;
    }
    Ok(())
}

/// Returns a state on one line.
pub fn line(state: &RequestState) -> String {
    let phase = Phase::from_code(state.phase).map_or("?", Phase::name);
    let host = if state.host.is_empty() {
        "request"
    } else {
        &state.host
    };
    let mut line = format!("{host}: {phase}");
    if state.taken > 0 {
        line += &format!(", {} samples", state.taken);
    }
    if !state.detail.is_empty() {
        line += &format!(" ({})", state.detail);
    }
    render::plain(&line)
}
