//! Stacks through code that a runtime generates while it runs: each is walked as far as the program is deep.
#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Place, Sample, run, samples};
use strobe_event::StackEnd;

/// How deep each program calls itself.
const DEPTH: usize = 30;
/// Milliseconds for which each runs, and of these what is left out at the beginning: until its code is compiled and its tables are made.
const RUNS_MS: u64 = 7_000;
const WARM_MS: u64 = 3_500;

const JAVA: &str = r"
public class Deep {
    static volatile long sink;
    static long dive(int depth) {
        if (depth > 0) return dive(depth - 1) + 1;
        long sum = 0;
        for (int i = 0; i < 20000; i++) sum += i ^ sink;
        return sum;
    }
    public static void main(String[] arguments) {
        long end = System.currentTimeMillis() + Long.parseLong(arguments[0]);
        while (System.currentTimeMillis() < end) sink += dive(30);
    }
}
";

const JAVASCRIPT: &str = "
let sink = 0;
function dive(depth) {
  if (depth > 0) return dive(depth - 1) + 1;
  let sum = 0;
  for (let i = 0; i < 20000; i++) sum += i ^ sink;
  return sum;
}
const end = Date.now() + Number(process.argv[2]);
while (Date.now() < end) sink = dive(30) & 0xffff;
";

/// Ways to run the program in Java, and what of its code each shows: the interpreter, the two compilers, and either without and with
/// frame pointers. Inlining is off, so that each call has a frame.
const WAYS: [(&str, &[&str]); 4] = [
    ("interpreted", &["-Xint"]),
    ("compiled by C1", &["-XX:-Inline", "-XX:TieredStopAtLevel=1"]),
    ("compiled by C2", &["-XX:-Inline"]),
    (
        "compiled with frame pointers",
        &["-XX:-Inline", "-XX:+PreserveFramePointer"],
    ),
];

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Checks that of the samples of a process, but for its first ones, nearly all go down to the root, and that those of its busy
/// thread bear a frame for each call.
fn is_deep(all: &[Sample], pid: u32, what: &str) {
    let own: Vec<&Sample> = all.iter().filter(|sample| sample.pid == pid).collect();
    let first_us = own.iter().map(|sample| sample.time_us).min().unwrap();
    // How soon tables are there is another question; and these two have no user stack.
    let other = [StackEnd::BeforeTables, StackEnd::KernelOnly, StackEnd::InExec].map(|end| end as u8);
    let warm =
        |sample: &&&Sample| sample.time_us > first_us + WARM_MS * 1_000 && !other.contains(&sample.end);
    let warm: Vec<&Sample> = own.iter().filter(warm).copied().collect();
    let whole = warm.iter().filter(|sample| sample.end == StackEnd::Root as u8);
    let whole = whole.count();
    let generated = |sample: &Sample| sample.frames.iter().filter(|frame| frame.path.is_empty()).count();
    let deep = warm.iter().filter(|sample| generated(sample) >= DEPTH).count();
    let mut cut: BTreeMap<(u8, Option<&str>), u64> = BTreeMap::new();
    for sample in warm.iter().filter(|sample| sample.end != StackEnd::Root as u8) {
        let last = sample.frames.first().map(|frame| frame.path.as_str());
        *cut.entry((sample.end, last)).or_default() += 1;
    }
    println!(
        "{what}: {} samples, {whole} whole, {deep} deep; cut: {cut:?}",
        warm.len()
    );
    assert!(warm.len() > 100, "{what}: {} samples", warm.len());
    assert!(
        whole * 1_000 >= warm.len() * 990,
        "{what}: {whole} of {}",
        warm.len()
    );
    // Compilers and collectors have threads of their own; after the beginning there is next to nothing for them to do.
    assert!(deep * 100 >= warm.len() * 90, "{what}: {deep} of {}", warm.len());
}

fn start(command: &mut Command) -> Child {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn started(place: &Path, program: &str) -> Vec<(String, Child)> {
    match program {
        "java" => {
            std::fs::write(place.join("Deep.java"), JAVA).unwrap();
            run(Command::new("javac")
                .arg("-d")
                .arg(place)
                .arg(place.join("Deep.java")));
            let ways = WAYS.iter().map(|(what, flags)| {
                let mut java = Command::new("java");
                java.args(*flags).args(["-Xmx64m", "-cp"]).arg(place);
                let child = start(java.args(["Deep", &RUNS_MS.to_string()]));
                (format!("Java, {what}"), child)
            });
            ways.collect()
        }
        _ => {
            let script = place.join("deep.js");
            std::fs::write(&script, JAVASCRIPT).unwrap();
            let child = start(Command::new("node").arg(&script).arg(RUNS_MS.to_string()));
            vec![("JavaScript".to_owned(), child)]
        }
    }
}

/// Checks that stacks run through all of the code that a JVM generates, without frame pointers as well as with, and through Node's.
#[test]
fn generated_code_is_walked_through() {
    let _alone = common::alone();
    if common::skipped("generated_code_is_walked_through") {
        return;
    }
    let place = Place::new();
    let agent = place.start();
    let mut running = Vec::new();
    if has("javac") {
        running.extend(started(place.folder.path(), "java"));
    }
    if has("node") {
        running.extend(started(place.folder.path(), "node"));
    }
    for (what, child) in &mut running {
        assert!(child.wait().unwrap().success(), "{what}");
    }
    std::thread::sleep(Duration::from_millis(300));
    agent.end();
    let pids: Vec<u32> = running.iter().map(|(_, child)| child.id()).collect();
    let all = samples(&place.batches(), |sample| pids.contains(&sample.pid));
    for (what, child) in &running {
        is_deep(&all, child.id(), what);
    }
}
