//! The tuner's stage: records of `strobe.coverage` → plans of `strobe.plans`. Pure: who calls it reads and
//! writes the bus.
//!
//! Coverage comes as whole hours so far, again and again; what is new in a record belongs to the window of
//! five minutes that the record reaches to. A window closes when 99 % of the live hosts have reported past
//! it, or an hour of event time later. What comes later still corrects the next window. Time is that of the
//! records, so that a replay decides as the original did.
//!
//! All state comes from the bus: whoever takes a partition over restores each [`Tuner`] from the last plan
//! and reads coverage again from [`REWIND_US`] before it, so that the hours so far are known. What the tuner
//! has counted, it does not count again: the state says up to which record that is. Time alone would not tell
//! it, since what corrects a closed window counts in the next one.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use strobe_event::Epoch;
use strobe_sampling::SamplingError;
use strobe_sampling::coverage::{Coverage, MORE_SLOTS};
use strobe_sampling::plan::CLOCK_SKEW_US;
use strobe_sampling::slot::{HOUR_US, SlotLength};
use strobe_sampling::spread::RunSums;
use strobe_sampling::tuner::{Decision, Desired, Gather, Tuner, WINDOW_US};

/// Share of the live hosts whose reports close a window.
const REPORTED_SHARE: f64 = 0.99;
/// How long a window waits for them, in event time.
const WAIT_US: u64 = HOUR_US;
/// How far back hours can still be corrected, and must be read again after a restart: the hour that a window
/// lies in, and the one for which it waits.
pub const REWIND_US: u64 = 2 * HOUR_US;
/// Most hosts of one service that are followed: ten times the largest fleets. More are refused and counted.
pub const HOSTS_MAX: usize = 1_000_000;

/// Whose plan it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The service.
    pub service: String,
    /// The profiler.
    pub profiler: String,
}

impl Target {
    /// Returns the key of what is said of it on the bus: service, profiler and selector, each on a line.
    pub fn key(&self) -> String {
        format!("{}\n{}\n", self.service, self.profiler)
    }
}

/// One record of coverage.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// Whose slots.
    pub target: Target,
    /// The host.
    pub host: String,
    /// The opening of its spool.
    pub epoch: Epoch,
    /// The hour, counted since 1970.
    pub hour: u64,
    /// Up to when the record counts, microseconds since 1970: at most the hour's end.
    pub until_us: u64,
    /// Length of the slots that it counts.
    pub slot_us: u64,
    /// The record's place in its partition, in which all records of a target are.
    pub offset: i64,
    /// The hour so far.
    pub coverage: Coverage,
}

/// What is known of a target when a window is closed: the state that travels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// The tuner.
    #[serde(flatten)]
    pub tuner: Tuner,
    /// The place of the first record that was not read yet. States of old have none.
    #[serde(default)]
    pub read: i64,
}

/// What became of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// It brought something new.
    Counted,
    /// It, or a later one, was seen before.
    Repeated,
    /// It is of an hour that no window can still take in.
    TooLate,
    /// It cannot be true.
    Refused(SamplingError),
    /// There are too many hosts.
    TooManyHosts,
}

/// A closed window and what it led to. To be published whenever it comes: the tuner in it is the state to go
/// on from.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// Whose plan.
    pub target: Target,
    /// Start of the window.
    pub window_us: u64,
    /// The plan and why.
    pub decision: Decision,
    /// What is known now.
    pub known: Known,
    /// Samples taken in the window.
    pub taken: u64,
    /// Hosts that were believed only in part, with what they claimed and what is believed, in busy CPUs.
    pub doubted: Vec<(String, f64, f64)>,
    /// Hosts of whose name there seems to be more than one: together they report more slots than an hour has.
    pub same_name: Vec<String>,
}

/// The stage: one for each set of partitions.
#[derive(Debug, Default)]
pub struct Tune {
    streams: BTreeMap<Target, Stream>,
}

/// What is under way for one target.
#[derive(Debug, Default)]
struct Stream {
    tuner: Option<Tuner>,
    /// Whoever had the target before counted windows up to this start,
    counted_us: Option<u64>,
    /// from records up to this place.
    counted: i64,
    /// The place of the first record that was not read yet.
    read: i64,
    /// Windows up to this start are closed.
    closed_us: Option<u64>,
    open: BTreeMap<u64, Gather>,
    hosts: HashMap<String, HostSeen>,
    /// Hosts by the numbers that windows know them by.
    next_number: u64,
    /// The latest moment that any record reaches to.
    latest_us: u64,
}

/// What is known of a host.
#[derive(Debug, Default)]
struct HostSeen {
    number: u64,
    until_us: u64,
    hours: BTreeMap<(u64, Epoch, u64), Coverage>,
}

impl Tune {
    /// Goes on from a state that was published.
    pub fn restore(&mut self, target: Target, known: Known) {
        let stream = self.streams.entry(target).or_default();
        stream.counted_us = known.tuner.last_us();
        stream.counted = known.read;
        stream.closed_us = known.tuner.last_us();
        stream.tuner = Some(known.tuner);
    }

    /// Forgets a target whose partition went to somebody else.
    pub fn release(&mut self, target: &Target) {
        self.streams.remove(target);
    }

    /// Takes in a record, read at `now_us` by this host's clock.
    pub fn take(&mut self, record: Reported, slot: SlotLength, now_us: u64) -> Fate {
        let coverage = match check(&record, slot, now_us) {
            Ok(coverage) => coverage,
            Err(error) => return Fate::Refused(error),
        };
        let stream = self.streams.entry(record.target.clone()).or_default();
        stream.latest_us = stream.latest_us.max(record.until_us);
        stream.read = stream.read.max(record.offset + 1);
        let oldest = stream.latest_us.saturating_sub(REWIND_US) / HOUR_US;
        if record.hour < oldest {
            return Fate::TooLate;
        }
        let known = stream.hosts.len();
        let host = match stream.hosts.entry(record.host) {
            std::collections::hash_map::Entry::Occupied(seen) => seen.into_mut(),
            std::collections::hash_map::Entry::Vacant(_) if known >= HOSTS_MAX => return Fate::TooManyHosts,
            std::collections::hash_map::Entry::Vacant(unseen) => {
                stream.next_number += 1;
                unseen.insert(HostSeen {
                    number: stream.next_number,
                    ..HostSeen::default()
                })
            }
        };
        host.hours.retain(|(hour, ..), _| *hour >= oldest);
        let key = (record.hour, record.epoch, record.slot_us);
        let before = host.hours.entry(key).or_default();
        if before.revision >= coverage.revision {
            return Fate::Repeated;
        }
        let news = difference(&coverage, before);
        *before = coverage;
        host.until_us = host.until_us.max(record.until_us);
        let number = host.number;
        let own = record.until_us.saturating_sub(1) / WINDOW_US * WINDOW_US;
        let counted = record.offset < stream.counted;
        if counted && stream.counted_us.is_some_and(|counted_us| own <= counted_us) {
            return Fate::Repeated;
        }
        let window = match stream.closed_us {
            Some(closed) => own.max(closed + WINDOW_US),
            None => own,
        };
        let gather = stream.open.entry(window).or_insert_with(|| Gather::new(window));
        gather.planned(news.planned);
        gather.report(number, news.drawn_inverse, news.done, news.taken);
        Fate::Counted
    }

    /// Returns whether any window can be closed. As [`Tune::close`], without a change.
    pub fn can_close(
        &self,
        is_desired: impl Fn(&Target) -> bool,
        live_hosts: impl Fn(&Target) -> u64,
    ) -> bool {
        let mut streams = self.streams.iter();
        streams.any(|(target, stream)| stream.complete(live_hosts(target)).is_some() && is_desired(target))
    }

    /// Closes what can be closed. `desired` and `live_hosts` say what is wanted of a target, and on how many
    /// hosts the inventory knows it; a target of which nothing is wanted is not tuned.
    pub fn close(
        &mut self,
        desired: impl Fn(&Target) -> Option<Desired>,
        live_hosts: impl Fn(&Target) -> u64,
        slot: SlotLength,
    ) -> Vec<Tuned> {
        let mut tuned = Vec::new();
        for (target, stream) in &mut self.streams {
            let Some(desired) = desired(target) else { continue };
            let live = live_hosts(target);
            while let Some(window_us) = stream.complete(live) {
                let Some(gather) = stream.open.remove(&window_us) else {
                    break;
                };
                stream.closed_us = Some(window_us);
                let (window, doubted) = gather.close(live);
                let tuner = stream.tuner.get_or_insert_with(|| Tuner::new(&desired, live));
                let decision = tuner.take(&desired, &window);
                let known = Known {
                    tuner: tuner.clone(),
                    read: stream.read,
                };
                let name = |number| stream.name(number).unwrap_or_default();
                tuned.push(Tuned {
                    target: target.clone(),
                    window_us,
                    decision,
                    known,
                    taken: window.taken,
                    doubted: doubted
                        .iter()
                        .map(|doubted| (name(doubted.host), doubted.claimed, doubted.believed))
                        .collect(),
                    same_name: stream.same_name(window_us / HOUR_US, slot),
                });
                stream.forget();
            }
        }
        tuned
    }
}

impl Stream {
    /// Returns the oldest window, if it can be closed.
    fn complete(&self, live: u64) -> Option<u64> {
        let (&window_us, _) = self.open.first_key_value()?;
        let end_us = window_us + WINDOW_US;
        let past = self.hosts.values().filter(|host| host.until_us >= end_us).count();
        let enough = live > 0 && past as f64 >= live as f64 * REPORTED_SHARE;
        (enough || self.latest_us >= end_us + WAIT_US).then_some(window_us)
    }

    fn name(&self, number: u64) -> Option<String> {
        let found = self.hosts.iter().find(|(_, host)| host.number == number);
        found.map(|(name, _)| name.clone())
    }

    fn same_name(&self, hour: u64, slot: SlotLength) -> Vec<String> {
        let planned = |host: &HostSeen| -> u64 {
            let least = (hour, Epoch([0; 16]), 0);
            let openings = host.hours.range(least..(hour + 1, Epoch([0; 16]), 0));
            openings.map(|(_, coverage)| coverage.planned).sum()
        };
        let mut names: Vec<String> = self
            .hosts
            .iter()
            .filter(|(_, host)| planned(host) as f64 > slot.per_hour() + MORE_SLOTS)
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        names
    }

    /// Forgets hosts that have not been heard of for as long as anything can still be corrected.
    fn forget(&mut self) {
        let oldest = self.latest_us.saturating_sub(REWIND_US);
        self.hosts.retain(|_, host| host.until_us >= oldest);
    }
}

fn check(record: &Reported, slot: SlotLength, now_us: u64) -> Result<Coverage, SamplingError> {
    let wrong = |what| SamplingError::Coverage {
        host: record.host.clone(),
        what,
    };
    match record.until_us.checked_sub(now_us) {
        Some(ahead_us) if ahead_us > CLOCK_SKEW_US => return Err(SamplingError::FromTheFuture { ahead_us }),
        _ => {}
    }
    let hour = (record.until_us.saturating_sub(1)) / HOUR_US;
    if hour != record.hour {
        return Err(wrong("it reaches out of its hour"));
    }
    in_slots_of(&record.coverage, record.slot_us, slot)
        .ok_or_else(|| wrong("its slots are no multiple of those that plans are made for"))?
        .check(&record.host, slot)
}

/// Returns coverage of slots of `from_us` as that of slots of length `to`: a host that runs all of the time, in runs of its own,
/// covers several slots with each. Nothing where one does not hold whole slots.
fn in_slots_of(coverage: &Coverage, from_us: u64, to: SlotLength) -> Option<Coverage> {
    if from_us == 0 || !from_us.is_multiple_of(to.us()) {
        return None;
    }
    let times = from_us / to.us();
    let factor = times as f64;
    let sums = &coverage.done;
    Some(Coverage {
        planned: coverage.planned.saturating_mul(times),
        drawn_inverse: coverage.drawn_inverse * factor,
        done: RunSums {
            runs: sums.runs,
            u: sums.u * factor,
            uu: sums.uu * factor * factor,
            t: sums.t * factor,
            tt: sums.tt * factor * factor,
            tu: sums.tu * factor * factor,
        },
        ..*coverage
    })
}

/// Returns what `now` has and `before` had not. An agent's counts only grow within an hour; if they do not,
/// nothing is new.
fn difference(now: &Coverage, before: &Coverage) -> Coverage {
    let (a, b) = (&now.done, &before.done);
    let less = |a: f64, b: f64| (a - b).max(0.0);
    Coverage {
        planned: now.planned.saturating_sub(before.planned),
        drawn_inverse: less(now.drawn_inverse, before.drawn_inverse),
        taken: now.taken.saturating_sub(before.taken),
        done: RunSums {
            runs: a.runs.saturating_sub(b.runs),
            u: less(a.u, b.u),
            uu: less(a.uu, b.uu),
            t: less(a.t, b.t),
            tt: less(a.tt, b.tt),
            tu: less(a.tu, b.tu),
        },
        ..Coverage::default()
    }
}

#[cfg(test)]
mod tests;
