//! The bus as configured, and as proved.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use serde::Deserialize;

use crate::error::Error;
use crate::topics::{self, Topic, TopicSpec};

/// The part `[bus]` of a configuration, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bus {
    /// Addresses of brokers, `host:port`, separated by commas.
    pub bootstrap: String,
    /// What every topic's name begins with.
    pub topic_prefix: String,
    /// Copies of each message; unset: 3, or 1 where the cluster has fewer than three brokers.
    pub replication_factor: Option<i32>,
    /// Partitions of a keyed topic when it is created; later it stays as it is.
    pub partitions: i32,
    /// File with the password for SASL, alone on a line: `sasl.password` without writing it into the configuration. A service
    /// manager's credential will do. Read once, at the start.
    pub password_file: Option<PathBuf>,
    /// Any option of librdkafka, by its own name; those that delivery rests on are kept, with a warning.
    pub options: Options,
}

impl Default for Bus {
    fn default() -> Self {
        Self {
            bootstrap: "127.0.0.1:9092".into(),
            topic_prefix: "strobe.".into(),
            replication_factor: None,
            // A few consumers can join without a repartition, and one broker does not mind.
            partitions: 8,
            password_file: None,
            options: Options::default(),
        }
    }
}

/// Options of librdkafka. Its `Debug` form shows the names of all and the values of those that are no secret.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Options(BTreeMap<String, OptionValue>);

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum OptionValue {
    Flag(bool),
    Number(i64),
    Text(String),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Options {
    /// Sets an option.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), OptionValue::Text(value.into()));
    }

    /// Returns the options with the values of secrets left out.
    pub fn shown(&self) -> BTreeMap<&str, String> {
        let show = |name: &str, value: &OptionValue| {
            if is_secret(name) {
                "(hidden)".to_owned()
            } else {
                value.to_string()
            }
        };
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), show(name, value)))
            .collect()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

/// Returns whether the value of the option must never be shown: passwords, private keys, client secrets, and the
/// free-form settings of SASL plug-ins, which hold such.
fn is_secret(name: &str) -> bool {
    const PARTS: [&str; 6] = [
        "password",
        "secret",
        "ssl.key",
        "sasl.oauthbearer.config",
        "jaas",
        "private",
    ];
    // The location of a key file is no secret, and an operator wants to see it.
    PARTS.iter().any(|part| name.contains(part)) && !name.ends_with(".location")
}

/// What delivery rests on, for every client; an option of the same name loses, with a warning.
const LOCKED_COMMON: [&str; 4] = ["bootstrap.servers", "group.id", "client.id", "log.queue"];

/// For producers: never give up, never reorder, never acknowledge what only one disk has.
pub(crate) const LOCKED_PRODUCER: [(&str, &str); 5] = [
    ("enable.idempotence", "true"),
    ("acks", "all"),
    // A message may wait for as long as the broker is away; giving up on one would let later ones overtake it.
    ("message.timeout.ms", "0"),
    // The most that keeps order under idempotence.
    ("max.in.flight.requests.per.connection", "5"),
    // As the Java clients do it: a key has one partition, whoever produces.
    ("partitioner", "murmur2_random"),
];

/// For consumers: nothing is committed behind our back, nothing is skipped, damage is noticed.
pub(crate) const LOCKED_CONSUMER: [(&str, &str); 6] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "earliest"),
    ("check.crcs", "true"),
    // Eager: all partitions are given up and taken anew, so that one drain covers a whole rebalance.
    ("partition.assignment.strategy", "range"),
    ("group.protocol", "classic"),
];

/// Other names of locked options.
const LOCKED_ALIASES: [&str; 4] = [
    "metadata.broker.list",
    "request.required.acks",
    "delivery.timeout.ms",
    "max.in.flight",
];

/// What a producer's client sends at most, uncompressed: a foreign message that fitted under a topic's limit when it
/// was compressed must still fit when it goes to the dead letters.
pub(crate) const CLIENT_MESSAGE_BYTES_MAX: usize = 32 << 20;
const _: () = assert!(CLIENT_MESSAGE_BYTES_MAX > topics::DEAD_LETTER_BYTES_MAX);

/// Defaults of producers that options may change.
const DEFAULT_PRODUCER: [(&str, &str); 7] = [
    ("compression.codec", "zstd"),
    ("linger.ms", "50"),
    // Under the limit of every topic of ours, so that messages which fit alone also fit together.
    ("batch.size", "1000000"),
    ("message.max.bytes", "33554432"),
    // Beside the window of the caller, which is the bound that counts. The default would be 1 GiB.
    ("queue.buffering.max.kbytes", "65536"),
    ("queue.buffering.max.messages", "20000"),
    // Away brokers are asked again within two seconds of their return.
    ("reconnect.backoff.max.ms", "2000"),
];
const _: () = assert!(CLIENT_MESSAGE_BYTES_MAX == 33_554_432);

/// Defaults of consumers that options may change.
const DEFAULT_CONSUMER: [(&str, &str); 7] = [
    // What is fetched ahead; the default would be 64 MiB for every partition together and 1 MiB per request.
    ("queued.max.messages.kbytes", "16384"),
    ("fetch.max.bytes", "16777216"),
    ("fetch.message.max.bytes", "4194304"),
    // Also the most that a compressed batch may unfold to.
    ("receive.message.max.bytes", "67108864"),
    ("fetch.wait.max.ms", "100"),
    ("topic.metadata.refresh.interval.ms", "10000"),
    ("reconnect.backoff.max.ms", "2000"),
];

/// Where the brokers are and how to speak with them, proved.
#[derive(Clone)]
pub struct BusSettings {
    bootstrap: String,
    topic_prefix: String,
    replication_factor: Option<i32>,
    partitions: i32,
    options: Options,
    client_id: String,
    prompt: bool,
}

impl fmt::Debug for BusSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusSettings")
            .field("bootstrap", &self.bootstrap)
            .field("topic_prefix", &self.topic_prefix)
            .field("replication_factor", &self.replication_factor)
            .field("partitions", &self.partitions)
            .field("options", &self.options)
            .finish()
    }
}

/// More partitions than this on one topic are a typing error: an index file and a log each, on every replica.
const PARTITIONS_MAX: i32 = 1_024;
/// Kafka's own limit on a topic's name is 249; the longest of our stems and `.dlq` must fit behind the prefix.
const TOPIC_PREFIX_BYTES_MAX: usize = 200;

impl Bus {
    /// Returns the settings, or what is wrong with the configuration and what to do.
    pub fn validate(self) -> Result<BusSettings, Error> {
        let bootstrap = self
            .bootstrap
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let bootstrap: Vec<_> = bootstrap.collect();
        if bootstrap.is_empty() {
            return config("`bus.bootstrap` is empty: name at least one `host:port`");
        }
        for address in &bootstrap {
            let port = address
                .rsplit_once(':')
                .filter(|(host, _)| !host.is_empty())
                .map(|(_, port)| port);
            if !port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port != 0)) {
                return config(format!(
                    "`bus.bootstrap` has `{address}`: write it as `host:port`"
                ));
            }
        }
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !self.topic_prefix.bytes().all(legal) || self.topic_prefix.len() > TOPIC_PREFIX_BYTES_MAX {
            return config(format!(
                "`bus.topic_prefix` is `{}`: use up to {TOPIC_PREFIX_BYTES_MAX} letters, digits, `.`, `_` and `-`",
                self.topic_prefix.escape_debug()
            ));
        }
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            let (have, max) = (self.partitions, PARTITIONS_MAX);
            return config(format!(
                "`bus.partitions` is {have}: choose a number from 1 to {max}"
            ));
        }
        if let Some(have) = self
            .replication_factor
            .filter(|factor| !(1..=i32::from(i16::MAX)).contains(factor))
        {
            return config(format!(
                "`bus.replication_factor` is {have}: choose 1 or more, usually 3"
            ));
        }
        for name in self.options.0.keys() {
            if is_locked(name) {
                tracing::warn!(
                    option = name.as_str(),
                    "`bus.options.{name}` is ignored: delivery rests on its value"
                );
            }
        }
        let mut options = self.options;
        if let Some(file) = &self.password_file {
            options.set("sasl.password", password(file)?);
        }
        let settings = BusSettings {
            bootstrap: bootstrap.join(","),
            topic_prefix: self.topic_prefix,
            replication_factor: self.replication_factor,
            partitions: self.partitions,
            options,
            client_id: "strobe".into(),
            prompt: false,
        };
        settings.prove_options()?;
        Ok(settings)
    }
}

/// A password is a line; what is longer is another file.
const PASSWORD_BYTES_MAX: usize = 4_096;

/// Returns the password in a file.
fn password(file: &Path) -> Result<String, Error> {
    let shown = file.display();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return config(format!("cannot read `bus.password_file` {shown}: {error}")),
    };
    let password = text.trim_end_matches(['\n', '\r']);
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX || password.contains('\n') {
        return config(format!(
            "`bus.password_file` {shown} holds no password: write one line into it"
        ));
    }
    Ok(password.to_owned())
}

fn config<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::Config(text.into()))
}

fn is_locked(name: &str) -> bool {
    LOCKED_COMMON.contains(&name)
        || LOCKED_ALIASES.contains(&name)
        || LOCKED_PRODUCER
            .iter()
            .chain(&LOCKED_CONSUMER)
            .any(|(locked, _)| *locked == name)
}

impl BusSettings {
    /// Returns the settings with another name for the client in the broker's logs, `strobe-agent` for example.
    pub fn with_client_id(mut self, client_id: &str) -> Self {
        self.client_id = client_id.to_owned();
        self
    }

    /// Returns the settings for conversations, whose messages are few and waited for: a producer sends each at once, and a reader
    /// without a group waits at the broker, which answers as soon as something comes, instead of asking ten times a second. What a
    /// site has set stays.
    pub fn prompt(mut self) -> Self {
        self.prompt = true;
        self
    }

    /// Returns the addresses of the brokers.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Returns what every topic's name begins with.
    pub fn topic_prefix(&self) -> &str {
        &self.topic_prefix
    }

    /// Returns the full name of a topic.
    pub fn topic(&self, topic: Topic) -> String {
        topic.name(&self.topic_prefix)
    }

    /// Returns the topic of that full name, when it is one of ours.
    pub fn topic_of(&self, name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| self.topic(*topic) == name)
    }

    /// Returns what the topics of the bus are made like, in a cluster of so many brokers.
    pub fn specs(&self, brokers: usize) -> Vec<TopicSpec> {
        let factor = self.replication_factor.unwrap_or(if brokers < 3 { 1 } else { 3 });
        Topic::ALL
            .iter()
            .flat_map(|topic| topic.specs(&self.topic_prefix, self.partitions, factor))
            .collect()
    }

    /// Returns the configuration of a producer.
    pub(crate) fn producer(&self) -> ClientConfig {
        let mut config = self.client(&DEFAULT_PRODUCER, &LOCKED_PRODUCER);
        self.hurry(&mut config, "linger.ms", "2");
        config
    }

    /// Sets an option for conversations, unless the site has set it.
    fn hurry(&self, config: &mut ClientConfig, name: &str, value: &str) {
        if self.prompt && !self.options.0.contains_key(name) {
            config.set(name, value);
        }
    }

    /// Returns the configuration of a consumer of `group`.
    pub(crate) fn consumer(&self, group: Option<&str>) -> ClientConfig {
        let mut config = self.client(&DEFAULT_CONSUMER, &LOCKED_CONSUMER);
        match group {
            Some(group) => {
                config.set("group.id", group);
            }
            // A broker answers a connection in order: a member of a group, which asks for offsets when it is given partitions, would wait
            // behind its own fetch each time.
            None => self.hurry(&mut config, "fetch.wait.max.ms", "5000"),
        }
        config
    }

    /// Returns the configuration of a client that only asks and administers.
    pub(crate) fn administrator(&self) -> ClientConfig {
        self.client(&[], &[])
    }

    fn client(&self, defaults: &[(&str, &str)], locked: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (name, value) in defaults {
            config.set(*name, *value);
        }
        for (name, value) in self.options.0.iter().filter(|(name, _)| !is_locked(name)) {
            config.set(name, value.to_string());
        }
        for (name, value) in locked {
            config.set(*name, *value);
        }
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("client.id", &self.client_id);
        config
    }

    /// Has librdkafka look at each option alone, so that the message can name it.
    fn prove_options(&self) -> Result<(), Error> {
        for (name, value) in &self.options.0 {
            let proved = ClientConfig::new()
                .set(name, value.to_string())
                .create_native_config();
            match proved {
                Ok(_) => {}
                // librdkafka's text may repeat the value, which may be a secret.
                Err(_) if is_secret(name) => {
                    return config(format!(
                        "`bus.options.{name}` is refused by librdkafka (its value is not shown)"
                    ));
                }
                Err(KafkaError::ClientConfig(_, reason, ..)) => {
                    return config(format!("`bus.options.{name}` is refused by librdkafka: {reason}"));
                }
                Err(other) => {
                    return config(format!("`bus.options.{name}` is refused by librdkafka: {other}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BusSettings, String> {
        toml::from_str::<Bus>(text)
            .map_err(|error| error.to_string())?
            .validate()
            .map_err(|error| error.to_string())
    }

    /// Checks that each mistake in the configuration is answered by a message that names the key.
    #[test]
    fn mistakes_are_named() {
        let empty = read("bootstrap = ' , '").unwrap_err();
        assert_eq!(empty, "`bus.bootstrap` is empty: name at least one `host:port`");
        for (text, named) in [
            ("bootstrap = 'kafka'", "`kafka`: write it as `host:port`"),
            ("bootstrap = ':9092'", "`:9092`: write it as `host:port`"),
            ("bootstrap = 'a:0'", "`a:0`: write it as `host:port`"),
            ("topic_prefix = 'a b'", "`bus.topic_prefix`"),
            ("partitions = 0", "`bus.partitions`"),
            ("replication_factor = 0", "`bus.replication_factor`"),
            ("brokers = 'a:1'", "brokers"),
            ("options = { 'linger.sm' = 5 }", "`bus.options.linger.sm`"),
            ("options = { 'linger.ms' = 'soon' }", "`bus.options.linger.ms`"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(named), "{text}: {message}");
        }
    }

    /// Checks that options reach the client, that those delivery rests on do not, and that numbers and flags work.
    #[test]
    fn options_pass_through_and_locked_ones_win() {
        let text = "bootstrap = 'a:1, b:2'\noptions = { 'linger.ms' = 7, 'enable.idempotence' = false, \
                    'message.timeout.ms' = 1, 'delivery.timeout.ms' = 1, 'session.timeout.ms' = '9000', \
                    'enable.auto.commit' = true, 'socket.keepalive.enable' = true }";
        let settings = read(text).unwrap();
        let producer = settings.producer();
        assert_eq!(producer.get("bootstrap.servers"), Some("a:1,b:2"));
        assert_eq!(producer.get("linger.ms"), Some("7"));
        assert_eq!(producer.get("socket.keepalive.enable"), Some("true"));
        assert_eq!(producer.get("enable.idempotence"), Some("true"));
        let native = producer.create_native_config().unwrap();
        assert_eq!(native.get("enable.idempotence").unwrap(), "true");
        assert_eq!(producer.get("message.timeout.ms"), Some("0"));
        assert_eq!(producer.get("delivery.timeout.ms"), None);
        let consumer = settings.consumer(Some("group"));
        assert_eq!(consumer.get("session.timeout.ms"), Some("9000"));
        assert_eq!(consumer.get("enable.auto.commit"), Some("false"));
        assert_eq!(consumer.get("group.id"), Some("group"));
    }

    /// Checks that no secret shows in what is logged or in an error.
    #[test]
    fn secrets_stay_hidden() {
        let text = "options = { 'sasl.password' = 'hunter2', 'ssl.key.password' = 'hunter2', \
                    'sasl.oauthbearer.client.secret' = 'hunter2', 'ssl.key.pem' = 'hunter2', \
                    'ssl.key.location' = '/etc/key.pem' }";
        let bus: Bus = toml::from_str(text).unwrap();
        let shown = format!("{bus:?}");
        assert!(
            !shown.contains("hunter2") && shown.contains("/etc/key.pem"),
            "{shown}"
        );
        let settings = bus.validate();
        let shown = format!("{settings:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    /// Checks that a small cluster gets one copy and a larger one three, unless the site says otherwise.
    #[test]
    fn copies_follow_the_cluster() {
        let settings = read("").unwrap();
        assert!(settings.specs(1).iter().all(|spec| spec.replication_factor == 1));
        assert!(settings.specs(3).iter().all(|spec| spec.replication_factor == 3));
        let settings = read("replication_factor = 2").unwrap();
        assert!(settings.specs(5).iter().all(|spec| spec.replication_factor == 2));
        assert_eq!(settings.specs(1).len(), Topic::ALL.len() + Topic::STREAMS.len());
    }
}
