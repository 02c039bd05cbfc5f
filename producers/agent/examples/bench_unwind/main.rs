//! What unwinding costs, and how many stacks are whole. `make bench-unwind`; needs root, BTF and gcc.
//!
//! `cargo run --release -p strobe-agent --example bench_unwind -- [--corpus SCRIPT] [--rounds N] [--only NAME]`.
//!
//! CPU per sample is measured as `bench_agent.rs` says, on stacks of 40 frames, once of a victim with frame pointers (but for the
//! leaf, which a table finds) and once of one without any. Then the programs of the corpus run one after the other beside one
//! agent, and every user stack counts as whole or as cut, by reason. `bench_tables` of the crate that makes tables has the
//! figures of these.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use measuring::{Bench, Turn, cost, has, lightswitch};
use strobe_bpf::bench_support::EmptySampler;

mod corpus;
#[path = "../measuring/mod.rs"]
mod measuring;
mod processes;

const FREQUENCY_HZ: u32 = 997;
/// What is counted: a victim that keeps frame pointers but in its leaf, and one that keeps none.
const VICTIMS: [(&str, &str, &str, &[&str]); 2] = [
    (
        "unwind.fp_us",
        "8",
        "frame pointers, leaf by table",
        &["-fno-omit-frame-pointer", "-momit-leaf-frame-pointer"],
    ),
    (
        "unwind.table_us",
        "15",
        "no frame pointers",
        &["-fomit-frame-pointer", "-fasynchronous-unwind-tables"],
    ),
];

/// Runs one profiler beside the victims in turns with the empty program.
fn turns(
    bench: &Bench,
    rounds: usize,
    start: impl Fn() -> Result<measuring::Profiler>,
) -> Result<Vec<(Turn, Turn)>> {
    let empty = || -> Result<Turn> {
        let _empty = EmptySampler::start(FREQUENCY_HZ)?;
        bench.turn(None)
    };
    let mut turns = Vec::new();
    let mut before = empty()?;
    for _ in 0..rounds {
        let (turn, _) = bench.beside(start()?)?;
        let after = empty()?;
        turns.push((before.mean(after), turn));
        before = after;
    }
    Ok(turns)
}

fn costs(rounds: usize) -> Result<()> {
    for (name, target, what, flags) in VICTIMS {
        let mut bench = Bench::new(None, flags)?;
        bench.load()?;
        let agent = cost(
            &turns(&bench, rounds, || bench.start_agent(FREQUENCY_HZ))?,
            FREQUENCY_HZ,
        );
        let by_victim = agent.told(what);
        let program = bench.program_us(FREQUENCY_HZ)?;
        println!("{what}: {program:.2} us in the BPF program, by the kernel's count");
        let value = by_victim.unwrap_or(program + agent.used);
        let mut figure = format!("figure {name} value={value:.2} target<={target}");
        if has("perf") {
            let perf = cost(
                &turns(&bench, rounds, || bench.start_perf(FREQUENCY_HZ, "dwarf"))?,
                FREQUENCY_HZ,
            );
            if let Some(peer) = perf.told(&format!("perf record --call-graph dwarf, {what}")) {
                figure += &format!(" peer:perf_record_dwarf={peer:.2}");
            }
        } else {
            println!("skipped: perf: not installed; apt-get install linux-perf");
        }
        if let Some(peer) = lightswitch(&bench)? {
            figure += &format!(" peer:lightswitch={peer:.2}");
        }
        println!("{figure}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let (mut script, mut rounds, mut only) = (None, 3, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--corpus" => script = Some(PathBuf::from(arguments.next().context("--corpus needs a file")?)),
            "--rounds" => rounds = arguments.next().context("--rounds needs a number")?.parse()?,
            "--only" => only = Some(arguments.next().context("--only needs a name of the corpus")?),
            other => bail!("{other} is not known: --corpus SCRIPT, --rounds N, --only NAME"),
        }
    }
    strobe_bpf::probe::check_loadable()?;
    if only.is_none() {
        costs(rounds)?;
        processes::exec_to_table()?;
        processes::memory()?;
    }
    if let Some(script) = script {
        corpus::run(&script, only.as_deref(), FREQUENCY_HZ)?;
    }
    Ok(())
}
