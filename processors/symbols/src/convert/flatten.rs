//! Nested ranges of code → stretches, each with the innermost.

/// A range of code that something lies in, at a depth of nesting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub start: u64,
    pub end: u64,
    /// 0 is outermost.
    pub depth: u16,
    /// What lies there.
    pub value: u32,
}

/// An interval that has begun and not ended; the one that counts stands last.
struct Open {
    end: u64,
    depth: u16,
    value: u32,
    /// Place of the nearest one before it that is less deep.
    around: Option<usize>,
}

/// Calls `emit` with (start, end, value) of each stretch, in the order of their starts; together they cover what the
/// outermost intervals cover.
///
/// What began last counts, until it ends; then what it began in counts again. A deeper interval counts only where one
/// less deep lies around it: what damaged debug information says beyond that is left out.
pub(crate) fn flatten(intervals: &mut [Interval], mut emit: impl FnMut(u64, u64, u32)) {
    intervals.sort_unstable_by_key(|interval| (interval.start, interval.depth, u64::MAX - interval.end));
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
    let mut say = |to: u64, value: u32, at: &mut u64| {
        if *at < to {
            emit(*at, to, value);
            *at = to;
        }
    };
    for &Interval {
        start,
        end,
        depth,
        value,
    } in intervals.iter().filter(|interval| interval.start < interval.end)
    {
        while let Some(last) = open.pop_if(|last| last.end <= start) {
            say(last.end, last.value, &mut at);
        }
        // From one to the next around it depths fall, so this ends soon, however many are open.
        let mut around = open.len().checked_sub(1);
        while let Some(known) = around.and_then(|at| open.get(at))
            && known.depth >= depth
        {
            around = known.around;
        }
        let end = match around.and_then(|at| open.get(at)) {
            Some(known) => end.min(known.end),
            None if depth > 0 => continue,
            None => end,
        };
        if let Some(last) = open.last() {
            say(start, last.value, &mut at);
        }
        at = at.max(start);
        open.push(Open {
            end,
            depth,
            value,
            around,
        });
    }
    while let Some(last) = open.pop() {
        say(last.end, last.value, &mut at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stretches(intervals: &[(u64, u64, u16, u32)]) -> Vec<(u64, u64, u32)> {
        let mut intervals: Vec<_> = intervals
            .iter()
            .map(|&(start, end, depth, value)| Interval {
                start,
                end,
                depth,
                value,
            })
            .collect();
        let mut out = Vec::new();
        flatten(&mut intervals, |start, end, value| out.push((start, end, value)));
        out
    }

    /// Checks nested calls, a call that reaches beyond its function, and one outside of every function.
    #[test]
    fn the_innermost_counts() {
        let nested = [(10, 50, 0, 1), (20, 40, 1, 2), (25, 30, 2, 3), (60, 70, 0, 4)];
        let expected = [
            (10, 20, 1),
            (20, 25, 2),
            (25, 30, 3),
            (30, 40, 2),
            (40, 50, 1),
            (60, 70, 4),
        ];
        assert_eq!(stretches(&nested), expected);
        let damaged = [(10, 50, 0, 1), (40, 90, 1, 2), (60, 70, 1, 3)];
        assert_eq!(stretches(&damaged), [(10, 40, 1), (40, 50, 2)]);
    }

    /// Checks symbols within and across one another: from its start on each counts, to its end.
    #[test]
    fn an_entry_point_counts_from_its_start() {
        let symbols = [(10, 50, 0, 1), (20, 30, 0, 2), (45, 60, 0, 3)];
        let expected = [(10, 20, 1), (20, 30, 2), (30, 45, 1), (45, 60, 3)];
        assert_eq!(stretches(&symbols), expected);
    }

    /// Checks that a million ranges around one another, which a hostile symbol table may have, take no more than their
    /// number: looking through all that are open for each would take hours.
    #[test]
    fn ranges_around_one_another_are_flattened_at_once() {
        const COUNT: u64 = 1_000_000;
        let nested: Vec<_> = (0..COUNT)
            .map(|at| (at, 3 * COUNT - at, u16::from(at > 0), at as u32))
            .collect();
        assert_eq!(stretches(&nested).len() as u64, 2 * COUNT - 1);
    }

    proptest! {
        /// Checks, of properly nested ranges, that each address belongs to the deepest range around it.
        #[test]
        fn each_address_belongs_to_the_deepest_range(
            cuts in proptest::collection::vec((0_u64..40, 0_u64..40), 0..12),
        ) {
            // Halving ranges by random cuts keeps them nested.
            let mut ranges = vec![(0_u64, 40_u64, 0_u16, 0_u32)];
            for (from, to) in cuts {
                let (start, end) = (from.min(to), from.max(to));
                let deepest = ranges
                    .iter()
                    .filter(|range| range.0 <= start && end <= range.1)
                    .max_by_key(|range| range.2)
                    .copied();
                let crosses = ranges.iter().any(|range| {
                    start < range.1 && range.0 < end && !(range.0 <= start && end <= range.1)
                });
                if let (Some(around), false) = (deepest, crosses || start == end) {
                    ranges.push((start, end, around.2 + 1, ranges.len() as u32));
                }
            }
            let found = stretches(&ranges);
            for address in 0..40 {
                let expected = ranges
                    .iter()
                    .filter(|range| range.0 <= address && address < range.1)
                    .max_by_key(|range| range.2)
                    .map(|range| range.3);
                let stretch = found.iter().find(|range| range.0 <= address && address < range.1);
                prop_assert_eq!(stretch.map(|range| range.2), expected);
            }
        }
    }
}
