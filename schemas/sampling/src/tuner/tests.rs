//! The tuner against services whose yield is known: no chance, one run of the mean where one is expected.

use proptest::prelude::*;

use super::*;

const START: u64 = 20_000 * DAY_US;

/// A service on `hosts` hosts, each with `busy(hour)` busy CPUs, that follows the plan exactly; other
/// services may draw at `others` = q when that is more.
struct Service<'a> {
    desired: Desired,
    tuner: Tuner,
    busy: &'a dyn Fn(f64) -> f64,
    hosts: u64,
    others: f64,
    at_us: u64,
    plan: Plan,
}

impl<'a> Service<'a> {
    fn new(hosts: u64, samples_per_hour: f64, busy: &'a dyn Fn(f64) -> f64) -> Self {
        let desired = Desired::new(samples_per_hour, 16.0, Bounds::CPU).unwrap();
        let tuner = Tuner::new(&desired, hosts);
        let plan = tuner.plan(&desired);
        Self {
            desired,
            tuner,
            busy,
            hosts,
            others: 0.0,
            at_us: START,
            plan,
        }
    }

    fn window(&self) -> Window {
        let planned = self.hosts * (WINDOW_US / self.desired.bounds.slot.us());
        let q = self.plan.run_probability.max(self.others);
        let busy = (self.busy)(self.at_us as f64 / HOUR_US as f64);
        let runs = planned as f64 * q;
        let mut sums = RunSums::default();
        // Half of the runs see twice as much as the mean, half nothing: the spread of real ones.
        for n in 0..runs.round() as u64 {
            sums.add(1.0 / q, if n % 2 == 0 { 2.0 * busy / q } else { 0.0 });
        }
        let whole = if sums.runs > 0 {
            runs / sums.runs as f64
        } else {
            0.0
        };
        Window {
            start_us: self.at_us,
            live_hosts: self.hosts,
            planned,
            drawn_inverse: sums.u * whole,
            runs: RunSums {
                t: sums.u * busy * whole,
                ..sums
            },
            taken: (runs * busy * self.plan.work()).round() as u64,
        }
    }

    /// Lets `hours` pass and returns the samples taken per hour.
    fn pass(&mut self, hours: u64) -> f64 {
        let mut taken = 0;
        for _ in 0..hours * (HOUR_US / WINDOW_US) {
            let window = self.window();
            taken += window.taken;
            let decision = self.tuner.take(&self.desired, &window);
            assert!(self.desired.bounds.check(decision.plan, self.at_us).is_ok());
            self.plan = decision.plan;
            self.at_us += WINDOW_US;
        }
        taken as f64 / hours as f64
    }
}

fn near(rate: f64, desired: f64, tolerance: f64) {
    assert!(
        (rate / desired - 1.0).abs() < tolerance,
        "{rate} of {desired} desired"
    );
}

/// Checks that a service of unknown load is at its rate on the second day, though its load swings five times.
#[test]
fn the_second_day_has_its_rate() {
    let busy = |hour: f64| 3.0 * (1.0 + 2.0 / 3.0 * (hour / 24.0 * std::f64::consts::TAU).sin());
    let mut service = Service::new(1_000, 40_000.0, &busy);
    service.pass(24);
    near(service.pass(24), 40_000.0, 0.03);
}

/// Checks that when a service's hosts double, the next hour has its rate again.
#[test]
fn doubled_hosts_are_corrected_within_the_hour() {
    let mut service = Service::new(1_000, 40_000.0, &|_| 4.0);
    service.pass(72);
    service.hosts = 2_000;
    assert!(service.pass(1) < 1.3 * 40_000.0);
    near(service.pass(1), 40_000.0, 0.03);
}

/// Checks that when the load itself doubles on the same hosts, the next hour has its rate again, and the days
/// after.
#[test]
fn doubled_load_is_corrected_within_the_hour() {
    let busy = |hour: f64| if hour < 480_000.0 + 76.0 { 2.0 } else { 4.0 };
    let mut service = Service::new(1_000, 40_000.0, &busy);
    service.pass(76);
    service.pass(1);
    near(service.pass(1), 40_000.0, 0.05);
    service.pass(22);
    near(service.pass(24), 40_000.0, 0.03);
}

/// Checks that a stronger neighbour on its hosts does not change what a service asks for, so that nothing
/// swings when it leaves.
#[test]
fn a_neighbour_that_leaves_makes_no_swing() {
    let mut service = Service::new(1_000, 40_000.0, &|_| 4.0);
    service.pass(48);
    let alone = service.tuner.plan;
    service.others = alone.run_probability * 10.0;
    service.at_us += DAY_US - service.at_us % DAY_US;
    service.pass(48);
    near(service.tuner.plan.run_probability, alone.run_probability, 0.03);
    service.others = 0.0;
    service.pass(24);
    near(service.pass(24), 40_000.0, 0.03);
}

/// Checks that a service that slept for a week does not flood when it wakes.
#[test]
fn a_service_that_wakes_does_not_flood() {
    let busy = |hour: f64| {
        if (48.0..48.0 + 168.0).contains(&(hour - 480_000.0)) {
            0.0
        } else {
            4.0
        }
    };
    let mut service = Service::new(1_000, 40_000.0, &busy);
    service.pass(48);
    assert_eq!(service.pass(168), 0.0);
    let woken = service.pass(1);
    assert!(woken < 2.5 * 40_000.0, "{woken}");
    near(service.pass(24), 40_000.0, 0.2);
}

/// Checks that a service that hardly did anything for a week yields no more than a few hours' samples before
/// it is caught.
#[test]
fn a_service_that_dozed_does_not_flood_for_long() {
    let busy = |hour: f64| {
        if (48.0..48.0 + 168.0).contains(&(hour - 480_000.0)) {
            0.004
        } else {
            4.0
        }
    };
    let mut service = Service::new(1_000, 40_000.0, &busy);
    service.pass(48 + 168);
    let woken = service.pass(1);
    assert!(woken < 4.0 * 40_000.0, "{woken}");
    near(service.pass(24), 40_000.0, 0.2);
}

/// Checks that a service whose load falls for good has its rate again, in days.
#[test]
fn a_load_that_falls_for_good_is_followed() {
    let busy = |hour: f64| if hour < 480_000.0 + 48.0 { 4.0 } else { 0.4 };
    let mut service = Service::new(1_000, 40_000.0, &busy);
    service.pass(48 + 5 * 24);
    near(service.pass(24), 40_000.0, 0.1);
}

/// Checks that a service that sleeps every night keeps its daily rate.
#[test]
fn quiet_nights_are_part_of_the_day() {
    let busy = |hour: f64| if hour % 24.0 < 8.0 { 0.0 } else { 4.0 };
    let mut service = Service::new(1_000, 40_000.0, &busy);
    service.pass(48);
    near(service.pass(48), 40_000.0, 0.05);
}

/// Checks that a service that sleeps for months is looked for ever harder, and no harder than one busy host
/// would allow.
#[test]
fn a_service_that_sleeps_for_months_is_not_hunted_without_end() {
    let busy = |hour: f64| {
        if hour < 480_000.0 + 48.0 { 4.0 } else { 0.0 }
    };
    let mut service = Service::new(20, 40_000.0, &busy);
    service.pass(48);
    let before = service.plan.strength();
    service.pass(60 * 24);
    let yields = service.plan.strength() * 60.0 * 16.0;
    assert!(
        service.plan.strength() > before && yields < 40_000.0 * 1.01,
        "{yields}"
    );
}

/// Checks that a service that was never seen busy is looked for harder, step by step, and no harder than one
/// busy host would allow.
#[test]
fn what_is_never_sampled_is_looked_for_within_bounds() {
    let mut service = Service::new(50, 1_000.0, &|_| 0.0);
    let start = service.plan.run_probability;
    service.pass(2);
    assert!(service.plan.run_probability <= start * STEP_MAX);
    service.pass(48);
    let yields = service.plan.run_probability * 60.0 * 16.0 * service.plan.work();
    assert!(
        yields <= 1_000.0 * 1.001 && service.plan.run_probability > start,
        "{yields}"
    );
}

/// Checks that nothing planned changes nothing, and says so.
#[test]
fn nothing_planned_changes_nothing() {
    let mut service = Service::new(1_000, 40_000.0, &|_| 4.0);
    service.pass(30);
    let before = service.plan;
    let window = Window {
        start_us: service.at_us,
        ..Window::default()
    };
    let decision = service.tuner.take(&service.desired, &window);
    assert_eq!((decision.plan, decision.why), (before, Why::NothingPlanned));
}

/// Checks that a rate that cannot be had is said to be so, with what can be had.
#[test]
fn what_cannot_be_had_is_said() {
    let mut service = Service::new(1, 1_000_000.0, &|_| 1.0);
    service.pass(30);
    let window = service.window();
    let decision = service.tuner.take(&service.desired, &window);
    assert_eq!(decision.plan.run_probability, 1.0);
    match decision.reach {
        Reach::Unreachable { at_most } => near(at_most, 60.0 * 30.0 * 99.0, 0.01),
        other => panic!("{other:?}"),
    }
}

/// Checks that a day's samples used up early lower q at once, and that the next day has its rate again.
#[test]
fn samples_used_early_lower_q_at_once() {
    let mut service = Service::new(1_000, 40_000.0, &|_| 4.0);
    service.pass(48);
    let q = service.plan.run_probability;
    let mut flood = service.window();
    flood.taken = 24 * 40_000;
    let decision = service.tuner.take(&service.desired, &flood);
    assert_eq!(decision.why, Why::UsedEarly);
    near(decision.plan.run_probability, q / STEP_MAX, 0.03);
    service.plan = decision.plan;
    service.at_us += WINDOW_US;
    service.pass(24);
    near(service.plan.run_probability, q, 0.05);
}

/// Checks that a restart changes nothing: the value that travels with the plan goes on as the original does,
/// and windows that are replayed are not counted twice.
#[test]
fn a_restart_changes_nothing() {
    let busy = |hour: f64| 3.0 + (hour / 3.0).sin();
    let mut one = Service::new(300, 20_000.0, &busy);
    let mut other = Service::new(300, 20_000.0, &busy);
    for _ in 0..40 {
        one.pass(1);
        let replayed = other.window();
        other.pass(1);
        let text = serde_json::to_string(&other.tuner).unwrap();
        let copy: Tuner = serde_json::from_str(&text).unwrap();
        other.tuner = copy;
        other.tuner.take(&other.desired, &replayed);
    }
    let (a, b) = (one.tuner.plan(&one.desired), other.tuner.plan(&other.desired));
    // The text form may round the last digit.
    near(a.run_probability, b.run_probability, 1e-9);
    near(a.work(), b.work(), 1e-9);
}

/// Checks that wishes that cannot be meant are refused.
#[test]
fn absurd_wishes_are_refused() {
    for rate in [0.0, -40_000.0, f64::NAN, f64::INFINITY, 1e30] {
        assert!(Desired::new(rate, 16.0, Bounds::CPU).is_err(), "{rate}");
    }
    assert!(Desired::new(1.0, 0.0, Bounds::CPU).is_err());
    assert!(Desired::new(40_000.0, 16.0, Bounds::CPU).is_ok());
}

proptest! {
    /// Checks that whatever is observed, in whatever order, the plan stays within its bounds and nothing in
    /// it is not a number.
    #[test]
    fn no_observation_drives_a_plan_out_of_bounds(
        windows in prop::collection::vec(
            (0_u64..40, 0_u64..100_000, 0_u64..2_000, 0.0_f64..1e9, 1.0_f64..1e6, 0_u64..1 << 50),
            1..400,
        ),
        rate in 1.0_f64..1e7,
    ) {
        let desired = Desired::new(rate, 16.0, Bounds::CPU).unwrap();
        let mut tuner = Tuner::new(&desired, 100);
        let mut at = 0;
        for (step, live_hosts, runs, busy, inverse, taken) in windows {
            at += step;
            let mut sums = RunSums::default();
            (0..runs % 150).for_each(|n| sums.add(inverse, if n % 3 == 0 { busy * inverse } else { 0.0 }));
            let window = Window {
                start_us: START + at * WINDOW_US,
                live_hosts,
                planned: runs * 7,
                drawn_inverse: inverse * runs as f64,
                runs: sums,
                taken,
            };
            let decision = tuner.take(&desired, &window);
            prop_assert!(desired.bounds.check(decision.plan, START).is_ok(), "{:?}", decision);
            prop_assert!(decision.expected_per_hour.is_finite(), "{:?}", decision);
        }
    }
}
