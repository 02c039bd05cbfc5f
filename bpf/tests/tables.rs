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
use std::time::{Duration, Instant};

use common::{Chain, alone, chain_source, compile_with, skipped};
use strobe_bpf::{ImageIdentity, MappingEntry, Sampler, SamplerSettings, StackEnd};
use tables::Tables;

const BYTES: u64 = 64 << 20;

/// A sample, kept.
#[derive(Clone, Debug)]
struct Kept {
    image: ImageIdentity,
    in_kernel: bool,
    user: Vec<u64>,
    end: StackEnd,
    without_tables: bool,
    guessed: bool,
}

fn start() -> Sampler {
    Sampler::start(&SamplerSettings {
        omit_sent_stacks: false,
        tables_bytes_max: BYTES,
        ..SamplerSettings::at(997)
    })
    .unwrap()
}

/// Reads for a while the samples of one process.
fn samples_of(sampler: &mut Sampler, pid: u32, duration: Duration) -> Vec<Kept> {
    let end = Instant::now() + duration;
    let mut kept = Vec::new();
    while Instant::now() < end {
        sampler.wait(Duration::from_millis(20)).unwrap();
        let consumed = sampler.consume(&mut |sample| {
            if sample.tgid == pid {
                kept.push(Kept {
                    image: ImageIdentity {
                        tgid: sample.tgid,
                        start_time_ns: sample.start_time_ns,
                        exec_id: sample.exec_id,
                    },
                    in_kernel: sample.in_kernel_mode(),
                    user: sample.user_frames().collect(),
                    end: sample.user_end,
                    without_tables: sample.without_tables(),
                    guessed: sample.has_guessed_frames(),
                });
            }
        });
        assert_eq!(consumed.unwrap().undecodable, 0);
    }
    kept
}

/// Reads until a process has been sampled, and gives it its tables.
fn give(sampler: &mut Sampler, tables: &mut Tables, pid: u32) -> ImageIdentity {
    loop {
        let kept = samples_of(sampler, pid, Duration::from_millis(50));
        // Within `exec` there is no stack, with or without tables; the newest sample is of the image that runs now.
        if let Some(sample) = kept.iter().rfind(|sample| sample.end != StackEnd::Exec) {
            assert!(sample.without_tables, "{sample:x?}");
            tables.give(&sample.image);
            return sample.image;
        }
    }
}

const WITHOUT: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fasynchronous-unwind-tables",
];

/// Checks that of a loop 40 calls deep, built without frame pointers, every stack has each function in order, and ends at the
/// root: also where the tick hit the kernel, which the loop calls through the vdso and by system calls.
#[test]
fn every_frame_is_there_without_frame_pointers() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("chain");
    compile_with(&chain_source(40), &program, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
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
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("signals");
    compile_with(KERNEL_AND_SIGNALS, &program, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
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
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("set");
    compile_with(SET_OF_STACKS, &program, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
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

/// Checks that a list that belongs to another image of the same process id is not used: after an `exec`, stacks are walked
/// without tables until the new image has its own.
#[test]
fn tables_of_another_image_are_not_used() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    compile_with(&chain_source(12), &first, &WITHOUT);
    compile_with(&chain_source(20), &second, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
    let mut victim = Chain::start(&first, &[&second]);
    let image = give(&mut sampler, &mut tables, victim.pid());
    victim.read_functions(); // of the second: the `exec` is over
    let kept = samples_of(&mut sampler, victim.pid(), Duration::from_millis(500));
    let after: Vec<_> = kept
        .iter()
        .filter(|sample| sample.image.exec_id != image.exec_id)
        .collect();
    assert!(after.len() > 50, "only {} samples", after.len());
    assert!(
        after
            .iter()
            .all(|sample| sample.without_tables || sample.end == StackEnd::Exec)
    );
}

/// Forks children that spend their time in a chain of calls of their own and end; they are never given any tables.
const FORKS: &str = r#"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
volatile unsigned long spins;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 20000000; i++) spins++; __asm__ volatile(""); }
__attribute__((noinline)) void middle(void) { spin(); __asm__ volatile(""); }
__attribute__((noinline)) void grandchild(void) { if (fork() == 0) { middle(); _exit(0); } wait(0); }
int main(void)
{
	printf("%lx %lx %lx %lx\n", (unsigned long)spin, (unsigned long)middle, (unsigned long)grandchild, (unsigned long)main);
	fflush(stdout);
	for (;;) {
		middle();
		if (fork() == 0) { middle(); grandchild(); _exit(0); }
		wait(0);
	}
}
"#;

/// Checks that processes that were forked and have no list yet are walked by that of their parent, or its parent, and that user
/// space is told of them all the same.
#[test]
fn forked_processes_have_whole_stacks_from_their_first_sample() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("forks");
    compile_with(FORKS, &program, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
    let victim = Chain::start(&program, &[]);
    let mut image = None;
    let mut found = Vec::new();
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        sampler.wait(Duration::from_millis(20)).unwrap();
        let mut last = None;
        sampler
            .consume(&mut |sample| {
                if sample.comm() != b"forks" || sample.user_end == StackEnd::Exec {
                    return;
                }
                let of = ImageIdentity {
                    tgid: sample.tgid,
                    start_time_ns: sample.start_time_ns,
                    exec_id: sample.exec_id,
                };
                if of.tgid == victim.pid() {
                    last = Some(of);
                } else if image.is_some() && !sample.in_kernel_mode() {
                    let frames: Vec<u64> = sample.user_frames().collect();
                    let functions: Vec<usize> = victim.functions_of(&frames).into_iter().flatten().collect();
                    found.push((sample.without_tables(), sample.user_end, functions));
                }
            })
            .unwrap();
        if let (None, Some(of)) = (image, last) {
            tables.give(&of);
            std::thread::sleep(Duration::from_millis(50));
            sampler.consume(&mut |_| ()).unwrap();
            image = Some(of);
        }
    }
    let children: Vec<_> = found
        .iter()
        .filter(|(.., functions)| functions.first() == Some(&0))
        .collect();
    assert!(children.len() > 200, "only {} samples", children.len());
    for child in &children {
        assert!(child.0 && child.1 == StackEnd::Root, "{child:?}");
        let expected: [&[usize]; 2] = [&[0, 1, 3], &[0, 1, 2, 3]];
        assert!(
            expected.iter().any(|stack| child.2.starts_with(stack)),
            "{child:?}"
        );
    }
    assert!(children.iter().any(|child| child.2.contains(&2)), "no grandchild");
}

/// Checks that a list of mappings holds from the next tick on, whatever was looked up at the same addresses before: with a list that
/// has no tables stacks do not reach `main`, and with the former one they do again.
#[test]
fn what_was_looked_up_by_another_list_is_not_used() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("chain");
    compile_with(&chain_source(30), &program, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
    let victim = Chain::start(&program, &[]);
    let image = give(&mut sampler, &mut tables, victim.pid());
    for _ in 0..3 {
        let list = tables.give(&image);
        samples_of(&mut sampler, victim.pid(), Duration::from_millis(50));
        let with = samples_of(&mut sampler, victim.pid(), Duration::from_millis(200));
        tables.memory.free(list);
        let all = MappingEntry {
            start: 4096,
            end: 1 << 47,
            ..MappingEntry::default()
        };
        let list = tables.memory.store_mappings(&[all]).unwrap().unwrap();
        tables.memory.set_process(&image, &list, 1).unwrap();
        samples_of(&mut sampler, victim.pid(), Duration::from_millis(50));
        let without = samples_of(&mut sampler, victim.pid(), Duration::from_millis(200));
        tables.memory.free(list);
        assert!(
            with.len() > 20 && without.len() > 20,
            "{} and {} samples",
            with.len(),
            without.len()
        );
        let whole = |sample: &Kept| sample.end == StackEnd::Root && sample.user.len() > 30;
        assert!(with.iter().all(whole), "{with:x?}");
        assert!(!without.iter().any(whole), "{without:x?}");
        let ends = [StackEnd::NoTable, StackEnd::Root];
        assert!(
            without.iter().all(|sample| ends.contains(&sample.end)),
            "{without:x?}"
        );
    }
}

/// Checks that a table that says nothing true costs its process's stacks and nothing else: walks end, and the others' stay whole.
#[test]
fn a_wrong_table_harms_nobody_else() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("chain");
    compile_with(&chain_source(30), &program, &WITHOUT);
    let mut sampler = start();
    let mut tables = Tables::new(sampler.take_tables().unwrap());
    let (victim, other) = (Chain::start(&program, &[]), Chain::start(&program, &[]));
    let image = give(&mut sampler, &mut tables, victim.pid());
    give(&mut sampler, &mut tables, other.pid());
    let mut state = 0x5eed_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut blocks = Vec::new();
    for _ in 0..40 {
        // Anything at all, looked up anywhere at all, also where there is no memory.
        let noise: Vec<u8> = (0..65_536).map(|_| random() as u8).collect();
        let noise = tables.memory.store(&noise).unwrap().unwrap();
        let mut near = || noise.address().wrapping_add((random() % 65_536) as u32);
        let wild: [u32; 3] = [near(), near(), near()];
        let entry = MappingEntry {
            start: 0,
            end: u64::MAX,
            offset: random() % 4_096,
            rows_at: if random() % 4 == 0 {
                random() as u32
            } else {
                wild[0]
            },
            rows: u32::MAX,
            directory_at: if random() % 4 == 0 {
                random() as u32
            } else {
                wild[1]
            },
            pages: u32::MAX,
            rules_at: if random() % 4 == 0 {
                random() as u32
            } else {
                wild[2]
            },
            page_shift: (random() % 64) as u32,
        };
        let list = tables.memory.store_mappings(&[entry]).unwrap().unwrap();
        tables.memory.set_process(&image, &list, 1).unwrap();
        let kept = samples_of(&mut sampler, other.pid(), Duration::from_millis(50));
        assert!(
            kept.iter().all(|sample| sample.end == StackEnd::Root),
            "{kept:x?}"
        );
        blocks.extend([noise, list]);
    }
    tables.memory.remove_process(victim.pid()).unwrap();
    blocks.into_iter().for_each(|block| tables.memory.free(block));
}

/// Checks that memory is given out once, is given back after its time, and that the kernel gets back what is not needed; and
/// that the limit holds.
#[test]
fn memory_is_given_back() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let mut sampler = start();
    let mut memory = sampler.take_tables().unwrap();
    assert!(sampler.take_tables().is_none());
    let mut blocks = Vec::new();
    let mut bytes = 1;
    while let Some(block) = memory.store(&vec![7; bytes]).unwrap() {
        blocks.push(block);
        bytes = (bytes * 3 + 11) % 3_000_000;
    }
    assert!(memory.held_bytes() == memory.limit_bytes() && memory.limit_bytes() == BYTES);
    let mut spans: Vec<_> = blocks
        .iter()
        .map(|block| (block.address(), block.address() + block.bytes()))
        .collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
    assert!(
        spans[0].0 > 0 && spans.iter().all(|span| span.0 % 64 == 0),
        "{spans:?}"
    );
    blocks.into_iter().for_each(|block| memory.free(block));
    memory.tidy().unwrap();
    // At the end stands what was not enough for the last block.
    assert!(memory.held_bytes() > BYTES - 4_000_000, "too early");
    std::thread::sleep(Duration::from_millis(1_100));
    memory.tidy().unwrap();
    assert_eq!((memory.held_bytes(), memory.used_bytes()), (0, 0));
    assert!(memory.store(&vec![1; BYTES as usize + 1]).unwrap().is_none());
    let again = memory.store(&[1; 100]).unwrap().unwrap();
    assert_eq!(again.bytes(), 128);
}
