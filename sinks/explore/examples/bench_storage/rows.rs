//! The synthetic fleet as bodies of RowBinary inserts.

use crate::synthetic::{self, Frame, Run, Stack};

/// Appends `text` with its length before it.
fn text(out: &mut Vec<u8>, text: &str) {
    length(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn length(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn uuid(out: &mut Vec<u8>, (high, low): (u64, u64)) {
    out.extend_from_slice(&high.to_le_bytes());
    out.extend_from_slice(&low.to_le_bytes());
}

/// Columns of [`sample_rows`].
pub const SAMPLE_COLUMNS: &str = "service, profiler, time, stack, fleet_weight, run_weight, host, pid, tid, thread, \
     executable, container, cpu, cause, run, epoch, sequence, part, context";

const THREADS: [&str; 6] = ["main", "worker", "grpc-server", "io-poll", "gc", "flusher"];

/// Appends the samples of `run`; `stacks` are those of its service.
pub fn sample_rows(out: &mut Vec<u8>, run: &Run, stacks: &[Stack]) {
    let service = format!("service{}", run.service);
    let host = host_name(run.host);
    let executable = format!("/usr/lib/acme/service{}", run.service);
    let container = format!("{:012x}", synthetic::mix(run.host) >> 16);
    for sample in &run.samples {
        text(out, &service);
        text(out, "cpu");
        out.extend_from_slice(&sample.time_us.to_le_bytes());
        out.extend_from_slice(&stacks[sample.rank].low.to_le_bytes());
        out.extend_from_slice(&run.fleet_weight.to_le_bytes());
        out.extend_from_slice(&run.run_weight.to_le_bytes());
        text(out, &host);
        out.extend_from_slice(&run.pid.to_le_bytes());
        out.extend_from_slice(&(run.pid + sample.thread as u32).to_le_bytes());
        text(out, THREADS[sample.thread as usize % THREADS.len()]);
        text(out, &executable);
        text(out, &container);
        out.extend_from_slice(&sample.cpu.to_le_bytes());
        out.push(1);
        uuid(out, run.id);
        uuid(out, run.epoch);
        out.extend_from_slice(&run.sequence.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
    }
}

/// Returns the name of host number `host`.
pub fn host_name(host: u64) -> String {
    format!("host-{host:04}.rack{}.example", host % 37)
}

/// Columns of [`stack_rows`].
pub const STACK_COLUMNS: &str = "stack, stack_high, frames, end, day";

/// Appends the rows of `stacks`; `day` counts from 1970.
pub fn stack_rows(out: &mut Vec<u8>, stacks: &[Stack], day: u16) {
    for stack in stacks {
        out.extend_from_slice(&stack.low.to_le_bytes());
        out.extend_from_slice(&stack.high.to_le_bytes());
        length(out, stack.frames.len());
        for frame in &stack.frames {
            out.extend_from_slice(&frame.key().to_le_bytes());
        }
        out.push(1);
        out.extend_from_slice(&day.to_le_bytes());
    }
}

/// Columns of [`frame_row`].
pub const FRAME_COLUMNS: &str =
    "frame, generation, functions, files, lines, module, build_id, kind, address, reason, day";

/// Appends the row of `frame`.
pub fn frame_row(out: &mut Vec<u8>, frame: Frame, day: u16) {
    out.extend_from_slice(&frame.key().to_le_bytes());
    out.extend_from_slice(&1u64.to_le_bytes());
    for list in [frame.name(), frame.file()] {
        length(out, 1);
        text(out, &list);
    }
    length(out, 1);
    out.extend_from_slice(&frame.line().to_le_bytes());
    let module = frame.module();
    text(out, &module);
    text(
        out,
        &format!(
            "{:016x}",
            module
                .bytes()
                .fold(0, |hash, byte| synthetic::mix(hash ^ u64::from(byte)))
        ),
    );
    // Kind: a GNU build id.
    out.push(1);
    out.extend_from_slice(&frame.address().to_le_bytes());
    text(out, "");
    out.extend_from_slice(&day.to_le_bytes());
}
