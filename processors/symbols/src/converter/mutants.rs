//! Ten thousand mutated binaries.
//!
//! The converter starts a worker for each binary, which would take minutes here. These keep theirs as long as it lives, and
//! are as hard on it: it has the same limits, and what ends it is counted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::child::{Ended, Worker};
use crate::file::SymbolFile;
use crate::wire::{self, Hello, Piece};

const MUTANTS: u64 = 10_000;
const MEMORY_BYTES: u64 = 256 << 20;

const PROGRAM: &str = "
struct list { struct list *next; unsigned long value; };
static inline unsigned long fold(unsigned long a, unsigned long b) { return a * 31 + (b ^ (a >> 7)); }
static unsigned long walk(const struct list *at, unsigned long sum) {
    return at ? walk(at->next, fold(sum, at->value)) : sum;
}
__attribute__((noinline)) unsigned long tail(const struct list *at) { return walk(at, fold(at->value, 3)); }
int main(int argc, char **argv) {
    struct list items[2] = {{&items[1], (unsigned long)argc}, {0, 7}};
    return (int)tail(items);
}
";

fn start() -> Worker {
    let own = std::env::current_exe().unwrap();
    let example = own.ancestors().nth(2).unwrap().join("examples/symbol-worker");
    let hello = Hello {
        memory_bytes: MEMORY_BYTES,
        address_space_bytes: MEMORY_BYTES + crate::settings::PROGRAM_BYTES,
        binary_bytes: 1 << 30,
        parsed: 1,
        debug_folders: Vec::new(),
    };
    Worker::start(&[example.into_os_string()], &hello).unwrap()
}

/// Returns the symbol file of a binary; nothing where there is a reason instead.
fn convert(worker: &mut Worker, binary: &Path) -> Result<Option<Vec<u8>>, Ended> {
    let deadline = Instant::now() + Duration::from_secs(20);
    worker.send(&wire::encode_convert([Some(binary), None, None]), deadline)?;
    let mut file = Vec::new();
    loop {
        match wire::decode_piece(worker.receive(deadline)?) {
            Some(Piece::Part(part)) => file.extend_from_slice(part),
            Some(Piece::End) => return Ok(Some(file)),
            Some(Piece::Failed(_)) => return Ok(None),
            None => return Err(Ended::Nonsense),
        }
    }
}

fn mutate(good: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut mutant = good.to_vec();
    for _ in 0..random.random_range(1..40) {
        // The front has the headers, the back the section table.
        let at = match random.random_range(0..4) {
            0 => random.random_range(0..64),
            1 => mutant.len() - 1 - random.random_range(0..3_000.min(mutant.len())),
            _ => random.random_range(0..mutant.len()),
        };
        mutant[at] = match random.random_range(0..4) {
            0 => 0xff,
            1 => 0,
            2 => 0x7f,
            _ => random.random(),
        };
    }
    if random.random_range(0..10) == 0 {
        mutant.truncate(random.random_range(0..mutant.len()));
    }
    mutant
}

/// Looks a symbol file over, and looks addresses up in it.
fn use_file(bytes: Vec<u8>) {
    let length = bytes.len() as u64;
    let mut file = SymbolFile::open(Box::new(bytes), length, 1 << 20).unwrap();
    file.verify().unwrap();
    let mut places = Vec::new();
    for address in (0..0x8000).step_by(97) {
        file.find(address, &mut places).unwrap();
    }
    for place in places {
        file.function(place.function).unwrap();
    }
}

/// Converts a share of the mutants; returns how many gave a file, a reason, and the worker's end.
fn run(good: &[u8], seed: u64, place: PathBuf, count: u64) -> [u64; 3] {
    let mut random = StdRng::seed_from_u64(seed);
    let mut worker = start();
    let mut seen = [0; 3];
    for round in 0..count {
        std::fs::write(&place, mutate(good, &mut random)).unwrap();
        match convert(&mut worker, &place) {
            Ok(Some(file)) => {
                seen[0] += 1;
                use_file(file);
            }
            Ok(None) => seen[1] += 1,
            Err(ended) => {
                seen[2] += 1;
                println!("seed {seed}, round {round}: {ended:?}");
                worker = start();
            }
        }
        if round % 500 == 0 {
            std::fs::write(&place, good).unwrap();
            let file = convert(&mut worker, &place).unwrap().unwrap();
            use_file(file);
        }
    }
    seen
}

/// Checks that of 10,000 mutated binaries each gets a symbol file that holds together, or its reason; that nothing that is
/// looked up in what was made does any harm; that none of them ends the worker, by its memory, by its time or by a fault; and
/// that an honest binary is served in between.
#[test]
fn ten_thousand_mutants_end_no_worker() {
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("program.c"), folder.path().join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("gcc")
        .args(["-g", "-O2", "-o"])
        .args([&binary, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: ten_thousand_mutants_end_no_worker: `gcc` is not installed");
        return;
    }
    let good = std::fs::read(&binary).unwrap();
    let seen: Vec<[u64; 3]> = std::thread::scope(|scope| {
        let halves = (0..2).map(|half| {
            let (good, place) = (&good, folder.path().join(format!("mutant{half}")));
            scope.spawn(move || run(good, 0x5eed + half, place, MUTANTS / 2))
        });
        let halves: Vec<_> = halves.collect();
        halves.into_iter().map(|half| half.join().unwrap()).collect()
    });
    let [made, failed, ended] = [0, 1, 2].map(|at| seen.iter().map(|half| half[at]).sum::<u64>());
    println!("{MUTANTS} mutants: {made} made, {failed} with a reason, {ended} ended the worker");
    assert_eq!(made + failed, MUTANTS);
    assert!(made > MUTANTS / 10 && failed > MUTANTS / 10);
}
