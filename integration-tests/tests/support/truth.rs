//! What must be stored, sample by sample, and whether it is.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strobe_event::key::{frame_keys, stack_keys};
use strobe_event::{Identity, RawBatch};
use strobe_integration_tests::Cluster;

/// Longest wait until everything that was sent is stored.
const STORED: Duration = Duration::from_secs(90);

/// A sample as its row shows it: epoch, sequence, time, CPU, thread, stack.
type Row = (String, u64, u64, u32, u32, u64);

/// The samples of known batches.
#[derive(Default, Clone)]
pub struct Truth {
    /// How often each row must be there.
    rows: BTreeMap<Row, u64>,
    /// Samples of each stack.
    stacks: BTreeMap<u64, u64>,
    batches: u64,
    samples: u64,
}

impl Truth {
    /// Adds a batch.
    pub fn add(&mut self, identity: &Identity, batch: &RawBatch) {
        let keys = stack_keys(batch, &frame_keys(batch));
        let mut time = batch.start_us;
        for at in 0..batch.samples.len() {
            let samples = &batch.samples;
            time += samples.time_delta_us[at];
            let stack = keys[samples.stack[at] as usize].low();
            let tid = batch.threads.tid[samples.thread[at] as usize];
            let row = (
                identity.epoch.to_string(),
                identity.sequence,
                time,
                samples.cpu[at],
                tid,
                stack,
            );
            *self.rows.entry(row).or_default() += 1;
            *self.stacks.entry(stack).or_default() += 1;
        }
        self.batches += 1;
        self.samples += batch.samples.len() as u64;
    }

    /// Adds everything of another.
    pub fn merge(&mut self, other: &Self) {
        for (row, count) in &other.rows {
            *self.rows.entry(row.clone()).or_default() += count;
        }
        for (stack, count) in &other.stacks {
            *self.stacks.entry(*stack).or_default() += count;
        }
        self.batches += other.batches;
        self.samples += other.samples;
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Waits until processor and sink have nothing left to do, and checks that exactly these samples are stored, each once,
    /// that the totals say the same, that every stack and frame is there, and that the accounting adds up.
    pub fn is_stored(&self, cluster: &Cluster) -> Result<()> {
        caught_up(cluster)?;
        let found = stored_rows(cluster)?;
        let doubled = found
            .iter()
            .filter(|(row, count)| self.rows.get(*row) < Some(*count));
        let missing = self
            .rows
            .iter()
            .filter(|(row, count)| found.get(*row) < Some(*count));
        let (doubled, missing) = (doubled.count(), missing.count());
        ensure!(
            doubled == 0 && missing == 0,
            "{} samples were sent; {missing} are missing, {doubled} are there too often",
            self.samples
        );
        let mut totals = BTreeMap::new();
        for row in cluster.rows("SELECT stack, sum(samples) FROM totals_hourly GROUP BY stack")? {
            totals.insert(number(&row, 0)?, number(&row, 1)?);
        }
        ensure!(totals == self.stacks, "the totals differ from what was sent");
        ensure!(
            cluster.number("SELECT count() FROM batches FINAL")? as u64 == self.batches,
            "not as many batches as were sent"
        );
        adds_up(cluster)?;
        let status = cluster.json(&["status", "-o", "json"])?;
        let sum = |key: &str| status["sum"][key].as_u64();
        ensure!(
            sum("taken") == Some(self.samples)
                && sum("stored") == Some(self.samples)
                && sum("under_way") == Some(0),
            "{} samples were sent: {}",
            self.samples,
            status["sum"]
        );
        Ok(())
    }

    /// Checks that these samples are stored, each once, whatever else is.
    pub fn is_among_the_stored(&self, cluster: &Cluster) -> Result<()> {
        let found = stored_rows(cluster)?;
        let wrong = self
            .rows
            .iter()
            .filter(|(row, count)| found.get(*row) != Some(*count));
        let wrong = wrong.count();
        ensure!(
            wrong == 0,
            "of {} known samples, {wrong} are missing or doubled",
            self.samples
        );
        Ok(())
    }
}

fn number(row: &[String], at: usize) -> Result<u64> {
    let text = row.get(at).context("a column is missing")?;
    text.parse().with_context(|| format!("{text} is no number"))
}

fn stored_rows(cluster: &Cluster) -> Result<BTreeMap<Row, u64>> {
    let sql = "SELECT lower(hex(epoch)), sequence, toUnixTimestamp64Micro(time), cpu, tid, toUInt64(stack) FROM samples";
    let mut rows = BTreeMap::new();
    for row in cluster.rows(sql)? {
        let key = (
            row[0].clone(),
            number(&row, 1)?,
            number(&row, 2)?,
            number(&row, 3)? as u32,
            number(&row, 4)? as u32,
            number(&row, 5)?,
        );
        *rows.entry(key).or_default() += 1;
    }
    Ok(rows)
}

/// Waits until processor and sink have committed everything that was ever sent to them.
pub fn caught_up(cluster: &Cluster) -> Result<()> {
    cluster.wait_longer("processor and sink have caught up", STORED, || {
        let Ok(status) = cluster.json(&["status", "-o", "json"]) else {
            return false;
        };
        let lag = status["lag"].as_array();
        lag.is_some_and(|lag| lag.len() == 4 && lag.iter().all(|one| one["messages"] == 0))
    })
}

/// Checks that rows, totals and batches agree, stack by stack, whatever was sent, and that nothing hangs in the air.
pub fn adds_up(cluster: &Cluster) -> Result<()> {
    let differ = cluster.number(
        "SELECT count() FROM (SELECT stack, sum(samples) AS n, sum(fleet_weight) AS w FROM totals_hourly GROUP BY stack) AS t \
         FULL OUTER JOIN (SELECT toUInt64(stack) AS stack, count() AS n, sum(fleet_weight) AS w FROM samples GROUP BY stack) \
         AS s ON t.stack = s.stack WHERE t.n != s.n OR abs(t.w - s.w) > 1e-6 * s.w",
    )?;
    ensure!(
        differ == 0.0,
        "the totals of {differ} stacks are not those of their samples"
    );
    let differ = cluster.number(
        "SELECT count() FROM (SELECT epoch, sequence, part, samples AS n FROM batches FINAL) AS b FULL OUTER JOIN (SELECT epoch, \
         sequence, part, count() AS n FROM samples GROUP BY epoch, sequence, part) AS s ON b.epoch = s.epoch AND b.sequence = \
         s.sequence AND b.part = s.part WHERE b.n != s.n",
    )?;
    ensure!(
        differ == 0.0,
        "{differ} batches do not have their number of samples"
    );
    let nameless = cluster.number(
        "SELECT (SELECT uniqExact(stack) FROM samples WHERE toUInt64(stack) NOT IN (SELECT stack FROM stacks)) + (SELECT \
         count() FROM (SELECT DISTINCT arrayJoin(frames) AS f FROM stacks) WHERE f NOT IN (SELECT frame FROM frames))",
    )?;
    ensure!(nameless == 0.0, "{nameless} stacks or frames are not there");
    let status = cluster.json(&["status", "-o", "json"])?;
    ensure!(
        status["sum"]["excess"] == 0,
        "more is accounted for than was taken: {}",
        status["sum"]
    );
    Ok(())
}
