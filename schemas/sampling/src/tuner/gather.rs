//! From what hosts report of a stretch of time to one window, with no host believed beyond its share.

use crate::cap::cap_hosts;
use crate::spread::RunSums;
use crate::tuner::Window;

/// What hosts reported of one service in one window.
#[derive(Debug, Clone, Default)]
pub struct Gather {
    window: Window,
    hosts: Vec<Report>,
}

/// What one host reported.
#[derive(Debug, Clone, Copy)]
struct Report {
    host: u64,
    runs: RunSums,
    taken: u64,
}

/// A host that was believed only in part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Doubted {
    /// The host, by the number that its reports were given.
    pub host: u64,
    /// Busy CPUs that it claimed.
    pub claimed: f64,
    /// Busy CPUs that are believed: [`crate::cap::HOST_SHARE_MAX`] times the median.
    pub believed: f64,
}

impl Gather {
    /// Returns an empty window that starts at `start_us`.
    pub fn new(start_us: u64) -> Self {
        Self {
            window: Window {
                start_us,
                ..Window::default()
            },
            hosts: Vec::new(),
        }
    }

    /// Returns its start.
    pub fn start_us(&self) -> u64 {
        self.window.start_us
    }

    /// Adds planned slots.
    pub fn planned(&mut self, slots: u64) {
        self.window.planned += slots;
    }

    /// Adds what `host` (any number that is its own) drew and ran; `runs` with t in busy CPUs per slot.
    pub fn report(&mut self, host: u64, drawn_inverse: f64, runs: RunSums, taken: u64) {
        self.window.drawn_inverse += drawn_inverse;
        if runs.runs > 0 {
            self.hosts.push(Report { host, runs, taken });
        }
    }

    /// Returns the window, for a service on `live_hosts` hosts, and the hosts that were not believed in full.
    pub fn close(mut self, live_hosts: u64) -> (Window, Vec<Doubted>) {
        self.hosts.sort_by_key(|report| report.host);
        self.hosts.dedup_by(|next, kept| {
            let same = next.host == kept.host;
            if same {
                kept.runs += next.runs;
                kept.taken = kept.taken.saturating_add(next.taken);
            }
            same
        });
        let mut claims: Vec<f64> = self
            .hosts
            .iter()
            .map(|report| report.runs.ratio().unwrap_or(0.0))
            .collect();
        let mut doubted = Vec::new();
        for capped in cap_hosts(&mut claims) {
            let report = &mut self.hosts[capped.host];
            let share = capped.believed / capped.claimed;
            report.runs.t *= share;
            report.runs.tu *= share;
            report.runs.tt *= share * share;
            doubted.push(Doubted {
                host: report.host,
                claimed: capped.claimed,
                believed: capped.believed,
            });
        }
        // What was taken counts against the day's samples: nobody uses them up for all others either.
        let mut taken: Vec<f64> = self.hosts.iter().map(|report| report.taken as f64).collect();
        cap_hosts(&mut taken);
        self.window.taken = taken.iter().sum::<f64>() as u64;
        self.window.live_hosts = live_hosts;
        self.hosts
            .iter()
            .for_each(|report| self.window.runs += report.runs);
        (self.window, doubted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(u: f64, busy: f64) -> RunSums {
        let mut sums = RunSums::default();
        sums.add(u, u * busy);
        sums
    }

    /// Checks that a host that claims a million CPUs raises the mean of a hundred hosts by a tenth at most,
    /// and is named.
    #[test]
    fn a_boaster_is_believed_in_part_and_named() {
        let mut gather = Gather::new(0);
        (0..99).for_each(|host| gather.report(host, 50.0, run(50.0, 2.0), 10));
        gather.report(99, 50.0, run(50.0, 1e6), 1_000_000);
        let (window, doubted) = gather.close(100);
        let expected = Doubted {
            host: 99,
            claimed: 1e6,
            believed: 20.0,
        };
        assert_eq!(doubted, vec![expected]);
        assert!((window.runs.t / window.runs.u - 2.18).abs() < 1e-9);
        assert_eq!((window.runs.runs, window.live_hosts), (100, 100));
        assert_eq!(window.taken, 99 * 10 + 100);
    }

    /// Checks that several reports of one host are one host's, in whatever order they come.
    #[test]
    fn reports_of_one_host_are_joined() {
        let mut gather = Gather::new(0);
        for (host, busy) in [(1, 1.0), (2, 1.0), (1, 19.0), (3, 1.0)] {
            gather.report(host, 1.0, run(1.0, busy), 1);
        }
        gather.planned(7);
        let (window, doubted) = gather.close(3);
        // Host 1 claims 10 on average, ten times the median: still believed.
        assert_eq!(doubted, vec![]);
        assert_eq!((window.planned, window.taken, window.drawn_inverse), (7, 4, 4.0));
    }
}
