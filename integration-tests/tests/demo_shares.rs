//! From this host's CPUs to an answer: what the profile says of the demo service is what its own clock says.

mod support;

use std::fs;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, Need, journey, repository};
use support::truth::{adds_up, caught_up};
use support::workload::{Line, Orders};

const PHASES: [&str; 4] = [
    "apply_discounts",
    "match_inventory",
    "serialize_orders",
    "sign_lines",
];
/// Half the width of a 99.9 % interval, in standard deviations.
const DEVIATIONS: f64 = 3.29;
/// CPU time of the service that is looked at: 11,465 ticks of 997 Hz.
const CPU_NS: f64 = 11.5e9;

/// Samples of the service per second, and those of them with the function: what a share and its spread are made of.
fn by_second(cluster: &Cluster, span: &str, function: &str) -> Result<Vec<(f64, f64)>> {
    let rows = cluster.rows(&format!(
        "SELECT count(), countIf(found) FROM (SELECT epoch, sequence, part, tid, time, cpu, max(function LIKE '{function}(%') AS \
         found FROM sample_frames WHERE {span} GROUP BY ALL) GROUP BY toStartOfSecond(time)"
    ))?;
    let number = |text: &String| text.parse::<f64>().context("no number");
    rows.iter()
        .map(|row| Ok((number(&row[0])?, number(&row[1])?)))
        .collect()
}

/// Returns the share and how many independent samples it is worth: seconds are the units, since neighbours are alike.
fn share(seconds: &[(f64, f64)]) -> (f64, f64) {
    let all: f64 = seconds.iter().map(|second| second.0).sum();
    let share = seconds.iter().map(|second| second.1).sum::<f64>() / all;
    let units = seconds.len() as f64;
    let squares: f64 = seconds
        .iter()
        .map(|(all, found)| (found - share * all).powi(2))
        .sum();
    let variance = units / (units - 1.0) * squares / (all * all);
    (share, all.min(share * (1.0 - share) / variance))
}

fn shares_agree(cluster: &Cluster, first: &Line, last: &Line) -> Result<()> {
    let (from, to) = (first.time_us, last.time_us);
    let span = format!(
        "service = 'orders' AND time >= fromUnixTimestamp64Micro({from}) AND time < fromUnixTimestamp64Micro({to})"
    );
    for phase in PHASES {
        let seconds = by_second(cluster, &span, phase)?;
        let samples: f64 = seconds.iter().map(|second| second.0).sum();
        ensure!(samples >= 10_000.0, "only {samples} samples of the service");
        let (found, worth) = share(&seconds);
        let truth = (last.phase(phase)? - first.phase(phase)?) / (last.thread_cpu_ns - first.thread_cpu_ns);
        let interval = DEVIATIONS * (truth * (1.0 - truth) / worth).sqrt();
        println!(
            "{phase}: {:.2} % found, {:.2} % by its clock, ± {:.2} ({samples} samples, worth {worth:.0})",
            100.0 * found,
            100.0 * truth,
            100.0 * interval
        );
        ensure!(
            (found - truth).abs() <= interval.max(0.01),
            "{phase}: {:.2} % found, {:.2} % by its clock, ± {:.2}",
            100.0 * found,
            100.0 * truth,
            100.0 * interval
        );
    }
    Ok(())
}

/// Returns the number of the line of `orders.cpp` that holds `text`.
fn line_of(text: &str) -> Result<u64> {
    let source = fs::read_to_string(repository().join("infra/demo/orders.cpp"))?;
    let line = source.lines().position(|line| line.contains(text));
    Ok(line.with_context(|| format!("orders.cpp has no {text}"))? as u64 + 1)
}

/// Checks that the one query of the README finds who copies the vector: function, file and line.
fn the_copy_is_found(cluster: &Cluster) -> Result<()> {
    let sql = fs::read_to_string(repository().join("integration-tests/data/missing_ampersand.sql"))?;
    let readme = fs::read_to_string(repository().join("README.md"))?;
    ensure!(readme.contains(sql.trim()), "the README shows another query");
    let rows = cluster.json(&["query", "-o", "json", "--", &sql])?;
    let found = &rows[0];
    ensure!(
        found["caller"]
            .as_str()
            .is_some_and(|name| name.starts_with("apply_discounts(")),
        "{rows}"
    );
    ensure!(
        found["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("/orders.cpp")),
        "{rows}"
    );
    let line = line_of("auto lines = order.lines();")?;
    ensure!(
        found["line"].as_u64() == Some(line),
        "{rows}: the copy is in line {line}"
    );
    Ok(())
}

/// Checks that the inclusive share of each known function is that of the service's own clock, that the inlined one has its
/// file and line, and that one query finds the line that copies a vector.
#[test]
fn the_shares_of_the_demo_are_those_of_its_own_clock() -> Result<()> {
    journey(
        "the_shares_of_the_demo_are_those_of_its_own_clock",
        &[Need::Profiling, Need::Program("g++")],
        |cluster| {
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let orders = Orders::start(cluster)?;
            cluster.wait_for("the service reports", || orders.clock().is_ok())?;
            let agent = cluster.agent(&["--frequency", "997"], None)?;
            // Names come once the binary is in the symbol store.
            cluster.wait_for("the service's functions have names", || {
            let sql = "SELECT count() FROM sample_frames WHERE service = 'orders' AND function LIKE 'match_inventory(%'";
            cluster.number(sql).is_ok_and(|rows| rows > 0.0)
        })?;
            let first = orders.clock()?;
            cluster.wait_for("the service has used 11.5 s of CPU", || {
                orders
                    .clock()
                    .is_ok_and(|now| now.thread_cpu_ns - first.thread_cpu_ns >= CPU_NS)
            })?;
            let last = orders.clock()?;
            agent.stop()?;
            caught_up(cluster)?;
            adds_up(cluster)?;
            shares_agree(cluster, &first, &last)?;
            let inlined = cluster.rows(
            "SELECT DISTINCT line FROM sample_frames WHERE service = 'orders' AND function LIKE 'sign_lines(%' AND inlined AND \
             file LIKE '%/orders.cpp' ORDER BY line",
        )?;
            let begins = line_of("sign_lines(")?;
            ensure!(
                !inlined.is_empty()
                    && inlined.iter().all(|row| row[0]
                        .parse()
                        .is_ok_and(|line: u64| (begins..begins + 60).contains(&line))),
                "sign_lines begins in line {begins}; its samples are in {inlined:?}"
            );
            the_copy_is_found(cluster)?;
            processor.stop()?;
            sink.stop()
        },
    )
}
