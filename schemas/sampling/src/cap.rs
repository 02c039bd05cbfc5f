//! What one host may make the fleet believe.

/// A host is believed up to this many times the median of its service's hosts.
pub const HOST_SHARE_MAX: f64 = 10.0;

/// A host that claimed more than is believed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capped {
    /// Position of the host in what was given.
    pub host: usize,
    /// What it claimed.
    pub claimed: f64,
    /// What is believed.
    pub believed: f64,
}

/// Lowers what hosts claim per run to [`HOST_SHARE_MAX`] times the median, and returns whose claims were.
///
/// The median is that of the hosts that claim anything: with most of them idle it would be 0 otherwise. Of an
/// even number the upper one, so that of two hosts neither is doubted by the other.
pub fn cap_hosts(claims: &mut [f64]) -> Vec<Capped> {
    let mut busy: Vec<f64> = claims.iter().copied().filter(|&claim| claim > 0.0).collect();
    if busy.is_empty() {
        return Vec::new();
    }
    let middle = busy.len() / 2;
    let (_, median, _) = busy.select_nth_unstable_by(middle, f64::total_cmp);
    let most = *median * HOST_SHARE_MAX;
    let mut capped = Vec::new();
    for (host, claim) in claims.iter_mut().enumerate() {
        if *claim > most {
            capped.push(Capped {
                host,
                claimed: *claim,
                believed: most,
            });
            *claim = most;
        }
    }
    capped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks that one host cannot make a service look a million times as busy, and is named.
    #[test]
    fn one_host_cannot_outweigh_the_others() {
        let mut claims = vec![1.0; 99];
        claims.push(1e9);
        let capped = cap_hosts(&mut claims);
        assert_eq!(
            capped,
            vec![Capped {
                host: 99,
                claimed: 1e9,
                believed: 10.0
            }]
        );
        assert!((claims.iter().sum::<f64>() - 109.0).abs() < 1e-9);
    }

    /// Checks that idle hosts do not make the busy ones suspect, nor one of two the other.
    #[test]
    fn idle_hosts_and_pairs_are_not_capped() {
        assert!(cap_hosts(&mut [0.0, 0.0, 0.0, 0.0, 5.0]).is_empty());
        assert!(cap_hosts(&mut [1.0, 500.0]).is_empty());
        assert!(cap_hosts(&mut []).is_empty());
    }

    proptest! {
        /// Checks that honest hosts, within ten times of one another, are believed as they are.
        #[test]
        fn hosts_that_are_alike_are_believed(claims in prop::collection::vec(1.0_f64..10.0, 1..100)) {
            let mut kept = claims.clone();
            prop_assert!(cap_hosts(&mut kept).is_empty());
            prop_assert_eq!(kept, claims);
        }
    }
}
