//! Requests and responses in the form of Mozilla's symbolication API, version 5.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// A request: several jobs, or one by itself.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Request {
    /// Several.
    Jobs {
        /// The jobs.
        jobs: Vec<Job>,
    },
    /// One.
    One(Job),
}

impl Request {
    pub(super) fn jobs(&self) -> &[Job] {
        match self {
            Self::Jobs { jobs } => jobs,
            Self::One(job) => std::slice::from_ref(job),
        }
    }
}

/// Stacks of one process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    /// Debug name and debug id of each module.
    pub(super) memory_map: Vec<(String, String)>,
    /// Stacks of frames: index of the module, -1 for none, and address relative to it.
    pub(super) stacks: Vec<Vec<(i64, u64)>>,
}

/// A response.
#[derive(Debug, Serialize)]
pub(super) struct Response<'a> {
    pub(super) results: Vec<JobResult<'a>>,
}

/// The answer to one job.
#[derive(Debug, Serialize)]
pub(super) struct JobResult<'a> {
    pub(super) stacks: Vec<Vec<Frame<'a>>>,
    /// By debug name and debug id, whether the store has the module; those that no frame is in are left out.
    pub(super) found_modules: BTreeMap<String, bool>,
}

/// A frame.
#[derive(Debug, Serialize)]
pub(super) struct Frame<'a> {
    pub(super) frame: usize,
    pub(super) module: &'a str,
    #[serde(serialize_with = "hex")]
    pub(super) module_offset: u64,
    #[serde(flatten, serialize_with = "shared")]
    pub(super) symbol: Option<Arc<Symbol>>,
}

/// What is known of an address.
#[derive(Debug, Serialize)]
pub(super) struct Symbol {
    /// The function that the machine code belongs to.
    pub(super) function: String,
    /// How far behind the beginning of that function's code the address lies.
    #[serde(serialize_with = "hex")]
    pub(super) function_offset: u64,
    #[serde(flatten)]
    pub(super) place: Place,
    /// What was inlined into it there, the innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) inlines: Vec<Inlined>,
}

/// A call that was inlined.
#[derive(Debug, Serialize)]
pub(super) struct Inlined {
    pub(super) function: String,
    #[serde(flatten)]
    pub(super) place: Place,
}

/// A line of a source file, as far as it is known.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) file: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) line: u32,
}

fn shared<S: Serializer>(symbol: &Option<Arc<Symbol>>, to: S) -> Result<S::Ok, S::Error> {
    symbol.as_deref().serialize(to)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn hex<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{number:#x}"))
}
