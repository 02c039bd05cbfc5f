//! The requests that are known, and what became of each on each host: the trigger's state, pure.
//!
//! All of it is on the bus. What goes in is what the topics hold, what comes out are the [`RequestState`]s to be written; a
//! book into which the same states are read again goes on where the one before stood, wherever that was cut off.

use std::collections::{BTreeMap, BTreeSet};

use strobe_event::request::{CLOCK_SLACK_US, DURATION_US_MAX, NO_RUN, WAIT_US_MAX};
use strobe_event::{HostReport, Phase, Request, RequestId, RequestState, RunId, Step};

use super::inventory::Inventory;

/// How long a picked host has for its word before another is asked.
pub const ANSWER_US: u64 = 2_000_000;
/// How long after its time to live was over a host has to say so.
pub const EXPIRE_SLACK_US: u64 = 10_000_000;
/// How long after its planned end a run has to say so: the agent's disk, and the bus.
pub const RUN_SLACK_US: u64 = 30_000_000;
/// How long a request is remembered: until nothing of it, however late, can be taken for something new.
pub const REMEMBER_US: u64 = WAIT_US_MAX + DURATION_US_MAX + 2 * CLOCK_SLACK_US;
/// Requests remembered: a fleet of 100,000 hosts that asks ten times a second. About 1 KiB each.
pub const REQUESTS_MAX: usize = 100_000;

const NO_LIFE: [u8; 16] = [0; 16];

/// What is known of a request on one host.
#[derive(Debug, Clone)]
struct OfHost {
    phase: Phase,
    life: [u8; 16],
    left_us: u64,
    run: RunId,
    taken: u64,
    dropped: u64,
    /// When the next word is overdue.
    due_us: u64,
    /// Phases that were said after the final one.
    late: BTreeSet<Phase>,
}

impl OfHost {
    /// Returns whether it ended without ever having given its word.
    fn was_silent(&self) -> bool {
        self.phase == Phase::Lost && self.life == NO_LIFE
    }
}

/// What is known of a request.
#[derive(Debug)]
struct Entry {
    /// What is asked for; none of what was refused unread.
    request: Option<Request>,
    /// When the broker took it.
    asked_us: u64,
    /// Final phase of the request as a whole, or [`Phase::Asked`] once that was said.
    overall: Option<Phase>,
    hosts: BTreeMap<String, OfHost>,
    /// Who may still be picked, the last first.
    spares: Vec<String>,
}

impl Entry {
    fn expires_us(&self) -> u64 {
        let wait_us = self.request.as_ref().map_or(0, |request| request.wait_us);
        self.asked_us.saturating_add(wait_us)
    }

    fn duration_us(&self) -> u64 {
        self.request.as_ref().map_or(0, |request| request.duration_us)
    }

    /// Returns when something is due of it.
    fn due_us(&self) -> u64 {
        if self.is_over() {
            return self.asked_us.saturating_add(REMEMBER_US);
        }
        let open = self.hosts.values().filter(|host| !host.phase.is_final());
        open.map(|host| host.due_us)
            .min()
            .unwrap_or_else(|| self.expires_us())
    }

    fn is_over(&self) -> bool {
        self.overall.is_some_and(Phase::is_final)
    }

    /// Returns when the next word of a host in `phase` is overdue.
    fn deadline_us(&self, phase: Phase, now_us: u64) -> u64 {
        match phase {
            Phase::Picked => now_us + ANSWER_US,
            Phase::Running => now_us + self.duration_us() + RUN_SLACK_US,
            _ => self.expires_us().max(now_us) + EXPIRE_SLACK_US,
        }
    }
}

/// The book.
#[derive(Debug, Default)]
pub struct Book {
    entries: BTreeMap<RequestId, Entry>,
    due: BTreeSet<(u64, RequestId)>,
}

impl Book {
    /// Returns how many requests are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a request of that id is known.
    pub fn knows(&self, id: RequestId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Returns what was asked for; nothing where that could not be read.
    pub fn request(&self, id: RequestId) -> Option<&Request> {
        self.entries.get(&id)?.request.as_ref()
    }

    /// Notes what is asked for, or that it was refused unread; nothing is decided before [`Book::resume`]. The first of an id
    /// counts. Returns whether it is new.
    pub fn note(&mut self, id: RequestId, request: Option<Request>, asked_us: u64) -> bool {
        if self.knows(id) {
            return false;
        }
        let entry = Entry {
            request,
            asked_us,
            overall: None,
            hosts: BTreeMap::new(),
            spares: Vec::new(),
        };
        self.due.insert((entry.due_us(), id));
        self.entries.insert(id, entry);
        true
    }

    /// Takes in what this trigger, or one before it, has said.
    pub fn restore(&mut self, state: &RequestState) {
        let (Some(phase), false) = (Phase::from_code(state.phase), state.host.is_empty() && state.late)
        else {
            return;
        };
        self.note(state.id, None, state.time_us);
        self.change(state.id, |entry| {
            if state.host.is_empty() {
                if !entry.is_over() {
                    entry.overall = Some(phase);
                }
                return;
            }
            let due_us = entry.deadline_us(phase, state.time_us);
            let known = entry.hosts.entry(state.host.clone()).or_insert_with(|| OfHost {
                phase,
                life: state.life,
                left_us: state.left_us,
                run: state.run,
                taken: 0,
                dropped: 0,
                due_us,
                late: BTreeSet::new(),
            });
            if state.late {
                known.late.insert(phase);
            } else if matches!(known.phase.step(phase), Step::Forward | Step::Repeat) {
                if known.phase != phase {
                    known.due_us = due_us;
                }
                (known.phase, known.life) = (phase, state.life);
                (known.left_us, known.run) = (state.left_us, state.run);
                (known.taken, known.dropped) = (state.taken, state.dropped);
            }
        });
    }

    /// Goes on with a request as it stands: picks hosts, or finds that it is over.
    pub fn resume(&mut self, id: RequestId, inventory: &Inventory, now_us: u64, out: &mut Vec<RequestState>) {
        let crowded = self.entries.len() > REQUESTS_MAX;
        self.change(id, |entry| {
            if entry.is_over() {
                return;
            }
            let Some(request) = &entry.request else {
                // Its question is older than what is read: nobody waits for it any more.
                return end(
                    id,
                    entry,
                    Phase::Lost,
                    "what was asked is no longer on the bus",
                    now_us,
                    out,
                );
            };
            // Whoever was asked before the restart gets time for the words that are under way.
            for host in entry.hosts.values_mut() {
                host.due_us = host.due_us.max(now_us + ANSWER_US);
            }
            if entry.overall.is_none() {
                if crowded {
                    let why = format!("{REQUESTS_MAX} requests are remembered already: ask again in an hour");
                    return end(id, entry, Phase::Refused, &why, now_us, out);
                }
                if now_us > entry.expires_us() && entry.hosts.is_empty() {
                    let why =
                        "its time to live was over before anybody read it: is `strobe run trigger` running?";
                    return end(id, entry, Phase::Expired, why, now_us, out);
                }
            }
            let mut ranked = inventory.ranked(request);
            let (matching, wanted) = (ranked.len(), wanted(request, ranked.len()));
            if matching == 0 && entry.hosts.is_empty() {
                let why = inventory.why_few(request);
                return end(id, entry, Phase::Refused, &why, now_us, out);
            }
            let why = match request.hosts as usize {
                asked if asked > matching => {
                    format!("{matching} of {asked} hosts: {}", inventory.why_few(request))
                }
                _ => format!("{wanted} of {matching} hosts that match"),
            };
            ranked.retain(|host| !entry.hosts.contains_key(host));
            ranked.reverse();
            entry.spares = ranked;
            if entry.overall.is_none() {
                entry.overall = Some(Phase::Asked);
                out.push(overall(id, Phase::Asked, &why, now_us));
            }
            fill(id, entry, now_us, out);
            settle(id, entry, now_us, out);
        });
    }

    /// Refuses a request as a whole.
    pub fn refuse(&mut self, id: RequestId, why: &str, now_us: u64, out: &mut Vec<RequestState>) {
        self.change(id, |entry| {
            if entry.overall.is_none() {
                end(id, entry, Phase::Refused, why, now_us, out);
            }
        });
    }

    /// Takes in what a host said, which the broker took at `at_us`. Returns whether it is of a request and host that are known.
    pub fn report(
        &mut self,
        report: &HostReport,
        at_us: u64,
        now_us: u64,
        out: &mut Vec<RequestState>,
    ) -> bool {
        let id = report.id;
        let next = Phase::from_code(report.phase);
        let next = next.filter(|next| !matches!(next, Phase::Asked | Phase::Picked | Phase::Lost));
        let known = self.entries.get(&id);
        let is_known = known.is_some_and(|entry| entry.hosts.contains_key(&report.host));
        let (true, Some(next)) = (is_known, next) else {
            return false;
        };
        self.change(id, |entry| {
            let (expires_us, due_us) = (entry.expires_us(), entry.deadline_us(next, now_us));
            let Some(host) = entry.hosts.get_mut(&report.host) else {
                return;
            };
            // A word given in another life is void, but that this life has found what the other left undone.
            let of_another = host.life != NO_LIFE && host.life != report.life;
            if of_another && !host.phase.is_final() && next != Phase::Failed {
                return;
            }
            let mut detail = report.detail.clone();
            match host.phase.step(next) {
                Step::Forward => {
                    let was_picked = host.phase == Phase::Picked;
                    host.phase = next;
                    if was_picked {
                        host.life = report.life;
                    }
                    if next == Phase::Accepted {
                        // By the broker's clock alone: when it took the question, and when the host's word.
                        host.left_us = expires_us.saturating_sub(at_us);
                        if host.left_us == 0 {
                            (host.phase, detail) = (Phase::Expired, "the host's word came too late".into());
                        }
                    } else {
                        host.left_us = 0;
                    }
                    host.due_us = due_us;
                }
                Step::Repeat if next == Phase::Running && report.taken > host.taken => {}
                Step::Late if host.late.insert(next) => {
                    let mut late = said(id, &report.host, host, &detail, now_us);
                    (late.phase, late.late) = (next as u8, true);
                    (late.run, late.taken, late.dropped) = (report.run, report.taken, report.dropped);
                    return out.push(late);
                }
                Step::Repeat | Step::Late | Step::Void => return,
            }
            if report.run != NO_RUN {
                host.run = report.run;
            }
            (host.taken, host.dropped) = (report.taken.max(host.taken), report.dropped.max(host.dropped));
            out.push(said(id, &report.host, host, &detail, now_us));
            settle(id, entry, now_us, out);
        });
        true
    }

    /// Does what is due, and returns when something will be.
    pub fn tick(&mut self, now_us: u64, out: &mut Vec<RequestState>) -> Option<u64> {
        while let Some(&(due_us, id)) = self.due.first() {
            if due_us > now_us {
                return Some(due_us);
            }
            let is_over = self.entries.get(&id).is_none_or(Entry::is_over);
            if is_over {
                self.due.remove(&(due_us, id));
                self.entries.remove(&id);
                continue;
            }
            self.change(id, |entry| overdue(id, entry, now_us, out));
            // Whatever it was, it is not to be done over and over at the same moment.
            if self.due.first() == Some(&(due_us, id)) {
                self.due.remove(&(due_us, id));
                self.due.insert((now_us + ANSWER_US, id));
                break;
            }
        }
        self.due.first().map(|(due_us, _)| *due_us)
    }

    fn change(&mut self, id: RequestId, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        // Wherever it stands: it may have been put off.
        let before = entry.due_us();
        change(entry);
        let after = entry.due_us();
        if !self.due.remove(&(before, id)) {
            self.due.retain(|(_, other)| *other != id);
        }
        self.due.insert((after, id));
    }
}

/// Ends what is overdue on hosts, and picks others for those that gave no word.
fn overdue(id: RequestId, entry: &mut Entry, now_us: u64, out: &mut Vec<RequestState>) {
    let expired = now_us > entry.expires_us();
    let next = entry.spares.last().cloned();
    for (name, host) in &mut entry.hosts {
        if host.phase.is_final() || host.due_us > now_us {
            continue;
        }
        let detail = match host.phase {
            Phase::Picked if expired => {
                "its time to live is over, and the host never gave its word".to_owned()
            }
            Phase::Picked => format!(
                "no word within {} s{}",
                ANSWER_US / 1_000_000,
                if next.is_some() {
                    "; another host is asked"
                } else {
                    ""
                }
            ),
            phase => format!("nothing was heard of it in time; the last was: {}", phase.name()),
        };
        host.phase = if host.phase == Phase::Picked && expired {
            Phase::Expired
        } else {
            Phase::Lost
        };
        host.left_us = 0;
        out.push(said(id, name, host, &detail, now_us));
    }
    fill(id, entry, now_us, out);
    settle(id, entry, now_us, out);
}

/// Picks hosts until there are as many as were asked for, without those that gave no word.
fn fill(id: RequestId, entry: &mut Entry, now_us: u64, out: &mut Vec<RequestState>) {
    let Some(request) = &entry.request else { return };
    if now_us > entry.expires_us() {
        return;
    }
    let held = entry.hosts.values().filter(|host| !host.was_silent()).count();
    let wanted = wanted(request, held + entry.spares.len());
    for _ in held..wanted {
        let Some(name) = entry.spares.pop() else { break };
        let host = OfHost {
            phase: Phase::Picked,
            life: NO_LIFE,
            left_us: 0,
            run: NO_RUN,
            taken: 0,
            dropped: 0,
            due_us: now_us + ANSWER_US,
            late: BTreeSet::new(),
        };
        out.push(said(id, &name, &host, "", now_us));
        entry.hosts.insert(name, host);
    }
}

/// Returns on how many of the hosts that match a request runs.
fn wanted(request: &Request, matching: usize) -> usize {
    let most = strobe_event::request::HOSTS_MAX as usize;
    match request.hosts as usize {
        0 => matching.min(most),
        asked => asked.min(matching),
    }
}

/// Ends the request as a whole where each of its hosts has ended.
fn settle(id: RequestId, entry: &mut Entry, now_us: u64, out: &mut Vec<RequestState>) {
    if entry.is_over() || entry.overall.is_none() || entry.hosts.values().any(|host| !host.phase.is_final()) {
        return;
    }
    let mut ended: BTreeMap<Phase, usize> = BTreeMap::new();
    for host in entry.hosts.values() {
        *ended.entry(host.phase).or_default() += 1;
    }
    let is_answered = [Phase::Finished, Phase::Joined]
        .iter()
        .any(|phase| ended.contains_key(phase));
    let phase = match ended.keys().next() {
        _ if is_answered => Phase::Finished,
        Some(&only) if ended.len() == 1 => only,
        None => Phase::Expired,
        Some(_) if ended.contains_key(&Phase::Cancelled) => Phase::Cancelled,
        Some(_) => Phase::Failed,
    };
    let counts: Vec<String> = ended
        .iter()
        .map(|(phase, hosts)| format!("{hosts} {}", phase.name()))
        .collect();
    end(id, entry, phase, &counts.join(", "), now_us, out);
}

fn end(id: RequestId, entry: &mut Entry, phase: Phase, why: &str, now_us: u64, out: &mut Vec<RequestState>) {
    entry.overall = Some(phase);
    entry.spares = Vec::new();
    out.push(overall(id, phase, why, now_us));
}

fn overall(id: RequestId, phase: Phase, why: &str, now_us: u64) -> RequestState {
    RequestState {
        id,
        host: String::new(),
        phase: phase as u8,
        late: false,
        time_us: now_us,
        life: NO_LIFE,
        left_us: 0,
        run: NO_RUN,
        taken: 0,
        dropped: 0,
        detail: why.to_owned(),
    }
}

fn said(id: RequestId, name: &str, host: &OfHost, detail: &str, now_us: u64) -> RequestState {
    RequestState {
        host: name.to_owned(),
        phase: host.phase as u8,
        life: host.life,
        left_us: host.left_us,
        run: host.run,
        taken: host.taken,
        dropped: host.dropped,
        ..overall(id, host.phase, detail, now_us)
    }
}
