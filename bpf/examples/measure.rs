//! Prints what the program costs per sample, by the kernel's own count: the walk alone, against the kernel's helper and
//! against nothing; then whole samples, with and without their frames.
//!
//! `cargo run --release -p strobe-bpf --example measure`, as root. Start a busy process with a deep stack on each CPU
//! first: every process of the host is measured.

use std::time::{Duration, Instant};

use strobe_bpf::bench_support::{Baseline, Counting, EmptySampler};
use strobe_bpf::{CpuCounters, Sampler, SamplerSettings};

fn main() -> anyhow::Result<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(4), |seconds| seconds.parse())?;
    let duration = Duration::from_secs(seconds);
    let _counting = Counting::start()?;
    for frequency_hz in [101, 997, 9_973] {
        for baseline in [
            Baseline::Empty,
            Baseline::WalkByHelper,
            Baseline::WalkByFramePointer,
        ] {
            let sampler = EmptySampler::start_baseline(baseline, frequency_hz)?;
            let before = sampler.run_stats()?;
            std::thread::sleep(duration);
            let cost = sampler.run_stats()?.per_run_since(&before).unwrap_or(f64::NAN);
            println!(
                "{frequency_hz:>5} Hz  {:<24} {cost:>7.0} ns",
                format!("{baseline:?}")
            );
        }
        for omit_sent_stacks in [false, true] {
            let settings = SamplerSettings {
                omit_sent_stacks,
                ..SamplerSettings::at(frequency_hz)
            };
            let mut sampler = Sampler::start(&settings)?;
            let before = sampler.run_stats()?;
            let end = Instant::now() + duration;
            while Instant::now() < end {
                sampler.wait(Duration::from_millis(100))?;
                sampler.consume(&mut |_| ())?;
            }
            let cost = sampler.run_stats()?.per_run_since(&before).unwrap_or(f64::NAN);
            let mut sum = CpuCounters::default();
            sampler
                .counters()?
                .values()
                .for_each(|counters| sum.add(counters));
            println!(
                "{frequency_hz:>5} Hz  {:<24} {cost:>7.0} ns  ({} taken, {} idle, {} full, {} omitted, {} dropped)",
                if omit_sent_stacks {
                    "sampler, sent once"
                } else {
                    "sampler, sent always"
                },
                sum.taken,
                sum.idle,
                sum.full,
                sum.omitted,
                sum.dropped(),
            );
        }
    }
    Ok(())
}
