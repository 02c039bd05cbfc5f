//! A hole in the ring buffer, so that a test can see that what is lost is made up for: `STROBE_LOSE=0.3` loses 30 % of the samples
//! one by one, `STROBE_LOSE=0.6,1,40` loses 60 % of those of CPU 1, all of them for 40 ms at a time. What falls into it is, to all
//! that comes after, what the kernel had no room for: a gap in a CPU's count. Without the variable it costs nothing.

use strobe_bpf::RawSample;
use strobe_sampling::hash::{Key, Probability, Purpose};

/// The variable.
const VARIABLE: &str = "STROBE_LOSE";

/// What is lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    share: Probability,
    key: Key,
    cpu: Option<u16>,
    burst_ns: Option<u64>,
}

impl Hole {
    /// Returns the one that the environment asks for.
    pub(super) fn from_environment() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let hole = Self::parse(&text);
        match hole {
            Some(_) => tracing::warn!("{VARIABLE}={text}: samples are lost on purpose"),
            None => {
                tracing::error!("{VARIABLE}={text} is not SHARE or SHARE,CPU,MILLISECONDS: nothing is lost")
            }
        }
        hole
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let share = Probability::new("share", parts.next()?.parse().ok()?).ok()?;
        let (cpu, burst_ns) = match (parts.next(), parts.next()) {
            (None, _) => (None, None),
            (Some(cpu), Some(ms)) => (
                Some(cpu.parse().ok()?),
                Some(
                    ms.parse::<u64>()
                        .ok()?
                        .checked_mul(1_000_000)
                        .filter(|&ns| ns > 0)?,
                ),
            ),
            (Some(_), None) => return None,
        };
        let key = Key::new(Purpose::Keep, VARIABLE, "", "");
        Some(Self {
            share,
            key,
            cpu,
            burst_ns,
        })
    }

    /// Whether a sample falls into it.
    pub(super) fn swallows(&self, sample: &RawSample<'_>) -> bool {
        self.takes(sample.cpu, sample.cpu_sequence, sample.time_ns)
    }

    fn takes(&self, cpu: u16, sequence: u64, time_ns: u64) -> bool {
        let number = match self.burst_ns {
            Some(burst_ns) => time_ns / burst_ns,
            None => sequence ^ u64::from(cpu) << 48,
        };
        self.cpu.is_none_or(|chosen| chosen == cpu) && self.key.draw(number).below(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the share that is asked for falls into it: one by one of every CPU, or in bursts of one.
    #[test]
    fn it_swallows_its_share() {
        let lost = |text: &str, cpu: u16| {
            let hole = Hole::parse(text).unwrap();
            let taken = (0..100_000_u64).filter(|&at| hole.takes(cpu, at, at * 1_000_000));
            taken.count() as f64 / 1e5
        };
        assert!((lost("0.3", 0) - 0.3).abs() < 0.01 && (lost("0.3", 1) - 0.3).abs() < 0.01);
        assert!((lost("0.6,1,40", 1) - 0.6).abs() < 0.05);
        assert_eq!(lost("0.6,1,40", 0), 0.0);
        let burst = Hole::parse("0.5,0,40").unwrap();
        let first = burst.takes(0, 0, 0);
        assert!((0..40).all(|ms| burst.takes(0, ms, ms * 1_000_000) == first));
        for bad in ["", "2", "-0.1", "0.5,1", "0.5,1,0", "0.5,x,3"] {
            assert!(Hole::parse(bad).is_none(), "{bad}");
        }
    }
}
