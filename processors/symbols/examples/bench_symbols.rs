//! Measures symbol files against the field's: `bench_symbols [--binary FILE] [--debug FILE] [--peers FOLDER]`.
//!
//! One large binary with full debug information, by default this executable. Made: time and memory of the conversion,
//! beside `llvm-gsymutil` on one thread. Asked: distinct addresses drawn over all functions, with lines, inlined chains
//! and names, each as a person would read it; beside blazesym on GSYM and on the binary itself, and `llvm-symbolizer`.
//! Then real stacks, the first answer of a file that nobody has opened yet, and memory with ten files in use.
//!
//! Rates are per core: time is what this thread spent on its CPU, and of a child what the kernel accounts for it, so that they do
//! not fall with what else the machine does. An answer of ours is numbers, and text is read once for all of them, which is
//! printed beside it; the peers write text for each address.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // It measures; where something is missing it may fail as it likes.

use std::collections::hash_map;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use blazesym::symbolize::source::{Elf, GsymFile, Source};
use blazesym::symbolize::{self, Input, Symbolized};
use object::{Object, ObjectSymbol, ReadCache};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use strobe_event::{Binary, BinaryKind, BuildId, Frames, RawBatch, RunHead, RunId};
use strobe_store::{BinaryKey, Store};
use strobe_symbols::file::{Hit, Level, Place, Sizes, SymbolFile, VERSION};
use strobe_symbols::{Binaries, Limits, Settings, Symbolizer};

/// Distinct addresses asked for: more than any cache line is used twice for.
const ADDRESSES: usize = 400_000;
/// Addresses that slower tools are asked for.
const FEW: usize = 10_000;
/// Frames in the dictionary of a batch, and stacks over them.
const BATCH_FRAMES: usize = 4_000;
const STACK_FRAMES: usize = 40;
const BATCH_SAMPLES: usize = 8_192;
const ROUNDS: usize = 5;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let own = std::env::current_exe().unwrap();
    let (mut binary, mut debug) = (own.clone(), None);
    while let Some(flag) = arguments.next() {
        let value = PathBuf::from(arguments.next().expect("a value behind each flag"));
        match flag.to_str() {
            Some("--binary") => binary = value,
            Some("--debug") => debug = Some(value),
            _ => panic!("usage: bench_symbols [--binary FILE] [--debug FILE]"),
        }
    }
    let folder = std::env::temp_dir().join(format!("bench-symbols-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let bytes = fs::metadata(&binary).unwrap().len();
    println!("{}: {:.0} MB", binary.display(), bytes as f64 / 1e6);
    let bench = Bench {
        worker: own.with_file_name("symbol-worker"),
        // Beside the folder of the examples; it is built with them.
        strobe: own.parent().and_then(Path::parent).unwrap().join("strobe"),
        symbols: folder.join("symbols"),
        gsym: folder.join("gsym"),
        described: debug.clone().unwrap_or_else(|| binary.clone()),
        binary,
        debug,
        folder,
    };
    let (sizes, gsym) = bench.made();
    let addresses = bench.addresses();
    // First, while this process holds nothing else: what it holds then is what is printed.
    bench.memory(&addresses, sizes);
    bench.cold(&addresses);
    bench.asked(&addresses, gsym);
    bench.stacks(&addresses);
    fs::remove_dir_all(&bench.folder).unwrap();
}

struct Bench {
    worker: PathBuf,
    strobe: PathBuf,
    folder: PathBuf,
    binary: PathBuf,
    debug: Option<PathBuf>,
    /// Whichever of the two has the debug information.
    described: PathBuf,
    symbols: PathBuf,
    gsym: PathBuf,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs a command under `time`; returns its seconds and the most memory that it had, in MiB.
fn timed(command: &mut Command) -> Option<(f64, f64)> {
    let mut all = Command::new("/usr/bin/time");
    all.args(["-f", "%e %M"])
        .arg(command.get_program())
        .args(command.get_args());
    let output = all.stdout(Stdio::null()).stderr(Stdio::piped()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut words = text.lines().last()?.split(' ').map(|word| word.parse::<f64>());
    let (seconds, kib) = (words.next()?.ok()?, words.next()?.ok()?);
    output.status.success().then_some((seconds, kib / 1024.0))
}

fn gsymutil() -> Option<&'static str> {
    ["llvm-gsymutil", "llvm-gsymutil-14", "llvm-gsymutil-19"]
        .into_iter()
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        })
}

impl Bench {
    fn made(&self) -> (Sizes, bool) {
        // The peer first: both then read the binary from memory.
        let gsym = gsymutil().and_then(|tool| {
            timed(
                Command::new(tool)
                    .arg("--num-threads=1")
                    .arg(format!("--convert={}", self.described.display()))
                    .arg(format!("--out-file={}", self.gsym.display())),
            )
        });
        if gsym.is_none() {
            println!("skipped: llvm-gsymutil: `apt-get install llvm`");
        }
        let mut make = Command::new(&self.strobe);
        make.args(["symbols", "make"])
            .arg(&self.binary)
            .arg("--output")
            .arg(&self.symbols);
        if let Some(debug) = &self.debug {
            make.arg("--debug").arg(debug);
        }
        let mut runs: Vec<(f64, f64)> = (0..3)
            .map(|_| timed(&mut make).expect("the binary gives a symbol file"))
            .collect();
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (best, rss) = (runs[0].0, runs[0].1);
        let file = self.open(1 << 20);
        let (facts, sizes) = (file.facts(), file.sizes());
        println!("# {facts:?}");
        println!("# {sizes:?}");
        let peer = |value: Option<f64>| {
            value.map_or(String::new(), |value| format!(" peer:llvm_gsymutil={value:.2}"))
        };
        let gsym_mib = fs::metadata(&self.gsym).ok().map(|meta| mib(meta.len()));
        println!(
            "figure symbols.convert_s value={best:.2}{}",
            peer(gsym.map(|(seconds, _)| seconds))
        );
        println!(
            "figure symbols.convert_rss_mib value={rss:.0}{}",
            peer(gsym.map(|(_, rss)| rss))
        );
        println!(
            "figure symbols.file_mib value={:.1}{}",
            mib(sizes.file - sizes.names),
            peer(gsym_mib)
        );
        println!("figure symbols.names_mib value={:.1}", mib(sizes.names));
        (sizes, gsym.is_some())
    }

    /// Returns distinct addresses drawn over all functions, in no order.
    fn addresses(&self) -> Vec<u64> {
        let cache = ReadCache::new(File::open(&self.described).unwrap());
        let elf = object::File::parse(&cache).unwrap();
        let mut functions: Vec<(u64, u64)> = elf
            .symbols()
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0)
            .map(|symbol| (symbol.address(), symbol.size()))
            .collect();
        functions.sort_unstable();
        functions.dedup_by_key(|function| function.0);
        let mut random = StdRng::seed_from_u64(7);
        let mut drawn = Vec::with_capacity(2 * ADDRESSES);
        for _ in 0..2 * ADDRESSES {
            let (start, bytes) = functions[random.random_range(0..functions.len())];
            drawn.push(start + random.random_range(0..bytes));
        }
        drawn.sort_unstable();
        drawn.dedup();
        drawn.shuffle(&mut random);
        drawn.truncate(ADDRESSES);
        println!(
            "# {} functions, {} distinct addresses",
            functions.len(),
            drawn.len()
        );
        drawn
    }

    fn open(&self, bytes_max: usize) -> SymbolFile {
        let file = File::open(&self.symbols).unwrap();
        let length = file.metadata().unwrap().len();
        SymbolFile::open(Box::new(file), length, bytes_max).unwrap()
    }

    fn asked(&self, addresses: &[u64], gsym: bool) {
        let mut file = self.open(1 << 30);
        let asked = &addresses[addresses.len() / 2..];
        let mut hits: Vec<Hit> = Vec::with_capacity(asked.len());
        let mut levels: FxHashMap<u32, Level> = FxHashMap::default();
        let (mut best, mut in_batches) = (f64::INFINITY, f64::INFINITY);
        // The first round reads the file; it is the warm ones that count.
        for _ in 0..=ROUNDS {
            hits.clear();
            levels.clear();
            let start = cpu_s();
            self.answer(&mut file, asked, &mut hits, &mut levels);
            best = best.min(cpu_s() - start);
            let start = cpu_s();
            for batch in asked.chunks(BATCH_FRAMES) {
                hits.clear();
                levels.clear();
                self.answer(&mut file, batch, &mut hits, &mut levels);
            }
            in_batches = in_batches.min(cpu_s() - start);
        }
        hits.clear();
        levels.clear();
        self.answer(&mut file, asked, &mut hits, &mut levels);
        let per_s = asked.len() as f64 / best;
        println!(
            "# {} addresses in {} distinct chains of calls, sorted first: {:.0} per second; in batches of {BATCH_FRAMES}: {:.0}",
            asked.len(),
            levels.len(),
            per_s,
            asked.len() as f64 / in_batches
        );
        let mut places: Vec<Place> = Vec::with_capacity(16 * addresses.len());
        let start = cpu_s();
        for &address in asked {
            black_box(file.find(address, &mut places).unwrap());
        }
        println!(
            "# one by one, in no order, each with its whole chain of {:.1} levels: {:.0} per second",
            places.len() as f64 / asked.len() as f64,
            asked.len() as f64 / (cpu_s() - start)
        );
        // Text travels once: every distinct function and file of the answers, unpacked and read.
        let start = cpu_s();
        let mut functions: Vec<u32> = places.iter().map(|place| place.function).collect();
        functions.sort_unstable();
        functions.dedup();
        let bytes: usize = functions
            .iter()
            .map(|&id| file.with_name(id, str::len).unwrap())
            .sum();
        let mut files: Vec<u32> = places
            .iter()
            .map(|place| place.file)
            .filter(|&id| id != 0)
            .collect();
        files.sort_unstable();
        files.dedup();
        let paths: usize = files
            .iter()
            .map(|&id| file.with_file(id, str::len).unwrap())
            .sum();
        println!(
            "# {} names and {} paths, {:.1} MB, in {:.3} s",
            functions.len(),
            files.len(),
            (bytes + paths) as f64 / 1e6,
            cpu_s() - start
        );
        let mut peers = String::new();
        let few: Vec<u64> = asked.iter().copied().take(FEW).collect();
        let named = symbolize::Symbolizer::builder().enable_auto_reload(false).build();
        let mut sources = vec![("blazesym_dwarf", Source::Elf(Elf::new(&self.described)))];
        if gsym {
            sources.push(("blazesym_gsym", Source::from(GsymFile::new(&self.gsym))));
        }
        for (name, source) in sources {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let start = cpu_s();
                for batch in few.chunks(1_000) {
                    let found = named.symbolize(&source, Input::VirtOffset(batch)).unwrap();
                    black_box(
                        found
                            .iter()
                            .filter(|name| matches!(name, Symbolized::Sym(_)))
                            .count(),
                    );
                }
                best = best.min(cpu_s() - start);
            }
            peers += &format!(" peer:{name}={:.0}", few.len() as f64 / best);
        }
        match self.llvm_symbolizer(&few) {
            Some(per_s) => peers += &format!(" peer:llvm_symbolizer={per_s:.0}"),
            None => println!("skipped: llvm-symbolizer: `apt-get install llvm`"),
        }
        println!("figure symbols.distinct_per_s value={per_s:.0} target>=5000000{peers}");
    }

    /// Answers addresses: numbers for each, and each level of a chain once.
    fn answer(
        &self,
        file: &mut SymbolFile,
        addresses: &[u64],
        hits: &mut Vec<Hit>,
        levels: &mut FxHashMap<u32, Level>,
    ) {
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        file.find_all(&sorted, |hit| hits.push(hit)).unwrap();
        let mut last = 0;
        for hit in hits {
            // Neighbours lie in the same scope more often than not.
            let mut scope = if hit.scope == last { 0 } else { hit.scope };
            last = hit.scope;
            while scope != 0 {
                let hash_map::Entry::Vacant(vacant) = levels.entry(scope) else {
                    break;
                };
                let level = file.level(scope).unwrap();
                vacant.insert(level);
                scope = level.parent;
            }
        }
    }

    /// Returns what llvm-symbolizer does per second once it has parsed what it needs: further passes over the same addresses.
    fn llvm_symbolizer(&self, addresses: &[u64]) -> Option<f64> {
        let seconds = |rounds: usize| {
            let before = children_s()?;
            let mut child = Command::new("llvm-symbolizer")
                .arg("-i")
                .arg(format!("--obj={}", self.described.display()))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .ok()?;
            let mut input = child.stdin.take()?;
            for _ in 0..rounds {
                for address in addresses {
                    writeln!(input, "{address:#x}").ok()?;
                }
            }
            drop(input);
            let done = child.wait().ok()?.success();
            done.then_some(children_s()? - before)
        };
        let (once, more) = (seconds(1)?, seconds(6)?);
        let passes = (more - once).max(0.01);
        Some(5.0 * addresses.len() as f64 / passes)
    }

    fn key() -> BinaryKey {
        BinaryKey {
            kind: BinaryKind::Gnu,
            id: BuildId::new(b"measured").unwrap(),
        }
    }

    fn symbolizer(&self, limits: Limits) -> Symbolizer {
        Symbolizer::new(Settings {
            binaries: Binaries::of_folder(Store::in_folder(self.folder.join("store")).unwrap()),
            worker: vec![self.worker.clone().into_os_string()],
            debug_folders: Vec::new(),
            hints: None,
            limits,
        })
        .unwrap()
    }

    /// Lays the symbol file into a store under a key.
    fn store(&self, key: &BinaryKey) {
        let place = self.folder.join("store").join(key.symbols(VERSION));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&self.symbols, place).unwrap();
    }

    /// A batch's dictionary of frames is named once, and each of its stacks stands for many frames.
    fn stacks(&self, addresses: &[u64]) {
        let key = Self::key();
        self.store(&key);
        let mut symbolizer = self.symbolizer(Limits::default());
        let start = cpu_s();
        let mut located = 0;
        for frames in addresses.chunks(BATCH_FRAMES) {
            located += symbolizer.locate(&batch(&key, frames)).unwrap().count.len();
        }
        println!(
            "# the whole stage, memo and text included, in batches of {BATCH_FRAMES}: {:.0} distinct addresses per second",
            located as f64 / (cpu_s() - start)
        );
        let batch = batch(&key, &addresses[..BATCH_FRAMES]);
        symbolizer.locate(&batch).unwrap();
        let rounds = 200;
        let start = cpu_s();
        for _ in 0..rounds {
            black_box(symbolizer.locate(&batch).unwrap());
        }
        let seconds = (cpu_s() - start) / f64::from(rounds);
        println!(
            "# {BATCH_FRAMES} frames of a dictionary in {:.0} us",
            seconds * 1e6
        );
        let per_s = (BATCH_SAMPLES * STACK_FRAMES) as f64 / seconds;
        println!(
            "figure symbols.dictionary_frames_per_s value={:.0}",
            BATCH_FRAMES as f64 / seconds
        );
        println!("figure symbols.stack_frames_per_s value={per_s:.0} target>=20000000");
    }

    /// A file that is opened anew for each answer, from the disk's cache.
    fn cold(&self, addresses: &[u64]) {
        let (mut worst, mut worst_cpu): (f64, f64) = (0.0, 0.0);
        let mut sum = 0.0;
        let rounds = 200;
        for &address in &addresses[..rounds] {
            let (start, start_cpu) = (Instant::now(), cpu_s());
            let mut file = self.open(1 << 20);
            let mut places = Vec::new();
            file.find(address, &mut places).unwrap();
            for place in &places {
                black_box(file.with_name(place.function, str::len).unwrap());
                if place.file != 0 {
                    black_box(file.with_file(place.file, str::len).unwrap());
                }
            }
            let ms = start.elapsed().as_secs_f64() * 1e3;
            worst = worst.max(ms);
            worst_cpu = worst_cpu.max((cpu_s() - start_cpu) * 1e3);
            sum += ms;
        }
        println!(
            "# first answer: {:.3} ms on average by the clock, {worst:.3} ms at worst; the figure is the worst of the CPU's time",
            sum / rounds as f64
        );
        println!("figure symbols.cold_ms value={worst_cpu:.3} target<=10");
    }

    /// Ten binaries, each asked for as many addresses as a fleet's services have.
    fn memory(&self, addresses: &[u64], sizes: Sizes) {
        println!("skipped: symbols.cold_remote_ms: ranged reads of a remote store are not there yet");
        let before = resident_mib();
        let mut symbolizer = self.symbolizer(Limits {
            memo_bytes: 8 << 20,
            ..Limits::default()
        });
        let mut most: f64 = 0.0;
        for number in 0..10_u8 {
            let key = BinaryKey {
                kind: BinaryKind::Gnu,
                id: BuildId::new(&[number; 4]).unwrap(),
            };
            self.store(&key);
        }
        for round in 0..3 {
            for number in 0..10_u8 {
                let id = BuildId::new(&[number; 4]).unwrap();
                let part = &addresses[round * FEW..][..FEW];
                for part in part.chunks(1_000) {
                    symbolizer.resolve(BinaryKind::Gnu, &id, part).unwrap();
                }
                most = most.max(resident_mib());
            }
        }
        let seen = symbolizer.telemetry();
        println!(
            "# ten files of {:.0} MiB, {} evictions; {:.0} MiB before",
            mib(sizes.file),
            seen.file_evictions,
            before
        );
        println!("figure symbols.rss_mib value={most:.0} target<=100");
    }
}

/// Returns the seconds that this thread has spent on a CPU.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the seconds that children which have ended spent on CPUs, to a hundredth.
fn children_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: user and system time of children are fields 16 and 17, in ticks of 10 ms.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    let ticks = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn resident_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
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
