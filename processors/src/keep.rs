//! Beside the stages: the thread that keeps the symbol store, so that names are there before they are asked for.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use strobe_bus::Shutdown;
use strobe_store::Store;
use strobe_symbols::{Binaries, Converter, Hint, Keeper, SymbolsError, keeper};

use crate::config::Settings;
use crate::error::ProcessorError;
use crate::telemetry::KeepingTelemetry;

/// Pause before the keeper goes on after a fault of its own: what it met may be met again at once.
const PAUSE: Duration = Duration::from_secs(5);

/// Starts the thread that makes symbol files, where it is to make any; returns where it takes hints.
///
/// The service's end does not wait for it: what it was at is claimed again by another one, or after a restart. Its pulse is
/// part of the process's health, so an end that nobody asked for, or a turn that never ends, is not silent.
pub(crate) fn start(
    settings: &Settings,
    worker: &[OsString],
    shutdown: &Shutdown,
    telemetry: &KeepingTelemetry,
) -> Result<Option<SyncSender<Hint>>, ProcessorError> {
    let Some(limits) = &settings.convert else {
        return Ok(None);
    };
    let converter = Converter {
        worker: worker.to_vec(),
        debug_folders: settings.debug_folders.clone(),
        limits: limits.clone(),
    };
    let store = Store::in_folder(&settings.symbol_store)?;
    let mut keeper = Keeper::new(
        Binaries::of_folder(store),
        converter,
        std::env::temp_dir(),
        owner(),
    )?;
    let (hints, hinted) = sync_channel(keeper::HINTS);
    telemetry.keeper.get_or_init(|| keeper.counts());
    let (shutdown, pulse) = (shutdown.clone(), telemetry.pulse.clone());
    let faults = telemetry.faults.clone();
    pulse.beat();
    let run = move || {
        let stop = || {
            pulse.beat();
            shutdown.is_requested()
        };
        supervise(
            || keeper.run(&hinted, stop),
            || {
                faults.add(1);
                shutdown.wait_timeout(PAUSE);
            },
        );
    };
    let spawned = std::thread::Builder::new()
        .name("symbol-keeper".to_owned())
        .spawn(run);
    spawned.map_err(|source| SymbolsError::File { source })?;
    Ok(Some(hints))
}

/// Runs until it ends by itself; where it panics, calls `fault` and runs again. Each attempt at a binary is whole by itself, and
/// what was claimed is taken for dead after a while.
fn supervise(mut run: impl FnMut(), mut fault: impl FnMut()) {
    while catch_unwind(AssertUnwindSafe(&mut run)).is_err() {
        tracing::error!("the keeper of the symbol store has met a fault of its own, and goes on");
        fault();
    }
}

/// Returns who lays claims: in containers every process is number 1, so the host's name goes first.
fn owner() -> String {
    let name = rustix::system::uname();
    format!("{} pid {}", name.nodename().to_string_lossy(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a panic does not end the keeper in silence: it is counted, and the keeper goes on where it was.
    #[test]
    fn a_panic_is_counted_and_the_keeper_goes_on() {
        let (mut turns, mut faults) = (0, 0);
        let turn = || {
            turns += 1;
            assert!(turns > 2, "a fault of its own");
        };
        supervise(turn, || faults += 1);
        assert_eq!((turns, faults), (3, 2));
    }

    /// Checks that claims tell hosts apart, since in containers every process is number 1.
    #[test]
    fn claims_name_the_host() {
        let name = rustix::system::uname();
        assert!(owner().starts_with(&*name.nodename().to_string_lossy()));
    }
}
