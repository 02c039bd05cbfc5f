//! `strobe audit`: who asked for what, who changed what, and what was refused.

use strobe_explore::{AuditAsked, AuditRow, Explorer, Range};

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::{self, now_us, shown};

/// Which records.
#[derive(clap::Args)]
#[command(
    after_help = "`~` before a name says that no signature proved it: it is what was claimed.\n\nEXAMPLES\n  strobe audit --since -1h\n  \
                  strobe audit --service checkout --outcome refused\n  strobe audit --subject 5f3e\n  strobe audit --since -7d -o json | jq -r \
                  '.[] | select(.outcome == \"refused\") | [.reporter, .reason] | @tsv' | sort | uniq -c"
)]
pub struct Args {
    /// From when: `-6h`, `now-1d` or RFC 3339.
    #[arg(long, default_value = "-1d", allow_hyphen_values = true)]
    since: String,
    /// Until when.
    #[arg(long, default_value = "now", allow_hyphen_values = true)]
    until: String,
    /// Of this person or rule.
    #[arg(long)]
    who: Option<String>,
    /// About this service.
    #[arg(long)]
    service: Option<String>,
    /// About this profiler.
    #[arg(long)]
    profiler: Option<String>,
    /// Of this kind.
    #[arg(long, value_parser = actions())]
    action: Option<String>,
    /// That came to this.
    #[arg(long, value_parser = outcomes())]
    outcome: Option<String>,
    /// About the request or the configuration whose name begins so.
    #[arg(long)]
    subject: Option<String>,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn actions() -> clap::builder::PossibleValuesParser {
    strobe_event::AuditAction::ALL
        .map(strobe_event::AuditAction::name)
        .into()
}

fn outcomes() -> clap::builder::PossibleValuesParser {
    strobe_event::AuditOutcome::ALL
        .map(strobe_event::AuditOutcome::name)
        .into()
}

/// Shows the records; exit code 3 where there are none.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let now_us = now_us();
    let moment = |text: &str| times::moment(text, now_us).map_err(CliError::Usage);
    let range = Range {
        since_us: moment(&args.since)?,
        until_us: moment(&args.until)?,
    };
    let asked = AuditAsked {
        who: args.who.clone(),
        service: args.service.clone(),
        profiler: args.profiler.clone(),
        action: args.action.clone(),
        outcome: args.outcome.clone(),
        subject: args.subject.as_ref().map(|subject| subject.to_lowercase()),
    };
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let rows = wait(async { Ok(explorer.audit(range, &asked).await?) })?;
    if args.output == Output::Json {
        return render::json(&rows);
    }
    if rows.is_empty() {
        return Err(render::nothing(range));
    }
    let columns = ["time", "who", "what", "of", "outcome", "says", "subject", ""];
    let columns = columns.map(|name| (name, false));
    render::say(render::table(&columns, rows.iter().map(shown_row)))
}

fn shown_row(row: &AuditRow) -> Vec<String> {
    let mut of = vec![row.service.as_str(), &row.target];
    of.retain(|text| !text.is_empty());
    let what = match row.profiler.is_empty() {
        true => row.action.clone(),
        false => format!("{} {}", row.action, row.profiler),
    };
    let outcome = match row.reason.is_empty() {
        true => row.outcome.clone(),
        false => format!("{}: {}", row.outcome, row.reason),
    };
    let detail = if row.detail.is_empty() {
        &row.why
    } else {
        &row.detail
    };
    vec![
        shown(u64::try_from(row.time_us).unwrap_or(0)),
        format!("{}{}", if row.proved { "" } else { "~" }, row.who),
        what,
        of.join(", "),
        outcome,
        row.reporter.clone(),
        row.subject.chars().take(24).collect(),
        detail.clone(),
    ]
}
