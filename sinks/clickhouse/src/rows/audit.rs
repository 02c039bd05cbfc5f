//! Rows of `audit`: who asked for what, and who was refused.

use strobe_event::AuditRecord;

use super::columns::Columns;
use crate::native::{Texts, text, uuid};
use crate::tables::Table;

#[derive(Default)]
pub(super) struct AuditRows {
    rows: usize,
    /// Reporter, reason, service, profiler.
    names: [Texts; 4],
    /// The others, in the order of the table.
    columns: [Vec<u8>; 10],
}

impl AuditRows {
    pub(super) fn add(&mut self, record: &AuditRecord) {
        self.rows += 1;
        let names = [
            &record.reporter,
            &record.reason,
            &record.service,
            &record.profiler,
        ];
        for (texts, name) in self.names.iter_mut().zip(names) {
            let number = texts.number(name);
            texts.rows.push(number);
        }
        let [
            id,
            time,
            who,
            proved,
            action,
            outcome,
            detail,
            subject,
            target,
            why,
        ] = &mut self.columns;
        uuid(id, record.id.0);
        time.extend_from_slice(&record.time_us.to_le_bytes());
        text(who, &record.who);
        proved.push(record.proved.into());
        action.push(record.action);
        outcome.push(record.outcome);
        text(detail, &record.detail);
        text(subject, &record.subject);
        text(target, &record.target);
        text(why, &record.why);
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Audit, self.rows, 256 + 300 * self.rows);
        let [reporter, reason, service, profiler] = &self.names;
        let [
            id,
            time,
            who,
            proved,
            action,
            outcome,
            detail,
            subject,
            target,
            why,
        ] = &self.columns;
        [id, time, who, proved]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.texts(reporter);
        [action, outcome]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.texts(reason);
        [detail, subject]
            .into_iter()
            .for_each(|values| columns.plain(values));
        columns.texts(service);
        columns.texts(profiler);
        [target, why].into_iter().for_each(|values| columns.plain(values));
        columns.finish()
    }
}
