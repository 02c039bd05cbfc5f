//! What the tuner remembers of a service: how busy its hosts are, by hour of the day.

use serde::{Deserialize, Serialize};

use crate::slot::HOUR_US;
use crate::spread::RunSums;
use crate::tuner::{RUNS_TO_ACT, Window};

/// Weight that an hour's memory keeps after a day: half, so that chance averages out over a few days.
const KEEP_PER_DAY: f64 = 0.5;
/// Windows looked back upon for a change: an hour of five minutes each.
const RECENT: usize = 12;
/// A change is one when it is at least so large,
const CHANGE_MIN: f64 = 0.25;
/// and at least so many standard errors, since it is looked for in many services many times a day.
const CHANGE_ERRORS: f64 = 4.0;
/// A change upwards lowers q and is believed as it is; one downwards raises it, and is believed up to this
/// factor: what has become quiet may wake again at once.
const DOWN_MAX: f64 = 0.5;
/// By how much the level that a service once had is forgotten each hour: half of it in two days. A service
/// that hardly does anything for a week, and then wakes, yields 20 times what is desired for the minutes
/// until that is seen, not 1,000 times for having been hunted with ever longer runs.
const PEAK_PER_HOUR: f64 = 0.985_662_6;

/// One hour of the day.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Hour {
    /// Busy CPUs per slot.
    pub busy: f64,
    /// Runs behind it, with forgetting; 0 where the hour was never seen.
    pub runs: f64,
    /// Whether it was measured since the last change.
    pub fresh: bool,
}

/// What windows held, compared with what was expected of them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// Sums over the runs; t in busy CPUs.
    pub sums: RunSums,
    /// Σ1/q of the drawn slots.
    pub drawn_inverse: f64,
    /// Σ1/q times what was expected per slot.
    pub expected: f64,
}

impl Evidence {
    fn add(&mut self, other: &Self) {
        self.sums += other.sums;
        self.drawn_inverse += other.drawn_inverse;
        self.expected += other.expected;
    }

    /// Returns busy CPUs per slot.
    fn busy(&self) -> f64 {
        if self.drawn_inverse > 0.0 {
            self.sums.t / self.drawn_inverse
        } else {
            0.0
        }
    }
}

/// Memory of a day, and of the last hour.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct History {
    /// By hour of the day (UTC).
    pub hours: [Hour; 24],
    /// The hour under way, counted since 1970, and what it held so far.
    open: Option<(u64, Evidence)>,
    /// The last windows, oldest first.
    recent: Vec<Evidence>,
    /// What was observed against what was expected since the last change, and the hour that it came in.
    change: Option<(u64, Evidence)>,
    /// Whole hours since anything was sampled.
    pub idle_hours: u64,
    /// The highest mean of a day, slowly forgotten.
    peak: f64,
}

impl History {
    /// Takes in a window; returns whether an hour was closed by it and the ratio by which the level changed,
    /// if it did.
    pub fn take(&mut self, window: &Window) -> (bool, Option<f64>) {
        let hour = window.start_us / HOUR_US;
        let closed = match self.open.take() {
            Some((open, evidence)) if open != hour => {
                self.close(open, &evidence);
                self.open = Some((hour, Evidence::default()));
                true
            }
            other => {
                self.open = Some(other.unwrap_or((hour, Evidence::default())));
                false
            }
        };
        let evidence = Evidence {
            sums: window.runs,
            drawn_inverse: window.drawn_inverse,
            expected: self.expected(hour) * window.drawn_inverse,
        };
        if let Some((_, open)) = &mut self.open {
            open.add(&evidence);
        }
        if let Some((_, change)) = &mut self.change
            && evidence.sums.t > 0.0
            && !self.hours[(hour % 24) as usize].fresh
        {
            // What was expected before the change; the scale is the ratio of the two.
            let old = self.hours[(hour % 24) as usize].busy * window.drawn_inverse;
            change.add(&Evidence {
                expected: old,
                ..evidence
            });
        }
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push(evidence);
        (closed, self.detect(hour))
    }

    /// Returns whether every hour of the day was seen.
    pub fn is_whole(&self) -> bool {
        self.hours.iter().all(|hour| hour.runs > 0.0)
    }

    /// Returns busy CPUs per slot, for the day to come: its mean where a day was seen, before that what was
    /// seen last; with the runs behind it. Nothing where there was no run.
    pub fn busy(&self) -> Option<(f64, f64)> {
        if self.is_whole() {
            let runs = self.hours.iter().map(|hour| hour.runs).sum();
            return Some((self.mean().max(self.peak * DOWN_MAX), runs));
        }
        let mut seen = Evidence::default();
        self.recent.iter().for_each(|evidence| seen.add(evidence));
        let (mut runs, mut busy) = (seen.sums.runs as f64, seen.busy());
        // Back through the day, until as many runs are seen as a judgement needs.
        let now = self.open.map_or(0, |(hour, _)| hour);
        for back in 2..24 {
            let hour = &self.hours[(now.wrapping_sub(back) % 24) as usize];
            if runs < RUNS_TO_ACT as f64 && hour.runs > 0.0 {
                busy = (busy * runs + hour.busy * hour.runs) / (runs + hour.runs);
                runs += hour.runs;
            }
        }
        (runs > 0.0).then_some((busy, runs))
    }

    /// Halves what is remembered of how busy the service was: of one that has not been seen for long.
    pub fn fade(&mut self) {
        self.hours.iter_mut().for_each(|hour| hour.busy /= 2.0);
        self.peak /= 2.0;
    }

    fn mean(&self) -> f64 {
        let scale = self.scale();
        let of = |hour: &Hour| if hour.fresh { hour.busy } else { hour.busy * scale };
        self.hours.iter().map(of).sum::<f64>() / 24.0
    }

    fn close(&mut self, hour: u64, evidence: &Evidence) {
        let runs = evidence.sums.runs as f64;
        let idle = evidence.sums.t <= 0.0;
        if !idle {
            self.idle_hours = 0;
        } else if evidence.drawn_inverse > 0.0 {
            self.idle_hours += 1;
        }
        // A whole day without a sample says that the service sleeps, not how busy it will be when it wakes.
        if runs > 0.0 && self.idle_hours <= 24 {
            let changed = self.change.is_some() && !idle;
            let slot = &mut self.hours[(hour % 24) as usize];
            let kept = match changed && !slot.fresh {
                true => 0.0,
                false => slot.runs * KEEP_PER_DAY,
            };
            slot.busy = (slot.busy * kept + evidence.busy() * runs) / (kept + runs);
            slot.runs = kept + runs;
            slot.fresh |= changed;
        }
        if self.is_whole() && !idle {
            self.peak = self.mean().max(self.peak * PEAK_PER_HOUR);
        }
        if self.change.is_some_and(|(since, _)| hour >= since + 24) {
            self.settle();
        }
    }

    /// Ends a change: what was not measured since then is scaled once and for all.
    fn settle(&mut self) {
        let scale = self.scale();
        for hour in &mut self.hours {
            if !hour.fresh {
                hour.busy *= scale;
            }
            hour.fresh = false;
        }
        self.change = None;
    }

    fn scale(&self) -> f64 {
        match &self.change {
            Some((_, change)) if change.expected > 0.0 => (change.sums.t / change.expected).max(DOWN_MAX),
            _ => 1.0,
        }
    }

    fn expected(&self, hour: u64) -> f64 {
        let hour = &self.hours[(hour % 24) as usize];
        if hour.fresh {
            hour.busy
        } else {
            hour.busy * self.scale()
        }
    }

    /// Looks for a change of level in the last windows, from the shortest stretch that holds enough runs to
    /// the longest, so that what was before it dilutes it least.
    fn detect(&mut self, hour: u64) -> Option<f64> {
        // Silence is not a level: what sleeps is remembered as it was.
        let silent = self.recent.last().is_none_or(|last| last.sums.t <= 0.0);
        if silent || !self.is_whole() {
            return None;
        }
        let mut seen = Evidence::default();
        for evidence in self.recent.iter().rev() {
            seen.add(evidence);
            if seen.sums.runs < RUNS_TO_ACT || seen.sums.t <= 0.0 || seen.expected <= 0.0 {
                continue;
            }
            let ratio = seen.sums.t / seen.expected;
            let error = seen.sums.variance(seen.sums.u)?.sqrt() / seen.sums.t * ratio;
            if (ratio - 1.0).abs() > CHANGE_MIN && (ratio - 1.0).abs() > CHANGE_ERRORS * error {
                self.settle();
                self.change = Some((hour, seen));
                // What came before it says nothing about the new level.
                self.open = Some((hour, seen));
                self.recent.clear();
                return Some(self.scale());
            }
        }
        None
    }
}
