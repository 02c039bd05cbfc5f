//! The synthetic fleet: 10 million samples of 100,000 stacks (38 frames on average) out of 20,000 functions, on 1,000
//! hosts of 50 services, in runs of 500 samples over a day. The same at every go.
//!
//! Stacks are walks down a call graph, so that neighbours share prefixes as in a real program: most functions have one
//! call site, some have up to twelve, and the first is the hottest. A frame is a call site (a return address), the leaf an
//! instruction of its function. Half of the functions belong to one service each, half to libraries that all share.
//! Keys are hashes: nothing of the structure shows in their bits. Which stack, thread and CPU a sample has is drawn
//! independently, which is harder to compress than real programs, where they go together.

/// Samples of the set.
pub const SAMPLES: u64 = 10_000_000;
/// Samples of one run.
pub const RUN_SAMPLES: u64 = 500;
/// Runs of the set.
pub const RUNS: u64 = SAMPLES / RUN_SAMPLES;
/// Hosts.
pub const HOSTS: u64 = 1_000;
/// Services; each has the hosts whose number is its own modulo this.
pub const SERVICES: u64 = 50;
/// Distinct stacks of each service: 100,000 in all.
pub const SERVICE_STACKS: usize = 2_000;
/// Start of the day that the set covers: 2026-11-01 00:00 UTC, microseconds since 1970.
pub const START_US: i64 = 1_793_491_200_000_000;
/// Length of the day in microseconds.
pub const DAY_US: i64 = 86_400_000_000;

const OWN_FUNCTIONS: u64 = 350;
const LIBRARY_FUNCTIONS: u64 = 20_000;
const LIBRARIES: u64 = 40;
const PERIOD_NS: f64 = 9_900_990.0;
const CPUS: u64 = 8;
const DEPTH_MIN: u64 = 14;
const DEPTH_MAX: u64 = 62;

/// SplitMix64: a well-mixed 64-bit value for each input.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers, the same for the same seed.
pub struct Dice(u64);

impl Dice {
    /// Returns the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A function of the call graph: those of service `s` are `s * OWN_FUNCTIONS ..`, libraries' follow.
fn is_library(function: u64) -> bool {
    function >= SERVICES * OWN_FUNCTIONS
}

/// Returns how many call sites `function` has: 60 % one, 25 % two, 10 % three to six, the rest, and where a service
/// starts, twelve: dispatchers.
fn call_sites(function: u64) -> u64 {
    let draw = mix(function ^ 0xca11) % 100;
    match draw {
        _ if !is_library(function) && function.is_multiple_of(OWN_FUNCTIONS) => 12,
        0..60 => 1,
        60..85 => 2,
        85..95 => 3 + draw % 4,
        _ => 12,
    }
}

/// Returns the function called at call site `site` of `function`, seen from `service`.
fn callee(service: u64, function: u64, site: u64) -> u64 {
    let hash = mix(function.wrapping_mul(0x1_0001).wrapping_add(site) ^ 0x0ca1_1ee0);
    let stays = !is_library(function) && hash % 10 < 8;
    match stays {
        true => service * OWN_FUNCTIONS + (hash >> 8) % OWN_FUNCTIONS,
        false => SERVICES * OWN_FUNCTIONS + (hash >> 8) % LIBRARY_FUNCTIONS,
    }
}

/// One frame of the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    function: u64,
    /// Which call site, or instruction of a leaf (from 16 on).
    place: u64,
}

impl Frame {
    /// Returns the frame's key: a hash.
    pub fn key(self) -> u64 {
        mix(self.function << 8 | self.place)
    }

    /// Returns the address within its binary.
    pub fn address(self) -> u64 {
        0x1000 + self.function * 512 + self.place * 23
    }

    /// Returns the name of the function: about as long as a C++ name.
    pub fn name(self) -> String {
        let hash = mix(self.function ^ 0x0a3e);
        let class = [
            "Session", "Request", "Ledger", "Codec", "Planner", "Index", "Shard", "Buffer",
        ][hash as usize % 8];
        format!(
            "acme::{}::{class}{}::handle_{:x}(std::string const&, int)",
            self.module_name(),
            hash % 97,
            self.function
        )
    }

    /// Returns the source file.
    pub fn file(self) -> String {
        format!("/src/{}/unit_{}.cc", self.module_name(), self.function / 8)
    }

    /// Returns the line.
    pub fn line(self) -> u32 {
        (20 + self.function % 8 * 100 + self.place * 3) as u32
    }

    fn module_name(self) -> String {
        match is_library(self.function) {
            true => format!("lib{}", self.function % LIBRARIES),
            false => format!("service{}", self.function / OWN_FUNCTIONS),
        }
    }

    /// Returns the path of the binary.
    pub fn module(self) -> String {
        format!("/usr/lib/acme/{}.so", self.module_name())
    }
}

/// One distinct stack, root first.
pub struct Stack {
    /// High 64 bits of its key.
    pub high: u64,
    /// Low 64 bits of its key: what samples hold.
    pub low: u64,
    /// Its frames, root first.
    pub frames: Vec<Frame>,
}

fn walk(service: u64, dice: &mut Dice) -> Vec<Frame> {
    let depth = DEPTH_MIN + dice.below(DEPTH_MAX - DEPTH_MIN + 1);
    let mut function = service * OWN_FUNCTIONS;
    let mut frames = Vec::with_capacity(depth as usize);
    for _ in 1..depth {
        let sites = call_sites(function);
        // The first site takes 60 %, each next one 60 % of the rest.
        let mut site = 0;
        while site + 1 < sites && dice.unit() > 0.6 {
            site += 1;
        }
        frames.push(Frame {
            function,
            place: site,
        });
        function = callee(service, function, site);
    }
    frames.push(Frame {
        function,
        place: 16 + dice.below(8),
    });
    frames
}

/// Returns the distinct stacks of `service`, the most frequent first.
pub fn stacks(service: u64) -> Vec<Stack> {
    let mut dice = Dice::new(0x57ac << 8 | service);
    let mut seen = std::collections::HashSet::new();
    let mut stacks = Vec::with_capacity(SERVICE_STACKS);
    while stacks.len() < SERVICE_STACKS {
        let frames = walk(service, &mut dice);
        let low = frames
            .iter()
            .fold(0xb075 + service, |hash, frame| mix(hash ^ frame.key()));
        if seen.insert(low) {
            stacks.push(Stack {
                high: mix(low ^ 0x4164),
                low,
                frames,
            });
        }
    }
    stacks
}

/// One sample.
pub struct Sample {
    /// Microseconds since 1970.
    pub time_us: i64,
    /// Which stack of the service, by rank.
    pub rank: usize,
    /// Which thread of the process, from 0.
    pub thread: u64,
    /// CPU.
    pub cpu: u16,
}

/// One run: who ran it, and its samples in order of time.
pub struct Run {
    /// Service number.
    pub service: u64,
    /// Host number.
    pub host: u64,
    /// The profiled process.
    pub pid: u32,
    /// Two halves of the run's name.
    pub id: (u64, u64),
    /// Two halves of the epoch of the host's spool.
    pub epoch: (u64, u64),
    /// Position in the spool.
    pub sequence: u64,
    /// What each sample stands for within its run.
    pub run_weight: f64,
    /// What each sample stands for in the fleet.
    pub fleet_weight: f64,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// Cumulative weights of ranks: rank r is drawn with probability proportional to 1 / (r + 1).
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// Returns the distribution over the ranks of one service's stacks.
    pub fn new() -> Self {
        let mut sum = 0.0;
        Self(
            (0..SERVICE_STACKS)
                .map(|rank| {
                    sum += 1.0 / (rank + 1) as f64;
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, dice: &mut Dice) -> usize {
        let at = dice.unit() * self.0[SERVICE_STACKS - 1];
        self.0
            .partition_point(|&up_to| up_to <= at)
            .min(SERVICE_STACKS - 1)
    }
}

/// Returns run `index` of [`RUNS`]. Runs follow one another through the day, as a sink would get them.
pub fn run(index: u64, zipf: &Zipf) -> Run {
    let mut dice = Dice::new(0x2a11 << 32 | index);
    let host = dice.below(HOSTS);
    let slot = DAY_US / RUNS as i64;
    let start = START_US + index as i64 * slot + dice.below(slot as u64) as i64;
    let phase: Vec<i64> = (0..CPUS).map(|_| dice.below(9_901) as i64).collect();
    let mut samples = Vec::with_capacity(RUN_SAMPLES as usize);
    let mut tick = 0;
    while samples.len() < RUN_SAMPLES as usize {
        for cpu in 0..CPUS {
            // Half of the CPUs are busy; a tick comes up to 32 microseconds late.
            if samples.len() < RUN_SAMPLES as usize && dice.below(2) == 0 {
                let late = dice.below(33) as i64;
                let time_us = start + tick * 9_900_990 / 1_000 + phase[cpu as usize] + late;
                let thread = dice.below(16).min(dice.below(16));
                samples.push(Sample {
                    time_us,
                    rank: zipf.draw(&mut dice),
                    thread,
                    cpu: cpu as u16,
                });
            }
        }
        tick += 1;
    }
    samples.sort_by_key(|sample| sample.time_us);
    let run_weight = PERIOD_NS * (1.0 + dice.below(3) as f64 / 500.0);
    Run {
        service: host % SERVICES,
        host,
        pid: 2_000 + (mix(host ^ 0x91d) % 30_000) as u32,
        id: (dice.bits(), dice.bits()),
        epoch: (mix(host ^ 0xe90c), mix(host ^ 0xe90d)),
        sequence: index / HOSTS * 2 + dice.below(2),
        run_weight,
        fleet_weight: run_weight * 3_600.0 / (0.05 * (1.0 + dice.unit() * 0.02)),
        samples,
    }
}
