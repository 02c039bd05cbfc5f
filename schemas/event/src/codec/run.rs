//! Runs and their events on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::{DropCount, RunEvent, RunHead, RunId};

impl Fields for RunHead {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.text("run.host", &self.host)?;
        to.text("run.profiler", &self.profiler)?;
        to.code(self.cause);
        to.long(self.started_us);
        to.long(self.planned_us);
        to.long(self.slot_us);
        to.double(self.run_probability);
        to.double(self.kernel_probability);
        to.long(self.period);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: RunId(from.fixed("run.id")?),
            host: from.text("run.host")?,
            profiler: from.text("run.profiler")?,
            cause: from.code("run.cause")?,
            started_us: from.long("run.started_us")?,
            planned_us: from.long("run.planned_us")?,
            slot_us: from.long("run.slot_us")?,
            run_probability: from.double("run.run_probability")?,
            kernel_probability: from.double("run.kernel_probability")?,
            period: from.long("run.period")?,
        })
    }
}

/// Bytes that a [`DropCount`] takes at least: two numbers.
pub(super) const DROP_COUNT_BYTES_MIN: usize = 2;

impl Fields for DropCount {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.code(self.reason);
        to.long(self.samples);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            reason: from.code("drops.reason")?,
            samples: from.long("drops.samples")?,
        })
    }
}

impl Fields for RunEvent {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.run.write(to)?;
        to.code(self.state);
        to.long(self.time_us);
        to.text("detail", &self.detail)?;
        to.long(self.taken);
        to.long(self.spooled);
        to.long(self.idle);
        to.long(self.batches);
        to.records(&self.drops)?;
        to.long(self.done_us);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            run: RunHead::read(from)?,
            state: from.code("state")?,
            time_us: from.long("time_us")?,
            detail: from.text("detail")?,
            taken: from.long("taken")?,
            spooled: from.long("spooled")?,
            idle: from.long("idle")?,
            batches: from.long("batches")?,
            drops: from.records("drops", DROP_COUNT_BYTES_MIN)?,
            done_us: from.long("done_us")?,
        })
    }
}
