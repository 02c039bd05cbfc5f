//! Journeys of samples from this host's CPUs to rows, with every part a real process, some of them killed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, Part, repository, skipped};

/// Builds the demo service and starts it, named `orders`, for as long as the returned part lives.
fn orders(cluster: &Cluster) -> Result<(Part, PathBuf)> {
    let folder = cluster.path("demo");
    let build = Command::new("make")
        .arg("-s")
        .arg("-C")
        .arg(repository().join("infra/demo"))
        .env("STROBE_HOME", &folder)
        .output()?;
    ensure!(
        build.status.success(),
        "{}",
        String::from_utf8_lossy(&build.stderr)
    );
    let report = cluster.path("orders.jsonl");
    let mut command = Command::new(folder.join("demo/orders"));
    command
        .args(["--cpu-share", "0.9", "--seconds", "300", "--report"])
        .arg(&report)
        .env("STROBE_SERVICE", "orders");
    Ok((Part::start(&mut command, &cluster.path("orders.log"))?, report))
}

/// Returns a phase's and the thread's CPU time by the service's own clock, now.
fn clock(report: &PathBuf, phase: &str) -> Result<(f64, f64)> {
    let text = std::fs::read_to_string(report)?;
    let line: serde_json::Value = serde_json::from_str(text.lines().last().context("no report yet")?)?;
    let number = |value: &serde_json::Value| value.as_f64().context("no number");
    Ok((number(&line["phases"][phase])?, number(&line["thread_cpu_ns"])?))
}

/// Waits until what was taken is stored or dropped for a reason, and checks that rows and totals agree with it.
fn everything_is_stored_once(cluster: &Cluster) -> Result<()> {
    cluster.wait_for("every sample is accounted for", || {
        cluster.json(&["status", "-o", "json"]).is_ok_and(|status| {
            let sum = &status["sum"];
            sum["taken"].as_u64() > Some(0) && sum["under_way"] == 0
        })
    })?;
    let status = cluster.json(&["status", "-o", "json"])?;
    ensure!(status["sum"]["excess"] == 0, "more than was taken: {status}");
    ensure!(
        status["dead_letters"] == serde_json::json!([]),
        "dead letters: {status}"
    );
    let rows = cluster.number("SELECT count() AS n FROM samples")?;
    let spooled = cluster.number("SELECT sum(samples) AS n FROM batches FINAL")?;
    let totals = cluster.number("SELECT sum(samples) AS n FROM totals_hourly")?;
    ensure!(
        rows == spooled && rows == totals,
        "{rows} rows, {spooled} by batches, {totals} by totals"
    );
    let doubled = cluster.number(
        "SELECT count() AS n FROM (SELECT host, epoch, sequence, part, tid, time, cpu, count() AS c FROM samples GROUP BY ALL \
         HAVING c > 1)",
    )?;
    ensure!(doubled == 0.0, "{doubled} samples are there twice");
    Ok(())
}

/// Checks that the shares of the demo's functions are those of its own clock, that the inlined one has file and line, and
/// that one query finds the line that copies a vector.
#[test]
fn the_demos_shares_are_those_of_its_own_clock() -> Result<()> {
    let cluster = match Cluster::start("shares") {
        Ok(cluster) => cluster,
        Err(reason) => {
            skipped(
                "the_demos_shares_are_those_of_its_own_clock",
                &format!("{reason:#}"),
            );
            return Ok(());
        }
    };
    let _processor = cluster.run("processor", None)?;
    let _sink = cluster.run("sink", None)?;
    let (_service, report) = orders(&cluster)?;
    cluster.wait_for("the service reports", || {
        clock(&report, "apply_discounts").is_ok()
    })?;
    let agent = cluster.agent(&["--frequency", "997"], None)?;
    // Binaries reach the symbol store within seconds; what came before stays without names.
    std::thread::sleep(Duration::from_secs(6));
    let phases = [
        "apply_discounts",
        "match_inventory",
        "serialize_orders",
        "sign_lines",
    ];
    let before = phases.map(|phase| clock(&report, phase));
    let since = cluster.strobe(&["query", "-o", "csv", "SELECT toString(now64(6)) AS t"])?;
    // On a busy host the service gets less than it wants: 11.5 s of its own clock are some 11,400 samples.
    let started = clock(&report, phases[0])?.1;
    cluster.wait_for("the service used 11.5 s of CPU", || {
        clock(&report, phases[0]).is_ok_and(|(_, now)| now - started >= 11.5e9)
    })?;
    let after = phases.map(|phase| clock(&report, phase));
    let until = cluster.strobe(&["query", "-o", "csv", "SELECT toString(now64(6)) AS t"])?;
    ensure!(agent.stop()?, "the agent did not end well");
    everything_is_stored_once(&cluster)?;
    let moment = |csv: &str| {
        csv.lines()
            .nth(1)
            .unwrap_or_default()
            .trim_matches('"')
            .to_owned()
    };
    let span = format!(
        "service = 'orders' AND time BETWEEN '{}' AND '{}'",
        moment(&since),
        moment(&until)
    );
    let samples = cluster.number(&format!("SELECT count() AS n FROM samples WHERE {span}"))?;
    ensure!(samples >= 10_000.0, "only {samples} samples of the service");
    for (index, phase) in phases.iter().enumerate() {
        let ((from, all_from), (to, all_to)) =
            (*before[index].as_ref().unwrap(), *after[index].as_ref().unwrap());
        let truth = 100.0 * (to - from) / (all_to - all_from);
        let with = cluster.number(&format!(
            "SELECT uniqExact(epoch, sequence, tid, time, cpu) AS n FROM sample_frames WHERE {span} AND function LIKE \
             '{phase}(%'"
        ))?;
        let found = 100.0 * with / samples;
        // 99.9 % of a binomial share.
        let interval = 100.0 * 3.29 * (truth / 100.0 * (1.0 - truth / 100.0) / samples).sqrt();
        // The report and the query look at slightly different moments: the clock reports once a second.
        ensure!(
            (found - truth).abs() <= interval.max(1.0),
            "{phase}: {found:.2} % found, {truth:.2} % by its clock"
        );
    }
    let inlined = cluster.number(
        "SELECT count() AS n FROM sample_frames WHERE service = 'orders' AND function LIKE 'sign_lines(%' AND inlined AND \
         file LIKE '%/orders.cpp' AND line > 0",
    )?;
    ensure!(inlined > 0.0, "the inlined function has no file or line");
    let sql = std::fs::read_to_string(repository().join("integration-tests/data/missing_ampersand.sql"))?;
    let rows = cluster.json(&["query", "-o", "json", "--", &sql])?;
    ensure!(
        rows[0]["caller"]
            .as_str()
            .is_some_and(|name| name.starts_with("apply_discounts(")),
        "{rows}"
    );
    let source = std::fs::read_to_string(repository().join("infra/demo/orders.cpp"))?;
    let line = source
        .lines()
        .position(|line| line.contains("auto lines = order.lines();"))
        .context("the copy is gone")?;
    ensure!(rows[0]["line"].as_u64() == Some(line as u64 + 1), "{rows}");
    Ok(())
}

/// Checks that whatever is killed in the middle of a run, every sample that reached the spool is stored exactly once.
#[test]
fn whatever_is_killed_every_spooled_sample_is_stored_once() -> Result<()> {
    let cluster = match Cluster::start("kills") {
        Ok(cluster) => cluster,
        Err(reason) => {
            skipped(
                "whatever_is_killed_every_spooled_sample_is_stored_once",
                &format!("{reason:#}"),
            );
            return Ok(());
        }
    };
    let (_service, _) = orders(&cluster)?;
    let flags = ["--frequency", "499", "--run-length", "5s"];
    let agent = cluster.agent(&flags, None)?;
    let processor = cluster.run("processor", None)?;
    let sink = cluster.run("sink", None)?;
    let pause = || std::thread::sleep(Duration::from_secs(3));
    cluster.wait_for("something is stored", || {
        cluster
            .number("SELECT count() AS n FROM samples")
            .is_ok_and(|n| n > 0.0)
    })?;
    agent.kill();
    let mut dying = cluster.agent(&flags, Some("publish.acked_before_free:3"))?;
    cluster.wait_for("the agent dies between acknowledgement and freeing", || {
        dying.has_ended()
    })?;
    let agent = cluster.agent(&flags, None)?;
    processor.kill();
    pause();
    let processor = cluster.run("processor", None)?;
    sink.kill();
    for point in [
        "sink.pending_committed",
        "sink.after_insert.frames",
        "sink.after_insert.samples",
        "sink.before_commit",
    ] {
        let mut dying = cluster.run("sink", Some(point))?;
        cluster.wait_for(point, || dying.has_ended())?;
    }
    let sink = cluster.run("sink", None)?;
    cluster.engine("kill")?;
    pause();
    cluster.engine("start")?;
    if std::env::var_os("STROBE_TEST_UNSTABLE").is_some() {
        cluster.broker("kill")?;
        pause();
        cluster.broker("start")?;
        pause();
    } else {
        skipped(
            "a killed broker, within the journey",
            "see a_killed_broker_loses_nothing",
        );
    }
    ensure!(agent.stop()?, "the agent did not end well");
    // The killed agents' runs have no end: what their open batches held is unknown, and in no count.
    cluster.wait_for("everything is stored", || {
        let lag = cluster
            .json(&["status", "-o", "json"])
            .map(|status| status["lag"].clone());
        lag.is_ok_and(|lag| {
            lag.as_array()
                .is_some_and(|lag| lag.iter().all(|one| one["messages"] == 0))
        })
    })?;
    std::thread::sleep(Duration::from_secs(2));
    everything_is_stored_once(&cluster)?;
    ensure!(processor.stop()? && sink.stop()?, "a service did not end well");
    Ok(())
}

/// Checks that messages that are none of ours are put aside with their reason, and that the reader cannot write.
#[test]
fn the_reader_can_neither_write_nor_read_files() -> Result<()> {
    let cluster = match Cluster::start("reader") {
        Ok(cluster) => cluster,
        Err(reason) => {
            skipped(
                "the_reader_can_neither_write_nor_read_files",
                &format!("{reason:#}"),
            );
            return Ok(());
        }
    };
    for sql in [
        "INSERT INTO runs (detail) VALUES ('x')",
        "DROP TABLE samples",
        "SELECT * FROM file('/etc/passwd', 'RawBLOB')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'RawBLOB')",
    ] {
        let output = cluster.strobe_output(&["query", sql])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && said.contains("strobe: "),
            "{sql}: {said}"
        );
    }
    ensure!(cluster.number("SELECT count() AS n FROM samples")? == 0.0);
    Ok(())
}

/// Checks that mistakes and missing parts are answered by what to do, with an exit code, and never by a stack trace.
#[test]
fn mistakes_are_answered_by_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("bad.toml");
    std::fs::write(&config, "[bus]\nbootstrapp = \"x\"\n")?;
    let run = |name: &str, arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let executable = strobe_integration_tests::executable(name)?;
        let output = Command::new(executable)
            .args(arguments)
            .env("RUST_BACKTRACE", "1")
            .output()?;
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    };
    let bad = config.to_str().context("a path")?;
    for (name, arguments, code, said) in [
        (
            "strobe",
            vec!["--config", bad, "status"],
            78,
            "did you mean `bootstrap`?",
        ),
        (
            "strobe-agent",
            vec!["check", "--config", bad],
            78,
            "did you mean `bootstrap`?",
        ),
        (
            "strobe",
            vec!["--bootstrap", "127.0.0.1:1", "topics", "apply"],
            69,
            "127.0.0.1:1",
        ),
        (
            "strobe",
            vec!["--clickhouse", "http://127.0.0.1:1", "top"],
            69,
            "127.0.0.1:1",
        ),
        ("strobe", vec!["top", "--since", "yesterday"], 2, "-15m"),
        ("strobe", vec!["top", "--focus", "("], 2, "--focus"),
    ] {
        let (found, text) = run(name, &arguments)?;
        ensure!(
            found == Some(code) && text.contains(said),
            "{name} {arguments:?}: {found:?} {text}"
        );
        ensure!(
            !text.contains("stack backtrace") && !text.contains("panicked"),
            "{text}"
        );
    }
    Ok(())
}
