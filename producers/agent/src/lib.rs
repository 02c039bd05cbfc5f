//! The agent: every host's flight recorder. Steps 1 to 9 of the path of one sample.
//!
//! Nine threads, each the owner of its state, joined by bounded queues:
//!
//! | thread | file | does |
//! |--|--|--|
//! | sampling | [`sampling`] | reads the ring and the side-band every 100 or 200 ms, merges them by time, closes batches |
//! | spooling | [`spooling`] | encodes closed batches, appends them to the spool, keeps the accounting of the run |
//! | scheduling | [`schedule`] | judges slots by the plans in force, and counts what became of each ([`presence`], [`coverage`]) |
//! | runner | [`runner`] | begins what somebody asked for, where [`leases`] and the declared limits of [`profilers`] allow it |
//! | plans | [`plans`] | follows the plans on the bus, and keeps them for the next start |
//! | requests | [`requests`] | proves what is asked for on the bus, has the runner run it, and reports what becomes of it |
//! | publishing | [`publish`] | sends what the spool holds; frees it on the broker's acknowledgement |
//! | binaries | [`binaries`] | puts each newly seen binary into the symbol store, within limits |
//! | tables | [`tables`] | makes the unwind tables of what is sampled, each once, in worker processes; [`unwinding`] puts them into the kernel |
//!
//! Invariants:
//!
//! * Sampling waits for nobody: neither for the disk, the network nor for names. What has no room is dropped and counted.
//! * A frame belongs to the image that was sampled: (pid, start time, exec count), as the kernel said with the sample; the
//!   mappings of an image are those that the side-band had reported by the time of the sample.
//! * What leaves the host is (build id, ELF virtual address): nothing later depends on the process or its files.
//! * Every sample has a fate: spooled, or dropped for a counted reason; [`status`] and the events of the run say so.
//! * Files, names and environments of profiled processes are hostile: bounded when read, never trusted when parsed.

pub mod audit;
pub mod batch;
pub mod binaries;
pub mod budget;
pub mod capacity;
pub mod config;
pub mod coverage;
pub mod elf;
pub mod envelope;
pub mod error;
pub mod explain;
pub mod files;
pub mod halt;
pub mod held;
pub mod holders;
pub mod images;
pub mod jvm;
pub mod kernel;
pub mod leases;
pub mod mappings;
pub mod mechanism;
pub mod normalize;
pub mod patience;
pub mod plans;
pub mod presence;
pub mod procfs;
pub mod profilers;
pub mod publish;
pub mod requests;
pub mod run;
pub mod runner;
pub mod sampling;
pub mod schedule;
pub mod service;
pub mod spooling;
pub mod stacks;
pub mod status;
pub mod tables;
pub mod telemetry;
pub mod unwinding;
pub mod vocabulary;

mod agent;

pub use agent::{run, run_with};
pub use config::{AgentConfig, Settings};
pub use error::AgentError;
