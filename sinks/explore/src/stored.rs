//! How much of some runs is stored.

use clickhouse::Row;
use serde::Deserialize;
use strobe_event::RunId;

use crate::selection::Sql;
use crate::{Error, Explorer, Range};

/// What is stored of some runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredOfRuns {
    /// Samples.
    pub samples: u64,
    /// From the first to the last of them; empty where there is none.
    pub range: Range,
}

#[derive(Debug, Row, Deserialize)]
struct StoredRow {
    samples: u64,
    first: i64,
    last: i64,
}

impl Explorer {
    /// Returns what is stored of `runs`, none of which began before `since_us`, microseconds since 1970 (UTC).
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn stored_of_runs(&self, runs: &[RunId], since_us: u64) -> Result<StoredOfRuns, Error> {
        let runs: Vec<String> = runs.iter().map(RunId::to_string).collect();
        let sql = Sql::default()
            .push("SELECT count() AS samples, toUnixTimestamp64Micro(min(time)) AS first, ")
            .push("toUnixTimestamp64Micro(max(time)) AS last FROM samples")
            .number(
                " WHERE time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')",
                "since",
                i64::try_from(since_us).ok(),
            )
            .texts(
                " AND run IN (SELECT arrayJoin(arrayMap(run -> toUUID(run), {runs:Array(String)})))",
                "runs",
                &runs,
            );
        let row = sql
            .query(self.client())
            .fetch_one::<StoredRow>()
            .await
            .map_err(self.failed("count what is stored of runs"))?;
        let us = |time: i64| u64::try_from(time).unwrap_or_default();
        let range = match row.samples {
            0 => Range {
                since_us,
                until_us: since_us,
            },
            _ => Range {
                since_us: us(row.first),
                until_us: us(row.last).saturating_add(1),
            },
        };
        Ok(StoredOfRuns {
            samples: row.samples,
            range,
        })
    }
}
