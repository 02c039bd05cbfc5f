//! What can be queried, asked as anybody would ask.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clickhouse::Client;
use serde::Deserialize;
use tokio::runtime::Runtime;

/// The store, for a program without a runtime of its own.
pub struct Store {
    /// The client.
    pub client: Client,
    /// Its runtime.
    pub runtime: Runtime,
}

/// Pauses between two looks. Each costs the engine some milliseconds, so that there are few while much is missing.
const LOOK_SHORTEST: Duration = Duration::from_millis(20);
const LOOK_LONGEST: Duration = Duration::from_secs(1);

#[derive(clickhouse::Row, Deserialize)]
struct Numbers {
    first: u64,
    second: u64,
}

impl Store {
    /// Returns two numbers that `sql` gives.
    pub fn two(&self, sql: &str) -> Result<(u64, u64)> {
        let numbers = self
            .runtime
            .block_on(self.client.query(sql).fetch_one::<Numbers>())?;
        Ok((numbers.first, numbers.second))
    }

    /// Runs a statement.
    pub fn run(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.query(sql).execute())?)
    }

    /// Returns the rows of a table.
    pub fn rows(&self, table: &str) -> Result<u64> {
        let sql = format!("SELECT count() AS first, toUInt64(0) AS second FROM {table}");
        Ok(self.two(&sql)?.0)
    }

    /// Waits until a table has `rows`, calling `check` meanwhile.
    pub fn wait_for_rows(
        &self,
        table: &str,
        rows: u64,
        limit: Duration,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        let deadline = start + limit;
        let first = self.rows(table)?;
        loop {
            let have = self.rows(table)?;
            if have >= rows {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("after {limit:?}, {have} of {rows} rows of `{table}` can be queried");
            }
            check()?;
            // At the rate so far the rest takes so long; the next look comes after a tenth of it.
            let done = have.saturating_sub(first).max(1) as f64;
            let left = start
                .elapsed()
                .mul_f64((rows.saturating_sub(have) as f64 / done / 10.0).min(1e3));
            std::thread::sleep(left.clamp(LOOK_SHORTEST, LOOK_LONGEST));
        }
    }
}
