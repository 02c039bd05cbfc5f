//! Which tables are whose, on this kernel: of another image, of a parent, of an earlier list, wrong ones, and none.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;
#[path = "common/tables.rs"]
mod tables;

use std::time::{Duration, Instant};

use common::{Chain, alone, chain_source, compile_with, skipped};
use strobe_bpf::{ImageIdentity, MappingEntry, StackEnd};
use tables::{BYTES, Kept, Scene, Tables, WITHOUT, give, samples_of, start};

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
    let Scene {
        folder: _folder,
        program,
        mut sampler,
        mut tables,
    } = Scene::new("forks", FORKS);
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
    let Scene {
        folder: _folder,
        program,
        mut sampler,
        mut tables,
    } = Scene::new("chain", &chain_source(30));
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
    let Scene {
        folder: _folder,
        program,
        mut sampler,
        mut tables,
    } = Scene::new("chain", &chain_source(30));
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
            // Without rows it is code that nobody or a JVM describes.
            rows: if random() % 3 == 0 { 0 } else { u32::MAX },
            directory_at: if random() % 4 == 0 {
                random() as u32
            } else {
                wild[1]
            },
            pages: if random() % 2 == 0 { 2 } else { u32::MAX },
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
