//! Who may run now: counted resources, what may run together, and a bounded queue. Pure: it is told the time, and starts nothing itself.
//!
//! A run that waits for a resource keeps it from those behind it, so that a large need is not starved by small ones; what needs none of
//! the resources that somebody waits for goes ahead. Within a class, the owner whose last start lies furthest back is next.
//! Continuous runs have at least one start in [`CONTINUOUS_EVERY`], and [`CONTINUOUS_PLACES`] places that nobody else gets.

use std::collections::{BTreeMap, BTreeSet};

/// Runs under way at one time, of all classes: each has a ring of its own, 1 MiB for each CPU.
pub const PLACES: usize = 8;
/// Places among them for continuous runs alone: a quarter.
pub const CONTINUOUS_PLACES: usize = PLACES / 4;
/// Of so many starts in a row one is of a continuous run, where any waits.
pub const CONTINUOUS_EVERY: u32 = 4;
/// Runs that may wait: at ten seconds each and two at a time some twenty minutes, longer than anybody waits.
pub const WAITING_MAX: usize = 256;

/// Why a run is wanted, the more urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Somebody waits for it.
    OnDemand,
    /// An alert asked for it.
    Triggered,
    /// Configured to run from time to time.
    Continuous,
}

/// What somebody wants to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Its name.
    pub id: u64,
    /// How urgent it is.
    pub class: Class,
    /// Among whom starts are shared out: the service that it looks at.
    pub owner: String,
    /// The profiler.
    pub profiler: String,
    /// How much it takes of each resource.
    pub needs: BTreeMap<String, u32>,
    /// Profilers that must not run at the same time.
    pub not_with: BTreeSet<String>,
    /// From then on it must not start any more, in milliseconds of whatever clock the caller has.
    pub latest_ms: u64,
}

/// What stands in a wish's way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// A run that holds what it needs, or must not run at the same time.
    Run(u64),
    /// A wish that comes first.
    Waiting(u64),
    /// A resource that somebody outside holds.
    Outside(String),
    /// All places are taken.
    Places,
}

/// Why a wish is not even queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotQueued {
    /// No room to wait.
    #[error("{WAITING_MAX} runs are waiting already: try later")]
    Full,
    /// More than there is.
    #[error("it needs {needed} of {resource}, and this host has {there}")]
    NeverFits {
        /// Which resource.
        resource: String,
        /// How much of it.
        needed: u32,
        /// How much there is.
        there: u32,
    },
}

/// The table of leases.
#[derive(Debug, Default)]
pub struct Leases {
    capacity: BTreeMap<String, u32>,
    running: BTreeMap<u64, Wish>,
    waiting: Vec<Wish>,
    /// Resources that somebody outside was found to hold, and until when nobody need try again.
    outside: BTreeMap<String, u64>,
    /// Number of the last start of each owner.
    last_start: BTreeMap<(Class, String), u64>,
    starts: u64,
    since_continuous: u32,
}

impl Leases {
    /// Returns a table with so much of each resource. One that is not named is not counted.
    pub fn new(capacity: BTreeMap<String, u32>) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// Queues a wish.
    ///
    /// # Errors
    /// [`NotQueued`] where there is no room, or where it could never start.
    pub fn ask(&mut self, wish: Wish) -> Result<(), NotQueued> {
        for (resource, &needed) in &wish.needs {
            let there = self.capacity.get(resource).copied().unwrap_or(u32::MAX);
            if needed > there {
                let resource = resource.clone();
                return Err(NotQueued::NeverFits {
                    resource,
                    needed,
                    there,
                });
            }
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(NotQueued::Full);
        }
        self.waiting.push(wish);
        Ok(())
    }

    /// Returns the wishes that must not start any more.
    pub fn late(&self, now_ms: u64) -> Vec<u64> {
        let late = self.waiting.iter().filter(|wish| wish.latest_ms <= now_ms);
        late.map(|wish| wish.id).collect()
    }

    /// Takes out the wishes that must not start any more.
    pub fn expire(&mut self, now_ms: u64) -> Vec<Wish> {
        self.waiting
            .extract_if(.., |wish| wish.latest_ms <= now_ms)
            .collect()
    }

    /// Takes a wish out of the queue.
    pub fn withdraw(&mut self, id: u64) -> Option<Wish> {
        let at = self.waiting.iter().position(|wish| wish.id == id)?;
        Some(self.waiting.remove(at))
    }

    /// Returns the wish that starts now; it holds what it needs until [`Leases::end`]. Nothing where none can.
    pub fn start_next(&mut self, now_ms: u64) -> Option<Wish> {
        self.outside.retain(|_, until_ms| *until_ms > now_ms);
        let order = self.order();
        let mut kept: BTreeSet<&str> = BTreeSet::new();
        let mut next = None;
        for &at in &order {
            let wish = &self.waiting[at];
            let is_kept = wish.needs.keys().any(|resource| kept.contains(resource.as_str()));
            if wish.latest_ms > now_ms && !is_kept && self.obstacles(wish).is_empty() {
                next = Some(at);
                break;
            }
            kept.extend(wish.needs.keys().map(String::as_str));
        }
        let wish = self.waiting.remove(next?);
        self.starts += 1;
        self.last_start
            .insert((wish.class, wish.owner.clone()), self.starts);
        self.since_continuous = match wish.class {
            Class::Continuous => 0,
            _ => self.since_continuous.saturating_add(1),
        };
        // Owners that have not started anything for long are as good as new.
        let (starts, memory) = (self.starts, 4 * WAITING_MAX as u64);
        self.last_start.retain(|_, last| starts - *last < memory);
        self.running.insert(wish.id, wish.clone());
        Some(wish)
    }

    /// Gives back what a run held.
    pub fn end(&mut self, id: u64) -> Option<Wish> {
        self.running.remove(&id)
    }

    /// Puts a run that was to start back into the queue, as somebody outside holds `resource`: nobody tries again before then.
    pub fn held_outside(&mut self, id: u64, resource: &str, until_ms: u64) {
        if let Some(wish) = self.running.remove(&id) {
            // It was the first: so it stays.
            self.waiting.insert(0, wish);
        }
        self.outside.insert(resource.to_owned(), until_ms);
    }

    /// Returns what a waiting wish waits for, and its place in the queue, from 1; nothing where it does not wait.
    pub fn waits_for(&self, id: u64) -> Option<(usize, Vec<Obstacle>)> {
        let order = self.order();
        let place = order.iter().position(|&at| self.waiting[at].id == id)?;
        let wish = &self.waiting[order[place]];
        let mut obstacles = self.obstacles(wish);
        for &at in &order[..place] {
            let before = &self.waiting[at];
            if before
                .needs
                .keys()
                .any(|resource| wish.needs.contains_key(resource))
            {
                obstacles.push(Obstacle::Waiting(before.id));
            }
        }
        Some((place + 1, obstacles))
    }

    /// Returns how many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns how many runs are under way.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the positions of those that wait, the next first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        let owed = self.since_continuous + 1 >= CONTINUOUS_EVERY;
        order.sort_by_key(|&at| {
            let wish = &self.waiting[at];
            let class = match wish.class {
                Class::Continuous if owed => 0,
                class => 1 + class as u8,
            };
            let last = self.last_start.get(&(wish.class, wish.owner.clone())).copied();
            (class, last.unwrap_or(0), at)
        });
        order
    }

    fn obstacles(&self, wish: &Wish) -> Vec<Obstacle> {
        let mut obstacles = BTreeSet::new();
        for (resource, &needed) in &wish.needs {
            if self.outside.contains_key(resource) {
                obstacles.insert(Obstacle::Outside(resource.clone()));
            }
            let Some(&there) = self.capacity.get(resource) else {
                continue;
            };
            let holders = || {
                self.running
                    .values()
                    .filter(|run| run.needs.contains_key(resource))
            };
            let held: u32 = holders().map(|run| run.needs[resource]).sum();
            if held.saturating_add(needed) > there {
                obstacles.extend(holders().map(|run| Obstacle::Run(run.id)));
            }
        }
        for run in self.running.values() {
            if wish.not_with.contains(&run.profiler) || run.not_with.contains(&wish.profiler) {
                obstacles.insert(Obstacle::Run(run.id));
            }
        }
        let others = self.running.values().filter(|run| run.class != Class::Continuous);
        let is_full = match wish.class {
            Class::Continuous => self.running.len() >= PLACES,
            _ => self.running.len() >= PLACES || others.count() >= PLACES - CONTINUOUS_PLACES,
        };
        if is_full {
            obstacles.insert(Obstacle::Places);
        }
        obstacles.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
