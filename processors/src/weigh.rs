//! Stage 12: counts → weights, by the formulas of `strobe-sampling`.

use std::collections::HashMap;

use strobe_event::{Cause, CpuCounts, RawBatch, Weight};
use strobe_sampling::hash::Probability;
use strobe_sampling::ticks::{CpuTicks, is_ticking, tick_factors};
use strobe_sampling::{Counts, RunRates, Thinning, WeightError, fleet_weight, loss_factors, run_weight};

/// The weights of a batch: the distinct ones, and which of them each sample has.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighed {
    /// Distinct weights.
    pub weights: Vec<Weight>,
    /// Index into `weights`, one for each sample.
    pub of_sample: Vec<u32>,
}

/// Why a batch cannot be weighed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WeighError {
    /// A sample comes from a CPU that the batch has no counts of.
    #[error("a sample comes from CPU {0}, which the batch does not count")]
    UnknownCpu(u32),
    /// The counts do not give a weight.
    #[error("CPU {cpu}: {source}")]
    NoWeight {
        /// The CPU whose counts they are.
        cpu: u32,
        /// What is wrong with them.
        source: WeightError,
    },
}

/// Returns the weights of a validated batch's samples.
///
/// What a CPU took and lost is carried by what was kept of it, see [`loss_factors`]; of a profiler that ticks, what the kernel
/// left out unseen is too, see [`tick_factors`]. A batch without any counts (a part
/// of a split one) cannot be weighed: weights are formed before it is split.
///
/// # Errors
/// [`WeighError`] where the counts do not fit the samples.
pub fn weigh(batch: &RawBatch) -> Result<Weighed, WeighError> {
    weigh_kept(batch, None)
}

/// Returns the weights of a validated batch's samples, of which limits let a share stay, given for each process.
///
/// # Errors
/// As [`weigh`].
pub fn weigh_kept(batch: &RawBatch, shares: Option<&[Probability]>) -> Result<Weighed, WeighError> {
    let run = &batch.run;
    let rates = RunRates {
        run_probability: run.run_probability,
        kernel_probability: run.kernel_probability,
        planned_us: run.planned_us,
        slot_us: run.slot_us,
        drawn: run.cause == Cause::Continuous as u8,
    };
    let factors = factors(batch);
    let places: HashMap<u32, usize> = batch
        .cpus
        .iter()
        .enumerate()
        .map(|(at, cpu)| (cpu.cpu, at))
        .collect();

    let samples = &batch.samples;
    let mut weighed = Weighed {
        weights: Vec::new(),
        of_sample: Vec::with_capacity(samples.len()),
    };
    // Nearly always one weight for each CPU; values that differ from sample to sample make more.
    let mut known: HashMap<(u32, u64, u64), u32> = HashMap::new();
    let mut last: Option<((u32, u64, u64), u32)> = None;
    for (index, &cpu) in samples.cpu.iter().enumerate() {
        let value = samples.value.get(index).copied().unwrap_or(run.period);
        let share = shares.map_or(1.0, |shares| {
            let process = batch.threads.process[samples.thread[index] as usize];
            shares[process as usize].get()
        });
        let key = (cpu, value, share.to_bits());
        let at = match last {
            Some((last_key, at)) if last_key == key => at,
            _ => match known.get(&key) {
                Some(&at) => at,
                None => {
                    let place = *places.get(&cpu).ok_or(WeighError::UnknownCpu(cpu))?;
                    let weight = one(value, factors[place], &batch.cpus[place], &rates, share)
                        .map_err(|source| WeighError::NoWeight { cpu, source })?;
                    // At most one for each sample, so that the index fits.
                    let at = weighed.weights.len() as u32;
                    weighed.weights.push(weight);
                    known.insert(key, at);
                    at
                }
            },
        };
        last = Some((key, at));
        weighed.of_sample.push(at);
    }
    Ok(weighed)
}

/// Returns how many samples a kept one of each CPU stands for.
fn factors(batch: &RawBatch) -> Vec<f64> {
    let counts = |cpu: &CpuCounts| Counts {
        taken: cpu.taken,
        kept: cpu.kept,
    };
    if is_ticking(&batch.run.profiler) && batch.run.period > 0 {
        let ticks: Vec<CpuTicks> = batch
            .cpus
            .iter()
            .map(|cpu| CpuTicks {
                counts: counts(cpu),
                idle: cpu.idle,
                running_ns: cpu.running_ns,
            })
            .collect();
        return tick_factors(&ticks, 1e9 / batch.run.period as f64);
    }
    let counts: Vec<Counts> = batch.cpus.iter().map(counts).collect();
    loss_factors(&counts)
}

fn one(value: u64, loss: f64, cpu: &CpuCounts, rates: &RunRates, share: f64) -> Result<Weight, WeightError> {
    let times = (cpu.enabled_ns, cpu.running_ns);
    let thinning = Thinning {
        limit: share,
        ..Thinning::NONE
    };
    let own = run_weight(value, loss, times, rates, thinning)?;
    Ok(Weight {
        run: own,
        fleet: fleet_weight(own, rates, thinning)?,
    })
}

#[cfg(test)]
mod tests {
    use strobe_event::synthetic::{self, Shape};

    use super::*;

    fn batch() -> RawBatch {
        synthetic::raw_batch(
            &Shape {
                samples: 1_000,
                ..Shape::default()
            },
            7,
        )
    }

    fn total(batch: &RawBatch) -> (f64, f64) {
        let weighed = weigh(batch).unwrap();
        weighed.of_sample.iter().fold((0.0, 0.0), |(run, fleet), &at| {
            let weight = weighed.weights[at as usize];
            (run + weight.run, fleet + weight.fleet)
        })
    }

    /// Checks that samples lost on one CPU are carried by those that were kept: the total is what was taken.
    #[test]
    fn what_was_lost_is_carried_by_what_was_kept() {
        let mut batch = batch();
        batch.samples.value.clear();
        batch
            .cpus
            .iter_mut()
            .for_each(|cpu| (cpu.taken, cpu.enabled_ns) = (3 * cpu.kept, cpu.running_ns));
        let (run, _) = total(&batch);
        let truth = 3.0 * batch.samples.len() as f64 * batch.run.period as f64;
        assert!((run / truth - 1.0).abs() < 1e-9, "{run} of {truth}");
    }

    /// Checks that halving a run's probability doubles what its samples stand for in the fleet.
    #[test]
    fn rarer_runs_weigh_more() {
        let mut batch = batch();
        let (run, fleet) = total(&batch);
        batch.run.run_probability /= 2.0;
        let (run_half, fleet_half) = total(&batch);
        assert!((run_half / run - 1.0).abs() < 1e-9);
        assert!((fleet_half / fleet - 2.0).abs() < 1e-9);
    }

    /// Checks that a run that somebody asked for leaves the totals of the fleet alone.
    #[test]
    fn a_run_on_demand_has_no_weight_in_the_fleet() {
        let mut batch = batch();
        batch.run.cause = Cause::OnDemand as u8;
        let (run, fleet) = total(&batch);
        assert!(run > 0.0);
        assert_eq!(fleet, 0.0);
    }

    /// Checks that a sample from a CPU without counts is refused, not weighed by guess.
    #[test]
    fn a_sample_from_an_uncounted_cpu_is_refused() {
        let mut batch = batch();
        let cpu = batch.samples.cpu[0];
        batch.cpus.retain(|counts| counts.cpu != cpu);
        assert_eq!(weigh(&batch), Err(WeighError::UnknownCpu(cpu)));
    }
}
