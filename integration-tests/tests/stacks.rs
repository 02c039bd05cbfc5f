//! Stack schemas from a file to an answer: on the bus, through the processor, into rows, and out of views.

mod support;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strobe_bus::{BusSettings, Headers, Outgoing, ResendingProducer, Topic, WindowLimits};
use strobe_event::{HostRecord, StackSchemaFile, codec};
use strobe_integration_tests::{Cluster, Need, journey, repository};
use support::feed::Feed;
use support::truth::caught_up;
use support::workload::Orders;

/// Longest wait for the demo's copies on a machine that does much else.
const LONGEST: Duration = Duration::from_secs(180);

/// Every stack has one `layer`; what ends in the kernel is hidden whole, and the names of others are one.
const LAYERS: &str = r#"schema layers
version VERSION
key layer takes one otherwise user
rule kernel {
    on kernel
    when leaf kernel
    tag stack layer=kernel
    tag frame in-kernel
    example "main;read {kernel}" gives layer=kernel
}
rule kernel-only {
    on anything
    when leaf kernel
    hide
    example "main;read {kernel}" gives layer=kernel shows "[hidden by layers]"
}
rule same priority -1 {
    on anything
    rename to "a frame"
    example "main;work" gives layer=user shows "a frame;a frame"
}
"#;

fn layers(version: u32) -> String {
    LAYERS.replace("VERSION", &version.to_string())
}

/// Returns a number of an answer in JSON.
fn number(value: &serde_json::Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("{value} is no number"))
}

/// Waits until the processor's log holds `text` at least `times` times.
fn processor_says(cluster: &Cluster, text: &str, times: usize) -> Result<()> {
    cluster.wait_for(&format!("the processor says `{text}`"), || {
        fs::read_to_string(cluster.path("processor.log")).is_ok_and(|log| log.matches(text).count() >= times)
    })
}

/// Sends batches and waits until they are stored.
fn send(cluster: &Cluster, feed: &mut Feed, batches: usize) -> Result<()> {
    feed.send(batches)?;
    feed.flush()?;
    caught_up(cluster)
}

const IN_FORCE: &str = "stack schemas in force";

/// Weight by layer, over everything that is stored; samples without a layer under the empty one.
const BY_LAYER: &str = "SELECT arrayFirst(tag -> startsWith(tag, 'layer='), tags) AS layer, count(), sum(run_weight) FROM \
                        tagged_samples GROUP BY layer ORDER BY layer";

/// Checks the whole way: schemas are applied while batches flow, tags are rows, a retag tags what was there before, doing
/// it again changes nothing, shares of an exclusive key add up, and hiding and renaming change no weight.
#[test]
fn schemas_reach_the_store_and_retag_doubles_nothing() -> Result<()> {
    journey(
        "schemas_reach_the_store_and_retag_doubles_nothing",
        &[],
        |cluster| {
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let file = cluster.path("layers.stacks").display().to_string();
            fs::write(&file, layers(1))?;
            let mut feed = Feed::new(cluster, "host-a")?;
            send(cluster, &mut feed, 4)?;
            ensure!(
                cluster.number("SELECT count() FROM tags")? == 0.0,
                "no schema, no tags"
            );
            let samples = cluster.number("SELECT count() FROM samples")?;
            let contexts = cluster.number("SELECT countIf(context = 0) FROM samples")?;
            ensure!(
                contexts == 0.0,
                "every sample has a context, also without schemas"
            );

            // What is tried is what comes to be.
            let tried = cluster.json(&["stacks", "try", &file, "--since", "-1h", "-o", "json", "--runs"])?;
            ensure!(
                cluster.number("SELECT count() FROM tags")? == 0.0,
                "trying changes nothing"
            );
            let said = cluster.strobe(&["stacks", "apply", &file])?;
            ensure!(said.contains("1 schemas published"), "{said}");
            processor_says(cluster, IN_FORCE, 1)?;
            send(cluster, &mut feed, 4)?;
            let rows = cluster.rows(BY_LAYER)?;
            ensure!(
                rows.len() == 3 && rows[0][0].is_empty(),
                "tags from now on: {rows:?}"
            );
            // Samples of before share rows with later ones of the same stack; those of stacks that never came again do not.
            let untagged = rows[0][1].parse::<f64>()?;
            ensure!(
                untagged > 0.0 && untagged <= samples,
                "{untagged} of {samples}: {rows:?}"
            );

            let done = cluster.json(&["retag", "--since", "-1h", "-o", "json"])?;
            let pairs = cluster.number("SELECT uniqExact(toUInt64(stack), context) FROM samples")?;
            ensure!(number(&done["stacks"])? == pairs, "{pairs} pairs, {done}");
            let once = cluster.rows(BY_LAYER)?;
            ensure!(
                once.len() == 2 && once.iter().all(|row| !row[0].is_empty()),
                "{once:?}"
            );
            let whole = cluster.number("SELECT sum(run_weight) FROM samples")?;
            let sum = once
                .iter()
                .map(|row| row[2].parse::<f64>())
                .sum::<Result<f64, _>>()?;
            ensure!(
                (sum / whole - 1.0).abs() < 1e-9,
                "an exclusive key adds up: {sum} of {whole}"
            );
            cluster.strobe(&["retag", "--since", "-1h"])?;
            ensure!(cluster.rows(BY_LAYER)? == once, "a second retag changes nothing");
            let counted = cluster.number("SELECT count() FROM samples")?;
            ensure!(
                counted == feed.truth.samples() as f64,
                "a retag touches no sample"
            );
            for share in tried["tags"].as_array().context("tags")? {
                let found = once.iter().find(|row| share["tag"] == row[0].as_str());
                ensure!(found.is_some(), "tried: {share}, came: {once:?}");
            }
            views_keep_the_total(cluster, &once)?;
            frames_have_their_tags(cluster)?;
            labels_of_hosts_decide(cluster, &mut feed)?;
            feed.finish()?;
            feed.truth.is_stored(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}

/// Checks that views of tags and marks keep the total: by tag, by key, of one tag, raw and not.
fn views_keep_the_total(cluster: &Cluster, by_layer: &[Vec<String>]) -> Result<()> {
    let top = |more: &[&str]| {
        cluster.json(
            &[
                &[
                    "top", "--since", "-1h", "--runs", "-o", "json", "--limit", "100000",
                ],
                more,
            ]
            .concat(),
        )
    };
    let (shown, raw) = (top(&[])?, top(&["--raw"])?);
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
    let whole = number(&raw["cores"])?;
    ensure!(near(number(&shown["cores"])?, whole), "hiding changes no weight");
    let names = |top: &serde_json::Value| -> Vec<String> {
        let rows = top["rows"].as_array().cloned().unwrap_or_default();
        rows.iter()
            .map(|row| row["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let mut seen = names(&shown);
    seen.sort();
    seen.dedup();
    ensure!(seen == ["[hidden by layers]", "a frame"], "{seen:?}");
    ensure!(names(&raw).len() > 10 && !names(&raw).contains(&"a frame".to_owned()));
    let kernel: f64 = by_layer
        .iter()
        .filter(|row| row[0] == "layer=kernel")
        .map(|row| row[2].parse::<f64>())
        .sum::<Result<f64, _>>()?;
    let all: f64 = by_layer
        .iter()
        .map(|row| row[2].parse::<f64>())
        .sum::<Result<f64, _>>()?;
    let rows = shown["rows"].as_array().context("rows")?;
    let hidden: f64 = rows
        .iter()
        .filter(|row| row["name"] == "[hidden by layers]")
        .map(|row| number(&row["self_cores"]))
        .sum::<Result<f64>>()?;
    ensure!(
        near(hidden / whole, kernel / all),
        "{hidden} of {whole}, {kernel} of {all}"
    );

    let by_tag = top(&["--by", "tag", "--key", "layer"])?;
    let rows = by_tag["rows"].as_array().context("rows")?;
    let sum = rows
        .iter()
        .map(|row| number(&row["self_cores"]))
        .sum::<Result<f64>>()?;
    ensure!(near(sum, whole) && rows.len() == 2, "{by_tag}");
    let of_tag = top(&["--tag", "layer=kernel", "--raw"])?;
    ensure!(near(number(&of_tag["cores"])? / whole, kernel / all), "{of_tag}");
    let none = cluster.strobe_output(&["top", "--since", "-1h", "--runs", "--tag", "layer=elsewhere"])?;
    ensure!(none.status.code() == Some(3), "an empty answer says so: {none:?}");
    let svg = cluster.strobe(&[
        "flamegraph",
        "--since",
        "-1h",
        "--runs",
        "--raw",
        "--color-by",
        "layer",
        "--output",
        "-",
    ])?;
    ensure!(
        svg.contains("layer=kernel rgb(") && svg.contains("layer=user rgb("),
        "the picture names its colours"
    );
    let folded = cluster.strobe(&[
        "export",
        "--format",
        "folded",
        "--since",
        "-1h",
        "--runs",
        "--tag",
        "layer=kernel",
    ])?;
    let lines: Vec<&str> = folded.lines().collect();
    ensure!(
        !lines.is_empty() && lines.iter().all(|line| line.starts_with("[hidden by layers] ")),
        "{folded}"
    );
    Ok(())
}

/// Checks that the view of frames has the tags of each: at the leaf of every sample that ends in the kernel, and nowhere else.
fn frames_have_their_tags(cluster: &Cluster) -> Result<()> {
    let leaves =
        cluster.number("SELECT countIf(self AND has(frame_tags, 'in-kernel')) FROM tagged_frames")?;
    let samples = cluster.number("SELECT countIf(has(tags, 'layer=kernel')) FROM tagged_samples")?;
    ensure!(
        leaves == samples && samples > 0.0,
        "{leaves} leaves of {samples} samples"
    );
    let of_tag = ["--tag", "in-kernel", "--since", "-1h", "--runs", "-o", "json"];
    let by_frame = cluster.json(&[&["top"], &of_tag[..]].concat())?;
    let by_stack = cluster.json(&[
        "top",
        "--tag",
        "layer=kernel",
        "--since",
        "-1h",
        "--runs",
        "-o",
        "json",
    ])?;
    ensure!(by_frame["cores"] == by_stack["cores"], "{by_frame} {by_stack}");
    Ok(())
}

/// Asks for what no batch says: the host, and the region that its agent told the inventory.
const PLACES: &str = r#"schema places
rule eu {
    on root
    when host is "host-a" and region is "eu"
    tag stack "place={region}/{host}/{label tier}"
    example "main" with host "host-a", region "eu", label tier "gold" gives "place=eu/host-a/gold"
    example "main" with host "host-b", region "eu", label tier "gold" gives nothing
}
rule us {
    when region is "us"
    tag stack place=us
    example "main" with region "us" gives place=us
}
"#;

/// Checks that schemas see the host and its labels, and that samples of before keep what they have.
fn labels_of_hosts_decide(cluster: &Cluster, feed: &mut Feed) -> Result<()> {
    let bus = support::bus(cluster)?;
    let record = HostRecord {
        host: "host-a".into(),
        time_us: 1,
        agent: "1".into(),
        kernel: "6".into(),
        cpus: 2,
        labels: vec!["region=eu".into(), "tier=gold".into()],
        services: Vec::new(),
    };
    let topic = bus.topic(Topic::Hosts);
    put(&bus, &topic, "host-a", codec::encode_framed(&record)?)?;
    let file = cluster.path("places.stacks").display().to_string();
    fs::write(&file, PLACES)?;
    let tried = cluster.json(&["stacks", "try", &file, "--since", "-1h", "-o", "json", "--runs"])?;
    ensure!(
        tried["now"]["untagged_share"] == 0.0 && tried["untagged_share"] == 0.0,
        "tried together with those in force, which tag everything: {tried}"
    );
    cluster.strobe(&["stacks", "apply", &file])?;
    processor_says(cluster, IN_FORCE, 2)?;
    let placed = "SELECT countIf(has(tags, 'place=eu/host-a/gold')) FROM tagged_samples";
    cluster.wait_longer("labels arrive", LONGEST, || {
        send(cluster, feed, 1).is_ok() && cluster.number(placed).is_ok_and(|samples| samples > 0.0)
    })?;
    let rows = "SELECT count() FROM tags WHERE labels['host'] = 'host-a' AND labels['region'] = 'eu' AND labels['label tier'] = \
                'gold' AND has(tags, 'place=eu/host-a/gold')";
    let others = "SELECT countIf(has(tags, 'place=us')) FROM tagged_samples";
    ensure!(cluster.number(rows)? > 0.0, "contexts have their values");
    ensure!(cluster.number(others)? == 0.0);
    ensure!(
        cluster.number(placed)? < cluster.number("SELECT count() FROM samples")?,
        "what came before the schema has no place"
    );
    Ok(())
}

/// Publishes a text as a schema past the command line, which would refuse it.
fn publish(cluster: &Cluster, name: &str, value: Vec<u8>) -> Result<()> {
    let bus = support::bus(cluster)?;
    let topic = bus.topic(Topic::Config);
    put(&bus, &topic, &StackSchemaFile::key(name), value)
}

/// Puts a value under a key of a compacted topic.
fn put(bus: &BusSettings, topic: &str, key: &str, value: Vec<u8>) -> Result<()> {
    let mut producer = ResendingProducer::new(bus, WindowLimits::default())?;
    let message = Outgoing {
        topic: topic.into(),
        key: Some(key.to_owned().into()),
        headers: Headers::new(),
        payload: Some(value.into()),
    };
    ensure!(producer.push(0, message).is_ok(), "the window is empty");
    ensure!(producer.flush(Duration::from_secs(30)).len() == 1, "acknowledged");
    Ok(())
}

/// Checks that schemas on the bus that cannot be read or do not compile leave the old ones in force, are said, and hold up
/// no sample; and that the next good ones come in force without a restart.
#[test]
fn a_bad_schema_leaves_the_old_in_force() -> Result<()> {
    journey("a_bad_schema_leaves_the_old_in_force", &[], |cluster| {
        let file = cluster.path("layers.stacks").display().to_string();
        fs::write(&file, layers(1))?;
        cluster.strobe(&["stacks", "apply", &file])?;
        let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
        let mut feed = Feed::new(cluster, "host-a")?;
        // What was in force before the processor started is in force for its first batch.
        send(cluster, &mut feed, 1)?;
        let versions = "SELECT DISTINCT arrayJoin(schemas) AS version FROM tagged_samples ORDER BY version";
        ensure!(cluster.rows(versions)? == [["layers@1"]]);

        let bad = StackSchemaFile {
            name: "bad".into(),
            enabled: true,
            ..StackSchemaFile::default()
        }
        .with_text("schema bad\nrule broken { on function is }\n");
        publish(cluster, "bad", codec::encode_framed(&bad)?)?;
        processor_says(cluster, "stack schemas refused", 1)?;
        send(cluster, &mut feed, 2)?;
        publish(cluster, "worse", b"no Avro at all".to_vec())?;
        processor_says(cluster, "stack schemas refused", 2)?;
        send(cluster, &mut feed, 2)?;
        let untagged = cluster.number("SELECT countIf(empty(tags)) FROM tagged_samples")?;
        ensure!(untagged == 0.0, "{untagged} samples without tags");
        ensure!(cluster.rows(versions)? == [["layers@1"]]);

        // The command line refuses to add to what does not compile, and says where; then all is well again.
        fs::write(&file, layers(2))?;
        let output = cluster.strobe_output(&["stacks", "apply", &file])?;
        ensure!(
            !output.status.success(),
            "it cannot be applied beside a broken one"
        );
        let mended =
            bad.with_text("schema bad\nrule fine { on root tag stack fine example \"a\" gives fine }\n");
        let listed = cluster.strobe(&["stacks", "list"])?;
        ensure!(listed.contains("`worse` on the bus cannot be read"), "{listed}");
        cluster.strobe(&["stacks", "remove", "worse"])?;
        publish(cluster, "bad", codec::encode_framed(&mended)?)?;
        processor_says(cluster, IN_FORCE, 2)?;
        cluster.strobe(&["stacks", "apply", &file])?;
        processor_says(cluster, IN_FORCE, 3)?;
        send(cluster, &mut feed, 4)?;
        let rows = cluster.rows(versions)?;
        let has = |name: &str| rows.iter().any(|row| row[0].starts_with(name));
        ensure!(has("layers@2") && has("bad@"), "{rows:?}");
        let listed = cluster.strobe(&["stacks", "list"])?;
        ensure!(listed.contains("layers") && !listed.contains("worse"), "{listed}");
        feed.finish()?;
        feed.truth.is_stored(cluster)?;
        processor.stop()?;
        sink.stop()
    })
}

/// Checks that the shipped schemas tag the demo's copy of a vector on this host, and that the README's one query groups the
/// host's CPU time by tag.
#[test]
fn the_copy_of_the_demo_is_tagged() -> Result<()> {
    journey(
        "the_copy_of_the_demo_is_tagged",
        &[Need::Profiling, Need::Program("g++")],
        |cluster| {
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let library = repository().join("schemas/stacks").display().to_string();
            cluster.strobe(&["stacks", "apply", &library])?;
            processor_says(cluster, IN_FORCE, 1)?;
            let orders = Orders::start(cluster)?;
            cluster.wait_for("the service reports", || orders.clock().is_ok())?;
            let agent = cluster.agent(&["--frequency", "997"], None)?;
            let copies = "SELECT sum(fleet_weight) FROM tagged_samples WHERE service = 'orders' AND has(tags, 'copy=vector')";
            // Names come once the binary is in the symbol store, and tags with the names.
            cluster.wait_longer("half a second of copying is stored", LONGEST, || {
                cluster.number(copies).is_ok_and(|ns| ns > 0.5e9)
            })?;
            agent.stop()?;
            caught_up(cluster)?;
            let sql = fs::read_to_string(repository().join("integration-tests/data/cpu_by_tag.sql"))?;
            let readme = fs::read_to_string(repository().join("README.md"))?;
            ensure!(readme.contains(sql.trim()), "the README shows another query");
            let rows = cluster.json(&["query", "-o", "json", "--", &sql])?;
            let rows = rows.as_array().context("rows")?;
            let copied = rows
                .iter()
                .find(|row| row["tag"] == "copy=vector")
                .context("no copies")?;
            ensure!(number(&copied["cpu_seconds"])? >= 0.5, "{copied}");
            // Who copies is one function of one service, by names as they were: nothing else of this host has the tag.
            let elsewhere = cluster.number(
                "SELECT countIf(NOT arrayExists(name -> name LIKE 'apply_discounts(%', names)) / count() FROM (SELECT s.epoch, \
                 s.sequence, s.part, s.tid, s.time, groupArray(l.function) AS names FROM tagged_samples AS s INNER JOIN \
                 stack_locations AS l ON toUInt64(s.stack) = l.stack WHERE has(s.tags, 'copy=vector') AND s.service = 'orders' \
                 GROUP BY ALL)",
            )?;
            ensure!(elsewhere < 0.01, "{elsewhere} of the copies are not the demo's");
            processor.stop()?;
            sink.stop()
        },
    )
}
