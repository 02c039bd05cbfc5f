//! A binary with more rows than other profilers take.
#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Place, build_without, run, samples, settle};
use strobe_event::StackEnd;

/// Pieces of code, each with 6 rows of its own, and bytes of each.
const PIECES: usize = 470_000;
const PIECE_BYTES: usize = 13;
/// A server of this field has 2.8 million rows.
const ROWS: u64 = 2_800_000;
const RUNS_MS: u64 = 2_500;
/// Until a process that has just begun has its list.
const FIRST_US: u64 = 500_000;

/// Pushes three registers, calls what it is given, pops them again, and returns.
const PIECE: [u8; PIECE_BYTES] = [
    0x53, 0x41, 0x54, 0x41, 0x55, 0xff, 0xd7, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0xc3,
];
/// Call frame information of one: so many bytes on, the frame begins so far above the stack pointer.
const PIECE_ROWS: [(u8, u8); 6] = [(2, 16), (2, 24), (2, 32), (4, 24), (2, 16), (1, 8)];

const ASSEMBLY: &str = r#"
	.text
	.globl pieces
	.type pieces, @function
pieces:
.Lcode:
	.incbin "pieces.code"
	.size pieces, . - pieces
.Lcode_end:
	.section .eh_frame, "a", @unwind
.Lfirst:
	.long .Lfirst_end - .Lfirst_id
.Lfirst_id:
	 .long 0
	.byte 1
	.asciz "zR"
	.byte 1, 0x78, 16, 1, 0x1b
	/* rsp + 8, the return address below it */
	.byte 0x0c, 7, 8, 0x80 + 16, 1
	.balign 4, 0
.Lfirst_end:
	.long .Lall_end - .Lall_id
.Lall_id:
	.long .Lall_id - .Lfirst
	.long .Lcode - .
	.long .Lcode_end - .Lcode
	.byte 0
	.incbin "pieces.rows"
	.balign 4, 0
.Lall_end:
	.long 0
	.section .note.GNU-stack, "", @progbits
"#;

const VICTIM: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
extern char pieces[];
volatile uint64_t sink;
static uint64_t ms(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000u + t.tv_nsec / 1000000; }
void back(void) { for (int i = 0; i < 20000; i++) sink += i; }
int main(int count, char **arguments)
{
	uint64_t until = ms() + atoi(arguments[1]), number = 0;
	while (ms() < until) {
		number = (number * 6364136223846793005u + 1442695040888963407u);
		((void (*)(void (*)(void)))(pieces + (number >> 33) % 470000 * 13))(back);
	}
	return 0;
}
"#;

fn build_library(folder: &Path, library: &Path) {
    fs::write(folder.join("pieces.code"), PIECE.repeat(PIECES)).unwrap();
    // `DW_CFA_advance_loc` and `DW_CFA_def_cfa_offset`.
    let mut rows: Vec<u8> = PIECE_ROWS
        .iter()
        .flat_map(|&(bytes, offset)| [0x40 | bytes, 0x0e, offset])
        .collect();
    // From the last `pop` to the first `push`: a `ret` and a `push`; at the very beginning there is only the push.
    rows = rows.repeat(PIECES);
    rows[0] = 0x41;
    fs::write(folder.join("pieces.rows"), rows).unwrap();
    fs::write(folder.join("pieces.s"), ASSEMBLY).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder)
        .args(["-shared", "-Wl,--build-id=sha1", "-o"])
        .arg(library)
        .arg("pieces.s");
    run(&mut gcc);
}

/// Checks that stacks go through a binary with 2.8 million rows, as a server of this field has, wherever in it they are.
#[test]
fn a_binary_with_millions_of_rows_is_walked_through() {
    let name = "a_binary_with_millions_of_rows_is_walked_through";
    let _alone = common::alone();
    if common::skipped(name) {
        return;
    }
    let place = Place::new();
    let (victim, library) = (place.path("victim-large"), place.path("libpieces.so"));
    build_library(place.folder.path(), &library);
    let table = strobe_unwind::build(&*fs::read(&library).unwrap(), "pieces").unwrap();
    let table = strobe_unwind::Table::open(&table).unwrap();
    println!(
        "{} rows, {:.2} bytes each",
        table.header().rows,
        table.bytes_per_row()
    );
    assert!(u64::from(table.header().rows) > ROWS);
    assert!(table.bytes_per_row() < 5.0);
    let linked = format!("-Wl,-rpath,{}", place.folder.path().display());
    build_without(VICTIM, &victim, &["-fPIC", library.to_str().unwrap(), &linked]);
    let agent = place.start();
    // The first one has the table made, among those of all that the host runs.
    run(Command::new(&victim).arg("500"));
    settle(&place);
    let mut child = Command::new(&victim).arg(RUNS_MS.to_string()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    std::thread::sleep(Duration::from_millis(300));
    agent.end();
    let found = samples(&place.batches(), |sample| sample.pid == child.id());
    let first_us = found.iter().map(|sample| sample.time_us).min().unwrap();
    let settled = found
        .iter()
        .filter(|sample| sample.time_us > first_us + FIRST_US)
        .filter(|sample| {
            sample
                .frames
                .iter()
                .any(|frame| Path::new(&frame.path) == library)
        });
    let settled: Vec<_> = settled.collect();
    let whole = settled
        .iter()
        .filter(|sample| sample.end == StackEnd::Root as u8)
        .filter(|sample| {
            // From the outside in: `_start` and what it calls, `main`, the piece. Whether it was taken in `back`, in the piece itself, or in the
            // kernel that fetched the piece's page.
            let mut outer = sample
                .frames
                .iter()
                .take_while(|frame| Path::new(&frame.path) != library)
                .map(|frame| Path::new(&frame.path));
            outer.next() == Some(&*victim) && outer.last() == Some(&*victim)
        });
    let whole = whole.count();
    let mut places: Vec<u64> = settled
        .iter()
        .flat_map(|sample| {
            sample
                .frames
                .iter()
                .filter(|frame| Path::new(&frame.path) == library)
        })
        .map(|frame| frame.address)
        .collect();
    places.sort_unstable();
    places.dedup();
    if let Some(cut) = settled.iter().find(|sample| sample.end != StackEnd::Root as u8) {
        println!("one that is cut: {cut:?}");
    }
    println!(
        "{whole} of {} stacks are whole, through {} places",
        settled.len(),
        places.len()
    );
    assert!(settled.len() > 200, "{} samples", settled.len());
    assert!(whole * 100 >= settled.len() * 99, "{whole} of {}", settled.len());
    assert!(places.len() > 100, "{} places", places.len());
}
