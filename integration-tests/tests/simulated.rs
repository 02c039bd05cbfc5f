//! A simulated fleet on a real bus: what tuners, processor and store make of it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, executable, journey};

/// A fleet of two services, of which one shares its hosts with the other, for a day.
const FLEET: &str = r#"
name = "Two services, a day"
days = 1
cpus = 8.0
[[service]]
name = "web"
desired = 3000.0
busy = 2.0
swing = 2.0
peak_hour = 14.0
noise = 0.2
function = [{ share = 0.3 }]
[[service]]
name = "batch"
desired = 3000.0
busy = 1.0
[[hosts]]
count = 12
services = ["web", "batch"]
[[hosts]]
count = 6
services = ["web"]
"#;

/// Lets the fleet report to real tuners, and returns their plans, and the errors of the stored totals in per cent.
fn simulated(cluster: &Cluster, disturbed: bool) -> Result<(Vec<serde_json::Value>, Vec<f64>)> {
    let parts = [cluster.run("processor", None)?, cluster.run("sink", None)?];
    let mut tuners = vec![cluster.run("tuner", None)?];
    if disturbed {
        tuners.push(cluster.run("tuner", None)?);
    }
    let scenario = cluster.path("fleet.toml");
    fs::write(&scenario, FLEET)?;
    let out = cluster.path("simulate.out");
    let mut command = Command::new(executable("strobe")?);
    command.arg("--config").arg(cluster.path("strobe.toml"));
    command.arg("simulate").arg(&scenario).arg("--through-bus");
    let mut fleet = command.stdout(fs::File::create(&out)?).spawn()?;
    if disturbed {
        // One goes, and another comes, while the day passes.
        cluster.wait_for("the first windows are closed", || {
            let plans = cluster.json(&["sampling", "show", "-o", "json"]);
            plans.is_ok_and(|plans| plans.as_array().is_some_and(|plans| plans.len() == 2))
        })?;
        tuners.remove(0).stop()?;
        tuners.push(cluster.run("tuner", None)?);
        ensure!(
            fleet.try_wait()?.is_none(),
            "the day was over before a tuner went"
        );
    }
    let ended = fleet.wait()?;
    let text = fs::read_to_string(&out)?;
    println!("{text}");
    ensure!(ended.success(), "the simulation ended with {ended}");
    let plans = cluster.json(&["sampling", "show", "-o", "json"])?;
    let plans = plans.as_array().context("no plans")?.clone();
    // It wants as much as the other, which uses a third of its CPU time: on the hosts of both it is sampled as often as that needs.
    let why = cluster.strobe(&["sampling", "explain", "web"])?;
    ensure!(why.contains("of 18 hosts, that of `batch` on 12"), "{why}");
    // By night, at the end of the day, it uses less.
    for (service, least, most) in [("web", 4_800.0, 5_800.0), ("batch", 2_700.0, 3_300.0)] {
        let plan = plans.iter().find(|plan| plan["service"] == service);
        let expected = plan.and_then(|plan| plan["expected_per_hour"].as_f64());
        ensure!(
            expected.is_some_and(|expected| (least..most).contains(&expected)),
            "{service}: {plan:?}"
        );
    }
    let errors = text
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with("web ") || line.starts_with("batch "))
        .filter_map(|line| line.split_whitespace().last()?.parse().ok())
        .collect();
    for part in parts.into_iter().chain(tuners) {
        part.stop()?;
    }
    Ok((plans, errors))
}

/// Checks that a simulated fleet on a real bus, with real tuners, processor and store, has the rates and totals that it should; and that
/// two tuners that share the partitions, of which one goes and another comes, make the very plans that one alone makes.
#[test]
fn a_simulated_fleet_goes_through_the_bus() -> Result<()> {
    let mut found = Vec::new();
    // Each in topics and tables of its own.
    for (name, disturbed) in [
        ("simulated_fleet", false),
        ("simulated_fleet_of_two_tuners", true),
    ] {
        journey(name, &[], |cluster| {
            found.push(simulated(cluster, disturbed)?);
            Ok(())
        })?;
    }
    let [(alone, errors), (shared, again)] = &found[..] else {
        return Ok(());
    };
    for error in errors.iter().chain(again) {
        // 72,000 samples in a day, from some 3,000 runs.
        ensure!(error.abs() < 6.0, "{error} %");
    }
    ensure!(
        (errors.len(), again.len(), alone.len()) == (2, 2, 2),
        "{errors:?} {again:?} {alone:?}"
    );
    for (one, other) in alone.iter().zip(shared) {
        for key in ["run_probability", "frequency_hz", "planned_us"] {
            let number = |plan: &serde_json::Value| plan[key].as_f64().unwrap_or(f64::NAN);
            let differ = (number(one) / number(other) - 1.0).abs();
            ensure!(differ < 1e-6, "{key}: {one} {other}");
        }
    }
    Ok(())
}
