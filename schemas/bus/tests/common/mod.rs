//! What the tests share: messages with an identity, a broker of their own, and ways to read everything back.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use strobe_bus::{Bus, BusSettings, Meta, Outgoing};
use strobe_event::{Epoch, Identity, RunId};

/// Says on stderr, past libtest's capture, that a test did not run.
pub fn skipped(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

pub fn settings(bootstrap: &str, options: &[(&str, &str)]) -> BusSettings {
    let mut bus = Bus {
        bootstrap: bootstrap.into(),
        ..Bus::default()
    };
    for (name, value) in options {
        bus.options.set(*name, *value);
    }
    bus.validate().unwrap()
}

pub fn meta(host: &str, sequence: u64) -> Meta {
    let identity = Identity {
        host: host.into(),
        epoch: Epoch([9; 16]),
        sequence,
        part: 0,
    };
    Meta {
        identity,
        run: RunId([5; 16]),
        samples: 100,
    }
}

/// A message whose value begins like ours: a zero byte.
pub fn message(topic: &str, host: &str, sequence: u64) -> Outgoing {
    Outgoing {
        topic: topic.into(),
        key: Some(host.as_bytes().to_vec().into()),
        headers: meta(host, sequence).to_headers(),
        payload: Some(format!("\0{host} {sequence}").into_bytes().into()),
    }
}

/// Bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// One record as a plain client of Kafka sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    pub fn header(&self, name: &str) -> Option<String> {
        let value = &self.headers.iter().find(|(have, _)| have == name)?.1;
        Some(String::from_utf8(value.clone()?).unwrap())
    }
}

/// Reads a whole topic with a plain client that knows nothing of the crate under test.
pub fn read_all(bootstrap: &str, topic: &str) -> Vec<Record> {
    let base: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "oracle")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let wait = Duration::from_secs(20);
    let metadata = base.fetch_metadata(Some(topic), wait).unwrap();
    let (mut list, mut ends) = (TopicPartitionList::new(), BTreeMap::new());
    for partition in metadata.topics()[0].partitions() {
        let (start, end) = base.fetch_watermarks(topic, partition.id(), wait).unwrap();
        if start < end {
            list.add_partition_offset(topic, partition.id(), Offset::Offset(start))
                .unwrap();
            ends.insert(partition.id(), end);
        }
    }
    base.assign(&list).unwrap();
    let (mut records, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while !ends.is_empty() {
        assert!(
            Instant::now() < deadline,
            "`{topic}` could not be read to its end"
        );
        let Some(Ok(message)) = base.poll(Duration::from_millis(100)) else {
            continue;
        };
        let headers = message.headers().map(|headers| {
            (0..headers.count())
                .map(|index| headers.get(index))
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect()
        });
        records.push(Record {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
        });
        if ends
            .get(&message.partition())
            .is_some_and(|end| message.offset() + 1 >= *end)
        {
            ends.remove(&message.partition());
        }
    }
    records
}

/// Sequences of each host, in the order in which they were first seen, and how many records were repeats.
pub fn first_seen(records: &[Record]) -> (BTreeMap<String, Vec<u64>>, usize) {
    let (mut hosts, mut repeats) = (BTreeMap::<String, Vec<u64>>::new(), 0);
    for record in records {
        let sequence = record.header("strobe-sequence").unwrap().parse().unwrap();
        let seen = hosts.entry(record.header("strobe-host").unwrap()).or_default();
        if seen.contains(&sequence) {
            repeats += 1;
        } else {
            seen.push(sequence);
        }
    }
    (hosts, repeats)
}

/// Asserts that every host has each sequence below `count`, in order.
pub fn assert_whole(hosts: &BTreeMap<String, Vec<u64>>, names: &[&str], count: u64) {
    assert_eq!(hosts.keys().map(String::as_str).collect::<Vec<_>>(), names);
    for (host, seen) in hosts {
        assert_eq!(*seen, (0..count).collect::<Vec<_>>(), "{host}");
    }
}

pub fn create_topic(bootstrap: &str, topic: &str, partitions: i32, config: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .create()
        .unwrap();
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in config {
        new = new.set(name, value);
    }
    let results = futures::executor::block_on(admin.create_topics([&new], &AdminOptions::new())).unwrap();
    results[0].as_ref().unwrap();
}

/// A broker of the test's own, ended with it.
pub struct Broker {
    port: u16,
    folder: tempfile::TempDir,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/kafka/broker.sh")
}

impl Broker {
    /// Starts a broker, or says why that cannot be done here.
    pub fn start(port: u16) -> Result<Self, String> {
        let home = std::env::var_os("STROBE_HOME").map(PathBuf::from);
        let home = home.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.strobe"));
        if !home.join("kafka/jars/.stamp").exists() {
            return Err("the broker's jars are missing: infra/kafka/broker.sh install".into());
        }
        let broker = Self {
            port,
            folder: tempfile::tempdir().unwrap(),
        };
        broker.run("start");
        Ok(broker)
    }

    pub fn run(&self, command: &str) {
        let folder = self.folder.path();
        let mut arguments = vec![command.into(), "--port".into(), self.port.to_string()];
        arguments.extend(["--name".into(), format!("bus-test-{}", self.port)]);
        for (flag, file) in [("--data", "data"), ("--log", "log"), ("--pid-file", "pid")] {
            arguments.extend([flag.into(), folder.join(file).display().to_string()]);
        }
        arguments.extend(["--heap".into(), "256m".into()]);
        let output = Command::new(script())
            .args(&arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the broker that the tests of this binary share, at `port` or above; the last one to drop it ends it.
    pub fn shared(port: u16) -> Result<Arc<Self>, String> {
        static SHARED: Mutex<Weak<Broker>> = Mutex::new(Weak::new());
        // The last user of one may still be ending it when the next one starts: each has ports of its own.
        static STARTED: AtomicU16 = AtomicU16::new(0);
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(broker) = shared.upgrade() {
            return Ok(broker);
        }
        let broker = Arc::new(Self::start(port + 2 * STARTED.fetch_add(1, Ordering::Relaxed))?);
        *shared = Arc::downgrade(&broker);
        Ok(broker)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.run("kill");
    }
}

/// Runs an ignored test of this binary as a process of its own.
pub fn child(test: &str, variables: &[(&str, &str)]) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

pub fn wait_until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {seconds} s");
        std::thread::sleep(Duration::from_millis(50));
    }
}
