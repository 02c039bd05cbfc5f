//! Processes that change faster than anybody could look: libraries come and go, children live for a millisecond, a binary is replaced
//! while it runs, ten thousand run at once. No leak, no stale answer, and every loss is counted.
#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Place, Sample, Spooled, build_id, build_without, names, run, samples, settle};
use strobe_event::{RawBatch, RunState, StackEnd};

/// Until ended images are forgotten (1 s), their memory is free (1 s), and the status is written (every 5 s).
const FORGOTTEN: Duration = Duration::from_secs(8);

fn whole(samples: &[Sample]) -> usize {
    let whole = samples.iter().filter(|sample| sample.end == StackEnd::Root as u8);
    whole.count()
}

/// Checks that what is in the kernel is what the host runs anyway.
fn nothing_is_left(status: &serde_json::Value) {
    let unwinding = &status["unwinding"];
    println!("{unwinding}");
    let get = |name: &str| unwinding[name].as_u64().unwrap();
    assert!(get("processes") < 200, "{unwinding}");
    assert!(get("lists") <= get("processes"), "{unwinding}");
    assert!(get("held_bytes") <= 96 << 20, "{unwinding}");
    assert_eq!(get("evicted"), 0, "{unwinding}");
}

/// What loads, calls and unloads libraries, over and over.
const LOADS: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments)
{
	int rounds = atoi(arguments[2]), libraries = atoi(arguments[3]);
	for (int i = 0; i < rounds; i++) {
		char path[4096];
		snprintf(path, sizeof path, "%s-%d.so", arguments[1], i % libraries);
		void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!library) return 2;
		((void (*)(void))dlsym(library, "plugin"))();
		dlclose(library);
	}
	return 0;
}
"#;

/// A process that maps and unmaps 10,000 libraries, of 100 different ones.
fn libraries(place: &Place) -> impl FnOnce(&[RawBatch]) {
    const LIBRARIES: usize = 100;
    let (victim, plugin) = (place.path("victim-loads"), place.path("plugin-0.so"));
    build_without(LOADS, &victim, &["-ldl"]);
    let source = "volatile int n; void plugin(void) { for (int i = 0; i < 20000; i++) n += i; }\n";
    build_without(source, &plugin, &["-shared", "-fPIC", "-Wl,--build-id=sha1"]);
    // Each with a build id of its own.
    let bytes = fs::read(&plugin).unwrap();
    let id = build_id(&plugin);
    let id: Vec<u8> = (0..id.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap())
        .collect();
    let at = bytes.windows(id.len()).position(|window| window == id).unwrap();
    for number in 1..LIBRARIES {
        let mut copy = bytes.clone();
        copy[at] ^= number as u8;
        fs::write(place.path(&format!("plugin-{number}.so")), copy).unwrap();
    }
    let mut command = Command::new(&victim);
    run(command
        .arg(place.path("plugin"))
        .args(["10000", &LIBRARIES.to_string()]));
    let ids: Vec<String> = (0..LIBRARIES)
        .map(|number| build_id(&place.path(&format!("plugin-{number}.so"))))
        .collect();
    move |batches| {
        let found = samples(batches, |sample| sample.comm == "victim-loads");
        assert!(found.len() > 100, "{} samples", found.len());
        // Of each frame in one of them its path and its build id are of the same one.
        let frames = found.iter().flat_map(|sample| &sample.frames);
        for frame in frames.filter(|frame| frame.path.contains("plugin-")) {
            let number: usize = frame
                .path
                .rsplit_once('-')
                .and_then(|(_, end)| end.strip_suffix(".so")?.parse().ok())
                .unwrap();
            assert_eq!(frame.build_id, ids[number], "{frame:?}");
        }
    }
}

/// What forks so many children in a second, each of which is busy for a moment; or so many that are there at once, and busy in turn.
const FORKS: &str = r#"
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
volatile uint64_t sink;
static uint64_t us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000ull + t.tv_nsec / 1000; }
void leaf(uint64_t until) { while (us() < until) for (int i = 0; i < 1000; i++) sink += i; }
void child(uint64_t busy) { leaf(us() + busy); sink++; }
int main(int count, char **arguments)
{
	int children = atoi(arguments[1]), per_second = atoi(arguments[2]), together = atoi(arguments[3]);
	int barrier[2];
	if (pipe(barrier)) return 3;
	uint64_t begin = us();
	for (int i = 0; i < children; i++) {
		pid_t pid = fork();
		if (pid < 0) return 2;
		if (pid == 0) {
			char byte;
			if (together) { close(barrier[1]); while (read(barrier[0], &byte, 1) > 0) ; }
			child(together ? 500 : 300);
			_exit(0);
		}
		if (!together) while (waitpid(-1, 0, WNOHANG) > 0) ;
		uint64_t due = begin + (i + 1) * 1000000ull / per_second;
		uint64_t now = us();
		if (due > now) usleep(due - now);
	}
	close(barrier[1]);
	while (wait(0) > 0) ;
	return 0;
}
"#;

/// A program that forks 1,000 times a second: its children are there for a third of a millisecond, and it is hardly ever sampled itself.
/// They have whole stacks by their parent's tables.
fn forks(place: &Place) -> impl FnOnce(&[RawBatch]) {
    let victim = place.path("victim-forks");
    build_without(FORKS, &victim, &[]);
    run(Command::new(&victim).args(["4000", "1000", "0"]));
    move |batches| {
        let found = samples(batches, |sample| sample.comm == "victim-forks");
        let mut known = BTreeMap::new();
        let mut of_child = |sample: &Sample| {
            let names = names(sample, &victim, &mut known);
            names.iter().any(|name| name == "child")
        };
        let children: Vec<Sample> = found.into_iter().filter(|sample| of_child(sample)).collect();
        let whole = whole(&children);
        println!(
            "forks: {whole} of {} samples of children are whole",
            children.len()
        );
        assert!(children.len() > 100, "{} samples", children.len());
        assert!(
            whole * 100 >= children.len() * 90,
            "{whole} of {}",
            children.len()
        );
    }
}

/// Two versions of a program: the same names in other places, other frames, and no frame pointers in either.
fn version(number: usize) -> String {
    let padding = "__asm__ volatile(\".fill 4096, 1, 0x90\");".repeat(number);
    format!(
        r#"
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
volatile uint64_t sink;
static uint64_t ms(void) {{ struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000u + t.tv_nsec / 1000000; }}
void padding(void) {{ {padding} }}
void leaf_{number}(volatile char *room) {{ for (int i = 0; i < 100000; i++) sink += room[i & 7]; }}
void middle_{number}(void) {{ volatile char room[{room}] = {{0}}; leaf_{number}(room); sink++; }}
int main(int count, char **arguments)
{{
	int left = atoi(arguments[1]);
	for (uint64_t until = ms() + 150; ms() < until; ) middle_{number}();
	if (left == 0) return 0;
	char next[16] = {{ '0' + (left - 1) / 10, '0' + (left - 1) % 10 }};
	execl(arguments[0], arguments[0], next, (char *)0);
	return 2;
}}
"#,
        room = 16 + 200 * number,
    )
}

/// A process that becomes another version of its program again and again, under the same path and process id: it never has a frame
/// of the other one, and its stacks are whole soon after.
fn replaced(place: &Place) -> impl FnOnce(&[RawBatch]) {
    const EXECS: usize = 16;
    let program = place.path("victim-turns");
    let versions: Vec<PathBuf> = (0..2)
        .map(|number| place.path(&format!("version-{number}")))
        .collect();
    for (number, to) in versions.iter().enumerate() {
        build_without(&version(number), to, &["-Wl,--build-id=sha1"]);
    }
    let put = |number: usize| {
        let new = place.path("new");
        fs::copy(&versions[number % 2], &new).unwrap();
        fs::rename(&new, &program).unwrap();
    };
    put(0);
    let mut child = Command::new(&program).arg(EXECS.to_string()).spawn().unwrap();
    let mut number = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        sleep(Duration::from_millis(70));
        number += 1;
        put(number);
    }
    assert!(child.wait().unwrap().success());
    move |batches| is_never_stale(batches, child.id(), &versions)
}

fn is_never_stale(batches: &[RawBatch], pid: u32, versions: &[PathBuf]) {
    let found = samples(batches, |sample| sample.pid == pid);
    let ids: Vec<String> = versions.iter().map(|version| build_id(version)).collect();
    let mut seen = [0; 2];
    let mut known = [BTreeMap::new(), BTreeMap::new()];
    let mut whole = 0;
    for sample in &found {
        let own: Vec<usize> = sample
            .frames
            .iter()
            .filter_map(|frame| ids.iter().position(|id| *id == frame.build_id))
            .collect();
        let Some(&first) = own.first() else { continue };
        assert!(own.iter().all(|&version| version == first), "{sample:?}");
        seen[first] += 1;
        let functions = functions(sample, &ids[first], &versions[first], &mut known[first]);
        // An address of one version, looked up in the other, would be in the padding or in the middle of something else.
        assert!(!functions.iter().any(|name| name == "padding"), "{functions:?}");
        let chain = [
            "main".to_owned(),
            format!("middle_{first}"),
            format!("leaf_{first}"),
        ];
        if functions.ends_with(&chain) {
            whole += 1;
        } else if functions.iter().any(|name| name.starts_with("middle_")) {
            assert!(
                functions
                    .iter()
                    .all(|name| !name.ends_with(&format!("_{}", 1 - first)))
            );
        }
    }
    println!("{seen:?} samples by version, {whole} with the whole chain");
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
    assert!(whole * 100 >= (seen[0] + seen[1]) * 75, "{whole} of {seen:?}");
}

/// Returns the functions of a sample's frames in the binary with this build id, root first.
fn functions(sample: &Sample, id: &str, file: &Path, known: &mut BTreeMap<u64, String>) -> Vec<String> {
    let own = sample.frames.iter().filter(|frame| frame.build_id == id);
    own.map(|frame| {
        let name = known.entry(frame.address);
        name.or_insert_with(|| common::function(file, frame.address))
            .clone()
    })
    .collect()
}

/// 10,000 processes at once, each sampled once or twice: they share one list and their tables, and nobody is thrown out for another.
fn many(place: &Place, agent: rustix::process::Pid) -> impl FnOnce(&[RawBatch]) {
    let victim = place.path("victim-many");
    build_without(FORKS, &victim, &[]);
    let before = (cpu(agent), Instant::now());
    run(Command::new(&victim).args(["10000", "10000", "1"]));
    let (used, took) = (cpu(agent) - before.0, before.1.elapsed());
    let memory = memory_kib(agent);
    move |batches| {
        let found = samples(batches, |sample| sample.comm == "victim-many");
        let mut pids: Vec<u32> = found.iter().map(|sample| sample.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let whole = whole(&found);
        println!(
            "many: {} processes in {} samples, {whole} whole; the agent took {used:?} of {took:?}, and {memory} KiB",
            pids.len(),
            found.len()
        );
        assert!(pids.len() > 2_000, "{} processes", pids.len());
        assert!(whole * 100 >= found.len() * 85, "{whole} of {}", found.len());
        assert!(memory < 150 << 10, "{memory} KiB");
        assert!(used < took / 2, "{used:?} of {took:?}");
    }
}

/// Checks that 10,000 libraries that come and go, 1,000 forks a second, a binary that is replaced while it runs, and 10,000 processes at
/// once have right stacks, lose nothing uncounted, and leave nothing behind in the kernel.
#[test]
fn what_comes_and_goes_is_walked_and_leaves_nothing_behind() {
    let _alone = common::alone();
    if common::skipped("what_comes_and_goes_is_walked_and_leaves_nothing_behind") {
        return;
    }
    let place = Place::new();
    let agent = place.start();
    settle(&place);
    let libraries = libraries(&place);
    let forks = forks(&place);
    let replaced = replaced(&place);
    let many = many(&place, agent.pid());
    sleep(FORGOTTEN);
    let status = place.status();
    let log = agent.end();
    assert!(!log.contains("ERROR"), "{log}");
    nothing_is_left(&status);
    let batches = place.batches();
    libraries(&batches);
    forks(&batches);
    replaced(&batches);
    many(&batches);
    is_accounted_for(&place);
}

/// Checks that of each run what was taken was stored, or dropped for a reason.
fn is_accounted_for(place: &Place) {
    let (mut taken, mut stored, mut dropped) = (0, 0, 0);
    for (_, _, what) in place.spooled() {
        match what {
            Spooled::Batch(batch) => stored += batch.samples.len() as u64,
            Spooled::Event(event) if event.state != RunState::Started as u8 => {
                taken += event.taken;
                dropped += event.drops.iter().map(|dropped| dropped.samples).sum::<u64>();
            }
            _ => {}
        }
    }
    println!("{taken} taken, {stored} stored, {dropped} dropped");
    assert!(taken > 1_000, "{taken}");
    assert_eq!(taken, stored + dropped);
}

/// Returns the CPU time of a process, to the clock tick.
fn cpu(pid: rustix::process::Pid) -> Duration {
    let stat = strobe_agent::procfs::stat(pid.as_raw_nonzero().get().cast_unsigned()).unwrap();
    Duration::from_micros(stat.cpu_us)
}

/// Returns the most memory that a process has had, KiB.
fn memory_kib(pid: rustix::process::Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
