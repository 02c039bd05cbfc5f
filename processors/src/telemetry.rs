//! Every metric of this crate beside those of `strobe_bus::telemetry::DriveTelemetry` and `strobe_symbols::Telemetry`.

use strobe_bus::telemetry::Counter;

/// What the step counts.
#[derive(Debug, Default)]
pub struct StepTelemetry {
    /// Batches that went through. Healthy: follows `strobe.stacks.raw`.
    pub batches: Counter,
    /// Samples in them.
    pub samples: Counter,
    /// Batches that outgrew the limit on messages and were split. Healthy: under 1 %.
    pub split: Counter,
    /// Times that a batch was tried again because the symbol store or the child process had trouble. Healthy: 0.
    pub retries: Counter,
}
