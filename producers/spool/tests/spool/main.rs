//! The spool on disks that fail: known errors one by one, and random lives against a list.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

mod bounds;
mod damage;
mod directory;
mod failing_disk;
mod model;
mod simulated;
