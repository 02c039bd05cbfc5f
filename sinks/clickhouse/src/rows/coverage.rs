//! Rows of `coverage`: what became of slots.

use strobe_event::{CoverageRecord, Identity};

use super::columns::Columns;
use crate::native::{Texts, uuid};
use crate::tables::Table;

/// Seconds of an hour.
const HOUR_S: u64 = 3_600;

#[derive(Default)]
pub(super) struct CoverageRows {
    rows: usize,
    names: [Texts; 3],
    /// In the order of the table, from `hour` on.
    columns: [Vec<u8>; 20],
}

impl CoverageRows {
    pub(super) fn add(&mut self, identity: &Identity, record: &CoverageRecord) {
        self.rows += 1;
        let names = [&record.service, &record.profiler, &record.host];
        for (texts, name) in self.names.iter_mut().zip(names) {
            let number = texts.number(name);
            texts.rows.push(number);
        }
        // The time was bounded at the door, so that seconds fit.
        let hour = u32::try_from(record.hour.saturating_mul(HOUR_S)).unwrap_or(u32::MAX);
        let number = |value: u64| value.to_le_bytes().to_vec();
        let double = |value: f64| value.to_le_bytes().to_vec();
        let mut epoch = Vec::with_capacity(16);
        uuid(&mut epoch, identity.epoch.0);
        let values = [
            hour.to_le_bytes().to_vec(),
            number(record.until_us),
            number(record.slot_us),
            number(record.revision),
            number(record.planned),
            number(record.refused),
            number(record.complete),
            number(record.cut_short),
            double(record.drawn_inverse),
            number(record.done_us),
            number(record.taken),
            number(record.cpu_us),
            vec![record.cpu_source],
            number(record.runs),
            double(record.u),
            double(record.uu),
            double(record.t),
            double(record.tt),
            double(record.tu),
            epoch,
        ];
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.extend_from_slice(&value);
        }
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Coverage, self.rows, 256 + 200 * self.rows);
        self.names.iter().for_each(|names| columns.texts(names));
        self.columns.iter().for_each(|values| columns.plain(values));
        columns.finish()
    }
}
