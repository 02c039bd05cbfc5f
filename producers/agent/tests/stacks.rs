//! What the agent says of processes whose frames are known: all of it, whatever became of their files.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use common::{CHAIN, Place, Sample, build, build_id, function, run, samples};

/// Time after the end of a victim in which its last samples are read.
const LAST_SAMPLES: Duration = Duration::from_millis(300);

/// Returns how many samples passed through main, one, two and three, in this order, of the binary with this id.
fn complete(samples: &[Sample], id: &str, file: &Path) -> usize {
    let mut names = BTreeMap::new();
    let mut count = 0;
    for sample in samples {
        let own = sample.frames.iter().filter(|frame| frame.build_id == id);
        let stack: Vec<String> = own
            .map(|frame| {
                names
                    .entry(frame.address)
                    .or_insert_with(|| function(file, frame.address))
                    .clone()
            })
            .collect();
        count += usize::from(
            stack
                .windows(4)
                .any(|four| four == ["main", "one", "two", "three"]),
        );
    }
    count
}

/// Checks that a victim appears with all of its frames, under the build id that readelf prints, at addresses that addr2line
/// understands, and that its binary gets into the symbol store.
#[test]
fn a_victim_appears_with_all_its_frames() {
    let _alone = common::alone();
    if common::skipped("a_victim_appears_with_all_its_frames") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-chain");
    build(CHAIN, &victim);
    let agent = place.start();
    run(Command::new(&victim).arg("800"));
    let id = build_id(&victim);
    assert!(place.gets_binary(&id), "the binary is in the symbol store");
    sleep(LAST_SAMPLES);
    agent.end();
    let found = samples(&place.batches(), |sample| sample.comm == "victim-chain");
    let whole = complete(&found, &id, &victim);
    assert!(found.len() > 100, "{} samples", found.len());
    assert!(
        whole * 100 >= found.len() * 80,
        "{whole} of {} are complete",
        found.len()
    );
    assert!(
        found
            .iter()
            .any(|sample| sample.service == "victim-chain" && sample.executable == victim.to_str().unwrap())
    );
    let first = found.iter().min_by_key(|sample| sample.time_us).unwrap();
    let last = found.iter().max_by_key(|sample| sample.time_us).unwrap();
    assert!(last.time_us - first.time_us > 500_000);
}

/// Checks that a binary that was deleted while it runs, and one whose path names another file by now, are still what they were.
#[test]
fn deleted_and_replaced_binaries_are_kept() {
    let _alone = common::alone();
    if common::skipped("deleted_and_replaced_binaries_are_kept") {
        return;
    }
    let place = Place::new();
    let (deleted, replaced) = (place.path("victim-gone"), place.path("victim-moved"));
    // Two different programs, so that their build ids differ.
    build(CHAIN, &deleted);
    build(&CHAIN.replace("200000", "200001"), &replaced);
    let (deleted_id, replaced_id) = (build_id(&deleted), build_id(&replaced));
    let keep = |path: &Path| {
        let copy = path.with_extension("kept");
        fs::copy(path, &copy).unwrap();
        copy
    };
    let (deleted_copy, replaced_copy) = (keep(&deleted), keep(&replaced));
    // Both before the agent starts, which so must find them by /proc, and after it did.
    let victims = |milliseconds: &str| {
        let start = |file: &Path| Command::new(file).arg(milliseconds).spawn().unwrap();
        let children = [start(&deleted), start(&replaced)];
        sleep(Duration::from_millis(100));
        fs::remove_file(&deleted).unwrap();
        fs::remove_file(&replaced).unwrap();
        fs::copy("/bin/true", &replaced).unwrap();
        children
    };
    let early = victims("2500");
    let agent = place.start();
    for mut child in early {
        child.wait().unwrap();
    }
    fs::copy(&deleted_copy, &deleted).unwrap();
    fs::copy(&replaced_copy, &replaced).unwrap();
    for mut child in victims("800") {
        child.wait().unwrap();
    }
    for id in [&deleted_id, &replaced_id] {
        assert!(place.gets_binary(id), "{id} is in the symbol store");
    }
    sleep(LAST_SAMPLES);
    agent.end();
    let batches = place.batches();
    for (comm, id, copy) in [
        ("victim-gone", &deleted_id, &deleted_copy),
        ("victim-moved", &replaced_id, &replaced_copy),
    ] {
        let found = samples(&batches, |sample| sample.comm == comm);
        let pids: BTreeSet<u32> = found.iter().map(|sample| sample.pid).collect();
        assert_eq!(pids.len(), 2, "{comm}: one that ran already, one that came");
        for pid in pids {
            let of_pid: Vec<Sample> = found.iter().filter(|s| s.pid == pid).cloned().collect();
            let whole = complete(&of_pid, id, copy);
            assert!(
                whole * 100 >= of_pid.len() * 80,
                "{comm} {pid}: {whole} of {}",
                of_pid.len()
            );
        }
    }
}

/// Checks that a binary that only another mount namespace has is identified, and gets into the symbol store.
#[test]
fn a_binary_of_another_mount_namespace_is_kept() {
    let _alone = common::alone();
    if common::skipped("a_binary_of_another_mount_namespace_is_kept") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-inside");
    build(CHAIN, &victim);
    let hidden = place.path("hidden");
    fs::create_dir(&hidden).unwrap();
    let agent = place.start();
    let script = format!(
        "mount -t tmpfs none {0} && cp {1} {0}/victim-tmpfs && exec {0}/victim-tmpfs 800",
        hidden.display(),
        victim.display()
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .output()
        .unwrap();
    let id = build_id(&victim);
    let uploaded = output.status.success() && place.gets_binary(&id);
    sleep(LAST_SAMPLES);
    agent.end();
    if !output.status.success() {
        println!(
            "skipped: a_binary_of_another_mount_namespace_is_kept: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    assert!(!hidden.join("victim-tmpfs").exists(), "nobody outside sees it");
    let found = samples(&place.batches(), |sample| sample.comm == "victim-tmpfs");
    let whole = complete(&found, &id, &victim);
    assert!(
        found.len() > 100 && whole * 100 >= found.len() * 80,
        "{whole} of {}",
        found.len()
    );
    assert!(uploaded, "the binary is in the symbol store");
}

/// Forks and executes so many times; each child works for a millisecond before the exec, and the program it executes for one
/// after it.
const SHORT_LIVED: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
volatile uint64_t sink;
static uint64_t us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000u + t.tv_nsec / 1000; }
void before_exec(void) { uint64_t until = us() + 900; while (us() < until) sink++; }
int main(int count, char **arguments)
{
	for (int i = atoi(arguments[2]); i > 0; i--) {
		pid_t child = fork();
		if (child == 0) {
			before_exec();
			execl(arguments[1], "victim-after", (char *)0);
			_exit(1);
		}
		waitpid(child, 0, 0);
	}
	return 0;
}
"#;

/// What the children execute: a program of its own.
const AFTER: &str = r#"
#include <stdint.h>
#include <time.h>
volatile uint64_t sink;
static uint64_t us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000u + t.tv_nsec / 1000; }
void after_exec(void) { uint64_t until = us() + 900; while (us() < until) sink += 2; }
int main(void) { after_exec(); return 0; }
"#;

/// Checks that processes of two milliseconds are seen, before and after their exec, and that no sample bears frames of an image
/// that was not the sampled one.
#[test]
fn short_lived_processes_keep_their_images_apart() {
    let _alone = common::alone();
    if common::skipped("short_lived_processes_keep_their_images_apart") {
        return;
    }
    let place = Place::new();
    let (before, after) = (place.path("victim-before"), place.path("victim-after"));
    build(SHORT_LIVED, &before);
    build(AFTER, &after);
    let (before_id, after_id) = (build_id(&before), build_id(&after));
    let agent = place.start_with(|command| {
        command.args(["--frequency", "4999"]);
    });
    run(Command::new(&before).arg(&after).arg("200"));
    sleep(LAST_SAMPLES);
    agent.end();
    let batches = place.batches();
    let found = samples(&batches, |sample| {
        sample.comm == "victim-before" || sample.comm == "victim-after"
    });
    // By image: which of the two programs its frames are of.
    let mut images: BTreeMap<(u32, u64, u32), (usize, usize)> = BTreeMap::new();
    for sample in &found {
        let has = |id: &str| usize::from(sample.frames.iter().any(|frame| frame.build_id == id));
        let counts = images
            .entry((sample.pid, sample.start_ns, sample.exec))
            .or_default();
        *counts = (counts.0 + has(&before_id), counts.1 + has(&after_id));
        assert!(
            has(&before_id) == 0 || has(&after_id) == 0,
            "frames of both programs in one stack: {sample:?}"
        );
    }
    for (image, (of_before, of_after)) in &images {
        assert!(
            *of_before == 0 || *of_after == 0,
            "{image:?} has {of_before} samples of the program before the exec and {of_after} of the one after"
        );
    }
    // The exec counts of one process ascend from the program before to the one after.
    for ((pid, start, exec), (of_before, _)) in &images {
        let later = images.range((*pid, *start, exec + 1)..=(*pid, *start, u32::MAX));
        if *of_before > 0 {
            assert!(
                later.clone().all(|(_, (of_before, _))| *of_before == 0),
                "{pid} went back"
            );
        }
    }
    let (with_before, with_after): (usize, usize) = images.values().fold((0, 0), |(b, a), counts| {
        (b + usize::from(counts.0 > 0), a + usize::from(counts.1 > 0))
    });
    println!(
        "{} samples; {with_before} images before the exec, {with_after} after it",
        found.len()
    );
    assert!(
        with_before > 100 && with_after > 100,
        "{with_before} and {with_after} images of 200"
    );
    // What has no frames says why: no sample of a process that is gone is left without its reason or its frames.
    let unexplained = found
        .iter()
        .filter(|s| s.frames.is_empty() && s.end == strobe_event::StackEnd::Root as u8);
    assert_eq!(unexplained.count(), 0);
    let lost = found
        .iter()
        .flat_map(|sample| &sample.frames)
        .filter(|frame| frame.reason != 0)
        .count();
    let all: usize = found.iter().map(|sample| sample.frames.len()).sum();
    assert!(lost * 50 < all, "{lost} of {all} frames are unknown");
}

/// Checks that the very first samples of a process are kept: its dynamic loader's, before its own main.
#[test]
fn the_first_samples_of_a_process_are_kept() {
    let _alone = common::alone();
    if common::skipped("the_first_samples_of_a_process_are_kept") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-first");
    build(AFTER, &victim);
    let agent = place.start_with(|command| {
        command.args(["--frequency", "4999"]);
    });
    for _ in 0..100 {
        run(&mut Command::new(&victim));
    }
    sleep(LAST_SAMPLES);
    agent.end();
    let found = samples(&place.batches(), |sample| sample.comm == "victim-first");
    let id = build_id(&victim);
    let loader = found.iter().filter(|sample| {
        let of = |part: &str| sample.frames.iter().any(|frame| frame.path.contains(part));
        of("ld-linux") && !sample.frames.iter().any(|frame| frame.build_id == id)
    });
    let loader = loader.count();
    println!(
        "{} samples, {loader} of them before the program's own code",
        found.len()
    );
    assert!(
        found.len() > 200 && loader > 10,
        "{} samples, {loader} in the loader",
        found.len()
    );
}

/// Checks the order in which a service is named, on real processes, also of such that are gone before anybody could ask.
#[test]
fn services_are_named_in_order() {
    let _alone = common::alone();
    if common::skipped("services_are_named_in_order") {
        return;
    }
    let place = Place::new();
    let victim = place.path("victim-plain");
    build(CHAIN, &victim);
    let short = place.path("victim-short");
    build(AFTER, &short);
    let agent = place.start();
    let named = |name: &str| {
        let mut command = Command::new(&victim);
        command.arg("500").env("STROBE_SERVICE", name);
        command
    };
    run(&mut named("shop"));
    run(&mut named("sh op<>"));
    run(Command::new(&victim).arg("500").env_remove("STROBE_SERVICE"));
    // Each child is gone after a millisecond; the shell that has the variable is still there.
    let script = format!(
        "i=0; while [ $i -lt 300 ]; do {}; i=$((i+1)); done; sleep 1",
        short.display()
    );
    run(Command::new("sh")
        .args(["-c", &script])
        .env("STROBE_SERVICE", "batchwork"));
    sleep(LAST_SAMPLES);
    agent.end();
    let batches = place.batches();
    let plain = samples(&batches, |sample| sample.comm == "victim-plain");
    let services: BTreeSet<&str> = plain
        .iter()
        .filter(|sample| {
            sample
                .frames
                .iter()
                .any(|frame| frame.path.ends_with("victim-plain"))
        })
        .map(|sample| sample.service.as_str())
        .collect();
    assert_eq!(services, BTreeSet::from(["shop", "sh_op__", "victim-plain"]));
    let short = samples(&batches, |sample| sample.comm == "victim-short");
    let right = short
        .iter()
        .filter(|sample| sample.service == "batchwork")
        .count();
    println!(
        "{right} of {} samples of short-lived children bear their parent's name",
        short.len()
    );
    assert!(
        short.len() > 50 && right * 100 >= short.len() * 95,
        "{right} of {}",
        short.len()
    );
}
