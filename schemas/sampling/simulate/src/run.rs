//! One run: ticks of a CPU that are taken, lost and thinned by chance, and weighed by the code that weighs
//! real ones.

use rand::Rng;
use rand_distr::{Distribution, Poisson};
use rand_xoshiro::Xoshiro256PlusPlus;
use strobe_sampling::plan::Plan;
use strobe_sampling::ticks::throttle_factor;
use strobe_sampling::{Counts, RunRates, Thinning, WeightError, fleet_weight, loss_factors, run_weight};

use crate::scenario::Faults;

/// CPUs of a host that differ in what they lose: enough that one can fail and others not.
const CPU_GROUPS: usize = 4;

/// A factor of the weight, or of the correction. Leaving one out must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// 1/q.
    RunProbability,
    /// L/D.
    Duration,
    /// taken/kept.
    Loss,
    /// What the kernel throttled.
    Throttle,
    /// enabled/running.
    Multiplex,
    /// 1/p_kernel.
    Kernel,
    /// 1/p_limit.
    Limit,
    /// 1/p_thin.
    Thin,
    /// c = S/U.
    Coverage,
}

impl Factor {
    /// Every factor.
    pub const ALL: [Self; 9] = [
        Self::RunProbability,
        Self::Duration,
        Self::Loss,
        Self::Throttle,
        Self::Multiplex,
        Self::Kernel,
        Self::Limit,
        Self::Thin,
        Self::Coverage,
    ];
}

/// How runs go.
#[derive(Debug)]
pub struct Runs {
    /// What goes wrong.
    pub faults: Faults,
    /// CPUs of a host.
    pub cpus: f64,
    /// L, microseconds.
    pub slot_us: u64,
    /// The factor that is left out.
    pub omit: Option<Factor>,
    groups: usize,
    /// Samples that stay, by part and group of CPUs.
    kept: Vec<[u64; CPU_GROUPS]>,
}

/// What a run sampled of one service.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// Samples taken.
    pub samples: u64,
    /// Samples that stay after losses and limits.
    pub stored: u64,
}

impl Runs {
    /// Returns the samples that stayed of each part in the run that was sampled last.
    pub fn kept(&self) -> Vec<u64> {
        self.kept.iter().map(|groups| groups.iter().sum()).collect()
    }

    /// Returns how runs go in a scenario.
    pub fn new(faults: Faults, cpus: f64, slot_us: u64, omit: Option<Factor>) -> Self {
        let uneven = faults.lost > 0.0 || faults.throttled > 0.0;
        Self {
            faults,
            cpus,
            slot_us,
            omit,
            groups: if uneven { CPU_GROUPS } else { 1 },
            kept: Vec::new(),
        }
    }

    fn leaves_out(&self, factor: Factor) -> bool {
        self.omit == Some(factor)
    }

    /// Samples a run of `done_us` in which the parts of a service used `cpu_seconds`; `weights` gets ΣW0 of
    /// each part, in nanoseconds of CPU time.
    ///
    /// # Errors
    /// [`WeightError`] where a factor is out of its range.
    pub fn sample(
        &mut self,
        rng: &mut Xoshiro256PlusPlus,
        plan: &Plan,
        done_us: u64,
        cpu_seconds: &[f64],
        weights: &mut Vec<f64>,
    ) -> Result<Taken, WeightError> {
        let faults = self.faults;
        let mut taken = Taken::default();
        let mut counts = [Counts { taken: 0, kept: 0 }; CPU_GROUPS];
        let mut factors = [1.0; CPU_GROUPS];
        self.kept.clear();
        self.kept.resize(cpu_seconds.len(), [0; CPU_GROUPS]);
        let throttled = faults.throttled > 0.0 && rng.random_bool(faults.throttled);
        let (enabled_ns, running_ns) = (done_us * 1_000, (done_us as f64 * 1e3 * faults.running) as u64);
        for group in 0..self.groups {
            let lost = if faults.lost > 0.0 {
                rng.random::<f64>() * 2.0 * faults.lost
            } else {
                0.0
            };
            // One group of the four is throttled: where, does not depend on the load.
            let ticking = if throttled && group == 0 { 0.5 } else { 1.0 };
            let share = faults.running * faults.kernel * ticking / self.groups as f64;
            let stays = (1.0 - lost) * faults.limit * faults.thin;
            // Ticks come by chance, so that those that stay, those that were thinned and those that were lost
            // are each as if they had been counted alone.
            let mut all = 0.0;
            for (part, &seconds) in cpu_seconds.iter().enumerate() {
                let mean = seconds * plan.frequency_hz * share;
                let stored = poisson(rng, mean * stays);
                self.kept[part][group] = stored;
                counts[group].kept += stored;
                all += mean;
            }
            taken.stored += counts[group].kept;
            counts[group].kept += poisson(rng, all * (1.0 - lost - stays));
            counts[group].taken = counts[group].kept + poisson(rng, all * lost);
            taken.samples += counts[group].taken;
            // Idle ticks count, too: what is missing of time × frequency is what the kernel throttled.
            let cpus = self.cpus / self.groups as f64;
            let seen = running_ns as f64 / 1e9 * plan.frequency_hz * cpus * ticking;
            let missed = throttle_factor(seen.round() as u64, running_ns, plan.frequency_hz * cpus);
            factors[group] = match self.leaves_out(Factor::Throttle) {
                true => 1.0,
                false => missed.unwrap_or(1.0),
            };
        }
        if !self.leaves_out(Factor::Loss) {
            let losses = loss_factors(&counts[..self.groups]);
            factors
                .iter_mut()
                .zip(losses)
                .for_each(|(factor, loss)| *factor *= loss);
        }
        let times = match self.leaves_out(Factor::Multiplex) {
            true => (0, 0),
            false => (enabled_ns, running_ns),
        };
        let (rates, thinning) = self.rates(plan);
        weights.clear();
        weights.resize(cpu_seconds.len(), 0.0);
        let period_ns = (1e9 / plan.frequency_hz).round() as u64;
        for group in 0..self.groups {
            let own = run_weight(period_ns, factors[group], times, &rates, thinning)?;
            let fleet = fleet_weight(own, &rates, thinning)?;
            for (weight, kept) in weights.iter_mut().zip(&self.kept) {
                *weight += kept[group] as f64 * fleet;
            }
        }
        Ok(taken)
    }

    /// Returns what the run says of itself, but for the factor that is left out.
    fn rates(&self, plan: &Plan) -> (RunRates, Thinning) {
        let unless = |factor, value: f64| if self.leaves_out(factor) { 1.0 } else { value };
        let planned_us = match self.leaves_out(Factor::Duration) {
            true => self.slot_us,
            false => plan.planned_us,
        };
        let rates = RunRates {
            run_probability: unless(Factor::RunProbability, plan.run_probability),
            kernel_probability: unless(Factor::Kernel, self.faults.kernel),
            planned_us,
            slot_us: self.slot_us,
            drawn: true,
        };
        let thinning = Thinning {
            limit: unless(Factor::Limit, self.faults.limit),
            thin: unless(Factor::Thin, self.faults.thin),
        };
        (rates, thinning)
    }
}

fn poisson(rng: &mut Xoshiro256PlusPlus, mean: f64) -> u64 {
    // A mean of nothing (or, by rounding, of a little less) has no distribution, and no tick either.
    Poisson::new(mean).map_or(0, |distribution| distribution.sample(rng) as u64)
}
