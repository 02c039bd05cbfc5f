//! Which file stands behind an address, by this kernel's own tree of mappings, and stacks walked by it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;
#[path = "common/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Chain, alone, chain_source, compile_with, skipped};
use strobe_bpf::{FilePlace, Sampler, StackEnd};
use tables::{Kept, Tables, WITHOUT, samples_of, start};

fn scene() -> (Sampler, Tables) {
    let mut sampler = start();
    let tables = Tables::new(sampler.take_tables().unwrap());
    (sampler, tables)
}

/// Longest wait for what has to come some time, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the samples of a process that stand in the innermost function of a chain, once there are so many.
fn in_chain(sampler: &mut Sampler, victim: &Chain, wanted: usize) -> Vec<Kept> {
    let until = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while found.len() < wanted {
        assert!(Instant::now() < until, "{} samples", found.len());
        let kept = samples_of(sampler, victim.pid(), Duration::from_millis(20)).into_iter();
        found.extend(kept.filter(|sample| victim.functions_of(&sample.user).first() == Some(&Some(0))));
    }
    found
}

/// Samples a process until all files that its stacks run through are known.
fn learn(sampler: &mut Sampler, tables: &mut Tables, victim: &Chain) {
    let until = Instant::now() + PATIENCE;
    loop {
        let last = in_chain(sampler, victim, 1).pop().unwrap();
        if tables.know(victim.pid()) == 0 && last.end == StackEnd::Root {
            return;
        }
        assert!(Instant::now() < until, "{last:x?}");
    }
}

/// Checks that once the files of a program are known, every stack of every later process of it is whole, from its first sample on,
/// though user space never says anything of that process; and of the first one, that it is told.
#[test]
fn processes_of_known_files_have_whole_stacks_from_their_first_sample() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("known");
    compile_with(&chain_source(12), &program, &WITHOUT);
    let (mut sampler, mut tables) = scene();
    let first = Chain::start(&program, &[]);
    let before = in_chain(&mut sampler, &first, 5);
    assert!(
        before
            .iter()
            .all(|sample| sample.without_tables && sample.end == StackEnd::BeforeTables)
    );
    learn(&mut sampler, &mut tables, &first);
    drop(first);
    for _ in 0..10 {
        let victim = Chain::start(&program, &[]);
        for sample in in_chain(&mut sampler, &victim, 10) {
            let mut functions: Vec<usize> = victim.functions_of(&sample.user).into_iter().flatten().collect();
            functions.truncate(13); // start-up code may lie beside `main`
            assert_eq!((sample.end, functions), (StackEnd::Root, (0..=12).collect()));
            assert!(!sample.guessed, "{sample:x?}");
        }
    }
}

/// Maps one page of code of a file at each of many places, neighbours with different rights, so that they stay apart; then runs through
/// all of them, and back.
const MANY: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int argc, char **argv)
{
	int file = open(argv[1], O_RDONLY), count = 2000;
	void (*code[2000])(long);
	for (int i = 0; i < count; i++) {
		char *place = mmap(0, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		code[i] = (void (*)(long))(place + 4096);
		if (mmap(place + 4096, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, (i % 5) * 4096) == MAP_FAILED) return 1;
	}
	printf("0\n"); fflush(stdout);
	for (;;)
		for (int i = 0; i < count; i++) code[i](20000);
}
"#;

/// Checks that what ticks say of files is what `/proc` and the file system say: the mapping's beginning, file, size, last change and
/// offset, also among thousands of mappings, the vdso included.
#[test]
fn the_file_behind_an_address_is_the_one_that_proc_names() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (program, data) = (folder.path().join("many"), folder.path().join("data"));
    compile_with(MANY, &program, &WITHOUT);
    // dec %rdi; jnz back; ret
    let loops = [0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3];
    let mut page = [0xcc; 4096];
    page[..loops.len()].copy_from_slice(&loops);
    std::fs::write(&data, page.repeat(5)).unwrap();
    let (mut sampler, tables) = scene();
    let victim = Chain::start(&program, &[&data]);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", victim.pid())).unwrap();
    let mut by_start = BTreeMap::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let start = hex(words[0].split_once('-').unwrap().0);
        by_start.insert(start, (hex(words[2]), words.get(5).copied().unwrap_or_default()));
    }
    let mut places = BTreeMap::new();
    let mut starts = std::collections::BTreeSet::new();
    let until = Instant::now() + PATIENCE;
    while starts.len() < 50 || places.keys().filter(|(path, _)| Path::new(path) == data).count() < 5 {
        assert!(Instant::now() < until, "{starts:x?} {places:?}");
        samples_of(&mut sampler, victim.pid(), Duration::from_millis(20));
        for met in tables.memory.places.met() {
            if met.image.tgid == victim.pid() {
                let (offset, path) = by_start[&met.start];
                check(&met.file, path, offset);
                starts.insert(met.start);
                *places.entry((path, offset)).or_insert(0) += 1;
            }
            tables.memory.places.dismiss(&met.file).unwrap();
        }
    }
}

fn check(file: &FilePlace, path: &str, offset: u64) {
    if path == "[vdso]" {
        assert!(file.is_vdso());
        return;
    }
    let meta = Path::new(path).metadata().unwrap();
    let told = (
        file.inode,
        file.bytes,
        file.changed_s,
        file.changed_ns,
        file.offset,
    );
    let (changed_s, changed_ns) = (meta.ctime() as u64, meta.ctime_nsec() as u32);
    assert_eq!(
        told,
        (meta.ino(), meta.len(), changed_s, changed_ns, offset),
        "{path}"
    );
}

/// Checks that a file that was written to is another: its processes are not walked by the table of what it was.
#[test]
fn a_file_that_was_changed_is_not_walked_by_its_old_table() {
    if skipped() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (program, other) = (folder.path().join("changed"), folder.path().join("other"));
    compile_with(&chain_source(12), &program, &WITHOUT);
    compile_with(&chain_source(20), &other, &WITHOUT);
    let (mut sampler, mut tables) = scene();
    let first = Chain::start(&program, &[]);
    learn(&mut sampler, &mut tables, &first);
    drop(first);
    // In place: the same inode.
    let bytes = std::fs::read(&other).unwrap();
    let inode = program.metadata().unwrap().ino();
    std::fs::write(&program, bytes).unwrap();
    assert_eq!(program.metadata().unwrap().ino(), inode);
    let second = Chain::start(&program, &[]);
    let kept = in_chain(&mut sampler, &second, 20);
    assert!(
        kept.iter()
            .all(|sample| sample.without_tables && sample.end == StackEnd::BeforeTables)
    );
}
