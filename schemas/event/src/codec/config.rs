//! Configuration on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::StackSchemaFile;

impl Fields for StackSchemaFile {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("name", &self.name)?;
        to.int("version", self.version)?;
        to.flag(self.enabled);
        to.long(self.applied_us);
        to.text("applied_by", &self.applied_by)?;
        to.texts("text", &self.text)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: from.text("name")?,
            version: from.int("version")?,
            enabled: from.flag("enabled")?,
            applied_us: from.long("applied_us")?,
            applied_by: from.text("applied_by")?,
            text: from.texts("text")?,
        })
    }
}
