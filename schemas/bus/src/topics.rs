//! The topics that exist, what each is made like, and the limits on a message.

use std::time::Duration;

/// What we put into one message at most: 1 MiB. A batch closes at 256 KiB; what the processor adds to it must fit,
/// else the batch is split into parts.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// What a topic takes at most: 4 MiB. Above our own limit, so that a foreign message over ours reaches a consumer,
/// which puts it aside with its reason, instead of failing at a producer that we do not see.
pub const TOPIC_BYTES_MAX: usize = 4 << 20;

/// What a dead-letter topic takes at most: the largest message of any topic and the headers that say why it died.
pub const DEAD_LETTER_BYTES_MAX: usize = TOPIC_BYTES_MAX + (64 << 10);

const _: () = assert!(MESSAGE_BYTES_MAX < TOPIC_BYTES_MAX && TOPIC_BYTES_MAX < DEAD_LETTER_BYTES_MAX);

/// What follows a topic's name to make the name of its dead letters.
pub const DEAD_LETTER_SUFFIX: &str = ".dlq";

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A topic of the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// Batches of raw stacks, by host.
    StacksRaw,
    /// The same batches, symbolized, tagged, weighted, by host.
    Samples,
    /// The life of each run, with its accounting, by host.
    Runs,
    /// What became of slots, by service.
    Coverage,
    /// Plans in force, by service and profiler; compacted.
    Plans,
    /// Hosts as their agents last said, by host; compacted.
    Hosts,
    /// What the tuner knows, by service and profiler; compacted.
    Tuner,
    /// What people configure for the fleet, by name; compacted.
    Config,
    /// Profiles that are asked for, and what became of them, by request.
    Requests,
    /// What agents say of requests, by request.
    Reports,
    /// Alerts, and which requests rules made of them.
    Alerts,
    /// What people and programs asked for, changed, and were refused, by who.
    Audit,
}

/// What happens to old messages of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleanup {
    /// They go when they are older than the retention.
    Delete,
    /// The newest of each key stays.
    Compact,
}

impl Cleanup {
    fn value(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Compact => "compact",
        }
    }
}

/// What a topic is made like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// The full name.
    pub name: String,
    /// Partitions when it is created.
    pub partitions: i32,
    /// Whether messages have a key whose order counts: then the partition count is never changed.
    pub keyed: bool,
    /// How long messages stay. Longer than a spool keeps them, shorter than the store remembers identities.
    pub retention: Duration,
    /// `max.message.bytes`.
    pub message_bytes_max: usize,
    /// What happens to old messages.
    pub cleanup: Cleanup,
    /// Copies of each message.
    pub replication_factor: i32,
    /// Whether messages bear the time at which the broker took them, not that at which their producer sent them.
    pub broker_time: bool,
}

impl TopicSpec {
    /// Returns the topic's settings, by Kafka's names.
    pub fn config(&self) -> Vec<(&'static str, String)> {
        // With three copies one may be away while `acks=all` still means two disks; with fewer, the leader alone.
        let in_sync = if self.replication_factor >= 3 { 2 } else { 1 };
        let mut config = vec![
            ("cleanup.policy", self.cleanup.value().to_owned()),
            // What the producer compressed stays as it is: the broker spends no CPU on it.
            ("compression.type", "producer".to_owned()),
            ("max.message.bytes", self.message_bytes_max.to_string()),
            ("min.insync.replicas", in_sync.to_string()),
            ("retention.ms", self.retention.as_millis().to_string()),
        ];
        if self.broker_time {
            config.push(("message.timestamp.type", "LogAppendTime".to_owned()));
        }
        if self.cleanup == Cleanup::Compact {
            // Only closed segments are compacted, and every reader reads the topic from its start.
            config.push(("segment.ms", HOUR.as_millis().to_string()));
        }
        config
    }
}

impl Topic {
    /// Every topic, in the order of the path.
    pub const ALL: [Self; 12] = [
        Self::StacksRaw,
        Self::Samples,
        Self::Runs,
        Self::Coverage,
        Self::Plans,
        Self::Hosts,
        Self::Tuner,
        Self::Config,
        Self::Requests,
        Self::Reports,
        Self::Alerts,
        Self::Audit,
    ];

    /// Those whose messages are events, and each of them is processed: what cannot be goes to the dead letters.
    pub const STREAMS: [Self; 5] = [
        Self::StacksRaw,
        Self::Samples,
        Self::Runs,
        Self::Coverage,
        Self::Audit,
    ];

    /// Those that are tables, of which the newest message of a key is true. What is neither, is a conversation: it is read
    /// from some time on, and what cannot be read asks for nothing.
    pub const TABLES: [Self; 4] = [Self::Plans, Self::Hosts, Self::Tuner, Self::Config];

    /// Returns the name without the prefix.
    pub fn stem(self) -> &'static str {
        match self {
            Self::StacksRaw => "stacks.raw",
            Self::Samples => "samples",
            Self::Runs => "runs",
            Self::Coverage => "coverage",
            Self::Plans => "plans",
            Self::Hosts => "hosts",
            Self::Tuner => "tuner",
            Self::Config => "config",
            Self::Requests => "requests",
            Self::Reports => "reports",
            Self::Alerts => "alerts",
            Self::Audit => "audit",
        }
    }

    /// Returns the full name.
    pub fn name(self, prefix: &str) -> String {
        format!("{prefix}{}", self.stem())
    }

    /// Returns how long its messages stay unless the site says otherwise.
    fn retention(self) -> Duration {
        match self {
            Self::StacksRaw | Self::Samples => 3 * DAY,
            Self::Runs | Self::Coverage | Self::Plans | Self::Hosts | Self::Tuner | Self::Config => 7 * DAY,
            Self::Requests | Self::Reports | Self::Alerts | Self::Audit => 7 * DAY,
        }
    }

    /// Returns what it and, where it is a stream, its dead letters are made like.
    pub fn specs(self, prefix: &str, partitions: i32, replication_factor: i32) -> Vec<TopicSpec> {
        let is_stream = Self::STREAMS.contains(&self);
        let live = TopicSpec {
            name: self.name(prefix),
            // Rules count what they have started: all alerts pass by one that counts.
            partitions: if self == Self::Alerts { 1 } else { partitions },
            keyed: true,
            retention: self.retention(),
            message_bytes_max: TOPIC_BYTES_MAX,
            cleanup: if Self::TABLES.contains(&self) {
                Cleanup::Compact
            } else {
                Cleanup::Delete
            },
            replication_factor,
            // What is asked expires by one clock, whoever's stands wrong.
            broker_time: matches!(self, Self::Requests | Self::Reports | Self::Alerts),
        };
        let dead = TopicSpec {
            name: dead_letter_name(&live.name),
            // Few and far between; one partition keeps a list of them in order.
            partitions: 1,
            keyed: false,
            // Somebody must see it, find the cause and deploy a cure.
            retention: 14 * DAY,
            message_bytes_max: DEAD_LETTER_BYTES_MAX,
            ..live.clone()
        };
        if is_stream { vec![live, dead] } else { vec![live] }
    }
}

/// Returns the name of the topic that holds the dead letters of `topic`.
pub fn dead_letter_name(topic: &str) -> String {
    format!("{topic}{DEAD_LETTER_SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the names that other tools and the documentation rely on.
    #[test]
    fn names_are_those_of_the_map() {
        let names: Vec<_> = Topic::ALL.iter().map(|topic| topic.name("strobe.")).collect();
        assert_eq!(
            names,
            [
                "strobe.stacks.raw",
                "strobe.samples",
                "strobe.runs",
                "strobe.coverage",
                "strobe.plans",
                "strobe.hosts",
                "strobe.tuner",
                "strobe.config",
                "strobe.requests",
                "strobe.reports",
                "strobe.alerts",
                "strobe.audit"
            ]
        );
        let [live, dead] = &Topic::Runs.specs("x.", 4, 3)[..] else {
            panic!("a stream has dead letters");
        };
        assert_eq!((live.name.as_str(), dead.name.as_str()), ("x.runs", "x.runs.dlq"));
        assert_eq!((live.partitions, dead.partitions), (4, 1));
        assert!(live.config().contains(&("min.insync.replicas", "2".into())));
        assert!(dead.message_bytes_max > live.message_bytes_max);
    }

    /// Checks that tables are compacted, that streams alone have dead letters, and that requests have the broker's time.
    #[test]
    fn tables_are_compacted() {
        for topic in Topic::ALL {
            let specs = topic.specs("x.", 4, 1);
            let stream = Topic::STREAMS.contains(&topic);
            assert_eq!(specs.len(), if stream { 2 } else { 1 });
            let table = Topic::TABLES.contains(&topic);
            assert!(!(stream && table), "{topic:?}");
            let policy = (
                "cleanup.policy",
                if table { "compact" } else { "delete" }.to_owned(),
            );
            assert!(
                specs.iter().all(|spec| spec.config().contains(&policy)),
                "{topic:?}"
            );
            let time = ("message.timestamp.type", "LogAppendTime".to_owned());
            let by_broker = specs.iter().any(|spec| spec.config().contains(&time));
            assert_eq!(by_broker, !stream && !table, "{topic:?}");
        }
    }
}
