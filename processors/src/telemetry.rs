//! Every metric of this crate beside those of `strobe_bus::telemetry::DriveTelemetry` and `strobe_symbols::Telemetry`.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use strobe_bus::telemetry::{Counter, DriveTelemetry, Gauge};
use strobe_event::Reason;
use strobe_symbols::KeeperCounts;
use strobe_telemetry::{Pulse, Reading};

/// What the step counts.
#[derive(Debug, Default)]
pub struct StepTelemetry {
    /// Batches that went through. Healthy: follows `strobe.stacks.raw`.
    pub batches: Counter,
    /// Samples in them.
    pub samples: Counter,
    /// Batches of which limits let nothing stay. Healthy: 0 without limits.
    pub thinned_batches: Counter,
    /// Batches that outgrew the limit on messages and were split. Healthy: under 1 %.
    pub split: Counter,
    /// Tags that became `other`, since their key had a thousand values already. Healthy: 0. More: a rule takes its values
    /// from something that never repeats.
    pub refused_values: Gauge,
    /// Stacks that got their tags without marks, since their batch had over four million. Healthy: 0.
    pub tags_cut: Gauge,
    /// Times that a batch was tried again because the symbol store or the child process had trouble. Healthy: 0.
    pub retries: Counter,
}

/// What is counted of stack schemas.
#[derive(Debug, Default)]
pub struct SchemaTelemetry {
    /// Schemas in force, with those that others include. Healthy: as many as were applied.
    pub in_force: Gauge,
    /// Times that others came in force. Healthy: one per `strobe stacks apply`, and one per start.
    pub switched: Counter,
    /// Changes that were refused: the schemas of before stayed in force. Healthy: 0. More: the log says which and why.
    pub refused: Counter,
}

/// What is counted of keeping the symbol store.
#[derive(Debug, Default)]
pub struct KeepingTelemetry {
    /// The turns of its loop; one lasts as long as making one symbol file.
    pub pulse: Arc<Pulse>,
    /// Faults of its own that it has met. Healthy: 0. More: the log has the place.
    pub faults: Arc<Counter>,
    /// What the keeper counts, once it runs.
    pub keeper: OnceLock<Arc<KeeperCounts>>,
}

/// What the processor counts altogether.
#[derive(Debug, Default)]
pub struct ProcessorTelemetry {
    /// The loop between the topics.
    pub drive: DriveTelemetry,
    /// The step.
    pub step: StepTelemetry,
    /// Names, as they stood after the last batch.
    pub names: Mutex<strobe_symbols::Telemetry>,
    /// Stack schemas, shared with the thread that follows them.
    pub schemas: Arc<SchemaTelemetry>,
    /// The thread that keeps the symbol store.
    pub keeping: KeepingTelemetry,
}

impl ProcessorTelemetry {
    /// Returns all counters as the endpoint for metrics shows them.
    pub fn readings(&self) -> Vec<Reading> {
        let mut readings = self.drive.readings();
        let (step, names) = (
            &self.step,
            self.names.lock().unwrap_or_else(PoisonError::into_inner),
        );
        readings.extend([
            Reading::of("strobe_processor_batches_total", step.batches.get()),
            Reading::of("strobe_processor_samples_total", step.samples.get()),
            Reading::of("strobe_processor_batches_split_total", step.split.get()),
            Reading::of("strobe_processor_retries_total", step.retries.get()),
            Reading::of("strobe_processor_tag_values_refused", step.refused_values.get()),
            Reading::of("strobe_processor_tags_cut", step.tags_cut.get()),
            Reading::of("strobe_processor_schemas_in_force", self.schemas.in_force.get()),
            Reading::of(
                "strobe_processor_schemas_switched_total",
                self.schemas.switched.get(),
            ),
            Reading::of(
                "strobe_processor_schemas_refused_total",
                self.schemas.refused.get(),
            ),
            Reading::of("strobe_processor_frames_total", names.frames),
            Reading::of("strobe_processor_memo_hits_total", names.memo_hits),
            Reading::of("strobe_processor_memo_bytes", names.memo_bytes),
            Reading::of("strobe_processor_symbol_file_lookups_total", names.file_lookups),
            Reading::of("strobe_processor_symbol_files_open", names.files_open),
            Reading::of("strobe_processor_symbol_file_bytes", names.file_bytes),
            Reading::of(
                "strobe_processor_symbol_file_evictions_total",
                names.file_evictions,
            ),
            Reading::of("strobe_processor_symbol_files_renewed_total", names.files_renewed),
            Reading::of("strobe_processor_symbol_files_damaged_total", names.files_damaged),
            Reading::of("strobe_processor_keeper_faults_total", self.keeping.faults.get()),
            Reading::of("strobe_processor_store_lookups_total", names.store_lookups),
            Reading::of("strobe_processor_store_misses_total", names.store_misses),
            Reading::of("strobe_processor_worker_deaths_total", names.worker_deaths),
            Reading::of("strobe_processor_worker_timeouts_total", names.worker_timeouts),
            Reading::of("strobe_processor_binaries_refused_total", names.binaries_refused),
        ]);
        if let Some(keeper) = self.keeping.keeper.get() {
            readings.extend([
                Reading::of(
                    "strobe_processor_symbol_files_made_total",
                    keeper.made.load(Relaxed),
                ),
                Reading::of(
                    "strobe_processor_symbol_files_failed_total",
                    keeper.failed.load(Relaxed),
                ),
                Reading::of(
                    "strobe_processor_symbol_files_repaired_total",
                    keeper.repaired.load(Relaxed),
                ),
                Reading::of(
                    "strobe_processor_symbol_files_waiting",
                    keeper.waiting.load(Relaxed),
                ),
                Reading::of("strobe_processor_binaries_wanted", keeper.wanted.load(Relaxed)),
                Reading::of(
                    "strobe_processor_binaries_wanted_refused_total",
                    keeper.wanted_refused.load(Relaxed),
                ),
            ]);
        }
        readings.extend(Reason::ALL.map(|reason| {
            Reading::labelled(
                "strobe_processor_frames_unknown_total",
                reason.name(),
                names.frames_unknown[reason as usize],
            )
        }));
        readings
    }
}

/// What the tuner counts.
#[derive(Debug, Default)]
pub struct TunerTelemetry {
    /// The turns of its loop.
    pub pulse: Arc<Pulse>,
    /// Records of coverage read. Healthy: follows `strobe.coverage`.
    pub records: Counter,
    /// Records that cannot be read or cannot be true. Healthy: 0.
    pub refused: Counter,
    /// Records of hours that no window can take in any more. Healthy: 0 but after an outage of hours.
    pub too_late: Counter,
    /// Records of hosts beyond the most that are followed. Healthy: 0.
    pub too_many_hosts: Counter,
    /// Records of slots of another length. Healthy: those of hosts without a plan. More: agents and tuner are configured
    /// differently.
    pub other_slots: Counter,
    /// Windows closed.
    pub windows: Counter,
    /// Plans sent. Healthy: a few per service and day.
    pub plans: Counter,
    /// Hosts that were believed in part, once for each window. Healthy: 0.
    pub doubted: Counter,
    /// Configurations that changed nothing: unsigned, by whom it is not for, old, or senseless. Healthy: 0.
    pub configs_refused: Counter,
    /// Messages of coverage that are not read yet. Healthy: what a few seconds bring.
    pub lag_messages: Gauge,
}

impl TunerTelemetry {
    /// Returns all counters as the endpoint for metrics shows them.
    pub fn readings(&self) -> Vec<Reading> {
        let left_out = |reason, count: &Counter| {
            Reading::labelled("strobe_tuner_records_left_out_total", reason, count.get())
        };
        vec![
            Reading::of("strobe_tuner_records_total", self.records.get()),
            left_out("refused", &self.refused),
            left_out("too_late", &self.too_late),
            left_out("too_many_hosts", &self.too_many_hosts),
            left_out("other_slots", &self.other_slots),
            Reading::of("strobe_tuner_windows_total", self.windows.get()),
            Reading::of("strobe_tuner_plans_total", self.plans.get()),
            Reading::of("strobe_tuner_hosts_doubted_total", self.doubted.get()),
            Reading::of("strobe_tuner_configs_refused_total", self.configs_refused.get()),
            Reading::of("strobe_tuner_lag_messages", self.lag_messages.get()),
        ]
    }
}

/// What the trigger counts.
#[derive(Debug, Default)]
pub struct TriggerTelemetry {
    /// The turns of its loop.
    pub pulse: Arc<Pulse>,
    /// Requests read for the first time.
    pub requests: Counter,
    /// Of those, the ones that cannot be meant or are replays. Healthy: 0.
    pub refused: Counter,
    /// States said.
    pub states: Counter,
    /// Reports of hosts read.
    pub reports: Counter,
    /// Reports of requests or hosts that are not known. Healthy: 0.
    pub unknown: Counter,
    /// Messages that cannot be read. Healthy: 0.
    pub unreadable: Counter,
    /// Alerts read.
    pub alerts: Counter,
    /// Requests that rules made of them.
    pub fired: Counter,
    /// Alerts for which a rule had started enough already. Healthy: 0 but in storms.
    pub damped: Counter,
}

#[cfg(test)]
mod tests {
    use strobe_telemetry::METRICS;

    use super::*;

    /// Checks that what is counted here is in the list of metrics: what is not would be left out without a word.
    #[test]
    fn every_reading_is_listed() {
        let telemetry = ProcessorTelemetry::default();
        telemetry.keeping.keeper.get_or_init(Arc::default);
        let tuner = TunerTelemetry::default().readings();
        for reading in telemetry.readings().into_iter().chain(tuner) {
            assert!(
                METRICS.iter().any(|metric| metric.name == reading.name),
                "{}",
                reading.name
            );
        }
    }
}
