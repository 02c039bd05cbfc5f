//! Keys are frozen: rows stored under them years ago must still be found, so the values stand here.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use strobe_event::codec::{decode, encode};
use strobe_event::key::{frame_keys, stack_keys};
use strobe_event::synthetic::{Shape, Workload};
use strobe_event::{Binary, BinaryKind, BuildId, Frames, RawBatch, Reason, StackEnd, Stacks};

/// Returns a batch with one frame of each sort.
fn batch() -> RawBatch {
    let mut batch = Workload::new(
        Shape {
            samples: 1,
            ..Shape::default()
        },
        1,
    )
    .raw_batch(0);
    batch.strings = vec![String::new(), "/bin/true".to_owned(), "bpf_prog_1".to_owned()];
    let id = BuildId::new(&[0xab; 20]).unwrap();
    batch.binaries = [BinaryKind::Gnu, BinaryKind::Kernel]
        .map(|kind| Binary {
            kind,
            id: id.clone(),
            path: 1,
        })
        .to_vec();
    batch.frames = Frames {
        binary: vec![1, 2, 1, 0, 0],
        address: vec![0x1234, 0x1234, u64::MAX, 0, 0],
        name: vec![0, 2, 0, 2, 0],
        reason: vec![0, 0, 0, 0, Reason::Anonymous as u8],
    };
    batch.stacks = Stacks::default();
    batch.stacks.push(&[], &[0, 2, 1], StackEnd::Root);
    batch.stacks.push(&[0, 2, 1], &[0, 2], StackEnd::Depth);
    batch.stacks.push(&[0, 2], &[], StackEnd::Forgotten);
    batch
}

/// Checks the keys against values computed once, with another implementation of XXH3.
#[test]
fn keys_are_frozen() {
    let batch = batch();
    let frames = frame_keys(&batch);
    let values: Vec<u64> = frames.iter().map(|key| key.0).collect();
    assert_eq!(values, FRAME_KEYS, "{values:#x?}");
    let stacks: Vec<u128> = stack_keys(&batch, &frames).iter().map(|key| key.0).collect();
    assert_eq!(stacks, STACK_KEYS, "{stacks:#x?}");
    assert_eq!(stack_keys(&batch, &frames)[0].low(), STACK_KEYS[0] as u64);
}

const FRAME_KEYS: [u64; 5] = [
    0x37e8_fb5b_f03c_290b,
    0x32e7_c019_c2f5_231f,
    0x0801_2ab7_bcf2_38e0,
    0x1d64_e108_2361_7369,
    0xffbe_e1af_5f20_3e5a,
];
const STACK_KEYS: [u128; 3] = [
    0x2669_3d67_1922_5c45_4a24_df27_bc3b_22fd,
    0x3f72_1014_62bb_c0e2_160e_6778_d292_5dcb,
    0x810f_b55b_58f3_1e9b_dc4d_00f7_8ae4_972d,
];

/// Checks that keys cover neither names found later nor paths, and do not depend on the dictionaries' order.
#[test]
fn keys_depend_on_the_frames_alone() {
    let given = batch();
    let keys = stack_keys(&given, &frame_keys(&given));
    let mut other = given.clone();
    other.strings[1] = "/bin/false".to_owned();
    other.binaries.reverse();
    other.frames.binary = vec![2, 1, 2, 0, 0];
    // The name of a frame in a binary is the host's opinion; only a frame without a binary is its name.
    other.frames.name[1] = 0;
    assert_eq!(stack_keys(&other, &frame_keys(&other)), keys);
    other.frames.address[0] += 1;
    assert_ne!(stack_keys(&other, &frame_keys(&other))[0], keys[0]);
}

/// Checks that keys survive the wire.
#[test]
fn keys_survive_the_wire() {
    let batch = Workload::new(
        Shape {
            samples: 500,
            ..Shape::default()
        },
        4,
    )
    .raw_batch(0);
    let travelled: RawBatch = decode(&encode(&batch).unwrap()).unwrap();
    assert_eq!(frame_keys(&travelled), frame_keys(&batch));
    assert_eq!(
        stack_keys(&travelled, &frame_keys(&travelled)),
        stack_keys(&batch, &frame_keys(&batch))
    );
}
