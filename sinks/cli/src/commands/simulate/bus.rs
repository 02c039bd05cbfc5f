//! A simulated fleet on a real bus: its hosts report to `strobe.coverage` and `strobe.hosts`, their samples go to `strobe.stacks.raw`,
//! and the plans are those of `strobe run tuner`. Processor and sink do the rest as with any fleet.
//!
//! Event time is the scenario's, shifted by whole weeks to end lately: what is older than the store keeps is gone at once. The
//! simulator waits for the tuner after each window of five virtual minutes, so that a slow machine gives the same result.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use strobe_bus::{
    BusSettings, Compacted, Headers, Meta, Outcome, Outgoing, ResendingProducer, Topic, WindowFull,
    WindowLimits,
};
use strobe_event::{
    Binary, BinaryKind, BuildId, Cause, CoverageRecord, CpuCounts, CpuSource, DropCount, DropReason, Epoch,
    Frames, HostRecord, Identity, PlanRecord, Process, RawBatch, RunHead, RunId, Samples, StackEnd, Stacks,
    Threads, TunerRecord, codec, raw::BATCH_SAMPLES_MAX,
};
use strobe_sampling::config::{ProfilerConfig, SamplingConfig};
use strobe_sampling::plan::Plan;
use strobe_sampling::slot::DAY_US;
use strobe_sampling::tuner::WINDOW_US;
use strobe_simulate::{FIRST_DAY, Faults, HourReport, Outside, OutsideError, RunReport, Scenario, World};

use crate::commands::sampling::put;
use crate::error::CliError;
use crate::times::now_us;

/// The prefix of a site's own topics.
const OWN_PREFIX: &str = "strobe.";
const PROFILER: &str = "cpu";
const WEEK_US: u64 = 7 * DAY_US;
/// Longest scenario: with the week that it may end before now, within what the store keeps.
const DAYS_MAX: u64 = 14;
/// Most hosts: each sends a message for each of its services and five virtual minutes.
const HOSTS_MAX: usize = 1_000;
/// Longest wait for the tuner to close a window, and for the broker.
const PATIENCE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(20);

/// The bus, as the simulated fleet sees it.
pub struct Bus {
    producer: ResendingProducer,
    pushed: u64,
    topics: [String; 3],
    states: Compacted,
    /// The tuner's last word on each service.
    known: BTreeMap<String, TunerRecord>,
    services: Vec<String>,
    hosts: Vec<String>,
    host_services: Vec<Vec<usize>>,
    cpus: u32,
    slot_us: u64,
    shift_us: u64,
    epoch: Epoch,
    sequences: Vec<u64>,
    refused: u64,
    /// Samples sent.
    pub samples: u64,
}

impl Bus {
    /// Opens the bus for a scenario, and says there what is desired.
    ///
    /// # Errors
    /// [`CliError::Usage`] where the bus is that of a real fleet, or the scenario is none for a bus.
    pub fn open(bus: &BusSettings, scenario: &Scenario, world: &World, seed: u64) -> Result<Self, CliError> {
        let desired = proved(bus, scenario, world)?;
        // It waits for the broker, and for the tuner, after each window.
        let bus = &bus.clone().prompt();
        let mut config = SamplingConfig::default();
        let profiler = ProfilerConfig {
            samples_per_hour: desired,
            ..ProfilerConfig::default()
        };
        config.profilers.insert(PROFILER.to_owned(), profiler);
        put(bus, config)?;
        let end_us = (FIRST_DAY + world.days) * DAY_US;
        let hosts: Vec<String> = (0..world.hosts.len())
            .map(|host| format!("simulated-{host}"))
            .collect();
        let mut epoch = [0; 16];
        epoch[..8].copy_from_slice(&seed.to_be_bytes());
        epoch[8..].copy_from_slice(&now_us().to_be_bytes());
        Ok(Self {
            producer: ResendingProducer::new(bus, WindowLimits::default())?,
            pushed: 0,
            topics: [
                bus.topic(Topic::StacksRaw),
                bus.topic(Topic::Coverage),
                bus.topic(Topic::Hosts),
            ],
            states: Compacted::open(bus, &bus.topic(Topic::Tuner))?,
            known: BTreeMap::new(),
            services: world
                .services
                .iter()
                .map(|service| service.name.clone())
                .collect(),
            sequences: vec![0; hosts.len()],
            hosts,
            host_services: world.hosts.iter().map(|host| host.services.clone()).collect(),
            cpus: scenario.cpus as u32,
            slot_us: scenario.slot().us(),
            shift_us: now_us().saturating_sub(end_us) / WEEK_US * WEEK_US,
            epoch: Epoch(epoch),
            refused: 0,
            samples: 0,
        })
    }

    /// Returns the time of the first day's start and of the last one's end, microseconds since 1970, on the bus.
    pub fn span(&self, world: &World) -> (u64, u64) {
        let first_us = FIRST_DAY * DAY_US + self.shift_us;
        (first_us, first_us + world.days * DAY_US)
    }

    /// Returns the epoch that the samples are stored under, as a UUID.
    pub fn epoch(&self) -> String {
        let hex: String = self.epoch.0.iter().map(|byte| format!("{byte:02x}")).collect();
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }

    /// Waits until the broker has everything.
    ///
    /// # Errors
    /// Where it does not take it.
    pub fn flush(&mut self) -> Result<(), OutsideError> {
        let outcomes = self.producer.flush(PATIENCE);
        self.count(&outcomes);
        match self.refused {
            0 => Ok(()),
            refused => {
                Err(format!("the broker refused {refused} messages: `strobe doctor` says more").into())
            }
        }
    }

    fn count(&mut self, outcomes: &[Outcome]) {
        let refused = outcomes
            .iter()
            .filter(|outcome| !matches!(outcome, Outcome::Acknowledged { .. }));
        self.refused += refused.count() as u64;
    }

    fn send(&mut self, topic: usize, key: String, headers: Headers, value: Vec<u8>) {
        self.pushed += 1;
        let mut message = Outgoing {
            topic: self.topics[topic].as_str().into(),
            key: Some(key.into()),
            headers,
            payload: Some(value.into()),
        };
        while let Err(WindowFull(back)) = self.producer.push(self.pushed, message) {
            message = back;
            let outcomes = self.producer.poll(WAIT);
            self.count(&outcomes);
        }
    }

    fn identity(&mut self, host: usize) -> Identity {
        let sequence = self.sequences[host];
        self.sequences[host] += 1;
        Identity {
            host: self.hosts[host].clone(),
            epoch: self.epoch,
            sequence,
            part: 0,
        }
    }

    fn announce(&mut self, host: usize, time_us: u64) -> Result<(), OutsideError> {
        let services = self.host_services[host].iter();
        let record = HostRecord {
            host: self.hosts[host].clone(),
            time_us,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: "simulated".to_owned(),
            cpus: self.cpus,
            labels: Vec::new(),
            services: services.map(|&service| self.services[service].clone()).collect(),
        };
        let value = codec::encode_framed(&record)?;
        self.send(2, record.host, Headers::new(), value);
        Ok(())
    }

    fn cover(&mut self, report: &HourReport) -> Result<(), OutsideError> {
        let record = self.record(report);
        let meta = Meta {
            identity: self.identity(report.host),
            run: RunId([0; 16]),
            samples: 0,
        };
        let value = codec::encode_framed(&record)?;
        self.send(1, record.service, meta.to_headers(), value);
        Ok(())
    }

    fn record(&self, report: &HourReport) -> CoverageRecord {
        let (coverage, done) = (&report.coverage, &report.coverage.done);
        CoverageRecord {
            service: self.services[report.service].clone(),
            profiler: PROFILER.to_owned(),
            host: self.hosts[report.host].clone(),
            slot_us: self.slot_us,
            hour: report.hour + self.shift_us / strobe_sampling::slot::HOUR_US,
            until_us: report.until_us + self.shift_us,
            revision: coverage.revision,
            planned: coverage.planned,
            refused: coverage.refused,
            complete: coverage.complete,
            cut_short: coverage.cut_short,
            drawn_inverse: coverage.drawn_inverse,
            done_us: coverage.done_us,
            taken: coverage.taken,
            cpu_us: coverage.cpu_us,
            cpu_source: CpuSource::ControlGroup as u8,
            runs: done.runs,
            u: done.u,
            uu: done.uu,
            t: done.t,
            tt: done.tt,
            tu: done.tu,
        }
    }

    /// Waits until the tuner has closed the window that starts at `window_us` for these services.
    fn closed(&mut self, window_us: u64, services: &[usize]) -> Result<(), OutsideError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let known = &mut self.known;
            self.states.poll(WAIT, |message| {
                let record = message
                    .payload
                    .as_ref()
                    .map(|value| codec::decode_framed::<TunerRecord>(value));
                if let Some(Ok(record)) = record {
                    known.insert(record.plan.service.clone(), record);
                }
            })?;
            let waits = services.iter().find(|&&service| {
                let known = self.known.get(&self.services[service]);
                known.is_none_or(|known| known.window_us < window_us)
            });
            let Some(&service) = waits else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(format!(
                    "no tuner made a plan for `{}` within {} s: is `strobe run tuner` running, with this configuration?",
                    self.services[service],
                    PATIENCE.as_secs()
                )
                .into());
            }
        }
    }
}

/// Returns what is desired of every service, where the scenario and the bus are fit for each other.
fn proved(bus: &BusSettings, scenario: &Scenario, world: &World) -> Result<f64, CliError> {
    let usage = |text: String| Err(CliError::Usage(text));
    if bus.topic_prefix() == OWN_PREFIX {
        return usage(format!(
            "simulated hosts among real ones would change their plans: give the simulation topics of its own (`bus.topic_prefix` other \
             than `{OWN_PREFIX}`, `strobe topics apply`) and a database of its own"
        ));
    }
    let first = world.services.first().map_or(0.0, |load| load.service.desired);
    if world
        .services
        .iter()
        .any(|load| load.service.desired != first || load.service.fixed.is_some())
    {
        return usage("on the bus one rate is desired of every service: give all of them the same `desired`, and no `fixed`".into());
    }
    if world.days > DAYS_MAX || world.hosts.len() > HOSTS_MAX {
        return usage(format!(
            "through the bus go {DAYS_MAX} days and {HOSTS_MAX} hosts at most"
        ));
    }
    let (faults, none) = (&scenario.faults, Faults::default());
    if [
        faults.throttled,
        faults.running,
        faults.kernel,
        faults.limit,
        faults.thin,
    ] != [none.throttled, none.running, none.kernel, none.limit, none.thin]
    {
        return usage(
            "`throttled`, `running`, `kernel`, `limit` and `thin` are simulated in memory alone".into(),
        );
    }
    Ok(first)
}

impl Outside for Bus {
    fn run(&mut self, run: &RunReport<'_>) -> Result<(), OutsideError> {
        let kept: u64 = run.kept.iter().sum();
        if kept == 0 {
            return Ok(());
        }
        let started_us = run.start_us + self.shift_us;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(run.host as u64).to_be_bytes());
        id[8..].copy_from_slice(&started_us.to_be_bytes());
        let head = RunHead {
            id: RunId(id),
            host: self.hosts[run.host].clone(),
            profiler: PROFILER.to_owned(),
            cause: Cause::Continuous as u8,
            started_us,
            planned_us: run.plan.planned_us,
            slot_us: self.slot_us,
            run_probability: run.plan.run_probability,
            kernel_probability: 1.0,
            period: (1e9 / run.plan.frequency_hz).round() as u64,
        };
        let due = run.done_us as f64 / 1e6 * run.plan.frequency_hz;
        let mut parts: Vec<u32> = Vec::new();
        for (part, &samples) in run.kept.iter().enumerate() {
            parts.extend(std::iter::repeat_n(part as u32, samples as usize));
        }
        let chunks = parts.len().div_ceil(BATCH_SAMPLES_MAX);
        for (index, chunk) in parts.chunks(BATCH_SAMPLES_MAX).enumerate() {
            // What was lost is lost evenly.
            let taken = (run.taken * chunk.len() as u64)
                .div_ceil(kept)
                .max(chunk.len() as u64);
            let batch = batch(&Chunk {
                head: &head,
                service: &self.services[run.service],
                number: run.service as u32,
                index: index as u32,
                parts: chunk,
                part_count: run.kept.len() as u32,
                taken,
                idle: (due / chunks as f64 - taken as f64).max(0.0).ceil() as u64,
                done_us: run.done_us,
            })?;
            let meta = Meta {
                identity: self.identity(run.host),
                run: head.id,
                samples: chunk.len() as u64,
            };
            self.samples += chunk.len() as u64;
            let value = codec::encode_framed(&batch)?;
            self.send(0, head.host.clone(), meta.to_headers(), value);
        }
        Ok(())
    }

    fn window(&mut self, end_us: u64, reports: &[HourReport]) -> Result<Vec<Option<Plan>>, OutsideError> {
        let end_us = end_us + self.shift_us;
        let mut hosts: Vec<usize> = reports.iter().map(|report| report.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        for host in hosts {
            self.announce(host, end_us)?;
        }
        // Who is there must be known before the first of them reports.
        self.flush()?;
        for report in reports {
            self.cover(report)?;
        }
        self.flush()?;
        let mut services: Vec<usize> = reports.iter().map(|report| report.service).collect();
        services.sort_unstable();
        services.dedup();
        self.closed(end_us - WINDOW_US, &services)?;
        let plan = |record: &PlanRecord| Plan {
            run_probability: record.run_probability,
            planned_us: record.planned_us,
            frequency_hz: record.frequency_hz,
            keep: record.keep,
            since_us: record.since_us.saturating_sub(self.shift_us),
        };
        let of = |service: &String| self.known.get(service).map(|known| plan(&known.plan));
        Ok(self.services.iter().map(of).collect())
    }
}

/// Samples of a service in a run that go into one batch.
struct Chunk<'a> {
    head: &'a RunHead,
    service: &'a str,
    number: u32,
    index: u32,
    /// The part of the service that each sample is of.
    parts: &'a [u32],
    part_count: u32,
    taken: u64,
    idle: u64,
    done_us: u64,
}

fn batch(chunk: &Chunk<'_>) -> Result<RawBatch, OutsideError> {
    let count = chunk.parts.len();
    let mut strings = vec![String::new(), chunk.service.to_owned(), "[simulated]".to_owned()];
    let (mut frames, mut stacks) = (Frames::default(), Stacks::default());
    for part in 0..chunk.part_count {
        strings.push(format!("part_{part}"));
        frames.binary.push(1);
        frames.address.push(0x1000 + u64::from(part));
        frames.name.push(strings.len() as u32 - 1);
        frames.reason.push(0);
        // No part shares its frame with the one before.
        stacks.push(&[], &[part], StackEnd::Root);
    }
    let step_us = chunk.done_us / (count as u64 + 1);
    let lost = chunk.taken - count as u64;
    let drops = (lost > 0).then_some(DropCount {
        reason: DropReason::RingFull as u8,
        samples: lost,
    });
    let id = BuildId::new(b"simulated-fleet-0001").ok_or("no build id")?;
    Ok(RawBatch {
        run: chunk.head.clone(),
        index: chunk.number << 8 | chunk.index,
        start_us: chunk.head.started_us,
        end_us: chunk.head.started_us + chunk.done_us,
        cpus: vec![CpuCounts {
            cpu: chunk.number,
            taken: chunk.taken,
            kept: count as u64,
            idle: chunk.idle,
            enabled_ns: chunk.done_us * 1_000,
            running_ns: chunk.done_us * 1_000,
        }],
        drops: drops.into_iter().collect(),
        strings,
        binaries: vec![Binary {
            kind: BinaryKind::Kernel,
            id,
            path: 2,
        }],
        frames,
        stacks,
        processes: vec![Process {
            pid: 1_000 + chunk.number,
            start_ns: 1,
            exec: 1,
            service: 1,
            executable: 0,
            container: 0,
            cgroup: 0,
        }],
        threads: Threads {
            process: vec![0],
            tid: vec![1_000 + chunk.number],
            name: vec![1],
        },
        samples: Samples {
            time_delta_us: vec![step_us; count],
            stack: chunk.parts.to_vec(),
            thread: vec![0; count],
            cpu: vec![chunk.number; count],
            value: Vec::new(),
        },
    })
}
