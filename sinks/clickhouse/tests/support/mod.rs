//! A broker and an engine of the test's own, a sink as a process that can be killed, and the truth to compare with.

use std::collections::BTreeMap;
pub mod proxy;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clickhouse::Client;
use strobe_bus::{Bus, BusSettings, Meta, Outgoing, ResendingProducer, Topic, WindowLimits, admin, lag};
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{DropCount, DropReason, Epoch, Identity, RunEvent, RunState, SamplesBatch, codec};
use strobe_sink::SinkConfig;

const KAFKA_PORT: u16 = 18_710;
pub const ENGINE_PORT: u16 = 18_720;

/// Says on stderr, past libtest's capture, that a test did not run.
pub fn skipped(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(name: &str, arguments: &[String]) {
    let output = Command::new(repository().join(name))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {said}");
}

/// A broker and an engine, ended with the last test that uses them.
pub struct Stack {
    folder: tempfile::TempDir,
    // Last, so that it is given back when both are gone.
    _turn: Turn,
}

/// The right to run the only one of its port. Its last user may still be ending one when the next user wants another.
struct Turn;

static TAKEN: Mutex<bool> = Mutex::new(false);
static FREED: Condvar = Condvar::new();

impl Turn {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut taken = FREED
            .wait_while(taken, |taken| *taken)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *taken = true;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = false;
        FREED.notify_one();
    }
}

impl Stack {
    /// Returns those that the tests of this binary share, or says why there can be none here.
    pub fn shared() -> Result<Arc<Self>, String> {
        static SHARED: Mutex<Weak<Stack>> = Mutex::new(Weak::new());
        let home =
            std::env::var_os("STROBE_HOME").map_or_else(|| repository().join(".strobe"), PathBuf::from);
        if !home.join("kafka/jars/.stamp").exists() {
            return Err("the broker's jars are missing: infra/kafka/broker.sh install".into());
        }
        if !home.join("venv/bin/python").exists() {
            return Err("the engine is missing: infra/clickhouse/engine.sh install".into());
        }
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(stack) = shared.upgrade() {
            return Ok(stack);
        }
        let stack = Arc::new(Self {
            folder: tempfile::tempdir().unwrap(),
            _turn: Turn::take(),
        });
        stack.broker("start");
        stack.engine("start");
        *shared = Arc::downgrade(&stack);
        Ok(stack)
    }

    fn arguments(&self, command: &str, what: &str, port: u16) -> Vec<String> {
        let folder = self.folder.path();
        let mut arguments = vec![command.into(), "--port".into(), port.to_string()];
        arguments.extend(["--name".into(), format!("sink-test-{port}")]);
        for (flag, file) in [("--data", "data"), ("--log", "log"), ("--pid-file", "pid")] {
            arguments.extend([
                flag.into(),
                folder.join(format!("{what}.{file}")).display().to_string(),
            ]);
        }
        arguments
    }

    pub fn broker(&self, command: &str) {
        let mut arguments = self.arguments(command, "kafka", KAFKA_PORT);
        arguments.extend(["--heap".into(), "256m".into()]);
        script("infra/kafka/broker.sh", &arguments);
    }

    pub fn engine(&self, command: &str) {
        script(
            "infra/clickhouse/engine.sh",
            &self.arguments(command, "engine", ENGINE_PORT),
        );
    }

    fn password(&self) -> String {
        let file = self.folder.path().join("engine.data.writer.password");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.engine("kill");
        self.broker("kill");
    }
}

fn client(database: &str, password: &str) -> Client {
    Client::default()
        .with_url(format!("http://127.0.0.1:{ENGINE_PORT}"))
        .with_user("strobe_writer")
        .with_password(password)
        .with_database(database)
}

fn bus(name: &str, partitions: i32) -> BusSettings {
    let mut bus = Bus {
        bootstrap: format!("127.0.0.1:{KAFKA_PORT}"),
        topic_prefix: format!("{name}."),
        partitions,
        ..Bus::default()
    };
    // The shortest that a broker allows: a test does not wait 45 s for a takeover.
    bus.options.set("session.timeout.ms", "6000");
    bus.options.set("heartbeat.interval.ms", "500");
    bus.validate().unwrap()
}

/// What the truth says of one host: samples, and their weight.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Truth {
    pub samples: u64,
    pub weight: f64,
}

/// Topics and tables of one test.
pub struct Rig {
    pub stack: Arc<Stack>,
    pub name: String,
    pub bus: BusSettings,
    pub store: Client,
    runtime: tokio::runtime::Runtime,
    producer: ResendingProducer,
    truth: BTreeMap<String, Truth>,
    workload: Workload,
    next: BTreeMap<String, u64>,
}

impl Rig {
    pub fn new(name: &str, partitions: i32) -> Result<Self, String> {
        let stack = Stack::shared()?;
        let (bus, password) = (bus(name, partitions), stack.password());
        admin::apply(&bus, false).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let rig = Self {
            producer: ResendingProducer::new(&bus, WindowLimits::default()).unwrap(),
            store: client(name, &password),
            stack,
            name: name.to_owned(),
            bus,
            runtime,
            truth: BTreeMap::new(),
            workload: Workload::new(
                Shape {
                    samples: 600,
                    ..Shape::default()
                },
                11,
            ),
            next: BTreeMap::new(),
        };
        let create = client("default", &password);
        rig.runtime
            .block_on(
                create
                    .query_raw(&format!("CREATE DATABASE IF NOT EXISTS `{name}`"))
                    .execute(),
            )
            .unwrap();
        let mut files: Vec<_> = std::fs::read_dir(repository().join("infra/clickhouse/ddl"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
            .collect();
        files.sort();
        for file in files {
            rig.execute(
                std::fs::read_to_string(file)
                    .unwrap()
                    .trim_end()
                    .trim_end_matches(';'),
            );
        }
        Ok(rig)
    }

    pub fn execute(&self, sql: &str) {
        self.runtime
            .block_on(self.store.query_raw(sql).execute())
            .unwrap();
    }

    pub fn number(&self, sql: &str) -> u64 {
        self.runtime
            .block_on(self.store.query_raw(sql).fetch_one::<u64>())
            .unwrap()
    }

    fn try_number(&self, sql: &str) -> Option<u64> {
        self.runtime
            .block_on(self.store.query_raw(sql).fetch_one::<u64>())
            .ok()
    }

    /// Returns the next batch of a host, and what its headers say.
    pub fn batch(&mut self, host: &str) -> (Meta, SamplesBatch) {
        let next = self.next.entry(host.to_owned()).or_default();
        let sequence = *next;
        *next += 1;
        let mut batch = self.workload.samples_batch(sequence as u32 % 8);
        batch.raw.start_us = now_us() - 5_000_000;
        batch.raw.end_us = batch.raw.start_us + 1_000_000;
        let identity = Identity {
            host: host.to_owned(),
            epoch: Epoch([7; 16]),
            sequence,
            part: 0,
        };
        let meta = Meta {
            identity,
            run: batch.raw.run.id,
            samples: batch.raw.samples.len() as u64,
        };
        (meta, batch)
    }

    /// Notes that a batch must be stored.
    pub fn expect(&mut self, meta: &Meta, batch: &SamplesBatch) {
        let truth = self.truth.entry(meta.identity.host.clone()).or_default();
        truth.samples += meta.samples;
        truth.weight += batch
            .sample_weight
            .iter()
            .map(|&weight| batch.weights[weight as usize].run)
            .sum::<f64>();
    }

    pub fn send(&mut self, meta: &Meta, batch: &SamplesBatch) {
        let value = codec::encode_framed(batch).unwrap();
        self.send_bytes(Topic::Samples, meta, value);
    }

    /// Sends the event that ends the run of a batch.
    pub fn send_event(&mut self, meta: &Meta, batch: &SamplesBatch) {
        let event = RunEvent {
            run: batch.raw.run.clone(),
            state: RunState::Finished as u8,
            time_us: batch.raw.end_us,
            detail: "as planned".into(),
            taken: meta.samples + 5,
            spooled: meta.samples,
            idle: 3,
            batches: 1,
            drops: vec![DropCount {
                reason: DropReason::RingFull as u8,
                samples: 5,
            }],
            done_us: 1_000_000,
        };
        self.send_bytes(Topic::Runs, meta, codec::encode_framed(&event).unwrap());
    }

    pub fn send_bytes(&mut self, topic: Topic, meta: &Meta, value: Vec<u8>) {
        let message = Outgoing {
            topic: self.bus.topic(topic).into(),
            key: Some(meta.identity.host.clone().into_bytes().into()),
            headers: meta.to_headers(),
            payload: Some(value.into()),
        };
        self.producer.push(0, message).unwrap();
    }

    pub fn flush(&mut self) {
        self.producer.flush(Duration::from_secs(30));
        assert_eq!(self.producer.under_way(), 0);
    }

    /// Sends so many new batches of each host.
    pub fn produce(&mut self, hosts: &[&str], batches: u64) {
        for _ in 0..batches {
            for host in hosts {
                let (meta, batch) = self.batch(host);
                self.expect(&meta, &batch);
                self.send(&meta, &batch);
            }
        }
        self.flush();
    }

    /// Starts a sink as a process of its own.
    pub fn sink(&self, variables: &[(&str, &str)]) -> Sink {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_sink_as_a_process", "--ignored", "--nocapture"])
            .env("SINK_NAME", &self.name)
            .env("SINK_PASSWORD", self.stack.password())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(self.log())
            .spawn()
            .unwrap();
        Sink { child }
    }

    /// Returns where sinks write their log: nowhere, unless `SINK_TEST_LOGS` names a folder.
    fn log(&self) -> Stdio {
        let Some(folder) = std::env::var_os("SINK_TEST_LOGS") else {
            return Stdio::null();
        };
        let file = Path::new(&folder).join(format!("{}.log", self.name));
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap()
            .into()
    }

    /// Returns messages that are not committed, in both topics.
    fn lag(&self) -> u64 {
        [Topic::Samples, Topic::Runs]
            .map(|topic| {
                let lags = lag::group_lag(
                    &self.bus,
                    "strobe-sink",
                    &self.bus.topic(topic),
                    Duration::from_secs(10),
                );
                lags.map_or(u64::MAX / 4, |lags| {
                    lags.iter().map(strobe_bus::consumer::Lag::messages).sum::<u64>()
                })
            })
            .iter()
            .sum()
    }

    /// Waits until everything is committed, then compares with the truth: every sample once, totals included.
    pub fn assert_exactly_once(&self) {
        wait_until("everything is committed", 90, || self.lag() == 0);
        #[derive(clickhouse::Row, serde::Deserialize)]
        struct Row {
            host: String,
            samples: u64,
            weight: f64,
        }
        let rows = self.runtime.block_on(
            self.store
                .query_raw("SELECT host, count() AS samples, sum(run_weight) AS weight FROM samples GROUP BY host ORDER BY host")
                .fetch_all::<Row>(),
        );
        let mut weight = 0.0;
        let mut samples = 0;
        let found: Vec<(String, u64)> = rows
            .unwrap()
            .into_iter()
            .map(|row| {
                weight += row.weight;
                samples += row.samples;
                (row.host, row.samples)
            })
            .collect();
        let expected: Vec<(String, u64)> = self
            .truth
            .iter()
            .map(|(host, truth)| (host.clone(), truth.samples))
            .collect();
        assert_eq!(found, expected, "{}", self.name);
        let truth: f64 = self.truth.values().map(|truth| truth.weight).sum();
        assert!((weight - truth).abs() <= truth * 1e-9, "{weight} of {truth}");
        assert_eq!(
            self.number("SELECT sum(samples) FROM totals_hourly"),
            samples,
            "{}: totals",
            self.name
        );
        let micro = self.number("SELECT toUInt64(round(sum(run_weight))) FROM totals_hourly");
        assert!(
            (micro as f64 - truth).abs() <= 1.0 + truth * 1e-9,
            "totals weigh {micro} of {truth}"
        );
        let bare = "SELECT count() FROM samples WHERE toUInt64(stack) NOT IN (SELECT stack FROM stacks)";
        assert_eq!(self.number(bare), 0, "a sample without its stack");
        let bare = "SELECT count() FROM (SELECT arrayJoin(frames) AS f FROM stacks) WHERE f NOT IN (SELECT frame FROM frames)";
        assert_eq!(self.number(bare), 0, "a stack without its frames");
        let batches = "SELECT sum(samples) FROM (SELECT samples FROM batches FINAL)";
        assert_eq!(self.number(batches), samples, "{}: batches", self.name);
    }

    pub fn stored(&self) -> u64 {
        self.try_number("SELECT count() FROM samples").unwrap_or(0)
    }
}

/// A sink as a process.
pub struct Sink {
    child: Child,
}

impl Sink {
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill")
                .args([signal, &self.pid()])
                .status()
                .unwrap()
                .success()
        );
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop and waits.
    pub fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Waits until it died by itself; whether it did within the time.
    pub fn died(mut self, seconds: u64) -> bool {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
        false
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process behind [`Rig::sink`]: it ends when its stdin does.
pub fn run_as_process() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let variable = |name: &str| std::env::var(name).unwrap();
    let (name, password) = (variable("SINK_NAME"), variable("SINK_PASSWORD"));
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let config = SinkConfig {
        range_samples: number("SINK_RANGE_SAMPLES", 3_000),
        range_time: Duration::from_millis(number("SINK_RANGE_MS", 200)),
        ..SinkConfig::default()
    };
    let mut store = client(&name, &password);
    if let Ok(port) = std::env::var("SINK_STORE_PORT") {
        store = store.with_url(format!("http://127.0.0.1:{port}"));
    }
    let settings = config.validate(bus(&name, 1), store).unwrap();
    let shutdown = strobe_bus::Shutdown::new();
    let stop = shutdown.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.request();
    });
    strobe_sink::run(&settings, &shutdown).unwrap();
}

pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

pub fn wait_until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {seconds} s");
        std::thread::sleep(Duration::from_millis(50));
    }
}
