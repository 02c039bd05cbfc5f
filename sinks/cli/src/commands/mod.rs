//! One file per command.

pub mod config;
pub mod ddl;
pub mod dlq;
pub mod doctor;
pub mod export;
pub mod flamegraph;
pub mod generate;
pub mod health;
pub mod levels;
pub mod profile;
pub mod query;
pub mod resymbolize;
pub mod retag;
pub mod run;
pub mod runs;
pub mod sampling;
pub mod simulate;
pub mod stacks;
pub mod stacks_on_bus;
pub mod stacks_try;
pub mod status;
pub mod symbols;
pub mod top;
pub mod topics;

use std::future::Future;

use crate::error::CliError;

/// Runs a question to its end, on this thread.
///
/// # Errors
/// Those of the question.
pub fn wait<T>(question: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| CliError::Io {
        action: "start",
        what: "a runtime".into(),
        source,
    })?;
    runtime.block_on(question)
}
