//! The protocol against a model of the world: a log with repeats, a committed position, and tables that drop a token
//! they have seen. Owners die or fall asleep at any step, and their successors cut ranges otherwise.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use strobe_event::Part;
use strobe_sink::pending::{Note, Pending};
use strobe_sink::protocol::{self, Insert, Inserted, Outcome, World};
use strobe_sink::stored::{Coverage, Verdict};
use strobe_sink::tables::Table;

/// SplitMix64: a case is its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What outlives every owner.
#[derive(Default)]
struct Lasting {
    /// Sequence of each message.
    log: Vec<u64>,
    /// Sequences that the samples table refuses.
    bad: BTreeSet<u64>,
    position: i64,
    note: String,
    tokens: BTreeSet<String>,
    totals: BTreeMap<u64, i64>,
    samples: BTreeMap<u64, u64>,
    letters: BTreeSet<u64>,
}

impl Lasting {
    fn insert(&mut self, insert: &Insert) -> Inserted {
        let sequences: Vec<u64> = insert
            .body
            .chunks(8)
            .map(|eight| u64::from_le_bytes(eight.try_into().unwrap()))
            .collect();
        if self.tokens.contains(&insert.token) {
            return Inserted::Stored;
        }
        if insert.table == Table::Samples && sequences.iter().any(|sequence| self.bad.contains(sequence)) {
            return Inserted::Rejected("bad".into());
        }
        self.tokens.insert(insert.token.clone());
        let sign = if insert.token.contains("taken back") {
            -1
        } else {
            1
        };
        for sequence in sequences {
            match insert.table {
                Table::TotalsHourly => *self.totals.entry(sequence).or_default() += sign,
                Table::Samples => *self.samples.entry(sequence).or_default() += 1,
                _ => {}
            }
        }
        Inserted::Stored
    }
}

#[derive(Debug, PartialEq)]
enum Halt {
    Died,
    Fenced,
}

/// The world as one owner sees it, up to a step at which it dies or falls asleep.
struct Owner<'a> {
    lasting: &'a mut Lasting,
    /// Steps that are left, and whether the last one still has its effect.
    steps: u64,
    last_counts: bool,
    /// One that wakes up: what it did before is not done again, and its commits are refused.
    asleep_until: u64,
    done: u64,
    answers: Vec<Inserted>,
}

impl<'a> Owner<'a> {
    fn new(lasting: &'a mut Lasting, steps: u64, last_counts: bool) -> Self {
        Self {
            lasting,
            steps,
            last_counts,
            asleep_until: 0,
            done: 0,
            answers: Vec::new(),
        }
    }

    /// Returns whether the step has its effect, and whether the owner lives on.
    fn step(&mut self) -> (bool, bool) {
        self.done += 1;
        if self.done < self.steps {
            (true, true)
        } else {
            (self.last_counts, false)
        }
    }
}

impl World for Owner<'_> {
    type Halt = Halt;

    fn commit(&mut self, next: i64, note: &str) -> Result<(), Halt> {
        if self.asleep_until > 0 {
            self.done += 1;
            return if self.done <= self.asleep_until {
                Ok(())
            } else {
                Err(Halt::Fenced)
            };
        }
        let (counts, lives) = self.step();
        if counts {
            self.lasting.position = next;
            self.lasting.note = note.to_owned();
        }
        if lives { Ok(()) } else { Err(Halt::Died) }
    }

    fn insert(&mut self, insert: &Insert) -> Result<Inserted, Halt> {
        if self.asleep_until > 0 {
            self.done += 1;
            if self.done <= self.asleep_until {
                // Before it fell asleep; a repeat is dropped by its token, a refusal is one again.
                return Ok(self.answers.remove(0));
            }
            return Ok(self.lasting.insert(insert));
        }
        let (counts, lives) = self.step();
        let answer = if counts {
            self.lasting.insert(insert)
        } else {
            Inserted::Stored
        };
        self.answers.push(answer.clone());
        if lives { Ok(answer) } else { Err(Halt::Died) }
    }

    fn passes(&mut self, _: &str) {}
}

fn inserts(pending: &Pending, log: &[u64]) -> (Vec<Insert>, Insert) {
    let body: Vec<u8> = (pending.first..=pending.last)
        .filter(|&offset| !pending.skips(offset))
        .flat_map(|offset| log[offset as usize].to_le_bytes())
        .collect();
    let insert = |table: Table, undo: &str| Insert {
        table,
        token: format!(
            "{}{undo} {}-{} a{}",
            table.name(),
            pending.first,
            pending.last,
            pending.attempt
        ),
        body: Bytes::from(body.clone()),
    };
    let tables = [Table::Stacks, Table::TotalsHourly, Table::Batches, Table::Samples];
    (
        tables.map(|table| insert(table, "")).into(),
        insert(Table::TotalsHourly, " taken back"),
    )
}

/// One owner's life; returns the range it was in and the steps it had done, when it fell asleep rather than died.
fn live(lasting: &mut Lasting, random: &mut Random, mortal: bool) -> Option<(Pending, u64, Vec<Inserted>)> {
    let mut steps = if mortal { 1 + random.below(30) } else { u64::MAX };
    let last_counts = random.below(2) == 0;
    let sleeps = random.below(2) == 0;
    let mut coverage = None;
    let mut most = 1 + random.below(9);
    while (lasting.position as usize) < lasting.log.len() {
        let first = lasting.position;
        let (pending, attempt) = match Note::parse(first, &lasting.note).unwrap() {
            Note::Pending(pending) => (Some(pending), 0),
            Note::Free { attempt } => (None, attempt),
        };
        let pending = pending.unwrap_or_else(|| {
            let coverage = coverage.get_or_insert_with(|| {
                let mut coverage = Coverage::known_from(0);
                lasting
                    .samples
                    .keys()
                    .for_each(|&sequence| coverage.add(sequence, Part::WHOLE, 1));
                coverage
            });
            let mut pending = Pending::new(first, attempt);
            let size = 1 + random.below(most);
            for offset in first..(first + size as i64).min(lasting.log.len() as i64) {
                pending.last = offset;
                let sequence = lasting.log[offset as usize];
                match coverage.verdict(sequence, Part::WHOLE, 1) {
                    Verdict::Repeat => pending.skip(offset),
                    _ => coverage.add(sequence, Part::WHOLE, 1),
                }
            }
            pending
        });
        let (inserts, undo) = inserts(&pending, &lasting.log);
        let mut owner = Owner::new(lasting, steps, last_counts);
        let outcome = if inserts[0].body.is_empty() {
            owner.commit(pending.last + 1, "").map(|()| Outcome::Stored)
        } else {
            protocol::store(&mut owner, &pending, &inserts, Some(&undo))
        };
        let (done, answers) = (owner.done, std::mem::take(&mut owner.answers));
        steps = steps.saturating_sub(done);
        match outcome {
            Ok(Outcome::Stored) => most = 9,
            Ok(Outcome::Rejected { .. }) => {
                coverage = None;
                let messages = (pending.last - pending.first + 1) as u64;
                most = (messages / 2).max(1);
                if messages == 1 {
                    lasting.letters.insert(lasting.log[pending.first as usize]);
                    let mut owner = Owner::new(lasting, steps, last_counts);
                    if owner.commit(pending.first + 1, "").is_err() {
                        return None;
                    }
                    steps -= 1;
                }
            }
            // Asleep after a step whose effect it saw.
            Err(_) => return (sleeps && last_counts).then_some((pending, done, answers)),
        }
    }
    None
}

fn case(seed: u64) {
    let mut random = Random(seed);
    let mut lasting = Lasting::default();
    let messages = 1 + random.below(25);
    for _ in 0..messages {
        let sequence = random.below(16);
        lasting.log.push(sequence);
        if random.below(12) == 0 {
            lasting.bad.insert(sequence);
        }
    }
    let mut asleep = Vec::new();
    for _ in 0..random.below(8) {
        asleep.extend(live(&mut lasting, &mut random, true));
        // Those who slept may wake up at any time.
        if random.below(2) == 0 {
            wake(&mut lasting, asleep.pop());
        }
    }
    live(&mut lasting, &mut random, false);
    asleep
        .into_iter()
        .for_each(|owner| wake(&mut lasting, Some(owner)));
    let all: BTreeSet<u64> = lasting.log.iter().copied().collect();
    for sequence in all {
        let is_bad = lasting.bad.contains(&sequence);
        let expected = if is_bad { (0, 0, true) } else { (1, 1, false) };
        let samples = lasting.samples.get(&sequence).copied().unwrap_or(0);
        let totals = lasting.totals.get(&sequence).copied().unwrap_or(0);
        let found = (samples, totals, lasting.letters.contains(&sequence));
        assert_eq!(found, expected, "seed {seed}, sequence {sequence}");
    }
}

fn wake(lasting: &mut Lasting, owner: Option<(Pending, u64, Vec<Inserted>)>) {
    let Some((pending, done, answers)) = owner else {
        return;
    };
    let (inserts, undo) = inserts(&pending, &lasting.log);
    let mut owner = Owner::new(lasting, u64::MAX, true);
    (owner.asleep_until, owner.answers) = (done, answers);
    let outcome = protocol::store(&mut owner, &pending, &inserts, Some(&undo));
    assert!(matches!(outcome, Err(Halt::Fenced) | Ok(_)), "{outcome:?}");
}

/// Checks 100,000 histories: owners die and fall asleep at any step and wake up, ranges are cut anywhere, messages
/// repeat and some are refused. Every sequence ends in samples and totals once, or among the dead letters alone.
#[test]
fn every_history_ends_with_each_sequence_once() {
    (0..100_000).for_each(case);
}
