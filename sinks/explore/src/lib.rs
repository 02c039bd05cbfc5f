//! The query layer: from rows in ClickHouse to stacks, tops and flame graph trees.
//!
//! Its part of the path is the last step: what the sink has stored is asked for here, by the CLI and by the explorer.
//! Only [`ddl`] writes. Everything else reads, over HTTP alone, and cannot tell a server from the embedded engine.
//!
//! ```no_run
//! # async fn example() -> Result<(), strobe_explore::Error> {
//! use strobe_explore::{ClickHouseConfig, Explorer, Selection};
//!
//! let explorer = Explorer::new(&ClickHouseConfig::default().validate()?);
//! let hour = Selection::new(1_793_491_200_000_000, 1_793_494_800_000_000);
//! let tree = explorer.tree(&hour, None, strobe_explore::TREE_NODES_DEFAULT).await?;
//! println!("{} cores busy", tree.range.cores(tree.nodes[0].total));
//! # Ok(()) }
//! ```
//!
//! Invariants:
//!
//! * What is asked for by people (service, host, text) reaches the store as server-side parameters, never as SQL.
//! * ClickHouse returns (stack, weight) only. What stacks look like is fetched once and kept ([`StackStore`]), so that
//!   a flame graph over ten million samples costs one aggregation.
//! * Weight never vanishes: a stack that is not stored, or stays over a limit, is a node or row that says so, and nodes
//!   cut from a tree are summed in visible "other" nodes. So a tree's root is always the selection's total.
//! * Weights are those of the profiler (nanoseconds for `cpu`); [`Range::cores`] divides by the length of the range.
//! * What stack schemas hide, fold, cut or rename is left out or renamed when stacks are laid over each other, unless the
//!   selection is raw; it never changes a weight. A stack that is hidden whole is `[hidden by SCHEMA]`.
//! * A comparison is the same call with a baseline: each node and row then has the baseline's weights beside its own,
//!   to be compared in cores or in per cent, since the two ranges may differ in length.

mod audit;
pub mod ddl;
mod ends;
mod error;
mod explorer;
mod flame;
mod hours;
mod marks;
mod profile;
mod query;
mod selection;
mod settings;
mod spread;
mod status;
mod store;
mod stored;
mod tagging;
mod top;
mod totals;

pub use audit::{AUDIT_ROWS_MAX, AuditAsked, AuditRow};
pub use ends::{ServiceEnds, StackEnds};
pub use error::Error;
pub use explorer::Explorer;
pub use explorer::frames::{FramesAsked, NamedFrame};
pub use flame::{FlameNode, FlameTree, FunctionName, NodeKind, TREE_NODES_DEFAULT, TREE_NODES_MAX};
pub use hours::ServiceHour;
pub use profile::{Completeness, Profile, ProfileFrame, ProfileLine, ProfileStack};
pub use query::{Column, Table};
pub use selection::{Range, Selection, View};
pub use settings::{ClickHouse, ClickHouseConfig};
pub use spread::Intervals;
pub use status::{EpochSpan, HostEpochs, RunStatus, Status};
pub use store::StackStore;
pub use stored::StoredOfRuns;
pub use tagging::{ContextValues, TagStack, Taggable, TaggableFrame};
pub use top::{By, Sort, Top, TopRow};
pub use totals::StackTotal;
