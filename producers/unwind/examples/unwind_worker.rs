//! The worker by itself: what the agent offers as a sub-command. Tests start it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let key = std::env::args().nth(1).unwrap_or_default();
    strobe_unwind::worker_main(&key)
}
