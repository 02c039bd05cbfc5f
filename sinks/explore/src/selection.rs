//! What is asked for, and how it becomes SQL: fixed pieces of text, and values as server-side parameters.

use clickhouse::query::Query;
use regex::Regex;
use serde::Serialize;
use strobe_event::{Cause, RunId};

use crate::Error;

/// Microseconds of an hour: the grain of the totals.
const HOUR_US: u64 = 3_600_000_000;
/// Microseconds of a day: the grain of their projection.
const DAY_US: u64 = 24 * HOUR_US;

/// Samples whose stack, in their context, has all of the tags that are asked for: as a whole, or one of its frames.
const TAGGED: &str = " AND (toUInt64(samples.stack), samples.context) IN (SELECT t.stack, t.context FROM tags AS t FINAL WHERE \
     arrayAll(wanted -> arrayExists(tag -> tag = wanted OR startsWith(tag, concat(wanted, '/')) OR startsWith(tag, \
     concat(wanted, '=')), arrayConcat(t.tags, t.frame_tags.tag)), {tags:Array(String)}))";

/// Which weight is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum View {
    /// What samples stand for in the fleet. Only continuous runs count: the hosts and moments of others were chosen.
    #[default]
    Fleet,
    /// What samples stand for within their runs, whatever their cause.
    Runs,
}

/// A span of time, microseconds since 1970 (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Range {
    /// First microsecond.
    pub since_us: u64,
    /// First microsecond after it.
    pub until_us: u64,
}

impl Range {
    /// Returns the length in nanoseconds.
    pub fn ns(self) -> f64 {
        self.until_us.saturating_sub(self.since_us) as f64 * 1_000.0
    }

    /// Returns `weight` nanoseconds as cores busy on average over the range; 0 for an empty range.
    pub fn cores(self, weight: f64) -> f64 {
        match self.ns() {
            0.0 => 0.0,
            ns => weight / ns,
        }
    }

    /// Returns the whole hours or days inside, or nothing where there are none.
    fn whole(self, unit_us: u64) -> Option<Self> {
        let (since_us, until_us) = (
            self.since_us.div_ceil(unit_us) * unit_us,
            self.until_us / unit_us * unit_us,
        );
        (since_us < until_us).then_some(Self { since_us, until_us })
    }
}

/// Which samples, and which of their stacks. Start from [`Selection::new`] and set what narrows it.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Time.
    pub range: Range,
    /// The profiler; weights of different ones are not to be added.
    pub profiler: String,
    /// Only this service.
    pub service: Option<String>,
    /// Only this host.
    pub host: Option<String>,
    /// Only this process.
    pub pid: Option<u32>,
    /// Only threads of this name.
    pub comm: Option<String>,
    /// Only runs of this cause.
    pub cause: Option<Cause>,
    /// Only these runs; empty: all.
    pub runs: Vec<RunId>,
    /// Only stacks in which a function's name matches.
    pub focus: Option<Regex>,
    /// No stacks in which a function's name matches.
    pub ignore: Option<Regex>,
    /// Only samples whose stacks, or frames of them, have all of these tags: `copy=vector` is that tag and what goes
    /// deeper, `copy` any value of the key.
    pub tags: Vec<String>,
    /// Whether stacks are shown as they were named, without what stack schemas hide or rename.
    pub raw: bool,
    /// Which weight is summed.
    pub view: View,
}

/// What totals are summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Per {
    /// The stack.
    Stack,
    /// The stack and the service.
    Service,
}

impl Per {
    fn select(self) -> &'static str {
        match self {
            Self::Stack => "SELECT stack",
            Self::Service => "SELECT stack, toString(service) AS of_service",
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Stack => " GROUP BY stack",
            Self::Service => " GROUP BY stack, of_service",
        }
    }
}

/// The value of a parameter.
#[derive(Serialize)]
#[serde(untagged)]
enum Param {
    Text(String),
    Number(i64),
    Texts(Vec<String>),
}

/// SQL with its parameters.
#[derive(Default)]
pub(crate) struct Sql {
    text: String,
    params: Vec<(&'static str, Param)>,
}

impl Sql {
    /// Appends a fixed piece of SQL.
    pub(crate) fn push(mut self, text: &'static str) -> Self {
        self.text.push_str(text);
        self
    }

    pub(crate) fn text(mut self, condition: &'static str, name: &'static str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.text.push_str(condition);
            self.params.push((name, Param::Text(value.to_owned())));
        }
        self
    }

    pub(crate) fn number(mut self, condition: &'static str, name: &'static str, value: Option<i64>) -> Self {
        if let Some(value) = value {
            self.text.push_str(condition);
            self.params.push((name, Param::Number(value)));
        }
        self
    }

    pub(crate) fn texts(mut self, condition: &'static str, name: &'static str, values: &[String]) -> Self {
        self.text.push_str(condition);
        self.params.push((name, Param::Texts(values.to_vec())));
        self
    }

    /// Returns the query with its parameters set.
    pub(crate) fn query(&self, client: &clickhouse::Client) -> Query {
        self.params
            .iter()
            .fold(client.query_raw(&self.text), |query, (name, value)| {
                query.param(name, value)
            })
    }
}

fn seconds(us: u64) -> Option<i64> {
    i64::try_from(us / 1_000_000).ok()
}

impl Selection {
    /// Returns everything of profiler `cpu` between two times, microseconds since 1970 (UTC).
    pub fn new(since_us: u64, until_us: u64) -> Self {
        Self {
            range: Range { since_us, until_us },
            profiler: "cpu".into(),
            service: None,
            host: None,
            pid: None,
            comm: None,
            cause: None,
            runs: Vec::new(),
            focus: None,
            ignore: None,
            tags: Vec::new(),
            raw: false,
            view: View::default(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let Range { since_us, until_us } = self.range;
        let refuse = |text: &str| Err(Error::Selection(text.to_owned()));
        if self.tags.iter().any(String::is_empty) {
            return refuse("a tag is empty: name one, `copy=vector` for example, or a key");
        }
        if since_us >= until_us {
            return refuse("the range is empty: `until` must be later than `since`");
        }
        // What 32 bits of seconds hold: the year 2106.
        if until_us > u64::from(u32::MAX) * 1_000_000 {
            return refuse("the range ends after the year 2105");
        }
        Ok(())
    }

    /// Returns whether hourly totals know everything that the selection asks by.
    fn is_by_service(&self) -> bool {
        let rows = self.host.is_some() || self.pid.is_some() || self.comm.is_some();
        !rows && self.tags.is_empty() && self.cause.is_none() && self.runs.is_empty()
    }

    /// Returns whether stacks are left out by what they contain.
    pub(crate) fn looks_into_stacks(&self) -> bool {
        self.focus.is_some() || self.ignore.is_some()
    }

    /// Returns the sum that a row of samples contributes, as the next column of a `SELECT`.
    pub(crate) fn weight_column(&self) -> &'static str {
        match self.view {
            View::Fleet => ", sum(fleet_weight) AS weight",
            View::Runs => ", sum(run_weight) AS weight",
        }
    }

    /// Appends `SELECT stack, weight, samples` of the whole selection, with `of_service` behind the stack where the sum is
    /// per service: hourly totals for the whole hours, by days where
    /// there are whole days, and samples for the rest. A stack may come several times.
    pub(crate) fn totals(&self, mut sql: Sql, per: Per) -> Sql {
        let Some(hours) = self.is_by_service().then(|| self.range.whole(HOUR_US)).flatten() else {
            return self.totals_of_samples(sql, None, per);
        };
        let days = hours.whole(DAY_US);
        if let Some(days) = days {
            sql = self.totals_of_days(sql, days, per);
        }
        if days != Some(hours) {
            sql = if days.is_some() {
                sql.push(" UNION ALL ")
            } else {
                sql
            };
            sql = self.totals_of_hours(sql, hours, days, per);
        }
        match hours == self.range {
            true => sql,
            false => self.totals_of_samples(sql.push(" UNION ALL "), Some(hours), per),
        }
    }

    fn totals_of_days(&self, sql: Sql, days: Range, per: Per) -> Sql {
        let number = |us: u64| i64::try_from(us / DAY_US).ok();
        let sql = self
            .begin_totals(sql, per)
            .number(
                " AND day >= toDate({day_since:UInt16})",
                "day_since",
                number(days.since_us),
            )
            .number(
                " AND day < toDate({day_until:UInt16})",
                "day_until",
                number(days.until_us),
            );
        self.end_totals(sql, per)
    }

    fn totals_of_hours(&self, sql: Sql, hours: Range, without: Option<Range>, per: Per) -> Sql {
        let number = |us: u64| i64::try_from(us / DAY_US).ok();
        let mut sql = self
            .begin_totals(sql, per)
            .number(
                " AND hour >= toDateTime({hour_since:UInt32}, 'UTC')",
                "hour_since",
                seconds(hours.since_us),
            )
            .number(
                " AND hour < toDateTime({hour_until:UInt32}, 'UTC')",
                "hour_until",
                seconds(hours.until_us),
            );
        if let Some(days) = without {
            sql = sql
                .number(
                    " AND (day < toDate({day_since:UInt16})",
                    "day_since",
                    number(days.since_us),
                )
                .number(
                    " OR day >= toDate({day_until:UInt16}))",
                    "day_until",
                    number(days.until_us),
                );
        }
        self.end_totals(sql, per)
    }

    fn begin_totals(&self, sql: Sql, per: Per) -> Sql {
        sql.push(per.select())
            .push(self.weight_column())
            .push(", sum(totals_hourly.samples) AS samples FROM totals_hourly")
            .text(
                " WHERE profiler = {profiler:String}",
                "profiler",
                Some(&self.profiler),
            )
    }

    fn end_totals(&self, sql: Sql, per: Per) -> Sql {
        sql.text(
            " AND service = {service:String}",
            "service",
            self.service.as_deref(),
        )
        .push(per.group())
        .push(match self.view {
            // What was taken back sums up to no samples. A stack that only chosen runs saw is nothing in the fleet.
            View::Fleet => " HAVING samples > 0 AND weight > 0",
            View::Runs => " HAVING samples > 0",
        })
    }

    fn totals_of_samples(&self, sql: Sql, without: Option<Range>, per: Per) -> Sql {
        let sql = sql
            .push(match per {
                Per::Stack => "SELECT toUInt64(stack) AS stack",
                Per::Service => "SELECT toUInt64(stack) AS stack, toString(service) AS of_service",
            })
            .push(self.weight_column());
        let sql = self.conditions(sql.push(", count() AS samples FROM samples"));
        let sql = match without {
            Some(hours) => sql
                .number(
                    " AND (time < toDateTime({hour_since:UInt32}, 'UTC')",
                    "hour_since",
                    seconds(hours.since_us),
                )
                .number(
                    " OR time >= toDateTime({hour_until:UInt32}, 'UTC'))",
                    "hour_until",
                    seconds(hours.until_us),
                ),
            None => sql,
        };
        sql.push(match per {
            Per::Stack => " GROUP BY samples.stack",
            Per::Service => " GROUP BY samples.stack, samples.service",
        })
    }

    /// Appends `WHERE` with every condition on columns of `samples`.
    pub(crate) fn conditions(&self, sql: Sql) -> Sql {
        let micros = |us: u64| i64::try_from(us).ok();
        let profiler = " WHERE profiler = {profiler:String}";
        let sql = sql
            .text(profiler, "profiler", Some(&self.profiler))
            .number(
                " AND time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')",
                "since",
                micros(self.range.since_us),
            )
            .number(
                " AND time < fromUnixTimestamp64Micro({until:Int64}, 'UTC')",
                "until",
                micros(self.range.until_us),
            )
            .text(
                " AND service = {service:String}",
                "service",
                self.service.as_deref(),
            )
            .text(" AND host = {host:String}", "host", self.host.as_deref())
            .number(" AND pid = {pid:UInt32}", "pid", self.pid.map(i64::from))
            .text(" AND thread = {comm:String}", "comm", self.comm.as_deref())
            .text(
                " AND cause = {cause:String}",
                "cause",
                self.cause.map(Cause::name),
            );
        let sql = match self.runs.is_empty() {
            true => sql,
            false => {
                let runs: Vec<String> = self.runs.iter().map(RunId::to_string).collect();
                sql.texts(
                    " AND run IN (SELECT arrayJoin(arrayMap(run -> toUUID(run), {runs:Array(String)})))",
                    "runs",
                    &runs,
                )
            }
        };
        let sql = match self.tags.is_empty() {
            true => sql,
            false => sql.texts(TAGGED, "tags", &self.tags),
        };
        match self.view {
            View::Fleet => sql.push(" AND cause = 'continuous'"),
            View::Runs => sql,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = HOUR_US;

    fn sql(selection: &Selection) -> String {
        selection.totals(Sql::default(), Per::Stack).text
    }

    /// Checks that whole hours are read from totals, ragged edges from samples, and anything by host from samples alone.
    #[test]
    fn reads_the_cheapest_table_that_knows_the_answer() {
        let whole = Selection::new(10 * HOUR, 12 * HOUR);
        assert!(sql(&whole).contains("totals_hourly") && !sql(&whole).contains("FROM samples"));
        let ragged = Selection::new(10 * HOUR + 1, 12 * HOUR);
        assert!(sql(&ragged).contains("totals_hourly") && sql(&ragged).contains("FROM samples"));
        let short = Selection::new(10 * HOUR + 1, 11 * HOUR - 1);
        assert!(!sql(&short).contains("totals_hourly"));
        let tagged = Selection {
            tags: vec!["copy=vector".into()],
            ..whole.clone()
        };
        assert!(!sql(&tagged).contains("totals_hourly"));
        let host = Selection {
            host: Some("h".into()),
            ..whole
        };
        assert!(!sql(&host).contains("totals_hourly"));
    }

    /// Checks that whole days are asked for by day, and that no hour of them is counted once more.
    #[test]
    fn whole_days_are_asked_for_by_day() {
        let whole = sql(&Selection::new(DAY_US, 3 * DAY_US));
        assert!(whole.contains("day >= toDate({day_since:UInt16})") && !whole.contains("hour >="));
        let more = Selection::new(DAY_US - HOUR + 5, 3 * DAY_US);
        assert_eq!(
            sql(&more).matches("UNION ALL").count(),
            2 - 1,
            "no whole hour before the days, so samples"
        );
        let hours = sql(&Selection::new(DAY_US - HOUR, 3 * DAY_US));
        assert!(
            hours.contains("AND (day < toDate({day_since:UInt16}) OR day >= toDate({day_until:UInt16}))")
        );
    }

    /// Checks that what people write is nowhere in the SQL.
    #[test]
    fn text_of_people_travels_as_parameters() {
        let evil = "x' OR 1 = 1; DROP TABLE samples --";
        let text = Some(evil.to_owned());
        let selection = Selection {
            profiler: evil.into(),
            service: text.clone(),
            host: text.clone(),
            comm: text,
            ..Selection::new(0, 2 * HOUR)
        };
        assert!(!sql(&selection).contains("DROP"));
        let texts = selection.totals(Sql::default(), Per::Stack).params.into_iter();
        assert_eq!(
            texts
                .filter(|(_, value)| matches!(value, Param::Text(text) if text == evil))
                .count(),
            4
        );
    }

    /// Checks that an empty range is refused, and that cores are weight over time.
    #[test]
    fn ranges_have_a_length() {
        assert!(Selection::new(5, 5).validate().is_err());
        assert!(Selection::new(6, 5).validate().is_err());
        assert!(Selection::new(5, 6).validate().is_ok());
        assert_eq!(
            Range {
                since_us: 0,
                until_us: 2_000_000
            }
            .cores(3e9),
            1.5
        );
    }
}
