//! Samples read from the ring and held until the side-band has caught up with their time.

use strobe_bpf::{RawSample, StackEnd};

/// Room kept between two readings: what two busy CPUs bring in 200 ms at 4,999 Hz.
const SAMPLES_KEPT: usize = 2_048;
const ADDRESSES_KEPT: usize = 64 << 10;

/// One sample; its addresses lie in [`HeldSamples`].
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// See [`RawSample::stack_hash`].
    pub stack_hash: u64,
    /// Start of the process, nanoseconds since boot.
    pub start_ns: u64,
    /// Control group's inode.
    pub cgroup_id: u64,
    /// The CPU's count of busy ticks, this one included.
    pub cpu_sequence: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Execs so far.
    pub exec: u32,
    /// Epoch in which the frames were sent.
    pub epoch: u32,
    /// What it stands for, before any correction.
    pub value: u64,
    /// CPU.
    pub cpu: u16,
    /// How the kernel's side ended.
    pub kernel_end: StackEnd,
    /// How the user's side ended.
    pub user_end: StackEnd,
    /// Whether the addresses came with an earlier sample.
    pub frames_omitted: bool,
    /// Whether the image had no unwind tables yet.
    pub without_tables: bool,
    /// The thread's name, padded with zeros.
    pub comm: [u8; 16],
    kernel: (u32, u32),
    user_until: u32,
}

impl Held {
    /// Returns a sample without addresses.
    #[cfg(test)]
    pub(crate) fn for_tests(pid: u32, start_ns: u64, exec: u32) -> Self {
        Self {
            time_ns: 0,
            stack_hash: 0,
            start_ns,
            cgroup_id: 1,
            cpu_sequence: 0,
            pid,
            tid: pid,
            exec,
            epoch: 0,
            value: 1,
            cpu: 0,
            kernel_end: StackEnd::NotTaken,
            user_end: StackEnd::Root,
            frames_omitted: false,
            without_tables: false,
            comm: *b"test\0\0\0\0\0\0\0\0\0\0\0\0",
            kernel: (0, 0),
            user_until: 0,
        }
    }

    /// Returns the thread's name.
    pub fn name(&self) -> &[u8] {
        let end = self.comm.iter().position(|&byte| byte == 0);
        &self.comm[..end.unwrap_or(self.comm.len())]
    }
}

/// The held samples, in the order of their time after [`HeldSamples::sort`].
#[derive(Debug, Default)]
pub struct HeldSamples {
    samples: Vec<Held>,
    addresses: Vec<u64>,
    left: Vec<u64>,
}

impl HeldSamples {
    /// Takes a sample out of the ring.
    pub fn push(&mut self, sample: &RawSample<'_>) {
        let from = self.addresses.len() as u32;
        self.addresses.extend(sample.kernel_frames());
        let kernel = (from, self.addresses.len() as u32);
        self.addresses.extend(sample.user_frames());
        let mut comm = [0; 16];
        let name = sample.comm();
        comm[..name.len()].copy_from_slice(name);
        self.samples.push(Held {
            time_ns: sample.time_ns,
            stack_hash: sample.stack_hash,
            start_ns: sample.start_time_ns,
            cgroup_id: sample.cgroup_id,
            cpu_sequence: sample.cpu_sequence,
            pid: sample.tgid,
            tid: sample.tid,
            exec: sample.exec_id,
            epoch: sample.epoch,
            value: sample.value,
            cpu: sample.cpu,
            kernel_end: sample.kernel_end,
            user_end: sample.user_end,
            frames_omitted: sample.frames_omitted(),
            without_tables: sample.without_tables(),
            comm,
            kernel,
            user_until: self.addresses.len() as u32,
        });
    }

    /// Puts them in the order of their time; those of one CPU stay in theirs.
    pub fn sort(&mut self) {
        self.samples.sort_by_key(|sample| sample.time_ns);
    }

    /// Returns the sample at a position.
    pub fn get(&self, at: usize) -> Option<&Held> {
        self.samples.get(at)
    }

    /// Returns the kernel's and the user's addresses of a sample, innermost first.
    pub fn addresses(&self, held: &Held) -> (&[u64], &[u64]) {
        let (from, until) = held.kernel;
        let kernel = &self.addresses[from as usize..until as usize];
        (kernel, &self.addresses[until as usize..held.user_until as usize])
    }

    /// Drops the first `settled` samples. What stays is young: a handful.
    pub fn settle(&mut self, settled: usize) {
        self.left.clear();
        self.samples.drain(..settled);
        for held in &mut self.samples {
            let (from, until) = held.kernel;
            let moved = self.left.len() as u32;
            self.left
                .extend_from_slice(&self.addresses[from as usize..held.user_until as usize]);
            held.kernel = (moved, moved + (until - from));
            held.user_until = self.left.len() as u32;
        }
        std::mem::swap(&mut self.addresses, &mut self.left);
        self.left.clear();
        // After a burst the usual room is enough.
        self.samples.shrink_to(SAMPLES_KEPT);
        self.addresses.shrink_to(ADDRESSES_KEPT);
        self.left.shrink_to(ADDRESSES_KEPT);
    }
}
