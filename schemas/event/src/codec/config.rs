//! Configuration on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::config::CONFIG_PAYLOAD_BYTES_MAX;
use crate::request::SIGNATURE_BYTES_MAX;
use crate::{ConfigFile, ConfigId, ConfigSet, SignedConfig, StackSchemaFile};

/// Bytes that a [`ConfigFile`] takes at least: the lengths of two texts.
const FILE_BYTES_MIN: usize = 2;

impl Fields for ConfigFile {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.text("files.name", &self.name)?;
        to.text("files.text", &self.text)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: from.text("files.name")?,
            text: from.text("files.text")?,
        })
    }
}

impl Fields for ConfigSet {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.fixed(&self.id.0);
        to.long(self.made_us);
        to.long(self.until_us);
        to.text("by", &self.by)?;
        to.text("why", &self.why)?;
        to.records(&self.files)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: ConfigId(from.fixed("id")?),
            made_us: from.long("made_us")?,
            until_us: from.long("until_us")?,
            by: from.text("by")?,
            why: from.text("why")?,
            files: from.records("files", FILE_BYTES_MIN)?,
        })
    }
}

impl Fields for SignedConfig {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.limited("payload", &self.payload, CONFIG_PAYLOAD_BYTES_MAX)?;
        to.limited("signature", &self.signature, SIGNATURE_BYTES_MAX)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            payload: from.bytes("payload", CONFIG_PAYLOAD_BYTES_MAX)?.to_vec(),
            signature: from.bytes("signature", SIGNATURE_BYTES_MAX)?.to_vec(),
        })
    }
}

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
