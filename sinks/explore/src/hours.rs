//! What of a service's time was sampled, hour by hour, and how well its total is known.

use clickhouse::Row;
use serde::Deserialize;
use strobe_event::CpuSource;
use strobe_sampling::spread::{Population, RunSums, Total};

use crate::{Error, Explorer, Range};

/// A (service, hour), as it was covered.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceHour {
    /// The service; `*` for the whole of all hosts.
    pub service: String,
    /// Start of the hour, microseconds since 1970 (UTC).
    pub hour_us: u64,
    /// Hosts that reported.
    pub hosts: u64,
    /// Completed runs.
    pub runs: u64,
    /// Slots that were drawn and could not run.
    pub refused: u64,
    /// Share of the planned time that was profiled.
    pub profiled: f64,
    /// CPU seconds by the samples, corrected, with their ±.
    pub total: Total,
    /// CPU seconds by the kernel's own account.
    pub cpu_seconds: f64,
    /// Where the weakest of them was read.
    pub cpu_source: CpuSource,
}

#[derive(Debug, Row, Deserialize)]
struct HourRow {
    service: String,
    hour: u32,
    hosts: u64,
    runs: u64,
    refused: u64,
    planned: f64,
    done: f64,
    u: f64,
    uu: f64,
    t: f64,
    tt: f64,
    tu: f64,
    cpu: f64,
    source: u8,
    weight: f64,
    squares: f64,
}

/// Slots count by their length in seconds, so that those of different lengths add up; weights are CPU seconds.
const SQL: &str = "SELECT c.service AS service, c.hour AS hour, c.hosts AS hosts, c.runs AS runs, c.refused AS refused,
    c.planned AS planned, c.done AS done, c.u AS u, c.uu AS uu, c.t AS t, c.tt AS tt, c.tu AS tu, c.cpu AS cpu,
    c.source AS source, s.weight AS weight, s.squares AS squares
FROM
(
    SELECT toString(r.service) AS service, toUInt32(r.hour) AS hour, uniqExact(r.host) AS hosts, sum(r.runs) AS runs,
        sum(r.refused) AS refused, sum(r.planned * r.slot_us) / 1e6 AS planned, sum(r.done_us) / 1e6 AS done,
        sum(r.u * r.slot_us) / 1e6 AS u, sum(r.uu * r.slot_us * r.slot_us) / 1e12 AS uu,
        sum(r.t * r.slot_us) / 1e6 AS t, sum(r.tt * r.slot_us * r.slot_us) / 1e12 AS tt,
        sum(r.tu * r.slot_us * r.slot_us) / 1e12 AS tu, sum(r.cpu_us) / 1e6 AS cpu,
        toUInt8(maxIf(toInt8(r.cpu_source), r.cpu_us > 0)) AS source
    FROM (SELECT * FROM coverage FINAL) AS r
    WHERE r.profiler = {profiler:String} AND toUInt32(r.hour) >= {since:UInt32} AND toUInt32(r.hour) < {until:UInt32}
    GROUP BY service, hour
) AS c
LEFT JOIN
(
    SELECT arrayJoin([toString(samples.service), '*']) AS service, toUInt32(toStartOfHour(samples.time)) AS hour,
        sum(fleet_weight) / 1e9 AS weight, sum(fleet_weight * fleet_weight) / 1e18 AS squares
    FROM samples
    WHERE profiler = {profiler:String} AND cause = 'continuous'
        AND time >= fromUnixTimestamp({since:UInt32}) AND time < fromUnixTimestamp({until:UInt32})
    GROUP BY service, hour
) AS s ON c.service = s.service AND c.hour = s.hour
ORDER BY service, hour";

impl Explorer {
    /// Returns every (service, hour) of which a slot was planned in the whole hours that `range` touches.
    ///
    /// # Errors
    /// [`Error::Store`], and [`Error::Selection`] for times that have no 32 bits of seconds.
    pub async fn service_hours(&self, profiler: &str, range: Range) -> Result<Vec<ServiceHour>, Error> {
        const HOUR_US: u64 = 3_600_000_000;
        let seconds = |hour: u64| {
            u32::try_from(hour * 3_600)
                .map_err(|_| Error::Selection("the range ends after the year 2105".into()))
        };
        let since = seconds(range.since_us / HOUR_US)?;
        let until = seconds(range.until_us.div_ceil(HOUR_US))?;
        let rows: Vec<HourRow> = self
            .client()
            .query_raw(SQL)
            .param("profiler", profiler)
            .param("since", since)
            .param("until", until)
            .fetch_all()
            .await
            .map_err(self.failed("ask what was sampled"))?;
        Ok(rows.into_iter().map(ServiceHour::from).collect())
    }
}

impl From<HourRow> for ServiceHour {
    fn from(row: HourRow) -> Self {
        let sums = RunSums {
            runs: row.runs,
            u: row.u,
            uu: row.uu,
            t: row.t,
            tt: row.tt,
            tu: row.tu,
        };
        let profiled = if row.planned > 0.0 {
            (row.done / row.planned).min(1.0)
        } else {
            0.0
        };
        let correction = if row.u > 0.0 {
            row.planned / row.u * sums.small_sample_factor()
        } else {
            1.0
        };
        let population = Population {
            slots: row.planned,
            profiled,
            squared_weights: row.squares,
        };
        Self {
            hour_us: u64::from(row.hour) * 1_000_000,
            hosts: row.hosts,
            runs: row.runs,
            refused: row.refused,
            profiled,
            total: Total::new(row.weight, correction, &sums, population),
            cpu_seconds: row.cpu,
            cpu_source: CpuSource::from_code(row.source).unwrap_or(CpuSource::Unknown),
            service: row.service,
        }
    }
}
