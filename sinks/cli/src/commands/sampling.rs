//! `strobe sampling`: what is desired, observed and in force; and whether the weights add up.

use serde_json::json;
use strobe_bus::compacted;
use strobe_bus::{BusSettings, Headers, Outgoing, ResendingProducer, Topic, WindowLimits};
use strobe_event::{AuditAction, CpuSource, TunerRecord, WHOLE_HOST, codec};
use strobe_explore::{Explorer, ServiceHour};
use strobe_sampling::config::{NAME, ProfilerConfig, SamplingConfig};
use strobe_sampling::spread::Total;

use crate::auditing::changed;
use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::selection::Span;
use crate::times::shown;

mod explain;
mod limits;

/// What to do.
#[derive(clap::Subcommand)]
#[command(
    after_help = "EXAMPLES\n  strobe sampling set --samples-per-hour 40000\n  strobe sampling show\n  strobe sampling \
                        explain orders\n  strobe sampling check --since -6h\n  strobe sampling limit --service orders --samples 20000\n  \
                        strobe sampling lift orders --for 2h"
)]
pub enum Command {
    /// Set how many samples per hour are desired of each service, and between what plans may lie.
    Set(SetArgs),
    /// Limit what services, teams or the fleet may send in an hour: more is thinned, and the rest weighs more.
    Limit(limits::LimitArgs),
    /// Lift the limit of a service for a while.
    Lift(limits::LiftArgs),
    /// What is desired, observed and in force, for every service.
    Show {
        /// Only this service.
        service: Option<String>,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Why the plan of a service is as it is, and what the next window will do.
    Explain {
        /// The service.
        service: String,
        /// The profiler.
        #[arg(default_value = "cpu")]
        profiler: String,
    },
    /// Compare the weighted CPU time of each service and hour with the kernel's own account.
    Check {
        #[command(flatten)]
        span: Span,
        /// Only this service; `*` is the whole of all hosts.
        #[arg(long)]
        service: Option<String>,
        /// The profiler.
        #[arg(long, default_value = "cpu")]
        profiler: String,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
}

/// What is to be set; what is not given stays as it is.
#[derive(clap::Args)]
pub struct SetArgs {
    /// The profiler.
    #[arg(long, default_value = "cpu")]
    profiler: String,
    /// Samples per hour of each service.
    #[arg(long, value_name = "N")]
    samples_per_hour: Option<f64>,
    /// Length of slots in seconds; the agents' `schedule.slot` must be the same.
    #[arg(long, value_name = "SECONDS")]
    slot: Option<f64>,
    /// Every slot runs with at least this probability.
    #[arg(long, value_name = "Q")]
    run_probability_min: Option<f64>,
    /// The shortest run in seconds.
    #[arg(long, value_name = "SECONDS")]
    run_min: Option<f64>,
    /// The longest run in seconds.
    #[arg(long, value_name = "SECONDS")]
    run_max: Option<f64>,
    /// The lowest frequency.
    #[arg(long, value_name = "HZ")]
    frequency_min: Option<f64>,
    /// The highest frequency.
    #[arg(long, value_name = "HZ")]
    frequency_max: Option<f64>,
    /// Most samples per hour that a service may send; more are thinned, and the rest weigh more.
    #[arg(long, value_name = "N")]
    service_limit: Option<f64>,
    /// Most samples per hour that all services together may send.
    #[arg(long, value_name = "N")]
    fleet_limit: Option<f64>,
}

/// Sets, shows, explains or checks.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    match command {
        Command::Set(args) => set(&config.bus()?, args),
        Command::Limit(args) => limits::limit(&config.bus()?, args),
        Command::Lift(args) => limits::lift(&config.bus()?, args),
        Command::Show { service, output } => show(&config.bus()?, service.as_deref(), *output),
        Command::Explain { service, profiler } => explain::explain(&config.bus()?, service, profiler),
        Command::Check {
            span,
            service,
            profiler,
            output,
        } => {
            let explorer = Explorer::new(&config.clickhouse.reader()?);
            let range = span.range()?;
            let mut hours = wait(async { Ok(explorer.service_hours(profiler, range).await?) })?;
            hours.retain(|hour| service.as_ref().is_none_or(|service| *service == hour.service));
            check(&hours, *output)
        }
    }
}

fn configured(bus: &BusSettings) -> Result<SamplingConfig, CliError> {
    let table = compacted::read_all(bus, &bus.topic(Topic::Config))?;
    let Some(value) = table.get(NAME.as_bytes()) else {
        return Ok(SamplingConfig::default());
    };
    SamplingConfig::from_json(value).map_err(|error| CliError::Usage(format!("{NAME}: {error}")))
}

fn set(bus: &BusSettings, args: &SetArgs) -> Result<(), CliError> {
    let mut config = configured(bus)?;
    let profiler: &mut ProfilerConfig = config.profilers.entry(args.profiler.clone()).or_default();
    for (value, given) in [
        (&mut profiler.samples_per_hour, args.samples_per_hour),
        (&mut profiler.slot_s, args.slot),
        (&mut profiler.run_probability_min, args.run_probability_min),
        (&mut profiler.run_min_s, args.run_min),
        (&mut profiler.run_max_s, args.run_max),
        (&mut profiler.frequency_min_hz, args.frequency_min),
        (&mut profiler.frequency_max_hz, args.frequency_max),
    ] {
        *value = given.unwrap_or(*value);
    }
    for (value, given) in [
        (&mut config.limits.service.samples, args.service_limit),
        (&mut config.limits.fleet.samples, args.fleet_limit),
    ] {
        *value = given.or(*value);
    }
    let rate = profiler.samples_per_hour;
    put(bus, config)?;
    let detail = format!(
        "{rate} samples per hour of each service are desired of {}",
        args.profiler
    );
    changed(bus, AuditAction::Configure, NAME, "", &detail);
    render::say(format!(
        "{rate} samples per hour of each service are desired of `{}`; `strobe run tuner` sees to it",
        args.profiler
    ))
}

/// Puts a configuration in force.
pub(super) fn put(bus: &BusSettings, config: SamplingConfig) -> Result<(), CliError> {
    let config = config
        .validate()
        .map_err(|error| CliError::Usage(error.to_string()))?;
    let text = serde_json::to_string(&config).map_err(|error| CliError::Usage(error.to_string()))?;
    let mut producer = ResendingProducer::new(bus, WindowLimits::default())?;
    let message = Outgoing {
        topic: bus.topic(Topic::Config).into(),
        key: Some(NAME.into()),
        headers: Headers::new(),
        payload: Some(text.into_bytes().into()),
    };
    // The window is empty: there is room.
    if producer.push(1, message).is_ok() {
        let outcomes = producer.flush(std::time::Duration::from_secs(30));
        if let [strobe_bus::Outcome::Acknowledged { .. }] = outcomes[..] {
            return Ok(());
        }
    }
    Err(CliError::Usage(format!(
        "the broker did not take {NAME}: is it running? `strobe doctor` says more"
    )))
}

fn states(bus: &BusSettings) -> Result<Vec<TunerRecord>, CliError> {
    let table = compacted::read_all(bus, &bus.topic(Topic::Tuner))?;
    let read = |value| codec::decode_framed::<TunerRecord>(value).ok();
    let mut states: Vec<TunerRecord> = table.values().filter_map(|value| read(value)).collect();
    states.sort_by(|a, b| (&a.plan.service, &a.plan.profiler).cmp(&(&b.plan.service, &b.plan.profiler)));
    Ok(states)
}

fn show(bus: &BusSettings, service: Option<&str>, output: Output) -> Result<(), CliError> {
    let mut states = states(bus)?;
    states.retain(|state| service.is_none_or(|service| service == state.plan.service));
    if output == Output::Json {
        let rows = states.iter().map(|state| {
            let plan = &state.plan;
            json!({
                "service": plan.service, "profiler": plan.profiler, "desired_per_hour": state.desired_per_hour,
                "observed_per_hour": state.observed_per_hour, "expected_per_hour": state.expected_per_hour,
                "reachable_per_hour": state.reachable_per_hour, "run_probability": plan.run_probability,
                "planned_us": plan.planned_us, "frequency_hz": plan.frequency_hz, "keep": plan.keep,
                "since_us": plan.since_us, "why": plan.why, "live_hosts": state.live_hosts,
                "window_us": state.window_us, "doubted": state.doubted, "same_name": state.same_name,
            })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    if states.is_empty() {
        let none = service.map_or_else(|| "any service".to_owned(), |service| format!("`{service}`"));
        return render::say(format!(
            "No plan is in force for {none}: hosts are profiled all of the time. `strobe sampling set` says what is desired."
        ));
    }
    let columns = [
        ("service", false),
        ("profiler", false),
        ("desired/h", true),
        ("last window/h", true),
        ("expected/h", true),
        ("q", true),
        ("run", true),
        ("Hz", true),
        ("keep", true),
        ("hosts", true),
        ("since", false),
        ("why", false),
    ];
    let rows = states.iter().map(|state| {
        let plan = &state.plan;
        vec![
            plan.service.clone(),
            plan.profiler.clone(),
            format!("{:.0}", state.desired_per_hour),
            format!("{:.0}", state.observed_per_hour),
            format!("{:.0}", state.expected_per_hour),
            format!("{:.5}", plan.run_probability),
            format!("{:.1} s", plan.planned_us as f64 / 1e6),
            format!("{:.1}", plan.frequency_hz),
            format!("{:.3}", plan.keep),
            state.live_hosts.to_string(),
            shown(plan.since_us),
            plan.why.clone(),
        ]
    });
    render::say(render::table(&columns, rows))
}

/// The verdict on an hour.
fn verdict(hour: &ServiceHour) -> String {
    match (hour.total, hour.cpu_source) {
        (Total::NotSampled, _) => "not sampled".into(),
        (_, CpuSource::Unknown) => "no account".into(),
        (Total::FewRuns { .. }, _) => "fewer than 10 runs".into(),
        (total, _) => match total.off_by(hour.cpu_seconds) {
            Some(off) if off.abs() <= 1.0 => "agrees".into(),
            Some(off) => format!("{:+.1} intervals off", off),
            None => "agrees".into(),
        },
    }
}

fn check(hours: &[ServiceHour], output: Output) -> Result<(), CliError> {
    let number = |total: Total| match total {
        Total::NotSampled => (None, None),
        Total::FewRuns { total, .. } => (Some(total), None),
        Total::Known {
            total, plus_minus, ..
        } => (Some(total), Some(plus_minus)),
    };
    if output == Output::Json {
        let rows = hours.iter().map(|hour| {
            let (total, plus_minus) = number(hour.total);
            json!({
                "service": hour.service, "hour_us": hour.hour_us, "hosts": hour.hosts, "runs": hour.runs,
                "refused": hour.refused, "profiled": hour.profiled, "cpu_seconds": total,
                "plus_minus": plus_minus, "kernel_cpu_seconds": hour.cpu_seconds,
                "kernel_source": hour.cpu_source.name(), "verdict": verdict(hour),
            })
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    if hours.is_empty() {
        return render::say(
            "No slot was planned in this time: is an agent running? `strobe status` says more.",
        );
    }
    let columns = [
        ("service", false),
        ("hour", false),
        ("hosts", true),
        ("runs", true),
        ("profiled", true),
        ("CPU s by samples", true),
        ("±", true),
        ("CPU s by the kernel", true),
        ("from", false),
        ("verdict", false),
    ];
    let rows = hours.iter().map(|hour| {
        let (total, plus_minus) = number(hour.total);
        let shown_number =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
        let service = if hour.service == WHOLE_HOST {
            "(all)"
        } else {
            &hour.service
        };
        vec![
            service.to_owned(),
            shown(hour.hour_us),
            hour.hosts.to_string(),
            hour.runs.to_string(),
            format!("{:.1} %", 100.0 * hour.profiled),
            shown_number(total),
            shown_number(plus_minus),
            format!("{:.2}", hour.cpu_seconds),
            hour.cpu_source.name().to_owned(),
            verdict(hour),
        ]
    });
    render::say(render::table(&columns, rows))
}
