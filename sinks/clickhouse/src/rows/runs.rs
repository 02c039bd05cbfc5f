//! Rows of `runs`: the events of each run.

use strobe_event::{Identity, RunEvent};

use super::batches::drop_name;
use super::columns::Columns;
use crate::native::{Maps, Texts, text, uuid};
use crate::tables::Table;

#[derive(Default)]
pub(super) struct RunRows {
    rows: usize,
    host: Texts,
    profiler: Texts,
    columns: [Vec<u8>; 16],
    drops: Maps,
}

impl RunRows {
    pub(super) fn add(&mut self, identity: &Identity, event: &RunEvent) {
        let run = &event.run;
        self.rows += 1;
        let number = self.host.number(&identity.host);
        self.host.rows.push(number);
        let number = self.profiler.number(&run.profiler);
        self.profiler.rows.push(number);
        let [
            id,
            cause,
            state,
            time,
            detail,
            planned,
            done,
            probability,
            period,
            taken,
            spooled,
            idle,
            batches,
            epoch,
            sequence,
            part,
        ] = &mut self.columns;
        uuid(id, run.id.0);
        cause.push(run.cause);
        state.push(event.state);
        time.extend_from_slice(&event.time_us.to_le_bytes());
        text(detail, &event.detail);
        planned.extend_from_slice(&run.planned_us.to_le_bytes());
        done.extend_from_slice(&event.done_us.to_le_bytes());
        probability.extend_from_slice(&run.run_probability.to_le_bytes());
        period.extend_from_slice(&run.period.to_le_bytes());
        taken.extend_from_slice(&event.taken.to_le_bytes());
        spooled.extend_from_slice(&event.spooled.to_le_bytes());
        idle.extend_from_slice(&event.idle.to_le_bytes());
        batches.extend_from_slice(&event.batches.to_le_bytes());
        uuid(epoch, identity.epoch.0);
        sequence.extend_from_slice(&identity.sequence.to_le_bytes());
        part.extend_from_slice(&identity.part.to_le_bytes());
        self.drops.push(
            event
                .drops
                .iter()
                .map(|drop| (drop_name(drop.reason), drop.samples)),
        );
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Runs, self.rows, 256 + 250 * self.rows);
        let [id, rest @ .., epoch, sequence, part] = &self.columns;
        columns.plain(id);
        columns.texts(&self.host);
        columns.texts(&self.profiler);
        rest.iter().for_each(|values| columns.plain(values));
        columns.maps(&self.drops);
        [epoch, sequence, part]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.finish()
    }
}
