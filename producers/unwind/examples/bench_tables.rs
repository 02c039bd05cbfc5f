//! Prints what tables cost: the time of one core and the memory for 100 MB of code, and the bytes of a row.
//!
//! `cargo run --release -p strobe-unwind --example bench_tables [binary…]`. The peer is gimli, which evaluates the same
//! sections into rows of a frame address and three registers' rules each, as other unwinders keep them. Each is run in a process
//! of its own, several times in turn, and the best run of each counts.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext, UnwindSection,
};
use object::{Object, ObjectSection, ReadCache};
use rustix::process::{Resource, Rlimit, setrlimit};
use strobe_unwind::Table;

/// Rounds: each binary's two ways take turns.
const ROUNDS: usize = 5;
/// What the figure is about.
const TEXT_BYTES: f64 = 100e6;

/// Binaries with about 100 MB, looked for where distributions and toolchains put them.
const CANDIDATES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1",
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
    "/usr/bin/node",
];

/// What a run says of itself, on one line: seconds of a core, the most memory in MiB, rows, bytes of the result.
#[derive(Clone, Copy)]
struct Run {
    seconds: f64,
    peak_mib: f64,
    rows: u64,
    bytes: u64,
}

impl Run {
    fn of(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let mut next = || words.next().context("a run said too little");
        Ok(Self {
            seconds: next()?.parse()?,
            peak_mib: next()?.parse()?,
            rows: next()?.parse()?,
            bytes: next()?.parse()?,
        })
    }
}

/// A row as unwinders without a dictionary keep it.
#[allow(dead_code, reason = "only its size matters")]
struct FatRow {
    address: u64,
    frame: (u16, i64),
    return_address: i64,
    rbp: i64,
    rbx: i64,
}

fn by_gimli(path: &Path) -> Result<Vec<FatRow>> {
    let cache = ReadCache::new(File::open(path)?);
    let elf = object::File::parse(&cache)?;
    let section = elf.section_by_name(".eh_frame").context("no .eh_frame")?;
    let mut frames = EhFrame::new(section.data()?, LittleEndian);
    frames.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = frames.entries(&bases);
    let mut context = UnwindContext::new();
    let mut rows = Vec::new();
    let offset = |rule| match rule {
        Some(RegisterRule::Offset(offset)) => offset,
        _ => i64::MIN,
    };
    while let Some(entry) = entries.next()? {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(EhFrame::cie_from_offset)?;
        let mut table = fde.rows(&frames, &bases, &mut context)?;
        while let Some(row) = table.next_row()? {
            let frame = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => (register.0, *offset),
                CfaRule::Expression(_) => (u16::MAX, 0),
            };
            let [return_address, rbp, rbx] = [16, 6, 3].map(|number| offset(row.register(Register(number))));
            rows.push(FatRow {
                address: row.start_address(),
                frame,
                return_address,
                rbp,
                rbx,
            });
        }
    }
    rows.sort_unstable_by_key(|row| row.address);
    Ok(rows)
}

/// Does the work in this process, and says what it took.
fn run(which: &str, path: &Path) -> Result<()> {
    let (rows, bytes) = if which == "table" {
        let table = strobe_unwind::build(&ReadCache::new(File::open(path)?), "bench")?;
        (u64::from(Table::open(&table)?.header().rows), table.len() as u64)
    } else {
        let rows = by_gimli(path)?;
        (rows.len() as u64, (rows.len() * size_of::<FatRow>()) as u64)
    };
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kib: f64 = peak.context("no VmHWM")?.trim().trim_end_matches(" kB").parse()?;
    let stat = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: f64 = stat.split(' ').next().context("no schedstat")?.parse()?;
    println!("{} {} {rows} {bytes}", nanoseconds / 1e9, peak_kib / 1024.0);
    Ok(())
}

fn child(which: &str, path: &Path) -> Result<Run> {
    let output = Command::new(std::env::current_exe()?)
        .arg(which)
        .arg(path)
        .output()?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Run::of(&String::from_utf8_lossy(&output.stdout))
}

fn code_bytes(path: &Path) -> Result<u64> {
    let cache = ReadCache::new(File::open(path)?);
    let elf = object::File::parse(&cache)?;
    let text = elf
        .sections()
        .filter(|section| section.kind() == object::SectionKind::Text);
    Ok(text.map(|section| section.size()).sum())
}

fn main() -> Result<()> {
    // No core file of a run that is stopped.
    setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [which, path] = &arguments[..]
        && matches!(which.as_str(), "table" | "gimli")
    {
        return run(which, Path::new(path));
    }
    let candidates = if arguments.is_empty() {
        CANDIDATES.map(str::to_owned).to_vec()
    } else {
        arguments
    };
    let (mut seconds, mut peer_seconds, mut text) = (0.0, 0.0, 0.0);
    let (mut rows, mut bytes, mut peer_rows, mut peer_bytes) = (0, 0, 0, 0);
    let (mut peak, mut peer_peak) = (0.0_f64, 0.0_f64);
    for path in candidates.iter().map(Path::new).filter(|path| path.exists()) {
        let mut best: [Option<Run>; 2] = [None, None];
        for _ in 0..ROUNDS {
            for (best, which) in best.iter_mut().zip(["table", "gimli"]) {
                let run = child(which, path)?;
                if best.is_none_or(|best| run.seconds < best.seconds) {
                    *best = Some(run);
                }
            }
        }
        let [Some(table), Some(peer)] = best else { continue };
        let code = code_bytes(path)? as f64;
        println!(
            "{}: {:.1} MB of code, {} rows; {:.3} s, {:.0} MiB, {:.2} bytes a row; gimli {:.3} s, {:.0} MiB",
            path.display(),
            code / 1e6,
            table.rows,
            table.seconds,
            table.peak_mib,
            table.bytes as f64 / table.rows as f64,
            peer.seconds,
            peer.peak_mib,
        );
        (seconds, peer_seconds, text) = (seconds + table.seconds, peer_seconds + peer.seconds, text + code);
        (rows, bytes) = (rows + table.rows, bytes + table.bytes);
        (peer_rows, peer_bytes) = (peer_rows + peer.rows, peer_bytes + peer.bytes);
        (peak, peer_peak) = (peak.max(table.peak_mib), peer_peak.max(peer.peak_mib));
    }
    if text == 0.0 {
        bail!("none of the binaries is there: name some");
    }
    let per_100_mb = |seconds: f64| seconds * TEXT_BYTES / text;
    println!(
        "figure unwind.table_100mb_s value={:.3} target<=1 peer:gimli_rows={:.3}",
        per_100_mb(seconds),
        per_100_mb(peer_seconds)
    );
    println!("figure unwind.table_peak_mib value={peak:.0} target<=100 peer:gimli_rows={peer_peak:.0}");
    println!(
        "figure unwind.bytes_per_row value={:.2} target<=5 peer:gimli_rows={:.2}",
        bytes as f64 / rows as f64,
        peer_bytes as f64 / peer_rows as f64
    );
    Ok(())
}
