//! The budget of the agent as a whole: what it may take of CPU and memory, and what happens when that is not enough.
//!
//! Pure: it is told every [`LOOK`] what was used, and says how much sampling has to be thinner. Over its CPU time, rates are halved as often
//! as it takes, at once; at a [`LOWEST`]th of a rate that is still too much, sampling stops. When it has kept within half of its budget for
//! [`CALM`] looks, it is let go one step further. Memory is not given back by sampling more slowly: over it, sampling stops.

use std::time::Duration;

use serde::Deserialize;

/// Time between two looks: two of them still fit into the second within which it backs off.
pub const LOOK: Duration = Duration::from_millis(400);
/// Halvings of a rate before sampling stops: at a 32nd, 101 Hz are three ticks a second.
pub const LOWEST: u32 = 5;
/// Looks within half of the budget after which it goes one step up: ten seconds.
const CALM: u32 = 25;
/// What a sample costs whoever is sampled, CPU time in the kernel: measured by the benchmarks of `strobe-bpf`, the larger half of them.
const KERNEL_US_PER_SAMPLE: f64 = 3.0;
/// The smallest share of one CPU that can be meant: below, even reading the kernel's account of processes is too much.
const CPUS_MIN: f64 = 0.005;
/// The least memory that the agent can do with.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// CPUs' share by default, and the least of it.
const CPUS_SHARE: f64 = 0.05;
const CPUS_LEAST: f64 = 1.0;
/// Reading every process and making their unwind tables takes more than what follows: for so long the budget of CPU time is doubled.
const WARM_UP: Duration = Duration::from_secs(60);

/// The part `[budget]`, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetConfig {
    /// CPU time, in CPUs: 0.5 is half of one; 0: a twentieth of the host's, and at least one CPU.
    pub cpus: f64,
    /// Memory of the agent's process, unwind tables in the kernel included.
    pub memory_bytes: u64,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            cpus: 0.0,
            memory_bytes: 1 << 30,
        }
    }
}

/// The budget, proved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// CPU time, in CPUs.
    pub cpus: f64,
    /// Memory.
    pub memory_bytes: u64,
}

impl BudgetConfig {
    /// Returns the limits that it stands for on a host with so many CPUs.
    ///
    /// # Errors
    /// Which number makes no sense.
    pub fn validate(&self, host_cpus: usize) -> Result<Limits, String> {
        if self.cpus != 0.0 && !(self.cpus.is_finite() && self.cpus >= CPUS_MIN) {
            return Err(format!(
                "`budget.cpus` is {}: give at least {CPUS_MIN}, or 0",
                self.cpus
            ));
        }
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(format!(
                "`budget.memory_bytes` is {}: give at least {MEMORY_BYTES_MIN}",
                self.memory_bytes
            ));
        }
        let cpus = match self.cpus {
            0.0 => (CPUS_SHARE * host_cpus as f64).max(CPUS_LEAST),
            cpus => cpus,
        };
        Ok(Limits {
            cpus,
            memory_bytes: self.memory_bytes,
        })
    }
}

/// What was used, as counted from the agent's start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    /// How long the agent has run.
    pub at: Duration,
    /// CPU time of its process.
    pub cpu: Duration,
    /// Samples taken in the kernel.
    pub samples: u64,
    /// Memory that it holds now.
    pub memory_bytes: u64,
}

/// How much sampling has to be thinner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Not at all.
    #[default]
    Full,
    /// Rates are halved so often.
    Halved(u32),
    /// Nothing is sampled.
    Stopped,
}

impl Level {
    /// Returns by how much periods are multiplied.
    pub fn factor(self) -> u64 {
        1 << self.halvings()
    }

    fn halvings(self) -> u32 {
        match self {
            Self::Full => 0,
            Self::Halved(times) => times.min(LOWEST),
            Self::Stopped => LOWEST,
        }
    }

    fn halved(times: u32) -> Self {
        match times {
            0 => Self::Full,
            times if times > LOWEST => Self::Stopped,
            times => Self::Halved(times),
        }
    }
}

/// What watches over the budget.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    before: Used,
    level: Level,
    calm: u32,
}

impl Budget {
    /// Returns one that begins at `now`.
    pub fn new(limits: Limits, now: Used) -> Self {
        Self {
            limits,
            before: now,
            level: Level::Full,
            calm: 0,
        }
    }

    /// Returns how much sampling has to be thinner now.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Takes a look; returns the new level and the reason where it has changed.
    pub fn look(&mut self, now: Used) -> Option<(Level, String)> {
        let passed = now.at.saturating_sub(self.before.at).as_secs_f64();
        if passed < LOOK.as_secs_f64() {
            return None;
        }
        let own = now.cpu.saturating_sub(self.before.cpu).as_secs_f64();
        let kernel = now.samples.saturating_sub(self.before.samples) as f64 * KERNEL_US_PER_SAMPLE / 1e6;
        let cpus = (own + kernel) / passed;
        self.before = now;
        let limit = match now.at < WARM_UP {
            true => 2.0 * self.limits.cpus,
            false => self.limits.cpus,
        };
        let (level, why) = if now.memory_bytes > self.limits.memory_bytes {
            let (used, most) = (now.memory_bytes >> 20, self.limits.memory_bytes >> 20);
            (
                Level::Stopped,
                format!("the agent holds {used} MiB of memory, and may hold {most}"),
            )
        } else if cpus > limit {
            // As often as it takes, were all of it spent on samples.
            let times = (cpus / limit).log2().ceil().max(1.0) as u32;
            let why = format!("the agent used {cpus:.3} CPUs, and may use {limit:.3}");
            (
                Level::halved(self.level.halvings() + times + u32::from(self.level == Level::Stopped)),
                why,
            )
        } else {
            let is_calm = cpus < limit / 2.0 && now.memory_bytes < self.limits.memory_bytes / 10 * 9;
            self.calm = if is_calm { self.calm + 1 } else { 0 };
            if self.calm < CALM || self.level == Level::Full {
                return None;
            }
            self.calm = 0;
            let level = match self.level {
                Level::Stopped => Level::Halved(LOWEST),
                level => Level::halved(level.halvings() - 1),
            };
            self.level = level;
            return Some((level, "the agent keeps within half of its budget".to_owned()));
        };
        self.calm = 0;
        let changed = level != self.level;
        self.level = level;
        changed.then_some((level, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        cpus: 0.1,
        memory_bytes: 100 << 20,
    };

    /// An agent whose cost follows its rate, and what it costs beside.
    struct World {
        now: Used,
        budget: Budget,
        per_second: f64,
        fixed: f64,
    }

    impl World {
        fn new(per_second: f64, fixed: f64) -> Self {
            let now = Used {
                at: WARM_UP,
                ..Used::default()
            };
            Self {
                now,
                budget: Budget::new(LIMITS, now),
                per_second,
                fixed,
            }
        }

        fn step(&mut self) -> Option<(Level, String)> {
            let level = self.budget.level();
            let rate = if level == Level::Stopped {
                0.0
            } else {
                self.per_second / level.factor() as f64
            };
            self.now.at += LOOK;
            self.now.cpu += LOOK.mul_f64(rate + self.fixed);
            self.budget.look(self.now)
        }
    }

    /// Checks that an agent at eight times its budget is within it after two looks, which is within a second, and says why.
    #[test]
    fn it_backs_off_within_a_second() {
        let mut world = World::new(0.8, 0.0);
        let (level, why) = world.step().unwrap();
        assert_eq!(level, Level::Halved(3));
        assert!(why.contains("0.800 CPUs"), "{why}");
        assert_eq!(world.step(), None);
        assert!(2 * LOOK < Duration::from_secs(1));
    }

    /// Checks that sampling stops where no rate is low enough, and comes back, step by step, when the cause is gone.
    #[test]
    fn it_stops_where_rates_do_not_help_and_comes_back() {
        let mut world = World::new(0.2, 0.5);
        for _ in 0..10 {
            world.step();
        }
        assert_eq!(world.budget.level(), Level::Stopped);
        world.fixed = 0.0;
        world.per_second = 0.02;
        let mut steps = 0;
        while world.budget.level() != Level::Full {
            world.step();
            steps += 1;
            assert!(steps <= (LOWEST + 1) * CALM + 1);
        }
    }

    /// Checks that an agent within its budget is left alone for ever.
    #[test]
    fn what_is_within_its_budget_is_left_alone() {
        let mut world = World::new(0.05, 0.04);
        assert!((0..1_000).all(|_| world.step().is_none()));
    }

    /// Checks that too much memory stops sampling at once.
    #[test]
    fn too_much_memory_stops_sampling() {
        let mut world = World::new(0.01, 0.0);
        world.now.memory_bytes = LIMITS.memory_bytes + 1;
        let (level, why) = world.step().unwrap();
        assert!(level == Level::Stopped && why.contains("MiB"), "{why}");
    }

    /// Checks that a budget that nobody can mean is refused by name.
    #[test]
    fn a_senseless_budget_is_refused() {
        for (cpus, memory_bytes) in [(f64::NAN, 1 << 30), (-1.0, 1 << 30), (0.001, 1 << 30), (0.5, 1)] {
            let config = BudgetConfig { cpus, memory_bytes };
            assert!(config.validate(4).unwrap_err().contains("`budget."));
        }
        assert_eq!(BudgetConfig::default().validate(4).unwrap().cpus, 1.0);
        assert_eq!(BudgetConfig::default().validate(100).unwrap().cpus, 5.0);
    }
}
