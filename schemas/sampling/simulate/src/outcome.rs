//! What a go through a scenario left: coverage and weighted totals by service and hour, and what they say.

use std::fmt::Write as _;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use strobe_sampling::coverage::{Coverage, corrections};
use strobe_sampling::plan::Plan;
use strobe_sampling::spread::{Population, Total};

use crate::run::Factor;

/// One service in one hour.
#[derive(Debug, Clone)]
pub struct Hour {
    /// What was planned and run; t in busy CPUs.
    pub coverage: Coverage,
    /// Samples that stay after losses and limits.
    pub stored: u64,
    /// Σt, Σt², Σtu of each part over the runs, t = ΣW0 in nanoseconds; the whole service last.
    parts: Vec<(f64, f64, f64)>,
}

impl Hour {
    pub(crate) fn new(parts: usize) -> Self {
        Self {
            coverage: Coverage::default(),
            stored: 0,
            parts: vec![(0.0, 0.0, 0.0); parts + 1],
        }
    }

    /// Adds a run that stands for `u` slots and has these ΣW0.
    pub(crate) fn add(&mut self, u: f64, weights: &[f64]) {
        let whole = weights.iter().sum();
        for (sums, &t) in self.parts.iter_mut().zip(weights.iter().chain([&whole])) {
            sums.0 += t;
            sums.1 += t * t;
            sums.2 += t * u;
        }
    }

    /// Returns the total of a part in CPU seconds, corrected by `c`; of the whole service after the last
    /// part.
    pub fn total(&self, part: usize, c: Option<f64>) -> Total {
        let Some(c) = c else { return Total::NotSampled };
        let (t, tt, tu) = self.parts[part];
        let seconds = (t / 1e9, tt / 1e18, tu / 1e9);
        let population = Population {
            slots: self.coverage.planned as f64,
            profiled: 0.0,
            squared_weights: 0.0,
        };
        Total::new(seconds.0, c, &self.coverage.done.of_part(seconds), population)
    }

    /// Returns how many parts it has, with the whole.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }
}

/// One service.
#[derive(Debug, Clone)]
pub struct ServiceOutcome {
    /// Its name.
    pub name: String,
    /// Samples desired per hour.
    pub desired: f64,
    /// The plan in force at the end.
    pub plan: Plan,
    /// How often a host was believed only in part.
    pub doubted: u64,
    /// Its hours, in order.
    pub hours: Vec<Hour>,
}

impl ServiceOutcome {
    /// Returns c of every hour; 1 where the correction is left out.
    pub fn corrections(&self, omit: Option<Factor>) -> Vec<Option<f64>> {
        let coverage: Vec<Coverage> = self.hours.iter().map(|hour| hour.coverage).collect();
        let own = corrections(&coverage);
        match omit {
            Some(Factor::Coverage) => own.iter().map(|c| c.map(|_| 1.0)).collect(),
            _ => own,
        }
    }

    /// Returns the samples taken per hour of a day.
    pub fn rate(&self, day: usize) -> f64 {
        let hours = &self.hours[day * 24..(day + 1) * 24];
        hours.iter().map(|hour| hour.coverage.taken as f64).sum::<f64>() / 24.0
    }

    /// Returns the runs of a day, and the error of the day's samples that chance alone makes: √((1 +
    /// cv²)/runs), cv the coefficient of variation of a run's samples.
    pub fn chance(&self, day: usize) -> (f64, f64) {
        let mut sum = Coverage::default();
        self.hours[day * 24..(day + 1) * 24]
            .iter()
            .for_each(|hour| sum += hour.coverage);
        let (n, done) = (sum.done.runs as f64, sum.done);
        // n Σt²/(Σt)² = 1 + cv²; t/u is a run's, whatever q it had.
        (n, (done.tt / (done.t * done.t)).sqrt())
    }
}

/// What a go left.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its services.
    pub services: Vec<ServiceOutcome>,
}

impl Outcome {
    /// Returns a table with a line for each service and day: what was desired and observed, and how far the
    /// weighted total is from the truth.
    pub fn table(&self, truth: &[Vec<Vec<f64>>]) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header([
            "service",
            "day",
            "desired/h",
            "observed/h",
            "error %",
            "chance %",
            "runs",
            "CPU s weighted",
            "CPU s true",
            "error %",
        ]);
        for (service, truth) in self.services.iter().zip(truth) {
            let corrections = service.corrections(None);
            for day in 0..service.hours.len() / 24 {
                let hours = day * 24..(day + 1) * 24;
                let (mut weighted, mut missing) = (0.0, 0);
                for hour in hours.clone() {
                    let last = service.hours[hour].parts() - 1;
                    match service.hours[hour].total(last, corrections[hour]) {
                        Total::NotSampled => missing += 1,
                        Total::FewRuns { total, .. } | Total::Known { total, .. } => weighted += total,
                    }
                }
                let true_seconds: f64 = truth[hours].iter().flatten().sum();
                let (runs, chance) = service.chance(day);
                let mut total = String::new();
                if missing == 24 {
                    total.push_str("not sampled");
                } else {
                    let _ = write!(total, "{weighted:.0}");
                }
                let rate = service.rate(day);
                table.add_row([
                    service.name.clone(),
                    (day + 1).to_string(),
                    format!("{:.0}", service.desired),
                    format!("{rate:.0}"),
                    format!("{:+.1}", (rate / service.desired - 1.0) * 100.0),
                    format!("{:.1}", chance * 100.0),
                    format!("{runs:.0}"),
                    total,
                    format!("{true_seconds:.0}"),
                    format!("{:+.2}", (weighted / true_seconds - 1.0) * 100.0),
                ]);
            }
        }
        table.column_iter_mut().skip(1).for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
        table.to_string()
    }
}
