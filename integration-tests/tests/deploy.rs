//! What is deployed, as files: the chart, the units, the rules for alerts, the dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use strobe_integration_tests::{home, repository, skipped};
use strobe_telemetry::METRICS;

/// Returns a program of the path or of `$STROBE_HOME/tools/bin`, where people put what they build for themselves.
fn program(test: &str, name: &str, remedy: &str) -> Option<PathBuf> {
    let own = home().join("tools/bin").join(name);
    if own.exists() {
        return Some(own);
    }
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {name}")])
        .output();
    let path = found.ok().filter(|output| output.status.success());
    if path.is_none() {
        skipped(test, &format!("{name} is not installed: {remedy}"));
    }
    path.map(|_| PathBuf::from(name))
}

const HELM: &str = "go install helm.sh/helm/v3/cmd/helm@v3.19.0, with GOBIN=$STROBE_HOME/tools/bin";
/// Values that switch on everything that is off.
const EVERYTHING: &str = "busSecrets.agent=a,busSecrets.processor=p,busSecrets.sink=s,busSecrets.trigger=t,busSecrets.setup=u,\
                          symbols.existingClaim=c,networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b";

fn helm(helm: &PathBuf, arguments: &[&str]) -> Result<String> {
    let output = Command::new(helm)
        .args(arguments)
        // A helm that is built from its module does not know which Kubernetes it is for.
        .args(["--kube-version", "1.31.0"])
        .current_dir(repository().join("infra/helm"))
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "helm {arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Reads each document of a YAML stream as JSON: by another chart of one template, so that the reader is Helm's own.
const READER: &str = r#"{{ range $document := splitList "\n---\n" (.Files.Get "all.yaml") }}
---
{{ $document | fromYaml | toJson }}
{{ end }}"#;

/// Returns every object that the chart makes.
fn rendered(program: &PathBuf, values: &str) -> Result<Vec<Value>> {
    let text = helm(program, &["template", "test", "strobe", "--set", values])?;
    let reader = tempfile::tempdir()?;
    fs::create_dir(reader.path().join("templates"))?;
    fs::write(
        reader.path().join("Chart.yaml"),
        "apiVersion: v2\nname: reader\nversion: 0.0.1\n",
    )?;
    fs::write(reader.path().join("all.yaml"), text.trim_start_matches("---\n"))?;
    fs::write(reader.path().join("templates/all.yaml"), READER)?;
    let text = helm(
        program,
        &["template", "test", &reader.path().display().to_string()],
    )?;
    let objects = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str);
    let objects: Vec<Value> = objects.collect::<Result<_, _>>()?;
    ensure!(
        objects.iter().all(|object| object["kind"].is_string()),
        "an object was not read: {objects:?}"
    );
    Ok(objects)
}

fn name(object: &Value) -> String {
    format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "")
}

/// Returns where an object breaks the *restricted* pod security standard, as "rule: value".
fn broken_rules(pod: &Value) -> BTreeSet<String> {
    let mut broken = BTreeSet::new();
    let mut rule = |holds: bool, what: String| {
        if !holds {
            broken.insert(what);
        }
    };
    for key in ["hostPID", "hostIPC", "hostNetwork"] {
        rule(pod[key] != json!(true), format!("{key}: true"));
    }
    let volumes = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        let kinds = volume.as_object().into_iter().flat_map(|volume| volume.keys());
        for kind in kinds.filter(|kind| *kind != "name") {
            rule(volumes.contains(&kind.as_str()), format!("volume: {kind}"));
        }
    }
    let all = &pod["securityContext"];
    let containers = ["initContainers", "containers", "ephemeralContainers"];
    for container in containers
        .iter()
        .flat_map(|kind| pod[*kind].as_array().into_iter().flatten())
    {
        let own = &container["securityContext"];
        let either = |key: &str| if own[key].is_null() { &all[key] } else { &own[key] };
        rule(own["privileged"] != json!(true), "privileged: true".into());
        rule(
            own["allowPrivilegeEscalation"] == json!(false),
            "allowPrivilegeEscalation".into(),
        );
        rule(either("runAsNonRoot") == &json!(true), "runAsNonRoot".into());
        rule(either("runAsUser") != &json!(0), "runAsUser: 0".into());
        let seccomp = either("seccompProfile")["type"].as_str();
        rule(
            seccomp.is_some_and(|kind| kind != "Unconfined"),
            "seccompProfile".into(),
        );
        let dropped = own["capabilities"]["drop"].as_array();
        rule(
            dropped.is_some_and(|dropped| dropped.contains(&json!("ALL"))),
            "capabilities.drop".into(),
        );
        for added in own["capabilities"]["add"].as_array().into_iter().flatten() {
            rule(
                added == "NET_BIND_SERVICE",
                format!("capabilities.add: {}", added.as_str().unwrap_or_default()),
            );
        }
        for port in container["ports"].as_array().into_iter().flatten() {
            rule(port["hostPort"].is_null(), "hostPort".into());
        }
    }
    broken
}

/// Checks that every pod of the chart keeps to the restricted rules, but the agent's, whose exceptions are these and no others.
#[test]
fn every_pod_but_the_agents_is_restricted() -> Result<()> {
    let Some(program) = program("every_pod_but_the_agents_is_restricted", "helm", HELM) else {
        return Ok(());
    };
    let exceptions: BTreeSet<String> = [
        "hostPID: true",
        "allowPrivilegeEscalation",
        "capabilities.add: BPF",
        "capabilities.add: PERFMON",
        "capabilities.add: SYSLOG",
        "capabilities.add: SYS_PTRACE",
        "capabilities.add: DAC_READ_SEARCH",
        "capabilities.add: CHECKPOINT_RESTORE",
    ]
    .map(str::to_owned)
    .into();
    let mut pods = 0;
    for object in rendered(&program, EVERYTHING)? {
        let template = &object["spec"]["template"];
        if template.is_null() {
            continue;
        }
        pods += 1;
        let (who, broken) = (name(&object), broken_rules(&template["spec"]));
        let agent = object["kind"] == "DaemonSet";
        ensure!(
            broken
                == if agent {
                    exceptions.clone()
                } else {
                    BTreeSet::new()
                },
            "{who}: {broken:?}"
        );
        let unconfined: Vec<&String> = template["metadata"]["annotations"]
            .as_object()
            .into_iter()
            .flat_map(|annotations| annotations.keys())
            .filter(|key| key.contains("apparmor"))
            .collect();
        ensure!(unconfined.len() == usize::from(agent), "{who}: {unconfined:?}");
        for container in template["spec"]["containers"].as_array().into_iter().flatten() {
            ensure!(
                container["securityContext"]["readOnlyRootFilesystem"] == true,
                "{who} may write its root"
            );
            ensure!(
                !container["resources"]["limits"]["memory"].is_null(),
                "{who} has no limit on memory"
            );
        }
    }
    ensure!(
        pods == 5,
        "{pods} pods: agent, processor, sink, trigger and setup were expected"
    );
    Ok(())
}

/// Checks that the chart lints, holds no secret, lets each role see its own secrets alone, and closes every pod's network.
#[test]
fn the_chart_keeps_secrets_apart() -> Result<()> {
    let Some(program) = program("the_chart_keeps_secrets_apart", "helm", HELM) else {
        return Ok(());
    };
    helm(&program, &["lint", "--strict", "strobe"])?;
    let objects = rendered(&program, EVERYTHING)?;
    ensure!(
        objects.iter().all(|object| object["kind"] != "Secret"),
        "the chart makes a secret"
    );
    let secrets = |kind: &str, part: &str| -> BTreeSet<String> {
        let found = objects
            .iter()
            .find(|object| object["kind"] == kind && name(object).ends_with(part));
        let volumes = found.and_then(|object| object["spec"]["template"]["spec"]["volumes"].as_array());
        let names = volumes
            .into_iter()
            .flatten()
            .filter_map(|volume| volume["secret"]["secretName"].as_str());
        names.map(str::to_owned).collect()
    };
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    ensure!(secrets("DaemonSet", "agent") == set(&["a"]));
    ensure!(secrets("Deployment", "processor") == set(&["p"]));
    ensure!(secrets("Deployment", "sink") == set(&["s", "strobe-clickhouse-writer"]));
    ensure!(secrets("Deployment", "trigger") == set(&["t"]));
    ensure!(secrets("Job", "setup") == set(&["u", "strobe-clickhouse-writer"]));
    for part in ["agent", "processor", "sink", "trigger", "setup"] {
        let policy = objects
            .iter()
            .find(|object| object["kind"] == "NetworkPolicy" && name(object).ends_with(part))
            .with_context(|| format!("{part} has no network policy"))?;
        ensure!(
            policy["spec"]["policyTypes"] == json!(["Ingress", "Egress"]),
            "{part}"
        );
        let to = policy["spec"]["egress"].to_string();
        ensure!(
            to.contains("8123") == matches!(part, "sink" | "setup"),
            "{part} reaches ClickHouse, or cannot: {to}"
        );
    }
    // Without values that name them there are none at all, and what is left renders too.
    for object in rendered(&program, "networkPolicy.enabled=false,setup.enabled=false")? {
        ensure!(
            object["kind"] != "NetworkPolicy" && object["kind"] != "Job",
            "{}",
            name(&object)
        );
    }
    Ok(())
}

/// Checks that the chart's versions are those of the workspace.
#[test]
fn the_charts_version_is_ours() -> Result<()> {
    let chart = fs::read_to_string(repository().join("infra/helm/strobe/Chart.yaml"))?;
    for key in ["version", "appVersion"] {
        let line = format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"));
        ensure!(chart.contains(&line), "Chart.yaml does not say `{}`", line.trim());
    }
    Ok(())
}

/// Checks that the units are hardened: by systemd's own score at most 2.5, and 3.5 for the agent, which needs more.
#[test]
fn units_are_hardened() -> Result<()> {
    let Some(program) = program("units_are_hardened", "systemd-analyze", "apt-get install systemd") else {
        return Ok(());
    };
    for (unit, most) in [("agent", 35), ("processor", 25), ("sink", 25), ("trigger", 25)] {
        let path = repository().join(format!("infra/systemd/strobe-{unit}.service"));
        let output = Command::new(&program)
            .args([
                "security",
                "--offline=true",
                &format!("--threshold={most}"),
                "--no-pager",
            ])
            .arg(&path)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let score = said
            .lines()
            .rev()
            .find(|line| line.contains("exposure level"))
            .unwrap_or_default();
        println!("{unit}: {score}");
        ensure!(
            !score.is_empty() && output.status.success(),
            "{unit} is over {most}: {said}"
        );
    }
    Ok(())
}

/// Checks that the alerts do what they say with sample series, by Prometheus' own tool.
#[test]
fn alerts_are_tested_by_promtool() -> Result<()> {
    let Some(program) = program(
        "alerts_are_tested_by_promtool",
        "promtool",
        "apt-get install prometheus",
    ) else {
        return Ok(());
    };
    let output = Command::new(program)
        .args(["test", "rules", "alerts.test.yaml"])
        .current_dir(repository().join("infra/dashboards"))
        .output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Returns the words of a text that look like metrics.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
        .filter(|word| word.starts_with("strobe_"))
        .collect()
}

/// Checks that every metric that alerts and the dashboard use is in the list of metrics, and that the runbook and the tests for
/// promtool know each alert.
#[test]
fn alerts_and_dashboard_use_metrics_that_exist() -> Result<()> {
    let read = |path: &str| fs::read_to_string(repository().join(path));
    let (alerts, tests) = (
        read("infra/dashboards/alerts.yaml")?,
        read("infra/dashboards/alerts.test.yaml")?,
    );
    let (dashboard, runbook) = (read("infra/dashboards/strobe.json")?, read("docs/runbook.md")?);
    let known: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    let used: BTreeSet<&str> = metrics_in(&alerts)
        .into_iter()
        .chain(metrics_in(&dashboard))
        .collect();
    ensure!(used.len() > 20, "only {used:?}: has the pattern lost its form?");
    let unknown: Vec<_> = used.difference(&known).collect();
    ensure!(unknown.is_empty(), "{unknown:?} are no metrics");
    let _: Value = serde_json::from_str(&dashboard)?;
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    ensure!(
        rules.len() > 10,
        "only {} alerts: has the file lost its form?",
        rules.len()
    );
    for rule in rules {
        let alert = rule.lines().next().unwrap_or_default();
        ensure!(
            runbook.contains(&format!("**{alert}**")),
            "docs/runbook.md does not know {alert}"
        );
        ensure!(
            tests.contains(&format!("alertname: {alert}")),
            "no test knows {alert}"
        );
        ensure!(
            rule.contains("first_step: "),
            "{alert} does not say what to do first"
        );
    }
    Ok(())
}
