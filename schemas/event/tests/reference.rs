//! The codec against `apache-avro`, whose writer and reader are the reference: the same bytes, read back the same.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod generate;
mod mirror;

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use strobe_event::codec::{self, Wire};
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{
    Alert, AlertAnswer, AuditRecord, ConfigSet, CoverageRecord, HostRecord, HostReport, PlanRecord, RawBatch,
    Request, RequestState, RunEvent, SamplesBatch, SignedConfig, SignedRequest, StackSchemaFile, TunerRecord,
};

fn schema(id: u32) -> Schema {
    Schema::parse_str(codec::schema_text(id).expect("a frozen schema")).expect("a schema that parses")
}

/// Checks one value in all four directions; NaN is left out of equality by comparing bytes again.
fn agrees<T, M>(value: &T, schema: &Schema)
where
    T: Wire + PartialEq + std::fmt::Debug,
    M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug + for<'a> From<&'a T>,
{
    let ours = codec::encode(value).expect("encodable");
    let mirror = M::from(value);
    let writer = GenericDatumWriter::builder(schema).build().expect("writer");
    let theirs = writer.write_ser_to_vec(&mirror).expect("their bytes");
    assert!(
        ours == theirs,
        "our {} bytes are not their {}",
        ours.len(),
        theirs.len()
    );

    let reader = GenericDatumReader::builder(schema).build().expect("reader");
    let read: M = reader
        .read_deser(&mut ours.as_slice())
        .expect("their reader reads our bytes");
    assert_eq!(read, mirror);

    assert_eq!(
        &codec::decode::<T>(&theirs).expect("our reader reads their bytes"),
        value
    );

    // Their writer in blocks with stated lengths, as writers in other languages do it.
    let blocks = GenericDatumWriter::builder(schema)
        .target_block_size(16)
        .build()
        .expect("writer");
    let in_blocks = blocks.write_ser_to_vec(&mirror).expect("their bytes in blocks");
    assert_eq!(&codec::decode::<T>(&in_blocks).expect("blocks are read"), value);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Checks that random raw batches, whether or not they make sense, are the same bytes in both.
    #[test]
    fn raw_batches_are_theirs(batch in generate::raw_batch()) {
        agrees::<RawBatch, mirror::RawBatch>(&batch, &schema(codec::SCHEMA_ID_RAW_BATCH));
    }

    /// Checks the same of named and weighted batches.
    #[test]
    fn samples_batches_are_theirs(batch in generate::samples_batch()) {
        agrees::<SamplesBatch, mirror::SamplesBatch>(&batch, &schema(codec::SCHEMA_ID_SAMPLES_BATCH));
    }

    /// Checks the same of run events.
    #[test]
    fn run_events_are_theirs(event in generate::run_event()) {
        agrees::<RunEvent, mirror::RunEvent>(&event, &schema(codec::SCHEMA_ID_RUN_EVENT));
    }

    /// Checks the same of stack schemas.
    #[test]
    fn stack_schemas_are_theirs(file in generate::stack_schema()) {
        agrees::<StackSchemaFile, mirror::StackSchemaFile>(&file, &schema(codec::SCHEMA_ID_STACK_SCHEMA));
    }

    /// Checks the same of requests and what becomes of them.
    #[test]
    fn requests_are_theirs(
        request in generate::request(),
        signed in generate::signed_request(),
        state in generate::request_state(),
        report in generate::host_report(),
    ) {
        agrees::<Request, mirror::Request>(&request, &schema(codec::SCHEMA_ID_REQUEST));
        agrees::<SignedRequest, mirror::SignedRequest>(&signed, &schema(codec::SCHEMA_ID_SIGNED_REQUEST));
        agrees::<RequestState, mirror::RequestState>(&state, &schema(codec::SCHEMA_ID_REQUEST_STATE));
        agrees::<HostReport, mirror::HostReport>(&report, &schema(codec::SCHEMA_ID_HOST_REPORT));
    }

    /// Checks the same of alerts and what rules made of them.
    #[test]
    fn alerts_are_theirs(alert in generate::alert(), answer in generate::alert_answer()) {
        agrees::<Alert, mirror::Alert>(&alert, &schema(codec::SCHEMA_ID_ALERT));
        agrees::<AlertAnswer, mirror::AlertAnswer>(&answer, &schema(codec::SCHEMA_ID_ALERT_ANSWER));
    }

    /// Checks the same of configurations.
    #[test]
    fn configurations_are_theirs(set in generate::config_set(), signed in generate::signed_config()) {
        agrees::<ConfigSet, mirror::ConfigSet>(&set, &schema(codec::SCHEMA_ID_CONFIG_SET));
        agrees::<SignedConfig, mirror::SignedConfig>(&signed, &schema(codec::SCHEMA_ID_SIGNED_CONFIG));
    }

    /// Checks the same of the audit.
    #[test]
    fn audits_are_theirs(record in generate::audit()) {
        agrees::<AuditRecord, mirror::AuditRecord>(&record, &schema(codec::SCHEMA_ID_AUDIT));
    }

    /// Checks the same of what is said of sampling.
    #[test]
    fn records_of_sampling_are_theirs(
        coverage in generate::coverage(),
        plan in generate::plan(),
        tuner in generate::tuner(),
        host in generate::host(),
    ) {
        agrees::<CoverageRecord, mirror::Coverage>(&coverage, &schema(codec::SCHEMA_ID_COVERAGE));
        agrees::<PlanRecord, mirror::Plan>(&plan, &schema(codec::SCHEMA_ID_PLAN));
        agrees::<TunerRecord, mirror::Tuner>(&tuner, &schema(codec::SCHEMA_ID_TUNER));
        agrees::<HostRecord, mirror::Host>(&host, &schema(codec::SCHEMA_ID_HOST));
    }
}

/// Checks the same of whole batches with the shape of recorded ones.
#[test]
fn whole_batches_are_theirs() {
    let workload = Workload::new(Shape::default(), 7);
    let raw = schema(codec::SCHEMA_ID_RAW_BATCH);
    agrees::<RawBatch, mirror::RawBatch>(&workload.raw_batch(0), &raw);
    let samples = schema(codec::SCHEMA_ID_SAMPLES_BATCH);
    agrees::<SamplesBatch, mirror::SamplesBatch>(&workload.samples_batch(1), &samples);
}

/// Checks that our bytes pass their dynamic reader too, which other tools resemble.
#[test]
fn their_dynamic_reader_reads_ours() {
    let schema = schema(codec::SCHEMA_ID_SAMPLES_BATCH);
    let batch = Workload::new(
        Shape {
            samples: 200,
            ..Shape::default()
        },
        8,
    )
    .samples_batch(0);
    let bytes = codec::encode(&batch).expect("encodable");
    let reader = GenericDatumReader::builder(&schema).build().expect("reader");
    let value = reader
        .read_value(&mut bytes.as_slice())
        .expect("their reader reads our bytes");
    let writer = GenericDatumWriter::builder(&schema).build().expect("writer");
    assert_eq!(writer.write_value_to_vec(value).expect("their bytes"), bytes);
}

/// Checks that a batch of the first schema is read as the reference writes it: the same samples, one context of which
/// nothing is known, and the tags of each stack.
#[test]
fn batches_of_the_first_schema_are_read() {
    use apache_avro::types::Value;
    let shape = Shape {
        samples: 200,
        ..Shape::default()
    };
    let batch = Workload::new(shape, 8).samples_batch(0);
    let reader_schema = schema(codec::SCHEMA_ID_SAMPLES_BATCH);
    let bytes = codec::encode(&batch).expect("encodable");
    let reader = GenericDatumReader::builder(&reader_schema)
        .build()
        .expect("reader");
    let Value::Record(mut fields) = reader.read_value(&mut bytes.as_slice()).expect("readable") else {
        panic!("no record");
    };
    fields.retain(|(name, _)| name != "sample_context");
    let ints = |values: &[i32]| Value::Array(values.iter().map(|&value| Value::Int(value)).collect());
    let texts = ["a=b", "c"].map(|text| Value::String(text.into())).to_vec();
    for (name, value) in &mut fields {
        if name == "tags" {
            *value = Value::Record(vec![
                ("stack".into(), ints(&[0, 0, 3])),
                ("tag".into(), ints(&[1, 0, 1])),
                ("text".into(), Value::Array(texts.clone())),
            ]);
        }
    }
    let first = schema(codec::SCHEMA_ID_SAMPLES_BATCH_1);
    let writer = GenericDatumWriter::builder(&first).build().expect("writer");
    let mut message = Vec::new();
    codec::frame(codec::SCHEMA_ID_SAMPLES_BATCH_1, &mut message);
    message.extend(
        writer
            .write_value_to_vec(Value::Record(fields))
            .expect("their bytes"),
    );
    let read: SamplesBatch = codec::decode_framed(&message).expect("the first schema is read");
    assert_eq!(read.validate(), Ok(()));
    assert_eq!((&read.raw, &read.locations), (&batch.raw, &batch.locations));
    assert_eq!(read.sample_context, vec![0; 200]);
    assert_eq!(read.tags.values(0).count(), 0);
    let spelled: Vec<(u32, Vec<&str>)> = (0..read.tags.stack.len())
        .map(|pair| {
            let outcome = &read.tags.outcomes[read.tags.outcome[pair] as usize];
            let tags = outcome.tags.iter().map(|&tag| read.tags.text(tag)).collect();
            (read.tags.stack[pair], tags)
        })
        .collect();
    assert_eq!(spelled, [(0, vec!["c", "a=b"]), (3, vec!["c"])]);
    message.push(0);
    assert!(
        codec::decode_framed::<SamplesBatch>(&message).is_err(),
        "a byte too many"
    );
}
