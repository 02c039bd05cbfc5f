//! A fleet of agents that decide as real ones do, on a real bus, and run nothing but a clock.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use strobe_agent::requests::{Command, Desk, NotProved, Place, Prove, Remembered, Standing};
use strobe_bus::{
    BusSettings, Headers, Message, Outgoing, ResendingProducer, Tail, Topic, WindowFull, WindowLimits,
};
use strobe_event::{
    Action, Cause, HostRecord, Phase, Request, RequestId, RequestState, RunId, SignedRequest, codec,
};

/// Requests that wait on a host at most.
const WAITING_MAX: usize = 16;

/// Believes everybody: who may ask is another test's matter.
pub struct Anybody;

impl Prove for Anybody {
    fn prove(&self, _: &SignedRequest, request: &Request, _: Option<&str>) -> Result<String, NotProved> {
        Ok(request.who.clone())
    }
}

/// One run, and the requests that it answers.
struct Job {
    request: Request,
    run: RunId,
    answers: Vec<RequestId>,
    until: Instant,
}

/// One host.
pub struct Host {
    name: String,
    desk: Desk,
    life: u8,
    remembered: BTreeMap<String, Remembered>,
    waiting: VecDeque<Job>,
    running: Option<Job>,
    /// How often each request began here, over all lives.
    pub starts: BTreeMap<RequestId, u32>,
    past: bool,
}

/// The fleet.
pub struct Fleet {
    hosts: BTreeMap<String, Host>,
    questions: BTreeMap<RequestId, (SignedRequest, u64)>,
    tail: Tail,
    producer: ResendingProducer,
    reports: Arc<str>,
    sent: u64,
    began: Instant,
    /// A second of a run takes a second divided by this.
    hurry: u32,
}

pub fn now_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

pub fn send(bus: &BusSettings, messages: impl IntoIterator<Item = Outgoing>) -> Result<()> {
    let mut producer = ResendingProducer::new(bus, WindowLimits::default())?;
    for (number, mut message) in messages.into_iter().enumerate() {
        while let Err(WindowFull(back)) = producer.push(number as u64, message) {
            message = back;
            producer.poll(Duration::from_millis(50));
        }
    }
    producer.flush(Duration::from_secs(30));
    ensure!(producer.under_way() == 0, "not everything was acknowledged");
    Ok(())
}

fn message(topic: &str, key: Vec<u8>, value: Vec<u8>) -> Outgoing {
    Outgoing {
        topic: topic.into(),
        key: Some(key.into()),
        headers: Headers::new(),
        payload: Some(value.into()),
    }
}

pub fn request(number: u64, service: &str, hosts: u32) -> Request {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&now_us().to_be_bytes());
    id[8..].copy_from_slice(&number.to_be_bytes());
    Request {
        id: RequestId(id),
        action: Action::Profile as u8,
        who: "ann".into(),
        why: String::new(),
        origin: String::new(),
        asked_us: now_us(),
        service: service.into(),
        region: String::new(),
        host: String::new(),
        pid: 0,
        hosts,
        profiler: "cpu".into(),
        arguments: Vec::new(),
        frequency_hz: 0.0,
        duration_us: 1_000_000 * (1 + number % 3),
        wait_us: 20_000_000,
        cause: Cause::OnDemand as u8,
    }
}

pub fn asked(bus: &BusSettings, requests: &[Request]) -> Result<()> {
    let topic = bus.topic(Topic::Requests);
    let messages: Result<Vec<Outgoing>> = requests
        .iter()
        .map(|request| {
            let signed = SignedRequest {
                id: request.id,
                payload: codec::encode_framed(request)?,
                signature: Vec::new(),
            };
            Ok(message(
                &topic,
                request.id.0.to_vec(),
                codec::encode_framed(&signed)?,
            ))
        })
        .collect();
    send(bus, messages?)
}

impl Fleet {
    /// Puts hosts on which `service` lives into the inventory, and lets them follow the requests.
    pub fn start(bus: &BusSettings, hosts: usize, service: &str, hurry: u32) -> Result<Self> {
        let bus = bus.clone().prompt();
        let names: Vec<String> = (0..hosts).map(|number| format!("{service}-{number}")).collect();
        let topic = bus.topic(Topic::Hosts);
        let records: Result<Vec<Outgoing>> = names
            .iter()
            .map(|name| {
                let record = HostRecord {
                    host: name.clone(),
                    time_us: now_us(),
                    agent: String::new(),
                    kernel: String::new(),
                    cpus: 2,
                    labels: Vec::new(),
                    services: vec![service.to_owned()],
                };
                Ok(message(
                    &topic,
                    name.clone().into_bytes(),
                    codec::encode_framed(&record)?,
                ))
            })
            .collect();
        send(&bus, records?)?;
        let since_ms = (now_us() / 1_000) as i64 - 60_000;
        Ok(Self {
            hosts: names
                .into_iter()
                .map(|name| (name.clone(), Host::new(&name)))
                .collect(),
            questions: BTreeMap::new(),
            tail: Tail::open(&bus, &bus.topic(Topic::Requests), since_ms)?,
            producer: ResendingProducer::new(&bus, WindowLimits::default())?,
            reports: bus.topic(Topic::Reports).as_str().into(),
            sent: 0,
            began: Instant::now(),
            hurry,
        })
    }

    /// Lives until it is told to stop; now and then, where `kill` says so, one agent dies and another takes its place.
    pub fn live(mut self, stop: &AtomicBool, kill: Option<Duration>) -> Result<BTreeMap<String, Host>> {
        let mut killed = Instant::now();
        let mut victim = 0;
        while !stop.load(Ordering::Relaxed) {
            let (hosts, questions, now_us) = (&mut self.hosts, &mut self.questions, boot_us(self.began));
            self.tail.poll(Duration::from_millis(5), |message| {
                take(hosts, questions, &message, now_us)
            })?;
            if self.tail.is_caught_up() {
                for host in self.hosts.values_mut().filter(|host| host.past) {
                    host.past = false;
                    host.desk.caught_up(now_us, self::now_us(), &Anybody);
                }
            }
            if kill.is_some_and(|every| killed.elapsed() >= every) {
                (killed, victim) = (Instant::now(), victim + 1);
                let at = victim % self.hosts.len();
                if let Some(host) = self.hosts.values_mut().nth(at) {
                    host.die();
                    host.desk.caught_up(now_us, self::now_us(), &Anybody);
                    host.past = false;
                }
            }
            self.turn()?;
        }
        Ok(self.hosts)
    }

    fn turn(&mut self) -> Result<()> {
        for host in self.hosts.values_mut() {
            host.turn(self.hurry);
            for report in host.desk.take_reports() {
                self.sent += 1;
                let value = codec::encode_framed(&report)?;
                let mut next = message(&self.reports, report.id.0.to_vec(), value);
                while let Err(WindowFull(back)) = self.producer.push(self.sent, next) {
                    next = back;
                    self.producer.poll(Duration::from_millis(20));
                }
            }
        }
        self.producer.poll(Duration::ZERO);
        Ok(())
    }
}

fn boot_us(began: Instant) -> u64 {
    began.elapsed().as_micros() as u64
}

fn take(
    hosts: &mut BTreeMap<String, Host>,
    questions: &mut BTreeMap<RequestId, (SignedRequest, u64)>,
    message: &Message,
    now_us: u64,
) {
    let taken_us = message.timestamp_ms.unwrap_or_default() as u64 * 1_000;
    if let Ok(signed) = codec::decode_framed::<SignedRequest>(message.bytes()) {
        questions.entry(signed.id).or_insert((signed, taken_us));
    } else if let Ok(state) = codec::decode_framed::<RequestState>(message.bytes())
        && let Some(host) = hosts.get_mut(&state.host)
    {
        // Every agent keeps the questions; here they are kept once for all, and shown to the host that was picked.
        if let Some((signed, taken_us)) = questions.get(&state.id) {
            host.desk.question(signed.clone(), *taken_us, &Anybody);
        }
        host.desk.state(&state, now_us, self::now_us(), &Anybody);
    }
}

fn place(name: &str) -> Place {
    Place {
        host: name.into(),
        region: String::new(),
    }
}

impl Host {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            desk: Desk::new(place(name), [1; 16], BTreeMap::new()),
            life: 1,
            remembered: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: None,
            starts: BTreeMap::new(),
            past: true,
        }
    }

    /// The agent dies; the next one knows what was on disk.
    fn die(&mut self) {
        self.life += 1;
        self.desk = Desk::new(place(&self.name), [self.life; 16], self.remembered.clone());
        self.waiting.clear();
        self.running = None;
    }

    fn turn(&mut self, hurry: u32) {
        for command in self.desk.take_commands() {
            match command {
                Command::Start { request, run, within } => self.enqueue(*request, run, within),
                Command::Stop { .. } => {}
            }
        }
        if self
            .running
            .as_ref()
            .is_some_and(|job| job.until <= Instant::now())
            && let Some(job) = self.running.take()
        {
            self.tell(&job.answers, &ended(Phase::Finished, ""));
        }
        while self.running.is_none() {
            let Some(mut job) = self.waiting.pop_front() else {
                break;
            };
            if job.until < Instant::now() {
                self.tell(&job.answers, &ended(Phase::Expired, "it waited too long"));
                continue;
            }
            *self.starts.entry(job.answers[0]).or_default() += 1;
            job.until = Instant::now() + Duration::from_micros(job.request.duration_us) / hurry;
            self.tell(&job.answers, &Standing::Running { taken: 1, dropped: 0 });
            self.running = Some(job);
        }
        if let Some(remembered) = self.desk.to_remember() {
            self.remembered.clone_from(remembered);
        }
    }

    fn enqueue(&mut self, request: Request, run: RunId, within: Duration) {
        let id = request.id;
        if let Some(equal) = self
            .waiting
            .iter_mut()
            .find(|job| job.request.is_equal_run(&request))
        {
            equal.answers.push(id);
            let of = equal.run;
            return self.desk.joined(id, of);
        }
        if self.waiting.len() >= WAITING_MAX {
            return self.tell(&[id], &ended(Phase::Refused, "the queue is full"));
        }
        let until = Instant::now() + within;
        self.waiting.push_back(Job {
            request,
            run,
            answers: vec![id],
            until,
        });
    }

    fn tell(&mut self, ids: &[RequestId], standing: &Standing) {
        for id in ids {
            self.desk.standing(*id, standing);
        }
    }
}

fn ended(phase: Phase, why: &str) -> Standing {
    Standing::Ended {
        phase,
        why: why.into(),
        taken: 1,
        dropped: 0,
    }
}

/// What the topic holds of some requests, host by host; the host of a request as a whole is empty.
#[derive(Debug, Default)]
pub struct Told {
    /// The final phases of each (request, host), in the order of the topic.
    pub ends: BTreeMap<(RequestId, String), Vec<Phase>>,
    /// The phases of each, final or not.
    pub phases: BTreeMap<(RequestId, String), Vec<Phase>>,
}

impl Told {
    pub fn take(&mut self, message: &Message) {
        let Ok(state) = codec::decode_framed::<RequestState>(message.bytes()) else {
            return;
        };
        let (Some(phase), false) = (Phase::from_code(state.phase), state.late) else {
            return;
        };
        let key = (state.id, state.host);
        if phase.is_final() {
            self.ends.entry(key.clone()).or_default().push(phase);
        }
        self.phases.entry(key).or_default().push(phase);
    }

    /// Returns how many of the requests are over.
    pub fn over(&self) -> usize {
        self.ends.keys().filter(|(_, host)| host.is_empty()).count()
    }

    /// Counts the requests by the phase in which they ended.
    pub fn count(&self) -> BTreeMap<&'static str, usize> {
        let mut count = BTreeMap::new();
        for ((_, host), phases) in &self.ends {
            if !host.is_empty() {
                *count.entry(phases[0].name()).or_default() += 1;
            }
        }
        count
    }
}

/// Returns the memory that a process has in use, bytes.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1_024)
}
