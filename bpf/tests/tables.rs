//! Stacks by unwind tables on this kernel, of programs without frame pointers whose stacks are known.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;
#[path = "common/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Chain, alone, chain_source, compile_with, skipped};
use strobe_bpf::StackEnd;
use tables::{Scene, Tables, WITHOUT, give, samples_of, start};

/// Checks that of a loop 40 calls deep, built without frame pointers, every stack has each function in order, and ends at the
/// root: also where the tick hit the kernel, which the loop calls through the vdso and by system calls.
#[test]
fn every_frame_is_there_without_frame_pointers() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let Scene {
        folder: _folder,
        program,
        mut sampler,
        mut tables,
    } = Scene::new("chain", &chain_source(40));
    let victim = Chain::start(&program, &[]);
    let image = give(&mut sampler, &mut tables, victim.pid());
    samples_of(&mut sampler, victim.pid(), Duration::from_millis(100));
    let kept = samples_of(&mut sampler, victim.pid(), Duration::from_secs(1));
    assert!(kept.len() > 100, "only {} samples", kept.len());
    let expected: Vec<_> = (0..=40).map(Some).collect();
    for sample in &kept {
        assert_eq!(sample.image, image);
        assert!(!sample.without_tables && !sample.guessed, "{sample:x?}");
        assert_eq!(sample.end, StackEnd::Root, "{sample:x?}");
        let functions = victim.functions_of(&sample.user);
        // `f0` may be calling something.
        let begin = functions
            .iter()
            .position(|function| *function == Some(0))
            .unwrap();
        assert_eq!(functions[begin..begin + 41], expected, "{sample:x?}");
        assert!(begin <= 3, "{sample:x?}");
    }
}

/// Checks the same program without tables: its stacks are kept, are marked, and do not reach `main`.
#[test]
fn without_tables_stacks_are_kept_and_marked() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("chain");
    compile_with(&chain_source(40), &program, &WITHOUT);
    let mut sampler = start();
    let victim = Chain::start(&program, &[]);
    let kept = samples_of(&mut sampler, victim.pid(), Duration::from_millis(500));
    assert!(kept.len() > 50, "only {} samples", kept.len());
    // What is left of the program's start has no stack.
    for sample in kept.iter().filter(|sample| sample.end != StackEnd::Exec) {
        assert!(sample.without_tables && !sample.user.is_empty(), "{sample:x?}");
        assert_eq!(sample.end, StackEnd::BeforeTables);
        assert!(sample.user.len() < 40, "{sample:x?}");
    }
}

/// Waits until a process has mapped no more code for half a second, which on a busy machine may take a while to begin with.
fn wait_for_libraries(pid: u32) {
    let mapped = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().filter(|line| line.contains(" r-xp ")).count()
    };
    let (mut count, mut same) = (0, 0);
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(100));
        let now = mapped();
        same = if now == count { same + 1 } else { 0 };
        count = now;
        // The program, its loader, the C library and the vdso are there before anything of its own runs.
        if same == 5 && count > 4 {
            return;
        }
    }
}

/// Checks that Debian's bash and Python, which have no frame pointers, give stacks that reach their beginning.
#[test]
fn stacks_of_bash_and_python_are_complete() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
    for (program, arguments) in [
        (
            "/bin/bash",
            ["-c", "while :; do x=$((x + 1)); [[ $x == 7* ]]; done"],
        ),
        (
            "/usr/bin/python3",
            [
                "-c",
                "import re, json\nwhile True: json.loads(json.dumps(list(range(50)))); re.sub('a+', 'b', 'xaay' * 9)",
            ],
        ),
    ] {
        let spawned = std::process::Command::new(program).args(arguments).spawn();
        let Ok(mut victim) = spawned else {
            println!("skipped: stacks_of_bash_and_python_are_complete: {program} is not installed");
            continue;
        };
        let pid = victim.id();
        wait_for_libraries(pid);
        give(&mut sampler, &mut tables, pid);
        samples_of(&mut sampler, pid, Duration::from_millis(100));
        let kept = samples_of(&mut sampler, pid, Duration::from_secs(1));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let mut ends: BTreeMap<StackEnd, usize> = BTreeMap::new();
        kept.iter()
            .for_each(|sample| *ends.entry(sample.end).or_default() += 1);
        let complete = ends.get(&StackEnd::Root).copied().unwrap_or(0);
        let depth = kept.iter().map(|sample| sample.user.len()).sum::<usize>() / kept.len().max(1);
        println!(
            "{program}: {} samples, {ends:?}, {depth} frames on average",
            kept.len()
        );
        assert!(kept.len() > 100, "{program}: only {} samples", kept.len());
        assert!(complete * 1_000 >= kept.len() * 995, "{program}: {ends:?}");
        assert!(depth > 5, "{program}: {depth}");
    }
}

/// A program that is in the kernel most of the time, in a signal handler on a stack of its own most of the rest, and prints where
/// its functions begin, `main` last.
const KERNEL_AND_SIGNALS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char buffer[1 << 20];
static int zero;
volatile unsigned long spins;
__attribute__((noinline)) void reads(void) { if (read(zero, buffer, sizeof buffer) < 0) _exit(2); __asm__ volatile(""); }
__attribute__((noinline)) void works(void) { for (int i = 0; i < 300000; i++) spins++; __asm__ volatile(""); }
void handler(int number) { reads(); works(); __asm__ volatile(""); }
__attribute__((noinline)) void raises(void) { reads(); kill(getpid(), SIGUSR1); works(); __asm__ volatile(""); }
int main(void)
{
	stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	sigaltstack(&stack, 0);
	sigaction(SIGUSR1, &action, 0);
	zero = open("/dev/zero", O_RDONLY);
	printf("%lx %lx %lx %lx %lx\n", (unsigned long)reads, (unsigned long)works, (unsigned long)handler,
	       (unsigned long)raises, (unsigned long)main);
	fflush(stdout);
	for (;;)
		raises();
}
"#;

/// Checks that stacks are whole where the tick hit the kernel within a system call, and where it hit a signal handler on a stack of
/// its own: through the handler's frame to what was interrupted, and on to `main`.
#[test]
fn stacks_go_through_system_calls_and_signal_handlers() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let Scene {
        folder: _folder,
        program,
        mut sampler,
        mut tables,
    } = Scene::new("signals", KERNEL_AND_SIGNALS);
    let victim = Chain::start(&program, &[]);
    give(&mut sampler, &mut tables, victim.pid());
    samples_of(&mut sampler, victim.pid(), Duration::from_millis(100));
    let kept = samples_of(&mut sampler, victim.pid(), Duration::from_secs(2));
    let (mut in_kernel, mut in_handler) = (0, 0);
    for sample in &kept {
        assert_eq!(sample.end, StackEnd::Root, "{sample:x?}");
        assert!(!sample.guessed, "{sample:x?}");
        let functions: Vec<usize> = victim.functions_of(&sample.user).into_iter().flatten().collect();
        // reads 0, works 1, handler 2, raises 3, main 4; `main` itself, and `_start`, stand last.
        let expected: [&[usize]; 6] = [&[0, 2, 3], &[1, 2, 3], &[2, 3], &[0, 3], &[1, 3], &[3]];
        let own: Vec<usize> = functions
            .iter()
            .copied()
            .take_while(|function| *function < 4)
            .collect();
        assert!(
            expected.contains(&own.as_slice()) || own.is_empty(),
            "{own:?} {sample:x?}"
        );
        assert!(functions.contains(&4), "{sample:x?}");
        in_kernel += usize::from(sample.in_kernel);
        in_handler += usize::from(own.contains(&2));
    }
    println!(
        "{} samples, {in_kernel} in the kernel, {in_handler} in the handler",
        kept.len()
    );
    assert!(in_kernel > 50 && in_handler > 50, "{in_kernel}, {in_handler}");
}

/// A program with a known set of stacks, and prints where its functions begin, `main` last.
const SET_OF_STACKS: &str = r#"
#include <stdio.h>
volatile unsigned long spins;
__attribute__((noinline)) void leaf(void) { for (int i = 0; i < 200000; i++) spins++; }
__attribute__((noinline)) void left(int n);
__attribute__((noinline)) void right(int n) { if (n) left(n - 1); else leaf(); __asm__ volatile(""); }
__attribute__((noinline)) void left(int n) { if (n) right(n - 1); else leaf(); __asm__ volatile(""); }
int main(void)
{
	printf("%lx %lx %lx %lx\n", (unsigned long)leaf, (unsigned long)right, (unsigned long)left, (unsigned long)main);
	fflush(stdout);
	for (int n = 0;; n = (n + 1) % 8) {
		left(n);
		right(n);
	}
}
"#;

/// Returns the stacks that `perf record --call-graph dwarf` finds of a process, innermost first, by these functions' numbers.
fn stacks_of_perf(folder: &std::path::Path, pid: u32, functions: &[&str]) -> Option<Vec<Vec<usize>>> {
    let data = folder.join("perf.data");
    let recorded = std::process::Command::new("perf")
        .args([
            "record",
            "-q",
            "-e",
            "cpu-clock:u",
            "-F",
            "499",
            "--call-graph",
            "dwarf,4096",
            "-p",
        ])
        .args([&pid.to_string(), "-o"])
        .arg(&data)
        .args(["sleep", "2"])
        .output();
    if !recorded.is_ok_and(|output| output.status.success()) {
        println!("skipped: no perf: install the Debian package `linux-perf`");
        return None;
    }
    let script = std::process::Command::new("perf")
        .args(["script", "--no-inline", "-F", "ip,sym", "-i"])
        .arg(&data)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&script.stdout).into_owned();
    let stacks = text.split("\n\n").map(|stack| {
        let names = stack.lines().filter_map(|line| line.split_whitespace().nth(1));
        names
            .filter_map(|name| functions.iter().position(|function| *function == name))
            .collect::<Vec<_>>()
    });
    Some(stacks.filter(|stack| !stack.is_empty()).collect())
}

/// Checks that the stacks of a deterministic program are, as a set, those of `perf record --call-graph dwarf`.
#[test]
fn the_set_of_stacks_is_that_of_perf() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let Scene {
        folder,
        program,
        mut sampler,
        mut tables,
    } = Scene::new("set", SET_OF_STACKS);
    let victim = Chain::start(&program, &[]);
    give(&mut sampler, &mut tables, victim.pid());
    samples_of(&mut sampler, victim.pid(), Duration::from_millis(100));
    let kept = samples_of(&mut sampler, victim.pid(), Duration::from_secs(2));
    let Some(of_perf) = stacks_of_perf(folder.path(), victim.pid(), &["leaf", "right", "left", "main"])
    else {
        return;
    };
    let whole = |functions: &[usize]| -> Vec<usize> {
        // From the leaf on, which nearly all of the time is spent in; `_start` may count as part of `main`.
        let end = functions.iter().position(|function| *function == 3);
        functions[..end.unwrap_or(functions.len())].to_vec()
    };
    let functions =
        |stack: &[u64]| -> Vec<usize> { victim.functions_of(stack).into_iter().flatten().collect() };
    let in_leaf = |stack: &Vec<usize>| stack.first() == Some(&0);
    let ours: std::collections::BTreeSet<_> = kept
        .iter()
        .map(|sample| whole(&functions(&sample.user)))
        .filter(in_leaf)
        .collect();
    let theirs: std::collections::BTreeSet<_> =
        of_perf.iter().map(|stack| whole(stack)).filter(in_leaf).collect();
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), 16, "{ours:?}");
}
