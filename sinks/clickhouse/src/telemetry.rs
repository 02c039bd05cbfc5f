//! Every metric of the sink.

use std::sync::Arc;

use strobe_bus::telemetry::{Counter, Gauge};
use strobe_telemetry::{Pulse, Reading};

/// What the sink counts.
#[derive(Debug, Default)]
pub struct SinkTelemetry {
    /// Messages read. Healthy: follows the topics.
    pub messages: Counter,
    /// Batches stored. Healthy: follows `strobe.samples`.
    pub batches: Counter,
    /// Samples stored.
    pub samples: Counter,
    /// Events of runs stored.
    pub runs: Counter,
    /// Records of coverage stored. Healthy: a few per host, service and hour.
    pub coverage: Counter,
    /// Records of the audit stored.
    pub audit: Counter,
    /// Messages that had been stored before. Healthy: 0 but after restarts.
    pub repeats: Counter,
    /// Samples in them.
    pub repeated_samples: Counter,
    /// Batches of which a part had been stored before, so that only the rest was. Healthy: 0 but after restarts.
    pub cut: Counter,
    /// Ranges stored. Healthy: about one per second and partition, fewer under load.
    pub ranges: Counter,
    /// Ranges that somebody else had begun and this sink finished. Healthy: at most one per partition and takeover.
    pub taken_over: Counter,
    /// Messages named by such a range that the topic no longer has: lost unless the predecessor had stored them.
    /// Healthy: 0. More: the retention is shorter than the sink was away.
    pub taken_over_missing: Counter,
    /// Inserts that ClickHouse answered.
    pub inserts: Counter,
    /// Inserts tried again. Healthy: 0 while ClickHouse is there.
    pub insert_retries: Counter,
    /// Ranges that ClickHouse refused for what is in them. Healthy: 0.
    pub rejected_ranges: Counter,
    /// Messages put aside. Healthy: 0. More: see `strobe dlq list` for the reasons.
    pub dead_letters: Counter,
    /// Samples in them, as far as their headers say.
    pub dead_letter_samples: Counter,
    /// Dead letters that the broker refused even without value: lost but for the log line. Healthy: 0.
    pub dead_letters_lost: Counter,
    /// Commits that came too late. Healthy: 0 between deployments.
    pub commits_fenced: Counter,
    /// Times that partitions came.
    pub assignments: Counter,
    /// Times that partitions went without a chance to commit. Healthy: 0.
    pub assignments_lost: Counter,
    /// Bytes of messages that wait here. Healthy: below the window.
    pub window_bytes: Gauge,
    /// Messages of our partitions that are not committed. Healthy: what a few seconds bring.
    pub lag_messages: Gauge,
    /// Beats whenever messages are looked for, also while a range is stored.
    pub pulse: Arc<Pulse>,
}

impl SinkTelemetry {
    /// Returns all counters as the endpoint for metrics shows them.
    pub fn readings(&self) -> Vec<Reading> {
        let counters = [
            ("strobe_sink_messages_total", &self.messages),
            ("strobe_sink_batches_total", &self.batches),
            ("strobe_sink_samples_total", &self.samples),
            ("strobe_sink_run_events_total", &self.runs),
            ("strobe_sink_audit_records_total", &self.audit),
            ("strobe_sink_repeats_total", &self.repeats),
            ("strobe_sink_ranges_total", &self.ranges),
            ("strobe_sink_ranges_taken_over_total", &self.taken_over),
            ("strobe_sink_messages_missing_total", &self.taken_over_missing),
            ("strobe_sink_inserts_total", &self.inserts),
            ("strobe_sink_insert_retries_total", &self.insert_retries),
            ("strobe_sink_ranges_rejected_total", &self.rejected_ranges),
            ("strobe_bus_dead_letters_total", &self.dead_letters),
            ("strobe_bus_dead_letter_samples_total", &self.dead_letter_samples),
            ("strobe_bus_dead_letters_lost_total", &self.dead_letters_lost),
            ("strobe_bus_commits_fenced_total", &self.commits_fenced),
            ("strobe_bus_assignments_total", &self.assignments),
            ("strobe_bus_assignments_lost_total", &self.assignments_lost),
        ];
        let mut readings: Vec<Reading> = counters
            .map(|(name, counter)| Reading::of(name, counter.get()))
            .into();
        readings.push(Reading::of("strobe_sink_lag_messages", self.lag_messages.get()));
        readings.push(Reading::of("strobe_sink_window_bytes", self.window_bytes.get()));
        readings
    }
}

#[cfg(test)]
mod tests {
    use strobe_telemetry::METRICS;

    use super::*;

    /// Checks that what is counted here is in the list of metrics: what is not would be left out without a word.
    #[test]
    fn every_reading_is_listed() {
        for reading in SinkTelemetry::default().readings() {
            assert!(
                METRICS.iter().any(|metric| metric.name == reading.name),
                "{}",
                reading.name
            );
        }
    }
}
