//! Recorded batches → the traffic of a fleet: the same samples again and again, each time with an identity of its own.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use strobe_bus::{BusSettings, Meta, Outcome, Outgoing, ResendingProducer, Topic, WindowFull, WindowLimits};
use strobe_event::{Epoch, Identity, RawBatch, RunId, codec};

/// Hosts of the fleet: eight for each of the eight partitions that a topic has by default.
pub const HOSTS: usize = 64;

/// Longest wait for the broker's acknowledgements.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(120);

/// Returns the batches of a folder that `strobe-agent run --capture` wrote, in the order of the files' names.
pub fn recorded(directory: &Path) -> Result<Vec<RawBatch>> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    files.sort();
    let batch = |file: &Path| -> Result<RawBatch> {
        let batch: RawBatch = codec::decode_framed(&std::fs::read(file)?)?;
        batch.validate()?;
        Ok(batch)
    };
    let batches = files
        .iter()
        .map(|file| batch(file).with_context(|| file.display().to_string()))
        .collect::<Result<Vec<_>>>()?;
    ensure!(!batches.is_empty(), "no batches in {}", directory.display());
    Ok(batches)
}

/// Draws 128 bits.
pub fn random_bits() -> Result<[u8; 16]> {
    let mut bits = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits)
}

/// Microseconds since 1970.
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

struct Host {
    name: String,
    epoch: Epoch,
    run: RunId,
    sequence: u64,
}

/// Hosts that repeat what was recorded.
pub struct Fleet {
    recorded: Vec<RawBatch>,
    hosts: Vec<Host>,
    /// Batches made so far: they go round the hosts, and each host goes round the recording.
    made: usize,
}

/// What was sent.
#[derive(Default, Clone, Copy)]
pub struct SentOff {
    /// Batches.
    pub batches: u64,
    /// Samples.
    pub samples: u64,
    /// Bytes of Avro, before compression.
    pub bytes: u64,
}

impl Fleet {
    /// Returns a fleet whose spools nobody has seen before.
    pub fn new(mut recorded: Vec<RawBatch>, hosts: usize) -> Result<Self> {
        // The recording ends now: the sink puts aside what is older than the tables keep.
        let end_us = recorded
            .iter()
            .map(|batch| batch.end_us)
            .max()
            .unwrap_or_default();
        let now_us = now_us();
        for batch in &mut recorded {
            batch.start_us = now_us - (end_us - batch.start_us);
            batch.end_us = now_us - (end_us - batch.end_us);
        }
        let host = |number| -> Result<Host> {
            Ok(Host {
                name: format!("bench-{number:03}"),
                epoch: Epoch(random_bits()?),
                run: RunId(random_bits()?),
                sequence: 0,
            })
        };
        Ok(Self {
            recorded,
            hosts: (0..hosts).map(host).collect::<Result<_>>()?,
            made: 0,
        })
    }

    /// Sends at least one batch of each host, and the recording as a whole at least once.
    pub fn send_round(&mut self, bus: &BusSettings) -> Result<SentOff> {
        let batches = self.recorded.len().max(self.hosts.len()) as u64;
        self.send(bus, |sent| sent.batches < batches)
    }

    /// Sends batches until they hold `samples`.
    pub fn send_samples(&mut self, bus: &BusSettings, samples: u64) -> Result<SentOff> {
        self.send(bus, |sent| sent.samples < samples)
    }

    fn send(&mut self, bus: &BusSettings, more: impl Fn(&SentOff) -> bool) -> Result<SentOff> {
        let topic = bus.topic(Topic::StacksRaw).into();
        let mut producer = ResendingProducer::new(bus, WindowLimits::default())?;
        let mut sent = SentOff::default();
        let mut acknowledged = 0;
        let hosts = self.hosts.len();
        while more(&sent) {
            let host = self.made % hosts;
            // Every host begins elsewhere in the recording, so that not all are alike at one time.
            let place = (self.made / hosts + host) % self.recorded.len();
            self.made += 1;
            let (batch, host) = (&mut self.recorded[place], &mut self.hosts[host]);
            batch.run.host.clone_from(&host.name);
            batch.run.id = host.run;
            let samples = batch.samples.len() as u64;
            let meta = Meta {
                identity: Identity {
                    host: host.name.clone(),
                    epoch: host.epoch,
                    sequence: host.sequence,
                    part: 0,
                },
                run: host.run,
                samples,
            };
            host.sequence += 1;
            let value = codec::encode_framed(batch)?;
            sent.batches += 1;
            sent.samples += samples;
            sent.bytes += value.len() as u64;
            let mut message = Outgoing {
                topic: std::sync::Arc::clone(&topic),
                key: Some(host.name.clone().into()),
                headers: meta.to_headers(),
                payload: Some(value.into()),
            };
            while let Err(WindowFull(back)) = producer.push(sent.batches, message) {
                message = back;
                acknowledged += count(producer.poll(Duration::from_millis(50)))?;
            }
        }
        acknowledged += count(producer.flush(ACKNOWLEDGED_WITHIN))?;
        ensure!(
            acknowledged == sent.batches,
            "the broker took {acknowledged} of {} batches",
            sent.batches
        );
        Ok(sent)
    }
}

/// Returns how many messages were acknowledged.
pub fn count(outcomes: Vec<Outcome>) -> Result<u64> {
    for outcome in &outcomes {
        if let Outcome::Refused { reason, .. } = outcome {
            bail!("the broker refused a message: {reason}");
        }
    }
    Ok(outcomes.len() as u64)
}
