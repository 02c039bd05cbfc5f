//! From counters to the text that Prometheus reads.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::list::{Kind, METRICS};

/// One value of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The metric's name in [`METRICS`].
    pub name: &'static str,
    /// The value of the metric's label; empty where it has none.
    pub label: &'static str,
    /// The value, in the unit that the name ends with.
    pub value: f64,
}

impl Reading {
    /// Returns the value of a metric without a label.
    pub fn of(name: &'static str, value: u64) -> Self {
        Self::labelled(name, "", value)
    }

    /// Returns the value of a metric for one value of its label.
    pub fn labelled(name: &'static str, label: &'static str, value: u64) -> Self {
        // Exact up to 2^53: 28,000 years of samples at 10,000 per second.
        Self {
            name,
            label,
            value: value as f64,
        }
    }
}

/// What a process can say of itself.
pub trait Source: Send + Sync + 'static {
    /// Returns every metric as it is now, also those that are 0.
    fn readings(&self) -> Vec<Reading>;

    /// Returns whether the process can do its work now.
    ///
    /// # Errors
    /// A sentence that says what is in the way.
    fn ready(&self) -> Result<(), String>;
}

/// Returns the readings as OpenMetrics text. A reading whose name is not in [`METRICS`] is left out.
pub fn exposition(readings: Vec<Reading>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Readings(Arc::new(readings))));
    let mut text = String::new();
    // Writing to a text cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Readings(Arc<Vec<Reading>>);

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for metric in METRICS {
            let mut readings = self
                .0
                .iter()
                .filter(|reading| reading.name == metric.name)
                .peekable();
            if readings.peek().is_none() {
                continue;
            }
            // The text form adds it itself.
            let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, metric.help, None, kind)?;
            let one = |reading: &Reading, encoder: MetricEncoder| match metric.kind {
                Kind::Counter => ConstCounter::new(reading.value).encode(encoder),
                Kind::Gauge => ConstGauge::new(reading.value).encode(encoder),
            };
            if metric.label.is_empty() {
                if let Some(reading) = readings.next() {
                    one(reading, family)?;
                }
                continue;
            }
            for reading in readings {
                one(reading, family.encode_family(&[(metric.label, reading.label)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the text that Prometheus gets: types, help, labels, and no metric that is not listed.
    #[test]
    fn the_text_is_open_metrics() {
        let text = exposition(vec![
            Reading::of("strobe_agent_samples_taken_total", 7),
            Reading::labelled("strobe_agent_samples_dropped_total", "spool_full", 2),
            Reading::labelled("strobe_agent_samples_dropped_total", "too_old", 0),
            Reading::of("strobe_agent_spool_bytes", 1 << 30),
            Reading::of("not_listed", 1),
        ]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# TYPE strobe_agent_samples_taken counter",
                "strobe_agent_samples_taken_total 7.0",
                "# TYPE strobe_agent_samples_dropped counter",
                "strobe_agent_samples_dropped_total{reason=\"spool_full\"} 2.0",
                "strobe_agent_samples_dropped_total{reason=\"too_old\"} 0.0",
                "# TYPE strobe_agent_spool_bytes gauge",
                "strobe_agent_spool_bytes 1073741824.0",
                "# EOF",
            ]
        );
    }
}
