//! Named and weighted batches on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError};
use super::sealed::Fields;
use crate::{Locations, RawBatch, SamplesBatch, Tags, Weight};

/// Bytes that a [`Weight`] takes: two `double`s.
const WEIGHT_BYTES: usize = 16;

impl Fields for SamplesBatch {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.raw.write(to)?;
        to.long(self.generation);
        self.locations.write(to)?;
        self.tags.write(to)?;
        to.records(&self.weights)?;
        to.ints("sample_weight", &self.sample_weight)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            raw: RawBatch::read(from)?,
            generation: from.long("generation")?,
            locations: Locations::read(from)?,
            tags: Tags::read(from)?,
            weights: from.records("weights", WEIGHT_BYTES)?,
            sample_weight: from.ints("sample_weight")?,
        })
    }
}

impl Fields for Locations {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("locations.count", &self.count)?;
        to.codes(&self.reason);
        to.ints("locations.function", &self.function)?;
        to.ints("locations.file", &self.file)?;
        to.ints("locations.line", &self.line)?;
        to.texts("locations.text", &self.text)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            count: from.ints("locations.count")?,
            reason: from.codes("locations.reason")?,
            function: from.ints("locations.function")?,
            file: from.ints("locations.file")?,
            line: from.ints("locations.line")?,
            text: from.texts("locations.text")?,
        })
    }
}

impl Fields for Tags {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("tags.stack", &self.stack)?;
        to.ints("tags.tag", &self.tag)?;
        to.texts("tags.text", &self.text)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            stack: from.ints("tags.stack")?,
            tag: from.ints("tags.tag")?,
            text: from.texts("tags.text")?,
        })
    }
}

impl Fields for Weight {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.double(self.run);
        to.double(self.fleet);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            run: from.double("weights.run")?,
            fleet: from.double("weights.fleet")?,
        })
    }
}
