//! What a service yields among its neighbours: a host with several services follows the strongest of their plans, for all of them.
//!
//! So a service whose hosts are shared with one that needs more gets more samples than it desires. Its own plan is not lowered for it
//! (nothing would be left of it where it lives alone, and it would starve when the other leaves), and nothing is thinned for it (who
//! wants less on the bus says so as a limit): weights undo it. But limits must know what will come, and people must be told why.

use std::collections::{BTreeMap, HashMap};

/// How the hosts of a service are shared.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Neighbours {
    /// Hosts of the service.
    pub hosts: u64,
    /// Those that follow another service's plan, by its name.
    pub led: BTreeMap<String, u64>,
    /// How many times as many samples come as by its own plan alone, on hosts that are equally busy.
    pub times: f64,
}

impl Neighbours {
    /// Returns how `service` shares its hosts. `hosts` are the services of each host of the fleet, `strengths` the strengths of the
    /// plans in force (q·D·f) for one profiler.
    pub fn of<'a>(
        service: &str,
        hosts: impl IntoIterator<Item = &'a [String]>,
        strengths: &HashMap<&str, f64>,
    ) -> Self {
        let own = strengths.get(service).copied().unwrap_or(0.0);
        let mut found = Self::default();
        let mut sum = 0.0;
        for services in hosts {
            if !services.iter().any(|there| there == service) {
                continue;
            }
            found.hosts += 1;
            let others = services.iter().filter_map(|there| {
                let strength = strengths.get(there.as_str())?;
                (*strength > own).then_some((there, *strength))
            });
            // Equal ones are decided by name, as hosts do.
            let strongest = others.max_by(|a, b| a.1.total_cmp(&b.1).then_with(|| b.0.cmp(a.0)));
            sum += strongest.map_or(own, |(_, strength)| strength);
            if let Some((other, _)) = strongest {
                *found.led.entry(other.clone()).or_default() += 1;
            }
        }
        found.times = if own > 0.0 && found.hosts > 0 {
            sum / (own * found.hosts as f64)
        } else {
            1.0
        };
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{Bounds, Plan, choose};

    fn names(services: &[&str]) -> Vec<String> {
        services.iter().map(|service| (*service).to_owned()).collect()
    }

    /// Checks that a service that shares two of three hosts with one that needs four times as much yields three times what its own
    /// plan would, and that the other yields what its own does.
    #[test]
    fn the_stronger_neighbour_leads_on_shared_hosts() {
        let hosts = [
            names(&["web", "batch"]),
            names(&["batch", "web"]),
            names(&["web"]),
        ];
        let strengths = HashMap::from([("web", 0.5), ("batch", 2.0)]);
        let web = Neighbours::of("web", hosts.iter().map(Vec::as_slice), &strengths);
        assert_eq!((web.hosts, web.times), (3, 3.0));
        assert_eq!(web.led, BTreeMap::from([("batch".to_owned(), 2)]));
        let batch = Neighbours::of("batch", hosts.iter().map(Vec::as_slice), &strengths);
        assert_eq!((batch.hosts, batch.times), (2, 1.0));
        assert!(batch.led.is_empty());
        let nobody = Neighbours::of("nobody", hosts.iter().map(Vec::as_slice), &strengths);
        assert_eq!((nobody.hosts, nobody.times), (0, 1.0));
    }

    proptest! {
        /// Checks that it is the choice that hosts make: what comes is the sum of the strengths of the plans that they choose.
        #[test]
        fn it_is_what_hosts_choose(
            strengths in prop::collection::vec(1e-2_f64..1.0, 4),
            hosts in prop::collection::vec(prop::collection::btree_set(0_usize..4, 1..5), 1..10),
        ) {
            let all = ["a", "b", "c", "d"];
            let plan = |q: f64| Plan {
                run_probability: q,
                planned_us: 10_000_000,
                frequency_hz: 99.0,
                keep: 1.0,
                since_us: 0,
            };
            let hosts: Vec<Vec<String>> = hosts
                .iter()
                .map(|there| there.iter().map(|&service| all[service].to_owned()).collect())
                .collect();
            let named: HashMap<&str, f64> = all.iter().zip(&strengths).map(|(&name, &q)| (name, plan(q).strength())).collect();
            let found = Neighbours::of("a", hosts.iter().map(Vec::as_slice), &named);
            let (mut sum, mut led) = (0.0, 0);
            for there in hosts.iter().filter(|there| there.iter().any(|service| service == "a")) {
                let plans = all.iter().zip(&strengths).filter(|(name, _)| there.iter().any(|service| service == *name));
                let choice = choose(&Bounds::CPU, plans.map(|(&name, &q)| (name, plan(q))));
                sum += choice.plan.strength();
                led += u64::from(choice.service != Some("a"));
            }
            prop_assert_eq!(found.led.values().sum::<u64>(), led);
            let yielded = found.times * named["a"] * found.hosts as f64;
            prop_assert!((yielded - sum).abs() < 1e-6, "{} {}", yielded, sum);
        }
    }
}
