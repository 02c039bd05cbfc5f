//! What people desire of sampling and limit it to, as it is configured for the whole fleet: JSON under the name [`NAME`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{SamplingError, in_range};
use crate::limit::{Limits, PerHour};
use crate::plan::Bounds;
use crate::slot::SlotLength;
use crate::tuner::Desired;

/// The name of the configuration among those of the fleet.
pub const NAME: &str = "sampling/default";

/// Most services and teams with limits of their own.
const OWN_MAX: usize = 100_000;

/// As written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// What is desired of each profiler, from every service.
    pub profilers: BTreeMap<String, ProfilerConfig>,
    /// What may pass in an hour.
    pub limits: LimitsConfig,
}

/// What is desired of a profiler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfilerConfig {
    /// Samples per hour of each service.
    pub samples_per_hour: f64,
    /// Length of slots, seconds. It must be that of the agents.
    pub slot_s: f64,
    /// Every slot runs with at least this probability.
    pub run_probability_min: f64,
    /// The shortest run, seconds.
    pub run_min_s: f64,
    /// The longest run, seconds.
    pub run_max_s: f64,
    /// The lowest frequency.
    pub frequency_min_hz: f64,
    /// The highest frequency.
    pub frequency_max_hz: f64,
}

/// What may pass in an hour; what is not given is not limited.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Of each service, unless it has its own.
    pub service: LimitConfig,
    /// Of services that have their own; what one of these does not say is as for every service.
    pub services: BTreeMap<String, LimitConfig>,
    /// Of teams.
    pub teams: BTreeMap<String, LimitConfig>,
    /// Whose a service is.
    pub team_of: BTreeMap<String, String>,
    /// Of all together.
    pub fleet: LimitConfig,
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitConfig {
    /// Samples.
    pub samples: Option<f64>,
    /// Bytes to the bus.
    pub bus_bytes: Option<f64>,
    /// Bytes to storage.
    pub stored_bytes: Option<f64>,
    /// Until when its owner has lifted it, microseconds since 1970; of services alone.
    pub lifted_until_us: u64,
}

impl Default for ProfilerConfig {
    /// 40,000 samples per hour, within the bounds of the CPU profiler: a total of a day is then known to some 3 %.
    fn default() -> Self {
        let bounds = Bounds::CPU;
        let seconds = |us: u64| us as f64 / 1e6;
        Self {
            samples_per_hour: 40_000.0,
            slot_s: seconds(bounds.slot.us()),
            run_probability_min: bounds.run_probability_min,
            run_min_s: seconds(bounds.planned_min_us),
            run_max_s: seconds(bounds.planned_max_us),
            frequency_min_hz: bounds.frequency_min_hz,
            frequency_max_hz: bounds.frequency_max_hz,
        }
    }
}

impl ProfilerConfig {
    /// Returns the bounds of plans.
    ///
    /// # Errors
    /// [`SamplingError`] names what cannot be.
    pub fn bounds(&self) -> Result<Bounds, SamplingError> {
        // A cast of a number that is negative, too large or none gives one that is refused below.
        let us = |seconds: f64| (seconds * 1e6).round() as u64;
        Bounds {
            slot: SlotLength::new(us(self.slot_s))?,
            run_probability_min: self.run_probability_min,
            planned_min_us: us(self.run_min_s),
            planned_max_us: us(self.run_max_s),
            frequency_min_hz: self.frequency_min_hz,
            frequency_max_hz: self.frequency_max_hz,
        }
        .validate()
    }

    /// Returns what is desired of a service whose largest host has so many CPUs.
    ///
    /// # Errors
    /// As [`ProfilerConfig::bounds`] and [`Desired::new`].
    pub fn desired(&self, cpus: f64) -> Result<Desired, SamplingError> {
        Desired::new(self.samples_per_hour, cpus, self.bounds()?)
    }
}

impl LimitConfig {
    fn per_hour(&self) -> Result<PerHour, SamplingError> {
        PerHour {
            samples: self.samples.unwrap_or(f64::INFINITY),
            bus_bytes: self.bus_bytes.unwrap_or(f64::INFINITY),
            stored_bytes: self.stored_bytes.unwrap_or(f64::INFINITY),
        }
        .validate()
    }
}

impl LimitsConfig {
    /// Returns the limits.
    ///
    /// # Errors
    /// [`SamplingError::OutOfRange`] names the number that cannot be meant.
    pub fn limits(&self) -> Result<Limits, SamplingError> {
        let count = self.services.len().max(self.teams.len()).max(self.team_of.len());
        in_range("limits of services and teams", count as f64, 0.0, OWN_MAX as f64)?;
        let own = |(name, limit): (&String, &LimitConfig)| {
            let whole = LimitConfig {
                samples: limit.samples.or(self.service.samples),
                bus_bytes: limit.bus_bytes.or(self.service.bus_bytes),
                stored_bytes: limit.stored_bytes.or(self.service.stored_bytes),
                ..*limit
            };
            Ok((name.clone(), (whole.per_hour()?, limit.lifted_until_us)))
        };
        let team = |(name, limit): (&String, &LimitConfig)| Ok((name.clone(), limit.per_hour()?));
        Ok(Limits {
            service: self.service.per_hour()?,
            services: self
                .services
                .iter()
                .map(own)
                .collect::<Result<_, SamplingError>>()?,
            teams: self
                .teams
                .iter()
                .map(team)
                .collect::<Result<_, SamplingError>>()?,
            fleet: self.fleet.per_hour()?,
        })
    }
}

impl SamplingConfig {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, in words: where the JSON breaks, an unknown key, or a number that cannot be meant.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let config: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        config.validate().map_err(|error| error.to_string())
    }

    /// Proves it.
    ///
    /// # Errors
    /// [`SamplingError`] names what is negative, absurd or not a number.
    pub fn validate(self) -> Result<Self, SamplingError> {
        for profiler in self.profilers.values() {
            profiler.desired(1.0)?;
        }
        self.limits.limits()?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that nothing but a rate need be said, and that the rest are the CPU profiler's bounds.
    #[test]
    fn a_rate_is_enough() {
        let text = br#"{"profilers": {"cpu": {"samples_per_hour": 1000}}}"#;
        let config = SamplingConfig::from_json(text).unwrap();
        assert_eq!(config.profilers["cpu"].bounds(), Ok(Bounds::CPU));
        assert_eq!(config.limits.limits().unwrap().fleet, PerHour::UNLIMITED);
    }

    /// Checks that a service whose limit was lifted has the limit of every service again afterwards, though nothing else was said
    /// of it.
    #[test]
    fn a_lifted_limit_comes_back() {
        let text =
            br#"{"limits": {"service": {"samples": 5000}, "services": {"orders": {"lifted_until_us": 7}}}}"#;
        let limits = SamplingConfig::from_json(text).unwrap().limits.limits().unwrap();
        assert_eq!(
            (limits.services["orders"].0.samples, limits.services["orders"].1),
            (5_000.0, 7)
        );
    }

    /// Checks that rates and limits that cannot be meant are refused by name.
    #[test]
    fn absurd_configurations_are_refused() {
        for (text, named) in [
            (
                r#"{"profilers": {"cpu": {"samples_per_hour": -1}}}"#,
                "desired samples per hour",
            ),
            (
                r#"{"profilers": {"cpu": {"samples_per_hour": 1e30}}}"#,
                "desired samples per hour",
            ),
            (r#"{"profilers": {"cpu": {"slot_s": 7}}}"#, "slots of 7000000 us"),
            (r#"{"profilers": {"cpu": {"run_max_s": 61}}}"#, "planned_max_us"),
            (r#"{"profilers": {"cpu": {"rate": 5}}}"#, "unknown field `rate`"),
            (r#"{"limits": {"fleet": {"samples": 0}}}"#, "samples per hour"),
            (
                r#"{"limits": {"teams": {"t": {"bus_bytes": -5}}}}"#,
                "bytes per hour to the bus",
            ),
        ] {
            let error = SamplingConfig::from_json(text.as_bytes()).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
