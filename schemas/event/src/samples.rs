//! The same batch with names, tags and weights: what `strobe.samples` carries.

use crate::frame::Reason;
use crate::raw::{Malformed, RawBatch};
use crate::tags::Tags;

/// What one sample stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    /// Events that it stands for within its run (nanoseconds of CPU time for `cpu`): w_run.
    pub run: f64,
    /// Events that it stands for in the fleet: W0; 0 for runs whose host and moment somebody chose.
    pub fleet: f64,
}

/// Names of the batch's frames, as columns.
///
/// A frame has `count[frame]` locations, the outermost function first, then what was inlined into it: all but the
/// first are inlined. A frame without a location has its [`Reason`] in `reason`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locations {
    /// Locations of each frame of the batch.
    pub count: Vec<u32>,
    /// Why a frame has no name: code of a [`Reason`]; 0 for none.
    pub reason: Vec<u8>,
    /// Function of each location, demangled: index into `text`.
    pub function: Vec<u32>,
    /// Source file of each location: index into `text`; 0 if not known.
    pub file: Vec<u32>,
    /// Source line of each location; 0 if not known.
    pub line: Vec<u32>,
    /// Text of the locations; the first is empty.
    pub text: Vec<String>,
}

/// A batch whose frames are named and whose samples are weighted.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplesBatch {
    /// The batch as it was.
    pub raw: RawBatch,
    /// When the names and tags were made, unix microseconds: with how many names there are it says which of several rows
    /// counts, see [`crate::Generation`].
    pub generation: u64,
    /// Names of its frames.
    pub locations: Locations,
    /// Contexts of its samples, and tags and marks of its stacks.
    pub tags: Tags,
    /// Distinct weights.
    pub weights: Vec<Weight>,
    /// Weight of each sample: index into `weights`.
    pub sample_weight: Vec<u32>,
    /// Context of each sample: index into the contexts of `tags`.
    pub sample_context: Vec<u32>,
}

/// Bytes of names once every location has its own copy, as rows have: a name of a megabyte that each location points to
/// would be gigabytes. Large batches of deeply inlined C++ reach a tenth of it.
const NAMES_BYTES_MAX: u64 = 64 << 20;

impl SamplesBatch {
    /// Proves the raw batch (see [`RawBatch::validate`]) and that names, tags and weights fit to it.
    ///
    /// # Errors
    /// [`Malformed`] names the first thing that does not fit.
    pub fn validate(&self) -> Result<(), Malformed> {
        self.raw.validate()?;
        let wrong = |what: &str| Err(Malformed(what.to_owned()));
        let below = |column: &[u32], bound: usize| column.iter().all(|&index| (index as usize) < bound);
        let locations = &self.locations;
        let frames = self.raw.frames.len();
        if [locations.count.len(), locations.reason.len()] != [frames; 2] {
            return wrong("the names are not those of the batch's frames");
        }
        let total: u64 = locations.count.iter().map(|&count| u64::from(count)).sum();
        let lengths = [
            locations.function.len(),
            locations.file.len(),
            locations.line.len(),
        ];
        if lengths.iter().any(|&length| length as u64 != total) {
            return wrong("the columns of names do not add up");
        }
        let text = locations.text.len();
        if locations.text.first().is_none_or(|first| !first.is_empty())
            || !below(&locations.function, text)
            || !below(&locations.file, text)
        {
            return wrong("a name points outside of its text");
        }
        let names = locations.function.iter().chain(&locations.file);
        let unfolded: u64 = names
            .map(|&name| locations.text[name as usize].len() as u64)
            .sum();
        if unfolded > NAMES_BYTES_MAX {
            return wrong("the names unfold to more than 64 MiB");
        }
        let known = |(&count, &code): (&u32, &u8)| match count {
            0 => Reason::from_code(code).is_some(),
            _ => code == 0,
        };
        if !locations.count.iter().zip(&locations.reason).all(known) {
            return wrong("a frame has neither a name nor a reason, or both");
        }
        if let Some(problem) = self.tags.problem(self.raw.stacks.len()) {
            return wrong(problem);
        }
        if self.sample_context.len() != self.raw.samples.len()
            || !below(&self.sample_context, self.tags.contexts.len())
        {
            return wrong("the contexts are not those of the batch's samples");
        }
        if self.sample_weight.len() != self.raw.samples.len()
            || !below(&self.sample_weight, self.weights.len())
        {
            return wrong("the weights are not those of the batch's samples");
        }
        if !self
            .weights
            .iter()
            .all(|w| w.run.is_finite() && w.run > 0.0 && w.fleet.is_finite() && w.fleet >= 0.0)
        {
            return wrong("a weight is not a positive number");
        }
        Ok(())
    }
}
