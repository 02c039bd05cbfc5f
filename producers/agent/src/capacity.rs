//! How much there is of what is scarce, found by trying: no file of the kernel's says it, and what other programs hold is not there
//! for us.

use std::collections::BTreeMap;

use strobe_bpf::Event;
use strobe_bpf::event::{Access, Breakpoint, TYPE_HARDWARE, Trial};

use crate::profilers::Resource;

/// More than any CPU has of either: x86-64 has 4 breakpoints and up to 8 counters, arm64 up to 16 and 31.
const TRIED_MAX: u32 = 64;
/// Where it is tried: what holds for one CPU holds for all, as what is sampled is sampled on all.
const CPU: u32 = 0;
/// An address that is watched for as long as the trial takes: below every program.
const ADDRESS: u64 = 1 << 16;
/// `PERF_COUNT_HW_CPU_CYCLES`.
const CYCLES: u64 = 0;

/// Returns what this host has now of each resource that can be tried. What it has none of is left out: profilers that need it say so
/// themselves.
pub fn of_this_host() -> BTreeMap<String, u32> {
    let breakpoint = Event::Breakpoint(Breakpoint {
        address: ADDRESS,
        access: Access::Write,
        length: 1,
    });
    let counter = Event::Counted {
        kind: TYPE_HARDWARE,
        config: CYCLES,
        period: 1 << 32,
    };
    [
        (Resource::Breakpoint, breakpoint),
        (Resource::PmuCounter, counter),
    ]
    .into_iter()
    .filter_map(|(resource, event)| {
        let there = count(|| event.hold(CPU))?;
        Some((resource.name().to_owned(), there))
    })
    .collect()
}

/// Takes one after the other until none is left, and gives all of them back; returns how many there were, or nothing where there is no
/// such thing.
fn count<T>(mut take: impl FnMut() -> Trial<T>) -> Option<u32> {
    let mut held = Vec::new();
    for _ in 0..TRIED_MAX {
        match take() {
            Trial::Got(one) => held.push(one),
            Trial::Taken => break,
            Trial::Missing => {
                // Some say so only when another kind is missing: what was got, was there.
                return (!held.is_empty()).then_some(held.len() as u32);
            }
        }
    }
    Some(held.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the count on answers as machines gave them: `G` a counter that ran, `T` one that found no room (`ENOSPC`, or a pinned
    /// event whose read is empty), `M` none of the kind (`ENOENT`).
    #[test]
    fn recorded_answers_are_counted() {
        for (machine, answers, expected) in [
            ("breakpoints, x86-64", "GGGGT", Some(4)),
            ("breakpoints, perf record -a -e mem:… beside", "GGGT", Some(3)),
            ("counters, Intel with threads, watchdog on", "GGGT", Some(3)),
            ("counters, Intel without threads", "GGGGGGGGT", Some(8)),
            ("counters, AMD since family 17h", "GGGGGGT", Some(6)),
            ("counters, all held by others", "T", Some(0)),
            ("counters, a virtual machine without any", "M", None),
        ] {
            let mut answers = answers.chars();
            let mut given_back = 0;
            let counted = count(|| match answers.next() {
                Some('G') => Trial::Got(()),
                Some('T') => Trial::Taken,
                _ => {
                    given_back += 1;
                    Trial::Missing
                }
            });
            assert_eq!(counted, expected, "{machine}");
            assert!(given_back <= 1);
        }
    }

    /// Checks that a machine that says yes to everything does not keep the agent trying.
    #[test]
    fn trying_is_bounded() {
        assert_eq!(count(|| Trial::Got(())), Some(TRIED_MAX));
    }
}
