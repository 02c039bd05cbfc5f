//! Samples read from the ring and held until the side-band has caught up with their time.

use strobe_bpf::{RawSample, StackEnd};

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
    /// CPU.
    pub cpu: u16,
    /// How the kernel's side ended.
    pub kernel_end: StackEnd,
    /// How the user's side ended.
    pub user_end: StackEnd,
    /// Whether the addresses came with an earlier sample.
    pub frames_omitted: bool,
    /// The thread's name, padded with zeros.
    pub comm: [u8; 16],
    kernel: (u32, u32),
    user_until: u32,
}

/// The held samples, in the order of their time after [`HeldSamples::sort`].
#[derive(Debug, Default)]
pub struct HeldSamples {
    samples: Vec<Held>,
    addresses: Vec<u64>,
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
            cpu: sample.cpu,
            kernel_end: sample.kernel_end,
            user_end: sample.user_end,
            frames_omitted: sample.frames_omitted(),
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

    /// Drops the first `settled` samples.
    pub fn settle(&mut self, settled: usize) {
        let mut left = Self::default();
        for held in &self.samples[settled..] {
            let (kernel, user) = self.addresses(held);
            let from = left.addresses.len() as u32;
            left.addresses.extend_from_slice(kernel);
            let until = left.addresses.len() as u32;
            left.addresses.extend_from_slice(user);
            let user_until = left.addresses.len() as u32;
            left.samples.push(Held {
                kernel: (from, until),
                user_until,
                ..*held
            });
        }
        self.samples.clear();
        self.addresses.clear();
        self.samples.append(&mut left.samples);
        self.addresses.append(&mut left.addresses);
    }
}
