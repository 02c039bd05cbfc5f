//! Mistakes and missing parts are answered by what is wrong and what to do, with an exit code, never by a stack trace.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Result, anyhow, ensure};
use strobe_integration_tests::{Need, executable, missing, repository, skipped};

/// A program, its arguments, its exit code, and what it must say.
type Case<'a> = (&'a str, Vec<&'a str>, i32, &'a [&'a str]);

fn run(program: &Path, arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(program)
        .args(arguments)
        // Somebody who asks for backtraces still gets a message.
        .env("RUST_BACKTRACE", "1")
        .env_remove("STROBE_CONFIG")
        .env_remove("STROBE_AGENT_CONFIG")
        .stdin(Stdio::null())
        .output()?)
}

/// Checks that an answer has the exit code, names the things, and is a message for people.
fn says(what: &str, output: &Output, code: i32, named: &[&str]) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(code),
        "{what}: {:?} instead of {code}: {text}",
        output.status.code()
    );
    for name in named {
        ensure!(text.contains(name), "{what} does not say `{name}`: {text}");
    }
    for trace in [
        "stack backtrace",
        "panicked",
        "Traceback (most recent call last)",
        "\tat ",
        "RUST_BACKTRACE",
    ] {
        ensure!(!text.contains(trace), "{what}: {text}");
    }
    Ok(())
}

fn folder() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir()?)
}

/// Checks that a key that nobody knows is answered by the nearest one, a value that cannot be by its rule, a part that does not
/// answer by its address, each with what to do.
#[test]
fn mistakes_and_missing_parts_are_answered_by_what_to_do() -> Result<()> {
    let folder = folder()?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = folder.path().join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let unknown = file("unknown.toml", "[bus]\nbootstrapp = \"x\"\n")?;
    let option = file("option.toml", "[bus.options]\n\"linger.sm\" = 5\n")?;
    let agent = file("agent.toml", "frequenzy_hz = 99\n")?;
    let low = file("low.toml", "frequency_hz = 0\n")?;
    let strobe: Vec<Case> = vec![
        (
            "strobe",
            vec!["--config", &unknown, "status"],
            78,
            &["bootstrapp", "did you mean `bootstrap`?", "unknown.toml"],
        ),
        (
            "strobe",
            vec!["--config", &option, "topics", "apply"],
            78,
            &["bus.options.linger.sm"],
        ),
        (
            "strobe",
            vec!["--config", "/nowhere/strobe.toml", "top"],
            78,
            &["/nowhere/strobe.toml"],
        ),
        (
            "strobe-agent",
            vec!["check", "--config", &agent],
            78,
            &["frequenzy_hz", "did you mean `frequency_hz`?"],
        ),
        (
            "strobe-agent",
            vec!["run", "--config", &low],
            78,
            &["frequency_hz", "101"],
        ),
        (
            "strobe",
            vec!["--bootstrap", "127.0.0.1:1", "topics", "apply"],
            69,
            &["127.0.0.1:1", "bus.bootstrap"],
        ),
        (
            "strobe",
            vec!["--bootstrap", "127.0.0.1:1", "dlq", "list"],
            69,
            &["127.0.0.1:1", "bus.bootstrap"],
        ),
        (
            "strobe",
            vec!["--bootstrap", "kafka", "dlq", "list"],
            78,
            &["`kafka`", "host:port"],
        ),
        (
            "strobe",
            vec!["--clickhouse", "http://127.0.0.1:1", "top"],
            69,
            &["127.0.0.1:1", "clickhouse.url"],
        ),
        (
            "strobe",
            vec!["--clickhouse", "http://127.0.0.1:1", "status"],
            69,
            &["127.0.0.1:1", "clickhouse.url"],
        ),
        (
            "strobe",
            vec!["run", "processor"],
            78,
            &["processor.symbol_store"],
        ),
        ("strobe", vec!["top", "--since", "yesterday"], 2, &["-15m"]),
        ("strobe", vec!["top", "--focus", "("], 2, &["--focus"]),
    ];
    // Side by side: some wait for 10 s for a broker that is not there.
    std::thread::scope(|scope| {
        let ask = |(program, arguments, code, named): Case<'_>| -> Result<()> {
            let output = run(&executable(program)?, &arguments)?;
            says(&format!("{program} {arguments:?}"), &output, code, named)
        };
        let asked: Vec<_> = strobe
            .into_iter()
            .map(|case| scope.spawn(move || ask(case)))
            .collect();
        asked
            .into_iter()
            .try_for_each(|answer| answer.join().map_err(|_| anyhow!("a case panicked"))?)
    })
}

/// Checks that `strobe doctor` names what does not answer and what to do, and ends with 1.
#[test]
fn the_doctor_names_what_does_not_work() -> Result<()> {
    let arguments = [
        "--bootstrap",
        "127.0.0.1:1",
        "--clickhouse",
        "http://127.0.0.1:1",
        "doctor",
        "-o",
        "json",
    ];
    let output = run(&executable("strobe")?, &arguments)?;
    says("strobe doctor", &output, 1, &[])?;
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let checks = checks.as_array().map(Vec::as_slice).unwrap_or_default();
    for name in ["broker", "ClickHouse"] {
        let check = checks.iter().find(|check| check["check"] == name);
        ensure!(
            check.is_some_and(
                |check| check.to_string().contains("failed") && check.to_string().contains("127.0.0.1:1")
            ),
            "{name}: {checks:?}"
        );
    }
    Ok(())
}

/// Checks that a kernel without BTF, and a process without capabilities, are named with what to do.
#[test]
fn what_the_kernel_lacks_or_forbids_is_named() -> Result<()> {
    let needs = [
        Need::Profiling,
        Need::Program("unshare"),
        Need::Program("setpriv"),
    ];
    if let Some(reason) = missing(&needs) {
        skipped("what_the_kernel_lacks_or_forbids_is_named", &reason);
        return Ok(());
    }
    let folder = folder()?;
    let agent = executable("strobe-agent")?.display().to_string();
    let state = folder.path().join("state").display().to_string();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty)?;
    let empty = empty.display().to_string();
    // In a mount namespace of its own the kernel's types are out of sight.
    let hide = "mount --bind \"$1\" /sys/kernel/btf || exit 99; shift; exec \"$@\"";
    let hidden = [
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        hide,
        "sh",
        &empty,
        &agent,
    ];
    for more in [
        vec!["check"],
        vec!["run", "--no-publish", "--duration", "1s", "--state-dir", &state],
    ] {
        let output = run(Path::new("unshare"), &[&hidden[..], &more[..]].concat())?;
        says(
            "an agent without BTF",
            &output,
            1,
            &["BTF", "/sys/kernel/btf/vmlinux", "kernel"],
        )?;
    }
    let powerless = [
        "--bounding-set",
        "-all",
        "--inh-caps",
        "-all",
        "--ambient-caps",
        "-all",
        "--",
        &agent,
    ];
    for more in [
        vec!["check"],
        vec!["run", "--no-publish", "--duration", "1s", "--state-dir", &state],
    ] {
        let output = run(Path::new("setpriv"), &[&powerless[..], &more[..]].concat())?;
        says(
            "an agent without capabilities",
            &output,
            77,
            &["CAP_BPF", "run as root", "setcap"],
        )?;
    }
    Ok(())
}

fn script(name: &str) -> PathBuf {
    repository().join(name)
}

/// Checks that a port in use is named with who holds it and what to do, by broker and engine.
#[test]
fn a_port_in_use_is_named_with_who_holds_it() -> Result<()> {
    if let Some(reason) = missing(&[Need::Broker, Need::Engine]) {
        skipped("a_port_in_use_is_named_with_who_holds_it", &reason);
        return Ok(());
    }
    let folder = folder()?;
    let holder = TcpListener::bind("127.0.0.1:0")?;
    let port = holder.local_addr()?.port().to_string();
    let mine = format!("pid {}", std::process::id());
    let path = |name: &str| folder.path().join(name).display().to_string();
    for name in ["infra/kafka/broker.sh", "infra/clickhouse/engine.sh"] {
        let (data, log, pid) = (path("data"), path("log"), path("pid"));
        let flags = [
            "start",
            "--port",
            &port,
            "--data",
            &data,
            "--log",
            &log,
            "--pid-file",
            &pid,
        ];
        let output = run(&script(name), &flags)?;
        says(name, &output, 1, &[&port, "in use", &mine, "remedy: ", "--port"])?;
    }
    Ok(())
}
