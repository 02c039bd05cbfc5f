//! Stored stacks through stack schemas: what `strobe retag` and `strobe stacks try` share.

use strobe_explore::{Range, Selection, TagStack, Taggable};
use strobe_processor::tag::file_name;
use strobe_stack_schema::Location;

/// Microseconds of an hour: what is fetched at a time, since an hour's stacks fit in memory.
const HOUR_US: u64 = 3_600_000_000;

/// Returns the selection cut into hours, the newest first.
pub fn hours(selection: &Selection) -> Vec<Selection> {
    let Range { since_us, until_us } = selection.range;
    let mut hours = Vec::new();
    let mut end = until_us;
    while end > since_us {
        let start = since_us.max((end - 1) / HOUR_US * HOUR_US);
        hours.push(Selection {
            range: Range {
                since_us: start,
                until_us: end,
            },
            ..selection.clone()
        });
        end = start;
    }
    hours
}

/// Returns the locations of a frame as schemas take them.
pub fn locations(stored: &Taggable, frame: u32) -> impl Iterator<Item = Location<'_>> {
    let frame = stored.frames.get(frame as usize);
    frame.into_iter().flat_map(|frame| {
        frame
            .lines
            .iter()
            .enumerate()
            .map(|(at, (function, file, line))| Location {
                function,
                file,
                line: *line,
                module: file_name(&frame.module),
                inlined: at > 0,
                kernel: frame.kernel,
                unnamed: frame.unnamed,
            })
    })
}

/// Returns the names and values of a stack's context.
pub fn values(stack: &TagStack) -> Vec<(&str, &str)> {
    let values = stack.values.iter();
    values
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the hours of a ragged range are the range, each part within one hour, the newest first.
    #[test]
    fn hours_are_the_range() {
        let whole = Selection::new(HOUR_US / 2, 3 * HOUR_US + 1);
        let hours = hours(&whole);
        assert_eq!(hours.len(), 4);
        assert_eq!(hours[0].range.until_us, whole.range.until_us);
        assert_eq!(hours[3].range.since_us, whole.range.since_us);
        for pair in hours.windows(2) {
            assert_eq!(pair[0].range.since_us, pair[1].range.until_us);
        }
        for hour in hours {
            let Range { since_us, until_us } = hour.range;
            assert_eq!(since_us / HOUR_US, (until_us - 1) / HOUR_US);
        }
    }
}
