//! A profile on demand on a real host: from the question to the function, its end, and who may not ask.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use strobe_integration_tests::{Cluster, Need, executable, journey};
use support::truth::{adds_up, caught_up};
use support::workload::Orders;

/// Longest way to the answer of a run of 3 s, on a machine that is busy with other things too; `make bench-on-demand` has the figure.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);

/// Makes a key, and lets the agent's host take requests of the first one.
fn keys(cluster: &Cluster) -> Result<[String; 2]> {
    let mut keys = Vec::new();
    for name in ["ann", "eve"] {
        let file = cluster.path(name);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
            .arg(&file)
            .status()?;
        ensure!(made.success(), "no key");
        keys.push(file.to_string_lossy().into_owned());
    }
    let public = fs::read_to_string(cluster.path("ann.pub"))?;
    let signers = cluster.path("signers.toml");
    let entry = format!(
        "[[signer]]\nprincipal = \"ann\"\nkey = \"{}\"\nmay = [\"profile\", \"cancel\"]\n",
        public.trim()
    );
    fs::write(&signers, entry)?;
    cluster.set_agent("", "signers", &format!("\"{}\"", signers.display()))?;
    let [ann, eve] = [keys[0].clone(), keys[1].clone()];
    Ok([ann, eve])
}

/// Checks that a question finds the function that is hot, on a host that is profiled all of the time anyway; that the continuous run
/// goes on meanwhile and the accounting is whole; that a signature that counts for nothing is refused with its reason; and that
/// Ctrl-C ends the run on the host.
#[test]
fn a_question_finds_the_hot_function() -> Result<()> {
    journey(
        "on_demand",
        &[Need::Profiling, Need::Program("g++"), Need::Program("ssh-keygen")],
        |cluster| {
            let [ann, eve] = keys(cluster)?;
            let _parts = [
                cluster.run("processor", None)?,
                cluster.run("sink", None)?,
                cluster.run("trigger", None)?,
            ];
            let _orders = Orders::start(cluster)?;
            let agent = cluster.agent(&[], None)?;
            cluster.wait_for("the service's functions have names", || {
                let sql = "SELECT count() FROM sample_frames WHERE service = 'orders' AND function LIKE 'match_inventory(%'";
                cluster.number(sql).is_ok_and(|rows| rows > 0.0)
            })?;
            let profile = |key: &str, more: &[&str]| {
                let mut arguments = vec!["profile", "--service", "orders", "--key", key];
                arguments.extend(more);
                cluster.strobe_output(&arguments)
            };

            let began = Instant::now();
            let answer = profile(&ann, &["--duration", "3s", "--frequency", "199", "--json"])?;
            let took = began.elapsed();
            let said = String::from_utf8_lossy(&answer.stderr).into_owned();
            ensure!(answer.status.success(), "{said}");
            let answer: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
            println!("answered after {took:?}");
            ensure!(took < ANSWER_WITHIN, "{took:?}");
            for phase in ["picked", "accepted", "running", "finished"] {
                ensure!(said.contains(phase), "no `{phase}` in: {said}");
            }
            let rows = answer["top"]["rows"].to_string();
            ensure!(
                rows.contains("match_inventory") && rows.contains("orders.cpp"),
                "{rows}"
            );
            let samples = answer["top"]["samples"].as_u64().unwrap_or_default();
            // Of up to 600: a machine that is busy with other things gives the service little time.
            ensure!(samples > 5, "{samples} samples");

            let refused = profile(&eve, &["--duration", "1s"])?;
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            ensure!(
                !refused.status.success() && said.contains("not in the file of signers"),
                "{said}"
            );

            // As a person does it: the question, and Ctrl-C while it runs.
            let child = Command::new(executable("strobe")?)
                .arg("--config")
                .arg(cluster.path("strobe.toml"))
                .args([
                    "profile",
                    "--service",
                    "orders",
                    "--duration",
                    "60s",
                    "--key",
                    &ann,
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            cluster.wait_for("it runs", || {
                cluster
                    .strobe(&["runs", "list"])
                    .is_ok_and(|list| list.lines().last().is_some_and(|line| line.contains("running")))
            })?;
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                kill_process(pid, Signal::INT)?;
            }
            let output = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(!output.status.success() && said.contains("cancelled"), "{said}");
            let list = cluster.json(&["runs", "list", "-o", "json"])?;
            let phases: Vec<&str> = list
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|request| request["phase"].as_str())
                .collect();
            ensure!(phases == ["finished", "refused", "cancelled"], "{list}");

            agent.stop()?;
            caught_up(cluster)?;
            adds_up(cluster)
        },
    )
}
