//! Every metric of the bus, each with its healthy value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strobe_telemetry::{Pulse, Reading};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a producer counts.
#[derive(Debug, Default)]
pub struct ProducerTelemetry {
    /// Messages that the broker has. Healthy: follows what is pushed within a second.
    pub acknowledged: Counter,
    /// Messages that the broker will never take. Healthy: 0. More: a batch outgrew the topic's `max.message.bytes`.
    pub refused: Counter,
    /// Producers that were thrown away. Healthy: 0 but for changes of the cluster. More: a topic is missing, rights
    /// are, or the broker lost data.
    pub restarts: Counter,
    /// Messages sent again after such a restart; each may be a repeat. Healthy: 0, else at most a window per restart.
    pub resent: Counter,
}

/// What the loop between two topics counts.
#[derive(Debug, Default)]
pub struct DriveTelemetry {
    /// Messages read. Healthy: follows the input topic.
    pub messages_in: Counter,
    /// Messages that the stage gave out and the broker has. Healthy: follows `messages_in`.
    pub messages_out: Counter,
    /// Messages that the stage had nothing to give out for. Healthy: as the stage's doc says, usually 0.
    pub skipped: Counter,
    /// Messages put aside. Healthy: 0. More: see `strobe dlq list` for the reasons.
    pub dead_letters: Counter,
    /// Samples in messages put aside, as far as their headers say. Healthy: 0.
    pub dead_letter_samples: Counter,
    /// Dead letters whose value the dead-letter topic would not take either; only their headers were kept. Healthy: 0.
    pub dead_letters_without_value: Counter,
    /// Dead letters that were refused altogether: lost but for the log line. Healthy: 0.
    pub dead_letters_lost: Counter,
    /// Commits that were made. Healthy: at most five per second and partition.
    pub commits: Counter,
    /// Commits that came too late, from a consumer that had lost its partitions. Healthy: 0 between deployments.
    pub commits_fenced: Counter,
    /// Commits without an answer, tried again. Healthy: 0 while the broker is there.
    pub commits_unanswered: Counter,
    /// Times that partitions came. Healthy: one per start and change of the group.
    pub assignments: Counter,
    /// Times that partitions went without a chance to commit. Healthy: 0.
    pub assignments_lost: Counter,
    /// Times that reading was paused because the window was full. Healthy: few; more: the stage or the broker is the
    /// bottleneck.
    pub pauses: Counter,
    /// Bytes under way between reading and commit. Healthy: below the window.
    pub window_bytes: Gauge,
    /// Beats with each turn of the loop, ten times a second at least.
    pub pulse: Arc<Pulse>,
}

impl DriveTelemetry {
    /// Returns the metrics that every process between two topics has.
    pub fn readings(&self) -> Vec<Reading> {
        vec![
            Reading::of("strobe_bus_messages_read_total", self.messages_in.get()),
            Reading::of("strobe_bus_messages_written_total", self.messages_out.get()),
            Reading::of("strobe_bus_messages_skipped_total", self.skipped.get()),
            Reading::of("strobe_bus_commits_total", self.commits.get()),
            Reading::of(
                "strobe_bus_commits_unanswered_total",
                self.commits_unanswered.get(),
            ),
            Reading::of("strobe_bus_commits_fenced_total", self.commits_fenced.get()),
            Reading::of("strobe_bus_assignments_total", self.assignments.get()),
            Reading::of("strobe_bus_assignments_lost_total", self.assignments_lost.get()),
            Reading::of("strobe_bus_pauses_total", self.pauses.get()),
            Reading::of("strobe_bus_window_bytes", self.window_bytes.get()),
            Reading::of("strobe_bus_dead_letters_total", self.dead_letters.get()),
            Reading::of(
                "strobe_bus_dead_letter_samples_total",
                self.dead_letter_samples.get(),
            ),
            Reading::of("strobe_bus_dead_letters_lost_total", self.dead_letters_lost.get()),
        ]
    }
}
