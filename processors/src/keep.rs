//! Beside the stages: the thread that keeps the symbol store, so that names are there before they are asked for.

use std::ffi::OsString;
use std::sync::mpsc::{SyncSender, sync_channel};

use strobe_bus::Shutdown;
use strobe_store::Store;
use strobe_symbols::{Binaries, Converter, Hint, Keeper, SymbolsError, keeper};

use crate::config::Settings;
use crate::error::ProcessorError;

/// Starts the thread that makes symbol files, where it is to make any; returns where it takes hints.
///
/// The service's end does not wait for it: what it was at is claimed again by another one, or after a restart.
pub(crate) fn start(
    settings: &Settings,
    worker: &[OsString],
    shutdown: &Shutdown,
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
    let owner = format!("pid {}", std::process::id());
    let scratch = std::env::temp_dir().join("strobe-symbols");
    let mut keeper = Keeper::new(Binaries::of_folder(store), converter, scratch, owner)?;
    let (hints, hinted) = sync_channel(keeper::HINTS);
    let shutdown = shutdown.clone();
    let run = move || keeper.run(&hinted, || shutdown.is_requested());
    let spawned = std::thread::Builder::new()
        .name("symbol-keeper".to_owned())
        .spawn(run);
    spawned.map_err(|source| SymbolsError::File { source })?;
    Ok(Some(hints))
}
