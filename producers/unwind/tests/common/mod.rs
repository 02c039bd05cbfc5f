//! Binaries of this machine and of its compilers, and an oracle: gimli's evaluation of call frame information.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

pub mod made;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EndianSlice, Evaluation, EvaluationResult, LittleEndian,
    Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, Value,
};
use object::{Object, ObjectSection};
use strobe_unwind::rule::{Cfa, Rule, Saved, Step};

/// A binary in memory.
pub struct Sample {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Sample {
    pub fn read(path: impl AsRef<Path>) -> Option<Self> {
        let bytes = std::fs::read(&path).ok()?;
        Some(Self {
            name: path.as_ref().display().to_string(),
            bytes,
        })
    }
}

/// Returns the vdso of this process.
pub fn vdso() -> Sample {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let start = u64::from_str_radix(start, 16).unwrap();
    let end = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();
    let mut bytes = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")
        .unwrap()
        .read_exact_at(&mut bytes, start)
        .unwrap();
    let name = "vdso".to_owned();
    Sample { name, bytes }
}

/// Returns the libraries and programs that the system brought, of those that are there.
pub fn of_the_system() -> Vec<Sample> {
    let libraries = "/usr/lib/x86_64-linux-gnu";
    let paths = [
        format!("{libraries}/libc.so.6"),
        format!("{libraries}/libm.so.6"),
        format!("{libraries}/libstdc++.so.6"),
        format!("{libraries}/ld-linux-x86-64.so.2"),
        format!("{libraries}/libgcc_s.so.1"),
        format!("{libraries}/libcrypto.so.3"),
        "/usr/bin/bash".to_owned(),
        "/usr/bin/python3.11".to_owned(),
        "/usr/bin/git".to_owned(),
    ];
    paths.into_iter().filter_map(Sample::read).collect()
}

/// Runs a compiler; `None`, said as skipped, where it is not installed.
pub fn compiled(
    compiler: &str,
    arguments: &[&str],
    source: &Path,
    libraries: &[&str],
    into: &Path,
) -> Option<Sample> {
    let mut command = Command::new(compiler);
    command
        .args(arguments)
        .arg("-o")
        .arg(into)
        .arg(source)
        .args(libraries)
        .env("GOFLAGS", "-mod=mod")
        .env("GO111MODULE", "off");
    let Ok(output) = command.output() else {
        let test = std::thread::current();
        let test = test.name().unwrap_or("a test");
        println!("skipped: {test}: {compiler} is not installed");
        return None;
    };
    assert!(
        output.status.success(),
        "{compiler}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut sample = Sample::read(into).unwrap();
    sample.name = format!("{compiler} {arguments:?} {}", source.display());
    Some(sample)
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/samples")
        .join(name)
}

/// Compiles the C and C++ samples at every level, with and without frame pointers.
pub fn of_compilers(folder: &Path) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (compiler, name) in [
        ("gcc", "frames.c"),
        ("clang", "frames.c"),
        ("g++", "throws.cc"),
        ("clang++", "throws.cc"),
    ] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            for pointer in ["-fomit-frame-pointer", "-fno-omit-frame-pointer"] {
                let into = folder.join(format!("{compiler}{level}{pointer}"));
                let arguments = [level, pointer, "-fasynchronous-unwind-tables", "-w"];
                samples.extend(compiled(compiler, &arguments, &source(name), &["-lm"], &into));
            }
        }
    }
    samples
}

/// Compiles a Go program, whose information is in `.debug_frame`, compressed.
pub fn of_go(folder: &Path) -> Option<Sample> {
    compiled("go", &["build"], &source("frames.go"), &[], &folder.join("go"))
}

/// The registers and the memory of a process that never was: every word is another one.
pub struct World {
    pub ip: u64,
}

impl World {
    pub fn register(&self, number: u16) -> u64 {
        0x7000_0000_0000 + u64::from(number) * 0x10_0000
    }

    pub fn word(&self, address: u64) -> u64 {
        (address ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .rotate_left(23)
    }
}

/// What a frame's caller is, in a [`World`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Root,
    /// The section says something that cannot be said otherwise, by this reader.
    Unsupported,
    At {
        cfa: u64,
        return_address: u64,
        rbp: Option<u64>,
        rbx: Option<u64>,
        signal: bool,
    },
}

/// Returns what a table's step leads to.
pub fn by_step(step: Step, world: &World) -> Option<Caller> {
    let Rule {
        cfa,
        return_address,
        rbp,
        rbx,
        signal,
    } = match step {
        Step::Unknown => return None,
        Step::Unsupported => return Some(Caller::Unsupported),
        Step::Root => return Some(Caller::Root),
        Step::By(rule) => rule,
    };
    let plus = |register: u8, offset: i64| world.register(register.into()).wrapping_add_signed(offset);
    let cfa = match cfa {
        Cfa::Register { register, offset } => plus(register, offset.into()),
        Cfa::Deref {
            register,
            offset,
            add,
        } => world
            .word(plus(register, offset.into()))
            .wrapping_add_signed(add.into()),
        Cfa::Plt { offset, threshold } => {
            plus(7, offset.into()) + u64::from(world.ip & 15 >= u64::from(threshold)) * 8
        }
        Cfa::Switched => plus(6, 16),
    };
    let value = |saved, register: u16| match saved {
        Saved::Same => Some(world.register(register)),
        Saved::Lost => None,
        Saved::AtCfa(offset) => Some(world.word(cfa.wrapping_add_signed(offset.into()))),
        Saved::At { register, offset } => Some(world.word(plus(register, offset.into()))),
        Saved::In(register) => Some(world.register(register.into())),
    };
    Some(Caller::At {
        cfa,
        return_address: value(return_address, 16).unwrap(),
        rbp: value(rbp, 6),
        rbx: value(rbx, 3),
        signal,
    })
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;
const ENCODING: gimli::Encoding = gimli::Encoding {
    format: gimli::Format::Dwarf32,
    version: 4,
    address_size: 8,
};

fn evaluate<'a, S: UnwindSection<Slice<'a>>>(
    expression: &UnwindExpression<usize>,
    section: &S,
    initial: Option<u64>,
    world: &World,
) -> u64 {
    let mut evaluation: Evaluation<Slice<'a>> = expression.get(section).unwrap().evaluation(ENCODING);
    if let Some(initial) = initial {
        evaluation.set_initial_value(initial);
    }
    let mut result = evaluation.evaluate().unwrap();
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, .. } => {
                evaluation.resume_with_memory(Value::Generic(world.word(address)))
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = if register.0 == 16 {
                    world.ip
                } else {
                    world.register(register.0)
                };
                evaluation.resume_with_register(Value::Generic(value))
            }
            other => panic!("{other:?}"),
        }
        .unwrap();
    }
    match evaluation.result()[..] {
        [
            gimli::Piece {
                location: Location::Address { address },
                ..
            },
        ] => address,
        ref other => panic!("{other:?}"),
    }
}

/// Returns what gimli's row leads to.
fn by_gimli<'a, S: UnwindSection<Slice<'a>>>(
    row: &UnwindTableRow<usize>,
    section: &S,
    signal: bool,
    world: &World,
) -> Caller {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            world.register(register.0).wrapping_add_signed(*offset)
        }
        CfaRule::Expression(expression) => evaluate(expression, section, None, world),
    };
    let value = |number: u16| match row.register(Register(number)) {
        None | Some(RegisterRule::SameValue) => Some(world.register(number)),
        Some(RegisterRule::Undefined) => None,
        Some(RegisterRule::Offset(offset)) => Some(world.word(cfa.wrapping_add_signed(offset))),
        Some(RegisterRule::Register(other)) => Some(world.register(other.0)),
        Some(RegisterRule::Expression(expression)) => {
            Some(world.word(evaluate(&expression, section, Some(cfa), world)))
        }
        Some(other) => panic!("{other:?}"),
    };
    // gcc's mistake at the end of functions that align their frames: see `program.rs`.
    let at_ret = *row.cfa()
        == CfaRule::RegisterAndOffset {
            register: Register(7),
            offset: 8,
        };
    let restored = at_ret && matches!(row.register(Register(6)), Some(RegisterRule::Expression(_)));
    let value = |number: u16| match number {
        3 | 6 if restored => Some(world.register(number)),
        _ => value(number),
    };
    if row.register(Register(16)) == Some(RegisterRule::Undefined) {
        return Caller::Root;
    }
    Caller::At {
        cfa,
        return_address: value(16).unwrap(),
        rbp: value(6),
        rbx: value(3),
        signal,
    }
}

/// Calls `each` with every row that gimli evaluates: its first address, the one behind its last, and how to get the caller.
fn each_row<'a, S>(section: &S, address: u64, mut each: impl FnMut(u64, u64, &dyn Fn(&World) -> Caller))
where
    S: UnwindSection<Slice<'a>>,
    S::Offset: std::fmt::Debug,
{
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = section.entries(&bases);
    let mut context = UnwindContext::new();
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(S::cie_from_offset).unwrap();
        if fde.len() == 0 {
            continue;
        }
        let signal = fde.is_signal_trampoline();
        let mut rows = fde.rows(section, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let (start, end) = (row.start_address(), row.end_address());
            if start < end {
                each(start, end, &|world| by_gimli(row, section, signal, world));
            }
        }
    }
}

/// Calls `each` with every row of a binary's call frame information, of both kinds.
pub fn each_row_of(sample: &Sample, mut each: impl FnMut(u64, u64, &dyn Fn(&World) -> Caller)) {
    let elf = object::File::parse(&*sample.bytes).unwrap();
    if let Some(section) = elf.section_by_name(".eh_frame") {
        let mut frames = EhFrame::new(section.data().unwrap(), LittleEndian);
        frames.set_address_size(8);
        each_row(&frames, section.address(), &mut each);
    }
    if let Some(section) = elf.section_by_name(".debug_frame") {
        let data = section.uncompressed_data().unwrap();
        let mut frames = DebugFrame::new(&data, LittleEndian);
        frames.set_address_size(8);
        each_row(&frames, 0, &mut each);
    }
}
