//! Limits: which samples of a batch stay. Between stages 10 and 12; what goes is counted as `thinned`, and the rest weigh more.
//!
//! The share that stays is in the plan of each service, fixed before the hour that it applies to. Which samples those are is a hash
//! of the batch's identity and each one's place: a batch that comes again keeps the same.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use strobe_bus::{BusSettings, Compacted, Message, Topic};
use strobe_event::{DropCount, DropReason, Identity, PlanRecord, RawBatch, RunEvent, RunState, codec};
use strobe_sampling::hash::Probability;
use strobe_sampling::limit::Sieve;

use crate::weigh::Weighed;

/// Time between two looks for new plans: shares are fixed long before they apply.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Services with a share below 1 that are known at most.
const SHARES_MAX: usize = 100_000;

/// The share of one service's samples that stays.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share {
    keep: f64,
    since_us: u64,
    before: f64,
}

/// The shares in force, by service and profiler; what is not here stays whole.
#[derive(Default)]
pub struct Shares {
    known: HashMap<(String, String), Share>,
    reader: Option<Compacted>,
    looked: Option<Instant>,
}

impl Shares {
    /// Takes in what has come of plans. While the bus is away, what is known stays in force.
    pub fn refresh(&mut self, bus: &BusSettings) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let known = &mut self.known;
        let mut take = |message: Message| take(known, &message);
        let result = match &mut self.reader {
            Some(reader) => reader.poll(Duration::ZERO, take),
            None => Compacted::open(bus, &bus.topic(Topic::Plans)).and_then(|mut reader| {
                reader.catch_up(&mut take)?;
                self.reader = Some(reader);
                Ok(())
            }),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "plans cannot be read; limits stay as they are");
        }
    }

    /// Returns the share of each process's samples that stays; nothing where all of all do.
    pub fn of(&self, raw: &RawBatch) -> Option<Vec<Probability>> {
        if self.known.is_empty() {
            return None;
        }
        let share = |service: &str| {
            let key = (service.to_owned(), raw.run.profiler.clone());
            let share = self.known.get(&key)?;
            let keep = if raw.start_us >= share.since_us {
                share.keep
            } else {
                share.before
            };
            Probability::new("keep", keep).ok()
        };
        let shares: Vec<Probability> = raw
            .processes
            .iter()
            .map(|process| share(&raw.strings[process.service as usize]).unwrap_or(Probability::ALWAYS))
            .collect();
        shares
            .iter()
            .any(|share| *share != Probability::ALWAYS)
            .then_some(shares)
    }
}

fn take(known: &mut HashMap<(String, String), Share>, message: &Message) {
    let Some(value) = &message.payload else {
        let key = String::from_utf8_lossy(message.key.as_deref().unwrap_or_default()).into_owned();
        let mut parts = key.split('\n').map(str::to_owned);
        if let (Some(service), Some(profiler)) = (parts.next(), parts.next()) {
            known.remove(&(service, profiler));
        }
        return;
    };
    // Agents refuse what cannot be meant, and say so; here it only must not be divided by.
    let Ok(record) = codec::decode_framed::<PlanRecord>(value) else {
        return;
    };
    let key = (record.service, record.profiler);
    let share = Share {
        keep: record.keep,
        since_us: record.keep_since_us,
        before: record.keep_before,
    };
    if share.keep == 1.0 && share.before == 1.0 {
        known.remove(&key);
    } else if known.len() < SHARES_MAX || known.contains_key(&key) {
        known.insert(key, share);
    }
}

/// Takes the samples out of a weighed batch that do not stay, and counts them. It may be left without any.
pub fn thin(identity: &Identity, raw: &mut RawBatch, weighed: &mut Weighed, shares: &[Probability]) {
    let sieve = |share| Sieve::new(&identity.host, &identity.epoch.0, identity.sequence, share);
    let sieves: Vec<Sieve> = shares.iter().map(|&share| sieve(share)).collect();
    let samples = &mut raw.samples;
    let stays: Vec<bool> = samples
        .thread
        .iter()
        .enumerate()
        .map(|(index, &thread)| sieves[raw.threads.process[thread as usize] as usize].stays(index))
        .collect();
    let gone = stays.iter().filter(|&&stays| !stays).count() as u64;
    if gone == 0 {
        return;
    }
    // A time counts from the sample before: what goes leaves its part to the next.
    let mut carried = 0;
    for (delta, stays) in samples.time_delta_us.iter_mut().zip(&stays) {
        *delta += carried;
        carried = if *stays { 0 } else { *delta };
    }
    retain(&mut samples.time_delta_us, &stays);
    retain(&mut samples.stack, &stays);
    retain(&mut samples.thread, &stays);
    retain(&mut samples.cpu, &stays);
    if !samples.value.is_empty() {
        retain(&mut samples.value, &stays);
    }
    retain(&mut weighed.of_sample, &stays);
    raw.drops.push(DropCount {
        reason: DropReason::Thinned as u8,
        samples: gone,
    });
}

/// Returns the event that accounts for a batch of which nothing stayed; it has the batch's identity, so that it counts once
/// however often it is told.
pub fn all_gone(raw: &RawBatch) -> RunEvent {
    RunEvent {
        run: raw.run.clone(),
        state: RunState::Lost as u8,
        time_us: raw.end_us,
        detail: format!("batch {} of the run: limits let nothing of it stay", raw.index),
        taken: 0,
        spooled: 0,
        idle: 0,
        batches: 0,
        drops: vec![DropCount {
            reason: DropReason::Thinned as u8,
            samples: raw.samples.len() as u64,
        }],
        done_us: 0,
    }
}

fn retain<T>(column: &mut Vec<T>, stays: &[bool]) {
    let mut at = stays.iter();
    column.retain(|_| at.next().copied().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    use strobe_event::Epoch;
    use strobe_event::synthetic::{self, Shape};

    use super::*;
    use crate::weigh::{weigh, weigh_kept};

    fn identity(sequence: u64) -> Identity {
        Identity {
            host: "h".to_owned(),
            epoch: Epoch([7; 16]),
            sequence,
            part: 0,
        }
    }

    fn total(weighed: &Weighed) -> f64 {
        let weights = weighed.of_sample.iter();
        weights.map(|&at| weighed.weights[at as usize].fleet).sum()
    }

    /// Checks that over many batches the total stays where it was, within four standard errors, though most samples are gone;
    /// that a repeat keeps the same; and that the batch is whole and its times are the old ones.
    #[test]
    fn thinning_leaves_the_total_where_it_was() {
        let raw = synthetic::raw_batch(
            &Shape {
                samples: 2_000,
                ..Shape::default()
            },
            5,
        );
        let truth = total(&weigh(&raw).unwrap());
        let keep = Probability::new("keep", 0.2).unwrap();
        let shares = vec![keep; raw.processes.len()];
        let goes = 200;
        let mut sum = 0.0;
        for sequence in 0..goes {
            let once = |sequence| {
                let mut batch = raw.clone();
                let mut weighed = weigh_kept(&batch, Some(&shares)).unwrap();
                thin(&identity(sequence), &mut batch, &mut weighed, &shares);
                (batch, weighed)
            };
            let (batch, weighed) = once(sequence);
            assert_eq!(once(sequence), (batch.clone(), weighed.clone()));
            batch.validate().unwrap();
            let gone = batch.drops.last().unwrap().samples;
            assert_eq!(gone + batch.samples.len() as u64, 2_000);
            sum += total(&weighed);
        }
        // Each stays with p = 0.2: of a total of n alike, the spread is √((1 − p) / (p n)).
        let error = (0.8 / (0.2 * 2_000.0 * goes as f64)).sqrt();
        let off = sum / goes as f64 / truth - 1.0;
        assert!(off.abs() < 4.0 * error * 1.5, "{off} ± {error}");
    }

    /// Checks that what stays is at the time it was.
    #[test]
    fn what_stays_keeps_its_time() {
        let mut raw = synthetic::raw_batch(&Shape::default(), 5);
        let times = |raw: &RawBatch| -> Vec<u64> {
            let deltas = raw.samples.time_delta_us.iter();
            deltas
                .scan(0, |at, delta| {
                    *at += delta;
                    Some(*at)
                })
                .collect()
        };
        let before = times(&raw);
        let shares = vec![Probability::new("keep", 0.5).unwrap(); raw.processes.len()];
        let mut weighed = weigh_kept(&raw, Some(&shares)).unwrap();
        thin(&identity(1), &mut raw, &mut weighed, &shares);
        let after = times(&raw);
        assert!(after.len() < before.len() && after.iter().all(|time| before.contains(time)));
    }
}
