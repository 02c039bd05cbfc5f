//! Both sides of the accounting: what agents say they took, and what is stored.

use std::collections::BTreeMap;

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use crate::selection::Sql;
use crate::{Error, Explorer};

/// Most runs and spool openings looked at, some 100 MB of answers; the newest count, and [`Status::cut`] says so.
const ROWS_MAX: usize = 100_000;

/// The accounting of one run: taken = stored + dropped + set aside + under way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunStatus {
    /// The run, as 32 hexadecimal digits.
    pub run: String,
    /// Its host.
    pub host: String,
    /// Its profiler.
    pub profiler: String,
    /// Why it ran.
    pub cause: String,
    /// Its last known state; empty when no event of it has arrived.
    pub state: String,
    /// What the last event says of a failure or early end.
    pub detail: String,
    /// First sign of it, microseconds since 1970 (UTC).
    pub first_us: u64,
    /// Last sign of it.
    pub last_us: u64,
    /// Samples taken, by the agent's count; by its stored batches as long as no event says more.
    pub taken: u64,
    /// Samples that the agent's spool took, by its events.
    pub spooled: u64,
    /// Ticks that found their CPU idle.
    pub idle: u64,
    /// Samples dropped, by reason: the larger of what events and batches say, which count the same losses.
    pub dropped: BTreeMap<String, u64>,
    /// Batches that the agent's spool took, by its events.
    pub batches: u64,
    /// Batches stored; the parts of a split one count as one.
    pub batches_stored: u64,
    /// Samples stored: rows.
    pub stored: u64,
    /// Samples of its dead letters, as far as they are not accounted for otherwise. The store does not know: see
    /// [`RunStatus::set_aside`].
    pub set_aside: u64,
}

impl RunStatus {
    /// Returns how many samples were dropped.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Returns how many samples are neither stored nor dropped: on the host, on the bus, or cut short with the agent.
    pub fn under_way(&self) -> u64 {
        self.taken
            .saturating_sub(self.stored + self.dropped_total() + self.set_aside)
    }

    /// Notes the samples that lie among the dead letters. A letter that was put back and stored still lies there: only what
    /// would be under way without it counts.
    pub fn set_aside(&mut self, samples: u64) {
        self.set_aside = 0;
        self.set_aside = samples.min(self.under_way());
    }

    /// Returns how many samples are there more than were taken: anything but 0 is a fault of the accounting.
    pub fn excess(&self) -> u64 {
        (self.stored + self.dropped_total()).saturating_sub(self.taken)
    }
}

/// One opening of a host's spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Row, Deserialize)]
pub struct EpochSpan {
    /// The host.
    pub host: String,
    /// The epoch, as 32 hexadecimal digits.
    pub epoch: String,
    /// Start of its first batch, microseconds since 1970 (UTC).
    pub first_us: u64,
    /// End of its last batch.
    pub last_us: u64,
    /// Batches of it.
    pub batches: u64,
}

/// A host whose name several spools used at the same time: two agents with one host name, or a spool that was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostEpochs {
    /// The host.
    pub host: String,
    /// The openings that overlap, in order of their start.
    pub epochs: Vec<EpochSpan>,
}

/// Both sides of the accounting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Runs with a sign of life in the range, the newest first.
    pub runs: Vec<RunStatus>,
    /// Hosts with several spools alive at once. Nothing is lost or doubled by it; somebody should know.
    pub hosts_with_several_epochs_alive: Vec<HostEpochs>,
    /// Whether there were more runs, or openings of spools, than are looked at.
    pub cut: bool,
}

#[derive(Row, Deserialize)]
struct StoredRow {
    run: String,
    samples: u64,
}

/// What events, or stored batches, say of a run.
#[derive(Row, Deserialize)]
struct EventRow {
    run: String,
    host: String,
    profiler: String,
    cause: String,
    state: String,
    detail: String,
    first_us: u64,
    last_us: u64,
    taken: u64,
    spooled: u64,
    idle: u64,
    batches: u64,
    reasons: Vec<String>,
    dropped: Vec<u64>,
    /// Of batches that were lost after the spool had taken them: an event each, so their counts add up.
    lost_reasons: Vec<String>,
    lost: Vec<u64>,
}

const EVENTS: &str = "SELECT lower(hex(runs.run)) AS run, any(toString(runs.host)) AS host, \
     any(toString(runs.profiler)) AS profiler, any(toString(runs.cause)) AS cause, \
     argMax(toString(runs.state), if(runs.state = 'lost', 0, toInt8(runs.state))) AS state, \
     argMax(runs.detail, if(runs.state = 'lost', 0, toInt8(runs.state))) AS detail, \
     toUInt64(toUnixTimestamp64Micro(min(runs.time))) AS first_us, \
     toUInt64(toUnixTimestamp64Micro(max(runs.time))) AS last_us, max(runs.taken) AS taken, \
     max(runs.spooled) AS spooled, max(runs.idle) AS idle, max(runs.batches) AS batches, \
     arrayMap(x -> toString(x), mapKeys(maxMapIf(runs.drops, runs.state != 'lost'))) AS reasons, \
     mapValues(maxMapIf(runs.drops, runs.state != 'lost')) AS dropped, \
     arrayMap(x -> toString(x), mapKeys(sumMapIf(runs.drops, runs.state = 'lost'))) AS lost_reasons, \
     mapValues(sumMapIf(runs.drops, runs.state = 'lost')) AS lost \
     FROM runs FINAL WHERE runs.time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC') \
     GROUP BY runs.run ORDER BY last_us DESC LIMIT {rows:UInt64}";

const BATCHES: &str = "SELECT lower(hex(batches.run)) AS run, any(toString(batches.host)) AS host, \
     any(toString(batches.profiler)) AS profiler, any(toString(batches.cause)) AS cause, \
     '' AS state, '' AS detail, toUInt64(toUnixTimestamp64Micro(min(batches.start_time))) AS first_us, \
     toUInt64(toUnixTimestamp64Micro(max(batches.end_time))) AS last_us, sum(batches.taken) AS taken, \
     sum(batches.samples) AS spooled, sum(batches.idle) AS idle, \
     uniqExact(batches.epoch, batches.sequence) AS batches, \
     arrayMap(x -> toString(x), mapKeys(sumMap(batches.drops))) AS reasons, \
     mapValues(sumMap(batches.drops)) AS dropped, \
     emptyArrayString() AS lost_reasons, emptyArrayUInt64() AS lost \
     FROM batches FINAL WHERE batches.start_time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC') \
     GROUP BY batches.run ORDER BY last_us DESC LIMIT {rows:UInt64}";

// Of the very runs that the others look at. By run alone, so that the `identities` projection answers, without reading samples.
const STORED: &str = "SELECT lower(hex(samples.run)) AS run, count() AS samples FROM samples WHERE samples.run IN \
     (SELECT run FROM runs WHERE time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC') \
     GROUP BY run ORDER BY max(time) DESC LIMIT {rows:UInt64} UNION DISTINCT \
     SELECT run FROM batches WHERE start_time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC') \
     GROUP BY run ORDER BY max(end_time) DESC LIMIT {rows:UInt64}) \
     GROUP BY samples.run";

const EPOCHS: &str = "SELECT toString(batches.host) AS host, lower(hex(batches.epoch)) AS epoch, \
     toUInt64(toUnixTimestamp64Micro(min(start_time))) AS first_us, \
     toUInt64(toUnixTimestamp64Micro(max(end_time))) AS last_us, uniqExact(batches.sequence) AS batches \
     FROM batches WHERE start_time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC') \
     GROUP BY batches.host, batches.epoch ORDER BY last_us DESC LIMIT {rows:UInt64}";

impl Explorer {
    /// Returns the accounting of the runs with a sign of life since `since_us` (microseconds since 1970), and the hosts
    /// with several spools alive since then.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn status(&self, since_us: u64) -> Result<Status, Error> {
        let failed = self.failed("read the accounting");
        let since = i64::try_from(since_us).unwrap_or(i64::MAX);
        let ask = |sql: &'static str| {
            Sql::default()
                .push(sql)
                .query(self.client())
                .param("since", since)
                .param("rows", ROWS_MAX)
        };
        let events = ask(EVENTS).fetch_all::<EventRow>().await.map_err(&failed)?;
        let batches = ask(BATCHES).fetch_all::<EventRow>().await.map_err(&failed)?;
        let stored = ask(STORED).fetch_all::<StoredRow>().await.map_err(&failed)?;
        let epochs = ask(EPOCHS).fetch_all::<EpochSpan>().await.map_err(&failed)?;
        let cut = [events.len(), batches.len(), epochs.len()].contains(&ROWS_MAX);
        Ok(Status {
            cut,
            runs: merge(events, batches, stored),
            hosts_with_several_epochs_alive: overlapping(epochs),
        })
    }
}

fn merge(events: Vec<EventRow>, batches: Vec<EventRow>, stored: Vec<StoredRow>) -> Vec<RunStatus> {
    let mut runs: BTreeMap<String, RunStatus> = BTreeMap::new();
    // Samples of batches that were lost behind the spool. Of a run whose agent was killed nothing else may say that they were
    // taken.
    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    for event in events {
        let lost_here: u64 = event.lost.iter().sum();
        lost.insert(event.run.clone(), lost_here);
        let mut dropped: BTreeMap<String, u64> = event.reasons.into_iter().zip(event.dropped).collect();
        for (reason, samples) in event.lost_reasons.into_iter().zip(event.lost) {
            *dropped.entry(reason).or_default() += samples;
        }
        let run = RunStatus {
            run: event.run.clone(),
            host: event.host,
            profiler: event.profiler,
            cause: event.cause,
            state: event.state,
            detail: event.detail,
            first_us: event.first_us,
            last_us: event.last_us,
            taken: event.taken.max(lost_here),
            spooled: event.spooled,
            idle: event.idle,
            dropped,
            batches: event.batches,
            batches_stored: 0,
            stored: 0,
            set_aside: 0,
        };
        runs.insert(event.run, run);
    }
    for batch in batches {
        let run = runs.entry(batch.run.clone()).or_insert_with(|| RunStatus {
            run: batch.run,
            host: batch.host,
            profiler: batch.profiler,
            cause: batch.cause,
            state: String::new(),
            detail: String::new(),
            first_us: batch.first_us,
            last_us: batch.last_us,
            taken: 0,
            spooled: 0,
            idle: 0,
            dropped: BTreeMap::new(),
            batches: 0,
            batches_stored: 0,
            stored: 0,
            set_aside: 0,
        });
        run.first_us = run.first_us.min(batch.first_us);
        run.last_us = run.last_us.max(batch.last_us);
        let lost = lost.get(&run.run).copied().unwrap_or(0);
        run.taken = run.taken.max(batch.taken + lost);
        run.idle = run.idle.max(batch.idle);
        run.batches_stored = batch.batches;
        for (reason, count) in batch.reasons.into_iter().zip(batch.dropped) {
            let most = run.dropped.entry(reason).or_default();
            *most = count.max(*most);
        }
    }
    for row in stored {
        if let Some(run) = runs.get_mut(&row.run) {
            run.stored = row.samples;
        }
    }
    let mut runs: Vec<RunStatus> = runs.into_values().collect();
    runs.sort_by(|a, b| (b.last_us, &a.run).cmp(&(a.last_us, &b.run)));
    runs
}

/// Returns the hosts with spans that overlap. Spools of one agent follow one another: the next is opened after the
/// last batch of the one before was closed.
fn overlapping(spans: Vec<EpochSpan>) -> Vec<HostEpochs> {
    let mut hosts: BTreeMap<String, Vec<EpochSpan>> = BTreeMap::new();
    for span in spans {
        hosts.entry(span.host.clone()).or_default().push(span);
    }
    let crossing = |(host, mut spans): (String, Vec<EpochSpan>)| {
        spans.sort_by(|a, b| (a.first_us, &a.epoch).cmp(&(b.first_us, &b.epoch)));
        let crosses = |span: &EpochSpan| {
            let other = |other: &&EpochSpan| other.epoch != span.epoch;
            spans
                .iter()
                .filter(other)
                .any(|other| other.first_us < span.last_us && span.first_us < other.last_us)
        };
        let epochs: Vec<EpochSpan> = spans.iter().filter(|span| crosses(span)).cloned().collect();
        (!epochs.is_empty()).then_some(HostEpochs { host, epochs })
    };
    hosts.into_iter().filter_map(crossing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(host: &str, epoch: &str, first_us: u64, last_us: u64) -> EpochSpan {
        EpochSpan {
            host: host.into(),
            epoch: epoch.into(),
            first_us,
            last_us,
            batches: 1,
        }
    }

    /// Checks that an agent that restarts is no finding, and that two that run at once are.
    #[test]
    fn only_spools_that_live_at_once_are_named() {
        let restarted = vec![
            span("a", "1", 0, 10),
            span("a", "2", 10, 20),
            span("b", "3", 0, 20),
        ];
        assert_eq!(overlapping(restarted), []);
        let twins = vec![
            span("a", "1", 0, 11),
            span("a", "2", 10, 20),
            span("a", "3", 30, 40),
            span("b", "4", 0, 20),
        ];
        let found = overlapping(twins);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0]
                .epochs
                .iter()
                .map(|span| &*span.epoch)
                .collect::<Vec<_>>(),
            ["1", "2"]
        );
    }
}
