//! Loss factors: how much more a kept sample stands for, because others were taken and lost.

/// A factor is formed from at least so many taken samples: below, chance decides it (1 lost of 2 would double a weight).
pub const POOL_TAKEN_MIN: u64 = 30;

/// What one CPU counted in a batch's interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Samples taken: kept and lost.
    pub taken: u64,
    /// Samples kept.
    pub kept: u64,
}

/// Returns taken ÷ kept for each CPU, pooled until at least [`POOL_TAKEN_MIN`] were taken and one was kept.
///
/// CPUs are pooled from the least busy up, so that a busy one keeps a factor of its own. What has kept nothing is
/// pooled upward, never dropped: the sum over the CPUs of kept × factor is the sum of taken, as long as anything was
/// kept at all. Where nothing was kept every factor is 1 (there is no sample that it could apply to). A CPU that claims
/// to have kept more than it took is counted as having taken what it kept.
pub fn loss_factors(cpus: &[Counts]) -> Vec<f64> {
    let taken = |cpu: usize| cpus[cpu].taken.max(cpus[cpu].kept);
    let mut by_taken: Vec<usize> = (0..cpus.len()).collect();
    by_taken.sort_by_key(|&cpu| taken(cpu));

    let mut pools: Vec<Pool> = Vec::new();
    let mut open = Pool::default();
    for cpu in by_taken {
        open.members.push(cpu);
        open.taken = open.taken.saturating_add(taken(cpu));
        open.kept = open.kept.saturating_add(cpus[cpu].kept);
        if open.taken >= POOL_TAKEN_MIN && open.kept > 0 {
            pools.push(std::mem::take(&mut open));
        }
    }
    // What is left over (the busiest CPU kept nothing, or there was too little in all) joins the pools below it.
    while !open.members.is_empty() && (open.kept == 0 || open.taken < POOL_TAKEN_MIN) {
        let Some(below) = pools.pop() else { break };
        open.members.extend(below.members);
        open.taken = open.taken.saturating_add(below.taken);
        open.kept = open.kept.saturating_add(below.kept);
    }
    pools.push(open);

    let mut factors = vec![1.0; cpus.len()];
    for pool in pools.iter().filter(|pool| pool.kept > 0) {
        let factor = pool.taken as f64 / pool.kept as f64;
        pool.members.iter().for_each(|&cpu| factors[cpu] = factor);
    }
    factors
}

#[derive(Default)]
struct Pool {
    members: Vec<usize>,
    taken: u64,
    kept: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(pairs: &[(u64, u64)]) -> Vec<Counts> {
        pairs
            .iter()
            .map(|&(taken, kept)| Counts { taken, kept })
            .collect()
    }

    /// Checks that a CPU with enough samples has a factor of its own, however much its neighbour lost.
    #[test]
    fn a_busy_cpu_keeps_its_own_factor() {
        assert_eq!(loss_factors(&counts(&[(100, 100), (200, 50)])), vec![1.0, 4.0]);
    }

    /// Checks that few samples are pooled: one lost of two does not double a weight.
    #[test]
    fn few_samples_are_pooled() {
        assert_eq!(
            loss_factors(&counts(&[(2, 1), (99, 100 - 1)])),
            vec![101.0 / 100.0; 2]
        );
    }

    /// Checks that a CPU that kept nothing is carried by the others.
    #[test]
    fn what_kept_nothing_is_carried_by_the_others() {
        assert_eq!(loss_factors(&counts(&[(40, 40), (60, 0)])), vec![2.5, 2.5]);
    }

    proptest! {
        /// Checks that nothing is lost and nothing invented: kept times factor adds up to taken.
        #[test]
        fn kept_times_factor_adds_up_to_taken(
            pairs in prop::collection::vec((0_u64..500, 0_u64..500), 1..64),
        ) {
            let cpus: Vec<_> = pairs.iter().map(|&(a, b)| Counts { taken: a.max(b), kept: a.min(b) }).collect();
            let factors = loss_factors(&cpus);
            let kept: u64 = cpus.iter().map(|cpu| cpu.kept).sum();
            prop_assume!(kept > 0);
            let taken: u64 = cpus.iter().map(|cpu| cpu.taken).sum();
            let carried: f64 = cpus.iter().zip(&factors).map(|(cpu, factor)| cpu.kept as f64 * factor).sum();
            prop_assert!((carried - taken as f64).abs() <= 1e-9 * taken as f64, "{carried} of {taken}");
        }

        /// Checks that a factor never comes from fewer taken samples than the bound, unless the batch has no more.
        #[test]
        fn no_loss_means_no_factor(taken in prop::collection::vec(0_u64..100, 1..64)) {
            let cpus: Vec<_> = taken.iter().map(|&taken| Counts { taken, kept: taken }).collect();
            prop_assert!(loss_factors(&cpus).iter().all(|&factor| factor == 1.0));
        }
    }
}
