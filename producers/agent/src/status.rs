//! What the agent counts of itself: every metric of this crate, written as JSON every five seconds for `strobe status`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use strobe_bpf::StackEnd;
use strobe_event::DropReason;
use strobe_telemetry::{Pulse, Reading};

use crate::budget::Level;
use crate::procfs::wall_us;
use crate::unwinding::Counts;

/// The status file's name, in the agent's state folder.
pub const FILE: &str = "agent.status.json";

/// The counters. One for the whole agent; each is written by one thread.
#[derive(Debug, Default)]
pub struct Status {
    /// When the kernel's counts were read, `CLOCK_MONOTONIC`: every second.
    kernel_time_ns: AtomicU64,
    /// Busy ticks, as the kernel counts them. Healthy: busy CPU time × frequency.
    taken: AtomicU64,
    /// Idle ticks.
    idle: AtomicU64,
    /// Ticks lost in the kernel, because the ring was full. Healthy: 0.
    kernel_dropped: AtomicU64,
    /// Samples that the spool took. Healthy: follows `taken`.
    spooled_samples: AtomicU64,
    /// Batches and events that the spool took, in bytes.
    spooled_bytes: AtomicU64,
    /// Samples that the broker has. Healthy: follows `spooled_samples` within seconds.
    sent_samples: AtomicU64,
    /// Messages between spool and broker's acknowledgement.
    unsent_records: AtomicU64,
    /// Samples dropped after the kernel had handed them over, by reason. Healthy: 0.
    dropped: [AtomicU64; DropReason::ALL.len()],
    /// Samples whose stack was lost before them. Healthy: under 0.1 %.
    stacks_forgotten: AtomicU64,
    /// Events of the side-band, and those lost. Healthy: none lost.
    side_band_events: AtomicU64,
    side_band_lost: AtomicU64,
    /// Gauges of what is known: images, frames, binaries, stacks.
    images: AtomicU64,
    frames: AtomicU64,
    binaries: AtomicU64,
    stacks: AtomicU64,
    /// Binaries put into the store, found there, skipped for their size, failed, and not even queued. Healthy: the last
    /// three are 0.
    binaries_stored: AtomicU64,
    binaries_there: AtomicU64,
    binaries_too_big: AtomicU64,
    binaries_failed: AtomicU64,
    binaries_not_queued: AtomicU64,
    /// Reads of files and environments that were given up because they did not end. Healthy: 0.
    reads_given_up: AtomicU64,
    /// Tables made and refused since the start, and the bytes of those kept on disk.
    tables_made: AtomicU64,
    tables_refused: AtomicU64,
    tables_kept_bytes: AtomicU64,
    /// What is in the kernel: see [`Counts`].
    unwinding: Mutex<Counts>,
    /// Slots that were not drawn, refused, and run.
    slots: [AtomicU64; 3],
    /// Slots that started unseen, and times that the clock was found far ahead. Healthy: 0 but after restarts.
    slots_missed: AtomicU64,
    clock_jumps: AtomicU64,
    /// How the user stacks of busy ticks ended, as the kernel counts them.
    user_ends: [AtomicU64; StackEnd::COUNT],
    ended: AtomicBool,
    complained_s: AtomicU64,
    /// Bytes that the spool held at its last look.
    spool_bytes: AtomicU64,
    /// By how much periods are longer than they should be, for the agent's budget; 0: nothing is sampled. Healthy: 1.
    thinner_by: AtomicU64,
    /// Each thread beats as it turns.
    pub sampling: Arc<Pulse>,
    /// As above.
    pub spooling: Arc<Pulse>,
    /// As above.
    pub publishing: Arc<Pulse>,
    /// Beats when the broker acknowledges, and when nothing waits for it.
    pub acknowledged: Pulse,
}

/// What became of a binary that was to be uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uploaded {
    /// It is in the store now.
    Stored,
    /// It was there.
    AlreadyThere,
    /// It is over the limit.
    TooBig,
    /// The store or the file had trouble.
    Failed,
}

impl Status {
    pub(crate) fn kernel(&self, time_ns: u64, taken: u64, idle: u64, dropped: u64) {
        self.sampling.beat();
        self.kernel_time_ns.store(time_ns, Relaxed);
        self.taken.store(taken, Relaxed);
        self.idle.store(idle, Relaxed);
        self.kernel_dropped.store(dropped, Relaxed);
    }

    pub(crate) fn budget(&self, level: Level) {
        let factor = if level == Level::Stopped {
            0
        } else {
            level.factor()
        };
        self.thinner_by.store(factor, Relaxed);
    }

    pub(crate) fn tables_made(&self, made: u64, refused: u64, kept_bytes: u64) {
        self.tables_made.store(made, Relaxed);
        self.tables_refused.store(refused, Relaxed);
        self.tables_kept_bytes.store(kept_bytes, Relaxed);
    }

    pub(crate) fn unwinding(&self, counts: Counts) {
        *self.unwinding.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    pub(crate) fn user_ends(&self, ends: &[u64; StackEnd::COUNT]) {
        for (counter, count) in self.user_ends.iter().zip(ends) {
            counter.store(*count, Relaxed);
        }
    }

    pub(crate) fn side_band(&self, events: u64, lost: u64) {
        self.side_band_events.store(events, Relaxed);
        self.side_band_lost.store(lost, Relaxed);
    }

    pub(crate) fn known(
        &self,
        images: usize,
        frames: usize,
        binaries: usize,
        stacks: usize,
        not_queued: u64,
    ) {
        self.images.store(images as u64, Relaxed);
        self.frames.store(frames as u64, Relaxed);
        self.binaries.store(binaries as u64, Relaxed);
        self.stacks.store(stacks as u64, Relaxed);
        self.binaries_not_queued.store(not_queued, Relaxed);
    }

    pub(crate) fn stack_forgotten(&self) {
        self.stacks_forgotten.fetch_add(1, Relaxed);
    }

    pub(crate) fn dropped(&self, reason: DropReason, samples: u64) {
        self.dropped[reason as usize - 1].fetch_add(samples, Relaxed);
    }

    pub(crate) fn spooled(&self, samples: u64, bytes: u64) {
        self.spooled_samples.fetch_add(samples, Relaxed);
        self.spooled_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sent(&self, samples: u64) {
        self.acknowledged.beat();
        self.sent_samples.fetch_add(samples, Relaxed);
    }

    pub(crate) fn unsent(&self, records: u64) {
        self.publishing.beat();
        if records == 0 {
            self.acknowledged.beat();
        }
        self.unsent_records.store(records, Relaxed);
    }

    pub(crate) fn reads_given_up(&self, count: u64) {
        self.reads_given_up.store(count, Relaxed);
    }

    pub(crate) fn uploaded(&self, result: Uploaded) {
        let counter = match result {
            Uploaded::Stored => &self.binaries_stored,
            Uploaded::AlreadyThere => &self.binaries_there,
            Uploaded::TooBig => &self.binaries_too_big,
            Uploaded::Failed => &self.binaries_failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn spool_holds(&self, bytes: u64) {
        self.spooling.beat();
        self.spool_bytes.store(bytes, Relaxed);
    }

    /// Returns the bytes that the spool held at its last look.
    pub fn spool_bytes(&self) -> u64 {
        self.spool_bytes.load(Relaxed)
    }

    /// Returns whether the spool holds what the broker has not acknowledged.
    pub fn is_waiting_for_broker(&self) -> bool {
        self.unsent_records.load(Relaxed) > 0
    }

    pub(crate) fn slot(&self, kind: usize) {
        self.slots[kind].fetch_add(1, Relaxed);
    }

    pub(crate) fn slots_missed(&self, slots: u64, clock_was_ahead: bool) {
        self.slots_missed.fetch_add(slots, Relaxed);
        self.clock_jumps.fetch_add(u64::from(clock_was_ahead), Relaxed);
    }

    pub(crate) fn spooling_ended(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Returns whether nothing more will come into the spool.
    pub fn has_spooling_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Returns whether a message may be logged: once a second.
    pub(crate) fn may_complain(&self) -> bool {
        let now = wall_us() / 1_000_000;
        self.complained_s.swap(now, Relaxed) != now
    }

    /// Returns all counters as JSON.
    pub fn to_json(&self, spool_bytes: u64) -> serde_json::Value {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let dropped: serde_json::Map<_, _> = DropReason::ALL
            .iter()
            .map(|&reason| {
                (
                    reason.name().to_owned(),
                    get(&self.dropped[reason as usize - 1]).into(),
                )
            })
            .collect();
        let ends: serde_json::Map<_, _> = StackEnd::ALL
            .iter()
            .zip(&self.user_ends)
            .map(|(end, count)| (end.name().to_owned(), get(count).into()))
            .collect();
        let unwinding = *self.unwinding.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "time_us": wall_us(),
            "pid": std::process::id(),
            "kernel_time_ns": get(&self.kernel_time_ns),
            "taken": get(&self.taken),
            "idle": get(&self.idle),
            "kernel_dropped": get(&self.kernel_dropped),
            "dropped": dropped,
            "spooled_samples": get(&self.spooled_samples),
            "spooled_bytes": get(&self.spooled_bytes),
            "sent_samples": get(&self.sent_samples),
            "spool_bytes": spool_bytes,
            "unsent_records": get(&self.unsent_records),
            "stacks_forgotten": get(&self.stacks_forgotten),
            "side_band": { "events": get(&self.side_band_events), "lost": get(&self.side_band_lost) },
            "known": {
                "images": get(&self.images),
                "frames": get(&self.frames),
                "binaries": get(&self.binaries),
                "stacks": get(&self.stacks),
            },
            "binaries": {
                "stored": get(&self.binaries_stored),
                "already_there": get(&self.binaries_there),
                "too_big": get(&self.binaries_too_big),
                "failed": get(&self.binaries_failed),
                "not_queued": get(&self.binaries_not_queued),
            },
            "thinner_by": get(&self.thinner_by),
            "reads_given_up": get(&self.reads_given_up),
            "unwinding": {
                "processes": unwinding.processes,
                "lists": unwinding.lists,
                "tables": unwinding.tables,
                "places": unwinding.places,
                "used_bytes": unwinding.used_bytes,
                "held_bytes": unwinding.held_bytes,
                "samples_without": unwinding.samples_without,
                "evicted": unwinding.evicted,
                "made": get(&self.tables_made),
                "refused": get(&self.tables_refused),
                "kept_bytes": get(&self.tables_kept_bytes),
            },
            "slots": {
                "not_drawn": get(&self.slots[0]),
                "refused": get(&self.slots[1]),
                "run": get(&self.slots[2]),
                "missed": get(&self.slots_missed),
                "clock_jumps": get(&self.clock_jumps),
            },
            "user_stack_ends": ends,
        })
    }

    /// Returns all counters as the endpoint for metrics shows them.
    pub fn readings(&self) -> Vec<Reading> {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let unwinding = *self.unwinding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut readings: Vec<Reading> = [
            ("strobe_agent_samples_taken_total", &self.taken),
            ("strobe_agent_idle_ticks_total", &self.idle),
            ("strobe_agent_samples_spooled_total", &self.spooled_samples),
            ("strobe_agent_samples_sent_total", &self.sent_samples),
            ("strobe_agent_spool_written_bytes_total", &self.spooled_bytes),
            ("strobe_agent_spool_bytes", &self.spool_bytes),
            ("strobe_agent_unsent_records", &self.unsent_records),
            ("strobe_agent_stacks_forgotten_total", &self.stacks_forgotten),
            ("strobe_agent_side_band_events_total", &self.side_band_events),
            ("strobe_agent_side_band_lost_total", &self.side_band_lost),
            ("strobe_agent_reads_given_up_total", &self.reads_given_up),
            ("strobe_agent_unwind_tables_made_total", &self.tables_made),
            ("strobe_agent_unwind_tables_refused_total", &self.tables_refused),
        ]
        .map(|(name, counter)| Reading::of(name, get(counter)))
        .into();
        readings.push(Reading::of(
            "strobe_agent_unwind_table_bytes",
            unwinding.held_bytes,
        ));
        let labelled = |name, counters: &[(&'static str, u64)]| {
            let reading = |&(label, value)| Reading::labelled(name, label, value);
            counters.iter().map(reading).collect::<Vec<_>>()
        };
        // What the kernel lost shows in the counts of batches later; here it shows at once.
        let dropped = DropReason::ALL.map(|reason| {
            let counted = get(&self.dropped[reason as usize - 1]);
            let in_kernel = if reason == DropReason::RingFull {
                get(&self.kernel_dropped)
            } else {
                0
            };
            (reason.name(), counted.max(in_kernel))
        });
        readings.extend(labelled("strobe_agent_samples_dropped_total", &dropped));
        readings.extend(labelled(
            "strobe_agent_known",
            &[
                ("images", get(&self.images)),
                ("frames", get(&self.frames)),
                ("binaries", get(&self.binaries)),
                ("stacks", get(&self.stacks)),
            ],
        ));
        readings.extend(labelled(
            "strobe_agent_binaries_total",
            &[
                ("stored", get(&self.binaries_stored)),
                ("already_there", get(&self.binaries_there)),
                ("too_big", get(&self.binaries_too_big)),
                ("failed", get(&self.binaries_failed)),
                ("not_queued", get(&self.binaries_not_queued)),
            ],
        ));
        let ends: Vec<_> = StackEnd::ALL
            .iter()
            .zip(&self.user_ends)
            .map(|(end, count)| (end.name(), get(count)))
            .collect();
        readings.extend(labelled("strobe_agent_stack_ends_total", &ends));
        readings
    }

    /// Writes all counters to a file, in one step.
    pub(crate) fn write(&self, file: &Path, spool_bytes: u64) -> std::io::Result<()> {
        let next = file.with_extension("json.next");
        std::fs::write(&next, format!("{:#}\n", self.to_json(spool_bytes)))?;
        std::fs::rename(next, file)
    }
}

#[cfg(test)]
mod tests {
    use strobe_telemetry::METRICS;

    use super::*;

    /// Checks that what is counted here is in the list of metrics: what is not would be left out without a word.
    #[test]
    fn every_reading_is_listed() {
        for reading in Status::default().readings() {
            assert!(
                METRICS.iter().any(|metric| metric.name == reading.name),
                "{}",
                reading.name
            );
        }
    }
}
