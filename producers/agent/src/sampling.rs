//! The sampling thread: kernel → closed batches.
//!
//! Every 100 ms it reads the ring, then the side-band, and settles the samples in the order of time: an event of the side-band
//! is applied when all samples older than it are settled, and a sample younger than what the side-band has told stays until
//! the next round. So an address means what was mapped at its moment, and no sample taken before an `exec` meets the image
//! that came after it.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strobe_bpf::cgroup::CgroupPaths;
use strobe_bpf::{ProcessEventKind, Sampler, SamplerSettings, SideBand, SideBandSettings, monotonic_ns};
use strobe_bus::Shutdown;
use strobe_event::{DropReason, RunState, StackEnd};

use crate::batch::{Builder, Closing, Placed, Totals, stack_end};
use crate::binaries::NewBinary;
use crate::config::Settings;
use crate::error::AgentError;
use crate::files::Files;
use crate::held::{Held, HeldSamples};
use crate::images::{Change, Images};
use crate::kernel::Kernel;
use crate::normalize::normalize;
use crate::run::Run;
use crate::service::Services;
use crate::spooling::{Report, ToSpool};
use crate::stacks::{KnownStacks, StackId};
use crate::status::Status;
use crate::vocabulary::{FrameId, Vocabulary};

/// Pause between two readings: the ring holds far more than 100 ms at any rate that the kernel allows.
const ROUND: Duration = Duration::from_millis(100);
/// Longest interval of a batch: what a query waits for at most.
const BATCH_NS: u64 = 2_000_000_000;
/// Pause between two looks for what can be dropped.
const TIDY_NS: u64 = 1_000_000_000;
/// Stacks kept before those of older epochs are dropped: twice what the kernel remembers as sent.
const STACKS_MAX: usize = 32_768;

/// The thread's state.
pub struct Sampling {
    sampler: Sampler,
    side_band: SideBand,
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
    forgotten: Option<StackId>,
    services: Services,
    cgroups: CgroupPaths,
    builder: Builder,
    run: Run,
    report: Report,
    advance: bool,
    scratch: Vec<FrameId>,
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
        status: Arc<Status>,
    ) -> Result<Self, AgentError> {
        let sampler_settings = SamplerSettings {
            ring_bytes: settings.ring_bytes,
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
            forgotten: None,
            services: Services::default(),
            cgroups,
            builder: Builder::new(now_ns),
            run,
            report: Report::default(),
            advance: false,
            scratch: Vec::new(),
            to_spool,
            status: Arc::clone(&status),
        };
        settler.announce(RunState::Started, now_ns);
        Ok(Self {
            sampler,
            side_band,
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
        let mut tidied_ns = monotonic_ns();
        while !shutdown.is_requested() {
            self.sampler.wait(ROUND)?;
            self.round(&mut held)?;
            let now_ns = monotonic_ns();
            if now_ns.saturating_sub(tidied_ns) > TIDY_NS {
                tidied_ns = now_ns;
                self.tidy(now_ns);
            }
        }
        self.finish(&mut held)
    }

    /// Reads what there is, and settles what can be settled.
    fn round(&mut self, held: &mut HeldSamples) -> Result<(), AgentError> {
        let consumed = self.sampler.consume(&mut |sample| held.push(&sample))?;
        self.settler
            .builder
            .count_undecodable(consumed.undecodable as u64);
        held.sort();
        let (settler, sampler) = (&mut self.settler, &self.sampler);
        let mut next = 0;
        let clock_ns = self.side_band.drain(|event| {
            settler.settle_until(event.time_ns, held, &mut next, sampler);
            if let ProcessEventKind::Lost { records } = event.kind {
                settler.side_band_lost(records);
            } else if let Change::Replaced(image) =
                settler
                    .images
                    .apply(event.time_ns, &event.kind, &mut settler.files)
            {
                settler.stacks.forget_image(image);
                settler.advance = true;
            }
        })?;
        settler.settle_until(clock_ns, held, &mut next, sampler);
        held.settle(next);
        let now_ns = monotonic_ns();
        if now_ns.saturating_sub(settler.builder.start_ns()) >= BATCH_NS {
            settler.close(now_ns.min(clock_ns), sampler);
        }
        settler.turn_run_if_due(clock_ns, sampler);
        if std::mem::take(&mut settler.advance) {
            sampler.advance_epoch();
        }
        Ok(())
    }

    fn tidy(&mut self, now_ns: u64) {
        let settler = &mut self.settler;
        settler.images.expire(now_ns);
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
                sum(|c| c.taken),
                sum(|c| c.idle),
                sum(strobe_bpf::CpuCounters::dropped),
            );
        }
        let (frames, binaries, _) = settler.vocabulary.sizes();
        self.status.known(
            settler.images.len(),
            frames,
            binaries,
            settler.stacks.len(),
            settler.files.not_announced,
        );
    }

    /// Stops the clock, settles everything that is left and ends the run.
    fn finish(mut self, held: &mut HeldSamples) -> Result<(), AgentError> {
        self.sampler.stop()?;
        // The side-band must get past the last sample's time.
        std::thread::sleep(Duration::from_millis(2));
        self.round(held)?;
        let (settler, sampler) = (&mut self.settler, &self.sampler);
        let mut next = 0;
        settler.settle_until(u64::MAX, held, &mut next, sampler);
        let now_ns = monotonic_ns();
        settler.close(now_ns, sampler);
        let uncounted = settler.builder.uncounted(&totals(sampler));
        settler.report.taken += uncounted;
        settler.report.drop(DropReason::RingFull, uncounted);
        settler.announce(RunState::Finished, now_ns);
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
        let image = self.images.of_sample(held, &mut self.files);
        let stack = if held.frames_omitted {
            match self.stacks.sent(held.stack_hash, held.epoch) {
                Some(stack) => stack,
                None => {
                    self.status.stack_forgotten();
                    *self
                        .forgotten
                        .get_or_insert_with(|| self.stacks.add(&[], StackEnd::Forgotten))
                }
            }
        } else {
            let of_image = image.as_deref();
            let number = of_image.map_or(0, |image| image.number);
            let (kernel, vocabulary) = (&mut self.kernel, &mut self.vocabulary);
            normalize(
                addresses,
                held.time_ns,
                of_image,
                &self.files,
                kernel,
                vocabulary,
                &mut self.scratch,
            );
            self.stacks.insert(
                held.stack_hash,
                held.epoch,
                number,
                &self.scratch,
                stack_end(held),
            )
        };
        let cgroup = self.cgroups.path(held.cgroup_id);
        let is_kernel = held.user_end == strobe_bpf::StackEnd::NoUser;
        let (number, executable, belonging) = match image {
            _ if is_kernel => (0, None, Arc::new(self.services.of_kernel())),
            Some(image) => (
                image.number,
                image.executable.clone(),
                self.services.of_image(image, cgroup, &comm(held)),
            ),
            None => (0, None, Arc::new(self.services.of_unknown(cgroup, &comm(held)))),
        };
        let placed = Placed {
            stack,
            image: number,
            belonging: &belonging,
            executable: executable.as_deref(),
        };
        self.builder
            .push(held, placed, &self.stacks, &mut self.vocabulary);
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
        if let Some(batch) = closed {
            self.run.batches += 1;
            let samples = batch.samples.len() as u64;
            self.report.add(&batch);
            if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
                self.to_spool.try_send(ToSpool::Batch(Box::new(batch)))
            {
                // The spooling thread is behind by dozens of batches: the disk hangs. The newest is dropped.
                self.report.drop(DropReason::SpoolFull, samples);
                self.status.dropped(DropReason::SpoolFull, samples);
            }
        }
        self.tidy_vocabulary(sampler);
    }

    /// Starts anew where too much is known. Only between two batches: numbers given before mean nothing afterwards.
    fn tidy_vocabulary(&mut self, sampler: &Sampler) {
        self.forgotten = None;
        if self.vocabulary.is_full() || self.files.is_full() {
            self.vocabulary = Vocabulary::default();
            self.stacks.clear();
            if self.files.is_full() {
                self.files.forget();
                self.images.forget();
            }
            sampler.advance_epoch();
        } else if self.stacks.len() > STACKS_MAX {
            let epoch = sampler.advance_epoch();
            self.stacks.keep_from(epoch.wrapping_sub(1));
        }
    }

    /// Ends the run and starts the next when `time_ns` is past its planned end.
    fn turn_run_if_due(&mut self, time_ns: u64, sampler: &Sampler) {
        if time_ns < self.run.ends_ns {
            return;
        }
        self.close(self.run.ends_ns, sampler);
        self.announce(RunState::Finished, self.run.ends_ns);
        // After a stop of the machine the next run starts now, not for every slot that was slept through.
        let behind = time_ns.saturating_sub(self.run.ends_ns) > self.run_length.as_nanos() as u64;
        let start_ns = if behind { time_ns } else { self.run.ends_ns };
        self.run = Run::start(
            &self.host,
            self.frequency_hz,
            self.run_length,
            start_ns,
            wall_us(start_ns),
        );
        self.report = Report::default();
        self.announce(RunState::Started, start_ns);
    }

    fn announce(&mut self, state: RunState, now_ns: u64) {
        let done_us = now_ns.min(self.run.ends_ns).saturating_sub(self.run.started_ns) / 1_000;
        let event = ToSpool::Event {
            run: Box::new(self.run.head.clone()),
            state,
            time_us: wall_us(now_ns),
            done_us,
            report: self.report.clone(),
        };
        // Two for each run of a second or more: if even they do not fit, the spooling thread is stuck for good.
        if self.to_spool.try_send(event).is_err() {
            tracing::error!(run = %self.run.head.id, "an event of the run is lost: the spooling thread is stuck");
        }
    }

    /// The side-band's buffer was full: what is known of processes may be wrong, so that it is read anew.
    fn side_band_lost(&mut self, records: u64) {
        tracing::warn!(
            records,
            "the kernel's account of processes has a gap; processes are read from /proc again"
        );
        self.images.forget();
        self.stacks.forget_hashes();
        self.advance = true;
    }
}

fn comm(held: &Held) -> String {
    let end = held
        .comm
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(held.comm.len());
    String::from_utf8_lossy(&held.comm[..end]).into_owned()
}

fn totals(sampler: &Sampler) -> Totals {
    // A reading that fails leaves the counts as they were: they go with a later batch.
    Totals {
        counters: sampler.counters().unwrap_or_default(),
        times: sampler.times().unwrap_or_default(),
    }
}

/// Returns what to add to `CLOCK_MONOTONIC` to get nanoseconds since 1970.
fn wall_ns() -> i128 {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as i128);
    wall - i128::from(monotonic_ns())
}

fn wall_us(time_ns: u64) -> u64 {
    ((i128::from(time_ns) + wall_ns()).max(0) / 1_000) as u64
}
