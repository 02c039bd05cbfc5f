//! Which samples a view is of: the arguments that all views share.

use regex::{Regex, RegexBuilder};
use strobe_event::RunId;
use strobe_explore::{Range, Selection, View};

use crate::error::CliError;
use crate::times;

/// Size of a compiled pattern: a bound for those that explode.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// From when: `-15m`, `now-1h` or RFC 3339.
    #[arg(long, default_value = "-15m", allow_hyphen_values = true)]
    pub since: String,
    /// Until when.
    #[arg(long, default_value = "now", allow_hyphen_values = true)]
    pub until: String,
    /// Only this service.
    #[arg(long)]
    pub service: Option<String>,
    /// Only this host.
    #[arg(long)]
    pub host: Option<String>,
    /// Only this process.
    #[arg(long)]
    pub pid: Option<u32>,
    /// Only threads of this name.
    #[arg(long)]
    pub comm: Option<String>,
    /// Profiler.
    #[arg(long, default_value = "cpu")]
    pub profiler: String,
    /// Only stacks with a function that matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub focus: Option<String>,
    /// No stacks with a function that matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub ignore: Option<String>,
    /// Only samples whose stacks have this tag (`copy=vector`, or a key: `copy`); may be said more than once.
    #[arg(long, value_name = "KEY=VALUE")]
    pub tag: Vec<String>,
    /// Show stacks as they were named: lift what stack schemas hide, fold, cut and rename.
    #[arg(long)]
    pub raw: bool,
    /// Weigh samples within their runs, whatever the cause, instead of in the fleet.
    #[arg(long)]
    pub runs: bool,
    /// Only this run, as `strobe runs show` names it; may be said more than once. Weighs within the runs.
    #[arg(long, value_name = "ID")]
    pub run: Vec<RunId>,
}

/// A span of time alone.
#[derive(clap::Args, Debug)]
pub struct Span {
    /// From when: `-6h`, `now-1d` or RFC 3339.
    #[arg(long, default_value = "-6h", allow_hyphen_values = true)]
    pub since: String,
    /// Until when.
    #[arg(long, default_value = "now", allow_hyphen_values = true)]
    pub until: String,
}

impl Span {
    /// Returns the range that the arguments stand for.
    ///
    /// # Errors
    /// [`CliError::Usage`] says what can be typed.
    pub fn range(&self) -> Result<Range, CliError> {
        let now = times::now_us();
        let moment = |text: &str| times::moment(text, now).map_err(CliError::Usage);
        Ok(Range {
            since_us: moment(&self.since)?,
            until_us: moment(&self.until)?,
        })
    }
}

/// A span to compare with.
#[derive(clap::Args, Debug)]
pub struct Baseline {
    /// Compare with this range, `now-2h..now-1h` for example.
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub baseline: Option<String>,
}

fn pattern(name: &str, text: Option<&str>) -> Result<Option<Regex>, CliError> {
    let Some(text) = text else { return Ok(None) };
    let built = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
    built
        .map(Some)
        .map_err(|error| CliError::Usage(format!("--{name} `{text}` is no regular expression: {error}")))
}

impl Args {
    /// Returns the selection that the arguments stand for.
    ///
    /// # Errors
    /// [`CliError::Usage`] names the argument.
    pub fn selection(&self) -> Result<Selection, CliError> {
        let now = times::now_us();
        let (since, until) = (times::moment(&self.since, now), times::moment(&self.until, now));
        let mut selection = Selection::new(since.map_err(CliError::Usage)?, until.map_err(CliError::Usage)?);
        selection.profiler.clone_from(&self.profiler);
        selection.service.clone_from(&self.service);
        selection.host.clone_from(&self.host);
        selection.pid = self.pid;
        selection.comm.clone_from(&self.comm);
        selection.focus = pattern("focus", self.focus.as_deref())?;
        selection.ignore = pattern("ignore", self.ignore.as_deref())?;
        selection.tags.clone_from(&self.tag);
        selection.raw = self.raw;
        selection.runs.clone_from(&self.run);
        let within = self.runs || !self.run.is_empty();
        selection.view = if within { View::Runs } else { View::Fleet };
        Ok(selection)
    }
}

impl Baseline {
    /// Returns the same selection over the baseline's range, where there is one.
    ///
    /// # Errors
    /// [`CliError::Usage`] says what can be typed.
    pub fn selection(&self, of: &Selection) -> Result<Option<Selection>, CliError> {
        let Some(text) = &self.baseline else {
            return Ok(None);
        };
        let (since_us, until_us) = times::span(text, times::now_us()).map_err(CliError::Usage)?;
        Ok(Some(Selection {
            range: Range { since_us, until_us },
            ..of.clone()
        }))
    }
}
