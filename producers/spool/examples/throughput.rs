//! Prints what the spool does per second with records of one size: `throughput DIRECTORY [BYTES] [MIB]`.
#![allow(clippy::expect_used, reason = "a tool for people at a terminal")]

use std::time::Instant;

use strobe_spool::{Settings, Spool};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory");
    let bytes: usize = arguments
        .next()
        .map_or(64 << 10, |text| text.parse().expect("bytes of a record"));
    let mib: usize = arguments
        .next()
        .map_or(512, |text| text.parse().expect("MiB to append"));
    let count = (mib << 20) / bytes;
    let (mut writer, mut reader, _) = Spool::open(Settings {
        size_limit_bytes: 8 << 30,
        ..Settings::new(directory, "host")
    })
    .expect("a spool");
    let payload: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    let report = |what: &str, started: Instant| {
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{what} {:.0} records/s {:.0} MB/s",
            count as f64 / seconds,
            (count * bytes) as f64 / seconds / 1e6
        );
    };

    let started = Instant::now();
    for _ in 0..count {
        writer.append(&payload).expect("an append");
        writer.sync_if_due().expect("a sync");
    }
    writer.sync().expect("a sync");
    report("append, synced every 500 ms and per segment:", started);

    let started = Instant::now();
    while let Some(record) = reader.next().expect("a read") {
        reader.acknowledge(record.position).expect("an acknowledgement");
    }
    report("read and acknowledge:", started);
}
