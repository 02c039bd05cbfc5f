//! The scheduling thread: plans → which slot runs, when and how; and what became of each.
//!
//! While no plan is known, the host is profiled all of the time, run after run. Once one is, each slot is judged as it starts:
//! the number of the last one judged goes to disk first, so that a crash can lose a slot and never run one twice (of short slots
//! several at once, so that a slow disk holds none of them up); the strongest plan of the services that live here is taken whole; a hash decides. At the slot's moment it is counted as planned for
//! whoever is present then, drawn or not.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

use strobe_bpf::monotonic_ns;
use strobe_event::{HostRecord, WHOLE_HOST};
use strobe_sampling::hash::Probability;
use strobe_sampling::plan::{Plan, choose};
use strobe_sampling::schedule::{Memory, Opening, STALL_MAX_US, Schedule, Verdict};
use strobe_sampling::slot::{Grid, HOUR_US};

use crate::config::Settings;
use crate::coverage::{CoverageBook, Done, Slot, TELL_US};
use crate::plans::{Plans, write_whole};
use crate::presence::{Look, Presence};
use crate::procfs::wall_us;
use crate::run::PROFILER;
use crate::spooling::{Said, ToSpool};
use crate::status::Status;

/// The file's name, in the agent's state folder.
pub const FILE: &str = "schedule.json";
/// Orders and reports that may wait: a slot has one of each.
pub const QUEUE: usize = 64;
/// Longest sleep: how late a jump of the clock, or a new plan, is seen.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time by which a slot is judged before it starts.
const AHEAD_US_MAX: u64 = 2_000_000;
/// How much later than would fit into its slot a run may still start: what a busy host is late by. Without it those whose place is
/// at their slot's end would be refused more often than others.
const GRACE_US: u64 = 100_000;
/// Time whose slots are noted on disk at once: what a slow disk takes for it. A crash loses the slots of at most that time.
const NOTED_US: u64 = 10_000_000;
/// What may wait for the spooling thread: two tellings of the most services that a host has. What is beyond is told again with
/// the next telling, which is whole.
const OUTBOX_MAX: usize = 2_048;

/// What the sampling thread is to do.
#[derive(Debug)]
pub enum Order {
    /// Run after run.
    Continuous,
    /// Only what is ordered.
    Scheduled,
    /// Run in this slot.
    Run(Box<Planned>),
}

/// A slot that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Its number.
    pub slot: u64,
    /// When the run starts, `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// By when it must have started, in order to fit.
    pub latest_ns: u64,
    /// How long it lasts, microseconds.
    pub planned_us: u64,
    /// Length of the slot.
    pub slot_us: u64,
    /// The probability with which it was drawn.
    pub run_probability: f64,
    /// Time between two ticks.
    pub period_ns: u64,
}

/// What became of a run.
#[derive(Debug)]
pub struct RunReport {
    /// Its slot; none of those that follow each other.
    pub slot: Option<u64>,
    /// When it began, microseconds since 1970.
    pub started_us: u64,
    /// What it did; nothing where it could not run.
    pub done: Option<Done>,
    /// Length of its slot.
    pub slot_us: u64,
}

/// A slot that was judged and is not settled.
#[derive(Debug)]
struct Pending {
    start_ns: u64,
    end_ns: u64,
    hour: u64,
    plan: Plan,
    runs: bool,
    present: Option<Vec<Arc<str>>>,
    report: Option<Option<Done>>,
}

/// The thread's state.
pub struct Scheduling {
    host: String,
    run_length_us: u64,
    schedule: Schedule,
    slot_us: u64,
    plans: Arc<Plans>,
    memory_file: PathBuf,
    /// The last slot that is noted on disk as judged.
    noted: Option<u64>,
    presence: Presence,
    present: Vec<Arc<str>>,
    /// The services that the bus was last told of.
    announced: Vec<Arc<str>>,
    book: CoverageBook,
    pending: BTreeMap<u64, Pending>,
    scheduled: bool,
    orders: SyncSender<Order>,
    to_spool: SyncSender<ToSpool>,
    outbox: VecDeque<Said>,
    labels: Vec<String>,
    tell_at_us: u64,
    status: Arc<Status>,
}

impl Scheduling {
    /// Returns the thread's state, and orders what the plans of the last start ask for.
    pub fn new(
        settings: &Settings,
        plans: Arc<Plans>,
        orders: SyncSender<Order>,
        to_spool: SyncSender<ToSpool>,
        status: Arc<Status>,
    ) -> Self {
        let memory_file = settings.state_dir.join(FILE);
        let memory: Memory = std::fs::read(&memory_file)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let length = plans.bounds().slot;
        let grid = Grid::new(&settings.schedule.salt, PROFILER, &settings.host, length);
        let mut new = Self {
            host: settings.host.clone(),
            run_length_us: settings.run_length.as_micros() as u64,
            schedule: Schedule::new(grid, memory),
            slot_us: length.us(),
            plans,
            memory_file,
            noted: None,
            presence: Presence::new(),
            present: Vec::new(),
            announced: Vec::new(),
            book: CoverageBook::default(),
            pending: BTreeMap::new(),
            scheduled: false,
            orders,
            to_spool,
            outbox: VecDeque::new(),
            labels: settings.schedule.labels.clone(),
            tell_at_us: 0,
            status,
        };
        new.turn_to_plans();
        new
    }

    /// Schedules until the sampling thread has ended, then tells what is left.
    pub fn run(mut self, reports: &Receiver<RunReport>) {
        self.look();
        self.announce_host();
        let mut told_first = false;
        loop {
            let sleep = self.round();
            match reports.recv_timeout(sleep) {
                Ok(report) => {
                    self.take(report);
                    // Whoever starts an agent wants to see something: not only at the next full five minutes.
                    if !std::mem::replace(&mut told_first, true) {
                        self.look();
                        self.tell();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // What was noted beyond the last slot judged is there for the next life.
        if let (Some(_), Some(last)) = (self.noted, self.schedule.memory().last) {
            self.note(last);
        }
        self.look();
        self.tell();
        for said in std::mem::take(&mut self.outbox) {
            // The spooling thread takes what comes until this sender is gone.
            if self.to_spool.send(ToSpool::Said(Box::new(said))).is_err() {
                break;
            }
        }
    }

    /// Does what is due; returns for how long nothing will be.
    fn round(&mut self) -> Duration {
        self.turn_to_plans();
        let mut sleep = LOOK;
        if self.scheduled {
            // As many as are due: after a pause of the machine those of some seconds.
            loop {
                let now_us = wall_us();
                match self.schedule.look_ahead(now_us, self.ahead_us()) {
                    Verdict::Wait { until_us } => {
                        sleep = sleep.min(Duration::from_micros(until_us.saturating_sub(now_us)));
                        break;
                    }
                    Verdict::Opens(opening) => self.open(&opening),
                }
            }
        }
        sleep = sleep.min(self.settle_moments());
        // Whoever asks for profiles of a service asks the hosts that are known to have it.
        if self.present != self.announced {
            self.announce_host();
        }
        let now_us = wall_us();
        // Also where the clock went back.
        if now_us >= self.tell_at_us || self.tell_at_us > now_us + TELL_US {
            if self.tell_at_us > 0 {
                self.look();
                self.tell();
                self.announce_host();
            }
            self.tell_at_us = (now_us / TELL_US + 1) * TELL_US;
        }
        self.flush();
        sleep.min(Duration::from_micros(self.tell_at_us.saturating_sub(now_us)))
    }

    /// Returns how early slots are judged: a slow disk, and a look at many processes, take part of a second.
    fn ahead_us(&self) -> u64 {
        AHEAD_US_MAX.min(self.slot_us / 2)
    }

    /// Lets the sampling thread follow plans once there are some, and go on by itself when there are none.
    fn turn_to_plans(&mut self) {
        let wanted = !self.plans.is_empty();
        if wanted == self.scheduled {
            return;
        }
        let order = if wanted {
            Order::Scheduled
        } else {
            Order::Continuous
        };
        if self.orders.try_send(order).is_ok() {
            self.scheduled = wanted;
            tracing::info!(
                plans = self.plans.len(),
                "{}",
                match wanted {
                    true => "profiling by plan",
                    false => "no plan: profiling all of the time",
                }
            );
        }
    }

    /// Judges a slot that starts.
    fn open(&mut self, opening: &Opening) {
        let slot = opening.slot;
        if opening.clock_was_ahead {
            tracing::warn!("the clock was more than a day ahead; slots are judged by it as it is now");
        }
        self.status.slots_missed(opening.missed, opening.clock_was_ahead);
        let several = NOTED_US.div_ceil(self.slot_us);
        if !self
            .noted
            .is_some_and(|noted| (slot..slot + several).contains(&noted))
            && !self.note(slot + several - 1)
        {
            return self.status.slots_missed(1, false);
        }
        let plans = self.plans.of(self.present.iter().map(|service| &**service));
        let chosen = choose(self.plans.bounds(), plans);
        let plan = chosen.plan;
        let Ok(q) = Probability::new("run_probability", plan.run_probability) else {
            return;
        };
        let moment = self.schedule.moment(slot, q, plan.planned_us);
        let (now_us, now_ns) = (wall_us(), monotonic_ns());
        let at_ns =
            |time_us: u64| now_ns.saturating_add(time_us.saturating_sub(now_us).saturating_mul(1_000));
        let start_ns = at_ns(moment.start_us);
        if moment.runs {
            let order = Order::Run(Box::new(Planned {
                slot,
                start_ns,
                latest_ns: at_ns(moment.latest_us.saturating_add(GRACE_US)),
                planned_us: plan.planned_us,
                slot_us: self.slot_us,
                run_probability: plan.run_probability,
                period_ns: (1e9 / plan.frequency_hz).round() as u64,
            }));
            if self.orders.try_send(order).is_err() {
                tracing::error!(slot, "a run is refused: the sampling thread does not take it");
                let refused = RunReport {
                    slot: Some(slot),
                    started_us: moment.start_us,
                    done: None,
                    slot_us: self.slot_us,
                };
                self.insert(slot, start_ns, moment.hour, plan, moment.runs);
                return self.take(refused);
            }
        }
        self.insert(slot, start_ns, moment.hour, plan, moment.runs);
    }

    /// Notes on disk that the slots up to `last` are judged; returns whether it could.
    fn note(&mut self, last: u64) -> bool {
        let memory = serde_json::to_vec(&Memory { last: Some(last) }).unwrap_or_default();
        if let Err(error) = write_whole(&self.memory_file, &memory) {
            if self.status.may_complain() {
                tracing::error!(%error, file = %self.memory_file.display(),
                    "a slot is left out: it cannot be noted that it ran");
            }
            return false;
        }
        self.noted = Some(last);
        true
    }

    fn insert(&mut self, slot: u64, start_ns: u64, hour: u64, plan: Plan, runs: bool) {
        let pending = Pending {
            start_ns,
            end_ns: start_ns.saturating_add((2 * self.slot_us).max(STALL_MAX_US) * 1_000),
            hour,
            plan,
            runs,
            present: None,
            report: None,
        };
        self.pending.insert(slot, pending);
    }

    /// Counts slots whose moment has come; returns how long the next one is away.
    fn settle_moments(&mut self) -> Duration {
        let now_ns = monotonic_ns();
        if self
            .pending
            .values()
            .any(|pending| pending.present.is_none() && pending.start_ns <= now_ns)
        {
            let look = self.look();
            for pending in self.pending.values_mut() {
                if pending.present.is_none() && pending.start_ns <= now_ns {
                    pending.present = Some(look.present.clone());
                }
            }
        }
        let ready: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| {
                pending.present.is_some()
                    && (!pending.runs || pending.report.is_some() || pending.end_ns <= now_ns)
            })
            .map(|(slot, _)| *slot)
            .collect();
        for slot in ready {
            self.settle(slot);
        }
        let next = self.pending.values().filter(|pending| pending.present.is_none());
        let next = next.map(|pending| pending.start_ns).min();
        next.map_or(LOOK, |at| Duration::from_nanos(at.saturating_sub(monotonic_ns())))
    }

    fn settle(&mut self, slot: u64) {
        let Some(pending) = self.pending.remove(&slot) else {
            return;
        };
        let q = pending.plan.run_probability;
        let what = match (pending.runs, pending.report) {
            (false, _) => Slot::Quiet,
            // What was drawn and of which nothing was heard, did not run.
            (true, None | Some(None)) => Slot::Refused(q),
            (true, Some(Some(done))) => Slot::Ran(done),
        };
        let mut present = pending.present.unwrap_or_default();
        if let Slot::Ran(done) = &what
            && q >= 1.0
        {
            add_sampled(&mut present, done);
        }
        self.status.slot(match &what {
            Slot::Quiet => 0,
            Slot::Refused(_) => 1,
            Slot::Ran(_) => 2,
        });
        self.book.slot(pending.hour, self.slot_us, &present, &what);
    }

    /// Takes in what became of a run.
    fn take(&mut self, report: RunReport) {
        if let Some(slot) = report.slot {
            if let Some(pending) = self.pending.get_mut(&slot) {
                pending.report = Some(report.done);
            }
            self.settle_moments();
            return;
        }
        // One of those that follow each other: it is its own slot, and ends where that ends.
        let Some(done) = report.done else { return };
        let mut present = self.look().present;
        add_sampled(&mut present, &done);
        let hour = report.started_us.saturating_add(done.done_us / 2) / HOUR_US;
        self.book.slot(hour, report.slot_us, &present, &Slot::Ran(done));
    }

    fn look(&mut self) -> Look {
        let look = self.presence.look();
        let slot_us = if self.scheduled {
            self.slot_us
        } else {
            self.run_length_us
        };
        self.book.cpu(wall_us(), slot_us, &look);
        self.present.clone_from(&look.present);
        look
    }

    fn tell(&mut self) {
        for record in self.book.tell(wall_us(), (&self.host, PROFILER)) {
            self.say(Said::Coverage(record));
        }
        self.flush();
    }

    fn announce_host(&mut self) {
        self.announced.clone_from(&self.present);
        let uname = rustix::system::uname();
        let mut services: Vec<String> = self.present.iter().map(|service| service.to_string()).collect();
        services.retain(|service| service != WHOLE_HOST);
        self.say(Said::Host(HostRecord {
            host: self.host.clone(),
            time_us: wall_us(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
            labels: self.labels.clone(),
            services,
        }));
    }

    fn say(&mut self, said: Said) {
        if self.outbox.len() == OUTBOX_MAX {
            self.outbox.pop_front();
            if self.status.may_complain() {
                tracing::warn!("what became of slots waits: the spooling thread is stuck");
            }
        }
        self.outbox.push_back(said);
    }

    fn flush(&mut self) {
        while let Some(said) = self.outbox.pop_front() {
            if let Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) =
                self.to_spool.try_send(ToSpool::Said(Box::new(said)))
            {
                if let ToSpool::Said(said) = back {
                    self.outbox.push_front(*said);
                }
                return;
            }
        }
    }
}

/// Adds who was sampled to who was found present: of what always runs, both are known for every slot.
fn add_sampled(present: &mut Vec<Arc<str>>, done: &Done) {
    for service in done.taken.keys() {
        if !present.contains(service) {
            present.push(Arc::clone(service));
        }
    }
}
