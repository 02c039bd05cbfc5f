//! The wire's records as `serde` structs for `apache-avro`, the reference: field by field what the schemas say.

#![allow(dead_code, reason = "each program that includes this file uses a part of it")]

use serde::{Deserialize, Serialize};
use strobe_event as event;

/// Returns the signed number with these bits, as a `long` carries it.
fn longs(column: &[u64]) -> Vec<i64> {
    column.iter().map(|&value| value as i64).collect()
}

/// Returns the numbers as `int`s, which tests keep below 2³¹.
fn ints(column: &[u32]) -> Vec<i32> {
    column.iter().map(|&value| value as i32).collect()
}

fn codes(column: &[u8]) -> Vec<i32> {
    column.iter().map(|&code| i32::from(code)).collect()
}

/// `RunHead` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    #[serde(with = "apache_avro::serde::fixed")]
    id: [u8; 16],
    host: String,
    profiler: String,
    cause: i32,
    started_us: i64,
    planned_us: i64,
    slot_us: i64,
    run_probability: f64,
    kernel_probability: f64,
    period: i64,
}

impl From<&event::RunHead> for RunHead {
    fn from(from: &event::RunHead) -> Self {
        Self {
            id: from.id.0,
            host: from.host.clone(),
            profiler: from.profiler.clone(),
            cause: i32::from(from.cause),
            started_us: from.started_us as i64,
            planned_us: from.planned_us as i64,
            slot_us: from.slot_us as i64,
            run_probability: from.run_probability,
            kernel_probability: from.kernel_probability,
            period: from.period as i64,
        }
    }
}

/// `DropCount` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DropCount {
    reason: i32,
    samples: i64,
}

impl From<&event::DropCount> for DropCount {
    fn from(from: &event::DropCount) -> Self {
        Self {
            reason: i32::from(from.reason),
            samples: from.samples as i64,
        }
    }
}

/// `RunEvent` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    run: RunHead,
    state: i32,
    time_us: i64,
    detail: String,
    taken: i64,
    spooled: i64,
    idle: i64,
    batches: i64,
    drops: Vec<DropCount>,
    done_us: i64,
}

impl From<&event::RunEvent> for RunEvent {
    fn from(from: &event::RunEvent) -> Self {
        Self {
            run: (&from.run).into(),
            state: i32::from(from.state),
            time_us: from.time_us as i64,
            detail: from.detail.clone(),
            taken: from.taken as i64,
            spooled: from.spooled as i64,
            idle: from.idle as i64,
            batches: from.batches as i64,
            drops: from.drops.iter().map(Into::into).collect(),
            done_us: from.done_us as i64,
        }
    }
}

/// `CpuCounts` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuCounts {
    cpu: i32,
    taken: i64,
    kept: i64,
    idle: i64,
    enabled_ns: i64,
    running_ns: i64,
}

impl From<&event::CpuCounts> for CpuCounts {
    fn from(from: &event::CpuCounts) -> Self {
        Self {
            cpu: from.cpu as i32,
            taken: from.taken as i64,
            kept: from.kept as i64,
            idle: from.idle as i64,
            enabled_ns: from.enabled_ns as i64,
            running_ns: from.running_ns as i64,
        }
    }
}

/// `Binary` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Binary {
    kind: i32,
    #[serde(with = "apache_avro::serde::bytes")]
    id: Vec<u8>,
    path: i32,
}

impl From<&event::Binary> for Binary {
    fn from(from: &event::Binary) -> Self {
        Self {
            kind: from.kind as i32,
            id: from.id.as_bytes().to_vec(),
            path: from.path as i32,
        }
    }
}

/// `Frames` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Frames {
    binary: Vec<i32>,
    address: Vec<i64>,
    name: Vec<i32>,
    reason: Vec<i32>,
}

impl From<&event::Frames> for Frames {
    fn from(from: &event::Frames) -> Self {
        Self {
            binary: ints(&from.binary),
            address: longs(&from.address),
            name: ints(&from.name),
            reason: codes(&from.reason),
        }
    }
}

/// `Stacks` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Stacks {
    shared: Vec<i32>,
    added: Vec<i32>,
    frames: Vec<i32>,
    end: Vec<i32>,
}

impl From<&event::Stacks> for Stacks {
    fn from(from: &event::Stacks) -> Self {
        Self {
            shared: ints(&from.shared),
            added: ints(&from.added),
            frames: ints(&from.frames),
            end: codes(&from.end),
        }
    }
}

/// `Process` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pid: i32,
    start_ns: i64,
    exec: i32,
    service: i32,
    executable: i32,
    container: i32,
    cgroup: i32,
}

impl From<&event::Process> for Process {
    fn from(from: &event::Process) -> Self {
        Self {
            pid: from.pid as i32,
            start_ns: from.start_ns as i64,
            exec: from.exec as i32,
            service: from.service as i32,
            executable: from.executable as i32,
            container: from.container as i32,
            cgroup: from.cgroup as i32,
        }
    }
}

/// `Threads` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    process: Vec<i32>,
    tid: Vec<i32>,
    name: Vec<i32>,
}

impl From<&event::Threads> for Threads {
    fn from(from: &event::Threads) -> Self {
        Self {
            process: ints(&from.process),
            tid: ints(&from.tid),
            name: ints(&from.name),
        }
    }
}

/// `Samples` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    time_delta_us: Vec<i64>,
    stack: Vec<i32>,
    thread: Vec<i32>,
    cpu: Vec<i32>,
    value: Vec<i64>,
}

impl From<&event::Samples> for Samples {
    fn from(from: &event::Samples) -> Self {
        Self {
            time_delta_us: longs(&from.time_delta_us),
            stack: ints(&from.stack),
            thread: ints(&from.thread),
            cpu: ints(&from.cpu),
            value: longs(&from.value),
        }
    }
}

/// `RawBatch` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct RawBatch {
    run: RunHead,
    index: i32,
    start_us: i64,
    end_us: i64,
    cpus: Vec<CpuCounts>,
    drops: Vec<DropCount>,
    strings: Vec<String>,
    binaries: Vec<Binary>,
    frames: Frames,
    stacks: Stacks,
    processes: Vec<Process>,
    threads: Threads,
    samples: Samples,
}

impl From<&event::RawBatch> for RawBatch {
    fn from(from: &event::RawBatch) -> Self {
        Self {
            run: (&from.run).into(),
            index: from.index as i32,
            start_us: from.start_us as i64,
            end_us: from.end_us as i64,
            cpus: from.cpus.iter().map(Into::into).collect(),
            drops: from.drops.iter().map(Into::into).collect(),
            strings: from.strings.clone(),
            binaries: from.binaries.iter().map(Into::into).collect(),
            frames: (&from.frames).into(),
            stacks: (&from.stacks).into(),
            processes: from.processes.iter().map(Into::into).collect(),
            threads: (&from.threads).into(),
            samples: (&from.samples).into(),
        }
    }
}

/// `Locations` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Locations {
    count: Vec<i32>,
    reason: Vec<i32>,
    function: Vec<i32>,
    file: Vec<i32>,
    line: Vec<i32>,
    text: Vec<String>,
}

impl From<&event::Locations> for Locations {
    fn from(from: &event::Locations) -> Self {
        Self {
            count: ints(&from.count),
            reason: codes(&from.reason),
            function: ints(&from.function),
            file: ints(&from.file),
            line: ints(&from.line),
            text: from.text.clone(),
        }
    }
}

/// `Context` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Context {
    names: Vec<i32>,
    values: Vec<i32>,
}

/// `FrameTag` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameTag {
    frame: i32,
    inline: i32,
    tag: i32,
}

/// `Mark` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    frame: i32,
    inline: i32,
    kind: i32,
    text: i32,
}

/// `StackOutcome` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct StackOutcome {
    tags: Vec<i32>,
    frame_tags: Vec<FrameTag>,
    marks: Vec<Mark>,
}

impl From<&event::StackOutcome> for StackOutcome {
    fn from(from: &event::StackOutcome) -> Self {
        let frame_tag = |tag: &event::FrameTag| FrameTag {
            frame: tag.place.frame.into(),
            inline: tag.place.inline.into(),
            tag: tag.tag as i32,
        };
        let mark = |mark: &event::Mark| Mark {
            frame: mark.place.frame.into(),
            inline: mark.place.inline.into(),
            kind: mark.kind.into(),
            text: mark.text as i32,
        };
        Self {
            tags: ints(&from.tags),
            frame_tags: from.frame_tags.iter().map(frame_tag).collect(),
            marks: from.marks.iter().map(mark).collect(),
        }
    }
}

/// `Tags` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Tags {
    schemas: Vec<i32>,
    contexts: Vec<Context>,
    stack: Vec<i32>,
    context: Vec<i32>,
    outcome: Vec<i32>,
    outcomes: Vec<StackOutcome>,
    text: Vec<String>,
}

impl From<&event::Tags> for Tags {
    fn from(from: &event::Tags) -> Self {
        let context = |context: &event::Context| Context {
            names: ints(&context.names),
            values: ints(&context.values),
        };
        Self {
            schemas: ints(&from.schemas),
            contexts: from.contexts.iter().map(context).collect(),
            stack: ints(&from.stack),
            context: ints(&from.context),
            outcome: ints(&from.outcome),
            outcomes: from.outcomes.iter().map(Into::into).collect(),
            text: from.text.clone(),
        }
    }
}

/// `StackSchemaFile` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct StackSchemaFile {
    name: String,
    version: i32,
    enabled: bool,
    applied_us: i64,
    applied_by: String,
    text: Vec<String>,
}

impl From<&event::StackSchemaFile> for StackSchemaFile {
    fn from(from: &event::StackSchemaFile) -> Self {
        Self {
            name: from.name.clone(),
            version: from.version as i32,
            enabled: from.enabled,
            applied_us: from.applied_us as i64,
            applied_by: from.applied_by.clone(),
            text: from.text.clone(),
        }
    }
}

/// `Weight` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    run: f64,
    fleet: f64,
}

impl From<&event::Weight> for Weight {
    fn from(from: &event::Weight) -> Self {
        Self {
            run: from.run,
            fleet: from.fleet,
        }
    }
}

/// `SamplesBatch` of the schemas.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplesBatch {
    raw: RawBatch,
    generation: i64,
    locations: Locations,
    tags: Tags,
    weights: Vec<Weight>,
    sample_weight: Vec<i32>,
    sample_context: Vec<i32>,
}

impl From<&event::SamplesBatch> for SamplesBatch {
    fn from(from: &event::SamplesBatch) -> Self {
        Self {
            raw: (&from.raw).into(),
            generation: from.generation as i64,
            locations: (&from.locations).into(),
            tags: (&from.tags).into(),
            weights: from.weights.iter().map(Into::into).collect(),
            sample_weight: ints(&from.sample_weight),
            sample_context: ints(&from.sample_context),
        }
    }
}

/// Makes the mirror of a record whose fields go over one by one; it is called as the schema calls it, which their reader wants.
macro_rules! mirror {
    ($name:ident of $record:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty = $from:expr),* $(,)? }) => {
        /// The record of the schemas.
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$attribute])* $field: $kind,)*
        }

        impl From<&event::$record> for $name {
            fn from(from: &event::$record) -> Self {
                $(let $field: $kind = $from(&from.$field);)*
                Self { $($field,)* }
            }
        }
    };
}

fn same<T: Clone>(value: &T) -> T {
    value.clone()
}

fn long(value: &u64) -> i64 {
    *value as i64
}

mirror!(Coverage of CoverageRecord {
    service: String = same,
    profiler: String = same,
    host: String = same,
    slot_us: i64 = long,
    hour: i64 = long,
    until_us: i64 = long,
    revision: i64 = long,
    planned: i64 = long,
    refused: i64 = long,
    complete: i64 = long,
    cut_short: i64 = long,
    drawn_inverse: f64 = same,
    done_us: i64 = long,
    taken: i64 = long,
    cpu_us: i64 = long,
    cpu_source: i32 = |code: &u8| i32::from(*code),
    runs: i64 = long,
    u: f64 = same,
    uu: f64 = same,
    t: f64 = same,
    tt: f64 = same,
    tu: f64 = same,
});

mirror!(Plan of PlanRecord {
    service: String = same,
    profiler: String = same,
    selector: String = same,
    run_probability: f64 = same,
    planned_us: i64 = long,
    frequency_hz: f64 = same,
    since_us: i64 = long,
    keep: f64 = same,
    keep_since_us: i64 = long,
    keep_before: f64 = same,
    why: String = same,
});

mirror!(Tuner of TunerRecord {
    plan: Plan = Plan::from,
    window_us: i64 = long,
    desired_per_hour: f64 = same,
    observed_per_hour: f64 = same,
    expected_per_hour: f64 = same,
    reachable_per_hour: f64 = same,
    live_hosts: i64 = long,
    doubted: Vec<String> = same,
    same_name: Vec<String> = same,
    state: String = same,
});

mirror!(Host of HostRecord {
    host: String = same,
    time_us: i64 = long,
    agent: String = same,
    kernel: String = same,
    cpus: i32 = |value: &u32| *value as i32,
    labels: Vec<String> = same,
    services: Vec<String> = same,
});

fn code(value: &u8) -> i32 {
    i32::from(*value)
}

fn int(value: &u32) -> i32 {
    *value as i32
}

mod requests;
#[allow(
    unused_imports,
    reason = "each program that includes this file uses a part of it"
)]
pub use requests::{
    Alert, AlertAnswer, AuditRecord, ConfigSet, HostReport, Request, RequestState, SignedConfig,
    SignedRequest,
};
