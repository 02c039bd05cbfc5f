//! Makes the topics be as they should: `strobe topics apply`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigResource, ConfigSource, NewTopic, OwnedResourceSpecifier,
    ResourceSpecifier, TopicReplication,
};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;

use crate::error::Error;
use crate::native::Logs;
use crate::settings::BusSettings;
use crate::topics::{Topic, TopicSpec};

/// What was done, or would be, to one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicChange {
    /// The topic's full name.
    pub topic: String,
    /// What.
    pub action: TopicAction,
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicAction {
    /// It was not there.
    Created {
        /// Its partitions.
        partitions: i32,
        /// Copies of each message.
        replication_factor: i32,
    },
    /// Settings were different: name, before, after.
    Altered(Vec<(String, String, String)>),
    /// It has another number of partitions than configured, and keeps it: a key would move to another partition, and
    /// its order with it.
    PartitionsKept {
        /// Partitions that it has.
        have: i32,
        /// Partitions that are configured.
        configured: i32,
    },
    /// It is as it should be.
    Unchanged,
}

impl fmt::Display for TopicChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.topic)?;
        match &self.action {
            TopicAction::Created {
                partitions,
                replication_factor,
            } => {
                write!(
                    f,
                    "created with {partitions} partitions, {replication_factor} copies"
                )
            }
            TopicAction::Altered(settings) => {
                let show =
                    |(name, before, after): &(String, String, String)| format!("{name} {before} → {after}");
                f.write_str(&settings.iter().map(show).collect::<Vec<_>>().join(", "))
            }
            TopicAction::PartitionsKept { have, configured } => write!(
                f,
                "has {have} partitions and keeps them, though {configured} are configured: keys would lose their order"
            ),
            TopicAction::Unchanged => f.write_str("unchanged"),
        }
    }
}

/// How long the cluster may take for one step.
const STEP: Duration = Duration::from_secs(30);
/// How long the first broker may take to answer: a person is waiting.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// How long the brokers may take to show what the controller has decided: usually far under a second.
const SETTLE: Duration = Duration::from_secs(15);

/// Asks whether a broker answers, and for how long at most.
pub fn answers(settings: &BusSettings, patience: Duration) -> Result<(), Error> {
    let client = AdminClient::from_config_and_context(&settings.administrator(), Logs::default())
        .map_err(Error::kafka("making an administrator"))?;
    let asked = client
        .inner()
        .fetch_metadata(Some(&settings.topic(Topic::Samples)), patience);
    asked.map(drop).map_err(|source| Error::Unreachable {
        bootstrap: settings.bootstrap().to_owned(),
        source,
    })
}

/// Creates the topics that are missing and alters the settings that differ; with `dry_run` it only says so. Settings
/// that somebody else made on a topic stay.
pub fn apply(settings: &BusSettings, dry_run: bool) -> Result<Vec<TopicChange>, Error> {
    let client = AdminClient::from_config_and_context(&settings.administrator(), Logs::default())
        .map_err(Error::kafka("making an administrator"))?;
    let cluster = client
        .inner()
        .fetch_metadata(None, FIRST_ANSWER)
        .map_err(|source| Error::Unreachable {
            bootstrap: settings.bootstrap().to_owned(),
            source,
        })?;
    let existing: BTreeMap<&str, &MetadataTopic> = cluster
        .topics()
        .iter()
        .map(|topic| (topic.name(), topic))
        .collect();
    let specs = settings.specs(cluster.brokers().len());
    let (there, missing): (Vec<_>, Vec<_>) = specs
        .iter()
        .partition(|spec| existing.contains_key(spec.name.as_str()));
    let mut changes = create(&client, &missing, dry_run)?;
    changes.extend(alter(&client, &there, dry_run)?);
    if !dry_run
        && changes
            .iter()
            .any(|change| change.action != TopicAction::Unchanged)
    {
        settle(&client, &specs)?;
    }
    for spec in there {
        let have = existing
            .get(spec.name.as_str())
            .map_or(0, |topic| topic.partitions().len() as i32);
        if spec.keyed && have != spec.partitions {
            let action = TopicAction::PartitionsKept {
                have,
                configured: spec.partitions,
            };
            changes.push(TopicChange {
                topic: spec.name.clone(),
                action,
            });
        }
    }
    let order = |change: &TopicChange| specs.iter().position(|spec| spec.name == change.topic);
    changes.sort_by_key(order);
    Ok(changes)
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(STEP))
        .operation_timeout(Some(STEP))
}

fn create(
    client: &AdminClient<Logs>,
    specs: &[&TopicSpec],
    dry_run: bool,
) -> Result<Vec<TopicChange>, Error> {
    let configs: Vec<_> = specs.iter().map(|spec| spec.config()).collect();
    let mut topics = Vec::with_capacity(specs.len());
    for (spec, config) in specs.iter().zip(&configs) {
        let mut topic = NewTopic::new(
            &spec.name,
            spec.partitions,
            TopicReplication::Fixed(spec.replication_factor),
        );
        for (name, value) in config {
            topic = topic.set(name, value);
        }
        topics.push(topic);
    }
    if !dry_run && !topics.is_empty() {
        let results =
            block_on(client.create_topics(&topics, &options())).map_err(Error::kafka("creating topics"))?;
        for result in results {
            match result {
                // Somebody else was quicker.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    tracing::error!(topic, %code, "the topic could not be created");
                    return Err(Error::Kafka {
                        doing: "creating topics",
                        source: KafkaError::AdminOp(code),
                    });
                }
            }
        }
    }
    let change = |spec: &&TopicSpec| TopicChange {
        topic: spec.name.clone(),
        action: TopicAction::Created {
            partitions: spec.partitions,
            replication_factor: spec.replication_factor,
        },
    };
    Ok(specs.iter().map(change).collect())
}

fn alter(client: &AdminClient<Logs>, specs: &[&TopicSpec], dry_run: bool) -> Result<Vec<TopicChange>, Error> {
    if specs.is_empty() {
        return Ok(Vec::new());
    }
    let found = describe(client, specs)?;
    let mut changes = Vec::new();
    for spec in specs {
        let Some(resource) = found.get(&spec.name) else {
            continue;
        };
        let wanted = spec.config();
        let differences = differences(&wanted, resource);
        if differences.is_empty() {
            changes.push(TopicChange {
                topic: spec.name.clone(),
                action: TopicAction::Unchanged,
            });
            continue;
        }
        if !dry_run {
            alter_one(client, spec, &wanted, resource)?;
        }
        changes.push(TopicChange {
            topic: spec.name.clone(),
            action: TopicAction::Altered(differences),
        });
    }
    Ok(changes)
}

/// Reads the settings of topics.
fn describe(
    client: &AdminClient<Logs>,
    specs: &[&TopicSpec],
) -> Result<BTreeMap<String, ConfigResource>, Error> {
    let doing = "reading the settings of topics";
    let resources: Vec<_> = specs
        .iter()
        .map(|spec| ResourceSpecifier::Topic(&spec.name))
        .collect();
    let described = block_on(client.describe_configs(&resources, &options())).map_err(Error::kafka(doing))?;
    let mut found = BTreeMap::new();
    for resource in described {
        let resource = resource.map_err(|code| Error::Kafka {
            doing,
            source: KafkaError::AdminOp(code),
        })?;
        if let OwnedResourceSpecifier::Topic(name) = &resource.specifier {
            found.insert(name.clone(), resource);
        }
    }
    Ok(found)
}

/// Returns what differs: name, before, after.
fn differences(
    wanted: &[(&'static str, String)],
    resource: &ConfigResource,
) -> Vec<(String, String, String)> {
    let value = |name: &str| {
        resource
            .get(name)
            .and_then(|entry| entry.value.clone())
            .unwrap_or_default()
    };
    let differs = |(name, after): &(&str, String)| {
        let before = value(name);
        (before != *after).then(|| ((*name).to_owned(), before, after.clone()))
    };
    wanted.iter().filter_map(differs).collect()
}

/// Waits until the brokers show the topics as they are specified. The controller answers before they all know, and
/// whoever comes next would find a topic missing that was just created.
fn settle(client: &AdminClient<Logs>, specs: &[TopicSpec]) -> Result<(), Error> {
    let deadline = Instant::now() + SETTLE;
    let specs: Vec<_> = specs.iter().collect();
    loop {
        let settled = describe(client, &specs).is_ok_and(|found| {
            let as_specified = |spec: &&TopicSpec| {
                found
                    .get(&spec.name)
                    .is_some_and(|resource| differences(&spec.config(), resource).is_empty())
            };
            specs.iter().all(as_specified) && client_sees(client, &specs)
        });
        if settled {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut {
                doing: "the cluster's taking over of topics",
                seconds: SETTLE.as_secs(),
            });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn client_sees(client: &AdminClient<Logs>, specs: &[&TopicSpec]) -> bool {
    client
        .inner()
        .fetch_metadata(None, FIRST_ANSWER)
        .is_ok_and(|cluster| {
            let ready =
                |topic: &MetadataTopic| topic.partitions().iter().all(|partition| partition.leader() >= 0);
            specs.iter().all(|spec| {
                cluster
                    .topics()
                    .iter()
                    .any(|topic| topic.name() == spec.name && ready(topic))
            })
        })
}

/// Sets the settings of one topic. The request replaces all that were ever set, so those that are not ours go along.
fn alter_one(
    client: &AdminClient<Logs>,
    spec: &TopicSpec,
    wanted: &[(&'static str, String)],
    resource: &ConfigResource,
) -> Result<(), Error> {
    let doing = "altering the settings of a topic";
    let mut config = AlterConfig::new(ResourceSpecifier::Topic(&spec.name));
    for (name, value) in wanted {
        config = config.set(name, value);
    }
    for entry in resource
        .entries
        .iter()
        .filter(|entry| entry.source == ConfigSource::DynamicTopic)
    {
        if let Some(value) = &entry.value
            && !wanted.iter().any(|(name, _)| *name == entry.name)
        {
            config = config.set(&entry.name, value);
        }
    }
    let results = block_on(client.alter_configs([&config], &options())).map_err(Error::kafka(doing))?;
    match results.into_iter().find_map(Result::err) {
        Some((_, code)) => Err(Error::Kafka {
            doing,
            source: KafkaError::AdminOp(code),
        }),
        None => Ok(()),
    }
}
