//! Bytes that somebody hostile, or a broken disk, wrote: decoding refuses them and never panics.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod generate;

use proptest::prelude::*;
use strobe_event::codec;
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{
    AuditRecord, ConfigSet, CoverageRecord, HostRecord, HostReport, PlanRecord, RawBatch, Request,
    RequestState, RunEvent, SamplesBatch, SignedRequest, TunerRecord,
};

/// Returns whether `bytes` are a raw batch, a samples batch, a run event, or one of the records of sampling and requests.
fn all(bytes: &[u8]) -> [bool; 13] {
    [
        codec::decode::<RawBatch>(bytes).is_ok(),
        codec::decode::<SamplesBatch>(bytes).is_ok(),
        codec::decode::<RunEvent>(bytes).is_ok(),
        codec::decode::<CoverageRecord>(bytes).is_ok(),
        codec::decode::<PlanRecord>(bytes).is_ok(),
        codec::decode::<TunerRecord>(bytes).is_ok(),
        codec::decode::<HostRecord>(bytes).is_ok(),
        codec::decode::<Request>(bytes).is_ok(),
        codec::decode::<SignedRequest>(bytes).is_ok(),
        codec::decode::<RequestState>(bytes).is_ok(),
        codec::decode::<HostReport>(bytes).is_ok(),
        codec::decode::<AuditRecord>(bytes).is_ok(),
        codec::decode::<ConfigSet>(bytes).is_ok(),
    ]
}

/// Checks that a whole batch, cut anywhere, is refused: no shorter message is a batch as well.
#[test]
fn cut_batches_are_refused() {
    let shape = Shape {
        samples: 60,
        ..Shape::default()
    };
    let batch = Workload::new(shape, 2).samples_batch(0);
    let raw = codec::encode(&batch.raw).expect("encodable");
    let samples = codec::encode(&batch).expect("encodable");
    (0..raw.len()).for_each(|cut| assert!(codec::decode::<RawBatch>(&raw[..cut]).is_err(), "cut at {cut}"));
    (0..samples.len()).for_each(|cut| {
        assert!(
            codec::decode::<SamplesBatch>(&samples[..cut]).is_err(),
            "cut at {cut}"
        )
    });
    assert_eq!(codec::decode(&raw), Ok(batch.raw.clone()));
    assert_eq!(codec::decode(&samples), Ok(batch));
}

/// Checks that one batch is not taken for another kind of value.
#[test]
fn other_values_are_refused() {
    let batch = Workload::new(
        Shape {
            samples: 60,
            ..Shape::default()
        },
        2,
    )
    .samples_batch(0);
    assert_eq!(
        all(&codec::encode(&batch.raw).expect("encodable")),
        [
            true, false, false, false, false, false, false, false, false, false, false, false, false
        ]
    );
    assert_eq!(
        all(&codec::encode(&batch).expect("encodable")),
        [
            false, true, false, false, false, false, false, false, false, false, false, false, false
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Checks that random bytes do not panic.
    #[test]
    fn random_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        all(&bytes);
    }

    /// Checks the same of batches with some bytes changed, which reach deeper; what is accepted can be validated,
    /// encoded again, and means the same.
    #[test]
    fn changed_batches_are_harmless(
        batch in generate::samples_batch(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = codec::encode(&batch).expect("encodable");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        all(&bytes);
        if let Ok(read) = codec::decode::<SamplesBatch>(&bytes) {
            let _either = read.validate();
            let again = codec::encode(&read).expect("what was read can be written");
            prop_assert_eq!(codec::encode(&codec::decode::<SamplesBatch>(&again).expect("and read")), Ok(again));
        }
    }

    /// Checks that what goes in comes out, for every kind of value, framed.
    #[test]
    fn what_goes_in_comes_out(batch in generate::samples_batch(), event in generate::run_event()) {
        let framed = codec::encode_framed(&batch.raw).expect("encodable");
        prop_assert_eq!(codec::decode_framed(&framed), Ok(batch.raw.clone()));
        let framed = codec::encode_framed(&batch).expect("encodable");
        prop_assert_eq!(codec::decode_framed(&framed), Ok(batch));
        let framed = codec::encode_framed(&event).expect("encodable");
        prop_assert_eq!(codec::decode_framed(&framed), Ok(event));
    }
}
