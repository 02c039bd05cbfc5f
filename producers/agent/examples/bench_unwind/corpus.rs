//! How many stacks of real programs are whole.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use strobe_event::{RawBatch, StackEnd, codec};

use crate::measuring::median;
use crate::processes::{Agent, start_agent};

/// How long each program runs before it counts, so that its tables are known as those of a fleet's binaries are.
const BEFORE: Duration = Duration::from_secs(4);
/// How long it runs then.
const EACH: Duration = Duration::from_secs(6);
/// What the services of the corpus are called: this, and the name.
const PREFIX: &str = "corpus-";
/// Until the last samples of a program are in a batch.
const LAST_SAMPLES: Duration = Duration::from_secs(3);
/// Exit code by which the script says that a program cannot be had here.
const SKIPPED: i32 = 3;

/// When a program ran, microseconds since 1970 (UTC).
#[derive(Clone, Copy)]
struct Window {
    /// Its beginning.
    from_us: u64,
    /// From then on its tables are known.
    warm_us: u64,
    until_us: u64,
}

fn now_us() -> Result<u64> {
    Ok(SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .as_micros() as u64)
}

/// Runs one program of the corpus for a while; returns when, or nothing where it cannot be had.
fn run_one(script: &Path, name: &str, folder: &Path) -> Result<Option<Window>> {
    let prepared = Command::new(script)
        .args(["prepare", name])
        .arg(folder)
        .status()?;
    if prepared.code() == Some(SKIPPED) {
        return Ok(None);
    }
    ensure!(prepared.success(), "{name} cannot be prepared");
    let from_us = now_us()?;
    let mut child = Command::new(script)
        .args(["run", name])
        .arg(folder)
        .env("STROBE_SERVICE", format!("{PREFIX}{name}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join(format!("{name}.log")))?)
        .process_group(0)
        .spawn()?;
    sleep(BEFORE);
    let warm_us = now_us()?;
    sleep(EACH);
    let window = Window {
        from_us,
        warm_us,
        until_us: now_us()?,
    };
    let over = child.try_wait()?;
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    child.wait()?;
    let log = folder.join(format!("{name}.log"));
    ensure!(
        over.is_none(),
        "{name} ended by itself: {}",
        fs::read_to_string(log).unwrap_or_default()
    );
    let finished = Command::new(script).args(["finish", name]).arg(folder).status()?;
    ensure!(finished.success(), "{name} cannot be finished");
    Ok(Some(window))
}

/// Places where stacks were cut that are printed of each program.
const PLACES: usize = 3;

/// Samples with a user stack, by how it ended; and where those that were cut stood last.
#[derive(Default)]
struct Ends {
    by_end: BTreeMap<StackEnd, u64>,
    /// Of those from the very beginning: all, and the whole ones.
    from_start: (u64, u64),
    places: BTreeMap<(StackEnd, String), u64>,
}

/// Returns where each stack of a batch ended: its outermost frame.
fn outermost(batch: &RawBatch) -> Vec<String> {
    let mut places = vec![String::new(); batch.stacks.len()];
    batch.stacks.for_each(|at, frames, _| {
        let frame = frames.first().and_then(|&frame| usize::try_from(frame).ok());
        let place = frame.map_or_else(String::new, |frame| {
            let number = batch.frames.binary.get(frame).copied().unwrap_or(0);
            let path = usize::try_from(number)
                .ok()
                .and_then(|number| batch.binaries.get(number.checked_sub(1)?))
                .and_then(|binary| batch.strings.get(usize::try_from(binary.path).ok()?));
            let address = batch.frames.address.get(frame).copied().unwrap_or(0);
            path.map_or_else(
                || "generated code, or none".to_owned(),
                |path| format!("{path} {address:#x}"),
            )
        });
        if let Some(slot) = places.get_mut(at) {
            *slot = place;
        }
    });
    places
}

fn count(capture: &Path, windows: &BTreeMap<String, Window>) -> Result<BTreeMap<String, Ends>> {
    let mut services: BTreeMap<String, Ends> = BTreeMap::new();
    for entry in fs::read_dir(capture)? {
        let batch: RawBatch = codec::decode_framed(&fs::read(entry?.path())?)?;
        let at = |index: u32| usize::try_from(index).unwrap_or(usize::MAX);
        let samples = &batch.samples;
        let places = outermost(&batch);
        let columns = samples
            .thread
            .iter()
            .zip(&samples.stack)
            .zip(&samples.time_delta_us);
        let mut time_us = batch.start_us;
        for ((&thread, &stack), delta_us) in columns {
            time_us += delta_us;
            let process = batch.threads.process.get(at(thread)).context("a thread")?;
            let process = batch.processes.get(at(*process)).context("a process")?;
            let service = batch.strings.get(at(process.service)).context("a name")?;
            let end = batch.stacks.end.get(at(stack)).copied();
            let end = end.and_then(StackEnd::from_code).context("an end")?;
            // Neither has a user stack.
            if let Some(name) = service.strip_prefix(PREFIX)
                && let Some(window) = windows.get(name)
                && (window.from_us..window.until_us).contains(&time_us)
                && !matches!(end, StackEnd::KernelOnly | StackEnd::InExec)
            {
                let ends = services.entry(name.to_owned()).or_default();
                ends.from_start.0 += 1;
                ends.from_start.1 += u64::from(end == StackEnd::Root);
                if time_us < window.warm_us {
                    continue;
                }
                *ends.by_end.entry(end).or_default() += 1;
                if end != StackEnd::Root {
                    let place = places.get(at(stack)).cloned().unwrap_or_default();
                    *ends.places.entry((end, place)).or_default() += 1;
                }
            }
        }
    }
    Ok(services)
}

/// Returns samples, and how many of them are whole, and prints them.
fn told(name: &str, ends: &Ends) -> (u64, u64) {
    let all: u64 = ends.by_end.values().sum();
    let whole = ends.by_end.get(&StackEnd::Root).copied().unwrap_or(0);
    let share = |samples: u64| samples as f64 * 100.0 / all.max(1) as f64;
    let cut: Vec<String> = ends
        .by_end
        .iter()
        .filter(|(end, _)| **end != StackEnd::Root)
        .map(|(end, samples)| format!("{} {:.2} %", end.name(), share(*samples)))
        .collect();
    println!(
        "{name:<16} {all:>6} samples, {:>6.2} % whole ({:.2} % from its very first on)  {}",
        share(whole),
        ends.from_start.1 as f64 * 100.0 / ends.from_start.0.max(1) as f64,
        cut.join(", ")
    );
    let mut places: Vec<_> = ends.places.iter().collect();
    places.sort_by_key(|(_, samples)| std::cmp::Reverse(**samples));
    for ((end, place), samples) in places.into_iter().take(PLACES) {
        println!("    {:>5.2} %  {:<18} {place}", share(*samples), end.name());
    }
    (all, whole)
}

/// Returns the median of the milliseconds from the start of a process to its first stack by tables, of those that began when their
/// binaries were known; and of how many processes. One that ended before counts as never.
fn first_by_table(capture: &Path, windows: &BTreeMap<String, Window>) -> Result<(f64, usize)> {
    // Between the two clocks, as exactly as it takes to read both.
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let boot_us = boot.tv_sec.cast_unsigned() * 1_000_000 + boot.tv_nsec.cast_unsigned() / 1_000;
    let booted_us = now_us()?.saturating_sub(boot_us);
    let mut first: BTreeMap<(u32, u64), Option<u64>> = BTreeMap::new();
    for entry in fs::read_dir(capture)? {
        let batch: RawBatch = codec::decode_framed(&fs::read(entry?.path())?)?;
        let at = |index: u32| usize::try_from(index).unwrap_or(usize::MAX);
        let mut time_us = batch.start_us;
        for sample in 0..batch.samples.len() {
            time_us += batch.samples.time_delta_us.get(sample).context("a time")?;
            let thread = batch.samples.thread.get(sample).context("a thread")?;
            let process = batch.threads.process.get(at(*thread)).context("a process")?;
            let process = batch.processes.get(at(*process)).context("a process")?;
            let service = batch.strings.get(at(process.service)).context("a name")?;
            let started_us = booted_us + process.start_ns / 1_000;
            let known = service
                .strip_prefix(PREFIX)
                .and_then(|name| windows.get(name))
                .is_some_and(|window| (window.warm_us..window.until_us).contains(&started_us));
            let stack = batch.samples.stack.get(sample).context("a stack")?;
            let end = batch.stacks.end.get(at(*stack)).copied();
            let end = end.and_then(StackEnd::from_code).context("an end")?;
            if !known || matches!(end, StackEnd::KernelOnly | StackEnd::InExec) {
                continue;
            }
            let since_us = time_us.saturating_sub(started_us);
            let by_table = first.entry((process.pid, process.start_ns)).or_default();
            if !matches!(end, StackEnd::BeforeTables | StackEnd::NoRoom) {
                *by_table = Some(by_table.map_or(since_us, |before| before.min(since_us)));
            }
        }
    }
    let times: Vec<f64> = first
        .values()
        .map(|by_table| by_table.map_or(f64::INFINITY, |us| us as f64 / 1e3))
        .collect();
    let processes = times.len();
    Ok((if times.is_empty() { 0.0 } else { median(times) }, processes))
}

/// Runs the corpus beside one agent, and prints the figure.
///
/// # Errors
/// Where the agent or a program fails; a program that cannot be had is skipped.
pub fn run(script: &Path, only: Option<&str>, frequency_hz: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let capture = folder.path().join("capture");
    let names = Command::new(script).arg("list").output()?;
    let names = String::from_utf8(names.stdout)?;
    let mut windows = BTreeMap::new();
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    // The peer beside it, on the same programs at the same time: what follows frame pointers alone, as `perf record -g` does.
    let (plain, captured_plain) = (folder.path().join("plain"), folder.path().join("capture-plain"));
    fs::create_dir(&plain)?;
    fs::write(plain.join("agent.toml"), "[unwind]\nkernel_bytes_max = 0\n")?;
    let peer = start_agent(&plain, frequency_hz, Some(&captured_plain))?;
    let agent: Agent = start_agent(folder.path(), frequency_hz, Some(&capture))?;
    for name in names
        .split_whitespace()
        .filter(|name| only.is_none_or(|only| only == *name))
    {
        // One program that breaks says nothing of the others.
        match run_one(script, name, folder.path()) {
            Ok(Some(window)) => {
                windows.insert(name.to_owned(), window);
            }
            Ok(None) => skipped.push(name),
            Err(error) => {
                println!("failed: {name}: {error:#}");
                failed.push(name);
            }
        }
    }
    sleep(LAST_SAMPLES);
    agent.end()?;
    peer.end()?;
    let services = count(&capture, &windows)?;
    let (mut all, mut whole) = (0, 0);
    let mut from_start = (0, 0);
    for (name, ends) in &services {
        let (samples, of_them) = told(name, ends);
        (all, whole) = (all + samples, whole + of_them);
        from_start = (from_start.0 + ends.from_start.0, from_start.1 + ends.from_start.1);
    }
    ensure!(all > 0, "no program of the corpus was sampled");
    let (mut all_of_peer, mut whole_of_peer) = (0, 0);
    for ends in count(&captured_plain, &windows)?.values() {
        all_of_peer += ends.by_end.values().sum::<u64>();
        whole_of_peer += ends.by_end.get(&StackEnd::Root).copied().unwrap_or(0);
    }
    println!(
        "{} programs were sampled; skipped: {skipped:?}; failed: {failed:?}; first stacks included, {:.2} % are whole",
        services.len(),
        from_start.1 as f64 * 100.0 / from_start.0.max(1) as f64
    );
    let (soon, processes) = first_by_table(&capture, &windows)?;
    println!(
        "of {processes} processes of known binaries, from their start to the first stack by tables: median {soon:.1} ms"
    );
    println!(
        "figure unwind.complete_pct value={:.2} target>=99.5 peer:frame_pointers={:.2}",
        whole as f64 * 100.0 / all as f64,
        whole_of_peer as f64 * 100.0 / all_of_peer.max(1) as f64
    );
    println!("figure unwind.corpus_exec_to_table_ms value={soon:.1} target<=100");
    Ok(())
}
