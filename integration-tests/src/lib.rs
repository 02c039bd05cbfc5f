//! The whole system, each part a real process: broker, engine, processor, sink, agent. Journeys through it are in `tests/`.
//!
//! * [`journey`] runs a test in a [`Cluster`] of its own: topics with a prefix, a database, a folder, configuration files.
//! * Broker and engine are one [`stack`] for all tests of a test binary, which take turns. A guardian process ends them when
//!   the binary ends, however it ends; a [`Part`] ends with the thread that started it.
//! * All of it runs as processes of this host, or, with `STROBE_TEST_BACKEND=containers`, in containers of the images that
//!   `make images` builds: one [`Backend`] or the other, the same journeys.
//! * What cannot run here is printed as `skipped: NAME: REASON`; what fails shows the ends of the logs and keeps its folder.

pub mod backend;
pub mod cluster;
#[cfg_attr(not(feature = "containers"), path = "no_container.rs")]
pub mod container;
pub mod needs;
pub mod part;
pub mod stack;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use backend::Backend;
pub use cluster::{Cluster, User, journey};
pub use needs::{Need, missing};
pub use part::Part;

/// Returns the repository's root.
pub fn repository() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.parent().unwrap_or(crate_folder).to_path_buf()
}

/// Returns the folder in which everything that is installed or run lives.
pub fn home() -> PathBuf {
    std::env::var_os("STROBE_HOME").map_or_else(|| repository().join(".strobe"), PathBuf::from)
}

/// Says, past the capture of the test runner, that a test did not run.
pub fn skipped(test: &str, reason: &str) {
    // A closed standard error is nobody's loss.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Returns a built executable of the workspace.
///
/// # Errors
/// Where it is not built.
pub fn executable(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own
        .parent()
        .and_then(Path::parent)
        .context("no folder of executables")?;
    let path = folder.join(name);
    ensure!(
        path.exists(),
        "{} is not built: cargo build --release --workspace",
        path.display()
    );
    Ok(path)
}
