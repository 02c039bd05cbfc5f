//! Whatever dies between the bus and the tables, every sample is stored exactly once. The input is known sample by sample.

mod support;

use std::time::Duration;

use anyhow::{Result, ensure};
use strobe_integration_tests::journey;
use support::feed::Feed;
use support::truth::caught_up;

/// Longest wait for a crash that a test ordered.
const CRASH: Duration = Duration::from_secs(40);
/// More than the session timeout of 3 s: the group goes on without a member that is silent for so long.
const EXPELLED: Duration = Duration::from_millis(4_500);

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Where the sink may die between two of its steps.
const SINK_STEPS: [&str; 8] = [
    "sink.after_insert.runs",
    "sink.pending_committed",
    "sink.after_insert.frames",
    "sink.after_insert.stacks",
    "sink.after_insert.totals_hourly",
    "sink.after_insert.batches",
    "sink.after_insert.samples",
    "sink.before_commit",
];

/// Checks that a sink that dies between any two of its steps doubles and loses nothing, also where more has come before
/// its successor looks, and where successors die as well.
#[test]
fn a_sink_that_dies_between_any_two_steps_changes_nothing() -> Result<()> {
    journey(
        "a_sink_that_dies_between_any_two_steps_changes_nothing",
        &[],
        |cluster| {
            let _processor = cluster.run("processor", None)?;
            let mut feed = Feed::new(cluster, "host-a")?;
            let mut runs = Vec::new();
            for step in SINK_STEPS {
                runs.push(Feed::new(cluster, &format!("host-{}", runs.len()))?);
                feed.send(5)?;
                feed.flush()?;
                cluster.run("sink", Some(step))?.crashes(CRASH)?;
                // A successor that cut its ranges by what is there would cut this one otherwise.
                feed.send(4)?;
                feed.flush()?;
                let sink = cluster.run("sink", None)?;
                caught_up(cluster)?;
                sink.stop()?;
            }
            // Each of these takes over what the one before left, and dies a step further.
            feed.send(5)?;
            feed.flush()?;
            for step in &SINK_STEPS[1..] {
                feed.send(1)?;
                cluster.run("sink", Some(step))?.crashes(CRASH)?;
            }
            feed.finish()?;
            let mut truth = feed.truth.clone();
            for run in &mut runs {
                run.finish()?;
                truth.merge(&run.truth);
            }
            let sink = cluster.run("sink", None)?;
            truth.is_stored(cluster)?;
            sink.stop()
        },
    )
}

/// Checks that a processor that dies after the broker took its output and before it commits, or at any moment, doubles and
/// loses nothing.
#[test]
fn a_processor_that_dies_before_it_commits_changes_nothing() -> Result<()> {
    journey(
        "a_processor_that_dies_before_it_commits_changes_nothing",
        &[],
        |cluster| {
            let sink = cluster.run("sink", None)?;
            let mut feed = Feed::new(cluster, "host-a")?;
            for passage in ["", ":2", ":3"] {
                feed.send(20)?;
                let point = format!("drive.acknowledged_before_commit{passage}");
                let dying = cluster.run("processor", Some(&point))?;
                // The second and third commit need something new.
                for _ in 0..60 {
                    feed.send(1)?;
                    pause(100);
                }
                dying.crashes(CRASH)?;
            }
            for moment in [400, 900, 1_700] {
                feed.send(40)?;
                let processor = cluster.run("processor", None)?;
                pause(moment);
                feed.send(40)?;
                pause(moment / 2);
                processor.kill()?;
            }
            feed.finish()?;
            let processor = cluster.run("processor", None)?;
            feed.truth.is_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that sink, engine and broker, killed in the middle of a stream, double and lose nothing.
#[test]
fn a_sink_an_engine_or_a_broker_killed_in_the_middle_changes_nothing() -> Result<()> {
    journey(
        "a_sink_an_engine_or_a_broker_killed_in_the_middle_changes_nothing",
        &[],
        |cluster| {
            let processor = cluster.run("processor", None)?;
            let mut sink = cluster.run("sink", None)?;
            let mut feed = Feed::new(cluster, "host-a")?;
            for moment in [300, 1_100, 1_900] {
                feed.send(60)?;
                pause(moment);
                sink.kill()?;
                feed.send(20)?;
                sink = cluster.run("sink", None)?;
                pause(moment);
                cluster.engine("kill")?;
                feed.send(60)?;
                cluster.engine("start")?;
                feed.send(60)?;
                pause(moment);
                // Nothing is flushed: the broker dies with messages of every client in its hands.
                cluster.broker("kill")?;
                feed.send(60)?;
                cluster.broker("start")?;
                feed.send(20)?;
            }
            feed.finish()?;
            feed.truth.is_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that a sink and a processor that are stopped past their session timeout, while others take over, and then go on,
/// double and lose nothing.
#[test]
fn members_that_sleep_past_their_session_change_nothing() -> Result<()> {
    journey(
        "members_that_sleep_past_their_session_change_nothing",
        &[],
        |cluster| {
            let processor = cluster.run("processor", None)?;
            let sink = cluster.run("sink", None)?;
            let mut feed = Feed::new(cluster, "host-a")?;
            for moment in [700, 1_300] {
                feed.send(120)?;
                pause(moment);
                sink.freeze();
                let other = cluster.run("sink", None)?;
                feed.send(60)?;
                std::thread::sleep(EXPELLED);
                feed.send(60)?;
                sink.thaw();
                pause(moment);
                processor.freeze();
                let other_processor = cluster.run("processor", None)?;
                feed.send(60)?;
                std::thread::sleep(EXPELLED);
                processor.thaw();
                feed.send(60)?;
                pause(moment);
                other_processor.stop()?;
                other.stop()?;
            }
            feed.finish()?;
            feed.truth.is_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that a second processor and a second sink that join and leave, well or not, double and lose nothing.
#[test]
fn members_that_join_and_leave_change_nothing() -> Result<()> {
    journey("members_that_join_and_leave_change_nothing", &[], |cluster| {
        let processor = cluster.run("processor", None)?;
        let sink = cluster.run("sink", None)?;
        // Several hosts: both partitions have something in them.
        let mut feeds = Vec::new();
        for host in ["host-a", "host-b", "host-c"] {
            feeds.push(Feed::new(cluster, host)?);
        }
        let mut send = |batches: usize, milliseconds: u64| -> Result<()> {
            for _ in 0..batches {
                feeds.iter_mut().try_for_each(|feed| feed.send(3))?;
                pause(milliseconds);
            }
            Ok(())
        };
        for well in [true, false] {
            send(10, 50)?;
            let (second_processor, second_sink) =
                (cluster.run("processor", None)?, cluster.run("sink", None)?);
            send(20, 100)?;
            if well {
                second_processor.stop()?;
                send(5, 100)?;
                second_sink.stop()?;
            } else {
                second_processor.kill()?;
                send(5, 100)?;
                second_sink.kill()?;
            }
            send(10, 50)?;
        }
        let mut truth = support::truth::Truth::default();
        for feed in &mut feeds {
            feed.finish()?;
            truth.merge(&feed.truth);
        }
        truth.is_stored(cluster)?;
        processor.stop()?;
        sink.stop()
    })
}

/// Checks that a broker that is away for longer than any timeout of its clients is waited for, and nothing is given up.
#[test]
fn a_broker_away_for_longer_than_any_timeout_is_waited_for() -> Result<()> {
    journey(
        "a_broker_away_for_longer_than_any_timeout_is_waited_for",
        &[],
        |cluster| {
            for (name, milliseconds) in [
                ("max.poll.interval.ms", "4000"),
                ("socket.timeout.ms", "3000"),
                ("socket.connection.setup.timeout.ms", "2000"),
                ("metadata.max.age.ms", "4000"),
                ("transaction.timeout.ms", "4000"),
                ("retry.backoff.max.ms", "500"),
            ] {
                cluster.set_strobe("bus.options", name, milliseconds)?;
            }
            let mut processor = cluster.run("processor", None)?;
            let mut sink = cluster.run("sink", None)?;
            let mut feed = Feed::new(cluster, "host-a")?;
            feed.send(100)?;
            pause(2_000);
            feed.send(100)?;
            cluster.broker("kill")?;
            feed.send(100)?;
            pause(13_000);
            ensure!(processor.runs() && sink.runs(), "a service gave up");
            cluster.broker("start")?;
            feed.send(50)?;
            feed.finish()?;
            feed.truth.is_stored(cluster)?;
            ensure!(processor.runs() && sink.runs(), "a service gave up");
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that a sink without its store goes on living, reads no more than it may hold, and catches up.
#[test]
fn a_store_that_is_away_is_waited_for() -> Result<()> {
    journey("a_store_that_is_away_is_waited_for", &[], |cluster| {
        cluster.set_strobe("sink", "range_bytes", "262144")?;
        cluster.set_strobe("sink", "window_bytes", "524288")?;
        let processor = cluster.run("processor", None)?;
        let mut sink = cluster.run("sink", None)?;
        let mut feed = Feed::new(cluster, "host-a")?;
        feed.send(20)?;
        feed.flush()?;
        caught_up(cluster)?;
        cluster.engine("kill")?;
        feed.send(300)?;
        feed.flush()?;
        pause(6_000);
        ensure!(sink.runs(), "the sink gave up");
        cluster.engine("start")?;
        feed.finish()?;
        feed.truth.is_stored(cluster)?;
        ensure!(sink.runs(), "the sink gave up");
        processor.stop()?;
        sink.stop()
    })
}

/// Checks that a dead letter that is put back after later batches of its spool were stored is news, and is stored once,
/// however often it comes back.
#[test]
fn a_dead_letter_put_back_after_later_batches_is_stored_once() -> Result<()> {
    journey(
        "a_dead_letter_put_back_after_later_batches_is_stored_once",
        &[],
        |cluster| {
            cluster.set_strobe("sink", "oldest", "\"30m\"")?;
            let processor = cluster.run("processor", None)?;
            let sink = cluster.run("sink", None)?;
            let mut feed = Feed::new(cluster, "host-a")?;
            feed.send(2)?;
            feed.begin_again(Duration::from_secs(2 * 3_600));
            feed.send(3)?;
            feed.begin_again(Duration::from_secs(60));
            feed.send(6)?;
            feed.finish()?;
            caught_up(cluster)?;
            sink.stop()?;
            let topic = format!("{}samples", cluster.topic_prefix());
            let letters = cluster.json(&["dlq", "list", &topic, "-o", "json"])?;
            let letters = letters.as_array().map(Vec::as_slice).unwrap_or_default();
            ensure!(
                letters.len() == 3 && letters.iter().all(|letter| letter["reason"] == "too_old"),
                "{letters:?}"
            );
            cluster.set_strobe("sink", "oldest", "\"720h\"")?;
            let sink = cluster.run("sink", None)?;
            for _ in 0..2 {
                let said = cluster.strobe(&["dlq", "replay", &topic, "--all"])?;
                ensure!(said.contains("3 messages are back"), "{said}");
            }
            feed.truth.is_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}
