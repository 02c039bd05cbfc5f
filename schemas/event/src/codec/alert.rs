//! Alerts on the wire, and what was made of them.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::{Alert, AlertAnswer, RequestId};

impl Fields for Alert {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("fingerprint", &self.fingerprint)?;
        to.text("name", &self.name)?;
        to.code(self.status);
        to.long(self.started_us);
        to.long(self.ended_us);
        to.texts("labels", &self.labels)?;
        to.texts("annotations", &self.annotations)?;
        to.text("group", &self.group)?;
        to.text("source", &self.source)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            fingerprint: from.text("fingerprint")?,
            name: from.text("name")?,
            status: from.code("status")?,
            started_us: from.long("started_us")?,
            ended_us: from.long("ended_us")?,
            labels: from.texts("labels")?,
            annotations: from.texts("annotations")?,
            group: from.text("group")?,
            source: from.text("source")?,
        })
    }
}

impl Fields for AlertAnswer {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("fingerprint", &self.fingerprint)?;
        to.text("rule", &self.rule)?;
        to.fixed(&self.request.0);
        to.long(self.time_us);
        to.text("link", &self.link)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            fingerprint: from.text("fingerprint")?,
            rule: from.text("rule")?,
            request: RequestId(from.fixed("request")?),
            time_us: from.long("time_us")?,
            link: from.text("link")?,
        })
    }
}
