//! The peer: the same samples as one Avro record per message, through the same broker and engine, a row for each.
//!
//! Its records carry addresses and are stored as they are: nothing is named, deduplicated or summed, which flatters it.
//! What is its own is done well: records are produced without waiting, and 100,000 rows are one insert.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use clickhouse::Row;
use serde::{Deserialize, Serialize};
use strobe_bus::{
    BusSettings, Consumer, Event, Headers, Outgoing, ResendingProducer, Topic, WindowFull, WindowLimits,
};
use strobe_event::{RawBatch, codec};

use crate::fleet::count;
use crate::store::Store;

/// Rows of an insert.
const INSERT_ROWS: u64 = 100_000;

const SCHEMA: &str = r#"{"type": "record", "name": "Sample", "fields": [
    {"name": "time_us", "type": "long"}, {"name": "host", "type": "string"}, {"name": "service", "type": "string"},
    {"name": "profiler", "type": "string"}, {"name": "pid", "type": "int"}, {"name": "tid", "type": "int"},
    {"name": "comm", "type": "string"}, {"name": "cpu", "type": "int"}, {"name": "weight", "type": "long"},
    {"name": "stack", "type": {"type": "array", "items": "long"}}]}"#;

const TABLE: &str = "CREATE OR REPLACE TABLE bench_peer (time_us Int64 CODEC(Delta, ZSTD(1)), \
    host LowCardinality(String), service LowCardinality(String), profiler LowCardinality(String), pid Int32, tid Int32, \
    comm LowCardinality(String), cpu Int32, weight Int64, stack Array(Int64) CODEC(ZSTD(1))) \
    ENGINE = MergeTree ORDER BY (service, profiler, time_us)";

#[derive(Row, Serialize, Deserialize)]
struct Sample {
    time_us: i64,
    host: String,
    service: String,
    profiler: String,
    pid: i32,
    tid: i32,
    comm: String,
    cpu: i32,
    weight: i64,
    stack: Vec<i64>,
}

/// Returns how many samples per second come through, of `samples`.
pub fn samples_per_second(
    bus: &BusSettings,
    store: &Store,
    recorded: &[RawBatch],
    samples: u64,
) -> Result<f64> {
    let topic = bus.topic(Topic::StacksRaw);
    strobe_bus::admin::apply(bus, false)?;
    store.run(TABLE)?;
    let schema = Schema::parse_str(SCHEMA)?;
    let sent = produce(bus, &topic, &schema, recorded, samples)?;
    let start = Instant::now();
    consume(bus, &topic, &schema, store, sent)?;
    store.wait_for_rows("bench_peer", sent, Duration::from_secs(30), || Ok(()))?;
    let seconds = start.elapsed().as_secs_f64();
    store.run("DROP TABLE bench_peer")?;
    Ok(sent as f64 / seconds)
}

fn produce(
    bus: &BusSettings,
    topic: &str,
    schema: &Schema,
    recorded: &[RawBatch],
    samples: u64,
) -> Result<u64> {
    let writer = GenericDatumWriter::builder(schema).build()?;
    let mut producer = ResendingProducer::new(bus, WindowLimits::default())?;
    let (mut sent, mut acknowledged) = (0, 0);
    for batch in recorded.iter().cycle() {
        for sample in of_batch(batch) {
            if sent == samples {
                acknowledged += count(producer.flush(Duration::from_secs(120)))?;
                ensure!(
                    acknowledged == sent,
                    "the broker took {acknowledged} of {sent} records"
                );
                return Ok(sent);
            }
            let mut value = Vec::with_capacity(512);
            codec::frame(0, &mut value);
            writer.write_ser(&mut value, &sample)?;
            sent += 1;
            let mut message = Outgoing {
                topic: topic.into(),
                // Without a key, so that librdkafka spreads them over all partitions.
                key: None,
                headers: Headers::new(),
                payload: Some(value.into()),
            };
            while let Err(WindowFull(back)) = producer.push(sent, message) {
                message = back;
                acknowledged += count(producer.poll(Duration::from_millis(10)))?;
            }
        }
    }
    Ok(sent)
}

fn of_batch(batch: &RawBatch) -> Vec<Sample> {
    let mut stacks: Vec<Vec<i64>> = Vec::with_capacity(batch.stacks.len());
    batch.stacks.for_each(|_, stack, _| {
        let address = |&frame: &u32| batch.frames.address[frame as usize] as i64;
        stacks.push(stack.iter().map(address).collect());
    });
    let mut time_us = batch.start_us;
    let text = |at: u32| batch.strings[at as usize].clone();
    (0..batch.samples.len())
        .map(|sample| {
            time_us += batch.samples.time_delta_us[sample];
            let thread = batch.samples.thread[sample] as usize;
            let process = &batch.processes[batch.threads.process[thread] as usize];
            Sample {
                time_us: time_us as i64,
                host: batch.run.host.clone(),
                service: text(process.service),
                profiler: batch.run.profiler.clone(),
                pid: process.pid as i32,
                tid: batch.threads.tid[thread] as i32,
                comm: text(batch.threads.name[thread]),
                cpu: batch.samples.cpu[sample] as i32,
                weight: batch.run.period as i64,
                stack: stacks[batch.samples.stack[sample] as usize].clone(),
            }
        })
        .collect()
}

fn consume(bus: &BusSettings, topic: &str, schema: &Schema, store: &Store, samples: u64) -> Result<()> {
    let reader = GenericDatumReader::builder(schema).build()?;
    // An insert starts its request when the first row is written.
    let _runtime = store.runtime.enter();
    let mut consumer = Consumer::new(bus, "bench-peer", &[topic])?;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut read = 0;
    while read < samples {
        let mut insert = store
            .runtime
            .block_on(store.client.insert::<Sample>("bench_peer"))?;
        let block_end = (read + INSERT_ROWS).min(samples);
        while read < block_end {
            ensure!(
                Instant::now() < deadline,
                "the peer read {read} of {samples} records in time"
            );
            let Event::Message(message) = consumer.poll(Duration::from_millis(100))? else {
                continue;
            };
            let (_, mut value) = codec::unframe(message.bytes()).context("the peer's own record")?;
            let sample: Sample = reader.read_deser(&mut value)?;
            store.runtime.block_on(insert.write(&sample))?;
            read += 1;
        }
        store.runtime.block_on(insert.end())?;
    }
    consumer.stop();
    Ok(())
}
