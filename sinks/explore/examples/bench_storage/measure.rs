//! Sizes by `system.parts`, and the peers.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clickhouse::{Client, Row};
use serde::Deserialize;
use strobe_explore::{ClickHouse, ddl};

/// How the peers are stored.
pub const PEERS: &str = "the same columns, but the stack as an array of its functions' names (LowCardinality(String)) \
     or of dense 32-bit numbers of its frames, ORDER BY (service, profiler, time), ZSTD(1) throughout";

/// Size of a table.
#[derive(Row, Deserialize)]
pub struct Size {
    /// Rows.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Size {
    /// Returns bytes per row.
    pub fn bytes_per_row(&self) -> f64 {
        self.bytes as f64 / self.rows.max(1) as f64
    }
}

/// Returns the size of the live parts of `table`.
pub async fn size(client: &Client, table: &str) -> Result<Size> {
    const SQL: &str = "SELECT sum(rows) AS rows, sum(bytes_on_disk) AS bytes FROM system.parts \
         WHERE active AND database = currentDatabase() AND table = {table:String}";
    Ok(client.query(SQL).param("table", table).fetch_one().await?)
}

/// Drops the database of `settings`.
pub async fn drop(settings: &ClickHouse) -> Result<()> {
    // The name was proved to be letters, digits and underscores.
    let sql = format!("DROP DATABASE IF EXISTS `{}` SYNC", settings.database());
    settings
        .client_without_database()
        .query_raw(&sql)
        .execute()
        .await
        .context("cannot drop the bench's database")
}

async fn run(client: &Client, sql: &str) -> Result<()> {
    client
        .query_raw(sql)
        .execute()
        .await
        .with_context(|| format!("cannot run: {sql}"))
}

/// Writes the hourly totals that a sink would have written.
pub async fn fill_totals(client: &Client) -> Result<()> {
    run(
        client,
        "INSERT INTO totals_hourly SELECT toStartOfHour(time), service, profiler, toUInt64(stack), \
         sum(fleet_weight), sum(run_weight), count() FROM samples GROUP BY ALL",
    )
    .await?;
    run(client, "OPTIMIZE TABLE totals_hourly FINAL").await
}

/// The first tenth of the day, stored as the peers do.
pub struct Subset {
    /// Rows.
    pub rows: u64,
    /// Bytes per sample with names.
    pub names_bytes: f64,
    /// Bytes per sample with numbers.
    pub ids_bytes: f64,
}

impl Subset {
    /// Stores it.
    pub async fn make(client: &Client) -> Result<Self> {
        run(
            client,
            "CREATE TABLE IF NOT EXISTS frame_numbers ENGINE = Memory AS SELECT frame, toUInt32(rowNumberInAllBlocks()) AS number, \
             functions[1] AS function FROM frames",
        )
        .await?;
        run(
            client,
            "CREATE TABLE IF NOT EXISTS stack_arrays ENGINE = Memory AS SELECT stack, \
             arrayMap(x -> x.2, arraySort(groupArray((position, function)))) AS names, \
             arrayMap(x -> x.2, arraySort(groupArray((position, number)))) AS numbers \
             FROM (SELECT stack, frame, position FROM stacks ARRAY JOIN frames AS frame, \
             arrayEnumerate(frames) AS position) AS s INNER JOIN frame_numbers AS f ON s.frame = f.frame GROUP BY stack",
        )
        .await?;
        run(
            client,
            "CREATE TABLE IF NOT EXISTS peer_names ENGINE = MergeTree ORDER BY (service, profiler, time) \
             SETTINGS default_compression_codec = 'ZSTD(1)' AS \
             SELECT s.* EXCEPT (stack), CAST(a.names, 'Array(LowCardinality(String))') AS names \
             FROM (SELECT * FROM samples WHERE time < (SELECT min(time) + INTERVAL 8640 SECOND FROM samples)) AS s \
             INNER JOIN stack_arrays AS a ON toUInt64(s.stack) = a.stack",
        )
        .await?;
        run(
            client,
            "CREATE TABLE IF NOT EXISTS peer_ids ENGINE = MergeTree ORDER BY (service, profiler, time) \
             SETTINGS default_compression_codec = 'ZSTD(1)' AS \
             SELECT s.* EXCEPT (stack), a.numbers AS numbers \
             FROM (SELECT * FROM samples WHERE time < (SELECT min(time) + INTERVAL 8640 SECOND FROM samples)) AS s \
             INNER JOIN stack_arrays AS a ON toUInt64(s.stack) = a.stack",
        )
        .await?;
        run(client, "OPTIMIZE TABLE peer_names FINAL").await?;
        run(client, "OPTIMIZE TABLE peer_ids FINAL").await?;
        let (names, ids) = (size(client, "peer_names").await?, size(client, "peer_ids").await?);
        ensure!(
            names.rows == ids.rows && names.rows > 0,
            "the peers hold other rows"
        );
        Ok(Self {
            rows: names.rows,
            names_bytes: names.bytes_per_row(),
            ids_bytes: ids.bytes_per_row(),
        })
    }
}

/// Returns bytes per stack of a plain table: ORDER BY stack, the engine's defaults.
pub async fn plain_stacks(client: &Client) -> Result<f64> {
    run(
        client,
        "CREATE TABLE IF NOT EXISTS peer_stacks ENGINE = ReplacingMergeTree ORDER BY stack AS \
         SELECT stack, stack_high, frames, end, day FROM stacks",
    )
    .await?;
    run(client, "OPTIMIZE TABLE peer_stacks FINAL").await?;
    Ok(size(client, "peer_stacks").await?.bytes_per_row())
}

async fn best_of(client: &Client, sql: &str, rounds: usize) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let began = Instant::now();
        run(client, sql).await?;
        best = best.min(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

/// Returns how long grouping by stacks of names takes.
pub async fn names_group_by_ms(client: &Client, _subset: &Subset) -> Result<f64> {
    best_of(
        client,
        "SELECT names, sum(fleet_weight) FROM peer_names GROUP BY names FORMAT Null",
        2,
    )
    .await
}

/// Returns how long ClickHouse's own flame graph of all stacks takes.
pub async fn flame_graph_function_ms(client: &Client) -> Result<f64> {
    let client = client.clone().with_setting("allow_introspection_functions", "1");
    let sql = "SELECT arrayJoin(flameGraph(a.names)) FROM (SELECT stack FROM totals_hourly GROUP BY stack) AS t \
         INNER JOIN stack_arrays AS a ON t.stack = a.stack FORMAT Null";
    best_of(&client, sql, 2).await
}

/// Copies what another database has stored into fresh tables, merges, and prints the same figures of it.
pub async fn capture_figures(from: &ClickHouse, into: &ClickHouse) -> Result<()> {
    ddl::apply(into).await?;
    let client = into.client();
    for table in ["samples", "stacks", "frames"] {
        // Both names were proved to be letters, digits and underscores.
        run(
            &client,
            &format!("INSERT INTO {table} SELECT * FROM `{}`.{table}", from.database()),
        )
        .await?;
        run(&client, &format!("OPTIMIZE TABLE {table} FINAL")).await?;
    }
    let (samples, stacks) = (size(&client, "samples").await?, size(&client, "stacks").await?);
    ensure!(
        samples.rows > 0 && stacks.rows > 0,
        "database {} holds no samples",
        from.database()
    );
    let depth: f64 = client
        .query("SELECT avg(length(frames)) FROM stacks")
        .fetch_one()
        .await?;
    let distinct = stacks.rows as f64 / samples.rows as f64;
    println!(
        "Capture: {} samples, {} stacks ({:.1} % distinct) of {depth:.1} frames on average",
        samples.rows,
        stacks.rows,
        100.0 * distinct,
    );
    println!(
        "With its share of stacks a sample takes {:.1} bytes in all",
        samples.bytes_per_row() + stacks.bytes_per_row() * distinct
    );
    println!(
        "figure storage.capture_bytes_per_sample value={:.2} target<=5",
        samples.bytes_per_row()
    );
    println!(
        "figure storage.capture_bytes_per_stack value={:.1} target<=60 peer:plain={:.1}",
        stacks.bytes_per_row(),
        plain_stacks(&client).await?
    );
    Ok(())
}
