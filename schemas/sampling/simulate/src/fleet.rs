//! The fleet: every slot of every host, day after day, with the tuner in the loop.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use strobe_sampling::coverage::Coverage;
use strobe_sampling::hash::Probability;
use strobe_sampling::plan::{Bounds, Plan, choose};
use strobe_sampling::slot::{DAY_US, Grid, HOUR_US};
use strobe_sampling::spread::RunSums;
use strobe_sampling::tuner::{Desired, Gather, Tuner, WINDOW_US};

use crate::error::SimulateError;
use crate::load::{FIRST_DAY, STRETCH_MINUTES, World, stretch};
use crate::outcome::{Hour, Outcome, ServiceOutcome};
use crate::outside::{HourReport, Outside, RunReport, Told};
use crate::run::{Factor, Runs};
use crate::scenario::Scenario;

/// The profiler's name, as the hosts' draws have it.
const PROFILER: &str = "cpu";

/// Slots after the end of a window at which its reports have come in: the last run of it has ended, and its
/// report has passed the bus.
const REPORT_SLOTS: u64 = 2;

/// A slot's run starts at most so many minutes after the slot's place in an unshifted grid: phase and place
/// within it.
const SLOT_REACH: u64 = 2;

/// A service as the tuner sees it.
struct Tuned {
    desired: Desired,
    /// None where the plan is fixed.
    tuner: Option<Tuner>,
    plan: Plan,
    live: u64,
    /// Hosts of it that do not come or go around this slot.
    steady: u64,
    gather: Gather,
    /// The window before, whose reports are under way.
    reported: Option<Gather>,
    hours: Vec<Hour>,
    doubted: u64,
}

/// One go through a scenario.
struct Fleet<'a> {
    world: &'a World,
    bounds: Bounds,
    rng: Xoshiro256PlusPlus,
    runs: Runs,
    services: Vec<Tuned>,
    /// Hosts that are there: their numbers, grids, plans and probabilities, side by side, since every slot of
    /// every host is drawn.
    there: Vec<usize>,
    grids: Vec<Grid>,
    plans: Vec<Plan>,
    probabilities: Vec<Probability>,
    /// Which of them come or go around this slot, by their places.
    turning: Vec<usize>,
    /// What is busy in the mean hour of each service, to which refusals relate.
    cpu_seconds: Vec<f64>,
    weights: Vec<f64>,
    outside: Option<Beyond<'a>>,
}

/// Whoever takes the reports, and what hosts have to report.
struct Beyond<'a> {
    who: &'a mut dyn Outside,
    told: Told,
    /// The window before, whose reports are under way, and its end.
    reported: (u64, Vec<HourReport>),
}

/// Simulates a scenario in `world`, which is its own, with the draws of `seed`; `omit` leaves out a factor of
/// the weights. One seed, one result.
///
/// # Errors
/// [`SimulateError`] where sampling refuses a number.
pub fn simulate(
    scenario: &Scenario,
    world: &World,
    seed: u64,
    omit: Option<Factor>,
) -> Result<Outcome, SimulateError> {
    go(Fleet::new(scenario, world, seed, omit)?, scenario, seed)
}

/// Like [`simulate`], with plans that `outside` makes from what hosts report, instead of a tuner in memory.
///
/// # Errors
/// As [`simulate`], and [`SimulateError::Outside`] where `outside` cannot go on.
pub fn simulate_with(
    scenario: &Scenario,
    world: &World,
    seed: u64,
    outside: &mut dyn Outside,
) -> Result<Outcome, SimulateError> {
    let mut fleet = Fleet::new(scenario, world, seed, None)?;
    fleet.outside = Some(Beyond {
        who: outside,
        told: Told::default(),
        reported: (0, Vec::new()),
    });
    go(fleet, scenario, seed)
}

fn go(mut fleet: Fleet<'_>, scenario: &Scenario, seed: u64) -> Result<Outcome, SimulateError> {
    let world = fleet.world;
    let salt = format!("seed-{seed}");
    let all: Vec<Grid> = (0..world.hosts.len())
        .map(|host| Grid::new(&salt, PROFILER, &format!("host-{host}"), scenario.slot()))
        .collect();
    let slots_per_window = WINDOW_US / scenario.slot().us();
    let per_day = scenario.slot().per_day();
    for slot in 0..world.days * per_day {
        let mut stale = false;
        let (stretch, minute) = (slot / STRETCH_MINUTES, slot % STRETCH_MINUTES);
        if minute == 0 {
            stale = fleet.come_and_go(&all, stretch, stretch);
        } else if minute == STRETCH_MINUTES - SLOT_REACH {
            stale = fleet.come_and_go(&all, stretch, stretch + 1);
        }
        match slot % slots_per_window {
            0 => fleet.next_window(slot),
            REPORT_SLOTS => stale |= fleet.tune()?,
            _ => {}
        }
        if stale {
            fleet.replan()?;
        }
        fleet.slot(slot, FIRST_DAY * per_day + slot)?;
    }
    Ok(fleet.outcome())
}

impl<'a> Fleet<'a> {
    fn new(
        scenario: &Scenario,
        world: &'a World,
        seed: u64,
        omit: Option<Factor>,
    ) -> Result<Self, SimulateError> {
        let bounds = scenario.bounds();
        let mut services = Vec::new();
        for load in &world.services {
            let desired = Desired::new(load.service.desired, scenario.cpus, bounds)?;
            services.push(Tuned {
                desired,
                tuner: None,
                plan: load.service.fixed.map_or(bounds.floor(), |fixed| fixed.plan()),
                live: 0,
                steady: 0,
                gather: Gather::new(FIRST_DAY * DAY_US),
                reported: None,
                hours: (0..world.days * 24).map(|_| Hour::new(load.parts())).collect(),
                doubted: 0,
            });
        }
        Ok(Self {
            world,
            bounds,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            runs: Runs::new(scenario.faults, scenario.cpus, scenario.slot().us(), omit),
            services,
            there: Vec::new(),
            grids: Vec::new(),
            plans: Vec::new(),
            probabilities: Vec::new(),
            turning: Vec::new(),
            cpu_seconds: Vec::new(),
            weights: Vec::new(),
            outside: None,
        })
    }

    /// Takes up the hosts that are there in either of two stretches; returns whether they are others than
    /// before.
    fn come_and_go(&mut self, all: &[Grid], now: u64, next: u64) -> bool {
        let is_there = |host: usize, stretch| self.world.is_there(host, stretch);
        let there: Vec<usize> = (0..all.len())
            .filter(|&host| is_there(host, now) || (next != now && is_there(host, next)))
            .collect();
        let turned = !std::mem::take(&mut self.turning).is_empty();
        if next != now {
            let turns = |&at: &usize| is_there(there[at], now) != is_there(there[at], next);
            self.turning.extend((0..there.len()).filter(turns));
        }
        if there == self.there && self.turning.is_empty() && !turned && now > 0 {
            return false;
        }
        self.services
            .iter_mut()
            .for_each(|service| (service.live, service.steady) = (0, 0));
        for (at, &host) in there.iter().enumerate() {
            let steady = self.turning.binary_search(&at).is_err();
            for &service in &self.world.hosts[host].services {
                self.services[service].live += u64::from(is_there(host, now));
                self.services[service].steady += u64::from(steady);
            }
        }
        for (tuned, load) in self.services.iter_mut().zip(&self.world.services) {
            if tuned.tuner.is_none() && load.service.fixed.is_none() && tuned.live > 0 {
                let tuner = Tuner::new(&tuned.desired, tuned.live);
                tuned.plan = tuner.plan(&tuned.desired);
                tuned.tuner = Some(tuner);
            }
        }
        self.grids = there.iter().map(|&host| all[host]).collect();
        self.there = there;
        true
    }

    /// Begins new windows.
    fn next_window(&mut self, slot: u64) {
        let now_us = FIRST_DAY * DAY_US + slot * self.bounds.slot.us();
        for tuned in &mut self.services {
            let over = std::mem::replace(&mut tuned.gather, Gather::new(now_us));
            tuned.reported = (slot > 0).then_some(over);
        }
        if let Some(beyond) = &mut self.outside {
            beyond.reported = (now_us, beyond.told.reports(now_us));
        }
    }

    /// Takes in the windows that were reported; returns whether any plan changed.
    fn tune(&mut self) -> Result<bool, SimulateError> {
        let mut changed = false;
        if let Some(beyond) = &mut self.outside {
            let (end_us, reports) = std::mem::take(&mut beyond.reported);
            if reports.is_empty() {
                return Ok(false);
            }
            let plans = beyond
                .who
                .window(end_us, &reports)
                .map_err(SimulateError::Outside)?;
            for (tuned, plan) in self.services.iter_mut().zip(plans) {
                let Some(plan) = plan else { continue };
                changed |= plan != tuned.plan;
                tuned.plan = plan;
            }
            return Ok(changed);
        }
        for tuned in &mut self.services {
            let Some(reported) = tuned.reported.take() else {
                continue;
            };
            let (window, doubted) = reported.close(tuned.live);
            tuned.doubted += doubted.len() as u64;
            if let Some(tuner) = &mut tuned.tuner {
                let decision = tuner.take(&tuned.desired, &window);
                changed |= decision.plan != tuned.plan;
                tuned.plan = decision.plan;
            }
        }
        Ok(changed)
    }

    /// Lets each host that is there choose among the plans of its services.
    fn replan(&mut self) -> Result<(), SimulateError> {
        self.plans.clear();
        self.probabilities.clear();
        for &host in &self.there {
            let services = &self.world.hosts[host].services;
            let named = services.iter().map(|&service| {
                (
                    self.world.services[service].name.as_str(),
                    self.services[service].plan,
                )
            });
            let plan = choose(&self.bounds, named).plan;
            self.plans.push(plan);
            self.probabilities
                .push(Probability::new("run_probability", plan.run_probability)?);
        }
        Ok(())
    }

    fn slot(&mut self, slot: u64, number: u64) -> Result<(), SimulateError> {
        let hour = (slot * self.bounds.slot.us() / HOUR_US) as usize;
        for tuned in &mut self.services {
            tuned.hours[hour].coverage.planned += tuned.steady;
            tuned.gather.planned(tuned.steady);
        }
        for &at in &self.turning {
            let start_us = self.moment(at, number);
            if self.world.is_there(self.there[at], stretch(start_us)) {
                let hour = self.hour(start_us + self.plans[at].planned_us / 2);
                for &service in &self.world.hosts[self.there[at]].services {
                    let tuned = &mut self.services[service];
                    tuned.hours[hour].coverage.planned += 1;
                    tuned.gather.planned(1);
                }
            }
        }
        if self.outside.is_some() {
            self.tell_planned(number);
        }
        for at in 0..self.grids.len() {
            if self.grids[at].runs(number, self.probabilities[at]) {
                self.run(at, number)?;
            }
        }
        Ok(())
    }

    /// Counts a slot as planned for whoever is there at its moment.
    fn tell_planned(&mut self, number: u64) {
        for at in 0..self.grids.len() {
            let (host, start_us) = (self.there[at], self.moment(at, number));
            if !self.world.is_there(host, stretch(start_us)) {
                continue;
            }
            let hour = self.hour(start_us + self.plans[at].planned_us / 2);
            let slot_us = self.bounds.slot.us();
            let from_us = number * slot_us - FIRST_DAY * DAY_US;
            let world = self.world;
            for &service in &world.hosts[host].services {
                world.cpu_seconds(host, service, from_us, from_us + slot_us, &mut self.cpu_seconds);
                let cpu_us = (self.cpu_seconds.iter().sum::<f64>() * 1e6) as u64;
                let planned = Coverage {
                    planned: 1,
                    ..Coverage::default()
                };
                self.tell(host, service, hour, planned);
                // What the host's kernel would account for, in the hour in which it was used.
                let used = Coverage {
                    cpu_us,
                    ..Coverage::default()
                };
                self.tell(host, service, (from_us / HOUR_US) as usize, used);
            }
        }
    }

    /// Tells whoever takes reports.
    fn tell(&mut self, host: usize, service: usize, hour: usize, news: Coverage) {
        if let Some(beyond) = &mut self.outside {
            beyond.told.add(host, service, hour as u64 + FIRST_DAY * 24, news);
        }
    }

    /// Returns the moment of a slot of the host in place `at`, since the first day's start.
    fn moment(&self, at: usize, number: u64) -> u64 {
        self.grids[at].run_start_us(number, self.plans[at].planned_us) - FIRST_DAY * DAY_US
    }

    /// Returns the hour of the middle of a run; the last slots of the last day may run after it and are
    /// counted to it.
    fn hour(&self, at_us: u64) -> usize {
        ((at_us / HOUR_US) as usize).min(self.world.days as usize * 24 - 1)
    }

    /// Runs a slot that was drawn.
    fn run(&mut self, at: usize, number: u64) -> Result<(), SimulateError> {
        let (host, plan) = (self.there[at], self.plans[at]);
        let start_us = self.moment(at, number);
        if !self.world.is_there(host, stretch(start_us)) {
            return Ok(());
        }
        let faults = self.runs.faults;
        let inverse = 1.0 / plan.run_probability;
        let refused = faults.refused > 0.0 && self.is_refused(host, start_us);
        let done = match faults.cut_short > 0.0 && self.rng.random_bool(faults.cut_short) {
            true => 1.0 - self.rng.random::<f64>(),
            false => 1.0,
        };
        let done_us = ((plan.planned_us as f64 * done) as u64).max(1);
        let hour = self.hour(start_us + self.plans[at].planned_us / 2);
        let world = self.world;
        for &service in &world.hosts[host].services {
            if refused {
                let tuned = &mut self.services[service];
                let coverage = &mut tuned.hours[hour].coverage;
                coverage.refused += 1;
                coverage.drawn_inverse += inverse;
                tuned.gather.report(host as u64, inverse, RunSums::default(), 0);
                let refused = Coverage {
                    refused: 1,
                    drawn_inverse: inverse,
                    ..Coverage::default()
                };
                self.tell(host, service, hour, refused);
                continue;
            }
            world.cpu_seconds(host, service, start_us, start_us + done_us, &mut self.cpu_seconds);
            let taken = self.runs.sample(
                &mut self.rng,
                &plan,
                done_us,
                &self.cpu_seconds,
                &mut self.weights,
            )?;
            let u = done_us as f64 / plan.planned_us as f64 * inverse;
            // Busy CPUs per slot, before the factors that differ within a run.
            let busy = taken.samples as f64 / plan.work() * inverse;
            let mut sums = RunSums::default();
            sums.add(u, busy);
            let tuned = &mut self.services[service];
            tuned.gather.report(host as u64, inverse, sums, taken.samples);
            let entry = &mut tuned.hours[hour];
            let news = Coverage {
                complete: u64::from(done >= 1.0),
                cut_short: u64::from(done < 1.0),
                drawn_inverse: inverse,
                done_us,
                taken: taken.samples,
                done: sums,
                ..Coverage::default()
            };
            entry.coverage += news;
            entry.stored += taken.stored;
            entry.add(u, &self.weights);
            if let Some(beyond) = &mut self.outside {
                let run = RunReport {
                    host,
                    service,
                    start_us: FIRST_DAY * DAY_US + start_us,
                    done_us,
                    plan,
                    taken: taken.samples,
                    kept: &self.runs.kept(),
                };
                beyond.who.run(&run).map_err(SimulateError::Outside)?;
                self.tell(host, service, hour, news);
            }
        }
        Ok(())
    }

    /// Whether a drawn run is refused, by chance, or rather when its host is busy.
    fn is_refused(&mut self, host: usize, start_us: u64) -> bool {
        let faults = self.runs.faults;
        let (mut busy, mut usual) = (0.0, 0.0);
        for &service in &self.world.hosts[host].services {
            let end = start_us + 1_000_000;
            self.world
                .cpu_seconds(host, service, start_us, end, &mut self.cpu_seconds);
            busy += self.cpu_seconds.iter().sum::<f64>();
            usual += self.world.services[service].service.busy;
        }
        let follow = if usual > 0.0 {
            (busy / usual).powf(faults.refused_follow_load)
        } else {
            1.0
        };
        self.rng.random_bool((faults.refused * follow).clamp(0.0, 1.0))
    }

    fn outcome(self) -> Outcome {
        let services = self.services.into_iter().zip(&self.world.services);
        Outcome {
            services: services
                .map(|(tuned, load)| ServiceOutcome {
                    name: load.name.clone(),
                    desired: load.service.desired,
                    plan: tuned.plan,
                    doubted: tuned.doubted,
                    hours: tuned.hours,
                })
                .collect(),
        }
    }
}
