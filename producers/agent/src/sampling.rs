//! The sampling thread: kernel → closed batches.
//!
//! Every 100 or 200 ms it reads the ring, then the side-band, and settles the samples in the order of time: an event of the side-band
//! is applied when all samples older than it are settled, and a sample younger than what the side-band has told stays until
//! the next round. So an address means what was mapped at its moment, and no sample taken before an `exec` meets the image
//! that came after it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use strobe_bpf::cgroup::CgroupPaths;
use strobe_bpf::{
    ImageIdentity, ProcessEventKind, Sampler, SamplerSettings, SideBand, SideBandSettings, Wake, monotonic_ns,
};
use strobe_bus::Shutdown;
use strobe_event::{DropReason, RunState, StackEnd};

use crate::batch::{Builder, Closing, Totals, stack_end};
use crate::binaries::NewBinary;
use crate::config::Settings;
use crate::coverage::Done;
use crate::error::AgentError;
use crate::files::Files;
use crate::held::{Held, HeldSamples};
use crate::images::{Change, Images};
use crate::kernel::Kernel;
use crate::normalize::{Known, Normalizer};
use crate::run::Run;
use crate::schedule::{Order, Planned, RunReport};
use crate::service::Services;
use crate::spooling::{Event, Report, ToSpool};
use crate::stacks::{KnownStacks, StackId};
use crate::status::Status;
use crate::tables::{Made, Wanted};
use crate::unwinding::Unwinding;
use crate::vocabulary::Vocabulary;

mod place;
mod turns;

use place::place;
use turns::{Pace, wall_ns, wall_us};

/// Pause between two readings, each of which costs as much as a dozen samples. A ring that fills up ends it earlier.
const ROUND: Duration = Duration::from_millis(200);
/// The same at more than [`FAST_HZ`], where readings are the smaller part of the cost and the ring fills twice as fast.
const ROUND_FAST: Duration = Duration::from_millis(100);
const FAST_HZ: u32 = 500;
/// Pause while unwind tables are being made: until they are in the kernel, stacks are walked without them.
const SHORT_ROUND: Duration = Duration::from_millis(10);
/// Pause behind a wake-up: what woke is settled then, as the side-band is a millisecond behind.
const SETTLED: Duration = Duration::from_millis(2);
/// Shortest time between two wake-ups for images without tables: each costs some 15 µs and two rounds.
const WAKE_NS: u64 = 10_000_000;
/// Longest interval of a batch: what a query waits for at most.
const BATCH_NS: u64 = 2_000_000_000;
/// Pause between two looks for what can be dropped.
const TIDY_NS: u64 = 1_000_000_000;
/// Shortest time between two epochs: each makes the kernel send every stack once more.
const EPOCH_NS: u64 = 1_000_000_000;
/// Parents without tables that are looked at after one reading: the others are named again by their next child.
const PARENTS_MAX: usize = 256;
/// Stacks kept before those of older epochs are dropped: half as much again as the kernel remembers as sent.
const STACKS_MAX: usize = 24_576;
/// Events of runs that may wait while the spooling thread is behind.
const EVENTS_MAX: usize = 64;
/// Time for which the last events may wait, as the agent ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The thread's state.
pub struct Sampling {
    sampler: Sampler,
    side_band: SideBand,
    allowed_ns: u64,
    orders: Receiver<Order>,
    settler: Settler,
    status: Arc<Status>,
}

/// What samples are settled with.
struct Settler {
    host: String,
    frequency_hz: u32,
    run_length: Duration,
    images: Images,
    files: Files,
    kernel: Kernel,
    vocabulary: Vocabulary,
    stacks: KnownStacks,
    normalizer: Normalizer,
    forgotten: Option<StackId>,
    unwinding: Option<Unwinding>,
    services: Services,
    cgroups: CgroupPaths,
    builder: Builder,
    run: Run,
    pace: Pace,
    reports: SyncSender<RunReport>,
    report: Report,
    epochs: Epochs,
    events: VecDeque<ToSpool>,
    to_spool: SyncSender<ToSpool>,
    status: Arc<Status>,
}

/// When the kernel is to send its stacks anew.
#[derive(Debug, Default)]
struct Epochs {
    /// Something changed what stacks mean.
    wanted: bool,
    /// Too many stacks, frames or files are kept.
    crowded: bool,
    advanced_ns: u64,
    /// Records of older epochs are still under way until the next reading.
    forget_before: Option<u32>,
}

impl Sampling {
    /// Starts sampling.
    ///
    /// # Errors
    /// [`AgentError::Bpf`] says what the kernel refuses and what to do about it.
    pub fn start(
        settings: &Settings,
        to_spool: SyncSender<ToSpool>,
        announce: Option<SyncSender<NewBinary>>,
        (to_make, made): (SyncSender<Wanted>, Receiver<Made>),
        (orders, reports): (Receiver<Order>, SyncSender<RunReport>),
        status: Arc<Status>,
    ) -> Result<Self, AgentError> {
        let sampler_settings = SamplerSettings {
            ring_bytes: settings.ring_bytes,
            tables_bytes_max: settings.unwind.kernel_bytes_max,
            ..SamplerSettings::at(settings.frequency_hz)
        };
        // The side-band first: what happens between the two is known twice rather than not at all.
        let side_band = SideBand::start(&SideBandSettings::default())?;
        let now_ns = monotonic_ns();
        let mut files = Files::new(announce);
        let mut images = Images::default();
        images.scan(&mut files, now_ns);
        let kernel = Kernel::read(now_ns);
        if kernel.is_hidden() {
            tracing::warn!(
                "/proc/kallsyms shows no addresses: kernel functions stay without names; CAP_SYSLOG shows them"
            );
        }
        let cgroups = CgroupPaths::new(&sampler_settings.hierarchy);
        let mut sampler = Sampler::start(&sampler_settings)?;
        sampler.wake_on_side_band(&side_band)?;
        let unwinding = sampler
            .take_tables()
            .map(|memory| Unwinding::new(memory, to_make, made));
        let now_ns = monotonic_ns();
        let run = Run::start(
            &settings.host,
            settings.frequency_hz,
            settings.run_length,
            now_ns,
            wall_us(now_ns),
        );
        let mut settler = Settler {
            host: settings.host.clone(),
            frequency_hz: settings.frequency_hz,
            run_length: settings.run_length,
            images,
            files,
            kernel,
            vocabulary: Vocabulary::default(),
            stacks: KnownStacks::default(),
            normalizer: Normalizer::default(),
            forgotten: None,
            unwinding,
            services: Services::default(),
            cgroups,
            builder: Builder::new(now_ns),
            run,
            pace: Pace::default(),
            reports,
            report: Report::default(),
            epochs: Epochs::default(),
            events: VecDeque::new(),
            to_spool,
            status: Arc::clone(&status),
        };
        settler.announce(RunState::Started, now_ns, String::new());
        Ok(Self {
            sampler,
            side_band,
            allowed_ns: 0,
            orders,
            settler,
            status,
        })
    }

    /// Samples until the wish to stop, then ends the run.
    ///
    /// # Errors
    /// [`AgentError::Bpf`] where the kernel's side can no longer be read.
    pub fn run(mut self, shutdown: &Shutdown) -> Result<(), AgentError> {
        let mut held = HeldSamples::default();
        let ended = self
            .sample(&mut held, shutdown)
            .and_then(|()| self.finish(&mut held));
        let settler = &mut self.settler;
        let now_ns = settler.pace.stopped_ns.unwrap_or_else(monotonic_ns);
        settler.close(now_ns, &self.sampler);
        let uncounted = settler.builder.uncounted(&totals(&self.sampler));
        settler.report.taken += uncounted;
        settler.report.drop(DropReason::RingFull, uncounted);
        self.tidy(now_ns);
        let settler = &mut self.settler;
        if !settler.pace.idle {
            match &ended {
                Ok(()) if now_ns < settler.run.ends_ns => {
                    settler.announce(RunState::Finished, now_ns, "the agent was stopped".to_owned());
                }
                Ok(()) => settler.announce(RunState::Finished, now_ns, String::new()),
                Err(error) => settler.announce(RunState::Failed, now_ns, error.to_string()),
            }
            settler.account(now_ns);
        }
        settler.send_last_events();
        ended
    }

    fn sample(&mut self, held: &mut HeldSamples, shutdown: &Shutdown) -> Result<(), AgentError> {
        let mut tidied_ns = monotonic_ns();
        let fast = self.settler.frequency_hz > FAST_HZ;
        let round = if fast { ROUND_FAST } else { ROUND };
        let mut pause = round;
        while !shutdown.is_requested() {
            let woken = self.sampler.wait(self.until_turn(pause))? == Wake::NearlyFull;
            self.obey()?;
            self.round(held)?;
            let waiting = self.settler.unwinding.as_ref().is_some_and(Unwinding::is_waiting);
            pause = match (woken, waiting) {
                (true, _) => SETTLED,
                (false, true) => SHORT_ROUND,
                (false, false) => round,
            };
            let now_ns = monotonic_ns();
            if now_ns.saturating_sub(tidied_ns) > TIDY_NS {
                tidied_ns = now_ns;
                self.tidy(now_ns);
            }
        }
        Ok(())
    }

    /// Reads what there is, and settles what can be settled.
    fn round(&mut self, held: &mut HeldSamples) -> Result<(), AgentError> {
        let unwinding = &mut self.settler.unwinding;
        let mut parents = Vec::new();
        let consumed = self.sampler.consume(&mut |sample| {
            if sample.without_tables()
                && let Some(unwinding) = unwinding
            {
                unwinding.expect(ImageIdentity {
                    tgid: sample.tgid,
                    start_time_ns: sample.start_time_ns,
                    exec_id: sample.exec_id,
                });
                if let Some(parent) = sample.parent.filter(|_| parents.len() < PARENTS_MAX) {
                    parents.push((sample.time_ns, parent));
                }
            }
            held.push(&sample);
        })?;
        self.settler
            .builder
            .count_undecodable(consumed.undecodable as u64);
        held.sort();
        let (settler, sampler) = (&mut self.settler, &self.sampler);
        let mut next = 0;
        let clock_ns = self.side_band.drain(|event| {
            settler.settle_until(event.time_ns, held, &mut next, sampler);
            settler.take_event(event.time_ns, &event.kind);
        })?;
        settler.settle_until(clock_ns, held, &mut next, sampler);
        held.settle(next);
        let now_ns = monotonic_ns();
        if !settler.pace.idle && now_ns.saturating_sub(settler.builder.start_ns()) >= BATCH_NS {
            settler.close(now_ns.min(clock_ns), sampler);
        }
        settler.turn_run_if_due(clock_ns, sampler);
        settler.tidy_stacks(now_ns, sampler);
        if let Some(unwinding) = &mut settler.unwinding {
            // Only now: the side-band has told which images there were.
            for (time_ns, parent) in parents {
                settler.images.learn(&parent, time_ns);
                unwinding.expect(parent);
            }
            complain(
                &self.status,
                unwinding.round(&settler.images, &settler.files, now_ns),
            );
            sampler.set_no_room(unwinding.has_no_room());
            if now_ns.saturating_sub(self.allowed_ns) >= WAKE_NS {
                self.allowed_ns = now_ns;
                sampler.allow_wake_for_image();
            }
        }
        self.turn(clock_ns)
    }

    fn tidy(&mut self, now_ns: u64) {
        let settler = &mut self.settler;
        settler.images.expire(now_ns);
        if let Some(unwinding) = &mut settler.unwinding {
            complain(&self.status, unwinding.tidy(&settler.images));
            self.status.unwinding(unwinding.counts());
        }
        if let Err(error) = self
            .sampler
            .refresh_cpus()
            .map(drop)
            .and_then(|()| self.side_band.refresh_cpus())
        {
            tracing::warn!(%error, "CPUs that came or went cannot be followed");
        }
        let side_band = self.side_band.counters();
        self.status.side_band(side_band.delivered, side_band.lost);
        if let Ok(counters) = self.sampler.counters() {
            let sum = |of: fn(&strobe_bpf::CpuCounters) -> u64| counters.values().map(of).sum::<u64>();
            self.status.kernel(
                monotonic_ns(),
                sum(|c| c.taken),
                sum(|c| c.idle),
                sum(strobe_bpf::CpuCounters::dropped),
            );
            let mut all = strobe_bpf::CpuCounters::default();
            counters.values().for_each(|counters| all.add(counters));
            self.status.user_ends(&all.user_ends);
        }
        self.status
            .reads_given_up(settler.files.given_up() + settler.images.given_up());
        let (frames, binaries, _) = settler.vocabulary.sizes();
        self.status.known(
            settler.images.len(),
            frames,
            binaries,
            settler.stacks.len(),
            settler.files.not_announced,
        );
    }

    /// Stops the clock and settles everything that is left.
    fn finish(&mut self, held: &mut HeldSamples) -> Result<(), AgentError> {
        self.sampler.stop()?;
        // The side-band must get past the last sample's time.
        std::thread::sleep(Duration::from_millis(2));
        self.round(held)?;
        let mut next = 0;
        self.settler
            .settle_until(u64::MAX, held, &mut next, &self.sampler);
        held.settle(next);
        Ok(())
    }
}

impl Settler {
    /// Settles the held samples from position `next` that are older than `time_ns`.
    fn settle_until(&mut self, time_ns: u64, held: &HeldSamples, next: &mut usize, sampler: &Sampler) {
        while let Some(sample) = held.get(*next).filter(|sample| sample.time_ns < time_ns) {
            self.settle(sample, held.addresses(sample), sampler);
            *next += 1;
        }
    }

    fn settle(&mut self, held: &Held, addresses: (&[u64], &[u64]), sampler: &Sampler) {
        self.turn_run_if_due(held.time_ns, sampler);
        if self.builder.is_full() {
            self.close(held.time_ns, sampler);
        }
        let stack = if held.frames_omitted {
            self.sent_stack(held)
        } else {
            self.new_stack(held, addresses)
        };
        if held.without_tables
            && let Some(unwinding) = &mut self.unwinding
        {
            unwinding.want(held);
        }
        let (images, files, services, cgroups) = (
            &mut self.images,
            &mut self.files,
            &mut self.services,
            &mut self.cgroups,
        );
        self.builder
            .push(held, stack, &self.stacks, &mut self.vocabulary, || {
                place(held, images, files, services, cgroups.path(held.cgroup_id))
            });
    }

    fn sent_stack(&mut self, held: &Held) -> StackId {
        self.stacks.sent(held.stack_hash, held.epoch).unwrap_or_else(|| {
            self.status.stack_forgotten();
            let stacks = &mut self.stacks;
            *self
                .forgotten
                .get_or_insert_with(|| stacks.add(&[], StackEnd::Forgotten))
        })
    }

    fn new_stack(&mut self, held: &Held, addresses: (&[u64], &[u64])) -> StackId {
        let image = self.images.of_sample(held, &mut self.files);
        let number = image.as_ref().map_or(0, |image| image.number);
        let known = Known {
            files: &self.files,
            kernel: &mut self.kernel,
            vocabulary: &mut self.vocabulary,
        };
        let frames = self
            .normalizer
            .frames(addresses, held.time_ns, image.as_deref(), known);
        self.stacks
            .insert(held.stack_hash, held.epoch, number, frames, stack_end(held))
    }

    /// Takes an event of the side-band.
    fn take_event(&mut self, time_ns: u64, event: &ProcessEventKind<'_>) {
        if let Some(unwinding) = &mut self.unwinding {
            let written = match *event {
                ProcessEventKind::Mmap(ref mmap) => {
                    unwinding.changed(mmap.pid);
                    Ok(())
                }
                ProcessEventKind::Exec { pid, .. } => unwinding.ended(pid),
                ProcessEventKind::Exit { pid, tid } if pid == tid => unwinding.ended(pid),
                _ => Ok(()),
            };
            complain(&self.status, written);
        }
        if let ProcessEventKind::Lost { records } = *event {
            // What is known of processes may be wrong from here on. What stacks of the current epoch meant when they were
            // sent stays true of samples that were taken before the next one.
            tracing::warn!(
                records,
                "the kernel's account of processes has a gap; processes are read from /proc again"
            );
            self.images.forget();
            self.epochs.wanted = true;
        } else if let Change::Replaced(image) = self.images.apply(time_ns, event, &mut self.files) {
            self.stacks.forget_image(image);
            self.epochs.wanted = true;
        }
    }

    /// Closes the batch, if it has samples, and hands it to the spooling thread.
    fn close(&mut self, now_ns: u64, sampler: &Sampler) {
        let totals = totals(sampler);
        let closing = Closing {
            run: &self.run.head,
            index: self.run.batches,
            now_ns,
            wall_ns: wall_ns(),
        };
        let closed = self
            .builder
            .close(&closing, &totals, &self.stacks, &self.vocabulary);
        let Some(batch) = closed else { return };
        self.run.batches += 1;
        let samples = batch.samples.len() as u64;
        self.report.add(&batch);
        self.run.count(&batch);
        // Events go first: they were there before it.
        if !self.send_events() || self.to_spool.try_send(ToSpool::Batch(Box::new(batch))).is_err() {
            // The spooling thread is behind by dozens of batches: the disk hangs. The newest is dropped.
            self.report.drop(DropReason::SpoolFull, samples);
            self.status.dropped(DropReason::SpoolFull, samples);
        }
    }

    /// Begins an epoch where one is due, and forgets what is no longer needed where too much is known. Called once for each
    /// reading of the ring, so that what refers to an older epoch has been settled when its stacks are dropped.
    fn tidy_stacks(&mut self, now_ns: u64, sampler: &Sampler) {
        if let Some(epoch) = self.epochs.forget_before.take() {
            // Only between two batches: numbers given before mean nothing afterwards.
            self.close(now_ns, sampler);
            self.forgotten = None;
            self.stacks.keep_from(epoch);
            if self.vocabulary.is_full() {
                let old = std::mem::take(&mut self.vocabulary);
                let new = &mut self.vocabulary;
                self.stacks.renumber(|frame| new.adopt(&old, frame));
                self.normalizer.forget();
            }
            if self.files.is_full() {
                if let Some(unwinding) = &mut self.unwinding {
                    complain(&self.status, unwinding.forget());
                }
                self.files.forget();
                self.images.forget();
                self.normalizer.forget();
            }
        }
        self.epochs.wanted |= self.images.was_scanned_late();
        self.epochs.crowded =
            self.stacks.len() > STACKS_MAX || self.vocabulary.is_full() || self.files.is_full();
        let due = now_ns.saturating_sub(self.epochs.advanced_ns) >= EPOCH_NS;
        if (self.epochs.wanted && due) || self.epochs.crowded {
            let epoch = sampler.advance_epoch();
            self.epochs.advanced_ns = now_ns;
            self.epochs.wanted = false;
            self.epochs.forget_before = self.epochs.crowded.then_some(epoch);
        }
    }
}

/// Says that the kernel did not take a change of the unwind tables. Sampling goes on: stacks without tables are walked by frame
/// pointers, and say so.
fn complain(status: &Status, written: Result<(), strobe_bpf::Error>) {
    if let Err(error) = written
        && status.may_complain()
    {
        tracing::warn!(%error, "unwind tables cannot be written");
    }
}

fn totals(sampler: &Sampler) -> Totals {
    // A reading that fails leaves the counts as they were: they go with a later batch.
    Totals {
        counters: sampler.counters().unwrap_or_default(),
        times: sampler.times().unwrap_or_default(),
    }
}
