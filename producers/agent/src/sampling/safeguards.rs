//! What ends or slows sampling from outside of a run: the stop file, and the budget of the agent as a whole.

use std::fs;

use strobe_bpf::monotonic_ns;
use strobe_event::{AuditAction, AuditOutcome, AuditRecord};

use super::*;
use crate::audit::Auditor;
use crate::budget::{Budget, Level, Used};

/// What watches over all runs.
pub(super) struct Safeguards {
    pub(super) halt: Arc<Halt>,
    budget: Budget,
    began_ns: u64,
    /// Why the budget has stopped sampling, where it has.
    over: Option<String>,
    /// Samples read so far, of all runs.
    pub(super) samples: u64,
    auditor: Auditor,
    /// Whose stop file was there at the last look.
    stopped_by: Option<u32>,
}

impl Safeguards {
    pub(super) fn new(halt: Arc<Halt>, limits: crate::budget::Limits, auditor: Auditor) -> Self {
        let began_ns = monotonic_ns();
        Self {
            halt,
            budget: Budget::new(limits, used(began_ns, 0)),
            began_ns,
            over: None,
            samples: 0,
            auditor,
            stopped_by: None,
        }
    }

    /// Returns how much sampling is thinner than it was asked to be.
    pub(super) fn level(&self) -> Level {
        self.budget.level()
    }
}

impl Safeguards {
    /// Audits that somebody laid the stop file there, or took it away.
    fn audit(&mut self, why: Option<&str>) {
        let by = self.halt.owner();
        let before = std::mem::replace(&mut self.stopped_by, by);
        if by.is_some() == before.is_some() {
            return;
        }
        let action = match by {
            Some(_) => AuditAction::Stop,
            None => AuditAction::Start,
        };
        let record = AuditRecord {
            // Who took it away leaves no trace; whose it was is known.
            who: by.map(|user| format!("user {user}")).unwrap_or_default(),
            action: action as u8,
            outcome: AuditOutcome::Done as u8,
            detail: why.unwrap_or_default().to_owned(),
            ..AuditRecord::default()
        };
        self.auditor.say(record, crate::procfs::wall_us());
    }
}

impl Sampling {
    /// Looks at the stop file and at what the agent has used, and has runs obey.
    pub(super) fn guard(&mut self) {
        let guards = &mut self.settler.guards;
        if let Some((level, why)) = guards.budget.look(used(guards.began_ns, guards.samples)) {
            match level {
                Level::Full => tracing::info!(why, "sampling goes on at its full rate"),
                Level::Halved(_) => {
                    tracing::warn!(why, factor = level.factor(), "sampling is thinner by this factor");
                }
                Level::Stopped => {
                    tracing::warn!(why, "sampling stops until the agent keeps within its budget")
                }
            }
            guards.over = (level == Level::Stopped).then(|| format!("over the budget: {why}"));
            self.status.budget(level);
            self.settler.pace.cut = Some(format!("over the budget: {why}"));
            for asked in &mut self.asked {
                asked.keep_to(&mut self.settler, level, &why);
            }
        }
        let guards = &mut self.settler.guards;
        let why = guards.halt.look(guards.over.as_deref());
        guards.audit(why.as_deref());
        if let Some(why) = why {
            for asked in &mut self.asked {
                asked.stop(How::Stopped, why.clone());
            }
            self.settler.pace.cut = Some(why);
        }
    }
}

/// Returns what this process has used.
fn used(began_ns: u64, samples: u64) -> Used {
    // Both clocks of CPU time exist on every Linux.
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident: u64 = pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    Used {
        at: Duration::from_nanos(monotonic_ns().saturating_sub(began_ns)),
        cpu: Duration::new(cpu.tv_sec.unsigned_abs(), cpu.tv_nsec as u32),
        samples,
        memory_bytes: resident * rustix::param::page_size() as u64,
    }
}
