//! What the tuner knows beside coverage: what is desired, which hosts there are, and what tuners said last.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strobe_bus::{BusSettings, Compacted, Message, Shutdown, Topic};
use strobe_event::config::CONFIG_KEY;
use strobe_event::{AuditRecord, HostRecord, PlanRecord, TunerRecord, codec};
use strobe_sampling::config::{LimitsConfig, NAME, SamplingConfig};
use strobe_sampling::neighbours::Neighbours;
use strobe_sampling::plan::Bounds;
use strobe_sampling::slot::SlotLength;
use strobe_sampling::tuner::Desired;
use strobe_signing::Signers;

use super::desired::Desires;
use crate::error::ProcessorError;
use crate::tune::{Known, Target};

/// A host that has not been heard of for three tellings of five minutes does not live.
const SILENT_US: u64 = 900_000_000;
/// Hosts followed: ten times the largest fleets. What comes beyond is left out.
const HOSTS_MAX: usize = 1_000_000;
/// CPUs of a host of which nothing is known.
const CPUS_DEFAULT: f64 = 16.0;
/// Pause before the bus is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The tables.
pub struct World {
    readers: Option<[Compacted; 3]>,
    hosts: HashMap<String, HostRecord>,
    latest_us: u64,
    states: BTreeMap<Target, TunerRecord>,
    desires: Desires,
    /// Live hosts of each service, and CPUs of its largest; made anew when hosts changed.
    services: HashMap<String, (u64, u32)>,
    changed: bool,
}

/// Which table a message is of.
const HOSTS: usize = 0;
const STATES: usize = 1;

impl World {
    /// Returns a world of which nothing is known yet; these may configure it.
    pub fn new(signers: Arc<Signers>) -> Self {
        Self {
            readers: None,
            hosts: HashMap::new(),
            latest_us: 0,
            states: BTreeMap::new(),
            desires: Desires::new(signers),
            services: HashMap::new(),
            changed: false,
        }
    }

    /// Opens the tables and reads all that is there. Waits for the bus until the wish to stop.
    ///
    /// # Errors
    /// [`ProcessorError::Bus`] where waiting does not heal it.
    pub fn open(&mut self, bus: &BusSettings, shutdown: &Shutdown) -> Result<(), ProcessorError> {
        while !shutdown.is_requested() {
            let open = |topic| Compacted::open(bus, &bus.topic(topic));
            let opened =
                open(Topic::Hosts).and_then(|hosts| Ok([hosts, open(Topic::Tuner)?, open(Topic::Config)?]));
            match opened {
                Ok(readers) => {
                    self.readers = Some(readers);
                    return self.catch_up_at_last(shutdown, || ());
                }
                Err(error) => {
                    tracing::warn!(%error, "the tables cannot be read yet");
                    shutdown.wait_timeout(RETRY);
                }
            }
        }
        Ok(())
    }

    /// Reads what has come.
    ///
    /// # Errors
    /// As [`Compacted::poll`].
    pub fn poll(&mut self) -> Result<(), ProcessorError> {
        self.each(|reader, take| reader.poll(Duration::ZERO, take))?;
        self.desires.expire(SystemTime::now());
        Ok(())
    }

    /// Reads all that there is now: what another tuner said before it gave its partitions up is there already, and so is who
    /// lived and what was desired before any record of coverage that was read.
    ///
    /// # Errors
    /// As [`Compacted::catch_up_now`].
    pub fn catch_up(&mut self) -> Result<(), ProcessorError> {
        self.each(|reader, take| reader.catch_up_now(take))
    }

    /// Like [`World::catch_up`], again and again while the bus has trouble that passes, until the wish to stop; `beat` is called each time.
    ///
    /// # Errors
    /// As [`Compacted::catch_up_now`], where waiting does not heal it.
    pub fn catch_up_at_last(&mut self, shutdown: &Shutdown, beat: impl Fn()) -> Result<(), ProcessorError> {
        loop {
            beat();
            match self.catch_up() {
                Err(error) if error.is_transient() => {
                    if shutdown.is_requested() {
                        return Ok(());
                    }
                    tracing::warn!(%error, "the tables are read again");
                    shutdown.wait_timeout(RETRY);
                }
                other => return other,
            }
        }
    }

    fn each(
        &mut self,
        mut read: impl FnMut(&mut Compacted, &mut dyn FnMut(Message)) -> Result<(), strobe_bus::Error>,
    ) -> Result<(), ProcessorError> {
        let Some(mut readers) = self.readers.take() else {
            return Ok(());
        };
        let mut result = Ok(());
        for (table, reader) in readers.iter_mut().enumerate() {
            result = read(reader, &mut |message| self.take(table, &message));
            if result.is_err() {
                break;
            }
        }
        self.readers = Some(readers);
        self.count();
        Ok(result?)
    }

    fn take(&mut self, table: usize, message: &Message) {
        let key = String::from_utf8_lossy(message.key.as_deref().unwrap_or_default()).into_owned();
        let unreadable = |what: &dyn std::fmt::Display| {
            tracing::warn!(partition = %message.partition, offset = message.offset, "left out: {what}");
        };
        match (table, &message.payload) {
            (HOSTS, None) => {
                self.hosts.remove(&key);
                self.changed = true;
            }
            (HOSTS, Some(value)) => match codec::decode_framed::<HostRecord>(value) {
                Ok(host) if self.hosts.len() < HOSTS_MAX || self.hosts.contains_key(&key) => {
                    self.latest_us = self.latest_us.max(host.time_us);
                    self.hosts.insert(key, host);
                    self.changed = true;
                }
                Ok(_) => {}
                Err(error) => unreadable(&error),
            },
            (STATES, None) => {
                self.states.retain(|target, _| target.key() != key);
            }
            (STATES, Some(value)) => match codec::decode_framed::<TunerRecord>(value) {
                Ok(state) => {
                    let target = Target {
                        service: state.plan.service.clone(),
                        profiler: state.plan.profiler.clone(),
                    };
                    self.states.insert(target, state);
                }
                Err(error) => unreadable(&error),
            },
            (_, value) if key == NAME => {
                let value = value.as_deref().unwrap_or(b"{}");
                match SamplingConfig::from_json(value) {
                    Ok(config) => self.desires.set(config),
                    Err(error) => unreadable(&format!("{NAME}: {error}; what was in force stays so")),
                }
            }
            (_, value) if key == CONFIG_KEY => {
                let place = format!("{}@{}", message.partition, message.offset);
                let taken_us = message.taken_us();
                self.desires
                    .take(&place, value.as_deref(), taken_us, SystemTime::now());
            }
            _ => {}
        }
    }

    fn count(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let mut services: HashMap<String, (u64, u32)> = HashMap::new();
        for host in self.live() {
            for service in &host.services {
                let (hosts, cpus) = services.entry(service.clone()).or_default();
                *hosts += 1;
                *cpus = host.cpus.max(*cpus);
            }
        }
        self.services = services;
    }

    /// Returns what tuners knew when they were last heard of. A state that cannot be read is begun anew.
    pub fn tuners(&self) -> Vec<(Target, Known)> {
        let read = |(target, state): (&Target, &TunerRecord)| match serde_json::from_str(&state.state) {
            Ok(known) => Some((target.clone(), known)),
            Err(error) => {
                tracing::warn!(%error, ?target, "the state of a tuner cannot be read; it begins anew");
                None
            }
        };
        self.states.iter().filter_map(read).collect()
    }

    /// Returns what tuners said last.
    pub fn states(&self) -> &BTreeMap<Target, TunerRecord> {
        &self.states
    }

    /// Returns the limits in force.
    pub fn limits(&self) -> &LimitsConfig {
        self.desires.limits()
    }

    /// Returns what is to be said for the audit, and how many configurations were refused since it was asked last.
    pub fn take_said(&mut self) -> (Vec<AuditRecord>, u64) {
        self.desires.take_said()
    }

    /// Returns the bounds of a profiler of which anything is desired.
    pub fn bounds(&self, profiler: &str) -> Option<Bounds> {
        self.desires.of_any(profiler)?.bounds().ok()
    }

    /// Returns the length of slots: all profilers of a fleet have the same.
    pub fn slot(&self) -> SlotLength {
        let us = self
            .desires
            .slot_s()
            .map(|seconds| (seconds * 1e6).round() as u64);
        us.and_then(|us| SlotLength::new(us).ok())
            .unwrap_or(SlotLength::MINUTE)
    }

    /// Returns what is desired of a target.
    pub fn desired(&self, target: &Target) -> Option<Desired> {
        let cpus = self
            .services
            .get(&target.service)
            .map(|(_, cpus)| f64::from(*cpus));
        let cpus = cpus.filter(|cpus| *cpus >= 1.0).unwrap_or(CPUS_DEFAULT);
        let profiler = self.desires.of(&target.service, &target.profiler)?;
        profiler.desired(cpus).ok()
    }

    /// Returns how a target shares its hosts, with `own` as the strength of its plan.
    pub fn neighbours(&self, target: &Target, own: f64) -> Neighbours {
        let others = self
            .states
            .iter()
            .filter(|(other, _)| other.profiler == target.profiler);
        let mut strengths: HashMap<&str, f64> = others
            .map(|(other, state)| (other.service.as_str(), strength(&state.plan)))
            .collect();
        strengths.insert(&target.service, own);
        let services = self.live().map(|host| host.services.as_slice());
        Neighbours::of(&target.service, services, &strengths)
    }

    fn live(&self) -> impl Iterator<Item = &HostRecord> {
        let oldest_us = self.latest_us.saturating_sub(SILENT_US);
        self.hosts.values().filter(move |host| host.time_us >= oldest_us)
    }

    /// Returns on how many hosts a target's service lives.
    pub fn live_hosts(&self, target: &Target) -> u64 {
        self.services.get(&target.service).map_or(0, |(hosts, _)| *hosts)
    }
}

/// Returns q·D·f of a plan.
pub fn strength(plan: &PlanRecord) -> f64 {
    plan.run_probability * plan.planned_us as f64 / 1e6 * plan.frequency_hz
}
