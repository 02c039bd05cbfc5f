//! A real agent on this host, what it spooled, and victims in C.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses its part, and a helper that fails is a test that fails"
)]

pub mod doer;
pub mod inside;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strobe_agent::envelope;
use strobe_bus::Topic;
use strobe_event::{AuditRecord, CoverageRecord, HostRecord, RawBatch, RunEvent, codec};

/// An odd rate at which half a second is enough to see every phase of a victim.
pub const FREQUENCY: u32 = 997;

/// The tests load all CPUs and look at all processes: one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the test cannot run here, and prints why.
pub fn skipped(name: &str) -> bool {
    let compiler = Command::new("gcc").arg("--version").output();
    let missing = compiler
        .is_err()
        .then(|| "no gcc: install the Debian package `gcc`".to_owned());
    let reason = strobe_bpf::probe::can_run().err().or(missing);
    if let Some(reason) = &reason {
        println!("skipped: {name}: {reason}");
    }
    reason.is_some()
}

/// Builds a C program with frame pointers.
pub fn build(source: &str, to: &Path) {
    let file = to.with_extension("c");
    fs::write(&file, source).unwrap();
    // Not optimized: each function has a frame of its own, also one that calls nothing.
    let flags = ["-O0", "-g", "-fno-omit-frame-pointer", "-o"];
    let output = Command::new("gcc")
        .args(flags)
        .arg(to)
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A victim that calls `one`, `two` and `three` for so many milliseconds.
pub const CHAIN: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
volatile uint64_t sink;
static uint64_t ms(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000u + t.tv_nsec / 1000000; }
void three(void) { for (int i = 0; i < 200000; i++) sink += i; }
void two(void) { three(); sink++; }
void one(void) { two(); sink++; }
int main(int count, char **arguments)
{
	uint64_t until = ms() + (count > 1 ? atoi(arguments[1]) : 1000);
	while (ms() < until) one();
	return 0;
}
"#;

/// A folder for one test: the agent's state, its symbol store, victims.
pub struct Place {
    pub folder: tempfile::TempDir,
}

/// An agent under way.
pub struct Agent {
    child: Child,
    log: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration: uploads are fast, so that a test need not wait for all of the host's binaries.
    pub fn configure(&self, more: &str) {
        let text = format!("[binaries]\nbytes_per_second = 1073741824\n{more}");
        fs::write(self.path("agent.toml"), text).unwrap();
    }

    /// Waits until the symbol store has a binary; returns whether it came.
    pub fn gets_binary(&self, build_id: &str) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.has_binary(build_id) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.has_binary(build_id)
    }

    /// Returns an agent's command, with a state folder and a store of its own, that only fills the spool.
    pub fn command(&self) -> Command {
        if !self.path("agent.toml").exists() {
            self.configure("");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_strobe-agent"));
        command
            .env_remove("STROBE_SERVICE")
            .env("STROBE_FREQUENCY", FREQUENCY.to_string())
            .args(["run", "--no-publish", "--host", "test-host", "--config"])
            .arg(self.path("agent.toml"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--symbol-store")
            .arg(self.path("store"));
        command
    }

    pub fn start(&self) -> Agent {
        self.start_with(|_| ())
    }

    /// Starts an agent and waits until it samples.
    pub fn start_with(&self, change: impl FnOnce(&mut Command)) -> Agent {
        let mut command = self.command();
        change(&mut command);
        let log = self.path("agent.log");
        command
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::null());
        let mut agent = Agent {
            child: command.spawn().unwrap(),
            log,
        };
        agent.wait_for("profiling");
        agent
    }

    /// Returns everything that the spool holds, in its order, each with its epoch and sequence.
    pub fn spooled(&self) -> Vec<([u8; 16], u64, Spooled)> {
        let settings = strobe_spool::Settings::new(self.path("state").join("spool"), "test-host");
        let (_writer, mut reader, _) = strobe_spool::Spool::open(settings).unwrap();
        let mut all = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            let opened = envelope::open(&record.payload).unwrap();
            let what = match opened.topic {
                Topic::Runs => Spooled::Event(Box::new(codec::decode_framed(opened.value).unwrap())),
                Topic::Coverage => Spooled::Coverage(Box::new(codec::decode_framed(opened.value).unwrap())),
                Topic::Hosts => Spooled::Host(Box::new(codec::decode_framed(opened.value).unwrap())),
                Topic::Audit => Spooled::Audit(Box::new(codec::decode_framed(opened.value).unwrap())),
                _ => {
                    let batch: RawBatch = codec::decode_framed(opened.value).unwrap();
                    batch.validate().unwrap();
                    assert_eq!(batch.samples.len() as u64, opened.samples);
                    Spooled::Batch(Box::new(batch))
                }
            };
            all.push((record.identity.epoch.0, record.identity.sequence, what));
        }
        all
    }

    pub fn batches(&self) -> Vec<RawBatch> {
        let batches = self.spooled().into_iter().filter_map(|(_, _, what)| match what {
            Spooled::Batch(batch) => Some(*batch),
            _ => None,
        });
        batches.collect()
    }

    pub fn status(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.path("state").join(strobe_agent::status::FILE)).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Returns whether the symbol store has this build id, given in hexadecimal.
    pub fn has_binary(&self, build_id: &str) -> bool {
        let mut folders = vec![self.path("store")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().contains(build_id) {
                    return true;
                }
                if entry.path().is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        false
    }
}

/// A record of the spool.
pub enum Spooled {
    Batch(Box<RawBatch>),
    Event(Box<RunEvent>),
    Coverage(Box<CoverageRecord>),
    Host(Box<HostRecord>),
    Audit(Box<AuditRecord>),
}

impl Agent {
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.log().contains(text) {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "it ended: {}",
                self.log()
            );
            assert!(Instant::now() < until, "no {text:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the agent by SIGTERM; it must end well.
    pub fn end(mut self) -> String {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        assert!(!log.contains("panicked"), "{log}");
        log
    }

    /// Ends the agent as a power cut would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    pub fn wait(mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A test that failed leaves no agent behind.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A sample with everything that its batch says of it.
#[derive(Debug, Clone)]
pub struct Sample {
    pub pid: u32,
    pub start_ns: u64,
    pub exec: u32,
    pub comm: String,
    pub service: String,
    pub executable: String,
    pub time_us: u64,
    /// Root first: (binary's path, its build id, address, name), or the reason.
    pub frames: Vec<Frame>,
    pub end: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub path: String,
    pub build_id: String,
    pub address: u64,
    pub name: String,
    pub reason: u8,
}

/// Returns the samples of a batch that `wanted` says yes to, by pid.
pub fn samples(batches: &[RawBatch], wanted: impl Fn(&Sample) -> bool) -> Vec<Sample> {
    let mut found = Vec::new();
    for batch in batches {
        let text = |index: u32| batch.strings[index as usize].clone();
        let mut stacks = BTreeMap::new();
        batch.stacks.for_each(|index, frames, end| {
            let frames = frames.iter().map(|&frame| {
                let frame = frame as usize;
                let binary = batch.frames.binary[frame]
                    .checked_sub(1)
                    .map(|b| &batch.binaries[b as usize]);
                Frame {
                    path: binary.map(|binary| text(binary.path)).unwrap_or_default(),
                    build_id: binary.map(|binary| binary.id.to_string()).unwrap_or_default(),
                    address: batch.frames.address[frame],
                    name: text(batch.frames.name[frame]),
                    reason: batch.frames.reason[frame],
                }
            });
            stacks.insert(index as u32, (frames.collect::<Vec<_>>(), end));
        });
        let mut time_us = batch.start_us;
        for at in 0..batch.samples.len() {
            time_us += batch.samples.time_delta_us[at];
            let thread = batch.samples.thread[at] as usize;
            let process = &batch.processes[batch.threads.process[thread] as usize];
            let (frames, end) = stacks[&batch.samples.stack[at]].clone();
            let sample = Sample {
                pid: process.pid,
                start_ns: process.start_ns,
                exec: process.exec,
                comm: text(batch.threads.name[thread]),
                service: text(process.service),
                executable: text(process.executable),
                time_us,
                frames,
                end,
            };
            if wanted(&sample) {
                found.push(sample);
            }
        }
    }
    found
}

/// Returns the build id that `readelf` prints.
pub fn build_id(file: &Path) -> String {
    let output = Command::new("readelf").arg("-n").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    line.unwrap_or_else(|| panic!("no build id: {text}")).to_owned()
}

/// Returns the function that `addr2line` finds.
pub fn function(file: &Path, address: u64) -> String {
    let output = Command::new("addr2line")
        .arg("-f")
        .arg("-e")
        .arg(file)
        .arg(format!("{address:#x}"))
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Runs a command to its end, which must be a good one.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Builds a program without frame pointers.
pub fn build_without(source: &str, to: &Path, more: &[&str]) {
    let file = to.with_extension("c");
    fs::write(&file, source).unwrap();
    let flags = [
        "-O2",
        "-g",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-fno-inline",
        "-fasynchronous-unwind-tables",
        "-o",
    ];
    run(Command::new("gcc").args(flags).arg(to).arg(&file).args(more));
}

/// Returns the names of a sample's frames in one file, root first.
pub fn names(sample: &Sample, file: &Path, known: &mut BTreeMap<u64, String>) -> Vec<String> {
    let own = sample
        .frames
        .iter()
        .filter(|frame| Path::new(&frame.path) == file);
    own.map(|frame| {
        known
            .entry(frame.address)
            .or_insert_with(|| function(file, frame.address))
            .clone()
    })
    .collect()
}

/// Waits until the tables of what the host runs anyway are made.
pub fn settle(place: &Place) {
    let (mut before, mut since) = (0, Instant::now());
    let until = Instant::now() + Duration::from_secs(90);
    while since.elapsed() < Duration::from_secs(5) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(500));
        let path = place.path("state").join(strobe_agent::status::FILE);
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tables = &status["unwinding"];
        let done = tables["tables"].as_u64().unwrap() + tables["refused"].as_u64().unwrap();
        if done != before {
            (before, since) = (done, Instant::now());
        }
    }
}
