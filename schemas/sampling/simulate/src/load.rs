//! The world: hosts, the services on them, and how busy each is at every moment. It is the truth that
//! estimates are held against, and it does not depend on what is sampled.

use std::f64::consts::TAU;

use crate::error::SimulateError;
use crate::scenario::{Scenario, Service};

/// Load of a host is noisy from one stretch of so many minutes to the next; hosts come and go at their
/// borders.
pub const STRETCH_MINUTES: u64 = 10;
/// The first day of every scenario: 2024-10-04, a Friday.
pub const FIRST_DAY: u64 = 20_000;
const MINUTE_US: u64 = 60_000_000;

/// Returns the stretch of a moment, microseconds since the first day's start.
pub fn stretch(at_us: u64) -> u64 {
    at_us / MINUTE_US / STRETCH_MINUTES
}

/// A service's load.
#[derive(Debug)]
pub struct ServiceLoad {
    /// Its name.
    pub name: String,
    /// What was said of it.
    pub service: Service,
    /// Busy CPUs of a mean host, by minute of the week.
    curve: Vec<f64>,
    /// Share of each part, by minute of the day: its functions, and what they leave.
    shares: Vec<Vec<f64>>,
}

impl ServiceLoad {
    fn new(service: &Service, name: String) -> Self {
        let swing = (service.swing - 1.0) / (service.swing + 1.0);
        let curve = (0..7 * 1_440)
            .map(|minute| {
                let hour = f64::from(minute % 1_440) / 60.0;
                // 1970 began on a Thursday.
                let weekday = (FIRST_DAY + u64::from(minute / 1_440_u32) + 4) % 7;
                let week = if weekday.is_multiple_of(6) {
                    service.weekend
                } else {
                    1.0
                };
                service.busy * week * wave(hour, service.peak_hour, swing)
            })
            .collect();
        let mut shares: Vec<Vec<f64>> = service
            .function
            .iter()
            .map(|function| {
                let share = |minute| {
                    function.share * wave(f64::from(minute) / 60.0, function.peak_hour, function.swing)
                };
                (0..1_440).map(share).collect()
            })
            .collect();
        let rest = (0..1_440).map(|minute| 1.0 - shares.iter().map(|share| share[minute]).sum::<f64>());
        shares.push(rest.collect());
        Self {
            name,
            service: service.clone(),
            curve,
            shares,
        }
    }

    /// Returns how many parts it has.
    pub fn parts(&self) -> usize {
        self.shares.len()
    }

    /// Returns the mean share of a part.
    pub fn share(&self, part: usize) -> f64 {
        self.shares[part].iter().sum::<f64>() / 1_440.0
    }

    fn busy(&self, minute: u64) -> f64 {
        let level = match self.service.level {
            Some((day, factor)) if minute as f64 >= day * 1_440.0 => factor,
            _ => 1.0,
        };
        self.curve[(minute % (7 * 1_440)) as usize] * level
    }
}

/// Returns a wave over the day with mean 1 that swings by ± `swing` and is greatest at `peak_hour`.
fn wave(hour: f64, peak_hour: f64, swing: f64) -> f64 {
    1.0 + swing * ((hour - peak_hour) / 24.0 * TAU).cos()
}

/// A host and its services.
#[derive(Debug)]
pub struct Host {
    /// Services on it, by number.
    pub services: Vec<usize>,
    from: u64,
    until: u64,
    /// Stretches after which it is decided anew whether it is there.
    turn: u64,
    there: f64,
}

/// The world.
#[derive(Debug)]
pub struct World {
    seed: u64,
    /// Its days.
    pub days: u64,
    /// Services.
    pub services: Vec<ServiceLoad>,
    /// Hosts.
    pub hosts: Vec<Host>,
}

impl World {
    /// Returns the world that a scenario describes.
    ///
    /// # Errors
    /// [`SimulateError`] where the scenario contradicts itself.
    pub fn new(scenario: &Scenario) -> Result<Self, SimulateError> {
        scenario.validate()?;
        let mut services = Vec::new();
        for service in &scenario.service {
            for copy in 0..service.copies {
                services.push(ServiceLoad::new(
                    service,
                    service.name.replace("{}", &copy.to_string()),
                ));
            }
        }
        let seed = scenario.world_seed;
        let stretches = |days: f64| (days * 1_440.0 / STRETCH_MINUTES as f64) as u64;
        let mut hosts: Vec<Host> = Vec::new();
        for group in &scenario.hosts {
            let mut named = Vec::new();
            for name in &group.services {
                let at = services.iter().position(|service| &service.name == name);
                named.push(at.ok_or_else(|| SimulateError::UnknownService(name.clone()))?);
            }
            for _ in 0..group.count {
                let number = hosts.len() as u64;
                let services = match group.pick {
                    Some(range) => pick(seed, number, range, services.len()),
                    None => named.clone(),
                };
                hosts.push(Host {
                    services,
                    from: stretches(group.from_day),
                    until: group.until_day.map_or(u64::MAX, stretches),
                    turn: group
                        .turn_hours
                        .map_or(u64::MAX, |hours| stretches(hours / 24.0).max(1)),
                    there: group.there,
                });
            }
        }
        Ok(Self {
            seed,
            days: scenario.days,
            services,
            hosts,
        })
    }

    /// Returns whether a host is there in a stretch.
    pub fn is_there(&self, host: usize, stretch: u64) -> bool {
        let known = &self.hosts[host];
        if stretch < known.from || stretch >= known.until {
            return false;
        }
        // Each host turns at moments of its own.
        let own = (unit(self.seed, host as u64, 1, 0) * 1e4) as u64;
        known.turn == u64::MAX || unit(self.seed, host as u64, 2, (stretch + own) / known.turn) < known.there
    }

    /// Returns the factor by which a service is busier on a host in a stretch than on the mean one; 0 where
    /// it is not there.
    fn factor(&self, host: usize, service: usize, stretch: u64) -> f64 {
        if !self.is_there(host, stretch) {
            return 0.0;
        }
        let load = &self.services[service].service;
        let around = |spread: f64, what: u64, at: u64| {
            1.0 + spread * (2.0 * unit(self.seed, host as u64, what + 2 * service as u64, at) - 1.0)
        };
        around(load.host_spread, 3, 0) * around(load.noise, 4, stretch + 1)
    }

    /// Returns the CPU seconds that each part of a service uses on a host in [`from_us`, `to_us`),
    /// microseconds since the first day's start.
    pub fn cpu_seconds(&self, host: usize, service: usize, from_us: u64, to_us: u64, parts: &mut Vec<f64>) {
        let load = &self.services[service];
        parts.clear();
        parts.resize(load.parts(), 0.0);
        let mut at = from_us;
        while at < to_us {
            let minute = at / MINUTE_US;
            let end = ((minute + 1) * MINUTE_US).min(to_us);
            let busy = load.busy(minute) * self.factor(host, service, minute / STRETCH_MINUTES);
            let seconds = busy * (end - at) as f64 / 1e6;
            for (part, share) in parts.iter_mut().zip(&load.shares) {
                *part += seconds * share[(minute % 1_440) as usize];
            }
            at = end;
        }
    }

    /// Returns the CPU seconds of every service, hour and part: the truth.
    pub fn truth(&self) -> Vec<Vec<Vec<f64>>> {
        let mut truth: Vec<Vec<Vec<f64>>> = self
            .services
            .iter()
            .map(|load| vec![vec![0.0; load.parts()]; self.days as usize * 24])
            .collect();
        for stretch in 0..self.days * 1_440 / STRETCH_MINUTES {
            let mut factors = vec![0.0; self.services.len()];
            for (number, host) in self.hosts.iter().enumerate() {
                for &service in &host.services {
                    factors[service] += self.factor(number, service, stretch);
                }
            }
            for (service, factor) in factors.iter().enumerate() {
                let load = &self.services[service];
                let hour = (stretch * STRETCH_MINUTES / 60) as usize;
                for minute in stretch * STRETCH_MINUTES..(stretch + 1) * STRETCH_MINUTES {
                    let seconds = load.busy(minute) * factor * 60.0;
                    for (part, share) in truth[service][hour].iter_mut().zip(&load.shares) {
                        *part += seconds * share[(minute % 1_440) as usize];
                    }
                }
            }
        }
        truth
    }
}

/// Returns the services of a host: a number of them within `range`, each drawn evenly.
fn pick(seed: u64, host: u64, (least, most): (usize, usize), services: usize) -> Vec<usize> {
    let count = least + (unit(seed, host, 5, u64::MAX) * (most - least + 1) as f64) as usize;
    let mut picked = Vec::new();
    // Bounded: of few services, a host may get fewer than were meant.
    for go in 0..4 * most as u64 {
        let service = (unit(seed, host, 6, go) * services as f64) as usize;
        if picked.len() < count && !picked.contains(&service) {
            picked.push(service);
        }
    }
    picked
}

/// Returns a number in [0, 1) that depends on nothing but its arguments: the finalizer of SplitMix64, twice.
fn unit(seed: u64, host: u64, what: u64, at: u64) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let first = mix(seed ^ host.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(what));
    (mix(first ^ at.wrapping_mul(0xd1b5_4a32_d192_ed03)) >> 11) as f64 / 9_007_199_254_740_992.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        let text = r#"
            name = "two"
            days = 2
            [[service]]
            name = "web"
            desired = 1000.0
            busy = 2.0
            swing = 5.0
            peak_hour = 14.0
            host_spread = 0.5
            noise = 0.3
            level = [1.0, 2.0]
            function = [{ share = 0.3, swing = 0.5, peak_hour = 3.0 }, { share = 0.01 }]
            [[service]]
            name = "db"
            desired = 1000.0
            busy = 1.0
            [[hosts]]
            count = 20
            services = ["web", "db"]
            turn_hours = 5.0
            there = 0.7
        "#;
        World::new(&Scenario::from_toml(text).unwrap()).unwrap()
    }

    /// Checks that the truth, summed up stretch by stretch, is what a look at every second of an hour gives:
    /// the two are computed differently.
    #[test]
    fn the_truth_is_the_sum_of_all_seconds() {
        let world = world();
        let truth = world.truth();
        for (service, hour) in [(0, 3), (0, 30), (1, 47)] {
            let mut sum = vec![0.0; world.services[service].parts()];
            let mut parts = Vec::new();
            for host in 0..world.hosts.len() {
                for second in hour * 3_600..(hour + 1) * 3_600 {
                    let from = second as u64 * 1_000_000;
                    world.cpu_seconds(host, service, from, from + 1_000_000, &mut parts);
                    sum.iter_mut().zip(&parts).for_each(|(sum, part)| *sum += part);
                }
            }
            for (sum, truth) in sum.iter().zip(&truth[service][hour]) {
                assert!((sum / truth - 1.0).abs() < 1e-9, "{sum} {truth}");
            }
        }
    }

    /// Checks that the load is what was asked for: a mean, a swing, a change of level.
    #[test]
    fn the_load_is_what_was_asked_for() {
        let load = &world().services[0];
        let day: Vec<f64> = (0..1_440).map(|minute| load.busy(minute)).collect();
        assert!((day.iter().sum::<f64>() / 1_440.0 - 2.0).abs() < 1e-9);
        let (low, high) = (day[120], day[14 * 60]);
        assert!((high / low - 5.0).abs() < 0.01, "{low} {high}");
        assert!((load.busy(1_440) / load.busy(0) - 2.0).abs() < 1e-9);
    }
}
