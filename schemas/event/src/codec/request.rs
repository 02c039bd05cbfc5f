//! Requests, their states and what hosts report of them, on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::request::{PAYLOAD_BYTES_MAX, SIGNATURE_BYTES_MAX};
use crate::{HostReport, Request, RequestId, RequestState, RunId, SignedRequest};

impl Fields for Request {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.code(self.action);
        to.text("who", &self.who)?;
        to.text("why", &self.why)?;
        to.text("origin", &self.origin)?;
        to.long(self.asked_us);
        to.text("service", &self.service)?;
        to.text("region", &self.region)?;
        to.text("host", &self.host)?;
        to.int("pid", self.pid)?;
        to.int("hosts", self.hosts)?;
        to.text("profiler", &self.profiler)?;
        to.texts("arguments", &self.arguments)?;
        to.double(self.frequency_hz);
        to.long(self.duration_us);
        to.long(self.wait_us);
        to.code(self.cause);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: RequestId(from.fixed("id")?),
            action: from.code("action")?,
            who: from.text("who")?,
            why: from.text("why")?,
            origin: from.text("origin")?,
            asked_us: from.long("asked_us")?,
            service: from.text("service")?,
            region: from.text("region")?,
            host: from.text("host")?,
            pid: from.int("pid")?,
            hosts: from.int("hosts")?,
            profiler: from.text("profiler")?,
            arguments: from.texts("arguments")?,
            frequency_hz: from.double("frequency_hz")?,
            duration_us: from.long("duration_us")?,
            wait_us: from.long("wait_us")?,
            cause: from.code("cause")?,
        })
    }
}

impl Fields for SignedRequest {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.limited("payload", &self.payload, PAYLOAD_BYTES_MAX)?;
        to.limited("signature", &self.signature, SIGNATURE_BYTES_MAX)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: RequestId(from.fixed("id")?),
            payload: from.bytes("payload", PAYLOAD_BYTES_MAX)?.to_vec(),
            signature: from.bytes("signature", SIGNATURE_BYTES_MAX)?.to_vec(),
        })
    }
}

impl Fields for RequestState {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.text("host", &self.host)?;
        to.code(self.phase);
        to.flag(self.late);
        to.long(self.time_us);
        to.fixed(&self.life);
        to.long(self.left_us);
        to.fixed(&self.run.0);
        to.long(self.taken);
        to.long(self.dropped);
        to.text("detail", &self.detail)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: RequestId(from.fixed("id")?),
            host: from.text("host")?,
            phase: from.code("phase")?,
            late: from.flag("late")?,
            time_us: from.long("time_us")?,
            life: from.fixed("life")?,
            left_us: from.long("left_us")?,
            run: RunId(from.fixed("run")?),
            taken: from.long("taken")?,
            dropped: from.long("dropped")?,
            detail: from.text("detail")?,
        })
    }
}

impl Fields for HostReport {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.text("host", &self.host)?;
        to.fixed(&self.life);
        to.code(self.phase);
        to.fixed(&self.run.0);
        to.long(self.taken);
        to.long(self.dropped);
        to.text("detail", &self.detail)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: RequestId(from.fixed("id")?),
            host: from.text("host")?,
            life: from.fixed("life")?,
            phase: from.code("phase")?,
            run: RunId(from.fixed("run")?),
            taken: from.long("taken")?,
            dropped: from.long("dropped")?,
            detail: from.text("detail")?,
        })
    }
}
