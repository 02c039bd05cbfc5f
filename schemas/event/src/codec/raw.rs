//! Batches of raw stacks on the wire.

use super::decode::Reader;
use super::encode::Writer;
use super::error::{DecodeError, EncodeError, Fault};
use super::run::DROP_COUNT_BYTES_MIN;
use super::sealed::Fields;
use crate::{
    Binary, BinaryKind, BuildId, CpuCounts, Frames, Process, RawBatch, RunHead, Samples, Stacks, Threads,
};

/// Bytes that a [`CpuCounts`] takes at least: six numbers.
const CPU_COUNTS_BYTES_MIN: usize = 6;

/// Bytes that a [`Binary`] takes at least: kind, length of the id, one byte of it, path.
const BINARY_BYTES_MIN: usize = 4;

/// Bytes that a [`Process`] takes at least: seven numbers.
const PROCESS_BYTES_MIN: usize = 7;

impl Fields for RawBatch {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.run.write(to)?;
        to.int("index", self.index)?;
        to.long(self.start_us);
        to.long(self.end_us);
        to.records(&self.cpus)?;
        to.records(&self.drops)?;
        to.texts("strings", &self.strings)?;
        to.records(&self.binaries)?;
        self.frames.write(to)?;
        self.stacks.write(to)?;
        to.records(&self.processes)?;
        self.threads.write(to)?;
        self.samples.write(to)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            run: RunHead::read(from)?,
            index: from.int("index")?,
            start_us: from.long("start_us")?,
            end_us: from.long("end_us")?,
            cpus: from.records("cpus", CPU_COUNTS_BYTES_MIN)?,
            drops: from.records("drops", DROP_COUNT_BYTES_MIN)?,
            strings: from.texts("strings")?,
            binaries: from.records("binaries", BINARY_BYTES_MIN)?,
            frames: Frames::read(from)?,
            stacks: Stacks::read(from)?,
            processes: from.records("processes", PROCESS_BYTES_MIN)?,
            threads: Threads::read(from)?,
            samples: Samples::read(from)?,
        })
    }
}

impl Fields for CpuCounts {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.int("cpus.cpu", self.cpu)?;
        to.long(self.taken);
        to.long(self.kept);
        to.long(self.idle);
        to.long(self.enabled_ns);
        to.long(self.running_ns);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            cpu: from.int("cpus.cpu")?,
            taken: from.long("cpus.taken")?,
            kept: from.long("cpus.kept")?,
            idle: from.long("cpus.idle")?,
            enabled_ns: from.long("cpus.enabled_ns")?,
            running_ns: from.long("cpus.running_ns")?,
        })
    }
}

impl Fields for Binary {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.code(self.kind as u8);
        to.bytes(self.id.as_bytes());
        to.int("binaries.path", self.path)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let start = from.position();
        let code = from.code("binaries.kind")?;
        let unknown = || from.fault("binaries.kind", start, Fault::UnknownBinaryKind { code });
        let kind = BinaryKind::from_code(code).ok_or_else(unknown)?;
        let start = from.position();
        let id = from.bytes("binaries.id", BuildId::BYTES_MAX)?;
        let id = BuildId::new(id).ok_or_else(|| from.fault("binaries.id", start, Fault::EmptyBuildId))?;
        Ok(Self {
            kind,
            id,
            path: from.int("binaries.path")?,
        })
    }
}

impl Fields for Frames {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("frames.binary", &self.binary)?;
        to.longs(&self.address);
        to.ints("frames.name", &self.name)?;
        to.codes(&self.reason);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            binary: from.ints("frames.binary")?,
            address: from.longs("frames.address")?,
            name: from.ints("frames.name")?,
            reason: from.codes("frames.reason")?,
        })
    }
}

impl Fields for Stacks {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("stacks.shared", &self.shared)?;
        to.ints("stacks.added", &self.added)?;
        to.ints("stacks.frames", &self.frames)?;
        to.codes(&self.end);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            shared: from.ints("stacks.shared")?,
            added: from.ints("stacks.added")?,
            frames: from.ints("stacks.frames")?,
            end: from.codes("stacks.end")?,
        })
    }
}

impl Fields for Process {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.int("processes.pid", self.pid)?;
        to.long(self.start_ns);
        to.int("processes.exec", self.exec)?;
        to.int("processes.service", self.service)?;
        to.int("processes.executable", self.executable)?;
        to.int("processes.container", self.container)?;
        to.int("processes.cgroup", self.cgroup)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            pid: from.int("processes.pid")?,
            start_ns: from.long("processes.start_ns")?,
            exec: from.int("processes.exec")?,
            service: from.int("processes.service")?,
            executable: from.int("processes.executable")?,
            container: from.int("processes.container")?,
            cgroup: from.int("processes.cgroup")?,
        })
    }
}

impl Fields for Threads {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.ints("threads.process", &self.process)?;
        to.ints("threads.tid", &self.tid)?;
        to.ints("threads.name", &self.name)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            process: from.ints("threads.process")?,
            tid: from.ints("threads.tid")?,
            name: from.ints("threads.name")?,
        })
    }
}

impl Fields for Samples {
    fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError> {
        to.longs(&self.time_delta_us);
        to.ints("samples.stack", &self.stack)?;
        to.ints("samples.thread", &self.thread)?;
        to.ints("samples.cpu", &self.cpu)?;
        to.longs(&self.value);
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            time_delta_us: from.longs("samples.time_delta_us")?,
            stack: from.ints("samples.stack")?,
            thread: from.ints("samples.thread")?,
            cpu: from.ints("samples.cpu")?,
            value: from.longs("samples.value")?,
        })
    }
}
