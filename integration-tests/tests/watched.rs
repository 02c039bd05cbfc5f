//! What operators watch: a real Prometheus reads every process, and probes tell alive from able.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use strobe_integration_tests::stack::free_ports;
use strobe_integration_tests::{Cluster, Need, Part, journey, repository};
use strobe_telemetry::METRICS;

fn get(url: &str) -> Result<(u16, String)> {
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "10", "-w", "\n%{http_code}", url])
        .output()?;
    ensure!(
        output.status.success(),
        "{url}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let (body, code) = text.rsplit_once('\n').context("no status")?;
    Ok((code.parse()?, body.to_owned()))
}

/// The ports of agent, processor, sink and tuner.
fn watched(cluster: &Cluster) -> Result<[u16; 4]> {
    let ports = [free_ports()?, free_ports()?, free_ports()?, free_ports()?];
    cluster.set_agent("", "admin", &format!("\"127.0.0.1:{}\"", ports[0]))?;
    cluster.set_strobe("admin", "processor", &format!("\"127.0.0.1:{}\"", ports[1]))?;
    cluster.set_strobe("admin", "sink", &format!("\"127.0.0.1:{}\"", ports[2]))?;
    cluster.set_strobe("admin", "tuner", &format!("\"127.0.0.1:{}\"", ports[3]))?;
    Ok(ports)
}

/// Checks that Prometheus can read all that agent, processor, sink and tuner say, that it finds every metric of the list in it, and that
/// the figures are those of the store.
#[test]
fn prometheus_finds_every_metric() -> Result<()> {
    let needs = [Need::Profiling, Need::Program("prometheus")];
    journey("prometheus_finds_every_metric", &needs, |cluster| {
        let ports = watched(cluster)?;
        let (_processor, _sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
        let _tuner = cluster.run("tuner", None)?;
        let _agent = cluster.agent(&[], None)?;
        let targets = ["agent", "processor", "sink", "tuner"]
            .iter()
            .zip(ports)
            .map(|(job, port)| {
                format!("  - {{job_name: {job}, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n")
            });
        let config = cluster.path("prometheus.yaml");
        let rules = repository().join("infra/dashboards/alerts.yaml");
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n{}",
                rules.display(),
                targets.collect::<String>()
            ),
        )?;
        let port = free_ports()?;
        let mut command = Command::new("prometheus");
        command
            .arg("--config.file")
            .arg(&config)
            .arg(format!(
                "--storage.tsdb.path={}",
                cluster.path("prometheus").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let _prometheus = Part::start("prometheus", &command, &cluster.path("prometheus.log"))?;
        let ask = |query: &str| -> Result<Vec<Value>> {
            let (_, body) = get(&format!("http://127.0.0.1:{port}/api/v1/query?query={query}"))?;
            let answer: Value = serde_json::from_str(&body)?;
            Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
        };
        cluster.wait_for("Prometheus reads all four and samples are stored", || {
            let up = ask("up==1").is_ok_and(|up| up.len() == 4);
            up && ask("strobe_sink_samples_total>0").is_ok_and(|found| found.len() == 1)
        })?;
        let (_, body) = get(&format!("http://127.0.0.1:{port}/api/v1/label/__name__/values"))?;
        let answer: Value = serde_json::from_str(&body)?;
        let names = answer["data"].as_array().context("no names")?;
        let found: BTreeSet<&str> = names.iter().filter_map(Value::as_str).collect();
        let missing: Vec<&str> = METRICS
            .iter()
            .map(|metric| metric.name)
            .filter(|name| !found.contains(name))
            .collect();
        ensure!(missing.is_empty(), "Prometheus does not find {missing:?}");
        println!("{} metrics found", METRICS.len());
        cluster.wait_for("what the sink says is what the store holds", || {
            let said = ask("strobe_sink_samples_total").ok();
            let said = said.and_then(|said| said.first()?["value"][1].as_str()?.parse::<f64>().ok());
            let held = cluster.number("SELECT count() FROM samples").ok();
            // The agent goes on: what came between the two questions is at most some seconds of one host.
            said.zip(held)
                .is_some_and(|(said, held)| said > 0.0 && (held - said).abs() <= 0.2 * held.max(500.0))
        })
    })
}

/// Checks that without the store the sink is alive and not able, and able again when the store is back; and that `strobe health` says
/// the same by its exit code.
#[test]
fn alive_and_able_are_two_things() -> Result<()> {
    journey("alive_and_able_are_two_things", &[], |cluster| {
        let [_, _, port, _] = watched(cluster)?;
        let _sink = cluster.run("sink", None)?;
        let code = |path: &str| get(&format!("http://127.0.0.1:{port}{path}")).map_or(0, |(code, _)| code);
        cluster.wait_for("the sink is able", || code("/-/ready") == 200)?;
        ensure!(cluster.strobe(&["health", "sink", "--ready"])?.trim() == "ok");
        cluster.engine("stop")?;
        // An answer is remembered for ten seconds.
        let not_able = cluster.wait_longer("the sink is not able", Duration::from_secs(60), || {
            code("/-/ready") == 503
        });
        let alive = code("/-/healthy");
        let said = cluster.strobe_output(&["health", "sink", "--ready"])?;
        cluster.engine("start")?;
        not_able?;
        ensure!(
            alive == 200,
            "without the store the sink is not even alive: {alive}"
        );
        ensure!(said.status.code() == Some(1), "{:?}", said.status);
        ensure!(!said.stderr.is_empty(), "it does not say why");
        cluster.wait_for("the sink is able again", || code("/-/ready") == 200)
    })
}
