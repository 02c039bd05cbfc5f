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

/// Calls `emit` with (start, end, value) of each stretch, in the order of their starts; together they cover what the
/// outermost intervals cover.
///
/// What began last counts, until it ends; then what it began in counts again. A deeper interval counts only where one
/// less deep lies around it: what damaged debug information says beyond that is left out.
pub(crate) fn flatten(intervals: &mut [Interval], mut emit: impl FnMut(u64, u64, u32)) {
    intervals.sort_unstable_by_key(|interval| (interval.start, interval.depth, u64::MAX - interval.end));
    // Open intervals, the one that counts last: end, depth, value.
    let mut open: Vec<(u64, u16, u32)> = Vec::new();
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
        while let Some(&(ends, _, value)) = open.last() {
            if ends > start {
                break;
            }
            say(ends, value, &mut at);
            open.pop();
        }
        let around = open.iter().rev().find(|(_, around, _)| *around < depth);
        let end = match around {
            Some(&(ends, ..)) => end.min(ends),
            None if depth > 0 => continue,
            None => end,
        };
        if let Some(&(_, _, value)) = open.last() {
            say(start, value, &mut at);
        }
        at = at.max(start);
        open.push((end, depth, value));
    }
    while let Some((ends, _, value)) = open.pop() {
        say(ends, value, &mut at);
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
