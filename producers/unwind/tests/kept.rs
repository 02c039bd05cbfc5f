//! Kept tables, and the worker that makes them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use common::made;
use strobe_unwind::{Kept, Maker, Table, UnwindError, build};

/// Returns the worker, which is an example of this crate; `None` where only this test was built.
fn worker() -> Option<Vec<OsString>> {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(Path::parent).unwrap();
    let path = folder.join("examples/unwind_worker");
    if !path.exists() {
        println!("skipped: {} was not built", path.display());
        return None;
    }
    Some(vec![path.into_os_string()])
}

fn maker(folder: &Path, bytes_max: u64) -> Option<Maker> {
    Some(Maker::new(worker()?, Kept::open(folder, bytes_max).unwrap()))
}

fn file_of(folder: &Path, bytes: &[u8]) -> File {
    let path = folder.join("binary");
    fs::write(&path, bytes).unwrap();
    File::open(path).unwrap()
}

fn own() -> File {
    File::open(std::env::current_exe().unwrap()).unwrap()
}

fn tables(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// Checks that the worker's table is what this process would have made, that it is made once, and that a restart finds it.
#[test]
fn a_table_is_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(maker_before) = maker(folder.path(), 1 << 30) else {
        return;
    };
    let made = maker_before.table("own", own()).unwrap();
    let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(
        made == build(&*bytes, "own").unwrap(),
        "another table than this process makes"
    );
    assert!(maker_before.table("own", own()).unwrap() == made);
    assert_eq!(maker_before.made(), 1);
    let after = maker(folder.path(), 1 << 30).unwrap();
    assert!(after.table("own", own()).unwrap() == made);
    assert_eq!((after.made(), after.kept().len()), (0, 1));
}

/// Checks that what is no binary, has nothing to read, or is a directory, is an answer with its reason, and leaves nothing
/// behind.
#[test]
fn refusals_have_their_reasons() {
    let (folder, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(maker) = maker(folder.path(), 1 << 30) else {
        return;
    };
    let text = file_of(files.path(), b"#!/bin/sh\nexit 0\n");
    assert!(matches!(maker.table("text", text), Err(UnwindError::NotElf)));
    let silent = file_of(files.path(), &made::elf(4_096, &[0; 4]));
    assert!(matches!(
        maker.table("silent", silent),
        Err(UnwindError::NoFrameInfo)
    ));
    let vast = file_of(files.path(), &made::elf(1 << 40, &[0; 4]));
    let said = maker.table("vast", vast).unwrap_err().to_string();
    assert!(said.contains("more than the limit"), "{said}");
    let directory = File::open(files.path()).unwrap();
    assert!(maker.table("directory", directory).is_err());
    let error = maker.table("../escape", own()).unwrap_err();
    assert!(matches!(error, UnwindError::BadKey { .. }), "{error}");
    assert_eq!((maker.made(), maker.refused()), (0, 5));
    assert_eq!(tables(folder.path()), Vec::<PathBuf>::new());
}

/// Checks that a worker that dies, or says nothing that is a table, costs an answer and leaves nothing behind.
#[test]
fn a_worker_that_dies_costs_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let shell = |script: &str| {
        let command = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
        Maker::new(command, Kept::open(folder.path(), 1 << 30).unwrap())
    };
    let killed = shell("kill -9 $$").table("own", own()).unwrap_err().to_string();
    assert!(killed.contains("signal"), "{killed}");
    let nonsense = shell("echo nonsense").table("own", own()).unwrap_err();
    assert!(matches!(nonsense, UnwindError::BadTable { .. }), "{nonsense}");
    let missing = Maker::new(
        vec!["/nowhere".into()],
        Kept::open(folder.path(), 1 << 30).unwrap(),
    )
    .table("own", own());
    assert!(matches!(missing, Err(UnwindError::Start { .. })));
    assert_eq!(tables(folder.path()), Vec::<PathBuf>::new());
}

fn keep(kept: &mut Kept, key: &str, functions: u64) -> u64 {
    let table = build(&*made::many_functions(functions), key).unwrap();
    let mut new = kept.begin(key).unwrap();
    new.file.write_all(&table).unwrap();
    kept.finish(new).unwrap();
    table.len() as u64
}

/// Checks that damaged, foreign and half-written files are removed when they are met, and never given out.
#[test]
fn damaged_tables_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = Kept::open(folder.path(), 1 << 30).unwrap();
    let bytes = keep(&mut kept, "a", 100) as usize;
    let path = folder.path().join("a.unwind");
    let whole = fs::read(&path).unwrap();
    for at in (0..bytes).step_by(97) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let mut kept = Kept::open(folder.path(), 1 << 30).unwrap();
        assert_eq!(kept.get("a"), None, "byte {at}");
        assert!(!path.exists());
    }
    for length in (0..bytes).step_by(1_009) {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(Kept::open(folder.path(), 1 << 30).unwrap().get("a"), None);
    }
    // The table of another binary, under this one's name.
    fs::write(folder.path().join("b.unwind"), &whole).unwrap();
    fs::write(folder.path().join("c.new"), b"half").unwrap();
    let mut kept = Kept::open(folder.path(), 1 << 30).unwrap();
    assert_eq!((kept.get("b"), kept.damaged), (None, 1));
    assert_eq!(tables(folder.path()), Vec::<PathBuf>::new());
}

/// Checks that the folder stays within its limit, and that what was used last stays.
#[test]
fn what_was_not_used_for_longest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = Kept::open(folder.path(), 1 << 30).unwrap();
    let each = keep(&mut kept, "first", 1_000);
    drop(kept);
    let mut kept = Kept::open(folder.path(), 3 * each + each / 2).unwrap();
    for key in ["second", "third"] {
        keep(&mut kept, key, 1_000);
    }
    assert!(kept.get("first").is_some());
    keep(&mut kept, "fourth", 1_000);
    assert_eq!((kept.len(), kept.evicted), (3, 1));
    assert!(kept.get("second").is_none());
    assert!(
        ["first", "third", "fourth"]
            .into_iter()
            .all(|key| kept.get(key).is_some())
    );
    // A smaller limit holds from the start.
    let kept = Kept::open(folder.path(), each + each / 2).unwrap();
    assert_eq!(kept.len(), 1);
    let on_disk: u64 = tables(folder.path())
        .iter()
        .map(|path| fs::metadata(path).unwrap().len())
        .sum();
    assert_eq!(on_disk, kept.bytes());
}

/// Checks that the kept table is the very bytes that were made, readable as a table of its binary.
#[test]
fn a_kept_table_names_its_binary() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = Kept::open(folder.path(), 1 << 30).unwrap();
    keep(&mut kept, "gnu-0123456789abcdef", 10);
    let bytes = kept.get("gnu-0123456789abcdef").unwrap();
    assert_eq!(Table::open(&bytes).unwrap().key(), b"gnu-0123456789abcdef");
}
