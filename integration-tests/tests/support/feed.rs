//! A host without a profiler: batches of a synthetic workload on `strobe.stacks.raw`, as an agent's spool would send them.

use std::time::Duration;

use anyhow::{Result, ensure};
use strobe_bus::{Meta, Outcome, Outgoing, ResendingProducer, Topic, WindowFull, WindowLimits};
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{CoverageRecord, CpuSource, Epoch, Identity, RawBatch, RunEvent, RunState, codec};
use strobe_integration_tests::Cluster;

use super::truth::Truth;
use super::{any_number, bus, now_us};

/// Longest wait for acknowledgements, a broker's absence included.
const ACKNOWLEDGED: Duration = Duration::from_secs(90);

/// A run of one host.
pub struct Feed {
    workload: Workload,
    producer: ResendingProducer,
    topics: [String; 2],
    host: String,
    epoch: Epoch,
    next_sequence: u64,
    next_index: u32,
    start_us: u64,
    end_us: u64,
    pushed: u64,
    decided: u64,
    /// What was sent.
    pub truth: Truth,
}

impl Feed {
    /// Returns the host, at the start of its run.
    pub fn new(cluster: &Cluster, host: &str) -> Result<Self> {
        Self::shaped(
            cluster,
            host,
            Shape {
                samples: 120,
                depth: 12,
                ..Shape::default()
            },
        )
    }

    /// Returns the host with a workload of another shape.
    pub fn shaped(cluster: &Cluster, host: &str, shape: Shape) -> Result<Self> {
        let bus = bus(cluster)?;
        let seed = any_number();
        let mut feed = Self {
            workload: Workload::new(shape, seed),
            producer: ResendingProducer::new(&bus, WindowLimits::default())?,
            topics: [bus.topic(Topic::StacksRaw), bus.topic(Topic::Runs)],
            host: host.to_owned(),
            epoch: Epoch((u128::from(any_number()) << 64 | u128::from(any_number())).to_be_bytes()),
            next_sequence: 0,
            next_index: 0,
            start_us: now_us() - 120_000_000,
            end_us: 0,
            pushed: 0,
            decided: 0,
            truth: Truth::default(),
        };
        feed.event(RunState::Started)?;
        Ok(feed)
    }

    /// Returns the next batch, with its identity, without sending it.
    pub fn next_batch(&mut self) -> (Identity, RawBatch) {
        let mut batch = self.workload.raw_batch(self.next_index);
        // The workload lives in a time of its own; its first batch begins with the run.
        let since_start = batch.start_us - batch.run.started_us;
        let length = batch.end_us - batch.start_us;
        batch.run.host.clone_from(&self.host);
        batch.run.started_us = self.start_us;
        batch.start_us = self.start_us + since_start;
        batch.end_us = batch.start_us + length;
        self.end_us = batch.end_us;
        self.next_index += 1;
        (self.identity(), batch)
    }

    /// Lets the batches from here on be of another time: so long ago.
    pub fn begin_again(&mut self, ago: Duration) {
        self.start_us = now_us() - ago.as_micros() as u64;
    }

    fn identity(&mut self) -> Identity {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Identity {
            host: self.host.clone(),
            epoch: self.epoch,
            sequence,
            part: 0,
        }
    }

    /// Returns the message that carries a batch.
    pub fn message(&self, identity: Identity, batch: &RawBatch) -> Result<Outgoing> {
        let meta = Meta {
            identity,
            run: batch.run.id,
            samples: batch.samples.len() as u64,
        };
        Ok(Outgoing {
            topic: self.topics[0].as_str().into(),
            key: Some(self.host.clone().into()),
            headers: meta.to_headers(),
            payload: Some(codec::encode_framed(batch)?.into()),
        })
    }

    /// Sends so many batches; acknowledgements may come later.
    pub fn send(&mut self, batches: usize) -> Result<()> {
        for _ in 0..batches {
            let (identity, batch) = self.next_batch();
            let message = self.message(identity.clone(), &batch)?;
            self.truth.add(&identity, &batch);
            self.push(message)?;
        }
        Ok(())
    }

    /// Sends any message.
    pub fn push(&mut self, mut message: Outgoing) -> Result<()> {
        self.pushed += 1;
        while let Err(WindowFull(back)) = self.producer.push(self.pushed, message) {
            message = back;
            self.take(Duration::from_millis(100))?;
        }
        self.take(Duration::ZERO)
    }

    fn take(&mut self, wait: Duration) -> Result<()> {
        let outcomes = self.producer.poll(wait);
        self.decide(outcomes)
    }

    fn decide(&mut self, outcomes: Vec<Outcome>) -> Result<()> {
        for outcome in outcomes {
            ensure!(matches!(outcome, Outcome::Acknowledged { .. }), "{outcome:?}");
            self.decided += 1;
        }
        Ok(())
    }

    /// Waits until the broker has everything.
    pub fn flush(&mut self) -> Result<()> {
        let outcomes = self.producer.flush(ACKNOWLEDGED);
        self.decide(outcomes)?;
        ensure!(
            self.decided == self.pushed,
            "{} of {} messages were acknowledged",
            self.decided,
            self.pushed
        );
        Ok(())
    }

    fn event_now(&self, state: RunState) -> RunEvent {
        let mut run = self.workload.raw_batch(0).run;
        run.host.clone_from(&self.host);
        run.started_us = self.start_us;
        let samples = self.truth.samples();
        let finished = state == RunState::Finished;
        RunEvent {
            state: state as u8,
            time_us: if finished { self.end_us } else { self.start_us },
            detail: String::new(),
            taken: samples,
            spooled: samples,
            idle: 0,
            batches: self.truth.batches(),
            drops: Vec::new(),
            done_us: self.end_us.saturating_sub(self.start_us),
            run,
        }
    }

    /// Returns the value of an event of the run, whole.
    pub fn framed_event(&self) -> Result<Vec<u8>> {
        Ok(codec::encode_framed(&self.event_now(RunState::Started))?)
    }

    /// Returns what became of a slot that ran whole.
    pub fn coverage(&self) -> CoverageRecord {
        let until_us = self.start_us.max(1);
        CoverageRecord {
            service: "orders".to_owned(),
            profiler: "cpu".to_owned(),
            host: self.host.clone(),
            slot_us: 60_000_000,
            hour: (until_us - 1) / 3_600_000_000,
            until_us,
            revision: 1,
            planned: 1,
            refused: 0,
            complete: 1,
            cut_short: 0,
            drawn_inverse: 1.0,
            done_us: 60_000_000,
            taken: 6_060,
            cpu_us: 60_000_000,
            cpu_source: CpuSource::Processes as u8,
            runs: 1,
            u: 1.0,
            uu: 1.0,
            t: 1.0,
            tt: 1.0,
            tu: 1.0,
        }
    }

    fn event(&mut self, state: RunState) -> Result<()> {
        let event = self.event_now(state);
        let meta = Meta {
            identity: self.identity(),
            run: event.run.id,
            samples: 0,
        };
        self.push(Outgoing {
            topic: self.topics[1].as_str().into(),
            key: Some(self.host.clone().into()),
            headers: meta.to_headers(),
            payload: Some(codec::encode_framed(&event)?.into()),
        })
    }

    /// Ends the run: its accounting is on the bus, and the broker has everything.
    pub fn finish(&mut self) -> Result<()> {
        self.event(RunState::Finished)?;
        self.flush()
    }
}
