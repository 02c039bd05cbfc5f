//! Who may do what on the bus: one principal per process, each with the least rights.
//!
//! The table is data. `strobe topics acls` prints it, also as commands of Kafka's own `kafka-acls`, which every distribution of
//! Kafka has; the tests give exactly these rights to a real broker and let every process try what it must not do.

use std::fmt;

use crate::settings::BusSettings;
use crate::topics::{Topic, dead_letter_name};

/// A process, as the bus sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `strobe-agent run`.
    Agent,
    /// `strobe run processor`.
    Processor,
    /// `strobe run sink`.
    Sink,
    /// `strobe run tuner`.
    Tuner,
    /// `strobe run trigger`.
    Trigger,
    /// `strobe run alerts`.
    Alerts,
    /// `strobe profile`, `strobe runs`: people who ask for profiles.
    Asker,
    /// `strobe topics apply`, and whoever configures stack schemas and sampling.
    Setup,
    /// `strobe status`, `doctor`, `dlq list`: people who look.
    Reader,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 9] = [
        Self::Agent,
        Self::Processor,
        Self::Sink,
        Self::Tuner,
        Self::Trigger,
        Self::Alerts,
        Self::Asker,
        Self::Setup,
        Self::Reader,
    ];

    /// Returns the name, which is also the principal's unless a site names it otherwise: `User:strobe-agent`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "strobe-agent",
            Self::Processor => "strobe-processor",
            Self::Sink => "strobe-sink",
            Self::Tuner => "strobe-tuner",
            Self::Trigger => "strobe-trigger",
            Self::Alerts => "strobe-alerts",
            Self::Asker => "strobe-asker",
            Self::Setup => "strobe-setup",
            Self::Reader => "strobe-reader",
        }
    }
}

/// What a right is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Topics of these names.
    Topic(Vec<String>),
    /// Every topic whose name begins so.
    Topics(String),
    /// A consumer group.
    Group(String),
    /// The cluster itself.
    Cluster,
}

impl Resource {
    /// Returns the arguments by which `kafka-acls` names it.
    fn arguments(&self) -> String {
        match self {
            Self::Topic(names) => {
                let each: Vec<String> = names.iter().map(|name| format!("--topic {name}")).collect();
                each.join(" ")
            }
            Self::Topics(prefix) => format!("--topic {prefix} --resource-pattern-type prefixed"),
            Self::Group(name) => format!("--group {name}"),
            Self::Cluster => "--cluster".into(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(names) => write!(f, "topic {}", names.join(", ")),
            Self::Topics(prefix) => write!(f, "topics {prefix}*"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Cluster => f.write_str("cluster"),
        }
    }
}

/// A right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Whose.
    pub role: Role,
    /// On what.
    pub resource: Resource,
    /// By Kafka's names: `Read`, `Write`, `Describe`, ...
    pub operations: Vec<&'static str>,
    /// What it is for.
    pub why: &'static str,
}

impl Right {
    /// Returns the arguments with which `kafka-acls` gives the right to a principal.
    pub fn command(&self, principal: &str) -> String {
        let operations: Vec<String> = self
            .operations
            .iter()
            .map(|operation| format!("--operation {operation}"))
            .collect();
        let resource = self.resource.arguments();
        format!(
            "--add --allow-principal {principal} {} {resource}",
            operations.join(" ")
        )
    }
}

/// The consumer groups, as configured.
#[derive(Debug, Clone, Copy)]
pub struct Groups<'a> {
    /// The processors'.
    pub processor: &'a str,
    /// The sinks'.
    pub sink: &'a str,
    /// The tuners'.
    pub tuner: &'a str,
    /// The triggers'.
    pub trigger: &'a str,
}

/// Returns every right of every role, and no more: what is not here is refused by a broker with an authorizer.
pub fn rights(settings: &BusSettings, groups: Groups<'_>) -> Vec<Right> {
    use Role::{Agent, Alerts, Asker, Processor, Reader, Setup, Sink, Trigger, Tuner};
    const WRITE: [&str; 2] = ["Write", "Describe"];
    const READ: [&str; 2] = ["Read", "Describe"];
    // A table that its writer reads back.
    const KEEP: [&str; 3] = ["Read", "Write", "Describe"];
    let topics =
        |topics: &[Topic]| Resource::Topic(topics.iter().map(|topic| settings.topic(*topic)).collect());
    let dead = |topics: &[Topic]| {
        let name = |topic: &Topic| dead_letter_name(&settings.topic(*topic));
        Resource::Topic(topics.iter().map(name).collect())
    };
    let group = |name: &str| Resource::Group(name.to_owned());
    let all = || Resource::Topics(settings.topic_prefix().to_owned());
    let right = |role, resource, operations: &[&'static str], why| Right {
        role,
        resource,
        operations: operations.to_vec(),
        why,
    };
    let (raw, samples, runs, coverage) = (Topic::StacksRaw, Topic::Samples, Topic::Runs, Topic::Coverage);
    let (plans, hosts, tuner, config) = (Topic::Plans, Topic::Hosts, Topic::Tuner, Topic::Config);
    let (requests, reports, alerts, audit) = (Topic::Requests, Topic::Reports, Topic::Alerts, Topic::Audit);
    vec![
        right(
            Agent,
            topics(&[raw, runs, coverage, hosts, reports, audit]),
            &WRITE,
            "what it samples, and what it says of that",
        ),
        right(
            Agent,
            topics(&[plans, requests]),
            &READ,
            "how it is to sample, and what is asked for",
        ),
        right(Processor, topics(&[raw]), &READ, "what it names"),
        right(
            Processor,
            topics(&[plans, config, hosts]),
            &READ,
            "keep probabilities, stack schemas, labels of hosts",
        ),
        right(
            Processor,
            group(groups.processor),
            &["Read"],
            "sharing partitions",
        ),
        right(Processor, topics(&[samples]), &WRITE, "what it has named"),
        right(Processor, dead(&[raw]), &WRITE, "what it cannot process"),
        right(
            Sink,
            topics(&[samples, runs, coverage, audit]),
            &READ,
            "what it stores",
        ),
        right(Sink, group(groups.sink), &["Read"], "sharing partitions"),
        right(
            Sink,
            dead(&[samples, runs, coverage, audit]),
            &WRITE,
            "what it cannot store",
        ),
        right(
            Tuner,
            topics(&[coverage, hosts, config]),
            &READ,
            "what was sampled where, and what is desired",
        ),
        right(Tuner, group(groups.tuner), &["Read"], "sharing partitions"),
        right(Tuner, topics(&[plans]), &WRITE, "what it has decided"),
        right(Tuner, topics(&[tuner]), &KEEP, "what it remembers"),
        right(Tuner, topics(&[audit]), &WRITE, "whose configuration is in force"),
        right(Tuner, dead(&[coverage]), &WRITE, "what it cannot read"),
        right(
            Trigger,
            topics(&[hosts, reports]),
            &READ,
            "which hosts there are, and what they say",
        ),
        right(Trigger, group(groups.trigger), &["Read"], "sharing partitions"),
        right(
            Trigger,
            topics(&[requests]),
            &KEEP,
            "what is asked for, and what it says of that",
        ),
        right(
            Trigger,
            topics(&[alerts]),
            &KEEP,
            "alerts, and what rules made of them",
        ),
        right(Trigger, topics(&[audit]), &WRITE, "who asked for what"),
        right(Alerts, topics(&[alerts]), &WRITE, "alerts"),
        right(
            Asker,
            topics(&[requests]),
            &KEEP,
            "what they ask for, and what becomes of it",
        ),
        right(
            Setup,
            all(),
            &["Create", "Describe", "DescribeConfigs", "AlterConfigs"],
            "making topics",
        ),
        right(
            Setup,
            topics(&[config]),
            &KEEP,
            "stack schemas and sampling in force",
        ),
        right(Setup, topics(&[audit]), &WRITE, "who changed what"),
        right(
            Reader,
            all(),
            &["Read", "Describe", "DescribeConfigs"],
            "dead letters, lag, whether topics are as they should be",
        ),
        right(Reader, group(groups.processor), &["Describe"], "lag"),
        right(Reader, group(groups.sink), &["Describe"], "lag"),
        right(Reader, group(groups.tuner), &["Describe"], "lag"),
        right(Reader, group(groups.trigger), &["Describe"], "lag"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Bus;

    /// Checks that no process may both write and read a topic, and that only the setup may change anything but messages.
    #[test]
    fn nobody_has_more_than_a_direction() {
        let settings = Bus::default().validate().unwrap();
        let groups = Groups {
            processor: "p",
            sink: "s",
            tuner: "t",
            trigger: "g",
        };
        let rights = rights(&settings, groups);
        let kept = [Topic::Tuner, Topic::Config, Topic::Requests, Topic::Alerts]
            .map(|topic| Resource::Topic(vec![settings.topic(topic)]));
        for role in Role::ALL {
            let own: Vec<&Right> = rights.iter().filter(|right| right.role == role).collect();
            assert!(!own.is_empty(), "{role:?}");
            for right in &own {
                let may = |operation| right.operations.contains(&operation);
                let both = may("Write") && may("Read");
                assert!(!both || kept.contains(&right.resource), "{right:?}");
                assert!(
                    role == Role::Setup || !(may("Create") || may("AlterConfigs")),
                    "{right:?}"
                );
                assert!(!may("All") && !may("Delete") && !may("Alter"), "{right:?}");
                let again = own.iter().filter(|other| other.resource == right.resource);
                assert_eq!(again.count(), 1, "{right:?}");
            }
        }
        assert_eq!(
            rights[0].command("User:a"),
            "--add --allow-principal User:a --operation Write --operation Describe --topic strobe.stacks.raw \
             --topic strobe.runs --topic strobe.coverage --topic strobe.hosts --topic strobe.reports --topic strobe.audit"
        );
        // A topic that nobody may write, or nobody may read, was forgotten here.
        for topic in Topic::ALL {
            let name = settings.topic(topic);
            for operation in ["Write", "Read"] {
                let allowed = rights.iter().any(|right| {
                    right.operations.contains(&operation)
                        && matches!(&right.resource, Resource::Topic(names) if names.contains(&name))
                });
                assert!(allowed, "nobody may {operation} {name}");
            }
        }
    }
}
