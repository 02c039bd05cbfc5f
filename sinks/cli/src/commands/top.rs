//! `strobe top`: who takes how much, alone and with everything it calls.

use serde_json::json;
use strobe_explore::{By, Completeness, Explorer, Intervals, Range, Selection, Sort, Top, TopRow};
use strobe_sampling::spread::Total;

use crate::commands::{not_found, wait};
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::selection;
use crate::times::shown;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe top --since -15m --service orders\n  strobe top --by line --focus apply_discounts\n  strobe top --by tag --key copy\n  strobe top --tag copy=vector --raw\n  \
                        strobe top --since -10m --baseline now-1h10m..now-1h --sort change\n  strobe top -o json | jq \
                        '.rows[0].name'"
)]
pub struct Args {
    #[command(flatten)]
    selection: selection::Args,
    #[command(flatten)]
    baseline: selection::Baseline,
    /// What a row is.
    #[arg(long, value_enum, default_value = "function")]
    by: ByArg,
    /// With `--by tag`: only tags of this key, and a row for what has none. Of a key of which a stack takes one, rows add up
    /// to the whole.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// What the heaviest are by.
    #[arg(long, value_enum, default_value = "self")]
    sort: SortArg,
    /// Rows.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ByArg {
    Function,
    Line,
    Module,
    Service,
    Host,
    Thread,
    /// A tag that a stack schema gave; a stack with several counts for each.
    Tag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SortArg {
    #[value(name = "self")]
    SelfWeight,
    Total,
    Change,
}

impl From<ByArg> for By {
    fn from(by: ByArg) -> Self {
        match by {
            ByArg::Function => Self::Function,
            ByArg::Line => Self::Line,
            ByArg::Module => Self::Module,
            ByArg::Service => Self::Service,
            ByArg::Host => Self::Host,
            ByArg::Thread => Self::Thread,
            ByArg::Tag => Self::Tag,
        }
    }
}

impl From<SortArg> for Sort {
    fn from(sort: SortArg) -> Self {
        match sort {
            SortArg::SelfWeight => Self::SelfWeight,
            SortArg::Total => Self::Total,
            SortArg::Change => Self::Change,
        }
    }
}

/// What is printed.
pub struct Answer {
    top: Top,
    complete: Completeness,
    /// The ±, where they can be had.
    intervals: Option<Intervals>,
    /// Samples of the selection, whatever `--focus` and `--ignore` leave of their stacks.
    samples: u64,
}

/// Prints the top.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let selection = args.selection.selection()?;
    let baseline = args.baseline.selection(&selection)?;
    if args.key.is_some() && args.by != ByArg::Tag {
        return Err(CliError::Usage("--key goes with --by tag".into()));
    }
    let rows = Rows {
        by: args.by,
        key: args.key.as_deref(),
        sort: args.sort,
        limit: args.limit,
    };
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    let answer = answer(&explorer, &selection, baseline.as_ref(), &rows)?;
    let nothing = answer.samples == 0 && answer.top.baseline_total <= 0.0;
    match args.output {
        Output::Json => render::json(&as_json(&answer))?,
        Output::Table if nothing => {}
        Output::Table => as_table(&answer, &selection, args.by)?,
    }
    match nothing {
        true => Err(not_found(&explorer, &selection)),
        false => Ok(()),
    }
}

/// Which rows are asked for.
struct Rows<'a> {
    by: ByArg,
    key: Option<&'a str>,
    sort: SortArg,
    limit: usize,
}

fn answer(
    explorer: &Explorer,
    selection: &Selection,
    baseline: Option<&Selection>,
    rows: &Rows<'_>,
) -> Result<Answer, CliError> {
    let (by, sort) = (rows.by.into(), rows.sort.into());
    wait(async {
        let totals = explorer.stack_totals(selection).await?;
        let mut top = match rows.key {
            Some(key) => {
                explorer
                    .top_tags(selection, baseline, key, sort, rows.limit)
                    .await?
            }
            None => explorer.top(selection, baseline, by, sort, rows.limit).await?,
        };
        let intervals = match rows.key {
            // Of values of a tag there is no ± yet.
            Some(_) => None,
            None => explorer.intervals(selection, by, &top.rows).await?,
        };
        if let Some(intervals) = &intervals {
            top.correct(intervals.correction);
        }
        Ok(Answer {
            top,
            intervals,
            complete: explorer.completeness(selection).await?,
            samples: totals.iter().map(|stack| stack.samples).sum(),
        })
    })
}

/// Returns the heaviest functions of a selection.
///
/// # Errors
/// [`CliError::Explore`].
pub fn functions(config: &Config, selection: &Selection, limit: usize) -> Result<Answer, CliError> {
    let rows = Rows {
        by: ByArg::Function,
        key: None,
        sort: SortArg::SelfWeight,
        limit,
    };
    answer(
        &Explorer::new(&config.clickhouse.reader()?),
        selection,
        None,
        &rows,
    )
}

/// Prints what [`functions`] returned.
///
/// # Errors
/// [`CliError::Io`].
pub fn print_functions(answer: &Answer, selection: &Selection) -> Result<(), CliError> {
    as_table(answer, selection, ByArg::Function)
}

/// Returns an answer for scripts.
pub fn as_json(
    Answer {
        top,
        complete,
        intervals,
        samples,
    }: &Answer,
) -> serde_json::Value {
    let cores = |range: Range, weight: f64| range.cores(weight);
    let plus_minus = |total: &Total| match *total {
        Total::Known { plus_minus, .. } => Some(cores(top.range, plus_minus * 1e9)),
        _ => None,
    };
    let rows = top.rows.iter().enumerate().map(|(at, row)| {
        let known = intervals.as_ref().and_then(|intervals| intervals.rows.get(at));
        let mut value = json!({
            "self_plus_minus_cores": known.and_then(|known| plus_minus(&known.0)),
            "total_plus_minus_cores": known.and_then(|known| plus_minus(&known.1)),
            "name": row.name, "file": row.file, "line": row.line, "module": row.module,
            "self_cores": cores(top.range, row.self_weight), "total_cores": cores(top.range, row.total),
            "self_share": share(row.self_weight, top.total), "total_share": share(row.total, top.total),
        });
        if let Some(range) = top.baseline {
            value["baseline_self_cores"] = cores(range, row.baseline_self).into();
            value["baseline_total_cores"] = cores(range, row.baseline_total).into();
        }
        value
    });
    let ends: serde_json::Map<_, _> = complete
        .by_end
        .iter()
        .map(|(end, weight)| (end.name().to_owned(), share(*weight, complete.total).into()))
        .collect();
    json!({
        "since": shown(top.range.since_us), "until": shown(top.range.until_us),
        "cores": cores(top.range, top.total), "samples": samples,
        "plus_minus_cores": intervals.as_ref().and_then(|intervals| plus_minus(&intervals.whole)),
        "correction": intervals.as_ref().map(|intervals| intervals.correction),
        "complete_share": complete.share(), "stack_end_shares": ends,
        "rows": rows.collect::<Vec<_>>(), "row_count": top.row_count,
    })
}

fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

fn as_table(
    Answer {
        top,
        complete,
        intervals,
        samples,
    }: &Answer,
    selection: &Selection,
    by: ByArg,
) -> Result<(), CliError> {
    let range = format!("{} to {}", shown(top.range.since_us), shown(top.range.until_us));
    let cores = top.range.cores(top.total);
    let of = match (&selection.focus, &selection.ignore) {
        (None, None) => format!("{samples} samples"),
        _ => format!("in the chosen stacks of {samples} samples"),
    };
    let known = match intervals.as_ref().map(|intervals| intervals.whole) {
        Some(Total::Known { plus_minus, .. }) => format!(" ± {:.2}", top.range.cores(plus_minus * 1e9)),
        Some(Total::FewRuns { runs, .. }) => format!(" (fewer than 10 runs: {runs})"),
        _ => String::new(),
    };
    render::say(format!("{range}: {cores:.2} cores{known}, {of}"))?;
    if let Some(range) = top.baseline.filter(|_| top.baseline_total <= 0.0) {
        eprintln!(
            "nothing is stored of the baseline, {} to {}: every row looks new",
            shown(range.since_us),
            shown(range.until_us)
        );
    }
    say_complete(complete)?;
    let stacks = matches!(by, ByArg::Function | ByArg::Line | ByArg::Module);
    let with_intervals = intervals.is_some();
    let mut columns = vec![("self", true)];
    columns.extend(with_intervals.then_some(("±", true)));
    columns.push(("self %", true));
    if stacks {
        columns.push(("total", true));
        columns.extend(with_intervals.then_some(("±", true)));
        columns.push(("total %", true));
    }
    if top.baseline.is_some() {
        columns.push(("change", true));
    }
    columns.push((name_of(by), false));
    if matches!(by, ByArg::Function | ByArg::Line) {
        columns.push(("where", false));
    }
    render::say(render::table(
        &columns,
        top.rows.iter().enumerate().map(|(at, row)| {
            cells(
                top,
                row,
                by,
                stacks,
                intervals.as_ref().map(|known| &known.rows[at]),
            )
        }),
    ))?;
    if top.row_count > top.rows.len() {
        render::say(format!(
            "{} more; --limit shows more",
            top.row_count - top.rows.len()
        ))?;
    }
    Ok(())
}

fn say_complete(complete: &Completeness) -> Result<(), CliError> {
    let Some(share) = complete.share() else {
        return Ok(());
    };
    let mut cut: Vec<String> = complete
        .by_end
        .iter()
        .filter(|(end, _)| !end.is_complete())
        .take(3)
        .map(|(end, weight)| format!("{} {}", end.name(), render::per_cent(*weight, complete.total)))
        .collect();
    if complete.not_stored > 0.0 {
        cut.push(format!(
            "stack not stored {}",
            render::per_cent(complete.not_stored, complete.total)
        ));
    }
    let cut = if cut.is_empty() {
        String::new()
    } else {
        format!(" (cut: {})", cut.join(", "))
    };
    render::say(format!(
        "{:.1} % of the time has its whole stack{cut}\n",
        100.0 * share
    ))
}

fn name_of(by: ByArg) -> &'static str {
    match by {
        ByArg::Function | ByArg::Line => "function",
        ByArg::Module => "module",
        ByArg::Service => "service",
        ByArg::Host => "host",
        ByArg::Thread => "thread",
        ByArg::Tag => "tag",
    }
}

fn cells(top: &Top, row: &TopRow, by: ByArg, stacks: bool, known: Option<&(Total, Total)>) -> Vec<String> {
    let plus_minus = |total: &Total| match *total {
        Total::Known { plus_minus, .. } => render::cores(top.range.cores(plus_minus * 1e9)),
        Total::FewRuns { .. } => "< 10 runs".into(),
        Total::NotSampled => "-".into(),
    };
    let mut cells = vec![render::cores(top.range.cores(row.self_weight))];
    cells.extend(known.map(|known| plus_minus(&known.0)));
    cells.push(render::per_cent(row.self_weight, top.total));
    if stacks {
        cells.push(render::cores(top.range.cores(row.total)));
        cells.extend(known.map(|known| plus_minus(&known.1)));
        cells.push(render::per_cent(row.total, top.total));
    }
    if let Some(baseline) = top.baseline {
        cells.push(format!(
            "{:+.3}",
            top.range.cores(row.self_weight) - baseline.cores(row.baseline_self)
        ));
    }
    cells.push(row.name.clone());
    match by {
        ByArg::Line => cells.push(match row.file.as_str() {
            "" => row.module.clone(),
            file => format!("{file}:{}", row.line),
        }),
        ByArg::Function => cells.push(if row.file.is_empty() {
            row.module.clone()
        } else {
            row.file.clone()
        }),
        _ => {}
    }
    cells
}
