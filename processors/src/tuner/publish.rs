//! What a closed window led to → `strobe.tuner` and `strobe.plans`.
//!
//! The state first: a plan without the state that it came from would be made once more, from less. A plan is sent when it
//! differs from what was sent last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use strobe_bus::{BusSettings, Headers, Outcome, Outgoing, ResendingProducer, Topic, WindowFull};
use strobe_event::{AuditRecord, PlanRecord, TunerRecord, codec};
use strobe_sampling::limit::{Demand, PerHour, keep_probabilities};
use strobe_sampling::slot::HOUR_US;
use strobe_sampling::tuner::{Reach, WINDOW_US};

use super::world::World;
use crate::error::ProcessorError;
use crate::tune::{Target, Tuned};

/// Bytes that a sample takes on the bus, compressed, and in the store: what the benchmarks of the wire and of storage measure,
/// rounded up. Limits on bytes are limits on samples by these.
const BUS_BYTES_PER_SAMPLE: f64 = 12.0;
const STORED_BYTES_PER_SAMPLE: f64 = 6.0;
/// Longest wait for the broker before the service is asked again whether it is to stop.
const ACKNOWLEDGED_WAIT: Duration = Duration::from_secs(30);

/// Sends plans and states.
pub struct Publisher {
    producer: ResendingProducer,
    plans: Arc<str>,
    tuner: Arc<str>,
    audit: Arc<str>,
    sent: u64,
    last: BTreeMap<Target, TunerRecord>,
}

impl Publisher {
    /// Returns one that has sent nothing.
    pub fn new(bus: &BusSettings, producer: ResendingProducer) -> Self {
        Self {
            producer,
            plans: bus.topic(Topic::Plans).into(),
            tuner: bus.topic(Topic::Tuner).into(),
            audit: bus.topic(Topic::Audit).into(),
            sent: 0,
            last: BTreeMap::new(),
        }
    }

    /// Takes what was said last, by whom ever, for what it said itself.
    pub fn know(&mut self, states: &BTreeMap<Target, TunerRecord>) {
        self.last.clone_from(states);
    }

    /// Sends what a window led to; returns the plans that were sent.
    ///
    /// # Errors
    /// [`ProcessorError::Encode`] where a name does not fit the wire.
    pub fn publish(&mut self, tuned: &Tuned, world: &World) -> Result<u64, ProcessorError> {
        let target = &tuned.target;
        let before = self.last.get(target);
        // Neighbours with stronger plans bring samples that this plan does not ask for; limits must know of them.
        let times = world.neighbours(target, tuned.decision.plan.strength()).times;
        let expected = tuned.decision.expected_per_hour * times;
        let plan = self.plan(tuned, before.map(|before| &before.plan), expected, world);
        let desired = world.desired(target);
        let record = TunerRecord {
            window_us: tuned.window_us,
            desired_per_hour: desired.map_or(0.0, |desired| desired.samples_per_hour()),
            observed_per_hour: tuned.taken as f64 * (HOUR_US / WINDOW_US) as f64,
            expected_per_hour: expected,
            reachable_per_hour: match tuned.decision.reach {
                Reach::Met => 0.0,
                Reach::Floor { at_least } => at_least,
                Reach::Unreachable { at_most } => at_most,
            },
            live_hosts: world.live_hosts(target),
            doubted: tuned
                .doubted
                .iter()
                .map(|(host, claimed, believed)| {
                    format!("{host}: {claimed:.1} busy CPUs claimed, {believed:.1} believed")
                })
                .collect(),
            same_name: tuned.same_name.clone(),
            state: serde_json::to_string(&tuned.known).map_err(ProcessorError::State)?,
            plan,
        };
        let is_new = before.is_none_or(|before| before.plan != record.plan);
        self.send(&self.tuner.clone(), &target.key(), codec::encode_framed(&record)?);
        if is_new {
            let value = codec::encode_framed(&record.plan)?;
            self.send(&self.plans.clone(), &target.key(), value);
            tracing::info!(
                service = target.service,
                profiler = target.profiler,
                q = record.plan.run_probability,
                duration_us = record.plan.planned_us,
                hz = record.plan.frequency_hz,
                keep = record.plan.keep,
                why = record.plan.why,
                "a new plan"
            );
        }
        self.last.insert(target.clone(), record);
        Ok(u64::from(is_new))
    }

    fn plan(&self, tuned: &Tuned, before: Option<&PlanRecord>, expected: f64, world: &World) -> PlanRecord {
        let plan = tuned.decision.plan;
        let end_us = tuned.window_us + WINDOW_US;
        let same = before.filter(|before| {
            before.run_probability == plan.run_probability
                && before.planned_us == plan.planned_us
                && before.frequency_hz == plan.frequency_hz
        });
        let mut record = PlanRecord {
            service: tuned.target.service.clone(),
            profiler: tuned.target.profiler.clone(),
            selector: String::new(),
            run_probability: plan.run_probability,
            planned_us: plan.planned_us,
            frequency_hz: plan.frequency_hz,
            since_us: same.map_or(end_us, |same| same.since_us),
            keep: before.map_or(1.0, |before| before.keep),
            keep_since_us: before.map_or(0, |before| before.keep_since_us),
            keep_before: before.map_or(1.0, |before| before.keep_before),
            why: same.map_or_else(|| tuned.decision.why.to_string(), |same| same.why.clone()),
        };
        // Fixed before the hour that it applies to, once for each hour.
        let next_us = (end_us / HOUR_US + 1) * HOUR_US;
        if record.keep_since_us < next_us {
            let keep = self.keep(&tuned.target, expected, world, next_us);
            if keep != record.keep {
                record.keep_before = record.keep;
                record.keep = keep;
                record.keep_since_us = next_us;
            }
        }
        record
    }

    /// Returns the share of a target's samples that limits let stay in the hour that starts at `hour_us`, with so many expected.
    fn keep(&self, target: &Target, expected_now: f64, world: &World, hour_us: u64) -> f64 {
        let Ok(limits) = world.limits().limits() else {
            return 1.0;
        };
        let team_of = &world.limits().team_of;
        let mut expected: BTreeMap<&Target, f64> = world
            .states()
            .iter()
            .map(|(target, state)| (target, state.expected_per_hour))
            .collect();
        expected.insert(target, expected_now);
        let demands: Vec<Demand<'_>> = expected
            .iter()
            .map(|(of, samples)| Demand {
                service: &of.service,
                team: team_of.get(&of.service).map_or("", String::as_str),
                expected: PerHour {
                    samples: *samples,
                    bus_bytes: samples * BUS_BYTES_PER_SAMPLE,
                    stored_bytes: samples * STORED_BYTES_PER_SAMPLE,
                },
            })
            .collect();
        let at = expected.keys().position(|of| *of == target);
        let keeps = keep_probabilities(&demands, &limits, hour_us);
        at.map_or(1.0, |at| keeps[at].probability)
    }

    /// Sends what is said for the audit.
    ///
    /// # Errors
    /// [`ProcessorError::Encode`] where a name does not fit the wire.
    pub fn audit(&mut self, record: &AuditRecord) -> Result<(), ProcessorError> {
        self.send(&self.audit.clone(), &record.who, codec::encode_framed(record)?);
        Ok(())
    }

    fn send(&mut self, topic: &Arc<str>, key: &str, value: Vec<u8>) {
        self.sent += 1;
        let mut message = Outgoing {
            topic: Arc::clone(topic),
            key: Some(key.to_owned().into()),
            headers: Headers::new(),
            payload: Some(value.into()),
        };
        while let Err(WindowFull(back)) = self.producer.push(self.sent, message) {
            message = back;
            self.take(Duration::from_millis(100));
        }
    }

    /// Takes acknowledgements.
    pub fn poll(&mut self) {
        self.take(Duration::ZERO);
    }

    fn take(&mut self, wait: Duration) {
        for outcome in self.producer.poll(wait) {
            complain(&outcome);
        }
    }

    /// Waits until the broker has everything, for a bounded time.
    ///
    /// # Errors
    /// Never: what is not acknowledged is not committed, and the next owner makes it again.
    pub fn flush(&mut self) -> Result<(), ProcessorError> {
        for outcome in self.producer.flush(ACKNOWLEDGED_WAIT) {
            complain(&outcome);
        }
        Ok(())
    }
}

fn complain(outcome: &Outcome) {
    if let Outcome::Refused { reason, message, .. } = outcome {
        tracing::error!(
            topic = &*message.topic,
            reason,
            "the broker refuses a plan or a state"
        );
    }
}
