//! How well totals are known: the ± of what a top shows.
//!
//! The unit is the run: its weighted total t against the slots u that it stands for ([`strobe_sampling::spread`]). Runs and their
//! u come from `runs`, within the range; what a part (a function, a service) has of each run from its samples. What was refused or
//! cut short is undone by the hours' coverage, all hours of the range pooled.

use clickhouse::Row;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use strobe_event::WHOLE_HOST;
use strobe_sampling::spread::{Population, RunSums, Total};

use crate::selection::{Sql, View};
use crate::store::StackStore;
use crate::top::{By, TopRow};
use crate::{Error, Explorer, Selection};

mod nodes;

/// Sums of a run and a stack (or name) that are looked at at most: 60 runs of an hour, on a hundred hosts, with 300 stacks each.
/// What has more is shown without ±.
const SUMS_MAX: usize = 2_000_000;
/// Cells of rows and runs that are summed at most: 160 MB.
const CELLS_MAX: usize = 20_000_000;
/// Longest run: what has started earlier than this before a range cannot reach into it.
const RUN_US_MAX: u64 = 24 * 3_600_000_000;

/// What each row of a top is known to.
#[derive(Debug, Clone, PartialEq)]
pub struct Intervals {
    /// Of the whole selection.
    pub whole: Total,
    /// Of each row: alone, and with what it calls.
    pub rows: Vec<(Total, Total)>,
    /// By what weights are multiplied for what was refused or cut short; already in the totals here.
    pub correction: f64,
}

#[derive(Debug, Row, Deserialize)]
struct RunRow {
    run: String,
    started_us: i64,
    ended_us: i64,
    planned_us: u64,
    q: f64,
}

#[derive(Debug, Row, Deserialize)]
struct CoverageRow {
    planned: f64,
    stood_for: f64,
    slot_s: f64,
}

#[derive(Debug, Row, Deserialize)]
struct PartRow {
    run_id: String,
    name: String,
    stack_id: u64,
    weight: f64,
    squares: f64,
}

/// Runs of the range.
struct Runs {
    numbers: FxHashMap<String, usize>,
    u: Vec<f64>,
    /// Time profiled within the range, seconds.
    done_s: f64,
}

impl Explorer {
    /// Returns the ± of the rows of a top of `selection`; nothing where weights are those within runs, or there are too many sums.
    ///
    /// # Errors
    /// As [`Self::stack_totals`].
    pub async fn intervals(
        &self,
        selection: &Selection,
        by: By,
        rows: &[TopRow],
    ) -> Result<Option<Intervals>, Error> {
        selection.validate()?;
        if selection.view != View::Fleet || by == By::Tag {
            return Ok(None);
        }
        let coverage = self.coverage_of(selection).await?;
        let runs = self.runs_of(selection, coverage.slot_s).await?;
        if (2 * rows.len() + 1).saturating_mul(runs.u.len().max(1)) > CELLS_MAX {
            return Ok(None);
        }
        let of_names = matches!(by, By::Service | By::Host | By::Thread);
        let column = match by {
            By::Service => "toString(service)",
            By::Host => "toString(host)",
            By::Thread => "toString(thread)",
            By::Function | By::Line | By::Module | By::Tag => "''",
        };
        let sql = Sql::default()
            .push("SELECT toString(samples.run) AS run_id, ")
            .push(column)
            .push(" AS name, toUInt64(stack) AS stack_id, sum(fleet_weight) AS weight, sum(fleet_weight * fleet_weight) AS squares FROM samples");
        let sql = selection
            .conditions(sql)
            .push(" GROUP BY run_id, name, stack_id LIMIT 2000001");
        let failed = self.failed("sum up runs");
        let parts: Vec<PartRow> = sql.query(self.client()).fetch_all().await.map_err(&failed)?;
        if parts.len() > SUMS_MAX {
            return Ok(None);
        }
        let mut sums = Sums::new(1 + 2 * rows.len(), runs.u.len());
        self.with_stacks(selection, |store, selected| {
            let mut places = Places::new(store, by, rows);
            for part in &parts {
                let Some(&run) = runs.numbers.get(&part.run_id) else {
                    continue;
                };
                let id = store.stack_id(part.stack_id);
                let weight = id.map_or(selected.unknown[0], |id| selected.weights[id as usize][0]);
                // Left out by what its stack contains.
                if weight == 0.0 {
                    continue;
                }
                sums.add(0, run, part);
                if of_names {
                    if let Some(&row) = places.names.get(part.name.as_str()) {
                        sums.add(1 + 2 * row, run, part);
                        sums.add(2 + 2 * row, run, part);
                    }
                } else if let Some(id) = id {
                    let (own, all) = places.of(store, id);
                    if let Some(row) = own {
                        sums.add(1 + 2 * row, run, part);
                    }
                    for row in all {
                        sums.add(2 + 2 * row, run, part);
                    }
                }
            }
        })
        .await?;
        Ok(Some(sums.finish(&runs, &coverage)))
    }

    /// Returns how many seconds of slots were planned in the hours of the range, and how many the runs stand for.
    async fn coverage_of(&self, selection: &Selection) -> Result<CoverageRow, Error> {
        let service = selection.service.as_deref().unwrap_or(WHOLE_HOST);
        let (since_s, until_s) = (
            selection.range.since_us / 1_000_000,
            selection.range.until_us / 1_000_000,
        );
        self.client()
            .query_raw(
                "SELECT sum(r.planned * r.slot_us) / 1e6 AS planned, sum(r.u * r.slot_us) / 1e6 AS stood_for,
                    max(r.slot_us) / 1e6 AS slot_s
                FROM (SELECT * FROM coverage FINAL) AS r
                WHERE r.profiler = {profiler:String} AND r.service = {service:String}
                    AND r.hour + 3600 > toDateTime({since:UInt64}) AND r.hour <= toDateTime({until:UInt64})
                    AND (r.host = {host:String} OR {host:String} = '')",
            )
            .param("profiler", &selection.profiler)
            .param("service", service)
            .param("since", since_s)
            .param("until", until_s)
            .param("host", selection.host.as_deref().unwrap_or(""))
            .fetch_one()
            .await
            .map_err(self.failed("ask what was covered"))
    }

    /// Returns the runs that reach into the range, each with the seconds of slots that it stands for there.
    async fn runs_of(&self, selection: &Selection, slot_s: f64) -> Result<Runs, Error> {
        let range = selection.range;
        let rows: Vec<RunRow> = self
            .client()
            .query_raw(
                "SELECT toString(r.run) AS run,
                    toInt64(toUnixTimestamp64Micro(minIf(r.time, r.state = 'started'))) AS started_us,
                    toInt64(toUnixTimestamp64Micro(maxIf(r.time, r.state IN ('finished', 'failed')))) AS ended_us,
                    any(r.planned_us) AS planned_us, any(r.run_probability) AS q
                FROM (SELECT * FROM runs FINAL) AS r
                WHERE r.profiler = {profiler:String} AND r.cause = 'continuous' AND r.state IN ('started', 'finished', 'failed')
                    AND r.time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')
                    AND r.time < fromUnixTimestamp64Micro({until:Int64}, 'UTC')
                    AND (r.host = {host:String} OR {host:String} = '')
                    AND ({service:String} = '' OR r.host IN (SELECT DISTINCT host FROM coverage
                        WHERE service = {service:String} AND profiler = {profiler:String})
                        OR r.run IN (SELECT DISTINCT run FROM samples WHERE service = {service:String}
                            AND time >= fromUnixTimestamp64Micro({from:Int64}, 'UTC')
                            AND time < fromUnixTimestamp64Micro({until:Int64}, 'UTC')))
                GROUP BY r.run",
            )
            .param("profiler", &selection.profiler)
            .param("since", signed(range.since_us.saturating_sub(RUN_US_MAX)))
            .param("from", signed(range.since_us))
            // A run that ends later than the range has an event behind it.
            .param("until", signed(range.until_us.saturating_add(RUN_US_MAX)))
            .param("host", selection.host.as_deref().unwrap_or(""))
            .param("service", selection.service.as_deref().unwrap_or(""))
            .fetch_all()
            .await
            .map_err(self.failed("ask for runs"))?;
        let mut runs = Runs {
            numbers: FxHashMap::default(),
            u: Vec::new(),
            done_s: 0.0,
        };
        for row in rows {
            let planned_us = row.planned_us.max(1) as f64;
            let start_us = row.started_us.max(0) as u64;
            // One whose end is not known is under way, or was killed: as long as planned at most.
            let end_us = match row.ended_us {
                ended if ended > 0 => ended as u64,
                _ => start_us.saturating_add(row.planned_us),
            };
            let overlap_us = end_us
                .min(range.until_us)
                .saturating_sub(start_us.max(range.since_us));
            if overlap_us == 0 || row.q <= 0.0 || start_us == 0 {
                continue;
            }
            let overlap_us = overlap_us as f64;
            // Runs that follow each other are their own slots.
            let slot_s = if row.q >= 1.0 && planned_us / 1e6 > slot_s {
                planned_us / 1e6
            } else {
                slot_s
            };
            let slot_s = if slot_s > 0.0 { slot_s } else { planned_us / 1e6 };
            runs.numbers.insert(row.run, runs.u.len());
            runs.u.push(overlap_us / planned_us / row.q * slot_s);
            runs.done_s += overlap_us / 1e6;
        }
        Ok(runs)
    }
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

/// Sums of parts over runs: of a top the whole first, then of each row alone and with what it calls.
struct Sums {
    t: Vec<Vec<f64>>,
    squares: Vec<f64>,
}

impl Sums {
    fn new(parts: usize, runs: usize) -> Self {
        Self {
            t: vec![vec![0.0; runs]; parts],
            squares: vec![0.0; parts],
        }
    }

    /// Weights are nanoseconds; sums are of seconds, as those of slots.
    fn add(&mut self, part: usize, run: usize, of: &PartRow) {
        self.t[part][run] += of.weight / 1e9;
        self.squares[part] += of.squares / 1e18;
    }

    fn finish(self, runs: &Runs, coverage: &CoverageRow) -> Intervals {
        let totals = self.totals(runs, coverage);
        Intervals {
            whole: totals[0],
            rows: totals[1..]
                .chunks_exact(2)
                .map(|pair| (pair[0], pair[1]))
                .collect(),
            correction: coverage.correction(),
        }
    }

    /// Returns what each part is known to.
    fn totals(self, runs: &Runs, coverage: &CoverageRow) -> Vec<Total> {
        let correction = coverage.correction();
        let stood_for: f64 = runs.u.iter().sum();
        let slots = correction * stood_for;
        let profiled = if slots > 0.0 { runs.done_s / slots } else { 0.0 };
        let total = |(t, &squared_weights): (&Vec<f64>, &f64)| {
            let mut sums = RunSums::default();
            t.iter().zip(&runs.u).for_each(|(&t, &u)| sums.add(u, t));
            let population = Population {
                slots,
                profiled,
                squared_weights,
            };
            Total::new(sums.t, correction, &sums, population)
        };
        self.t.iter().zip(&self.squares).map(total).collect()
    }
}

impl CoverageRow {
    /// Returns c: by what weights are multiplied for what was refused or cut short.
    fn correction(&self) -> f64 {
        if self.stood_for > 0.0 {
            self.planned / self.stood_for
        } else {
            1.0
        }
    }
}

/// Where a stack counts: in which row alone, and in which with what they call.
type Place = (Option<usize>, Vec<usize>);

/// Which rows a stack counts in.
struct Places<'r> {
    by: By,
    names: FxHashMap<&'r str, usize>,
    functions: Vec<Option<usize>>,
    modules: FxHashMap<u32, usize>,
    lines: FxHashMap<(&'r str, &'r str, u32), usize>,
    known: FxHashMap<u32, Place>,
}

impl<'r> Places<'r> {
    fn new(store: &StackStore, by: By, rows: &'r [TopRow]) -> Self {
        let numbered = || rows.iter().enumerate();
        let functions: FxHashMap<(&str, &str, &str), usize> = match by {
            By::Function => numbered()
                .map(|(at, row)| ((row.name.as_str(), row.module.as_str(), row.file.as_str()), at))
                .collect(),
            _ => FxHashMap::default(),
        };
        let of_function = |function: usize| {
            let name = store.function_name(function as u32);
            functions
                .get(&(&*name.function, &*name.module, &*name.file))
                .copied()
        };
        let module_rows: FxHashMap<&str, usize> = match by {
            By::Module => numbered().map(|(at, row)| (row.module.as_str(), at)).collect(),
            _ => FxHashMap::default(),
        };
        let modules = (0..store.function_count() as u32)
            .map(|function| store.module_of(function))
            .filter_map(|module| Some((module, *module_rows.get(store.text(module))?)))
            .collect();
        Self {
            by,
            names: numbered().map(|(at, row)| (row.name.as_str(), at)).collect(),
            functions: (0..store.function_count()).map(of_function).collect(),
            modules,
            lines: numbered()
                .map(|(at, row)| ((row.name.as_str(), row.file.as_str(), row.line), at))
                .collect(),
            known: FxHashMap::default(),
        }
    }

    fn of(&mut self, store: &StackStore, id: u32) -> Place {
        if let Some(place) = self.known.get(&id) {
            return place.clone();
        }
        let sequence = store.sequence(id);
        let rows: Vec<Option<usize>> = match self.by {
            By::Module => sequence
                .iter()
                .map(|&function| self.modules.get(&store.module_of(function)).copied())
                .collect(),
            By::Line => {
                let mut rows = Vec::new();
                for (_, names) in store.frames(id) {
                    for line in names.iter().flat_map(|names| names.lines.iter()) {
                        let name = store.function_name(line.function);
                        let key = (&*name.function, store.text(line.file), line.line);
                        rows.push(self.lines.get(&key).copied());
                    }
                }
                rows
            }
            _ => sequence
                .iter()
                .map(|&function| self.functions.get(function as usize).copied().flatten())
                .collect(),
        };
        let own = match self.by {
            // A leaf without a line of its own has no row.
            By::Line if store.frames(id).last().is_none_or(|(_, names)| names.is_none()) => None,
            _ => rows.last().copied().flatten(),
        };
        let mut all: Vec<usize> = rows.into_iter().flatten().collect();
        all.sort_unstable();
        all.dedup();
        let place = (own, all);
        self.known.insert(id, place.clone());
        place
    }
}
