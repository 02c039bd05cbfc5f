//! How the stacks of each service ended: whole, or cut, and why.

use std::collections::BTreeMap;

use clickhouse::Row;
use serde::{Deserialize, Serialize};
use strobe_event::StackEnd;

use crate::selection::Sql;
use crate::{Error, Explorer};

/// Pairs of a service and an end that are read: 5,000 services with each end there is.
const ROWS_MAX: usize = 5_000 * StackEnd::ALL.len();

/// How the stacks of a service ended, in samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ServiceEnds {
    /// The service.
    pub service: String,
    /// Samples in all.
    pub samples: u64,
    /// Of these, with a whole stack.
    pub complete: u64,
    /// The others, by [`StackEnd::name`]; `not_stored` where the stack's row is missing.
    pub cut: BTreeMap<String, u64>,
}

/// How the stacks of all services ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StackEnds {
    /// By service, the most samples first.
    pub services: Vec<ServiceEnds>,
    /// More services have samples than are looked at: some with few are left out.
    pub cut: bool,
}

impl ServiceEnds {
    /// Adds another one's counts.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.complete += other.complete;
        for (end, samples) in &other.cut {
            *self.cut.entry(end.clone()).or_default() += samples;
        }
    }
}

#[derive(Row, Deserialize)]
struct EndRow {
    service: String,
    /// Code of the end; 0 where there is no row of the stack.
    end: u8,
    samples: u64,
}

// By the hourly totals: reading every sample of a large fleet's hour would take minutes.
const ENDS: &str = "SELECT toString(t.service) AS service, toUInt8(k.end) AS end, sum(t.samples) AS samples FROM \
     (SELECT totals_hourly.service AS service, toUInt64(totals_hourly.stack) AS stack, sum(totals_hourly.samples) AS samples \
     FROM totals_hourly WHERE totals_hourly.hour >= toStartOfHour(fromUnixTimestamp64Micro({since:Int64}, 'UTC')) \
     GROUP BY service, stack) AS t LEFT JOIN \
     (SELECT stacks.stack AS stack, any(toInt8(stacks.end)) AS end FROM stacks \
     WHERE stacks.day >= toDate(fromUnixTimestamp64Micro({since:Int64}, 'UTC')) GROUP BY stack) AS k ON t.stack = k.stack \
     GROUP BY service, end ORDER BY samples DESC LIMIT {rows:UInt64}";

impl Explorer {
    /// Returns how stacks ended in the hours since `since_us` (microseconds since 1970). Counts whole hours, as the totals do.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn stack_ends(&self, since_us: u64) -> Result<StackEnds, Error> {
        let rows = Sql::default()
            .push(ENDS)
            .query(self.client())
            .param("since", i64::try_from(since_us).unwrap_or(i64::MAX))
            .param("rows", ROWS_MAX)
            .fetch_all::<EndRow>()
            .await
            .map_err(self.failed("read how stacks ended"))?;
        let cut = rows.len() >= ROWS_MAX;
        let mut services: BTreeMap<String, ServiceEnds> = BTreeMap::new();
        for row in rows {
            let service = services.entry(row.service).or_default();
            service.samples += row.samples;
            match StackEnd::from_code(row.end) {
                Some(end) if end.is_complete() => service.complete += row.samples,
                end => {
                    let name = end.map_or("not_stored", StackEnd::name).to_owned();
                    *service.cut.entry(name).or_default() += row.samples;
                }
            }
        }
        let mut services: Vec<_> = services
            .into_iter()
            .map(|(service, ends)| ServiceEnds { service, ..ends })
            .collect();
        services.sort_by_key(|service| std::cmp::Reverse(service.samples));
        Ok(StackEnds { services, cut })
    }
}
