//! Rows of `samples`, and their sums per hour.
//!
//! What is the same in a whole batch, or is said of a thread or a weight, is kept once, and a row only points to it: the
//! columns are unfolded when the block is made, and most of them are sent as LowCardinality.

use rustc_hash::FxHashMap;
use strobe_event::{ContextKey, Identity, SamplesBatch, StackKey};

use super::columns::Columns;
use crate::native::{Texts, put, uuid};
use crate::tables::Table;

const HOUR_US: u64 = 3_600_000_000;

/// The distinct stacks of a range, numbered from 1 in the order in which they come.
pub(super) struct StackNumbers {
    numbers: FxHashMap<u64, u32>,
    /// The low halves of their keys; the first entry is the type's default, as dictionaries have it.
    keys: Vec<u8>,
}

impl Default for StackNumbers {
    fn default() -> Self {
        Self {
            numbers: FxHashMap::default(),
            keys: vec![0; 8],
        }
    }
}

impl StackNumbers {
    /// Returns the numbers of a batch's stacks.
    pub(super) fn of(&mut self, stacks: &[StackKey]) -> Vec<u32> {
        let number = |key: &StackKey| {
            let next = (self.keys.len() / 8) as u32;
            let number = *self.numbers.entry(key.low()).or_insert(next);
            if number == next {
                self.keys.extend_from_slice(&key.low().to_le_bytes());
            }
            number
        };
        stacks.iter().map(number).collect()
    }

    fn key(&self, number: u32) -> [u8; 8] {
        let at = 8 * number as usize;
        self.keys
            .get(at..at + 8)
            .and_then(|key| key.try_into().ok())
            .unwrap_or_default()
    }
}

/// What a row says of its thread, by numbers of texts.
struct Thread {
    service: u32,
    executable: u32,
    container: u32,
    name: u32,
    pid: u32,
    tid: u32,
}

/// The batches of a range: what all rows of one have in common.
struct Batches {
    count: usize,
    run: Vec<u8>,
    epoch: Vec<u8>,
    sequence: Vec<u8>,
    part: Vec<u8>,
}

impl Default for Batches {
    /// As dictionaries have it, the first entries are the types' defaults.
    fn default() -> Self {
        Self {
            count: 1,
            run: vec![0; 16],
            epoch: vec![0; 16],
            sequence: vec![0; 8],
            part: vec![0; 4],
        }
    }
}

/// The distinct weights of a range.
struct Weights {
    numbers: FxHashMap<[u64; 2], u32>,
    fleet: Vec<u8>,
    run: Vec<u8>,
}

impl Default for Weights {
    /// As dictionaries have it, the first entries are the types' defaults.
    fn default() -> Self {
        Self {
            numbers: FxHashMap::default(),
            fleet: vec![0; 8],
            run: vec![0; 8],
        }
    }
}

/// The distinct contexts of a range.
struct Contexts {
    numbers: FxHashMap<u64, u32>,
    keys: Vec<u8>,
}

impl Default for Contexts {
    /// As dictionaries have it, the first entry is the type's default, which stands for a context that is not known.
    fn default() -> Self {
        Self {
            numbers: FxHashMap::from_iter([(0, 0)]),
            keys: vec![0; 8],
        }
    }
}

impl Contexts {
    fn number(&mut self, key: ContextKey) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(key.0).or_insert_with(|| {
            self.keys.extend_from_slice(&key.0.to_le_bytes());
            next
        })
    }
}

#[derive(Default)]
pub(super) struct SampleRows {
    service: Texts,
    profiler: Texts,
    host: Texts,
    thread: Texts,
    executable: Texts,
    container: Texts,
    threads: Vec<Thread>,
    weights: Weights,
    batches: Batches,
    contexts: Contexts,
    /// (number, rows): of each batch in turn.
    profilers: Vec<(u32, usize)>,
    hosts: Vec<(u32, usize)>,
    batch_runs: Vec<(u32, usize)>,
    time: Vec<u8>,
    cpu: Vec<u8>,
    cause: Vec<u8>,
    stack_of: Vec<u32>,
    weight_of: Vec<u32>,
    context_of: Vec<u32>,
    thread_of: Vec<u32>,
    totals: Totals,
}

impl SampleRows {
    pub(super) fn add(
        &mut self,
        identity: &Identity,
        batch: &SamplesBatch,
        (numbers, contexts): (&[u32], &[ContextKey]),
    ) {
        let raw = &batch.raw;
        let samples = &raw.samples;
        let count = samples.len();
        let first_thread = self.threads.len() as u32;
        self.add_threads(batch);
        let profiler = self.profiler.number(&raw.run.profiler);
        self.profilers.push((profiler, count));
        self.hosts.push((self.host.number(&identity.host), count));
        self.batch_runs.push((self.batches.count as u32, count));
        self.batches.count += 1;
        uuid(&mut self.batches.run, raw.run.id.0);
        uuid(&mut self.batches.epoch, identity.epoch.0);
        self.batches
            .sequence
            .extend_from_slice(&identity.sequence.to_le_bytes());
        self.batches.part.extend_from_slice(&identity.part.to_le_bytes());
        let weights = self.add_weights(batch);

        let mut times = Vec::with_capacity(count);
        times.extend(
            samples
                .time_delta_us
                .iter()
                .scan(raw.start_us, |time_us, &delta| {
                    *time_us = time_us.saturating_add(delta);
                    Some(*time_us)
                }),
        );
        put(&mut self.time, times.iter().map(|time_us| time_us.to_le_bytes()));
        // Kernels number CPUs below 8,192.
        let cpu = |&cpu: &u32| (cpu.min(u32::from(u16::MAX)) as u16).to_le_bytes();
        put(&mut self.cpu, samples.cpu.iter().map(cpu));
        self.cause.resize(self.cause.len() + count, raw.run.cause);
        let first_row = self.stack_of.len();
        self.stack_of
            .extend(samples.stack.iter().map(|&stack| numbers[stack as usize]));
        self.weight_of
            .extend(batch.sample_weight.iter().map(|&weight| weights[weight as usize]));
        let contexts: Vec<u32> = contexts.iter().map(|&key| self.contexts.number(key)).collect();
        self.context_of.extend(
            batch
                .sample_context
                .iter()
                .map(|&context| contexts[context as usize]),
        );
        self.thread_of
            .extend(samples.thread.iter().map(|&thread| first_thread + thread));

        for (index, &time_us) in times.iter().enumerate() {
            let weight = batch.weights[batch.sample_weight[index] as usize];
            let total = Total {
                fleet: weight.fleet,
                run: weight.run,
                samples: 1,
            };
            let key = TotalKey {
                hour: (time_us / HOUR_US).min(u64::from(u32::MAX / 3_600)) as u32,
                service: self.threads[self.thread_of[first_row + index] as usize].service,
                profiler,
                stack: self.stack_of[first_row + index],
            };
            self.totals.add(key, total);
        }
    }

    fn add_threads(&mut self, batch: &SamplesBatch) {
        let raw = &batch.raw;
        let string = |entry: u32| raw.strings[entry as usize].as_str();
        let processes: Vec<[u32; 3]> = raw
            .processes
            .iter()
            .map(|process| {
                [
                    self.service.number(string(process.service)),
                    self.executable.number(string(process.executable)),
                    self.container.number(string(process.container)),
                ]
            })
            .collect();
        for (index, &process) in raw.threads.process.iter().enumerate() {
            let [service, executable, container] = processes[process as usize];
            self.threads.push(Thread {
                service,
                executable,
                container,
                name: self.thread.number(string(raw.threads.name[index])),
                pid: raw.processes[process as usize].pid,
                tid: raw.threads.tid[index],
            });
        }
    }

    /// Returns the numbers of a batch's weights.
    fn add_weights(&mut self, batch: &SamplesBatch) -> Vec<u32> {
        let Weights { numbers, fleet, run } = &mut self.weights;
        let number = |weight: &strobe_event::Weight| {
            let next = (fleet.len() / 8) as u32;
            let key = [weight.fleet.to_bits(), weight.run.to_bits()];
            *numbers.entry(key).or_insert_with(|| {
                fleet.extend_from_slice(&weight.fleet.to_le_bytes());
                run.extend_from_slice(&weight.run.to_le_bytes());
                next
            })
        };
        batch.weights.iter().map(number).collect()
    }

    pub(super) fn block(&self, stacks: &StackNumbers) -> (usize, Vec<u8>) {
        let rows = self.stack_of.len();
        let dictionaries = stacks.keys.len() + 64 * self.batches.count + 16 * self.weights.numbers.len();
        let mut columns = Columns::new(Table::Samples, rows, 8_192 + dictionaries + 64 * rows);
        let of_thread = |field: fn(&Thread) -> u32| {
            self.thread_of
                .iter()
                .map(move |&thread| field(&self.threads[thread as usize]))
        };
        let weight_of = || self.weight_of.iter().copied();
        let batches = &self.batches;
        columns.texts_of(&self.service, of_thread(|thread| thread.service));
        columns.text_runs(&self.profiler, &self.profilers);
        columns.plain(&self.time);
        columns.chosen(&stacks.keys, 8, self.stack_of.iter().copied());
        columns.chosen(&self.weights.fleet, 8, weight_of());
        columns.chosen(&self.weights.run, 8, weight_of());
        columns.text_runs(&self.host, &self.hosts);
        columns.fixed(of_thread(|thread| thread.pid).map(u32::to_le_bytes));
        columns.fixed(of_thread(|thread| thread.tid).map(u32::to_le_bytes));
        columns.texts_of(&self.thread, of_thread(|thread| thread.name));
        columns.texts_of(&self.executable, of_thread(|thread| thread.executable));
        columns.texts_of(&self.container, of_thread(|thread| thread.container));
        columns.plain(&self.cpu);
        columns.plain(&self.cause);
        for values in [&batches.run, &batches.epoch, &batches.sequence, &batches.part] {
            columns.runs(values, batches.count, &self.batch_runs);
        }
        columns.chosen(&self.contexts.keys, 8, self.context_of.iter().copied());
        columns.finish()
    }

    /// Returns the sums in the order of their keys.
    pub(super) fn take_totals(&mut self) -> Vec<(TotalKey, Total)> {
        std::mem::take(&mut self.totals).finish()
    }

    /// Returns the block of sums, times `sign`: -1 takes them back, since sums of one key are added up.
    pub(super) fn totals_block(
        &self,
        totals: &[(TotalKey, Total)],
        stacks: &StackNumbers,
        sign: i8,
    ) -> (usize, Vec<u8>) {
        let times = f64::from(sign);
        // Unsigned sums wrap around, so that the two's complement takes a count back.
        let count = |total: &Total| i64::from(sign).wrapping_mul(total.samples as i64);
        let mut columns = Columns::new(Table::TotalsHourly, totals.len(), 8_192 + 48 * totals.len());
        columns.fixed(totals.iter().map(|(key, _)| (key.hour * 3_600).to_le_bytes()));
        columns.texts_of(&self.service, totals.iter().map(|(key, _)| key.service));
        columns.texts_of(&self.profiler, totals.iter().map(|(key, _)| key.profiler));
        columns.fixed(totals.iter().map(|(key, _)| stacks.key(key.stack)));
        columns.fixed(
            totals
                .iter()
                .map(|(_, total)| (times * total.fleet).to_le_bytes()),
        );
        columns.fixed(totals.iter().map(|(_, total)| (times * total.run).to_le_bytes()));
        columns.fixed(totals.iter().map(|(_, total)| count(total).to_le_bytes()));
        columns.finish()
    }
}

#[derive(Default, PartialEq, Eq, Hash, PartialOrd, Ord, Clone, Copy)]
pub(super) struct TotalKey {
    hour: u32,
    service: u32,
    profiler: u32,
    stack: u32,
}

#[derive(Default, Clone, Copy)]
pub(super) struct Total {
    fleet: f64,
    run: f64,
    samples: u64,
}

impl Total {
    fn add(&mut self, other: Self) {
        self.fleet += other.fleet;
        self.run += other.run;
        self.samples += other.samples;
    }
}

/// Sums under way. A stack nearly always has one hour, service and profiler in a range: its sum lies at its number, and
/// what others it has lies aside.
#[derive(Default)]
struct Totals {
    of_stack: Vec<(TotalKey, Total)>,
    aside: FxHashMap<TotalKey, Total>,
}

impl Totals {
    fn add(&mut self, key: TotalKey, total: Total) {
        let at = key.stack as usize;
        if at >= self.of_stack.len() {
            self.of_stack.resize(at + 1, Default::default());
        }
        let (here, sum) = &mut self.of_stack[at];
        if sum.samples == 0 {
            (*here, *sum) = (key, total);
        } else if *here == key {
            sum.add(total);
        } else {
            self.aside.entry(key).or_default().add(total);
        }
    }

    fn finish(self) -> Vec<(TotalKey, Total)> {
        // What lies aside never has the key of the sum at its stack's number, which does not change once it is there.
        let mut totals = self.of_stack;
        totals.retain(|(_, total)| total.samples > 0);
        totals.extend(self.aside);
        totals.sort_unstable_by_key(|(key, _)| *key);
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a stack of several services and hours is summed under each of them, in the order of the keys.
    #[test]
    fn each_hour_and_service_of_a_stack_has_its_sum() {
        let key = |hour, service, stack| TotalKey {
            hour,
            service,
            profiler: 1,
            stack,
        };
        let one = Total {
            fleet: 2.0,
            run: 1.0,
            samples: 1,
        };
        let mut totals = Totals::default();
        for (hour, service, stack) in [
            (5, 1, 9),
            (5, 2, 9),
            (5, 1, 9),
            (6, 1, 9),
            (5, 2, 9),
            (5, 2, 9),
            (5, 1, 3),
        ] {
            totals.add(key(hour, service, stack), one);
        }
        let sums: Vec<_> = totals
            .finish()
            .into_iter()
            .map(|(key, total)| (key.hour, key.service, key.stack, total.samples, total.fleet))
            .collect();
        assert_eq!(
            sums,
            [
                (5, 1, 3, 1, 2.0),
                (5, 1, 9, 2, 4.0),
                (5, 2, 9, 3, 6.0),
                (6, 1, 9, 1, 2.0)
            ]
        );
    }
}
