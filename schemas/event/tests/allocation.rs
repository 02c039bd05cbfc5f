//! What decoding allocates, whatever the bytes: at most the stated multiple of their length.
//!
//! One test alone in its program, since the allocator counts for all threads.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod generate;

use std::alloc::System;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use strobe_event::codec::{self, ALLOCATED_PER_BYTE_MAX, Wire};
use strobe_event::synthetic::{self, Shape};
use strobe_event::{HostRecord, RawBatch, Request, RunEvent, SamplesBatch, SignedRequest, TunerRecord};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Room for the first items of each of some 40 vectors: a vector starts with 4.
const ALLOCATED_BASE: usize = 16 * 1024;

/// Returns how many bytes were asked for to decode `bytes` as `T`.
fn allocated<T: Wire>(bytes: &[u8]) -> usize {
    let region = Region::new(ALLOCATOR);
    let _either = codec::decode::<T>(bytes);
    // What a vector that moves grows by is in this count too.
    region.change().bytes_allocated
}

/// Returns a raw batch up to where its strings begin, then `strings`.
fn with_strings(strings: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut batch = synthetic::raw_batch(
        &Shape {
            samples: 1,
            ..Shape::default()
        },
        1,
    );
    let whole = codec::encode(&batch).expect("encodable");
    batch.strings.clear();
    let without = codec::encode(&batch).expect("encodable");
    let same = whole.iter().zip(&without).take_while(|(a, b)| a == b).count();
    whole[..same].iter().copied().chain(strings).collect()
}

/// The dearest messages: empty texts, as many as there are bytes, then one more block, which doubles the room.
fn dearest() -> impl Strategy<Value = Vec<u8>> {
    (1_u32..100_000, 0_usize..3).prop_map(|(texts, blocks_of_one)| {
        let count = [texts << 1 | 0x80, texts >> 6 | 0x80, texts >> 13].map(|group| group as u8);
        let one_block = count.into_iter().chain((0..texts).map(|_| 0));
        with_strings(one_block.chain([2, 0].repeat(blocks_of_one)))
    })
}

/// Batches with some bytes changed, cut somewhere.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    (generate::samples_batch(), any::<bool>(), changes).prop_map(|(batch, raw, changes)| {
        let encoded = if raw {
            codec::encode(&batch.raw)
        } else {
            codec::encode(&batch)
        };
        let mut bytes = encoded.expect("encodable");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Checks the bound on random bytes, on changed batches, and on the dearest messages there are.
    #[test]
    fn decoding_allocates_no_more_than_stated(
        bytes in prop_oneof![1 => vec(any::<u8>(), 0..2_000), 8 => changed(), 1 => dearest()],
    ) {
        let most = allocated::<RawBatch>(&bytes)
            .max(allocated::<SamplesBatch>(&bytes))
            .max(allocated::<RunEvent>(&bytes))
            .max(allocated::<TunerRecord>(&bytes))
            .max(allocated::<HostRecord>(&bytes))
            .max(allocated::<Request>(&bytes))
            .max(allocated::<SignedRequest>(&bytes));
        // Twice: what is counted is all that was asked for, and a vector that grows asks again for what it holds.
        let allowed = ALLOCATED_BASE + 2 * ALLOCATED_PER_BYTE_MAX * bytes.len();
        prop_assert!(most <= allowed, "{} bytes for {} of input, {} allowed", most, bytes.len(), allowed);
    }
}
