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
    ProcessEventKind, Sampler, SamplerSettings, SideBand, SideBandSettings, Wake, monotonic_ns,
};
use strobe_bus::Shutdown;
use strobe_event::{DropReason, RunState, StackEnd};

use crate::audit::Auditor;
use crate::batch::{Closing, stack_end};
use crate::binaries::NewBinary;
use crate::config::Settings;
use crate::coverage::Done;
use crate::error::AgentError;
use crate::files::Files;
use crate::halt::Halt;
use crate::held::{Held, HeldSamples};
use crate::images::{Change, Images};
use crate::kernel::Kernel;
use crate::normalize::{Known, Normalizer};
use crate::run::Run;
use crate::runner::How;
use crate::schedule::{Order, Planned, RunReport};
use crate::service::Services;
use crate::spooling::{Event, Report, ToSpool};
use crate::stacks::StackId;
use crate::status::Status;
use crate::tables::{Made, Wanted};
use crate::unwinding::Unwinding;
use crate::vocabulary::Vocabulary;

mod asked;
mod epochs;
mod flow;
mod hole;
mod place;
mod safeguards;
mod turns;

use asked::Asked;
pub(crate) use asked::Prepared;
use epochs::Epochs;
use flow::Flow;
use hole::Hole;
use place::place;
use safeguards::Safeguards;
pub(crate) use turns::wall_us;
use turns::{Pace, wall_ns};

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
/// Events of runs that may wait while the spooling thread is behind.
const EVENTS_MAX: usize = 64;
/// Time for which the last events may wait, as the agent ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The thread's state.
pub struct Sampling {
    /// What is sampled all of the time, or as the schedule has it.
    continuous: Flow,
    /// What was asked for, beside it.
    asked: Vec<Asked>,
    side_band: SideBand,
    allowed_ns: u64,
    orders: Receiver<Order>,
    prepared: Receiver<Prepared>,
    settler: Settler,
    hole: Option<Hole>,
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
    normalizer: Normalizer,
    unwinding: Option<Unwinding>,
    services: Services,
    cgroups: CgroupPaths,
    pace: Pace,
    guards: Safeguards,
    reports: SyncSender<RunReport>,
    epochs: Epochs,
    events: VecDeque<ToSpool>,
    to_spool: SyncSender<ToSpool>,
    status: Arc<Status>,
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
        (prepared, halt, auditor): (Receiver<Prepared>, Arc<Halt>, Auditor),
        status: Arc<Status>,
    ) -> Result<Self, AgentError> {
        let sampler_settings = SamplerSettings {
            ring_bytes: settings.ring_bytes,
            tables_bytes_max: settings.unwind.kernel_bytes_max,
            paused: halt.why().is_some(),
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
            normalizer: Normalizer::default(),
            unwinding,
            services: Services::default(),
            cgroups,
            pace: Pace::default(),
            guards: Safeguards::new(halt, settings.budget, auditor),
            reports,
            epochs: Epochs::default(),
            events: VecDeque::new(),
            to_spool,
            status: Arc::clone(&status),
        };
        status.budget(crate::budget::Level::Full);
        settler.pace.idle = sampler_settings.paused;
        let continuous = Flow::new(sampler, run, now_ns);
        if !settler.pace.idle {
            settler.announce(&continuous, RunState::Started, now_ns, String::new());
        }
        Ok(Self {
            continuous,
            asked: Vec::new(),
            side_band,
            allowed_ns: 0,
            orders,
            prepared,
            settler,
            hole: Hole::from_environment(),
            status,
        })
    }

    /// Takes out the means to look into the unwind tables that this thread keeps in the kernel.
    pub fn take_shared_tables(&mut self) -> Option<strobe_bpf::SharedTables> {
        self.continuous.sampler.take_shared_tables()
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
        self.end_asked(monotonic_ns(), "the agent was stopped");
        let now_ns = self.continuous.stopped_ns.unwrap_or_else(monotonic_ns);
        self.settler.close(&mut self.continuous, now_ns);
        self.continuous.measure(now_ns);
        self.continuous.count_lost();
        self.tidy(now_ns);
        let (settler, flow) = (&mut self.settler, &mut self.continuous);
        if !settler.pace.idle {
            match &ended {
                Ok(()) if now_ns < flow.run.ends_ns => {
                    settler.announce(
                        flow,
                        RunState::Finished,
                        now_ns,
                        "the agent was stopped".to_owned(),
                    );
                }
                Ok(()) => settler.announce(flow, RunState::Finished, now_ns, String::new()),
                Err(error) => settler.announce(flow, RunState::Failed, now_ns, error.to_string()),
            }
            settler.account(flow, now_ns);
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
            let woken = self.continuous.sampler.wait(self.until_turn(pause))? == Wake::NearlyFull;
            self.guard();
            self.obey()?;
            self.take_prepared();
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
        self.stop_asked_in_time();
        let (settler, flow) = (&mut self.settler, &mut self.continuous);
        let mut parents = Vec::new();
        let mut read = flow.read(held, self.hole, &mut settler.unwinding, &mut parents)?;
        for asked in &mut self.asked {
            read += asked.read(&mut settler.unwinding, &mut parents);
        }
        settler.guards.samples += read as u64;
        let mut next = 0;
        let asked = &mut self.asked;
        let clock_ns = self.side_band.drain(|event| {
            settler.settle_until(flow, event.time_ns, held, &mut next);
            asked
                .iter_mut()
                .for_each(|asked| asked.settle_until(settler, event.time_ns));
            settler.take_event(flow, asked, event.time_ns, &event.kind);
        })?;
        settler.settle_until(flow, clock_ns, held, &mut next);
        held.settle(next);
        asked
            .iter_mut()
            .for_each(|asked| asked.settle_until(settler, clock_ns));
        let now_ns = monotonic_ns();
        if !settler.pace.idle && now_ns.saturating_sub(flow.builder.start_ns()) >= BATCH_NS {
            settler.close(flow, now_ns.min(clock_ns));
        }
        settler.turn_run_if_due(flow, clock_ns);
        self.turn_asked(clock_ns);
        let (settler, flow) = (&mut self.settler, &mut self.continuous);
        settler.tidy_stacks(flow, &mut self.asked, now_ns);
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
            let no_room = unwinding.has_no_room();
            flow.sampler.set_no_room(no_room);
            self.asked
                .iter()
                .for_each(|asked| asked.flow.sampler.set_no_room(no_room));
            if now_ns.saturating_sub(self.allowed_ns) >= WAKE_NS {
                self.allowed_ns = now_ns;
                flow.sampler.allow_wake_for_image();
                self.asked
                    .iter()
                    .for_each(|asked| asked.flow.sampler.allow_wake_for_image());
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
        let sampler = &mut self.continuous.sampler;
        if let Err(error) = sampler
            .refresh_cpus()
            .map(drop)
            .and_then(|()| self.side_band.refresh_cpus())
        {
            tracing::warn!(%error, "CPUs that came or went cannot be followed");
        }
        let side_band = self.side_band.counters();
        self.status.side_band(side_band.delivered, side_band.lost);
        if let Ok(counters) = self.continuous.sampler.counters() {
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
            self.continuous.stacks.len(),
            settler.files.not_announced,
        );
    }

    /// Stops the clock and settles everything that is left.
    fn finish(&mut self, held: &mut HeldSamples) -> Result<(), AgentError> {
        self.continuous.sampler.stop()?;
        // The side-band must get past the last sample's time.
        std::thread::sleep(Duration::from_millis(2));
        self.round(held)?;
        let mut next = 0;
        self.settler
            .settle_until(&mut self.continuous, u64::MAX, held, &mut next);
        held.settle(next);
        Ok(())
    }
}

impl Settler {
    /// Settles the held samples from position `next` that are older than `time_ns`.
    fn settle_until(&mut self, flow: &mut Flow, time_ns: u64, held: &HeldSamples, next: &mut usize) {
        while let Some(sample) = held.get(*next).filter(|sample| sample.time_ns < time_ns) {
            self.turn_run_if_due(flow, sample.time_ns);
            self.settle(flow, sample, held.addresses(sample));
            *next += 1;
        }
    }

    /// Puts a sample into the open batch.
    fn settle(&mut self, flow: &mut Flow, held: &Held, addresses: (&[u64], &[u64])) {
        if flow.builder.is_full() {
            self.close(flow, held.time_ns);
        }
        let stack = if held.frames_omitted {
            self.sent_stack(flow, held)
        } else {
            self.new_stack(flow, held, addresses)
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
        flow.builder
            .push(held, stack, &flow.stacks, &mut self.vocabulary, || {
                place(held, images, files, services, cgroups.path(held.cgroup_id))
            });
    }

    /// Returns the service of a sample's process.
    fn service_of(&mut self, held: &Held) -> Arc<str> {
        let cgroup = self.cgroups.path(held.cgroup_id);
        let placed = place(
            held,
            &mut self.images,
            &mut self.files,
            &mut self.services,
            cgroup,
        );
        Arc::clone(&placed.belonging.service)
    }

    fn sent_stack(&mut self, flow: &mut Flow, held: &Held) -> StackId {
        flow.stacks.sent(held.stack_hash, held.epoch).unwrap_or_else(|| {
            self.status.stack_forgotten();
            let stacks = &mut flow.stacks;
            *flow
                .forgotten
                .get_or_insert_with(|| stacks.add(&[], StackEnd::Forgotten))
        })
    }

    fn new_stack(&mut self, flow: &mut Flow, held: &Held, addresses: (&[u64], &[u64])) -> StackId {
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
        flow.stacks
            .insert(held.stack_hash, held.epoch, number, frames, stack_end(held))
    }

    /// Takes an event of the side-band.
    fn take_event(
        &mut self,
        flow: &mut Flow,
        asked: &mut [Asked],
        time_ns: u64,
        event: &ProcessEventKind<'_>,
    ) {
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
            flow.stacks.forget_image(image);
            for asked in asked {
                asked.flow.stacks.forget_image(image);
            }
            self.epochs.wanted = true;
        }
    }

    /// Closes the batch, if it has samples, and hands it to the spooling thread.
    fn close(&mut self, flow: &mut Flow, now_ns: u64) {
        let totals = flow.totals();
        let closing = Closing {
            run: &flow.run.head,
            index: flow.run.batches,
            now_ns,
            wall_ns: wall_ns(),
        };
        let closed = flow
            .builder
            .close(&closing, &totals, &flow.stacks, &self.vocabulary);
        let Some(batch) = closed else { return };
        flow.run.batches += 1;
        let samples = batch.samples.len() as u64;
        flow.report.add(&batch);
        flow.run.count(&batch);
        // Events go first: they were there before it.
        if !self.send_events() || self.to_spool.try_send(ToSpool::Batch(Box::new(batch))).is_err() {
            // The spooling thread is behind by dozens of batches: the disk hangs. The newest is dropped.
            flow.report.drop(DropReason::SpoolFull, samples);
            self.status.dropped(DropReason::SpoolFull, samples);
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
