//! Which hosts there are, and in which order a request picks them.

use std::collections::HashMap;

use strobe_event::{HostRecord, Request, RequestId, WHOLE_HOST};
use strobe_sampling::hash::{Draw, Key, Purpose};

/// A host that has not been heard of for three tellings of five minutes does not live.
const SILENT_US: u64 = 900_000_000;
/// Hosts followed: ten times the largest fleets. What comes beyond is left out.
const HOSTS_MAX: usize = 1_000_000;
/// What the label of a host's region begins with.
const REGION: &str = "region=";

/// The hosts, as their agents last said.
#[derive(Debug, Default)]
pub struct Inventory {
    hosts: HashMap<String, HostRecord>,
    latest_us: u64,
}

impl Inventory {
    /// Takes in what a host says of itself.
    pub fn put(&mut self, host: HostRecord) {
        if self.hosts.len() < HOSTS_MAX || self.hosts.contains_key(&host.host) {
            self.latest_us = self.latest_us.max(host.time_us);
            self.hosts.insert(host.host.clone(), host);
        }
    }

    /// Forgets a host.
    pub fn forget(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Returns the live hosts that match, in the order in which the request picks them: by a hash of (request, host), so that
    /// each request has hosts of its own, and nobody is asked more often than others.
    pub fn ranked(&self, request: &Request) -> Vec<String> {
        let oldest_us = self.latest_us.saturating_sub(SILENT_US);
        let mut ranked: Vec<(Draw, &String)> = self
            .hosts
            .values()
            .filter(|host| host.time_us >= oldest_us && matches(host, request))
            .map(|host| (draw(request.id, &host.host), &host.host))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, host)| host.clone()).collect()
    }

    /// Returns why nothing, or too little, matches.
    pub fn why_few(&self, request: &Request) -> String {
        let mut what = Vec::new();
        for (name, value) in [
            ("service", &request.service),
            ("region", &request.region),
            ("host", &request.host),
        ] {
            if !value.is_empty() {
                what.push(format!("{name} `{value}`"));
            }
        }
        let oldest_us = self.latest_us.saturating_sub(SILENT_US);
        let live = self
            .hosts
            .values()
            .filter(|host| host.time_us >= oldest_us)
            .count();
        format!(
            "of {live} live hosts {} match {}; agents look every minute what lives on their host",
            self.ranked(request).len(),
            what.join(", ")
        )
    }
}

/// Returns the place of a host among those of a request.
fn draw(request: RequestId, host: &str) -> Draw {
    Key::new(Purpose::Request, &request.to_string(), "", host).draw(0)
}

fn matches(host: &HostRecord, request: &Request) -> bool {
    let of_service = request.service.is_empty() || host.services.contains(&request.service);
    let of_region = request.region.is_empty()
        || host
            .labels
            .iter()
            .any(|label| label.strip_prefix(REGION) == Some(request.region.as_str()));
    let of_host = request.host.is_empty() || request.host == host.host;
    of_service && of_region && of_host && host.host != WHOLE_HOST
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::{host, request};
    use super::*;

    /// Checks that what a request names is what it gets: the service, the region, the host, and only who was heard of.
    #[test]
    fn hosts_are_those_that_are_named() {
        let mut inventory = Inventory::default();
        let now = 10_000_000_000;
        inventory.put(host("a", now, &["orders"], &["region=eu"]));
        inventory.put(host("b", now, &["orders", "mail"], &["region=us"]));
        inventory.put(host("c", now - 2 * SILENT_US, &["orders"], &["region=eu"]));
        inventory.put(host("d", now, &["mail"], &[]));
        let names = |service: &str, region: &str, host: &str| {
            let mut request = request(1, 0);
            (request.service, request.region, request.host) = (service.into(), region.into(), host.into());
            let mut ranked = inventory.ranked(&request);
            ranked.sort();
            ranked
        };
        assert_eq!(names("orders", "", ""), ["a", "b"]);
        assert_eq!(names("orders", "eu", ""), ["a"]);
        assert_eq!(names("", "us", ""), ["b"]);
        assert_eq!(names("", "", "d"), ["d"]);
        assert!(names("orders", "", "d").is_empty());
        let few = inventory.why_few(&request(1, 0));
        assert!(few.contains("of 3 live hosts 2 match service `orders`"), "{few}");
    }

    /// Checks that over many requests every host is asked about as often as any other: within five standard deviations.
    #[test]
    fn nobody_is_asked_more_than_others() {
        let mut inventory = Inventory::default();
        for number in 0..20 {
            inventory.put(host(&format!("host-{number}"), 1, &["orders"], &[]));
        }
        let mut asked: BTreeMap<String, u32> = BTreeMap::new();
        for number in 0..4_000 {
            for host in inventory.ranked(&request(number, 5)).into_iter().take(5) {
                *asked.entry(host).or_default() += 1;
            }
        }
        // Each of 4,000 with probability 1/4: 1,000 expected, a standard deviation of 27.
        assert_eq!(asked.len(), 20);
        assert!(
            asked.values().all(|count| count.abs_diff(1_000) < 137),
            "{asked:?}"
        );
    }
}
