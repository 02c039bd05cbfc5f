//! Stacks of programs that frame pointers do not lead through, from the kernel to the store.

mod support;

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use strobe_integration_tests::{Cluster, Need, Part, journey, repository};
use support::truth::{adds_up, caught_up};
use support::workload::build;

/// Samples of each service that are looked at.
const SAMPLES: f64 = 2_000.0;
/// Until the service's binary is in the symbol store: on a host full of large ones it has to wait for its turn.
const NAMED: Duration = Duration::from_secs(240);
/// Whole stacks among them, at least, per cent.
const WHOLE: f64 = 99.5;

/// Starts a workload of the demo as a service of that name.
fn start(cluster: &Cluster, name: &str, program: &str, arguments: &[&str]) -> Result<Part> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("STROBE_SERVICE", name)
        .env("REPORT_CPU_SHARE", "0.5");
    Part::start(name, &command, &cluster.path(&format!("{name}.log")))
}

/// Checks that one query finds the function, the file and the line that copies plain data, although the copy itself is the C
/// library's, without a frame pointer; and that stacks of the distribution's Python and bash reach their beginning, as
/// `strobe status` says of each.
#[test]
fn a_copy_of_plain_data_is_found_by_function_file_and_line() -> Result<()> {
    journey(
        "a_copy_of_plain_data_is_found_by_function_file_and_line",
        &[
            Need::Profiling,
            Need::Program("g++"),
            Need::Program("/usr/bin/python3"),
        ],
        |cluster| {
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let demo = repository().join("infra/demo");
            let (catalog, report) = (build(cluster)?.join("catalog"), demo.join("report.py"));
            let tally = demo.join("tally.sh");
            let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
            let _running = [
                start(cluster, "catalog", &text(&catalog), &["0.5"])?,
                start(cluster, "report", "/usr/bin/python3", &[&text(&report)])?,
                start(cluster, "tally", &text(&tally), &[])?,
            ];
            let agent = cluster.agent(&["--frequency", "997"], None)?;
            // Names come once the binary is in the symbol store, whole stacks once there are tables.
            let ready = |sql: &str| cluster.number(sql).is_ok_and(|rows| rows > 0.0);
            cluster.wait_longer("the service's functions have names", NAMED, || {
                ready("SELECT count() FROM sample_frames WHERE service = 'catalog' AND function LIKE 'reprice(%'")
            })?;
            let settled = cluster.number("SELECT toUnixTimestamp64Micro(max(time)) FROM samples")?;
            let since = format!("time > fromUnixTimestamp64Micro({settled:.0})");
            for service in ["catalog", "report", "tally"] {
                cluster.wait_for("enough samples", || {
                    let sql = format!(
                        "SELECT count() >= {SAMPLES} FROM samples WHERE service = '{service}' AND {since}"
                    );
                    ready(&sql)
                })?;
            }
            agent.stop()?;
            caught_up(cluster)?;
            adds_up(cluster)?;
            for service in ["catalog", "report", "tally"] {
                let whole = cluster.number(&format!(
                    "SELECT 100 * countIf(k.end IN ('root', 'kernel_only', 'in_exec')) / count() FROM (SELECT toUInt64(stack) AS \
                     stack FROM samples WHERE service = '{service}' AND {since}) AS s INNER JOIN (SELECT stack, any(end) AS end \
                     FROM stacks GROUP BY stack) AS k ON s.stack = k.stack"
                ))?;
                println!("{service}: {whole:.2} % of the stacks are whole");
                ensure!(whole >= WHOLE, "{service}: {whole} %");
            }
            let sql = fs::read_to_string(repository().join("integration-tests/data/plain_copy.sql"))?;
            let rows = cluster.json(&["query", "-o", "json", "--", &sql])?;
            let source = fs::read_to_string(demo.join("catalog.cpp"))?;
            let line = source
                .lines()
                .position(|line| line.contains("auto items = catalog.items();"));
            let found = &rows[0];
            let says = |column: &str, test: &dyn Fn(&str) -> bool| found[column].as_str().is_some_and(test);
            ensure!(says("function", &|name| name.starts_with("reprice(")), "{rows}");
            ensure!(says("file", &|file| file.ends_with("/catalog.cpp")), "{rows}");
            ensure!(
                found["line"].as_u64() == line.map(|line| line as u64 + 1),
                "{rows}"
            );
            let status = cluster.json(&["status", "--since", "-1h", "-o", "json"])?;
            let stacks = status["stacks"].as_array().map_or(&[][..], Vec::as_slice);
            let told = stacks.iter().filter(|service| {
                ["catalog", "report", "tally"]
                    .iter()
                    .any(|name| service["service"].as_str() == Some(name))
            });
            ensure!(told.count() == 3, "{status}");
            processor.stop()?;
            sink.stop()
        },
    )
}
