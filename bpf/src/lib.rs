//! From an event to a raw sample: the first four stages of a sample's path.
//!
//! | stage | file | what goes in → out | it may be lost here as |
//! |--|--|--|--|
//! | 1 | `perf_event.rs` | what is to be sampled → one perf event per CPU | |
//! | 2 | `progs/on_cpu.bpf.c` | interrupt or tracepoint → `struct sample_record` | `RingFull`, counted in the kernel |
//! | 3 | `ring.rs` | ring buffer → `&[u8]` | |
//! | 4 | `record.rs` | `&[u8]` → [`RawSample`] | `Undecodable` |
//!
//! [`Sampler`] is these four put together. Beside them stands [`SideBand`], the kernel's own account of forks, execs,
//! mappings and exits, which the next stage needs to say what an address meant at the time of a sample.
//!
//! Invariants:
//! - Per CPU, busy ticks = `taken` = `full` + `omitted` + every `dropped`; and `cpu_sequence` of a record is `taken` at
//!   that moment, so a reader that sums the gaps finds exactly the drops.
//! - A tick that hits another BPF program is skipped by the kernel, without a trace in those counts. Where a CPU is busy
//!   throughout, it shows as `taken` short of enabled time × frequency; missing idle ticks hide it elsewhere.
//! - A record without frames is always preceded in the ring by one with them, with the same hash and epoch.
//! - A user stack in a record belongs to the image that the record names: (tgid, start time, exec count).
//! - Records are read where the kernel wrote them; nothing is copied until somebody keeps it.
//!
//! User stacks are walked by unwind tables where [`TableMemory`] has been given some, and by frame pointers elsewhere. Which table is
//! found by a list of mappings, where the image was given one, and else by [`FilePlaces`] and the kernel's own tree of mappings.
//!
//! The only crate with `unsafe`, C and libbpf.
#![allow(
    unsafe_code,
    reason = "memory shared with the kernel, and its calls; each use argues why it holds"
)]

mod attr;
pub mod bench_support;
pub mod cgroup;
mod counters;
mod cpus;
mod error;
pub mod event;
mod libbpf_log;
mod load;
mod mapping;
mod perf_event;
mod perf_ring;
mod places;
pub mod probe;
mod record;
mod ring;
mod run_stats;
mod sampler;
mod side_band;
mod side_band_record;
mod tables;
mod time_merge;

pub use attr::monotonic_ns;
pub use counters::CpuCounters;
pub use error::Error;
pub use event::Event;
pub use load::SharedTables;
pub use perf_event::EventTimes;
pub use places::{FilePlace, FilePlaces, KNOWN_FILES_MAX, Met};
pub use record::{
    Frames, HEADER_BYTES, RECORD_BYTES_MAX, RawSample, STACK_FRAMES_MAX, StackEnd, Undecodable,
};
pub use sampler::{Consumed, Sampler, SamplerSettings, WATCHED_MAX, Wake};
pub use side_band::{SideBand, SideBandCounters, SideBandSettings};
pub use side_band_record::{FileIdentity, Mmap, ProcessEvent, ProcessEventKind};
pub use tables::{
    Block, ImageIdentity, JvmBlock, MAPPINGS_MAX, MappingEntry, PAGES_NOT_YET, PROCESSES_MAX, TableMemory,
};
