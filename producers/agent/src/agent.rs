//! The threads, from start to end.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use strobe_bus::Shutdown;
use strobe_spool::Spool;
use strobe_telemetry::supervise;

use crate::audit::Auditor;
use crate::binaries;
use crate::capacity;
use crate::config::Settings;
use crate::error::AgentError;
use crate::halt::Halt;
use crate::plans::{self, Plans};
use crate::procfs::wall_us;
use crate::profilers::Profilers;
use crate::publish::Publishing;
use crate::requests::{self, Memory, Place, Proof};
use crate::runner::{self, Beginning, Runner};
use crate::sampling::Sampling;
use crate::schedule::{self, Scheduling};
use crate::spooling::{self, Spooling};
use crate::status::Status;
use crate::tables;
use crate::telemetry::{self, AgentSource};

/// Runs the agent until the wish to stop, or for as long as the settings say.
///
/// # Errors
/// [`AgentError`] where it cannot start, or a thread cannot go on; the others are then stopped in order.
pub fn run(settings: &Settings, shutdown: &Shutdown) -> Result<(), AgentError> {
    run_with(settings, shutdown, drop)
}

/// As [`run`]; `with` gets the means to ask for runs, as sampling begins.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    settings: &Settings,
    shutdown: &Shutdown,
    with: impl FnOnce(Runner),
) -> Result<(), AgentError> {
    make_folder(&settings.state_dir)?;
    if let Some(capture) = &settings.capture {
        make_folder(capture)?;
    }
    let (writer, reader, recovered) = Spool::open(settings.spool.clone())?;
    tracing::info!(?recovered, directory = %settings.spool.directory.display(), "spool opened");
    let status = Arc::new(Status::default());

    let (to_spool, from_sampling) = sync_channel(spooling::QUEUE);
    let (announce, announced) = match &settings.symbol_store {
        Some(_) => Some(sync_channel(binaries::QUEUE)).unzip(),
        None => (None, None),
    };
    let (to_make, wanted) = sync_channel(tables::QUEUE);
    let (made, from_making) = sync_channel(tables::MADE_QUEUE);
    let tables_used = settings.unwind.kernel_bytes_max > 0;
    let maker = tables_used
        .then(|| tables::maker(&settings.unwind, &settings.state_dir))
        .transpose()?;
    let plans_file = settings.state_dir.join(plans::FILE);
    let bounds = settings.schedule.bounds;
    let plans = Arc::new(match &settings.bus {
        Some(_) => Plans::kept(bounds, &plans_file, wall_us()),
        // Nobody would ever say that they are no longer in force.
        None => Plans::new(bounds),
    });
    let (to_order, orders) = sync_channel(schedule::QUEUE);
    let (to_report, reports) = sync_channel(schedule::QUEUE);
    let scheduling = Scheduling::new(
        settings,
        Arc::clone(&plans),
        to_order,
        to_spool.clone(),
        Arc::clone(&status),
    );
    let proof = Proof::load(&settings.signers)?;
    // First what may be refused, so that nothing runs when the agent cannot.
    let (to_sampling, prepared) = sync_channel(runner::QUEUE);
    let halt = Arc::new(Halt::new(&settings.stop_file));
    if let Some(why) = halt.why() {
        tracing::warn!(why, "nothing is profiled until `strobe-agent start`");
    }
    let auditor = Auditor::new(&settings.host, to_spool.clone());
    let mut sampling = Sampling::start(
        settings,
        to_spool.clone(),
        announce,
        (to_make, from_making),
        (orders, to_report),
        (prepared, Arc::clone(&halt), auditor.clone()),
        Arc::clone(&status),
    )?;
    let tables = sampling.take_shared_tables();
    let beginning = Beginning::new(settings, tables, to_sampling, to_spool);
    let (runner, commands) = Runner::new(
        Profilers::read(settings.profilers.as_deref())?,
        capacity::of_this_host(),
        Arc::clone(&halt),
    );
    let publishing = match &settings.bus {
        Some(bus) => Some(Publishing::new(reader, bus, Arc::clone(&status))?),
        None => None,
    };
    let spooling = Spooling::new(writer, settings, Arc::clone(&status));
    let health = telemetry::health(&status, publishing.is_some());
    if let Some(admin) = settings.admin {
        let source = AgentSource {
            status: Arc::clone(&status),
            spool_limit_bytes: settings.spool.size_limit_bytes,
        };
        admin.serve(Arc::new(source), health.clone())?;
    }
    let token = shutdown.clone();
    supervise(health, move || token.is_requested())?;

    let mut threads = Vec::new();
    threads.push(start("scheduling", shutdown, move || {
        scheduling.run(&reports);
        Ok(())
    })?);
    let (asked, token) = (runner.clone(), shutdown.clone());
    threads.push(start("runner", shutdown, move || {
        asked.run(&commands, &beginning, &token);
        Ok(())
    })?);
    if let Some(bus) = settings.bus.clone() {
        let token = shutdown.clone();
        threads.push(start("plans", shutdown, move || {
            plans::run(&plans, &bus, &plans_file, &token)
        })?);
    }
    if let Some(bus) = settings.bus.clone() {
        let (asked, token) = (runner.clone(), shutdown.clone());
        let memory = Memory::new(&settings.state_dir);
        let place = Place {
            host: settings.host.clone(),
            region: settings.region().to_owned(),
        };
        threads.push(start("requests", shutdown, move || {
            requests::run(place, &bus, memory, &proof, &asked, auditor, &token)
        })?);
    } else {
        // Spooling ends when nobody is left who could say anything.
        drop(auditor);
    }
    threads.push(start("spooling", shutdown, move || spooling.run(&from_sampling))?);
    if let Some(publishing) = publishing {
        let token = shutdown.clone();
        threads.push(start("publishing", shutdown, move || publishing.run(&token))?);
    }
    if let (Some(store), Some(announced)) = (settings.symbol_store.clone(), announced) {
        let (limits, status, token) = (settings.binaries.clone(), Arc::clone(&status), shutdown.clone());
        threads.push(start("binaries", shutdown, move || {
            Ok(binaries::run(store, &limits, &announced, &status, &token)?)
        })?);
    }
    if let Some(maker) = maker {
        let (status, token) = (Arc::clone(&status), shutdown.clone());
        threads.push(start("tables", shutdown, move || {
            tables::run(&maker, &wanted, &made, &status, &token);
            Ok(())
        })?);
    }
    if let Some(duration) = settings.duration {
        let token = shutdown.clone();
        threads.push(start("duration", shutdown, move || {
            token.wait_timeout(duration);
            token.request();
            Ok(())
        })?);
    }
    tracing::info!(
        host = settings.host,
        frequency_hz = settings.frequency_hz,
        "profiling"
    );
    with(runner);
    let sampled = sampling.run(shutdown);
    shutdown.request();
    threads.into_iter().map(join).fold(sampled, Result::and)
}

struct Thread {
    name: &'static str,
    handle: JoinHandle<Result<(), AgentError>>,
}

/// Starts a thread; if it fails, the whole agent is asked to stop, so that its supervisor sees it.
fn start(
    name: &'static str,
    shutdown: &Shutdown,
    work: impl FnOnce() -> Result<(), AgentError> + Send + 'static,
) -> Result<Thread, AgentError> {
    let token = shutdown.clone();
    let handle = thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let mut stop = StopUnlessWell { token, well: false };
            let ended = work();
            match &ended {
                Ok(()) => stop.well = true,
                Err(error) => tracing::error!(%error, thread = name, "stopping"),
            }
            ended
        })
        .map_err(|source| AgentError::Thread { name, source })?;
    Ok(Thread { name, handle })
}

/// Asks the agent to stop unless its thread ended well; also where the thread panicked.
struct StopUnlessWell {
    token: Shutdown,
    well: bool,
}

impl Drop for StopUnlessWell {
    fn drop(&mut self) {
        if !self.well {
            self.token.request();
        }
    }
}

fn join(thread: Thread) -> Result<(), AgentError> {
    thread
        .handle
        .join()
        .unwrap_or(Err(AgentError::BrokeOff(thread.name)))
}

fn make_folder(folder: &Path) -> Result<(), AgentError> {
    fs::create_dir_all(folder).map_err(|source| AgentError::Folder {
        folder: folder.to_owned(),
        source,
    })
}
