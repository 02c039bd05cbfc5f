//! What the journeys share: known input, and the comparison of what is stored with it.
#![allow(dead_code, reason = "each journey uses its part")]
#![allow(missing_docs, reason = "seen by the journeys alone")]

pub mod feed;
pub mod truth;
pub mod workload;

use anyhow::Result;
use strobe_bus::{Bus, BusSettings};
use strobe_integration_tests::Cluster;

/// Returns the cluster's bus, as any client of it sees it.
pub fn bus(cluster: &Cluster) -> Result<BusSettings> {
    let bus = Bus {
        bootstrap: cluster.bootstrap()?,
        topic_prefix: cluster.topic_prefix(),
        ..Bus::default()
    };
    Ok(bus.validate()?)
}

pub fn now_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// A number that differs from call to call and from process to process.
pub fn any_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}
