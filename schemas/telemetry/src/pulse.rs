//! Whether each part of a process still moves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Before every pulse.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Beats as long as a part of the process goes round its loop. Costs a store; any thread may look.
#[derive(Debug, Default)]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// Says that the part moves.
    pub fn beat(&self) {
        // Never 0, which says that it has not begun.
        self.0.store(START.elapsed().as_millis() as u64 + 1, Relaxed);
    }

    /// Returns the time since the last beat; nothing before the first.
    pub fn age(&self) -> Option<Duration> {
        let beaten = Duration::from_millis(self.0.load(Relaxed).checked_sub(1)?);
        Some(START.elapsed().saturating_sub(beaten))
    }
}

/// The parts of a process, each with the longest time between two beats.
#[derive(Debug, Clone, Default)]
pub struct Health(Vec<(&'static str, Duration, Arc<Pulse>)>);

impl Health {
    /// Returns the health with one more part, which beats at least every `longest`.
    pub fn with(mut self, part: &'static str, longest: Duration, pulse: Arc<Pulse>) -> Self {
        self.0.push((part, longest, pulse));
        self
    }

    /// Returns whether every part has begun.
    pub fn has_begun(&self) -> bool {
        self.0.iter().all(|(_, _, pulse)| pulse.age().is_some())
    }

    /// Returns the time since the last beat of each part that has begun.
    pub fn ages(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        self.0
            .iter()
            .filter_map(|(part, _, pulse)| Some((*part, pulse.age()?)))
    }

    /// Returns which part stands still, and for how long.
    ///
    /// # Errors
    /// A sentence that names the part. A part that has not begun is none: starting has limits of its own.
    pub fn check(&self) -> Result<(), String> {
        for (part, longest, pulse) in &self.0 {
            if let Some(age) = pulse.age().filter(|age| age > longest) {
                return Err(format!("{part} has not moved for {} s", age.as_secs()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a part that has not begun is no trouble, one that moves is healthy, and one that stands still is named.
    #[test]
    fn what_stands_still_is_named() {
        let (moves, stands) = (Arc::new(Pulse::default()), Arc::new(Pulse::default()));
        let health = Health::default()
            .with("reading", Duration::from_secs(60), Arc::clone(&moves))
            .with("writing", Duration::ZERO, Arc::clone(&stands));
        assert!(!health.has_begun());
        assert_eq!(health.check(), Ok(()));
        moves.beat();
        stands.beat();
        std::thread::sleep(Duration::from_millis(5));
        assert!(health.has_begun());
        assert_eq!(health.check().unwrap_err(), "writing has not moved for 0 s");
    }
}
