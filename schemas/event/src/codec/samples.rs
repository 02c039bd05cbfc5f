//! Named and weighted batches on the wire.

use super::SCHEMA_ID_SAMPLES_BATCH_1;
use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError, Fault};
use super::sealed::Fields;
use crate::{Context, FrameTag, Locations, Mark, Place, RawBatch, SamplesBatch, StackOutcome, Tags, Weight};

/// Bytes that a [`Weight`] takes: two `double`s.
const WEIGHT_BYTES: usize = 16;

/// Bytes that a [`Context`] takes at least: the ends of two lists.
const CONTEXT_BYTES_MIN: usize = 2;

/// Bytes that a [`StackOutcome`] takes at least: the ends of three lists.
const OUTCOME_BYTES_MIN: usize = 3;

/// Bytes that a [`FrameTag`] takes at least: three numbers.
const FRAME_TAG_BYTES_MIN: usize = 3;

/// Bytes that a [`Mark`] takes at least: four numbers.
const MARK_BYTES_MIN: usize = 4;

impl Fields for SamplesBatch {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.raw.write(to)?;
        to.long(self.generation);
        self.locations.write(to)?;
        self.tags.write(to)?;
        to.records(&self.weights)?;
        to.ints("sample_weight", &self.sample_weight)?;
        to.ints("sample_context", &self.sample_context)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            raw: RawBatch::read(from)?,
            generation: from.long("generation")?,
            locations: Locations::read(from)?,
            tags: Tags::read(from)?,
            weights: from.records("weights", WEIGHT_BYTES)?,
            sample_weight: from.ints("sample_weight")?,
            sample_context: from.ints("sample_context")?,
        })
    }

    fn read_older(id: u32, from: &mut Reader<'_>) -> Option<Result<Self, DecodeError>> {
        (id == SCHEMA_ID_SAMPLES_BATCH_1).then(|| without_contexts(from))
    }
}

/// Reads a batch of the first schema: it has no contexts, and of stacks their tags alone.
fn without_contexts(from: &mut Reader<'_>) -> Result<SamplesBatch, DecodeError> {
    let raw = RawBatch::read(from)?;
    let generation = from.long("generation")?;
    let locations = Locations::read(from)?;
    let stacks = from.ints("tags.stack")?;
    let at = from.position();
    let tag = from.ints("tags.tag")?;
    if tag.len() != stacks.len() {
        let (length, limit) = (tag.len() as i64, stacks.len());
        return Err(from.fault("tags.tag", at, Fault::Length { length, limit }));
    }
    let mut tags = Tags {
        text: from.texts("tags.text")?,
        ..Tags::unknown()
    };
    for (stack, tag) in stacks.into_iter().zip(tag) {
        // Tags of a stack stand together.
        if tags.stack.last() != Some(&stack) {
            tags.stack.push(stack);
            tags.context.push(0);
            tags.outcome.push(tags.outcomes.len() as u32);
            tags.outcomes.push(StackOutcome::default());
        }
        if let Some(outcome) = tags.outcomes.last_mut() {
            outcome.tags.push(tag);
        }
    }
    let weights = from.records("weights", WEIGHT_BYTES)?;
    let sample_weight = from.ints("sample_weight")?;
    let sample_context = vec![0; raw.samples.len()];
    Ok(SamplesBatch {
        raw,
        generation,
        locations,
        tags,
        weights,
        sample_weight,
        sample_context,
    })
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
        to.ints("tags.schemas", &self.schemas)?;
        to.records(&self.contexts)?;
        to.ints("tags.stack", &self.stack)?;
        to.ints("tags.context", &self.context)?;
        to.ints("tags.outcome", &self.outcome)?;
        to.records(&self.outcomes)?;
        to.texts("tags.text", &self.text)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            schemas: from.ints("tags.schemas")?,
            contexts: from.records("tags.contexts", CONTEXT_BYTES_MIN)?,
            stack: from.ints("tags.stack")?,
            context: from.ints("tags.context")?,
            outcome: from.ints("tags.outcome")?,
            outcomes: from.records("tags.outcomes", OUTCOME_BYTES_MIN)?,
            text: from.texts("tags.text")?,
        })
    }
}

impl Fields for Context {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("contexts.names", &self.names)?;
        to.ints("contexts.values", &self.values)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            names: from.ints("contexts.names")?,
            values: from.ints("contexts.values")?,
        })
    }
}

impl Fields for StackOutcome {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("outcomes.tags", &self.tags)?;
        to.records(&self.frame_tags)?;
        to.records(&self.marks)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            tags: from.ints("outcomes.tags")?,
            frame_tags: from.records("outcomes.frame_tags", FRAME_TAG_BYTES_MIN)?,
            marks: from.records("outcomes.marks", MARK_BYTES_MIN)?,
        })
    }
}

/// Writes a place as two `int`s.
fn write_place(place: Place, to: &mut Writer<'_>) -> Result<(), EncodeError> {
    to.int("place.frame", place.frame.into())?;
    to.int("place.inline", place.inline.into())
}

fn read_place(from: &mut Reader<'_>) -> Result<Place, DecodeError> {
    Ok(Place {
        frame: from.short("place.frame")?,
        inline: from.short("place.inline")?,
    })
}

impl Fields for FrameTag {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_place(self.place, to)?;
        to.int("frame_tags.tag", self.tag)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            place: read_place(from)?,
            tag: from.int("frame_tags.tag")?,
        })
    }
}

impl Fields for Mark {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_place(self.place, to)?;
        to.code(self.kind);
        to.int("marks.text", self.text)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            place: read_place(from)?,
            kind: from.code("marks.kind")?,
            text: from.int("marks.text")?,
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
