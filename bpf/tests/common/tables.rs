//! Tables of running processes, put where the sampler reads them: what the agent does, without its bookkeeping.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use object::{Object, ObjectSegment};
use strobe_bpf::{Block, ImageIdentity, MappingEntry, Sampler, SamplerSettings, StackEnd, TableMemory};
use strobe_unwind::Table;

use crate::common::compile_with;

struct Loaded {
    base: u64,
    entry: MappingEntry,
    /// File offset, length, address of each segment.
    segments: Vec<(u64, u64, u64)>,
}

/// What was put into the memory, by path.
pub struct Tables {
    pub memory: TableMemory,
    loaded: BTreeMap<String, Option<Loaded>>,
}

fn vdso() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let (start, end) = (hex(start), hex(rest.split(' ').next().unwrap()));
    let mut bytes = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")
        .unwrap()
        .read_exact_at(&mut bytes, start)
        .unwrap();
    bytes
}

impl Tables {
    pub fn new(memory: TableMemory) -> Self {
        let loaded = BTreeMap::new();
        Self { memory, loaded }
    }

    fn load(&mut self, path: &str) -> Option<&Loaded> {
        if !self.loaded.contains_key(path) {
            let loaded = self.build(path);
            self.loaded.insert(path.to_owned(), loaded);
        }
        self.loaded[path].as_ref()
    }

    fn build(&mut self, path: &str) -> Option<Loaded> {
        let file = if path == "[vdso]" {
            vdso()
        } else {
            std::fs::read(path).ok()?
        };
        let bytes = strobe_unwind::build(&*file, "test").ok()?;
        let header = *Table::open(&bytes).unwrap().header();
        let block = self.memory.store(&bytes).unwrap().unwrap();
        let at = block.address();
        let entry = MappingEntry {
            rows_at: at + header.rows_at,
            rows: header.rows,
            directory_at: at + header.directory_at,
            pages: header.pages,
            rules_at: at + header.rules_at,
            page_shift: header.page_shift,
            ..MappingEntry::default()
        };
        let elf = object::File::parse(&*file).ok()?;
        let segments = elf
            .segments()
            .map(|segment| {
                let (offset, length) = segment.file_range();
                (offset, length, segment.address())
            })
            .collect();
        Some(Loaded {
            base: header.base,
            entry,
            segments,
        })
    }

    /// Gives a process its tables, as its mappings are now.
    pub fn give(&mut self, image: &ImageIdentity) -> Block {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", image.tgid)).unwrap();
        let mut entries = Vec::new();
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (start, end) = words.next().unwrap().split_once('-').unwrap();
            if !words.next().unwrap().contains('x') {
                continue;
            }
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end, offset) = (hex(start), hex(end), hex(words.next().unwrap()));
            let path = words.nth(2).unwrap_or_default();
            let mapping = MappingEntry {
                start,
                end,
                ..MappingEntry::default()
            };
            let known = self.load(path).and_then(|loaded| {
                // The mapping is rounded to pages: it may begin before its segment.
                let own = |(from, length, _): &&(u64, u64, u64)| *length > 0 && from & !0xfff == offset;
                let (from, _, address) = loaded.segments.iter().rfind(own)?;
                let bias = start.wrapping_sub(address - (from - offset));
                Some(MappingEntry {
                    start,
                    end,
                    offset: bias.wrapping_add(loaded.base),
                    ..loaded.entry
                })
            });
            entries.push(known.unwrap_or(mapping));
        }
        let list = self.memory.store_mappings(&entries).unwrap().unwrap();
        self.memory.set_process(image, &list, entries.len()).unwrap();
        list
    }
}

impl Tables {
    /// Says which files have which tables, of all that ticks have met in a process as its mappings are now; returns how many.
    pub fn know(&mut self, pid: u32) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut count = 0;
        for met in self.memory.places.met() {
            let start = format!("{:x}-", met.start);
            let Some(line) = maps.lines().find(|line| line.starts_with(&start)) else {
                continue;
            };
            if met.image.tgid != pid {
                continue;
            }
            let path = line.split_whitespace().nth(5).unwrap_or_default();
            let Some(loaded) = self.load(path) else { continue };
            let offset = met.file.offset;
            let own = |(from, length, _): &&(u64, u64, u64)| *length > 0 && from & !0xfff == offset;
            let (from, _, address) = loaded.segments.iter().rfind(own).unwrap();
            let entry = MappingEntry {
                offset: loaded.base.wrapping_sub(address - (from - offset)),
                ..loaded.entry
            };
            self.memory.places.know(&met.file, &entry).unwrap();
            self.memory.places.dismiss(&met.file).unwrap();
            count += 1;
        }
        count
    }
}

pub const BYTES: u64 = 64 << 20;

/// A sample, kept.
#[derive(Clone, Debug)]
pub struct Kept {
    pub image: ImageIdentity,
    pub in_kernel: bool,
    pub user: Vec<u64>,
    pub end: StackEnd,
    pub without_tables: bool,
    pub guessed: bool,
}

pub fn start() -> Sampler {
    Sampler::start(&SamplerSettings {
        omit_sent_stacks: false,
        tables_bytes_max: BYTES,
        ..SamplerSettings::at(997)
    })
    .unwrap()
}

/// Reads for a while the samples of one process.
pub fn samples_of(sampler: &mut Sampler, pid: u32, duration: Duration) -> Vec<Kept> {
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
pub fn give(sampler: &mut Sampler, tables: &mut Tables, pid: u32) -> ImageIdentity {
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

pub const WITHOUT: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fasynchronous-unwind-tables",
];

/// A program without frame pointers, and a sampler with tables, which nobody has been given yet.
pub struct Scene {
    /// Where the program lies, as long as the scene lasts.
    pub folder: tempfile::TempDir,
    pub program: PathBuf,
    pub sampler: Sampler,
    pub tables: Tables,
}

impl Scene {
    pub fn new(name: &str, source: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(name);
        compile_with(source, &program, &WITHOUT);
        let mut sampler = start();
        let tables = Tables::new(sampler.take_tables().unwrap());
        Self {
            folder,
            program,
            sampler,
            tables,
        }
    }
}
