//! The wish to stop: one token for a whole process, for threads and for tasks.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::error::Error;

/// A token that says whether to stop. Clones share it; once requested it stays so.
#[derive(Debug, Clone)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    requested: std::sync::Mutex<bool>,
    condition: std::sync::Condvar,
    watch: watch::Sender<bool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// Returns a token that nobody has requested yet.
    pub fn new() -> Self {
        let (watch, _) = watch::channel(false);
        Self {
            shared: Arc::new(Shared {
                requested: false.into(),
                condition: Default::default(),
                watch,
            }),
        }
    }

    /// Returns a token that SIGTERM and SIGINT request. A second signal ends the process at once, with the exit code
    /// that a shell expects, for people who do not want to wait for the orderly end.
    pub fn on_signals() -> Result<Self, Error> {
        let token = Self::new();
        let doing = "setting up the signal handler";
        let os = |source| Error::Os { doing, source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(os)?;
        let (mut terminate, mut interrupt) = {
            // The handlers register with the runtime that is entered; before the thread exists, so that a failure
            // is the caller's to report.
            let _entered = runtime.enter();
            (
                signal(SignalKind::terminate()).map_err(os)?,
                signal(SignalKind::interrupt()).map_err(os)?,
            )
        };
        let requested = token.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                runtime.block_on(async {
                    for first in [true, false] {
                        let code =
                            tokio::select! { _ = terminate.recv() => 143, _ = interrupt.recv() => 130 };
                        if !first {
                            std::process::exit(code);
                        }
                        requested.request();
                    }
                });
            })
            .map_err(os)?;
        Ok(token)
    }

    /// Asks everybody who holds the token to stop.
    pub fn request(&self) {
        *lock(&self.shared.requested) = true;
        self.shared.condition.notify_all();
        self.shared.watch.send_replace(true);
    }

    /// Returns whether to stop.
    pub fn is_requested(&self) -> bool {
        *self.shared.watch.borrow()
    }

    /// Waits on this thread until it is requested, at most `timeout`; returns whether it is.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let requested = lock(&self.shared.requested);
        let waited = self
            .shared
            .condition
            .wait_timeout_while(requested, timeout, |requested| !*requested);
        match waited {
            Ok((requested, _)) => *requested,
            Err(poisoned) => *poisoned.into_inner().0,
        }
    }

    /// Waits in a task until it is requested.
    pub async fn requested(&self) {
        let mut watch = self.shared.watch.subscribe();
        // The sender lives in the token we borrow: this can only end by the wish itself.
        let _ = watch.wait_for(|requested| *requested).await;
    }
}

/// Locks, also after a panic of another holder: what our locks guard is whole between any two statements.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a thread and a task both see the wish, and that it is not seen before.
    #[test]
    fn threads_and_tasks_see_the_wish() {
        let token = Shutdown::new();
        assert!(!token.wait_timeout(Duration::from_millis(5)) && !token.is_requested());
        let (thread, task) = (token.clone(), token.clone());
        let thread = std::thread::spawn(move || thread.wait_timeout(Duration::from_secs(20)));
        let task = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(task.requested());
        });
        token.request();
        assert!(thread.join().unwrap());
        task.join().unwrap();
        assert!(token.is_requested());
    }
}
