//! `strobe doctor`: what works, what does not, and what to do.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use strobe_bus::{TopicAction, admin};
use strobe_explore::{ClickHouse, Explorer};

use crate::commands::wait;
use crate::config::Config;
use crate::error::{CliError, with_causes};
use crate::render::{self, Output};

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES\n  strobe doctor\n  strobe doctor --spool-age-limit 12h -o json")]
pub struct Args {
    /// The agents' `spool.age_limit`, to check the order of retentions.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "24h")]
    spool_age_limit: Duration,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Works,
    Warning,
    Fails,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Works => "ok",
            Self::Warning => "warning",
            Self::Fails => "failed",
        }
    }
}

/// One line of the report.
struct Check {
    name: &'static str,
    state: State,
    found: String,
    remedy: &'static str,
}

fn check(
    name: &'static str,
    works: bool,
    otherwise: State,
    found: impl Into<String>,
    remedy: &'static str,
) -> Check {
    Check {
        name,
        state: if works { State::Works } else { otherwise },
        found: found.into(),
        remedy,
    }
}

/// Checks and reports.
///
/// # Errors
/// [`CliError::Said`] when something does not work.
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let mut checks = host();
    checks.extend(bus(config, args.spool_age_limit));
    checks.extend(store(config));
    checks.push(symbols(config));
    let failed = checks.iter().any(|check| check.state == State::Fails);
    match args.output {
        Output::Json => render::json(
            &checks
                .iter()
                .map(|check| {
                    json!({ "check": check.name, "state": check.state.word(), "found": check.found,
                            "remedy": (check.state != State::Works).then_some(check.remedy) })
                })
                .collect::<Vec<_>>(),
        )?,
        Output::Table => {
            let rows = checks.iter().map(|check| {
                let remedy = if check.state == State::Works {
                    ""
                } else {
                    check.remedy
                };
                vec![
                    check.state.word().to_owned(),
                    check.name.to_owned(),
                    check.found.clone(),
                    remedy.to_owned(),
                ]
            });
            let columns = [
                ("", false),
                ("what", false),
                ("found", false),
                ("what to do", false),
            ];
            render::say(render::table(&columns, rows))?;
        }
    }
    if failed { Err(CliError::Said) } else { Ok(()) }
}

fn sysctl(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Capabilities that the agent uses, by their bits.
const CAPABILITIES: [(u32, &str, bool); 6] = [
    (39, "CAP_BPF", true),
    (38, "CAP_PERFMON", true),
    (19, "CAP_SYS_PTRACE", false),
    (34, "CAP_SYSLOG", false),
    (2, "CAP_DAC_READ_SEARCH", false),
    (40, "CAP_CHECKPOINT_RESTORE", false),
];

fn host() -> Vec<Check> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let btf = Path::new("/sys/kernel/btf/vmlinux");
    let held = fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))?
            .trim()
            .to_owned();
        u64::from_str_radix(&line, 16).ok()
    });
    let missing = |required: bool| {
        let held = held.unwrap_or(0);
        let names = CAPABILITIES
            .iter()
            .filter(|&&(bit, _, needed)| needed == required && held >> bit & 1 == 0);
        names.map(|&(_, name, _)| name).collect::<Vec<_>>().join(", ")
    };
    let (required, useful) = (missing(true), missing(false));
    let paranoid = sysctl("/proc/sys/kernel/perf_event_paranoid");
    let restrict = sysctl("/proc/sys/kernel/kptr_restrict");
    let shown = |value: Option<i64>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let none = |names: &str| {
        if names.is_empty() {
            "all held".to_owned()
        } else {
            format!("this user lacks {names}")
        }
    };
    vec![
        check(
            "kernel",
            version >= (5, 15),
            State::Fails,
            release,
            "the agent needs Linux 5.15 or later",
        ),
        check(
            "kernel types (BTF)",
            btf.exists(),
            State::Fails,
            btf.display().to_string(),
            "use a distribution's kernel, or build it with CONFIG_DEBUG_INFO_BTF",
        ),
        check(
            "capabilities to profile",
            required.is_empty(),
            State::Warning,
            none(&required),
            "only the agent needs them: run it as root or give it CAP_BPF and CAP_PERFMON; `strobe-agent check` says more",
        ),
        check(
            "capabilities for names",
            useful.is_empty(),
            State::Warning,
            none(&useful),
            "without them some files and kernel functions stay without names; the agent's unit may list them",
        ),
        check(
            "kernel.perf_event_paranoid",
            paranoid.is_some_and(|level| level <= 2) || required.is_empty(),
            State::Warning,
            shown(paranoid),
            "above 2 some kernels ask for CAP_SYS_ADMIN: sysctl kernel.perf_event_paranoid=2",
        ),
        check(
            "kernel.kptr_restrict",
            restrict.is_some_and(|level| level < 2),
            State::Warning,
            shown(restrict),
            "2 hides kernel addresses from everybody: sysctl kernel.kptr_restrict=1",
        ),
    ]
}

fn bus(config: &Config, spool_age_limit: Duration) -> Vec<Check> {
    const REMEDY: &str = "start the broker, or name another one by `bus.bootstrap`";
    let bus = match config.bus() {
        Ok(bus) => bus,
        Err(error) => {
            return vec![check(
                "bus",
                false,
                State::Fails,
                with_causes(&error),
                "correct the section [bus]",
            )];
        }
    };
    let changes = match admin::apply(&bus, true) {
        Ok(changes) => changes,
        Err(error) => return vec![check("broker", false, State::Fails, with_causes(&error), REMEDY)],
    };
    let wrong: Vec<String> = changes
        .iter()
        .filter(|change| change.action != TopicAction::Unchanged)
        .map(ToString::to_string)
        .collect();
    let missing = changes
        .iter()
        .any(|change| matches!(change.action, TopicAction::Created { .. }));
    let found = if wrong.is_empty() {
        format!("{} topics", changes.len())
    } else {
        wrong.join("; ")
    };
    let retention = bus
        .specs(1)
        .into_iter()
        .map(|spec| spec.retention)
        .min()
        .unwrap_or_default();
    let life = config.sink.oldest;
    let order = spool_age_limit < retention && retention <= life;
    vec![
        check("broker", true, State::Fails, bus.bootstrap().to_owned(), REMEDY),
        check(
            "topics",
            wrong.is_empty(),
            if missing { State::Fails } else { State::Warning },
            found,
            "strobe topics apply",
        ),
        check(
            "order of retentions",
            order,
            State::Fails,
            format!(
                "spool {} < bus {} <= stored sequences {}",
                humantime::format_duration(spool_age_limit),
                humantime::format_duration(retention),
                humantime::format_duration(life)
            ),
            "what comes late must still be recognized: lower the agents' spool.age_limit, or raise the others",
        ),
    ]
}

fn store(config: &Config) -> Vec<Check> {
    const TABLES: [&str; 7] = [
        "samples",
        "stacks",
        "frames",
        "tags",
        "totals_hourly",
        "batches",
        "runs",
    ];
    let reader = match config.clickhouse.reader() {
        Ok(reader) => reader,
        Err(error) => {
            let remedy = "correct the section [clickhouse]";
            return vec![check(
                "ClickHouse",
                false,
                State::Fails,
                with_causes(&error),
                remedy,
            )];
        }
    };
    let found = wait(async { Ok(Explorer::new(&reader).query("SHOW TABLES").await?) });
    let table = match found {
        Ok(table) => table,
        Err(error) => {
            let remedy =
                "start it, or name another one by `clickhouse.url`, its users and their password files";
            return vec![check(
                "ClickHouse",
                false,
                State::Fails,
                with_causes(&error),
                remedy,
            )];
        }
    };
    let there: Vec<&str> = table
        .rows
        .iter()
        .filter_map(|row| row.first()?.as_str())
        .collect();
    let missing: Vec<&str> = TABLES
        .into_iter()
        .filter(|table| !there.contains(table))
        .collect();
    let names = if missing.is_empty() {
        format!("{} tables", TABLES.len())
    } else {
        format!("missing: {}", missing.join(", "))
    };
    let mut checks = vec![
        check("ClickHouse", true, State::Fails, reader.url().to_owned(), ""),
        check(
            "tables",
            missing.is_empty(),
            State::Fails,
            names,
            "strobe ddl apply",
        ),
    ];
    let life = config.sink.oldest;
    const REMEDY: &str =
        "what is stored is known by its rows: lower `sink.oldest`, or lengthen the TTL of `samples`";
    checks.push(match life_of_samples(&reader) {
        Some(kept) => check(
            "life of samples",
            life <= kept,
            State::Fails,
            format!(
                "stored sequences {} <= samples {}",
                humantime::format_duration(life),
                humantime::format_duration(kept)
            ),
            REMEDY,
        ),
        None => check(
            "life of samples",
            false,
            State::Warning,
            "the TTL of `samples` is not known, or not in days",
            REMEDY,
        ),
    });
    checks
}

/// Returns how long the store keeps samples, by the table as it is; nothing where it does not say so in days.
fn life_of_samples(reader: &ClickHouse) -> Option<Duration> {
    const DAYS: &str = "SELECT toUInt32OrZero(extract(engine_full, 'TTL .*toIntervalDay\\\\((\\\\d+)\\\\)')) FROM system.tables \
                        WHERE database = currentDatabase() AND name = 'samples'";
    let table = wait(async { Ok(Explorer::new(reader).query(DAYS).await?) }).ok()?;
    let value = table.rows.first()?.first()?;
    let days = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    // Days are counted from midnight: the last one may be short.
    (days > 0).then(|| Duration::from_secs((days - 1) * 86_400))
}

fn symbols(config: &Config) -> Check {
    let folder = &config.processor.symbol_store;
    let found = folder.display().to_string();
    let remedy =
        "name the folder that agents upload to by `processor.symbol_store`, and let this user read it";
    check(
        "symbol store",
        !found.is_empty() && fs::read_dir(folder).is_ok(),
        State::Warning,
        found,
        remedy,
    )
}
