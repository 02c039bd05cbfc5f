//! Stacks for other tools: the last stage of a sample's path. Formats only; where stacks come from is the caller's matter.
//!
//! Names come from profiled processes: whatever a format gives a meaning to (`;` and line ends in folded text, markup in
//! SVG) is replaced or escaped here.

pub mod flamegraph;
pub mod folded;
pub mod pprof;

/// Why an export could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The flame graph could not be drawn.
    #[error("the flame graph cannot be drawn: {0}")]
    Draw(String),
}
