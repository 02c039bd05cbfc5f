//! Whatever happens to the agent, its spool or its broker, what reached the spool is stored exactly once, and what did not is
//! counted. Every agent here profiles this host for real.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use strobe_event::synthetic::Shape;
use strobe_event::{Epoch, Identity, RawBatch, codec};
use strobe_integration_tests::{Cluster, Need, Part, journey};
use strobe_spool::{Settings, Spool};
use support::feed::Feed;
use support::truth::{Truth, adds_up, caught_up};
use support::workload::Orders;

const FAST: [&str; 4] = ["--frequency", "499", "--run-length", "4s"];
/// Longest wait for a crash that a test ordered.
const CRASH: Duration = Duration::from_secs(30);
/// What stands before the framed value in a record of the agent's spool: kind, run, samples.
const ENVELOPE_BYTES: usize = 25;
const ENVELOPE_BATCH: u8 = 1;
/// What batches leave of a full spool, so that the accounting gets through.
const EVENT_RESERVE_BYTES: u64 = 1 << 20;
/// Room for a few batches.
const ROOM_BYTES: u64 = 200 << 10;

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Returns every batch that a spool holds unsent, read from a copy.
fn held_by(cluster: &Cluster, spool: &Path) -> Result<Truth> {
    let copy = cluster.path("looked-into");
    copy_folder(spool, &copy)?;
    let (writer, mut reader, _) = Spool::open(Settings::new(&copy, "nobody"))?;
    let mut truth = Truth::default();
    while let Some(record) = reader.next()? {
        if record.payload.first() != Some(&ENVELOPE_BATCH) {
            continue;
        }
        let value = record.payload.get(ENVELOPE_BYTES..).context("a short record")?;
        let batch: RawBatch = codec::decode_framed(value)?;
        let identity = Identity {
            host: record.identity.host.to_string(),
            epoch: Epoch(record.identity.epoch.0),
            sequence: record.identity.sequence,
            part: 0,
        };
        truth.add(&identity, &batch);
    }
    drop((writer, reader));
    fs::remove_dir_all(copy)?;
    Ok(truth)
}

/// Returns what an agent last wrote of itself.
fn agent_status(state: &Path) -> Result<serde_json::Value> {
    let text = fs::read_to_string(state.join("agent.status.json"))?;
    Ok(serde_json::from_str(&text)?)
}

/// Waits until an agent has sent all it has, but for what came in the last moments, and stops it.
fn sent_and_stopped(agent: Part) -> Result<()> {
    pause(1_000);
    agent.stop()
}

/// Checks that everything is stored or counted, and nothing twice.
fn every_sample_has_one_fate(cluster: &Cluster) -> Result<serde_json::Value> {
    caught_up(cluster)?;
    adds_up(cluster)?;
    let doubled = cluster.number(
        "SELECT count() FROM (SELECT host, epoch, time, cpu, tid, count() AS c FROM samples GROUP BY ALL HAVING c > 1)",
    )?;
    ensure!(doubled == 0.0, "{doubled} samples are there twice");
    let status = cluster.json(&["status", "-o", "json"])?;
    ensure!(
        status["sum"]["taken"].as_u64() > Some(0) && status["sum"]["under_way"] == 0,
        "{}",
        status["sum"]
    );
    Ok(status)
}

/// Checks that an agent that is killed at any moment, after the spool took a batch, and after the broker took one and before
/// the spool freed it, leaves everything that the spool had, each batch once.
#[test]
fn an_agent_that_dies_at_any_step_loses_nothing_of_its_spool() -> Result<()> {
    journey(
        "an_agent_that_dies_at_any_step_loses_nothing_of_its_spool",
        &[Need::Profiling],
        |cluster| {
            let _orders = Orders::start(cluster)?;
            let quiet = [&FAST[..], &["--no-publish"]].concat();
            let agent = cluster.agent(&quiet, None)?;
            pause(6_500);
            agent.kill()?;
            cluster.agent(&quiet, Some("spool.appended:2"))?.crashes(CRASH)?;
            let truth = held_by(cluster, &cluster.path("agent/spool"))?;
            ensure!(
                truth.samples() > 1_000,
                "only {} samples were spooled",
                truth.samples()
            );
            // The broker has batches that the spool still holds; so again for the next one.
            for passage in ["publish.acked_before_free", "publish.acked_before_free:2"] {
                cluster.agent(&FAST, Some(passage))?.crashes(CRASH)?;
            }
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let agent = cluster.agent(&FAST, None)?;
            pause(3_000);
            agent.kill()?;
            let agent = cluster.agent(&FAST, None)?;
            pause(3_000);
            sent_and_stopped(agent)?;
            every_sample_has_one_fate(cluster)?;
            truth.is_among_the_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that an agent whose broker is away goes on profiling, and that everything arrives when it is back.
#[test]
fn an_agent_without_a_broker_spools_and_catches_up() -> Result<()> {
    journey(
        "an_agent_without_a_broker_spools_and_catches_up",
        &[Need::Profiling],
        |cluster| {
            let _orders = Orders::start(cluster)?;
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let agent = cluster.agent(&FAST, None)?;
            cluster.wait_for("the first samples are stored", || {
                cluster
                    .number("SELECT count() FROM samples")
                    .is_ok_and(|rows| rows > 0.0)
            })?;
            cluster.broker("kill")?;
            // What it writes of itself is up to 5 s old.
            pause(6_000);
            let state = cluster.path("agent");
            let before = agent_status(&state)?;
            pause(9_000);
            let after = agent_status(&state)?;
            let grown = |key: &str| Some(after[key].as_u64()? - before[key].as_u64()?);
            ensure!(
                grown("spooled_samples") > Some(500) && grown("sent_samples") == Some(0),
                "before: {before}, after: {after}"
            );
            ensure!(after["unsent_records"].as_u64() > Some(2), "{after}");
            cluster.broker("start")?;
            cluster.wait_for("the agent has caught up", || {
                agent_status(&state).is_ok_and(|status| status["unsent_records"].as_u64() < Some(3))
            })?;
            sent_and_stopped(agent)?;
            let status = every_sample_has_one_fate(cluster)?;
            ensure!(status["sum"]["dropped"] == 0, "{}", status["sum"]);
            let spooled = agent_status(&state)?["spooled_samples"].as_u64();
            ensure!(
                status["sum"]["stored"].as_u64() == spooled,
                "{spooled:?} were spooled: {}",
                status["sum"]
            );
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that what outlives the spool's age limit is dropped and counted, and the rest is not.
#[test]
fn batches_that_outlive_the_spools_limit_are_counted() -> Result<()> {
    journey(
        "batches_that_outlive_the_spools_limit_are_counted",
        &[Need::Profiling],
        |cluster| {
            let _orders = Orders::start(cluster)?;
            let agent = cluster.agent(&[&FAST[..], &["--no-publish"]].concat(), None)?;
            pause(6_500);
            agent.kill()?;
            let truth = held_by(cluster, &cluster.path("agent/spool"))?;
            pause(4_000);
            cluster.set_agent("spool", "age_limit", "\"3s\"")?;
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let agent = cluster.agent(&FAST, None)?;
            pause(6_000);
            sent_and_stopped(agent)?;
            let status = every_sample_has_one_fate(cluster)?;
            let runs = status["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
            let too_old: u64 = runs
                .iter()
                .filter_map(|run| run["dropped"]["too_old"].as_u64())
                .sum();
            let by_agent = agent_status(&cluster.path("agent"))?["dropped"]["too_old"].as_u64();
            ensure!(
                too_old == truth.samples()
                    && Some(too_old) == by_agent
                    && status["sum"]["dropped"] == too_old,
                "{} were too old, {too_old} by the store, {by_agent:?} by the agent: {}",
                truth.samples(),
                status["sum"]
            );
            ensure!(status["sum"]["stored"].as_u64() > Some(0), "{}", status["sum"]);
            ensure!(
                status["dead_letters"] == serde_json::json!([]),
                "{}",
                status["dead_letters"]
            );
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that two agents that go by one host name lose nothing and double nothing, and that somebody is told.
#[test]
fn two_agents_with_one_name_are_named_and_lose_nothing() -> Result<()> {
    journey(
        "two_agents_with_one_name_are_named_and_lose_nothing",
        &[Need::Profiling],
        |cluster| {
            let _orders = Orders::start(cluster)?;
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let mut agents = Vec::new();
            for folder in ["agent", "agent-two"] {
                let state = cluster.path(folder).display().to_string();
                let flags = [&FAST[..], &["--host", "twin", "--state-dir", &state]].concat();
                agents.push(cluster.agent(&flags, None)?);
            }
            pause(9_000);
            agents.into_iter().try_for_each(sent_and_stopped)?;
            let status = every_sample_has_one_fate(cluster)?;
            let spooled = ["agent", "agent-two"].map(|folder| {
                let status = agent_status(&cluster.path(folder));
                status
                    .ok()
                    .and_then(|status| status["spooled_samples"].as_u64())
                    .unwrap_or(0)
            });
            ensure!(
                spooled.iter().all(|&samples| samples > 0)
                    && status["sum"]["stored"].as_u64() == Some(spooled.iter().sum()),
                "{spooled:?} were spooled: {}",
                status["sum"]
            );
            let named = &status["hosts_with_several_epochs_alive"];
            ensure!(
                named[0]["host"] == "twin" && named[0]["epochs"].as_array().map(Vec::len) == Some(2),
                "{named}"
            );
            let said = cluster.strobe(&["status"])?;
            ensure!(said.contains("twin names 2 spools"), "{said}");
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that a spool that was restored from a copy, and used beside the first, loses nothing and doubles nothing, and that
/// somebody is told.
#[test]
fn a_copied_spool_is_named_and_doubles_nothing() -> Result<()> {
    journey(
        "a_copied_spool_is_named_and_doubles_nothing",
        &[Need::Profiling],
        |cluster| {
            let _orders = Orders::start(cluster)?;
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let named = [&FAST[..], &["--host", "restored"]].concat();
            let quiet = [&named[..], &["--no-publish"]].concat();
            let agent = cluster.agent(&quiet, None)?;
            pause(5_500);
            agent.kill()?;
            let spool = cluster.path("agent/spool");
            copy_folder(&spool, &cluster.path("agent-two/spool"))?;
            let truth = held_by(cluster, &spool)?;
            ensure!(
                truth.samples() > 500,
                "only {} samples were spooled",
                truth.samples()
            );
            let other = cluster.path("agent-two").display().to_string();
            let first = cluster.agent(&named, None)?;
            let second = cluster.agent(&[&named[..], &["--state-dir", &other]].concat(), None)?;
            pause(7_000);
            sent_and_stopped(first)?;
            sent_and_stopped(second)?;
            let status = every_sample_has_one_fate(cluster)?;
            truth.is_among_the_stored(cluster)?;
            let named = &status["hosts_with_several_epochs_alive"];
            ensure!(
                named[0]["host"] == "restored" && named[0]["epochs"].as_array().map(Vec::len) == Some(2),
                "{named}"
            );
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Work of a fixed amount; returns the CPU nanoseconds that it took.
fn work() -> u64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let start = now();
    let mut bits = 1_u64;
    for _ in 0..std::hint::black_box(4_000_000) {
        bits = (bits ^ (bits << 13))
            .rotate_left(7)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    std::hint::black_box(bits);
    now() - start
}

/// Returns the median of many pieces of work.
fn pace() -> u64 {
    let mut pieces: Vec<u64> = (0..61).map(|_| work()).collect();
    pieces.sort_unstable();
    pieces[pieces.len() / 2]
}

/// Checks that a full spool drops the newest and counts it, and that what is profiled runs as fast as before.
#[test]
fn a_full_spool_is_counted_and_slows_nobody() -> Result<()> {
    journey(
        "a_full_spool_is_counted_and_slows_nobody",
        &[Need::Profiling],
        |cluster| {
            let _orders = Orders::start(cluster)?;
            const LIMIT: u64 = 40 << 20;
            cluster.set_agent("spool", "size_limit_bytes", &LIMIT.to_string())?;
            // What an agent takes minutes to fill: batches that wait for a broker, with room for a few more.
            {
                let shape = Shape {
                    samples: 8_192,
                    ..Shape::default()
                };
                let mut feed = Feed::shaped(cluster, "filled", shape)?;
                let mut settings = Settings::new(cluster.path("agent/spool"), "filled");
                settings.size_limit_bytes = LIMIT;
                let (mut writer, _reader, _) = Spool::open(settings)?;
                loop {
                    let (_, batch) = feed.next_batch();
                    let mut record = vec![ENVELOPE_BATCH];
                    record.extend_from_slice(&batch.run.id.0);
                    record.extend_from_slice(&(batch.samples.len() as u64).to_le_bytes());
                    record.extend_from_slice(&codec::encode_framed(&batch)?);
                    if writer.used_bytes() + record.len() as u64 + EVENT_RESERVE_BYTES + ROOM_BYTES > LIMIT {
                        break;
                    }
                    writer.append(&record)?;
                }
                writer.sync()?;
                feed.flush()?;
            }
            cluster.broker("kill")?;
            let pace_before = pace();
            let state = cluster.path("agent");
            let agent = cluster.agent(&["--frequency", "997", "--run-length", "4s"], None)?;
            let dropped = || -> Option<u64> { agent_status(&state).ok()?["dropped"]["spool_full"].as_u64() };
            cluster.wait_for("the spool is full", || dropped() > Some(0))?;
            let pace_while_full = pace();
            ensure!(
                pace_while_full as f64 <= 1.1 * pace_before as f64,
                "a piece of work took {pace_before} ns before and {pace_while_full} ns with a full spool"
            );
            let first = dropped();
            cluster.wait_for("more is dropped", || dropped() > first)?;
            let used: u64 = fs::read_dir(state.join("spool"))?
                .flatten()
                .filter(|entry| {
                    entry
                        .path()
                        .extension()
                        .is_some_and(|extension| extension == "segment")
                })
                .filter_map(|entry| entry.metadata().ok())
                .map(|metadata| metadata.len())
                .sum();
            ensure!(used <= LIMIT, "{used} bytes are over the limit of {LIMIT}");
            cluster.broker("start")?;
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            cluster.wait_for("the spool is sent", || {
                agent_status(&state).is_ok_and(|status| status["unsent_records"].as_u64() < Some(3))
            })?;
            sent_and_stopped(agent)?;
            let status = every_sample_has_one_fate(cluster)?;
            let runs = status["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
            let full: u64 = runs
                .iter()
                .filter_map(|run| run["dropped"]["spool_full"].as_u64())
                .sum();
            ensure!(
                full > 0 && Some(full) == dropped(),
                "{full} by the store, {:?} by the agent",
                dropped()
            );
            processor.stop()?;
            sink.stop()
        },
    )
}
