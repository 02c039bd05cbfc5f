//! Costs of the sink per sample: CPU for reading and for making rows, without broker and ClickHouse.
//!
//! `cargo run --release -p strobe-sink --example measure-sink [BATCHES]`

use std::time::Instant;

use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{Epoch, Identity, SamplesBatch, codec};
use strobe_sink::rows::{RangeRows, WrittenRows};

fn main() {
    let batches: u32 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(100);
    let workload = Workload::new(Shape::default(), 5);
    let messages: Vec<Vec<u8>> = (0..batches)
        .map(|index| codec::encode_framed(&workload.samples_batch(index)).unwrap_or_default())
        .collect();
    let mut written = WrittenRows::default();
    for round in ["first", "again"] {
        let (mut samples, mut bytes, mut decode_us, mut rows_us, mut rows) = (0, 0, 0, 0, 0);
        for (index, range) in messages.chunks(25).enumerate() {
            let start = Instant::now();
            let decoded: Vec<SamplesBatch> = range
                .iter()
                .filter_map(|message| codec::decode_framed(message).ok())
                .collect();
            decode_us += start.elapsed().as_micros();
            let start = Instant::now();
            let mut range_rows = RangeRows::default();
            for (place, batch) in decoded.iter().enumerate() {
                samples += batch.raw.samples.len();
                let sequence = (25 * index + place) as u64;
                let identity = Identity {
                    host: "host".into(),
                    epoch: Epoch([1; 16]),
                    sequence,
                    part: 0,
                };
                range_rows.add(&identity, batch, Some(&written));
            }
            let blocks = range_rows.finish();
            bytes += blocks.blocks.iter().map(|block| block.bytes.len()).sum::<usize>();
            rows += blocks.blocks.iter().map(|block| block.rows).sum::<usize>();
            written.add(blocks.fresh);
            rows_us += start.elapsed().as_micros();
        }
        let per = |us: u128| us as f64 / samples as f64;
        println!(
            "{round}: {samples} samples, {rows} rows, {:.1} bytes per sample, decode {:.3} us, rows {:.3} us per sample",
            bytes as f64 / samples as f64,
            per(decode_us),
            per(rows_us)
        );
    }
}
