//! Walks against gdb's, at every instruction of programs that are stepped through: prologues, bodies, epilogues, leaves, tail
//! calls, `alloca`, variable-length arrays, realigned frames, assembly, linkage tables and the dynamic linker behind them,
//! signal handlers, exceptions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use object::{Object, ObjectSegment};
use strobe_unwind::Table;
use strobe_unwind::walk::{End, Place, Process, Registers, walk};

/// Steps of one program. What is of interest in the samples lies within.
const STEPS: usize = 4_000;

/// What gdb is told before the first step. `step` prints the registers, by DWARF numbers, and the frames' addresses.
const SCRIPT: &str = r#"
set pagination off
set confirm off
set debuginfod enabled off
set startup-with-shell off
set backtrace past-main on
set backtrace past-entry on
set disable-randomization on
handle SIGUSR1 stop print pass
handle SIGURG nostop noprint pass
set scheduler-locking step
python
import gdb
NAMES = "rip rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15".split()
def report():
    try:
        frame = gdb.newest_frame()
    except gdb.error:
        print("\n@@ end")
        return
    registers = " ".join("%x" % (int(frame.read_register(name)) & (2**64 - 1)) for name in NAMES)
    addresses = []
    while frame is not None and len(addresses) < 100:
        # Neither is on the stack: gdb infers them from debug information.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            addresses.append("%x" % frame.pc())
        frame = frame.older()
    print("\n@@ %d %s | %s" % (gdb.selected_inferior().pid, registers, " ".join(addresses)))
def step():
    gdb.execute("stepi", to_string=True)
    report()
end
"#;

struct Gdb {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A program at one instruction: what gdb sees.
struct Stop {
    pid: u32,
    registers: Registers,
    frames: Vec<u64>,
}

impl Gdb {
    /// Runs a program up to the function `from`; `None` where gdb is not installed.
    fn start(program: &Path, from: &str) -> Option<Self> {
        let mut command = Command::new("gdb");
        // Go interrupts what runs for long, and a step by gdb is long.
        command.env("GODEBUG", "asyncpreemptoff=1");
        command
            .args(["-q", "-nx"])
            .arg(program)
            .env("LD_BIND_NOW", "")
            .env("GOMAXPROCS", "1");
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = spawned else {
            println!(
                "skipped: {}: gdb is not installed",
                std::thread::current().name().unwrap_or("a test")
            );
            return None;
        };
        let (input, output) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut gdb = Self { child, input, output };
        gdb.say(SCRIPT);
        gdb.say(&format!("break *'{from}'\nrun\npython report()\n"));
        Some(gdb)
    }

    fn say(&mut self, commands: &str) {
        self.input.write_all(commands.as_bytes()).unwrap();
        self.input.flush().unwrap();
    }

    /// Returns where the program stands; `None` when it has ended.
    fn stop(&mut self) -> Option<Stop> {
        let line = loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "gdb has ended");
            if let Some(rest) = line.split_once("@@ ") {
                break rest.1.trim().to_owned();
            }
        };
        if line == "end" {
            return None;
        }
        let (head, frames) = line.split_once('|').unwrap();
        let mut head = head.split_whitespace();
        let pid = head.next().unwrap().parse().unwrap();
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let mut words = head.map(hex);
        let ip = words.next().unwrap();
        let general: Vec<u64> = words.collect();
        Some(Stop {
            pid,
            registers: Registers {
                ip,
                general: general.try_into().unwrap(),
            },
            // Go's goroutines begin in a frame whose return address is 0; gdb shows that as a frame.
            frames: frames.split_whitespace().map(hex).filter(|pc| *pc != 0).collect(),
        })
    }

    fn step(&mut self) -> Option<Stop> {
        self.say("python step()\n");
        self.stop()
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"kill\nquit\n");
        let _ = self.input.flush();
        let _ = self.child.wait();
    }
}

/// A table, and its binary's segments: file offset, length, ELF virtual address.
type Loaded = (Vec<u8>, Vec<(u64, u64, u64)>);

/// Tables by path; nothing where there can be none.
#[derive(Default)]
struct Tables {
    by_path: BTreeMap<String, Option<Loaded>>,
}

impl Tables {
    fn load(&mut self, path: &str) {
        self.by_path.entry(path.to_owned()).or_insert_with(|| {
            let bytes = if path == "[vdso]" {
                common::vdso().bytes
            } else {
                std::fs::read(path).ok()?
            };
            let elf = object::File::parse(&*bytes).ok()?;
            let segments = elf
                .segments()
                .map(|segment| {
                    let (offset, length) = segment.file_range();
                    (offset, length, segment.address())
                })
                .collect();
            let table = strobe_unwind::build(&*bytes, "walked").ok()?;
            Some((table, segments))
        });
    }
}

/// A stopped process.
struct Stopped<'a> {
    memory: File,
    /// First address, end, file offset, path.
    mappings: Vec<(u64, u64, u64, String)>,
    tables: &'a Tables,
}

impl<'a> Stopped<'a> {
    fn look(pid: u32, tables: &'a mut Tables) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mappings: Vec<_> = maps
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let (start, end) = words.next()?.split_once('-')?;
                if !words.next()?.contains('x') {
                    return None;
                }
                let hex = |text| u64::from_str_radix(text, 16).ok();
                let offset = hex(words.next()?)?;
                let path = words.nth(2).unwrap_or_default().to_owned();
                Some((hex(start)?, hex(end)?, offset, path))
            })
            .collect();
        mappings.iter().for_each(|(_, _, _, path)| tables.load(path));
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        Self {
            memory,
            mappings,
            tables,
        }
    }
}

impl Process for Stopped<'_> {
    fn read(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn place(&self, address: u64) -> Place<'_> {
        let Some((start, _, offset, path)) = self
            .mappings
            .iter()
            .find(|(start, end, ..)| (*start..*end).contains(&address))
        else {
            return Place::Unmapped;
        };
        let Some(Some((table, segments))) = self.tables.by_path.get(path) else {
            return Place::NoTable;
        };
        // The mapping is rounded to pages: it may begin before its segment, with the end of the one before.
        let Some((from, _, virtual_address)) = segments
            .iter()
            .rfind(|(from, length, _)| *length > 0 && from & !0xfff == *offset)
        else {
            return Place::NoTable;
        };
        let bias = start.wrapping_sub(virtual_address - (from - offset));
        Place::Table {
            table: Table::open(table).unwrap(),
            bias,
        }
    }
}

/// Steps through a program from the function `from`, and holds each walk against gdb's. Returns how many there were, and how
/// many went through a signal's frame.
fn step_through(program: &Path, from: &str, name: &str, ends: &[End]) -> Option<(usize, usize)> {
    let mut gdb = Gdb::start(program, from)?;
    let mut tables = Tables::default();
    let mut stop = gdb.stop();
    assert!(stop.is_some(), "{name}: {from} is never reached");
    let (mut compared, mut handlers, mut early) = (0, 0, 0);
    while let Some(at) = stop {
        let process = Stopped::look(at.pid, &mut tables);
        let (mut frames, mut exact) = (Vec::new(), 0);
        let end = walk(&process, &at.registers, 100, |frame| {
            frames.push(frame.address);
            exact += usize::from(frame.exact);
        });
        let hex = |frames: &[u64]| frames.iter().map(|f| format!("{f:x}")).collect::<Vec<_>>();
        // gdb knows nothing of Go's switches of stacks, and there takes addresses of data for frames: then it is right as far as the
        // walk goes.
        let is_code = |frame: &u64| !matches!(process.place(*frame), Place::Unmapped);
        // Or it ends at the switch itself, and the walk goes on behind it.
        let ends_early = name == "go" && at.frames.len() < frames.len() && frames.starts_with(&at.frames);
        early += usize::from(ends_early);
        let right = if ends_early {
            hex(&frames)
        } else if at.frames.iter().all(is_code) {
            hex(&at.frames)
        } else {
            hex(&at.frames[..frames.len().min(at.frames.len())])
        };
        assert_eq!(
            hex(&frames),
            right,
            "{name}, step {compared}, {:x?}",
            at.registers
        );
        assert!(ends.contains(&end), "{name}, step {compared}: {end:?}");
        compared += 1;
        handlers += usize::from(exact > 1);
        if compared >= STEPS {
            break;
        }
        stop = gdb.step();
    }
    // What follows a switch lasts for as long as the scheduler has the thread.
    assert!(
        compared - early > 100,
        "{name}: gdb ended early {early} of {compared} times"
    );
    Some((compared, handlers))
}

fn program_of(
    folder: &Path,
    compiler: &str,
    sample: &str,
    level: &str,
    pointer: &str,
) -> Option<(PathBuf, String)> {
    let into = folder.join(format!("{compiler}{level}{pointer}"));
    let arguments = [
        level,
        pointer,
        "-fasynchronous-unwind-tables",
        "-w",
        "-Wl,-z,lazy",
    ];
    let made = common::compiled(compiler, &arguments, &common::source(sample), &["-lm"], &into)?;
    Some((into, made.name))
}

/// Checks each instruction of the C sample, as gcc and clang make it at four levels, without frame pointers and with them.
#[test]
fn walks_of_c_are_gdbs() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, level, pointer) in [
        ("gcc", "-O0", "-fomit-frame-pointer"),
        ("gcc", "-O1", "-fno-omit-frame-pointer"),
        ("gcc", "-O2", "-fomit-frame-pointer"),
        ("gcc", "-O3", "-fno-omit-frame-pointer"),
        ("clang", "-O0", "-fno-omit-frame-pointer"),
        ("clang", "-O1", "-fomit-frame-pointer"),
        ("clang", "-O2", "-fno-omit-frame-pointer"),
        ("clang", "-O3", "-fomit-frame-pointer"),
    ] {
        let Some((program, name)) = program_of(folder.path(), compiler, "frames.c", level, pointer) else {
            continue;
        };
        if let Some((compared, handlers)) = step_through(&program, "all", &name, &[End::Root]) {
            println!("{name}: {compared} instructions, {handlers} with a signal's frame");
            assert!(compared == STEPS, "{name}: {compared}");
        }
    }
}

/// Checks the instructions around a signal handler, from before it is entered until after it has returned.
#[test]
fn walks_through_signal_handlers_are_gdbs() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, level) in [("gcc", "-O2"), ("clang", "-O0")] {
        let found = program_of(folder.path(), compiler, "frames.c", level, "-fomit-frame-pointer");
        let Some((program, name)) = found else { continue };
        if let Some((_, handlers)) = step_through(&program, "with_signal", &name, &[End::Root]) {
            assert!(handlers > 10, "{name}: {handlers}");
        }
    }
}

/// Checks each instruction of C++ that throws and catches, through the C++ library's own unwinder.
#[test]
fn walks_of_exceptions_are_gdbs() {
    let folder = tempfile::tempdir().unwrap();
    for compiler in ["g++", "clang++"] {
        let found = program_of(
            folder.path(),
            compiler,
            "throws.cc",
            "-O2",
            "-fomit-frame-pointer",
        );
        let Some((program, name)) = found else { continue };
        if let Some((compared, _)) = step_through(&program, "main", &name, &[End::Root]) {
            assert_eq!(compared, STEPS, "{name}");
        }
    }
}

/// Checks each instruction of a Go program that lies within its own functions: on goroutines' stacks, down to where they begin.
#[test]
fn walks_of_go_are_gdbs() {
    let folder = tempfile::tempdir().unwrap();
    if common::of_go(folder.path()).is_none() {
        return;
    }
    let program = folder.path().join("go");
    // Where a stack is made larger, who needed it is not known any more.
    if let Some((compared, _)) = step_through(&program, "main.leaf", "go", &[End::Root, End::Unsupported]) {
        assert!(compared > 100, "{compared}");
    }
}

/// Checks each instruction of a Rust program: this very test, as it lists its tests.
#[test]
fn walks_of_rust_are_gdbs() {
    let own = std::env::current_exe().unwrap();
    if let Some((compared, _)) = step_through(&own, "main", "rust", &[End::Root]) {
        assert!(compared > 100, "{compared}");
    }
}
