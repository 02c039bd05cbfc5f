//! The book against a world in which messages are late, and whoever reads them dies at any moment.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use strobe_event::request::NO_RUN;
use strobe_event::{Action, Cause, HostRecord, HostReport, Phase, Request, RequestId, RequestState, RunId};

use super::*;

pub(super) fn request(number: u64, hosts: u32) -> Request {
    let mut id = [7; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    Request {
        id: RequestId(id),
        action: Action::Profile as u8,
        who: "ann".into(),
        why: String::new(),
        origin: String::new(),
        asked_us: 0,
        service: "orders".into(),
        region: String::new(),
        host: String::new(),
        pid: 0,
        hosts,
        profiler: "cpu".into(),
        arguments: Vec::new(),
        frequency_hz: 0.0,
        duration_us: 10_000_000,
        wait_us: 20_000_000,
        cause: Cause::OnDemand as u8,
    }
}

pub(super) fn host(name: &str, time_us: u64, services: &[&str], labels: &[&str]) -> HostRecord {
    let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    HostRecord {
        host: name.into(),
        time_us,
        agent: String::new(),
        kernel: String::new(),
        cpus: 2,
        labels: owned(labels),
        services: owned(services),
    }
}

fn fleet(hosts: usize) -> Inventory {
    let mut inventory = Inventory::default();
    for number in 0..hosts {
        inventory.put(host(&format!("host-{number}"), 1, &["orders"], &[]));
    }
    inventory
}

fn report(id: RequestId, host: &str, phase: Phase) -> HostReport {
    HostReport {
        id,
        host: host.into(),
        life: [1; 16],
        phase: phase as u8,
        run: NO_RUN,
        taken: 0,
        dropped: 0,
        detail: String::new(),
    }
}

fn begin(hosts: usize, wanted: u32) -> (Book, Inventory, RequestId, Vec<RequestState>) {
    let (mut book, inventory, mut out) = (Book::default(), fleet(hosts), Vec::new());
    let asked = request(1, wanted);
    let id = asked.id;
    assert!(book.note(id, Some(asked), 0));
    book.resume(id, &inventory, 0, &mut out);
    (book, inventory, id, out)
}

fn phases(out: &[RequestState], host: &str) -> Vec<Phase> {
    let of_host = out.iter().filter(|state| state.host == host && !state.late);
    of_host
        .filter_map(|state| Phase::from_code(state.phase))
        .collect()
}

fn picked(out: &[RequestState]) -> Vec<String> {
    let picked = out.iter().filter(|state| state.phase == Phase::Picked as u8);
    picked.map(|state| state.host.clone()).collect()
}

/// Checks that exactly as many hosts are picked as were asked for, that one without a word is replaced after two seconds, and
/// that its word, when it comes after all, starts nothing.
#[test]
fn a_silent_host_is_replaced() {
    let (mut book, _, id, mut out) = begin(5, 2);
    let first = picked(&out);
    assert_eq!(first.len(), 2);
    book.report(&report(id, &first[0], Phase::Accepted), 1_000, 1_000, &mut out);
    assert_eq!(book.tick(ANSWER_US - 1, &mut out), Some(ANSWER_US));
    assert_eq!(picked(&out).len(), 2);
    book.tick(ANSWER_US, &mut out);
    let second = picked(&out);
    assert_eq!(second.len(), 3);
    assert_eq!(phases(&out, &first[1]), [Phase::Picked, Phase::Lost]);
    let before = out.len();
    book.report(
        &report(id, &first[1], Phase::Accepted),
        ANSWER_US,
        ANSWER_US + 1,
        &mut out,
    );
    book.report(
        &report(id, &first[1], Phase::Accepted),
        ANSWER_US,
        ANSWER_US + 2,
        &mut out,
    );
    assert_eq!(out.len(), before + 1, "recorded once");
    assert!(out[before].late && out[before].left_us == 0);
}

/// Checks that it is said when there are fewer hosts than asked for, and that none at all is a refusal with its reason.
#[test]
fn fewer_hosts_are_said() {
    let (_, _, _, out) = begin(3, 5);
    assert_eq!(picked(&out).len(), 3);
    assert!(
        out[0].detail.starts_with("3 of 5 hosts: of 3 live hosts 3 match"),
        "{}",
        out[0].detail
    );
    let (_, _, _, out) = begin(0, 1);
    assert_eq!((out.len(), out[0].phase), (1, Phase::Refused as u8));
    assert!(out[0].detail.contains("service `orders`"), "{}", out[0].detail);
    let (_, _, _, out) = begin(4, 0);
    assert_eq!(picked(&out).len(), 4, "all that match");
}

/// Checks that the time left is what the broker's clock leaves between the question and the word, and that a word that the
/// broker took too late starts nothing.
#[test]
fn the_broker_says_what_time_is_left() {
    let (mut book, _, id, mut out) = begin(1, 1);
    book.report(
        &report(id, "host-0", Phase::Accepted),
        5_000_000,
        9_000_000,
        &mut out,
    );
    let accepted = out.last().cloned().unwrap();
    assert_eq!(
        (accepted.phase, accepted.left_us),
        (Phase::Accepted as u8, 15_000_000)
    );
    assert_eq!(accepted.life, [1; 16]);
    let (mut book, _, id, mut out) = begin(1, 1);
    book.report(
        &report(id, "host-0", Phase::Accepted),
        20_000_000,
        20_000_000,
        &mut out,
    );
    assert_eq!(phases(&out, "host-0"), [Phase::Picked, Phase::Expired]);
}

/// Checks that a request which one host says is cancelled ends as cancelled when no host has finished, and asks nobody else.
#[test]
fn a_cancelled_request_asks_nobody_else() {
    let (mut book, inventory, id, mut out) = begin(9, 2);
    let hosts = picked(&out);
    book.report(&report(id, &hosts[0], Phase::Accepted), 1, 1, &mut out);
    book.report(&report(id, &hosts[0], Phase::Cancelled), 4, 4, &mut out);
    book.report(&report(id, &hosts[1], Phase::Cancelled), 5, 5, &mut out);
    book.resume(id, &inventory, 6, &mut out);
    assert_eq!(picked(&out).len(), 2);
    let last = out.last().unwrap();
    assert_eq!((last.host.as_str(), last.phase), ("", Phase::Cancelled as u8));
}

/// A host as the book sees it: it keeps what it promised over its death, and measures nothing but intervals.
#[derive(Debug, Default)]
struct Host {
    life: u8,
    /// When it gave its word in this life.
    gave: BTreeMap<RequestId, u64>,
    promised: BTreeSet<RequestId>,
    running: BTreeMap<RequestId, u64>,
    starts: BTreeMap<RequestId, Vec<u64>>,
}

struct World {
    seed: u64,
    now_us: u64,
    inventory: Inventory,
    hosts: BTreeMap<String, Host>,
    asks: Vec<(Request, u64)>,
    log: Vec<RequestState>,
    reports: Vec<(HostReport, u64)>,
    /// What is on its way to hosts: when it arrives, and where in the log it stands.
    to_hosts: Vec<(u64, usize)>,
    book: Book,
    /// Reports that this book has read.
    read: usize,
}

impl World {
    fn new(seed: u64, hosts: usize) -> Self {
        Self {
            seed: seed | 1,
            now_us: 1,
            inventory: fleet(hosts),
            hosts: (0..hosts)
                .map(|number| (format!("host-{number}"), Host::default()))
                .collect(),
            asks: Vec::new(),
            log: Vec::new(),
            reports: Vec::new(),
            to_hosts: Vec::new(),
            book: Book::default(),
            read: 0,
        }
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % below
    }

    fn say(&mut self, out: Vec<RequestState>) {
        for state in out {
            let late_us = self.chance(3_000_000);
            self.to_hosts.push((self.now_us + late_us, self.log.len()));
            self.log.push(state);
        }
    }

    fn ask(&mut self, number: u64) {
        let asked = request(number, 1 + (number % 4) as u32);
        let (id, mut out) = (asked.id, Vec::new());
        self.asks.push((asked.clone(), self.now_us));
        self.book.note(id, Some(asked), self.now_us);
        self.book.resume(id, &self.inventory, self.now_us, &mut out);
        // The trigger may die with some of its words unsaid.
        if self.chance(4) == 0 {
            let kept = self.chance(out.len() as u64 + 1) as usize;
            out.truncate(kept);
            self.say(out);
            return self.restart();
        }
        self.say(out);
    }

    /// Another trigger takes over: all it knows is what the topics hold.
    fn restart(&mut self) {
        self.book = Book::default();
        let mut out = Vec::new();
        for (request, at_us) in &self.asks {
            self.book.note(request.id, Some(request.clone()), *at_us);
        }
        for state in &self.log {
            self.book.restore(state);
        }
        for (request, _) in &self.asks {
            self.book
                .resume(request.id, &self.inventory, self.now_us, &mut out);
        }
        for (report, at_us) in &self.reports {
            self.book.report(report, *at_us, self.now_us, &mut out);
        }
        self.read = self.reports.len();
        self.say(out);
    }

    fn tell(&mut self, id: RequestId, name: &str, phase: Phase, life: u8) {
        let run = RunId(id.0);
        let report = HostReport {
            life: [life + 1; 16],
            run,
            ..report(id, name, phase)
        };
        self.reports.push((report, self.now_us));
    }

    fn step(&mut self) {
        self.now_us += self.chance(700_000);
        let arrived: Vec<usize> = {
            let now_us = self.now_us;
            let (due, left) = self.to_hosts.iter().partition(|(at_us, _)| *at_us <= now_us);
            self.to_hosts = left;
            let mut due: Vec<(u64, usize)> = due;
            due.sort_by_key(|(_, at)| *at);
            due.into_iter().map(|(_, at)| at).collect()
        };
        for at in arrived {
            let state = self.log[at].clone();
            self.arrive(&state);
        }
        self.run_hosts();
        if self.chance(3) > 0 {
            let mut out = Vec::new();
            for (report, at_us) in &self.reports[self.read..] {
                self.book.report(report, *at_us, self.now_us, &mut out);
            }
            self.read = self.reports.len();
            self.book.tick(self.now_us, &mut out);
            if self.chance(12) == 0 {
                let kept = self.chance(out.len() as u64 + 1) as usize;
                out.truncate(kept);
                self.say(out);
                self.restart();
            } else {
                self.say(out);
            }
        }
        if self.chance(10) == 0 {
            let names: Vec<String> = self.hosts.keys().cloned().collect();
            let name = names[self.chance(names.len() as u64) as usize].clone();
            self.kill(&name);
        }
    }

    fn arrive(&mut self, state: &RequestState) {
        let (now_us, silent) = (self.now_us, self.chance(5) == 0);
        let Some(host) = self.hosts.get_mut(&state.host) else {
            return;
        };
        let life = host.life;
        match Phase::from_code(state.phase) {
            Some(Phase::Picked) if !silent && host.promised.insert(state.id) => {
                host.gave.insert(state.id, now_us);
                self.tell(state.id, &state.host, Phase::Accepted, life);
            }
            Some(Phase::Accepted) if state.life == [life + 1; 16] => {
                let Some(gave_us) = host.gave.remove(&state.id) else {
                    return;
                };
                if now_us - gave_us >= state.left_us {
                    return self.tell(state.id, &state.host, Phase::Expired, life);
                }
                host.starts.entry(state.id).or_default().push(now_us);
                host.running.insert(state.id, now_us);
                self.tell(state.id, &state.host, Phase::Running, life);
            }
            _ => {}
        }
    }

    fn run_hosts(&mut self) {
        let mut done = Vec::new();
        for (name, host) in &mut self.hosts {
            host.running.retain(|id, since_us| {
                let over = self.now_us - *since_us >= 10_000_000;
                if over {
                    done.push((*id, name.clone(), host.life));
                }
                !over
            });
        }
        for (id, name, life) in done {
            self.tell(id, &name, Phase::Finished, life);
        }
    }

    /// The agent dies and starts again: what it promised and did not end, it says to have failed.
    fn kill(&mut self, name: &str) {
        let Some(host) = self.hosts.get_mut(name) else {
            return;
        };
        host.life += 1;
        let undone: BTreeSet<RequestId> = host.gave.keys().chain(host.running.keys()).copied().collect();
        host.gave.clear();
        host.running.clear();
        let life = host.life;
        for id in undone {
            self.tell(id, name, Phase::Failed, life);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks, with triggers and agents that die at any moment and messages that are seconds late, that each request and each of
    /// its hosts ends in exactly one final phase, that nothing runs twice, that nothing starts once its time to live is over,
    /// and that never more hosts give their word than were asked for.
    #[test]
    fn every_request_has_one_end_whoever_dies(seed in any::<u64>(), hosts in 1_usize..8) {
        let mut world = World::new(seed, hosts);
        for number in 0..12 {
            world.ask(number);
            for _ in 0..world.chance(30) {
                world.step();
            }
        }
        let end_us = world.now_us + 120_000_000;
        while world.now_us < end_us {
            world.step();
        }
        for (asked, at_us) in &world.asks {
            let of_request: Vec<&RequestState> =
                world.log.iter().filter(|state| state.id == asked.id && !state.late).collect();
            let mut finals: BTreeMap<&str, usize> = BTreeMap::new();
            for state in &of_request {
                let is_final = Phase::from_code(state.phase).is_some_and(Phase::is_final);
                *finals.entry(&state.host).or_default() += usize::from(is_final);
            }
            prop_assert!(finals.contains_key(""));
            prop_assert!(finals.values().all(|&count| count == 1), "{finals:?} of {:?}", asked.id);
            let gave_word: BTreeSet<&str> = of_request
                .iter()
                .filter(|state| state.phase == Phase::Accepted as u8)
                .map(|state| state.host.as_str())
                .collect();
            prop_assert!(gave_word.len() <= asked.hosts as usize, "{gave_word:?}");
            for host in world.hosts.values() {
                let starts = host.starts.get(&asked.id).map_or(&[][..], Vec::as_slice);
                prop_assert!(starts.len() <= 1, "ran twice: {starts:?}");
                for start_us in starts {
                    prop_assert!(*start_us <= at_us + asked.wait_us, "started too late");
                }
            }
        }
    }
}
