//! The audit on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::{AuditId, AuditRecord};

impl Fields for AuditRecord {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.long(self.time_us);
        to.text("who", &self.who)?;
        to.flag(self.proved);
        to.text("reporter", &self.reporter)?;
        to.code(self.action);
        to.code(self.outcome);
        to.text("reason", &self.reason)?;
        to.text("detail", &self.detail)?;
        to.text("subject", &self.subject)?;
        to.text("service", &self.service)?;
        to.text("profiler", &self.profiler)?;
        to.text("target", &self.target)?;
        to.text("why", &self.why)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: AuditId(from.fixed("id")?),
            time_us: from.long("time_us")?,
            who: from.text("who")?,
            proved: from.flag("proved")?,
            reporter: from.text("reporter")?,
            action: from.code("action")?,
            outcome: from.code("outcome")?,
            reason: from.text("reason")?,
            detail: from.text("detail")?,
            subject: from.text("subject")?,
            service: from.text("service")?,
            profiler: from.text("profiler")?,
            target: from.text("target")?,
            why: from.text("why")?,
        })
    }
}
