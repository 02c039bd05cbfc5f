//! What of a spool's sequences is stored, and what of an arriving part is news.
//!
//! Of each (host, epoch) the sequences that are stored whole are kept as ranges, and of the others their stored parts.
//! A part that arrives is a repeat where stored parts cover all of it, news where they cover nothing of it, and is cut
//! where they cover some: only the pieces that are missing are inserted. Pieces are made by halving, again and again,
//! so that each is a [`Part`] with a number of its own.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use strobe_event::{Epoch, Part, SamplesBatch, split};

/// What is to be done with a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing of it is stored: insert it.
    News,
    /// All of it is stored.
    Repeat,
    /// Insert these pieces of it.
    Cut(Vec<Part>),
    /// A stored part holds another number of samples than the same piece of this batch would: it was split by other
    /// rules, and nobody can say what of it is missing.
    Torn,
}

/// Ranges and parts kept of one (host, epoch) between two ranges that are stored, each; what is older is asked for again when
/// it comes. Events of runs leave gaps, so an answer about an old sequence has more: one range per run since then.
const KEPT_MAX: usize = 64;

/// What is stored of one (host, epoch), from some sequence on.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    /// All that is stored from this sequence on is known here.
    from: u64,
    /// First to last sequence of the ranges stored whole.
    whole: BTreeMap<u64, u64>,
    /// Parts stored of other sequences, with their samples.
    parts: BTreeMap<u64, Vec<(Part, u64)>>,
}

impl Coverage {
    /// Returns one that knows what is stored from `from` on, which is nothing yet.
    pub fn known_from(from: u64) -> Self {
        Self {
            from,
            ..Self::default()
        }
    }

    /// Returns whether it knows what is stored of `sequence`.
    pub fn knows(&self, sequence: u64) -> bool {
        sequence >= self.from
    }

    /// Returns what to do with a part that has so many samples.
    pub fn verdict(&self, sequence: u64, part: Part, samples: u64) -> Verdict {
        if self.has_whole(sequence) {
            return Verdict::Repeat;
        }
        let Some(stored) = self.parts.get(&sequence) else {
            return Verdict::News;
        };
        if stored.iter().any(|(have, _)| have.covers(part)) {
            return Verdict::Repeat;
        }
        let inside: Vec<(Part, u64)> = stored
            .iter()
            .filter(|(have, _)| part.covers(*have))
            .copied()
            .collect();
        if inside.is_empty() {
            return Verdict::News;
        }
        if inside
            .iter()
            .any(|&(have, count)| piece_samples(samples, part, have) != count)
        {
            return Verdict::Torn;
        }
        let mut missing = Vec::new();
        uncovered(part, &inside, &mut missing);
        // A piece of nothing has no row that could say it is stored.
        missing.retain(|&piece| piece_samples(samples, part, piece) > 0);
        if missing.is_empty() {
            Verdict::Repeat
        } else {
            Verdict::Cut(missing)
        }
    }

    /// Notes that a part is stored.
    pub fn add(&mut self, sequence: u64, part: Part, samples: u64) {
        if self.has_whole(sequence) {
            return;
        }
        if part != Part::WHOLE {
            let parts = self.parts.entry(sequence).or_default();
            if !parts.iter().any(|(have, _)| have.covers(part)) {
                parts.push((part, samples));
            }
            let mut missing = Vec::new();
            uncovered(Part::WHOLE, parts, &mut missing);
            if !missing.is_empty() {
                return;
            }
        }
        self.parts.remove(&sequence);
        self.add_whole(sequence);
    }

    fn has_whole(&self, sequence: u64) -> bool {
        self.whole
            .range(..=sequence)
            .next_back()
            .is_some_and(|(_, &last)| last >= sequence)
    }

    fn add_whole(&mut self, sequence: u64) {
        let mut first = sequence;
        let mut last = sequence;
        if let Some((&before, &end)) = self.whole.range(..sequence).next_back()
            && end.checked_add(1) == Some(sequence)
        {
            first = before;
        }
        if let Some(next) = sequence.checked_add(1)
            && let Some(end) = self.whole.remove(&next)
        {
            last = end;
        }
        self.whole.insert(first, last);
    }

    fn is_full(&self) -> bool {
        self.whole.len() > KEPT_MAX || self.parts.len() > KEPT_MAX
    }

    /// Forgets the oldest of what is over the bound.
    fn trim(&mut self) {
        while self.whole.len() > KEPT_MAX {
            if let Some((_, last)) = self.whole.pop_first() {
                self.from = self.from.max(last.saturating_add(1));
            }
        }
        while self.parts.len() > KEPT_MAX {
            if let Some((sequence, _)) = self.parts.pop_first() {
                self.from = self.from.max(sequence.saturating_add(1));
            }
        }
        let from = self.from;
        self.parts.retain(|&sequence, _| sequence >= from);
    }
}

/// Appends the largest pieces of `part` of which nothing in `stored` covers anything.
fn uncovered(part: Part, stored: &[(Part, u64)], missing: &mut Vec<Part>) {
    if stored.iter().any(|(have, _)| have.covers(part)) {
        return;
    }
    if !stored.iter().any(|(have, _)| part.covers(*have)) {
        missing.push(part);
        return;
    }
    // One that is inside and does not cover it is smaller, so that halving stays within 32 bits.
    for half in halves(part) {
        uncovered(half, stored, missing);
    }
}

fn halves(part: Part) -> [Part; 2] {
    [0, 1].map(|side| Part {
        of: 2 * part.of,
        index: 2 * part.index + side,
    })
}

/// Returns how many of the `samples` of `part` are in `piece`, which is inside of it.
fn piece_samples(mut samples: u64, mut part: Part, piece: Part) -> u64 {
    while part != piece && part.covers(piece) {
        let [left, right] = halves(part);
        let in_left = samples / 2;
        (part, samples) = if left.covers(piece) {
            (left, in_left)
        } else {
            (right, samples - in_left)
        };
    }
    samples
}

/// Returns the piece of `batch`, which is `part` of its sequence; nothing where it has no samples.
pub fn cut(batch: &SamplesBatch, mut part: Part, piece: Part) -> Option<SamplesBatch> {
    let mut current = batch.clone();
    while part != piece && part.covers(piece) {
        let [left, right] = halves(part);
        let goes_left = left.covers(piece);
        // One sample is no longer halved: the left half is empty.
        if current.raw.samples.len() < 2 {
            if goes_left {
                return None;
            }
        } else {
            let mut pieces = split::split(&current, 2);
            let right_piece = pieces.pop()?;
            current = if goes_left { pieces.pop()? } else { right_piece };
        }
        part = if goes_left { left } else { right };
    }
    Some(current)
}

/// A host's name and the epoch of its spool.
pub type Spool = (Box<str>, Epoch);

/// What is stored of each (host, epoch) that was met. Forgotten as a whole when partitions come or go: others may then
/// have written.
#[derive(Debug, Default)]
pub struct Known {
    spools: FxHashMap<Spool, Coverage>,
    /// Those of which more is known than is kept.
    full: FxHashSet<Spool>,
}

/// Spools kept: hosts of a large fleet, and those that restarted. At most some KiB each.
const SPOOLS_MAX: usize = 65_536;

impl Known {
    /// Returns what is known of a spool.
    pub fn get(&self, spool: &Spool) -> Option<&Coverage> {
        self.spools.get(spool)
    }

    /// Notes what is stored of a spool.
    pub fn learn(&mut self, spool: Spool, coverage: Coverage) {
        if self.spools.len() >= SPOOLS_MAX {
            // Rare, and harmless: all is asked for again as it is met.
            self.clear();
        }
        self.spools.insert(spool, coverage);
    }

    /// Notes that a part is stored, for a spool of which something is known.
    pub fn add(&mut self, spool: &Spool, sequence: u64, part: Part, samples: u64) {
        if let Some(coverage) = self.spools.get_mut(spool) {
            coverage.add(sequence, part, samples);
            if coverage.is_full() && !self.full.contains(spool) {
                self.full.insert(spool.clone());
            }
        }
    }

    /// Returns whether it is known what is stored of a sequence of a spool.
    pub fn knows(&self, spool: &Spool, sequence: u64) -> bool {
        self.get(spool).is_some_and(|coverage| coverage.knows(sequence))
    }

    /// Forgets the oldest of what is over the bounds. Only between two ranges: what one asked for must be known until it is
    /// cut.
    pub fn trim(&mut self) {
        for spool in self.full.drain() {
            if let Some(coverage) = self.spools.get_mut(&spool) {
                coverage.trim();
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.spools.clear();
        self.full.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Sequences in ranges are repeats, those in gaps are news.
    #[test]
    fn ranges_grow_together_and_gaps_are_news() {
        let mut coverage = Coverage::default();
        for sequence in [5, 7, 6, 0, u64::MAX, 9] {
            assert_eq!(
                coverage.verdict(sequence, Part::WHOLE, 10),
                Verdict::News,
                "{sequence}"
            );
            coverage.add(sequence, Part::WHOLE, 10);
            assert_eq!(
                coverage.verdict(sequence, Part::WHOLE, 10),
                Verdict::Repeat,
                "{sequence}"
            );
        }
        assert_eq!(
            coverage.whole,
            BTreeMap::from([(0, 0), (5, 7), (9, 9), (u64::MAX, u64::MAX)])
        );
        assert_eq!(coverage.verdict(8, Part::WHOLE, 10), Verdict::News);
    }

    /// What is forgotten for want of room is no longer claimed to be known.
    #[test]
    fn what_is_forgotten_is_not_claimed() {
        let mut known = Known::default();
        let spool: Spool = ("a".into(), Epoch([1; 16]));
        known.learn(spool.clone(), Coverage::known_from(0));
        for sequence in 0..1_000 {
            known.add(&spool, 2 * sequence, Part::WHOLE, 1);
        }
        known.trim();
        let coverage = known.get(&spool).unwrap();
        assert_eq!(coverage.whole.len(), KEPT_MAX);
        assert!(!coverage.knows(0) && coverage.knows(1_998));
        assert!(
            (0..2_000)
                .filter(|&sequence| coverage.knows(sequence))
                .all(|sequence| {
                    (coverage.verdict(sequence, Part::WHOLE, 1) == Verdict::Repeat) == (sequence % 2 == 0)
                })
        );
    }

    /// What was asked for stays known until its range is cut, however many ranges the answer has.
    #[test]
    fn what_was_asked_for_is_known_until_its_range_is_cut() {
        let mut known = Known::default();
        let spool: Spool = ("a".into(), Epoch([1; 16]));
        known.learn(spool.clone(), Coverage::known_from(5));
        // Two hours of runs of a minute: each leaves a gap.
        for run in 0..120 {
            known.add(&spool, 5 + 3 * run, Part::WHOLE, 1);
        }
        let verdict = |known: &Known| known.get(&spool).unwrap().verdict(5, Part::WHOLE, 1);
        assert!(known.knows(&spool, 5));
        assert_eq!(verdict(&known), Verdict::Repeat);
        known.trim();
        assert!(!known.knows(&spool, 5));
    }

    /// A part that was made by other rules is noticed rather than doubled.
    #[test]
    fn a_part_of_another_make_is_noticed() {
        let mut coverage = Coverage::default();
        coverage.add(1, Part { of: 2, index: 0 }, 7);
        assert_eq!(coverage.verdict(1, Part::WHOLE, 13), Verdict::Torn);
        assert_eq!(
            coverage.verdict(1, Part::WHOLE, 14),
            Verdict::Cut(vec![Part { of: 2, index: 1 }])
        );
    }

    fn range(samples: u64, part: Part) -> std::ops::Range<u64> {
        let (mut at, mut current, mut count) = (0, Part::WHOLE, samples);
        while current != part {
            let [left, right] = halves(current);
            let in_left = count / 2;
            (at, current, count) = if left.covers(part) {
                (at, left, in_left)
            } else {
                (at + in_left, right, count - in_left)
            };
        }
        at..at + count
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]
        /// Checks that any sequence of splits of one batch, in any order and with repeats, stores every sample once.
        #[test]
        fn every_sample_is_stored_once_however_it_is_split(
            samples in 1_u64..200,
            splits in proptest::collection::vec((0_u32..6, any::<proptest::sample::Selector>()), 1..12),
            order in any::<prop::sample::Index>(),
        ) {
            let mut coverage = Coverage::default();
            let mut rows = vec![0_u32; samples as usize];
            let mut arrive = |part: Part| {
                let here = range(samples, part);
                if here.is_empty() {
                    return;
                }
                let count = here.end - here.start;
                let pieces = match coverage.verdict(3, part, count) {
                    Verdict::News => vec![part],
                    Verdict::Repeat => vec![],
                    Verdict::Cut(pieces) => pieces,
                    Verdict::Torn => panic!("torn"),
                };
                for piece in pieces {
                    assert!(part.covers(piece));
                    let there = range(samples, piece);
                    assert_eq!(piece_samples(count, part, piece), there.end - there.start);
                    there.clone().for_each(|sample| rows[sample as usize] += 1);
                    coverage.add(3, piece, there.end - there.start);
                }
            };
            // Some parts of some splits, in any order, then all of one split.
            for (depth, selector) in &splits {
                let of = 1_u32 << depth;
                let chosen = selector.select(0..of);
                arrive(Part { of, index: chosen });
                arrive(Part { of, index: chosen });
            }
            let of = 1_u32 << (order.index(6) as u32);
            (0..of).for_each(|index| arrive(Part { of, index }));
            prop_assert_eq!(&rows, &vec![1; samples as usize]);
            let seen: BTreeSet<u64> = (0..samples).collect();
            prop_assert_eq!(seen.len() as u64, samples);
        }
    }
}
