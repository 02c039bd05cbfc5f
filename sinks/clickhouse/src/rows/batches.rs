//! Rows of `batches`: the interval and the counts of each batch.

use strobe_event::{DropReason, Identity, SamplesBatch};

use super::columns::Columns;
use crate::native::{Maps, Texts, uuid};
use crate::tables::Table;

#[derive(Default)]
pub(super) struct BatchRows {
    rows: usize,
    host: Texts,
    profiler: Texts,
    columns: [Vec<u8>; 13],
    drops: Maps,
}

impl BatchRows {
    pub(super) fn add(&mut self, identity: &Identity, batch: &SamplesBatch) {
        let raw = &batch.raw;
        self.rows += 1;
        let number = self.host.number(&identity.host);
        self.host.rows.push(number);
        let number = self.profiler.number(&raw.run.profiler);
        self.profiler.rows.push(number);
        let sum = |of: fn(&strobe_event::CpuCounts) -> u64| {
            raw.cpus
                .iter()
                .fold(0_u64, |sum, cpu| sum.saturating_add(of(cpu)))
        };
        let [
            epoch,
            sequence,
            part,
            run,
            cause,
            index,
            start,
            end,
            samples,
            taken,
            idle,
            enabled,
            running,
        ] = &mut self.columns;
        uuid(epoch, identity.epoch.0);
        sequence.extend_from_slice(&identity.sequence.to_le_bytes());
        part.extend_from_slice(&identity.part.to_le_bytes());
        uuid(run, raw.run.id.0);
        cause.push(raw.run.cause);
        index.extend_from_slice(&raw.index.to_le_bytes());
        start.extend_from_slice(&raw.start_us.to_le_bytes());
        end.extend_from_slice(&raw.end_us.to_le_bytes());
        samples.extend_from_slice(&(raw.samples.len() as u64).to_le_bytes());
        taken.extend_from_slice(&sum(|cpu| cpu.taken).to_le_bytes());
        idle.extend_from_slice(&sum(|cpu| cpu.idle).to_le_bytes());
        enabled.extend_from_slice(&sum(|cpu| cpu.enabled_ns).to_le_bytes());
        running.extend_from_slice(&sum(|cpu| cpu.running_ns).to_le_bytes());
        self.drops.push(
            raw.drops
                .iter()
                .map(|drop| (drop_name(drop.reason), drop.samples)),
        );
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Batches, self.rows, 256 + 200 * self.rows);
        let [epoch, sequence, part, run, cause, rest @ ..] = &self.columns;
        columns.texts(&self.host);
        [epoch, sequence, part, run]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.texts(&self.profiler);
        columns.plain(cause);
        rest.iter().for_each(|values| columns.plain(values));
        columns.maps(&self.drops);
        columns.finish()
    }
}

/// Returns the name of a reason, by its code.
pub(super) fn drop_name(code: u8) -> &'static str {
    DropReason::from_code(code).map_or("unknown", DropReason::name)
}
