//! Rows of `audit`: who asked for what, and who was refused.

use strobe_event::AuditRecord;

use super::columns::Columns;
use crate::native::{Texts, text, uuid};
use crate::tables::Table;

#[derive(Default)]
pub(super) struct AuditRows {
    rows: usize,
    id: Vec<u8>,
    time: Vec<u8>,
    who: Vec<u8>,
    proved: Vec<u8>,
    reporter: Texts,
    action: Vec<u8>,
    outcome: Vec<u8>,
    reason: Texts,
    detail: Vec<u8>,
    subject: Vec<u8>,
    service: Texts,
    profiler: Texts,
    target: Vec<u8>,
    why: Vec<u8>,
}

impl AuditRows {
    pub(super) fn add(&mut self, record: &AuditRecord) {
        self.rows += 1;
        for (texts, name) in [
            (&mut self.reporter, &record.reporter),
            (&mut self.reason, &record.reason),
            (&mut self.service, &record.service),
            (&mut self.profiler, &record.profiler),
        ] {
            let number = texts.number(name);
            texts.rows.push(number);
        }
        uuid(&mut self.id, record.id.0);
        self.time.extend_from_slice(&record.time_us.to_le_bytes());
        text(&mut self.who, &record.who);
        self.proved.push(record.proved.into());
        self.action.push(record.action);
        self.outcome.push(record.outcome);
        text(&mut self.detail, &record.detail);
        text(&mut self.subject, &record.subject);
        text(&mut self.target, &record.target);
        text(&mut self.why, &record.why);
    }

    pub(super) fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Audit, self.rows, 256 + 300 * self.rows);
        columns.plain(&self.id);
        columns.plain(&self.time);
        columns.plain(&self.who);
        columns.plain(&self.proved);
        columns.texts(&self.reporter);
        columns.plain(&self.action);
        columns.plain(&self.outcome);
        columns.texts(&self.reason);
        columns.plain(&self.detail);
        columns.plain(&self.subject);
        columns.texts(&self.service);
        columns.texts(&self.profiler);
        columns.plain(&self.target);
        columns.plain(&self.why);
        columns.finish()
    }
}
