//! The plans in force: read from the bus, proved, and kept on disk for the next start.
//!
//! A plan that cannot be meant is refused, counted and explained in the log, and what was in force stays so. Without a bus,
//! or before the first plan has come, there is none, and the host is profiled all of the time.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use strobe_bus::{BusSettings, Compacted, Message, Shutdown, Topic};
use strobe_event::{PlanRecord, codec};
use strobe_sampling::plan::{Bounds, Plan};

use crate::error::AgentError;
use crate::procfs::wall_us;
use crate::run::PROFILER;

/// The file's name, in the agent's state folder.
pub const FILE: &str = "plans.json";
/// Plans known at one time: the services of the largest fleets. What comes beyond is counted and not followed.
const PLANS_MAX: usize = 100_000;
/// Longest wait for messages: how late a wish to stop is seen.
const WAIT: Duration = Duration::from_millis(500);
/// Pause before the bus is asked again.
const RETRY: Duration = Duration::from_secs(5);

/// The plans, shared by whoever reads them and whoever follows them.
#[derive(Debug)]
pub struct Plans {
    bounds: Bounds,
    known: Mutex<FxHashMap<String, Plan>>,
    /// Plans that cannot be meant. Healthy: 0.
    pub refused: AtomicU64,
    /// Plans that there was no room for. Healthy: 0.
    pub beyond: AtomicU64,
}

/// A plan as it is kept on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    service: String,
    plan: Plan,
}

impl Plans {
    /// Returns no plans, for a profiler with these bounds.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            known: Mutex::default(),
            refused: AtomicU64::new(0),
            beyond: AtomicU64::new(0),
        }
    }

    /// Returns the plans that the file holds; none where it cannot be read, which a first start is.
    pub fn kept(bounds: Bounds, file: &Path, now_us: u64) -> Self {
        let plans = Self::new(bounds);
        let kept: Vec<Kept> = std::fs::read(file)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        for kept in kept {
            plans.put(&kept.service, kept.plan, now_us);
        }
        plans
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Returns how many plans there are.
    pub fn len(&self) -> usize {
        self.locked().len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.locked().is_empty()
    }

    /// Returns the plans of these services.
    pub fn of<'a>(&self, services: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, Plan)> {
        let known = self.locked();
        let of = |service: &'a str| Some((service, *known.get(service)?));
        services.into_iter().filter_map(of).collect()
    }

    /// Takes in a message of the topic; returns whether anything changed.
    pub fn take(&self, message: &Message, now_us: u64) -> bool {
        let record: PlanRecord = match &message.payload {
            None => return self.end(message.key.as_deref().unwrap_or_default()),
            Some(value) => match codec::decode_framed(value) {
                Ok(record) => record,
                Err(error) => {
                    self.refuse(&format!("offset {}", message.offset), &error.to_string());
                    return false;
                }
            },
        };
        if record.profiler != PROFILER || !record.selector.is_empty() {
            return false;
        }
        let plan = Plan {
            run_probability: record.run_probability,
            planned_us: record.planned_us,
            frequency_hz: record.frequency_hz,
            keep: record.keep,
            since_us: record.since_us,
        };
        self.put(&record.service, plan, now_us)
    }

    fn put(&self, service: &str, plan: Plan, now_us: u64) -> bool {
        let plan = match self.bounds.check(plan, now_us) {
            Ok(plan) => plan,
            Err(error) => {
                self.refuse(service, &error.to_string());
                return false;
            }
        };
        let mut known = self.locked();
        if known.len() >= PLANS_MAX && !known.contains_key(service) {
            self.beyond.fetch_add(1, Relaxed);
            return false;
        }
        known.insert(service.to_owned(), plan) != Some(plan)
    }

    /// Ends the plan whose key this is: service, profiler and selector, each on a line.
    fn end(&self, key: &[u8]) -> bool {
        let key = String::from_utf8_lossy(key);
        let mut parts = key.split('\n');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(service), Some(PROFILER), Some("")) => self.locked().remove(service).is_some(),
            _ => false,
        }
    }

    fn refuse(&self, whose: &str, why: &str) {
        // Each is worth a line: plans are few, and a wrong one is somebody's mistake.
        tracing::warn!(plan = whose, why, "a plan is refused; what was in force stays so");
        self.refused.fetch_add(1, Relaxed);
    }

    fn write(&self, file: &Path) -> std::io::Result<()> {
        let kept: Vec<Kept> = self
            .locked()
            .iter()
            .map(|(service, plan)| Kept {
                service: service.clone(),
                plan: *plan,
            })
            .collect();
        write_whole(file, &serde_json::to_vec(&kept)?)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, FxHashMap<String, Plan>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a file in one step: what was there before stays until the new bytes are on the disk.
pub fn write_whole(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let next = file.with_extension("json.next");
    let mut written = File::create(&next)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    std::fs::rename(next, file)?;
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Follows the plans until the wish to stop. While the bus is away, what is known stays in force.
///
/// # Errors
/// [`AgentError::Bus`] where the agent may not read plans.
pub fn run(
    plans: &Arc<Plans>,
    bus: &BusSettings,
    file: &Path,
    shutdown: &Shutdown,
) -> Result<(), AgentError> {
    let topic = bus.topic(Topic::Plans);
    while !shutdown.is_requested() {
        let mut reader = match Compacted::open(bus, &topic) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::debug!(%error, "plans cannot be read yet");
                shutdown.wait_timeout(RETRY);
                continue;
            }
        };
        while !shutdown.is_requested() {
            let mut changed = false;
            reader.poll(WAIT, |message| changed |= plans.take(&message, wall_us()))?;
            if changed && let Err(error) = plans.write(file) {
                tracing::warn!(%error, file = %file.display(), "plans cannot be kept for the next start");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use strobe_bus::{Headers, Partition};

    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    fn record(service: &str, q: f64) -> PlanRecord {
        PlanRecord {
            service: service.to_owned(),
            profiler: PROFILER.to_owned(),
            selector: String::new(),
            run_probability: q,
            planned_us: 10_000_000,
            frequency_hz: 99.0,
            since_us: NOW,
            keep: 1.0,
            keep_since_us: 0,
            keep_before: 1.0,
            why: String::new(),
        }
    }

    fn message(key: &str, payload: Option<Vec<u8>>) -> Message {
        Message {
            partition: Partition {
                topic: "strobe.plans".into(),
                partition: 0,
            },
            offset: 3,
            timestamp_ms: None,
            key: Some(key.as_bytes().to_vec().into()),
            headers: Headers::new(),
            payload: payload.map(Into::into),
        }
    }

    fn said(record: &PlanRecord) -> Message {
        message("", Some(codec::encode_framed(record).unwrap()))
    }

    /// Checks that absurd plans, plans from the future and bytes that are none are refused and counted, and that the one in
    /// force stays.
    #[test]
    fn bad_plans_leave_what_is_in_force() {
        let plans = Plans::new(Bounds::CPU);
        assert!(plans.take(&said(&record("orders", 0.25)), NOW));
        let bad = [
            record("orders", -0.5),
            record("orders", f64::NAN),
            PlanRecord {
                planned_us: u64::MAX,
                ..record("orders", 0.5)
            },
            PlanRecord {
                frequency_hz: 1e9,
                ..record("orders", 0.5)
            },
            PlanRecord {
                since_us: NOW + 3_600_000_000,
                ..record("orders", 0.5)
            },
        ];
        for bad in &bad {
            assert!(!plans.take(&said(bad), NOW), "{bad:?}");
        }
        assert!(!plans.take(&message("", Some(b"nonsense".to_vec())), NOW));
        assert_eq!(plans.refused.load(Relaxed), bad.len() as u64 + 1);
        assert_eq!(plans.of(["orders"])[0].1.run_probability, 0.25);
    }

    /// Checks that a plan ends when its key does, and that those of other profilers and selectors are not ours.
    #[test]
    fn a_plan_ends_with_its_key() {
        let plans = Plans::new(Bounds::CPU);
        plans.take(&said(&record("orders", 0.25)), NOW);
        let other = PlanRecord {
            profiler: "heap".to_owned(),
            ..record("orders", 0.5)
        };
        assert!(!plans.take(&said(&other), NOW));
        assert!(!plans.take(&message("orders\nheap\n", None), NOW));
        assert_eq!(plans.len(), 1);
        assert!(plans.take(&message("orders\ncpu\n", None), NOW));
        assert!(plans.is_empty());
    }

    /// Checks that plans outlast a restart, and that a broken file is as good as none.
    #[test]
    fn plans_outlast_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let plans = Plans::new(Bounds::CPU);
        plans.take(&said(&record("orders", 0.25)), NOW);
        plans.write(&file).unwrap();
        let again = Plans::kept(Bounds::CPU, &file, NOW);
        assert_eq!(again.of(["orders"]), plans.of(["orders"]));
        std::fs::write(&file, b"{").unwrap();
        assert!(Plans::kept(Bounds::CPU, &file, NOW).is_empty());
    }
}
