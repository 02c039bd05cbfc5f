//! Stage 10: frames → names, or the reason why not.

use strobe_event::{Locations, RawBatch};
use strobe_symbols::{Symbolizer, SymbolsError};

/// Names the frames of a batch. What it needs is behind a trait so that the step can be tested without a child process.
pub trait Names {
    /// Returns the names of a validated batch's frames.
    ///
    /// # Errors
    /// [`SymbolsError`] where the store does not answer or no worker can be started: trying again may help.
    fn locate(&mut self, batch: &RawBatch) -> Result<Locations, SymbolsError>;
}

impl Names for Symbolizer {
    fn locate(&mut self, batch: &RawBatch) -> Result<Locations, SymbolsError> {
        Symbolizer::locate(self, batch)
    }
}
