//! The one aggregation that every view starts from: weight per stack.

use clickhouse::Row;
use serde::Deserialize;

/// What one stack stands for in a selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StackTotal {
    /// Low 64 bits of the stack's key.
    pub stack: u64,
    /// Sum of its samples' weights.
    pub weight: f64,
    /// Samples behind it. Hourly totals do not tell causes apart: in the view of the fleet, samples of chosen runs that
    /// saw the same stack are counted too, though they weigh nothing.
    pub samples: u64,
}

/// What one value of a column stands for, all stacks together.
#[derive(Debug, Clone, PartialEq, Row, Deserialize)]
pub(crate) struct NameTotal {
    pub(crate) name: String,
    pub(crate) weight: f64,
}

/// What one stack stands for under one value of a column.
#[derive(Debug, Clone, PartialEq, Row, Deserialize)]
pub(crate) struct NameStackTotal {
    pub(crate) name: String,
    pub(crate) stack_id: u64,
    pub(crate) weight: f64,
}

/// What one stack stands for under one tag, for one service.
#[derive(Debug, Clone, PartialEq, Row, Deserialize)]
pub(crate) struct TaggedTotal {
    pub(crate) name: String,
    pub(crate) stack_id: u64,
    pub(crate) of_service: String,
    /// The location nearest to the leaf that has the tag, [`TaggedTotal::WHOLE`] where the stack as a whole has it.
    pub(crate) place: (u16, u16),
    pub(crate) weight: f64,
}

impl TaggedTotal {
    /// The place of a tag of the whole stack: further from the root than any frame.
    pub(crate) const WHOLE: (u16, u16) = (u16::MAX, u16::MAX);
}

/// [`StackTotal`]s as columns.
#[derive(Debug, Clone, PartialEq, Row, Deserialize)]
pub(crate) struct TotalColumns {
    pub(crate) stacks: Vec<u64>,
    pub(crate) weights: Vec<f64>,
    pub(crate) samples: Vec<u64>,
}

/// The same per stack and service, as columns.
#[derive(Debug, Clone, PartialEq, Row, Deserialize)]
pub(crate) struct ServiceTotalColumns {
    pub(crate) stacks: Vec<u64>,
    pub(crate) services: Vec<String>,
    pub(crate) weights: Vec<f64>,
    pub(crate) samples: Vec<u64>,
}
