//! The life of an agent: its accounts, its restarts, a full spool, and what it says when it cannot run.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use common::{Agent, CHAIN, Place, Spooled, build, run};
use strobe_event::{DropReason, RunEvent, RunState};

const LAST_SAMPLES: Duration = Duration::from_millis(300);

/// What the batches and the last event of one run say.
#[derive(Default)]
struct Account {
    taken: u64,
    kept: u64,
    batches: u64,
    drops: u64,
    last: Option<Box<RunEvent>>,
    starts: u64,
}

fn accounts(place: &Place) -> BTreeMap<String, Account> {
    let mut runs: BTreeMap<String, Account> = BTreeMap::new();
    for (_, _, what) in place.spooled() {
        match what {
            Spooled::Batch(batch) => {
                let account = runs.entry(batch.run.id.to_string()).or_default();
                assert!(account.last.is_none(), "a batch behind the end of its run");
                assert_eq!(u64::from(batch.index), account.batches, "batches are numbered");
                account.batches += 1;
                account.taken += batch.cpus.iter().map(|cpu| cpu.taken).sum::<u64>();
                account.kept += batch.samples.len() as u64;
                assert_eq!(
                    batch.cpus.iter().map(|cpu| cpu.kept).sum::<u64>(),
                    batch.samples.len() as u64
                );
                account.drops += batch.drops.iter().map(|count| count.samples).sum::<u64>();
            }
            Spooled::Event(event) => {
                let account = runs.entry(event.run.id.to_string()).or_default();
                match event.state {
                    state if state == RunState::Started as u8 => account.starts += 1,
                    _ => account.last = Some(event),
                }
            }
            Spooled::Coverage(_) | Spooled::Host(_) | Spooled::Audit(_) => {}
        }
    }
    runs
}

/// Checks that for each run, and over all runs to the last tick of the kernel's own count, taken = spooled + dropped.
#[test]
fn the_accounts_of_each_run_add_up() {
    let _alone = common::alone();
    if common::skipped("the_accounts_of_each_run_add_up") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-accounts");
    build(CHAIN, &victim);
    let agent = place.start_with(|command| {
        command.args(["--run-length", "1s"]);
    });
    run(Command::new(&victim).arg("3300"));
    agent.end();
    let runs = accounts(&place);
    assert!(runs.len() >= 4, "{} runs of a second", runs.len());
    let mut taken = 0;
    for (id, account) in &runs {
        let last = account.last.as_ref().unwrap();
        assert_eq!(
            (last.state, account.starts),
            (RunState::Finished as u8, 1),
            "{id}"
        );
        let dropped: u64 = last.drops.iter().map(|count| count.samples).sum();
        assert_eq!(last.taken, last.spooled + dropped, "{id}");
        assert_eq!(
            (last.spooled, last.batches),
            (account.kept, account.batches),
            "{id}"
        );
        assert!(last.taken >= account.taken && dropped >= account.drops, "{id}");
        taken += last.taken;
    }
    let early = runs
        .values()
        .filter(|a| a.last.as_ref().is_some_and(|last| !last.detail.is_empty()));
    assert_eq!(early.count(), 1, "the last run says that it was ended early");
    let status = place.status();
    assert_eq!(status["taken"].as_u64(), Some(taken), "{status}");
    assert_eq!(status["kernel_dropped"].as_u64(), Some(0));
}

/// Checks that an agent that is killed leaves everything that it has spooled, and that its successor goes on beside it.
#[test]
fn what_was_spooled_outlives_a_kill() {
    let _alone = common::alone();
    if common::skipped("what_was_spooled_outlives_a_kill") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-kill");
    build(CHAIN, &victim);
    let mut busy = Command::new(&victim).arg("60000").spawn().unwrap();
    let mut seen = 0;
    for kill in 1..=3_u64 {
        // Killed at the third record that the spool took: between its append and everything after.
        let agent = place.start_with(|command| {
            command.env("STROBE_FAIL_AT", "spool.appended:2");
        });
        let status = agent.wait();
        assert_eq!(status.code(), None, "killed");
        let all = place.spooled();
        let batches = all
            .iter()
            .filter(|(_, _, what)| matches!(what, Spooled::Batch(_)))
            .count();
        assert_eq!(batches as u64, 2 * kill, "all that was there, and two more");
        assert!(all.len() > seen);
        seen = all.len();
        let epochs: std::collections::BTreeSet<[u8; 16]> = all.iter().map(|(epoch, _, _)| *epoch).collect();
        assert_eq!(epochs.len() as u64, kill, "each opening has an epoch of its own");
        let identities: std::collections::BTreeSet<([u8; 16], u64)> =
            all.iter().map(|(e, s, _)| (*e, *s)).collect();
        assert_eq!(identities.len(), all.len(), "no identity twice");
    }
    let agent = place.start();
    sleep(Duration::from_millis(700));
    agent.end();
    assert!(place.spooled().len() > seen);
    busy.kill().unwrap();
    busy.wait().unwrap();
}

/// Distinct stacks without end, so that a spool fills up: recursion along the bits of a counter.
const DISTINCT: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
volatile uint64_t sink;
static uint64_t ms(clockid_t c) { struct timespec t; clock_gettime(c, &t); return t.tv_sec * 1000u + t.tv_nsec / 1000000; }
static void left(uint64_t bits, int depth);
static void right(uint64_t bits, int depth);
static void next(uint64_t bits, int depth)
{
	if (depth == 0) { for (int i = 0; i < 2000; i++) sink += i; return; }
	if (bits & 1) left(bits >> 1, depth - 1); else right(bits >> 1, depth - 1);
	sink++;
}
static void left(uint64_t bits, int depth) { next(bits, depth); sink += 1; }
static void right(uint64_t bits, int depth) { next(bits, depth); sink += 2; }
int main(int count, char **arguments)
{
	uint64_t until = ms(CLOCK_MONOTONIC) + atoi(arguments[1]), bits = 88172645463325252u, rounds = 0;
	while (ms(CLOCK_MONOTONIC) < until) {
		bits ^= bits << 13; bits ^= bits >> 7; bits ^= bits << 17;
		next(bits, 50);
		rounds++;
	}
	printf("%f\n", (double)rounds / ms(CLOCK_PROCESS_CPUTIME_ID));
	return 0;
}
"#;

/// Checks that a full spool drops the newest batches and counts them, that the events of runs get through, and that the
/// profiled process is not slowed.
#[test]
fn a_full_spool_drops_the_newest_and_counts_it() {
    let _alone = common::alone();
    if common::skipped("a_full_spool_drops_the_newest_and_counts_it") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-full");
    build(DISTINCT, &victim);
    let speed = |milliseconds: &str| -> f64 {
        let output = run(Command::new(&victim).arg(milliseconds));
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    };
    // A spool as small as it may be, which something else has filled but for a little.
    let spool = place.path("state").join("spool");
    fs::create_dir_all(&spool).unwrap();
    let settings = strobe_spool::Settings::new(&spool, "test-host");
    let (mut writer, _reader, _) = strobe_spool::Spool::open(settings).unwrap();
    let mut filler = Vec::new();
    strobe_agent::envelope::begin(
        strobe_bus::Topic::StacksRaw,
        strobe_event::RunId([0; 16]),
        0,
        &mut filler,
    );
    filler.resize(700 << 10, 0);
    let limit: u64 = 34 << 20;
    let room: u64 = 1 << 20;
    while writer.used_bytes() + (filler.len() as u64) + (1 << 20) + room < limit {
        writer.append(&filler).unwrap();
    }
    drop((writer, _reader));
    place.configure(&format!("[spool]\nsize_limit_bytes = {limit}\n"));
    let agent = place.start_with(|command| {
        command.args(["--frequency", "4999"]);
    });
    let first = speed("2500");
    let mut full = 0.0_f64;
    for _ in 0..8 {
        full = full.max(speed("1000"));
        if place.status()["dropped"]["spool_full"].as_u64() > Some(0) {
            break;
        }
    }
    let beside_a_full_spool = speed("2500").max(full);
    sleep(LAST_SAMPLES);
    agent.end();
    let status = place.status();
    let dropped = status["dropped"]["spool_full"].as_u64().unwrap();
    assert!(dropped > 0, "{status}");
    assert!(
        beside_a_full_spool > first * 0.7,
        "{beside_a_full_spool} rounds per CPU millisecond, {first} before the spool was full"
    );
    // The filler is no value of ours: read what came after it.
    let settings = strobe_spool::Settings::new(&spool, "test-host");
    let (_writer, mut reader, _) = strobe_spool::Spool::open(settings).unwrap();
    let (mut kept, mut last) = (0, None);
    while let Some(record) = reader.next().unwrap() {
        let opened = strobe_agent::envelope::open(&record.payload).unwrap();
        if opened.topic == strobe_bus::Topic::Runs {
            last = Some(strobe_event::codec::decode_framed::<RunEvent>(opened.value).unwrap());
        } else {
            kept += opened.samples;
        }
    }
    let last = last.unwrap();
    assert_eq!(
        last.state,
        RunState::Finished as u8,
        "the end of the run got through"
    );
    assert_eq!(last.spooled, kept);
    let counted = last
        .drops
        .iter()
        .find(|count| count.reason == DropReason::SpoolFull as u8)
        .unwrap();
    assert_eq!(counted.samples, dropped);
    let drops: u64 = last.drops.iter().map(|count| count.samples).sum();
    assert_eq!(last.taken, last.spooled + drops);
}

fn agent(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strobe-agent"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Checks the exit code, that the message has all of `words`, and that it is a message and no stack trace.
fn says(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert!(
        !text.contains("panicked") && !text.contains("backtrace"),
        "{text}"
    );
}

/// Checks that a wrong configuration is refused with 78, and names the key that was meant.
#[test]
fn a_wrong_configuration_names_the_key() {
    let place = Place::new();
    let config = place.path("agent.toml");
    fs::write(&config, "frequency = 99\n").unwrap();
    for command in ["run", "check"] {
        let output = agent(&[command, "--config"]).arg(&config).output().unwrap();
        says(
            &output,
            78,
            &["agent.toml", "frequency", "did you mean `frequency_hz`?"],
        );
    }
    let output = agent(&["run", "--config", "/nowhere/agent.toml"])
        .output()
        .unwrap();
    says(&output, 78, &["/nowhere/agent.toml"]);
    says(
        &agent(&["run", "--no-such-flag"]).output().unwrap(),
        2,
        &["--no-such-flag"],
    );
}

/// Checks that an agent without privileges ends with 77 and names what it lacks.
#[test]
fn a_missing_capability_is_named() {
    let place = Place::new();
    let mut command = agent(&["run", "--no-publish", "--state-dir"]);
    command.arg(place.path("state"));
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(
            place.folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o777),
        )
        .unwrap();
        // The executable may lie where only root can look: a copy for everybody.
        let copy = place.path("strobe-agent");
        fs::copy(env!("CARGO_BIN_EXE_strobe-agent"), &copy).unwrap();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(copy);
        command.args(arguments).uid(65_534).gid(65_534);
    }
    says(&command.output().unwrap(), 77, &["CAP_"]);
}

/// Checks that a broker that is not there keeps nothing from being spooled, and that the log says so.
#[test]
fn an_unreachable_broker_is_no_reason_to_stop() {
    let _alone = common::alone();
    if common::skipped("an_unreachable_broker_is_no_reason_to_stop") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-broker");
    build(CHAIN, &victim);
    let mut command = agent(&[
        "run",
        "--host",
        "test-host",
        "--frequency",
        "997",
        "--bootstrap",
        "127.0.0.1:18598",
    ]);
    command
        .arg("--state-dir")
        .arg(place.path("state"))
        .args(["--duration", "4s"]);
    let log = fs::File::create(place.path("log")).unwrap();
    let mut child = command.stderr(log).spawn().unwrap();
    run(Command::new(&victim).arg("3500"));
    let status = child.wait().unwrap();
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(status.success(), "{log}");
    assert!(log.contains("18598") && log.contains("WARN"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    let kept: usize = place.batches().iter().map(|batch| batch.samples.len()).sum();
    assert!(kept > 500, "{kept} samples wait for the broker");
}

/// Checks that a state folder serves one agent at a time, and that the second one says who holds it.
#[test]
fn a_state_folder_serves_one_agent() {
    let _alone = common::alone();
    if common::skipped("a_state_folder_serves_one_agent") {
        return;
    }
    let place = Place::new();
    let first: Agent = place.start();
    let pid = first.pid().as_raw_nonzero().to_string();
    let output = place.command().output().unwrap();
    says(&output, 1, &["spool", pid.as_str()]);
    first.end();
}
