//! The part `[sink]` of a configuration, as written and as proved.

use std::time::Duration;

use serde::Deserialize;
use strobe_bus::BusSettings;

use crate::error::SinkError;

/// As written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SinkConfig {
    /// Consumer group; sinks of one group share the partitions.
    pub group: String,
    /// Samples at which a range is closed.
    pub range_samples: u64,
    /// Bytes of messages at which a range is closed.
    pub range_bytes: usize,
    /// Age at which a range is closed: what the sink adds to the time until samples can be queried.
    #[serde(with = "humantime_serde")]
    pub range_time: Duration,
    /// Bytes of messages that wait here at most; more stay with the broker.
    pub window_bytes: usize,
    /// Batches older than this go to the dead letters: the tables would forget them at once.
    #[serde(with = "humantime_serde")]
    pub oldest: Duration,
    /// Longest time for one request to ClickHouse.
    #[serde(with = "humantime_serde")]
    pub request_time: Duration,
}

impl Default for SinkConfig {
    fn default() -> Self {
        Self {
            group: "strobe-sink".into(),
            range_samples: 200_000,
            range_bytes: 16 << 20,
            range_time: Duration::from_secs(1),
            window_bytes: 64 << 20,
            // The life of samples in the tables is counted in days from midnight: 30 of them may be little more than 29 times 24
            // hours.
            oldest: Duration::from_secs(29 * 24 * 3_600),
            request_time: Duration::from_secs(60),
        }
    }
}

/// As proved.
#[derive(Clone)]
pub struct Settings {
    /// The bus.
    pub bus: BusSettings,
    /// Client of the database that holds the tables.
    pub store: clickhouse::Client,
    /// Consumer group.
    pub group: String,
    /// Samples at which a range is closed.
    pub range_samples: u64,
    /// Bytes at which a range is closed.
    pub range_bytes: usize,
    /// Age at which a range is closed.
    pub range_time: Duration,
    /// Bytes of messages that wait here at most.
    pub window_bytes: usize,
    /// Oldest batch that is stored.
    pub oldest: Duration,
    /// Longest time for one request to ClickHouse.
    pub request_time: Duration,
}

/// Samples of a range at most: an insert of more rows than `max_insert_block_size` (1,048,449) would be cut into blocks
/// that are not stored all or nothing. A batch more, and totals that cross an hour, must still fit.
pub const RANGE_SAMPLES_MAX: u64 = 500_000;

impl SinkConfig {
    /// Returns the settings that it stands for; `store` is a client of the database that holds the tables.
    ///
    /// # Errors
    /// [`SinkError::Setting`] names the key and the remedy.
    pub fn validate(self, bus: BusSettings, store: clickhouse::Client) -> Result<Settings, SinkError> {
        let wrong = |key, value: String, remedy| Err(SinkError::Setting { key, value, remedy });
        if self.group.is_empty() {
            return wrong("group", "empty".into(), "name a consumer group");
        }
        if !(1..=RANGE_SAMPLES_MAX).contains(&self.range_samples) {
            return wrong(
                "range_samples",
                self.range_samples.to_string(),
                "choose 1 to 500000",
            );
        }
        if self.range_bytes == 0 || self.range_bytes > self.window_bytes {
            return wrong(
                "range_bytes",
                self.range_bytes.to_string(),
                "choose 1 to `sink.window_bytes`",
            );
        }
        if self.oldest.is_zero() {
            return wrong(
                "oldest",
                "0".into(),
                "give it a time, or leave it out for the default",
            );
        }
        if self.request_time.is_zero() {
            return wrong(
                "request_time",
                "0".into(),
                "give it a time, or leave it out for the default",
            );
        }
        Ok(Settings {
            bus,
            store,
            group: self.group,
            range_samples: self.range_samples,
            range_bytes: self.range_bytes,
            range_time: self.range_time,
            window_bytes: self.window_bytes,
            oldest: self.oldest,
            request_time: self.request_time,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each mistake is answered by its key.
    #[test]
    fn mistakes_are_named() {
        let bus = || strobe_bus::Bus::default().validate().unwrap();
        let good = SinkConfig::default();
        assert!(
            good.clone()
                .validate(bus(), clickhouse::Client::default())
                .is_ok()
        );
        for (config, key) in [
            (
                SinkConfig {
                    group: String::new(),
                    ..good.clone()
                },
                "sink.group",
            ),
            (
                SinkConfig {
                    range_samples: 0,
                    ..good.clone()
                },
                "sink.range_samples",
            ),
            (
                SinkConfig {
                    range_samples: 2_000_000,
                    ..good.clone()
                },
                "sink.range_samples",
            ),
            (
                SinkConfig {
                    range_bytes: 1 << 40,
                    ..good.clone()
                },
                "sink.range_bytes",
            ),
            (
                SinkConfig {
                    oldest: Duration::ZERO,
                    ..good.clone()
                },
                "sink.oldest",
            ),
            (
                SinkConfig {
                    request_time: Duration::ZERO,
                    ..good
                },
                "sink.request_time",
            ),
        ] {
            let error = config
                .validate(bus(), clickhouse::Client::default())
                .err()
                .unwrap();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
