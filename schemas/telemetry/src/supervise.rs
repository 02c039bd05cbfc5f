//! The process's word to the service manager: started, alive, stopping.

use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::error::TelemetryError;
use crate::pulse::Health;

/// How often the parts are looked at before they have begun.
const LOOK: Duration = Duration::from_millis(100);

/// Tells the service manager (`Type=notify`, `WatchdogSec=`) when every part has begun, and feeds its watchdog as long as all
/// move. Without a manager that listens, does nothing. `stopping` returns, within a second of it, whether the process was asked
/// to stop.
///
/// # Errors
/// [`TelemetryError::Thread`].
pub fn supervise(health: Health, stopping: impl Fn() -> bool + Send + 'static) -> Result<(), TelemetryError> {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return Ok(());
    }
    // Twice within the manager's patience, as systemd advises.
    let watchdog = sd_notify::watchdog_enabled().map(|patience| patience / 2);
    let pause = watchdog
        .unwrap_or(Duration::from_secs(1))
        .min(Duration::from_secs(1));
    thread::Builder::new()
        .name("supervise".into())
        .spawn(move || {
            while !health.has_begun() && !stopping() {
                thread::sleep(LOOK);
            }
            tell(&[NotifyState::Ready]);
            while !stopping() {
                match health.check() {
                    Ok(()) if watchdog.is_some() => tell(&[NotifyState::Watchdog]),
                    Ok(()) => {}
                    // Left to starve: the manager ends the process and starts it again.
                    Err(stands) => tracing::error!("{stands}"),
                }
                thread::sleep(pause);
            }
            tell(&[NotifyState::Stopping]);
        })
        .map(drop)
        .map_err(|source| TelemetryError::Thread { source })
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
