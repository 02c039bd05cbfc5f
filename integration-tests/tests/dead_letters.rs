//! What cannot be processed is put aside with its reason, and its partition goes on.

mod support;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use strobe_bus::{BusSettings, Headers, MESSAGE_BYTES_MAX, Meta, Outgoing, Topic, dead_letter};
use strobe_event::synthetic::{Shape, samples_batch};
use strobe_event::{AuditRecord, codec};
use strobe_integration_tests::{Cluster, journey};
use support::bus;
use support::feed::Feed;
use support::truth::caught_up;

const HOST: &str = "host-a";
/// Samples that the headers of each broken message name.
const SAMPLES: u64 = 7;

/// A message that is broken in a known way.
struct Broken {
    topic: Topic,
    reason: &'static str,
    message: Outgoing,
}

fn broken(bus: &BusSettings, topic: Topic, reason: &'static str, headers: Headers, value: Vec<u8>) -> Broken {
    let message = Outgoing {
        topic: bus.topic(topic).into(),
        key: Some(HOST.into()),
        headers,
        payload: Some(value.into()),
    };
    Broken {
        topic,
        reason,
        message,
    }
}

/// Returns the broken messages of every topic. They have headers of ours, but for one that knows nothing of us.
fn all_broken(bus: &BusSettings, feed: &mut Feed) -> Result<Vec<Broken>> {
    let mut all = Vec::new();
    for topic in Topic::STREAMS {
        let mut headers = || -> Headers {
            let (identity, batch) = feed.next_batch();
            let meta = Meta {
                identity,
                run: batch.run.id,
                samples: SAMPLES,
            };
            meta.to_headers()
        };
        let foreign = br#"{"not": "ours"}"#.to_vec();
        let oversized = vec![0x5a; MESSAGE_BYTES_MAX + 4_096];
        all.push(broken(bus, topic, "foreign", headers(), foreign.clone()));
        all.push(broken(bus, topic, "oversized", headers(), oversized));
        // Records of the audit have their names in themselves, and need no headers.
        if topic != Topic::Audit {
            all.push(broken(bus, topic, "bad_headers", Headers::new(), foreign));
        }
        let headers = headers();
        let (_, raw) = feed.next_batch();
        let mut whole = match topic {
            Topic::StacksRaw => codec::encode_framed(&raw)?,
            Topic::Samples => codec::encode_framed(&samples_batch(&Shape::default(), 1))?,
            Topic::Runs => feed.framed_event()?,
            Topic::Audit => codec::encode_framed(&AuditRecord {
                who: "ann".to_owned(),
                detail: "a profile was asked for".to_owned(),
                ..AuditRecord::default()
            })?,
            _ => codec::encode_framed(&feed.coverage())?,
        };
        whole.truncate(whole.len() * 2 / 3);
        all.push(broken(bus, topic, "truncated", headers, whole));
    }
    Ok(all)
}

/// The dead letters of a topic: by reason, the value and the headers that are not the death's.
type Letters = BTreeMap<String, Vec<(Bytes, Vec<(String, Option<Bytes>)>)>>;

fn letters(bus: &BusSettings, topic: Topic) -> Result<Letters> {
    let name = bus.topic(topic);
    let mut letters = Letters::new();
    for item in dead_letter::list(bus, &name, 1_000)? {
        let (item, letter) = dead_letter::show(bus, &name, item.place)?.context("a letter is gone")?;
        let source = item
            .source
            .clone()
            .context("a letter does not say where it came from")?;
        ensure!(source.0 == name, "it came from {}", source.0);
        ensure!(!item.detail.is_empty() && !item.stage.is_empty(), "{item:?}");
        let own = letter
            .headers
            .iter()
            .filter(|(name, _)| name.starts_with("strobe-"));
        let known = [
            "strobe-host",
            "strobe-epoch",
            "strobe-sequence",
            "strobe-part",
            "strobe-run",
            "strobe-samples",
        ];
        let own = own.filter(|(name, _)| known.contains(name));
        let own = own
            .map(|(name, value)| (name.to_owned(), value.cloned()))
            .collect();
        letters
            .entry(item.reason)
            .or_default()
            .push((letter.payload.context("a letter without value")?, own));
    }
    Ok(letters)
}

fn own_headers(message: &Outgoing) -> Vec<(String, Option<Bytes>)> {
    let headers = message.headers.iter();
    headers
        .map(|(name, value)| (name.to_owned(), value.cloned()))
        .collect()
}

/// Checks that each broken message died `times` times, with its reason, its bytes and its headers.
fn each_died(bus: &BusSettings, all: &[Broken], times: usize) -> Result<()> {
    for topic in Topic::STREAMS {
        let letters = letters(bus, topic)?;
        let of_topic: Vec<&Broken> = all.iter().filter(|broken| broken.topic == topic).collect();
        let count: usize = letters.values().map(Vec::len).sum();
        ensure!(
            count == times * of_topic.len(),
            "{topic:?}: {count} letters: {:?}",
            letters.keys()
        );
        for broken in of_topic {
            let wanted = (
                broken.message.payload.clone().unwrap_or_default(),
                own_headers(&broken.message),
            );
            let found = letters.get(broken.reason).map(Vec::as_slice).unwrap_or_default();
            ensure!(
                found.len() == times && found.iter().all(|letter| *letter == wanted),
                "{topic:?}: {} letters say {}, byte for byte {}",
                found.len(),
                broken.reason,
                found.iter().filter(|letter| **letter == wanted).count()
            );
        }
    }
    Ok(())
}

/// Checks what the command line says of them.
fn the_command_line_shows_them(cluster: &Cluster, all: &[Broken]) -> Result<()> {
    let listed = cluster.json(&["dlq", "list", "-o", "json"])?;
    let listed = listed.as_array().context("no list")?;
    ensure!(
        listed.len() == all.len(),
        "{} of {} are listed",
        listed.len(),
        all.len()
    );
    let truncated = all
        .iter()
        .find(|broken| broken.reason == "truncated")
        .context("none")?;
    let topic = &*truncated.message.topic;
    let line = listed
        .iter()
        .find(|line| line["topic"] == topic && line["reason"] == "truncated")
        .context("the truncated one is not listed")?;
    ensure!(line["samples"] == SAMPLES, "{line}");
    let place = line["place"].as_str().context("no place")?;
    let output = cluster.strobe_output(&["dlq", "show", topic, place])?;
    ensure!(
        output.status.success() && Some(output.stdout.as_slice()) == truncated.message.payload.as_deref(),
        "`dlq show` shows other bytes"
    );
    let status = cluster.json(&["status", "-o", "json"])?;
    let of_topic = |letter: &&serde_json::Value| letter["topic"] == topic && letter["reason"] == "truncated";
    let letters = status["dead_letters"].as_array().context("no letters")?;
    let counted = letters
        .iter()
        .find(of_topic)
        .context("status does not count them")?;
    ensure!(
        counted["messages"] == 1 && counted["samples"] == SAMPLES,
        "{counted}"
    );
    Ok(())
}

/// Checks that truncated, foreign and oversized messages on each topic end among its dead letters with their reason and their
/// bytes, that what comes behind them is stored, and that they come back byte for byte when they are replayed.
#[test]
fn what_cannot_be_processed_is_put_aside_and_the_rest_goes_on() -> Result<()> {
    journey(
        "what_cannot_be_processed_is_put_aside_and_the_rest_goes_on",
        &[],
        |cluster| {
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let bus = bus(cluster)?;
            let mut feed = Feed::new(cluster, HOST)?;
            feed.send(3)?;
            let all = all_broken(&bus, &mut feed)?;
            for broken in &all {
                feed.push(broken.message.clone())?;
                // The same key is the same partition: these stand behind the broken one.
                feed.send(1)?;
            }
            feed.finish()?;
            feed.truth.is_stored(cluster)?;
            each_died(&bus, &all, 1)?;
            the_command_line_shows_them(cluster, &all)?;
            for topic in Topic::STREAMS {
                let said = cluster.strobe(&["dlq", "replay", &bus.topic(topic), "--all"])?;
                let count = all.iter().filter(|broken| broken.topic == topic).count();
                ensure!(said.starts_with(&format!("{count} messages are back")), "{said}");
            }
            caught_up(cluster)?;
            each_died(&bus, &all, 2)?;
            feed.truth.is_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}
