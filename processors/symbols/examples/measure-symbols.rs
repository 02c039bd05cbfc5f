//! Measures the symbolizer on one binary: `measure-symbols [BINARY]`, by default this executable itself.
//!
//! Addresses are drawn over the functions of its symbol table. Cold: the first 10,000, parse included. Warm: 10,000
//! others, so that the memo knows none and the worker has parsed all. Then batches whose frames the memo knows.
#![allow(clippy::unwrap_used)] // It measures; where something is missing it may fail as it likes.

use std::path::PathBuf;
use std::time::Instant;

use object::{Object, ObjectSymbol, ReadCache};
use strobe_event::{Binary, BinaryKind, BuildId, Frames, RawBatch, RunHead, RunId};
use strobe_store::{BinaryKey, Store};
use strobe_symbols::{Binaries, Limits, Resolved, Settings, Symbolizer};

const ADDRESSES: usize = 10_000;
const BATCH_FRAMES: usize = 4_000;

fn main() {
    let own = std::env::current_exe().unwrap();
    let binary = std::env::args_os().nth(1).map_or(own.clone(), PathBuf::from);
    let folder = std::env::temp_dir().join(format!("measure-symbols-{}", std::process::id()));
    let key = BinaryKey {
        kind: BinaryKind::Gnu,
        id: BuildId::new(b"measured").unwrap(),
    };
    let place = folder.join(key.executable());
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::copy(&binary, &place).unwrap();

    let settings = Settings {
        binaries: Binaries::of_folder(Store::in_folder(&folder).unwrap()),
        worker: vec![own.with_file_name("symbol-worker").into_os_string()],
        debug_folders: Vec::new(),
        hints: None,
        limits: Limits {
            memory_bytes: 4 << 30,
            binary_bytes: 4 << 30,
            ..Limits::default()
        },
    };
    let mut symbolizer = Symbolizer::new(settings).unwrap();
    let functions = functions(&binary);
    println!("{}: {} functions", binary.display(), functions.len());
    let pass = |offset: u64| -> Vec<u64> {
        (0..ADDRESSES)
            .map(|at| functions[at * 7_919 % functions.len()] + offset + (at / functions.len()) as u64)
            .collect()
    };
    for (name, addresses) in [("cold", pass(1)), ("warm", pass(2)), ("warm_again", pass(3))] {
        let asked = symbolizer.telemetry().addresses_asked;
        let start = Instant::now();
        let resolved = symbolizer.resolve(key.kind, &key.id, &addresses).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let asked = symbolizer.telemetry().addresses_asked - asked;
        let named = resolved
            .iter()
            .filter(|name| matches!(name, Resolved::Symbols(_)))
            .count();
        let levels: usize = resolved
            .iter()
            .map(|name| {
                if let Resolved::Symbols(at) = name {
                    at.len()
                } else {
                    0
                }
            })
            .sum();
        println!(
            "# {name}: {asked} asked in {seconds:.3} s, {named} of {} named, {levels} locations",
            resolved.len()
        );
        println!("figure symbols.{name}_per_s value={:.0}", asked as f64 / seconds);
    }
    let rss = worker_rss_mib(&symbolizer);
    println!("figure symbols.worker_rss_mib value={rss:.0}");

    // A dictionary in which nearly each frame has a function of its own, and one of 100 functions: text is copied
    // once per batch and distinct name, so the second shows what the memo alone costs.
    let few: Vec<u64> = (0..BATCH_FRAMES)
        .map(|at| functions[at % 100] + (at / 100) as u64 % 8)
        .collect();
    for (name, addresses) in [("many_names", &pass(2)[..BATCH_FRAMES]), ("few_names", &few)] {
        let batch = batch(&key, addresses);
        symbolizer.locate(&batch).unwrap();
        let requests = symbolizer.telemetry().requests;
        let rounds = 1_000;
        let start = Instant::now();
        let mut last = symbolizer.locate(&batch).unwrap();
        for _ in 1..rounds {
            last = std::hint::black_box(symbolizer.locate(&batch).unwrap());
        }
        let ns = start.elapsed().as_nanos() as f64 / (rounds * BATCH_FRAMES) as f64;
        assert_eq!(symbolizer.telemetry().requests, requests);
        println!(
            "# {name}: {BATCH_FRAMES} frames, {} locations, {} texts",
            last.function.len(),
            last.text.len()
        );
        println!("figure symbols.frame_of_{name}_ns value={ns:.1} target<=50");
    }
    println!(
        "figure symbols.memo_bytes_per_address value={:.0}",
        memo_bytes(&symbolizer)
    );
    std::fs::remove_dir_all(folder).unwrap();
}

fn memo_bytes(symbolizer: &Symbolizer) -> f64 {
    let seen = symbolizer.telemetry();
    seen.memo_bytes as f64 / seen.addresses_asked as f64
}

fn functions(binary: &PathBuf) -> Vec<u64> {
    let cache = ReadCache::new(std::fs::File::open(binary).unwrap());
    let elf = object::File::parse(&cache).unwrap();
    let function = |symbol: &object::Symbol<'_, '_, &ReadCache<std::fs::File>>| {
        symbol.kind() == object::SymbolKind::Text && symbol.size() > 8
    };
    let mut functions: Vec<u64> = elf
        .symbols()
        .filter(function)
        .map(|symbol| symbol.address())
        .collect();
    functions.sort_unstable();
    functions.dedup();
    functions
}

fn worker_rss_mib(symbolizer: &Symbolizer) -> f64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", symbolizer.worker_pid().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn batch(key: &BinaryKey, addresses: &[u64]) -> RawBatch {
    RawBatch {
        run: RunHead {
            id: RunId([0; 16]),
            host: "host".to_owned(),
            profiler: "cpu".to_owned(),
            cause: 1,
            started_us: 0,
            planned_us: 1,
            slot_us: 1,
            run_probability: 1.0,
            kernel_probability: 1.0,
            period: 1,
        },
        index: 0,
        start_us: 0,
        end_us: 1,
        cpus: Vec::new(),
        drops: Vec::new(),
        strings: vec![String::new()],
        binaries: vec![Binary {
            kind: key.kind,
            id: key.id.clone(),
            path: 0,
        }],
        frames: Frames {
            binary: vec![1; addresses.len()],
            address: addresses.to_vec(),
            name: vec![0; addresses.len()],
            reason: vec![0; addresses.len()],
        },
        stacks: Default::default(),
        processes: Vec::new(),
        threads: Default::default(),
        samples: Default::default(),
    }
}
