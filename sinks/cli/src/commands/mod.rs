//! One file per command.

pub mod audit;
pub mod config;
pub mod config_files;
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

use strobe_explore::{Explorer, Selection};
use strobe_sampling::spread::Total;

use crate::error::CliError;
use crate::render;
use crate::times::shown;

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

/// Returns what to say where nothing is found of a selection: that nothing was sampled of its service, where slots were planned for it
/// and none of them ran; else that nothing is stored.
pub fn not_found(explorer: &Explorer, selection: &Selection) -> CliError {
    let range = selection.range;
    let nothing = || render::nothing(range);
    let Some(service) = &selection.service else {
        return nothing();
    };
    let hours = match wait(async { Ok(explorer.service_hours(&selection.profiler, range).await?) }) {
        Ok(hours) => hours,
        Err(_) => return nothing(),
    };
    let of_service = || hours.iter().filter(|hour| hour.service == *service);
    let hosts = of_service().map(|hour| hour.hosts).max();
    match hosts {
        Some(hosts) if of_service().all(|hour| hour.total == Total::NotSampled) => CliError::NotSampled {
            service: service.clone(),
            hosts: if hosts == 1 {
                "1 host".to_owned()
            } else {
                format!("{hosts} hosts")
            },
            since: shown(range.since_us),
            until: shown(range.until_us),
        },
        _ => nothing(),
    }
}
