//! What a sample costs on the wire: bytes on Kafka, time to encode and to decode, beside the peers on the same input.
//!
//! `bench_wire [--capture DIR]`: the directory holds recorded raw batches, one framed message a file; without it, the
//! batches are synthetic ones with the shape of a demo's.

#[path = "../tests/mirror/mod.rs"]
mod mirror;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use serde::Serialize;
use strobe_event::codec::{self, Wire};
use strobe_event::synthetic::{self, Shape, Workload};
use strobe_event::{RawBatch, SamplesBatch};

/// The level that librdkafka uses for zstd where none is set.
const KAFKA_ZSTD_LEVEL: i32 = 3;

/// The level of the peer that sends one record per message: the fastest, since each is compressed alone.
const PEER_ZSTD_LEVEL: i32 = 1;

/// Batches of the synthetic set.
const SYNTHETIC_BATCHES: u32 = 8;

/// Goes over all batches; the fastest counts, since only disturbances make a go slower.
const GOES: usize = 9;

/// Batches of at least so many samples are measured; smaller ones are those that come at low rates or end a run.
const FULL_SAMPLES: usize = 8_192;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_wire: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let batches = match arguments()? {
        Some(directory) => recorded(&directory)?,
        None => synthetic_set(),
    };
    let (full, small): (Vec<_>, Vec<_>) = batches
        .into_iter()
        .partition(|batch| batch.samples.len() >= FULL_SAMPLES);
    if !full.is_empty() && !small.is_empty() {
        let bytes = kafka_bytes_per_sample(&small)?;
        let mean = total(&small) / small.len() as f64;
        println!(
            "{} batches closed by time, {mean:.0} samples on average:",
            small.len()
        );
        println!("figure wire.bytes_per_sample_101hz value={bytes:.2}");
    }
    let batches = if full.is_empty() { small } else { full };
    ensure!(!batches.is_empty(), "no batches to measure");
    describe(&batches)?;
    let named: Vec<SamplesBatch> = batches.iter().cloned().map(synthetic::name).collect();

    let bytes = kafka_bytes_per_sample(&batches)?;
    let records = record_bytes_per_sample(&batches)?;
    println!("figure wire.bytes_per_sample value={bytes:.2} target<=16 peer:record_per_message={records:.1}");
    let bytes = kafka_bytes_per_sample(&named)?;
    println!("figure wire.samples_bytes_per_sample value={bytes:.2}");
    let times = Times::measure::<RawBatch, mirror::RawBatch>(&batches)?;
    println!(
        "figure wire.encode_us value={:.4} target<=0.3 peer:apache_avro={:.4}",
        times.encode, times.their_encode
    );
    println!(
        "figure wire.decode_us value={:.4} target<=0.3 peer:apache_avro={:.4}",
        times.decode, times.their_decode
    );
    let times = Times::measure::<SamplesBatch, mirror::SamplesBatch>(&named)?;
    println!(
        "named and weighted: encode {:.4} us (apache-avro {:.4}), decode {:.4} us (apache-avro {:.4}) per sample",
        times.encode, times.their_encode, times.decode, times.their_decode
    );
    Ok(())
}

fn arguments() -> Result<Option<PathBuf>> {
    // Cargo hands `--bench` to benchmarks; it says nothing here.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(None),
        ["--capture", directory] => Ok(Some(directory.into())),
        _ => bail!("usage: bench_wire [--capture DIR]"),
    }
}

/// Returns full batches as they come at 997 Hz, and those that 2 s at 101 Hz on two CPUs close.
fn synthetic_set() -> Vec<RawBatch> {
    println!("input: synthetic batches, seed 1 (for recorded ones: --capture DIR)");
    let full = Workload::new(Shape::default(), 1);
    // The fewer samples, the more of them are the first of their stack.
    let small = Shape {
        samples: 404,
        frequency_hz: 101,
        distinct_share: 0.8,
        ..Shape::default()
    };
    let small = Workload::new(small, 1);
    let batches = (0..SYNTHETIC_BATCHES).flat_map(|index| [full.raw_batch(index), small.raw_batch(index)]);
    batches.collect()
}

/// Returns the batches of a directory, in the order of the files' names.
fn recorded(directory: &Path) -> Result<Vec<RawBatch>> {
    let read = || directory.display().to_string();
    let entries = std::fs::read_dir(directory).with_context(read)?;
    let mut files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    files.sort();
    println!(
        "input: {} recorded messages of {}",
        files.len(),
        directory.display()
    );
    let batch = |file: PathBuf| -> Result<RawBatch> {
        let message = std::fs::read(&file).with_context(|| file.display().to_string())?;
        let batch: RawBatch = codec::decode_framed(&message).with_context(|| file.display().to_string())?;
        batch.validate().with_context(|| file.display().to_string())?;
        Ok(batch)
    };
    files.into_iter().map(batch).collect()
}

/// Samples of a value.
trait Counted {
    fn samples(&self) -> usize;
}

impl Counted for RawBatch {
    fn samples(&self) -> usize {
        self.samples.len()
    }
}

impl Counted for SamplesBatch {
    fn samples(&self) -> usize {
        self.raw.samples.len()
    }
}

fn total<T: Counted>(values: &[T]) -> f64 {
    values.iter().map(Counted::samples).sum::<usize>() as f64
}

/// Returns the bytes of the messages, each compressed alone as Kafka does it, per sample.
fn kafka_bytes_per_sample<T: Wire + Counted>(values: &[T]) -> Result<f64> {
    let mut bytes = 0;
    for value in values {
        bytes += zstd::encode_all(&codec::encode_framed(value)?[..], KAFKA_ZSTD_LEVEL)?.len();
    }
    Ok(bytes as f64 / total(values))
}

/// One sample as a message of its own, the peer's way: addresses alone, without the binaries they lie in, which
/// flatters it.
#[derive(Serialize)]
struct Record<'b> {
    time_us: i64,
    host: &'b str,
    service: &'b str,
    profiler: &'b str,
    pid: i32,
    tid: i32,
    comm: &'b str,
    cpu: i32,
    weight: i64,
    stack: Vec<i64>,
}

const RECORD_SCHEMA: &str = r#"{"type": "record", "name": "Sample", "fields": [
    {"name": "time_us", "type": "long"}, {"name": "host", "type": "string"}, {"name": "service", "type": "string"},
    {"name": "profiler", "type": "string"}, {"name": "pid", "type": "int"}, {"name": "tid", "type": "int"},
    {"name": "comm", "type": "string"}, {"name": "cpu", "type": "int"}, {"name": "weight", "type": "long"},
    {"name": "stack", "type": {"type": "array", "items": "long"}}]}"#;

/// Returns the bytes per sample of one Avro record per message, each compressed alone.
fn record_bytes_per_sample(batches: &[RawBatch]) -> Result<f64> {
    let schema = Schema::parse_str(RECORD_SCHEMA)?;
    let writer = GenericDatumWriter::builder(&schema).build()?;
    let mut bytes = 0;
    // One batch shows it: records do not know of one another.
    let batch = &batches[0];
    let mut stacks: Vec<Vec<i64>> = Vec::with_capacity(batch.stacks.len());
    batch.stacks.for_each(|_, stack, _| {
        stacks.push(
            stack
                .iter()
                .map(|&frame| batch.frames.address[frame as usize] as i64)
                .collect(),
        );
    });
    let mut time_us = batch.start_us;
    for sample in 0..batch.samples.len() {
        time_us += batch.samples.time_delta_us[sample];
        let thread = batch.samples.thread[sample] as usize;
        let process = &batch.processes[batch.threads.process[thread] as usize];
        let record = Record {
            time_us: time_us as i64,
            host: &batch.run.host,
            service: &batch.strings[process.service as usize],
            profiler: &batch.run.profiler,
            pid: process.pid as i32,
            tid: batch.threads.tid[thread] as i32,
            comm: &batch.strings[batch.threads.name[thread] as usize],
            cpu: batch.samples.cpu[sample] as i32,
            weight: batch.run.period as i64,
            stack: stacks[batch.samples.stack[sample] as usize].clone(),
        };
        let mut message = Vec::new();
        codec::frame(0, &mut message);
        writer.write_ser(&mut message, &record)?;
        bytes += zstd::encode_all(&message[..], PEER_ZSTD_LEVEL)?.len();
    }
    Ok(bytes as f64 / batch.samples.len() as f64)
}

/// Prints what the batches look like, and what each column takes, alone and compressed alone.
fn describe(batches: &[RawBatch]) -> Result<()> {
    let samples = total(batches);
    let stacks: usize = batches.iter().map(|batch| batch.stacks.len()).sum();
    let frames: usize = batches.iter().map(|batch| batch.frames.len()).sum();
    let added: usize = batches.iter().map(|batch| batch.stacks.frames.len()).sum();
    let mut depth = 0;
    let mut raw = 0;
    let mut columns: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for batch in batches {
        batch.stacks.for_each(|_, stack, _| depth += stack.len());
        raw += codec::encode(batch)?.len();
        for (name, bytes) in columns_of(batch) {
            let sizes = columns.entry(name).or_default();
            sizes.0 += bytes.len();
            sizes.1 += zstd::encode_all(&bytes[..], KAFKA_ZSTD_LEVEL)?.len();
        }
    }
    println!(
        "{} batches, {samples} samples, {:.1} % distinct stacks of {:.1} frames ({:.1} added to the one before), {} frames a batch",
        batches.len(),
        100.0 * stacks as f64 / samples,
        depth as f64 / stacks as f64,
        added as f64 / stacks as f64,
        frames / batches.len(),
    );
    println!(
        "{:.2} bytes per sample before compression; by column, before and after (alone):",
        raw as f64 / samples
    );
    for (name, (before, after)) in columns {
        println!(
            "  {name:<24} {:>7.3} {:>7.3}",
            before as f64 / samples,
            after as f64 / samples
        );
    }
    Ok(())
}

/// Returns the bytes of each part of a batch that grows with its samples.
fn columns_of(batch: &RawBatch) -> Vec<(&'static str, Vec<u8>)> {
    fn column<T: Copy + Into<u64>>(values: &[T]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &value in values {
            let value: u64 = value.into();
            let mut bits = (value << 1) ^ ((value as i64 >> 63) as u64);
            while bits >= 0x80 {
                bytes.push(bits as u8 | 0x80);
                bits >>= 7;
            }
            bytes.push(bits as u8);
        }
        bytes
    }
    let (frames, stacks, samples) = (&batch.frames, &batch.stacks, &batch.samples);
    vec![
        ("frames.binary", column(&frames.binary)),
        ("frames.address", column(&frames.address)),
        ("frames.name", column(&frames.name)),
        ("frames.reason", column(&frames.reason)),
        ("stacks.shared", column(&stacks.shared)),
        ("stacks.added", column(&stacks.added)),
        ("stacks.frames", column(&stacks.frames)),
        ("stacks.end", column(&stacks.end)),
        ("samples.time_delta_us", column(&samples.time_delta_us)),
        ("samples.stack", column(&samples.stack)),
        ("samples.thread", column(&samples.thread)),
        ("samples.cpu", column(&samples.cpu)),
        ("samples.value", column(&samples.value)),
        ("strings", batch.strings.concat().into_bytes()),
    ]
}

/// Microseconds per sample.
struct Times {
    encode: f64,
    decode: f64,
    their_encode: f64,
    their_decode: f64,
}

impl Times {
    /// Measures ours and `apache-avro`'s in turn, on the same values, having proved that the bytes are the same.
    fn measure<T, M>(values: &[T]) -> Result<Self>
    where
        T: Wire + Counted + PartialEq,
        M: Serialize + serde::de::DeserializeOwned + for<'a> From<&'a T>,
    {
        let schema = Schema::parse_str(codec::schema_text(T::SCHEMA_ID).context("no such schema")?)?;
        let writer = GenericDatumWriter::builder(&schema).build()?;
        let reader = GenericDatumReader::builder(&schema).build()?;
        let mirrors: Vec<M> = values.iter().map(M::from).collect();
        let encoded = values.iter().map(codec::encode).collect::<Result<Vec<_>, _>>()?;
        for ((value, mirror), ours) in values.iter().zip(&mirrors).zip(&encoded) {
            ensure!(
                &writer.write_ser_to_vec(mirror)? == ours,
                "our bytes are not apache-avro's"
            );
            ensure!(
                &codec::decode::<T>(ours)? == value,
                "a value did not come back as it went"
            );
        }
        let mut out = Vec::new();
        let samples = total(values);
        let mut times = Self {
            encode: f64::MAX,
            decode: f64::MAX,
            their_encode: f64::MAX,
            their_decode: f64::MAX,
        };
        for _ in 0..GOES {
            keep_least(&mut times.encode, samples, || {
                for value in values {
                    out.clear();
                    codec::encode_into(value, &mut out)?;
                    black_box(&out);
                }
                Ok(())
            })?;
            keep_least(&mut times.decode, samples, || {
                for bytes in &encoded {
                    black_box(codec::decode::<T>(bytes)?);
                }
                Ok(())
            })?;
            keep_least(&mut times.their_encode, samples, || {
                for mirror in &mirrors {
                    out.clear();
                    writer.write_ser(&mut out, mirror)?;
                    black_box(&out);
                }
                Ok(())
            })?;
            keep_least(&mut times.their_decode, samples, || {
                for bytes in &encoded {
                    black_box(reader.read_deser::<M>(&mut bytes.as_slice())?);
                }
                Ok(())
            })?;
        }
        Ok(times)
    }
}

/// Runs `go` and keeps its microseconds per sample in `least` if they are fewer.
fn keep_least(least: &mut f64, samples: f64, go: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    go()?;
    *least = least.min(start.elapsed().as_secs_f64() * 1e6 / samples);
    Ok(())
}
