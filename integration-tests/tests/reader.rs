//! People's questions neither hold up the sink nor change anything.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Need, User, journey};
use support::feed::Feed;
use support::truth::caught_up;

/// A question that takes 20 s, whatever the machine: it reads samples over and over until its time is up.
const SCAN: &str = "SELECT sum(cityHash64(toUInt64(s.stack), n.number)) FROM numbers(100000000000) AS n CROSS JOIN samples AS s";
const SCAN_SETTINGS: &str = "&max_threads=1&max_execution_time=20";
/// A batch is queryable so soon after it was sent, on two cores of which the scan has one: the sink closes a range after 1 s.
const QUERYABLE: Duration = Duration::from_secs(5);

/// Checks that batches become queryable while somebody scans for 20 s.
#[test]
fn a_scan_of_20_s_does_not_hold_up_the_sink() -> Result<()> {
    journey("a_scan_of_20_s_does_not_hold_up_the_sink", &[], |cluster| {
        let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
        let mut feed = Feed::new(cluster, "host-a")?;
        feed.send(10)?;
        feed.flush()?;
        caught_up(cluster)?;
        let (mut during, mut longest) = (0, Duration::ZERO);
        let scanned = std::thread::scope(|scope| -> Result<Duration> {
            let scan = scope.spawn(|| {
                let began = Instant::now();
                let answer = cluster.http_with(User::Reader, SCAN_SETTINGS, SCAN);
                answer.map(|(_, text)| (began.elapsed(), text))
            });
            std::thread::sleep(Duration::from_secs(1));
            while !scan.is_finished() {
                feed.send(3)?;
                feed.flush()?;
                let (sent, wanted) = (Instant::now(), feed.truth.samples() as f64);
                cluster.wait_for("what was sent during the scan is stored", || {
                    cluster
                        .number("SELECT count() FROM samples")
                        .is_ok_and(|rows| rows >= wanted)
                })?;
                if !scan.is_finished() {
                    during += 1;
                    longest = longest.max(sent.elapsed());
                }
            }
            let (took, said) = scan.join().ok().context("the scan's thread")??;
            ensure!(
                said.contains("TIMEOUT_EXCEEDED"),
                "the scan ended otherwise: {said}"
            );
            Ok(took)
        })?;
        println!("a scan of {scanned:?}; {during} times something was stored, within {longest:?}");
        ensure!(
            scanned >= Duration::from_secs(19),
            "the scan took only {scanned:?}"
        );
        ensure!(
            during >= 4 && longest <= QUERYABLE,
            "{during} times, within {longest:?}"
        );
        feed.finish()?;
        feed.truth.is_stored(cluster)?;
        processor.stop()?;
        sink.stop()
    })
}

/// Checks that the reader can neither change anything, nor read files, nor reach out, by the command line or by plain HTTP.
#[test]
fn the_reader_can_neither_write_nor_reach_out() -> Result<()> {
    journey(
        "the_reader_can_neither_write_nor_reach_out",
        &[Need::Program("curl")],
        |cluster| {
            let outside = TcpListener::bind("127.0.0.1:0")?;
            outside.set_nonblocking(true)?;
            let url = format!("http://{}/", outside.local_addr()?);
            let tables =
                cluster.number("SELECT count() FROM system.tables WHERE database = currentDatabase()")?;
            let file = cluster.path("written").display().to_string();
            let refused = [
                "INSERT INTO runs (detail) VALUES ('x')".to_owned(),
                "DROP TABLE samples".into(),
                "TRUNCATE TABLE samples".into(),
                "ALTER TABLE samples DELETE WHERE 1".into(),
                "CREATE TABLE mine (x UInt8) ENGINE = Memory".into(),
                "SELECT * FROM file('/etc/passwd', 'LineAsString')".into(),
                "SELECT file('/etc/passwd')".into(),
                "DESCRIBE TABLE file('/etc/passwd', 'LineAsString')".into(),
                format!("SELECT * FROM url('{url}', 'LineAsString')"),
                format!("DESCRIBE TABLE url('{url}', 'LineAsString')"),
                format!("SELECT 1 INTO OUTFILE '{file}'"),
                "KILL QUERY WHERE 1".into(),
                "SYSTEM SHUTDOWN".into(),
            ];
            for sql in &refused {
                let output = cluster.strobe_output(&["query", sql])?;
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(
                    output.status.code() == Some(1)
                        && said.starts_with("strobe: ")
                        && output.stdout.is_empty(),
                    "strobe query {sql}: {said}"
                );
                ensure!(!said.contains("panicked"), "{sql}: {said}");
                let (status, body) = cluster.http(User::Reader, sql)?;
                ensure!(
                    status >= 400 && body.contains("Code: "),
                    "{sql}: {status}: {body}"
                );
                ensure!(!body.contains("root:"), "{sql} reads files: {body}");
            }
            ensure!(!cluster.path("written").exists(), "a file was written");
            ensure!(outside.accept().is_err(), "somebody was called");
            let left =
                cluster.number("SELECT count() FROM system.tables WHERE database = currentDatabase()")?;
            ensure!(left == tables, "{tables} tables became {left}");
            ensure!(
                cluster.number("SELECT count() FROM runs")? == 0.0,
                "a row was written"
            );
            Ok(())
        },
    )
}
