//! Scenarios: what a fleet looks like, as a person writes it.

use serde::Deserialize;
use strobe_sampling::plan::{Bounds, Plan};
use strobe_sampling::slot::SlotLength;

use crate::error::SimulateError;

/// Most hosts of a scenario: a hundred times what is asked of a simulation of a week; memory for each is
/// under 200 bytes.
pub const HOSTS_MAX: usize = 1_000_000;
/// Most days of a scenario.
pub const DAYS_MAX: u64 = 366;

/// A fleet and what is desired of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name in tables and plots.
    pub name: String,
    /// Days to simulate.
    pub days: u64,
    /// CPUs of every host.
    #[serde(default = "sixteen")]
    pub cpus: f64,
    /// The draw of the world itself: which hosts are busier, when they come and go. The same for all seeds.
    #[serde(default)]
    pub world_seed: u64,
    /// Services.
    pub service: Vec<Service>,
    /// Hosts.
    pub hosts: Vec<Hosts>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Faults,
}

/// A service: its load, and what is desired of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name; `{}` in it is replaced by a number when `copies` is more than one.
    pub name: String,
    /// How many of its kind there are.
    #[serde(default = "one")]
    pub copies: usize,
    /// Samples desired per hour.
    pub desired: f64,
    /// Busy CPUs of a host, on average over a weekday.
    pub busy: f64,
    /// The day's peak over its trough.
    #[serde(default = "even")]
    pub swing: f64,
    /// The hour of the peak.
    #[serde(default)]
    pub peak_hour: f64,
    /// Load of Saturday and Sunday against that of other days.
    #[serde(default = "even")]
    pub weekend: f64,
    /// By how much hosts differ: each has a factor in [1 − x, 1 + x].
    #[serde(default)]
    pub host_spread: f64,
    /// By how much a host's load differs from one ten minutes to the next: a factor in [1 − x, 1 + x].
    #[serde(default)]
    pub noise: f64,
    /// The load is multiplied by the second number from the first, a day, on.
    #[serde(default)]
    pub level: Option<(f64, f64)>,
    /// A plan that stays; without it the tuner decides.
    #[serde(default)]
    pub fixed: Option<Fixed>,
    /// Functions; what their shares leave of 1 is one function more.
    #[serde(default)]
    pub function: Vec<Function>,
}

/// A plan that stays as it is.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// q.
    pub run_probability: f64,
    /// D, seconds.
    pub seconds: f64,
    /// f.
    pub frequency_hz: f64,
}

/// A function: its share of a service's CPU time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Its share, on average over the day.
    pub share: f64,
    /// By how much the share swings over the day: a factor in [1 − x, 1 + x].
    #[serde(default)]
    pub swing: f64,
    /// The hour at which its share is greatest.
    #[serde(default)]
    pub peak_hour: f64,
}

/// A group of hosts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// How many.
    pub count: usize,
    /// Services that run on each of them.
    #[serde(default)]
    pub services: Vec<String>,
    /// Instead: from so many to so many services, drawn for each host.
    #[serde(default)]
    pub pick: Option<(usize, usize)>,
    /// The day on which they appear, with fractions.
    #[serde(default)]
    pub from_day: f64,
    /// The day on which they go.
    #[serde(default)]
    pub until_day: Option<f64>,
    /// Hosts come and go: each is decided anew after so many hours,
    #[serde(default)]
    pub turn_hours: Option<f64>,
    /// and is there with this probability.
    #[serde(default = "even")]
    pub there: f64,
}

/// What goes wrong; nothing, unless it is said.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Share of the drawn slots that are refused.
    pub refused: f64,
    /// How much refusals follow the load within the hour: the share is multiplied by (load / mean load)^x.
    pub refused_follow_load: f64,
    /// Share of the runs that are cut short, at a moment that is even over the run.
    pub cut_short: f64,
    /// Share of the samples that are lost between kernel and agent; each CPU of each run has its own, from 0
    /// to twice that.
    pub lost: f64,
    /// Share of the runs in which the kernel throttles a quarter of the CPUs to half of their ticks.
    pub throttled: f64,
    /// Share of the time in which a multiplexed event runs.
    pub running: f64,
    /// p_kernel: the probability with which the kernel keeps an event.
    pub kernel: f64,
    /// p_limit: the probability with which a limit keeps a sample.
    pub limit: f64,
    /// p_thin: the probability with which a sample stays when thinned afterwards.
    pub thin: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            refused: 0.0,
            refused_follow_load: 0.0,
            cut_short: 0.0,
            lost: 0.0,
            throttled: 0.0,
            running: 1.0,
            kernel: 1.0,
            limit: 1.0,
            thin: 1.0,
        }
    }
}

fn sixteen() -> f64 {
    16.0
}

fn one() -> usize {
    1
}

fn even() -> f64 {
    1.0
}

impl Scenario {
    /// Returns the scenario that `text` (TOML) describes, proved.
    ///
    /// # Errors
    /// [`SimulateError`] says what cannot be.
    pub fn from_toml(text: &str) -> Result<Self, SimulateError> {
        let scenario: Self = toml::from_str(text)?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Proves that every number is in its range.
    ///
    /// # Errors
    /// [`SimulateError`] names the first that is not.
    pub fn validate(&self) -> Result<(), SimulateError> {
        within("days", self.days as f64, 1.0, DAYS_MAX as f64)?;
        within("cpus", self.cpus, 1.0, 8_192.0)?;
        let hosts = self
            .hosts
            .iter()
            .fold(0_usize, |sum, group| sum.saturating_add(group.count));
        within("hosts", hosts as f64, 1.0, HOSTS_MAX as f64)?;
        for service in &self.service {
            within("copies", service.copies as f64, 1.0, 10_000.0)?;
            within("busy", service.busy, 0.0, self.cpus)?;
            within("swing", service.swing, 1.0, 1_000.0)?;
            within("weekend", service.weekend, 0.0, 10.0)?;
            within("host_spread", service.host_spread, 0.0, 1.0)?;
            within("noise", service.noise, 0.0, 1.0)?;
            let shares: f64 = service.function.iter().map(|f| f.share * (1.0 + f.swing)).sum();
            within("the shares of functions at their peaks", shares, 0.0, 1.0)?;
            for function in &service.function {
                within("share", function.share, 0.0, 1.0)?;
                within("swing of a function", function.swing, 0.0, 1.0)?;
            }
            if let Some(fixed) = service.fixed {
                self.bounds().check(fixed.plan(), 0)?;
            }
        }
        for group in &self.hosts {
            within("there", group.there, 0.0, 1.0)?;
            within("turn_hours", group.turn_hours.unwrap_or(1.0), 0.5, 10_000.0)?;
            let (least, most) = group.pick.unwrap_or((0, 0));
            within("pick", most as f64, least as f64, 32.0)?;
        }
        let faults = &self.faults;
        for (name, share) in [
            ("refused", faults.refused),
            ("cut_short", faults.cut_short),
            ("lost", faults.lost * 2.0),
            ("throttled", faults.throttled),
        ] {
            within(name, share, 0.0, 1.0)?;
        }
        for (name, share) in [
            ("running", faults.running),
            ("kernel", faults.kernel),
            ("limit", faults.limit),
            ("thin", faults.thin),
        ] {
            within(name, share, 1e-6, 1.0)?;
        }
        Ok(())
    }

    /// Returns the bounds of its plans.
    pub fn bounds(&self) -> Bounds {
        Bounds::CPU
    }

    /// Returns its slots.
    pub fn slot(&self) -> SlotLength {
        self.bounds().slot
    }
}

impl Fixed {
    /// Returns it as a plan.
    pub fn plan(&self) -> Plan {
        Plan {
            run_probability: self.run_probability,
            planned_us: (self.seconds * 1e6) as u64,
            frequency_hz: self.frequency_hz,
            keep: 1.0,
            since_us: 0,
        }
    }
}

fn within(name: &'static str, value: f64, least: f64, most: f64) -> Result<(), SimulateError> {
    if value >= least && value <= most {
        Ok(())
    } else {
        Err(SimulateError::OutOfRange {
            name,
            value,
            least,
            most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        name = "one"
        days = 2
        [[service]]
        name = "web"
        desired = 1000.0
        busy = 2.0
        [[hosts]]
        count = 10
        services = ["web"]
    "#;

    /// Checks that a scenario says in what it cannot be: unknown words, absurd numbers.
    #[test]
    fn scenarios_are_proved() {
        assert!(Scenario::from_toml(GOOD).is_ok());
        for (good, bad) in [
            ("days = 2", "days = 0"),
            ("busy = 2.0", "busy = -1.0"),
            ("busy = 2.0", "bussy = 2.0"),
            ("count = 10", "count = 100000000"),
            ("busy = 2.0", "busy = nan"),
            ("[[hosts]]", "[faults]\nkernel = 0.0\n[[hosts]]"),
        ] {
            assert!(Scenario::from_toml(&GOOD.replace(good, bad)).is_err(), "{bad}");
        }
    }
}
