//! A closed bus: TLS, a password for each process, and the least rights, by a real broker.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use strobe_bus::{Bus, BusSettings, Consumer, Event, Outgoing, Producer};
use strobe_integration_tests::stack::free_ports;
use strobe_integration_tests::{Cluster, Need, home, journey, repository};

const ROLES: [&str; 9] = [
    "strobe-agent",
    "strobe-processor",
    "strobe-sink",
    "strobe-tuner",
    "strobe-trigger",
    "strobe-alerts",
    "strobe-asker",
    "strobe-setup",
    "strobe-reader",
];
/// How long a broker takes to refuse, on a machine that is busy.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);

fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(text)
}

/// A broker of its own that lets nobody in without a name; it ends with the test.
struct Closed<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
    port: u16,
}

impl<'a> Closed<'a> {
    fn start(cluster: &'a Cluster) -> Result<Self> {
        let closed = Self {
            cluster,
            folder: cluster.path("closed"),
            port: free_ports()?,
        };
        run(Command::new(repository().join("infra/kafka/secrets.sh")).arg(closed.secrets()))?;
        run(&mut closed.broker("start"))?;
        Ok(closed)
    }

    fn secrets(&self) -> PathBuf {
        self.folder.join("secrets")
    }

    fn broker(&self, command: &str) -> Command {
        let mut broker = Command::new(repository().join("infra/kafka/broker.sh"));
        broker.args([
            command,
            "--port",
            &self.port.to_string(),
            "--heap",
            "384m",
            "--name",
        ]);
        broker.arg(format!("closed-{}", std::process::id()));
        for (flag, name) in [("--data", "data"), ("--log", "broker.log"), ("--pid-file", "pid")] {
            broker.arg(flag).arg(self.folder.join(name));
        }
        broker.arg("--secure").arg(self.secrets());
        broker
    }

    fn password_file(&self, principal: &str) -> PathBuf {
        self.secrets().join(format!("{principal}.password"))
    }

    fn options(&self, principal: &str) -> Vec<(&'static str, String)> {
        vec![
            ("security.protocol", "sasl_ssl".into()),
            ("sasl.mechanisms", "SCRAM-SHA-512".into()),
            ("sasl.username", principal.to_owned()),
            (
                "ssl.ca.location",
                self.secrets().join("ca.pem").display().to_string(),
            ),
        ]
    }

    /// Makes both configuration files be this principal's.
    fn be(&self, principal: &str) -> Result<()> {
        let quoted = |text: &dyn std::fmt::Display| format!("\"{text}\"");
        let mut keys = vec![
            ("bus", "bootstrap", format!("localhost:{}", self.port)),
            (
                "bus",
                "password_file",
                self.password_file(principal).display().to_string(),
            ),
        ];
        for (name, value) in self.options(principal) {
            keys.push(("bus.options", name, value));
        }
        for (section, key, value) in keys {
            self.cluster.set_strobe(section, key, &quoted(&value))?;
            self.cluster.set_agent(section, key, &quoted(&value))?;
        }
        Ok(())
    }

    fn bus(&self, principal: &str) -> Result<BusSettings> {
        let mut bus = Bus {
            bootstrap: format!("localhost:{}", self.port),
            topic_prefix: self.cluster.topic_prefix(),
            password_file: Some(self.password_file(principal)),
            ..Bus::default()
        };
        for (name, value) in self.options(principal) {
            bus.options.set(name, value);
        }
        Ok(bus.validate()?)
    }

    /// Gives every principal the rights of the table, with Kafka's own tool.
    fn give_rights(&self) -> Result<()> {
        let properties = self.folder.join("admin.properties");
        let password = fs::read_to_string(self.password_file("admin"))?;
        fs::write(
            &properties,
            format!(
                "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=\
                 org.apache.kafka.common.security.scram.ScramLoginModule required username=\"admin\" \
                 password=\"{password}\";\nssl.truststore.type=PEM\nssl.truststore.location={}\n",
                self.secrets().join("ca.pem").display()
            ),
        )?;
        for right in self.cluster.strobe(&["topics", "acls", "--commands"])?.lines() {
            let mut tool = Command::new("java");
            tool.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"])
                .arg(format!("{}/kafka/jars/*", home().display()))
                .args(["org.apache.kafka.tools.AclCommand", "--bootstrap-server"])
                .arg(format!("localhost:{}", self.port))
                .arg("--command-config")
                .arg(&properties)
                .args(right.split_whitespace());
            run(&mut tool)?;
        }
        Ok(fs::remove_file(properties)?)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.broker("kill").output();
    }
}

/// What the printed table allows: (principal, operation, topic or group).
fn allowed(cluster: &Cluster) -> Result<BTreeMap<(String, String), Vec<String>>> {
    let mut table: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let rights = cluster.json(&["topics", "acls", "-o", "json"])?;
    for right in rights.as_array().context("no array")? {
        let text = |key: &str| right[key].as_str().unwrap_or_default().to_owned();
        let principal = text("principal").trim_start_matches("User:").to_owned();
        for operation in right["operations"].as_array().into_iter().flatten() {
            let operation = operation.as_str().unwrap_or_default().to_owned();
            let resources = table.entry((principal.clone(), operation)).or_default();
            resources.extend(
                text("resource")
                    .split(' ')
                    .map(|word| word.trim_matches(',').to_owned()),
            );
        }
    }
    Ok(table)
}

/// Sends one message; returns why it was refused.
fn refused_to_write(bus: &BusSettings, topic: &str) -> Result<Option<String>> {
    let producer = Producer::new(bus)?;
    let message = Outgoing {
        topic: topic.into(),
        key: Some("a".into()),
        headers: strobe_bus::Headers::default(),
        payload: Some("not of ours".into()),
    };
    producer.send(&message, 1)?;
    let deadline = Instant::now() + REFUSED_WITHIN;
    loop {
        if let Some(delivery) = producer.poll(Duration::from_millis(200)).pop() {
            return Ok(delivery.result.err().map(|failure| format!("{failure:?}")));
        }
        ensure!(
            Instant::now() < deadline,
            "the broker says nothing about writing to {topic}"
        );
    }
}

/// Joins a group to read a topic; returns why that was refused.
fn refused_to_read(bus: &BusSettings, group: &str, topic: &str) -> Result<Option<String>> {
    let mut consumer = Consumer::new(bus, group, &[topic])?;
    let deadline = Instant::now() + REFUSED_WITHIN;
    let answer = loop {
        match consumer.poll(Duration::from_millis(200)) {
            Err(error) => break Some(format!("{error:?}")),
            Ok(Event::Message(_)) => break None,
            Ok(_) => ensure!(
                Instant::now() < deadline,
                "the broker says nothing about reading {topic} as {group}"
            ),
        }
    };
    consumer.stop();
    Ok(answer)
}

/// Waits until a role has read its configuration, which becomes another principal's then.
fn runs(cluster: &Cluster, role: &str) -> Result<()> {
    let log = cluster.path(&format!("{role}.log"));
    cluster.wait_for(&format!("{role} runs"), || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains(&format!("{role} runs")))
    })
}

fn secrets_of(closed: &Closed<'_>) -> Result<Vec<String>> {
    ROLES
        .iter()
        .map(|role| Ok(fs::read_to_string(closed.password_file(role))?))
        .collect()
}

/// Checks that on a closed bus every process does its work with the rights of its table, that the broker refuses each of them
/// everything else, and that no password shows in any log or answer.
#[test]
fn everybody_does_their_work_and_nothing_else() -> Result<()> {
    let needs = [Need::Profiling, Need::Program("openssl"), Need::Program("java")];
    journey("everybody_does_their_work_and_nothing_else", &needs, |cluster| {
        let closed = Closed::start(cluster)?;
        closed.be("strobe-setup")?;
        let before = cluster.strobe_output(&["topics", "apply"])?;
        ensure!(!before.status.success(), "topics were made without the right to");
        closed.give_rights()?;
        cluster.wait_for("the broker knows the rights", || {
            cluster.strobe(&["topics", "apply"]).is_ok()
        })?;

        closed.be("strobe-processor")?;
        let _processor = cluster.run("processor", None)?;
        runs(cluster, "processor")?;
        closed.be("strobe-sink")?;
        let _sink = cluster.run("sink", None)?;
        runs(cluster, "sink")?;
        closed.be("strobe-agent")?;
        let mut agent = cluster.agent(&["--duration", "6s", "--frequency", "199"], None)?;
        cluster.wait_for("the agent ends by itself", || !agent.runs())?;
        closed.be("strobe-reader")?;
        let mut said = String::new();
        cluster.wait_for("everything that was taken is stored", || {
            said = cluster.strobe(&["status", "-o", "json"]).unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
            let sum = |key: &str| status["sum"][key].as_u64();
            sum("taken").is_some_and(|taken| taken > 0 && sum("stored") == Some(taken))
        })?;
        said += &cluster.strobe(&["status"])?;
        said += &String::from_utf8_lossy(&cluster.strobe_output(&["doctor", "-o", "json"])?.stdout);

        let table = allowed(cluster)?;
        let may = |role: &str, operation: &str, name: &str| {
            let resources = table.get(&(role.to_owned(), operation.to_owned()));
            resources.is_some_and(|resources| resources.iter().any(|resource| resource == name))
        };
        let prefix = cluster.topic_prefix();
        let live = [
            "stacks.raw",
            "samples",
            "runs",
            "coverage",
            "plans",
            "hosts",
            "tuner",
            "config",
            "audit",
        ];
        let dead = [
            "stacks.raw.dlq",
            "samples.dlq",
            "runs.dlq",
            "coverage.dlq",
            "audit.dlq",
        ];
        let stems = live.iter().chain(&dead);
        let topics: Vec<String> = stems.map(|stem| format!("{prefix}{stem}")).collect();
        let (mut did, mut refused) = (0, 0);
        for role in ROLES {
            let bus = closed.bus(role)?;
            for topic in &topics {
                let answer = refused_to_write(&bus, topic)?;
                let right = may(role, "Write", topic);
                ensure!(answer.is_none() == right, "{role} writes {topic}: {answer:?}");
                // Who may write nothing at all gets no number as a producer either, and librdkafka gives up the message.
                let said = format!("{answer:?}").to_lowercase();
                let writer = table.contains_key(&(role.to_owned(), "Write".to_owned()));
                ensure!(
                    right || said.contains("authorization") || (!writer && said.contains("purge")),
                    "{role} is refused {topic} for another reason: {answer:?}"
                );
                did += u32::from(right);
                refused += u32::from(!right);
            }
        }
        for role in ROLES {
            let bus = closed.bus(role)?;
            let groups = table.get(&(role.to_owned(), "Read".to_owned()));
            let own = groups.and_then(|all| {
                all.iter().find(|name| {
                    [".processor", ".sink", ".trigger", "-tuner"]
                        .iter()
                        .any(|group| name.ends_with(group))
                })
            });
            // Who has no group of its own tries somebody else's; who has one may not read what is not its own with it.
            let group = own
                .cloned()
                .unwrap_or_else(|| format!("{}.sink", prefix.trim_end_matches('.')));
            for topic in topics.iter().filter(|topic| !may(role, "Read", topic)) {
                let answer = refused_to_read(&bus, &group, topic)?;
                ensure!(
                    format!("{answer:?}").to_lowercase().contains("authorization"),
                    "{role} reads {topic}: {answer:?}"
                );
                refused += 1;
            }
        }
        println!("{did} writes allowed, {refused} attempts refused by the broker");

        let passwords = secrets_of(&closed)?;
        for log in ["agent.log", "processor.log", "sink.log", "closed/broker.log"] {
            said += &fs::read_to_string(cluster.path(log))?;
        }
        for (role, password) in ROLES.iter().zip(&passwords) {
            ensure!(
                password.len() >= 32 && !said.contains(password.as_str()),
                "{role}'s password shows"
            );
        }
        Ok(())
    })
}
