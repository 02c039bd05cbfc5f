//! What a simulated fleet does as a whole.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use strobe_simulate::{Scenario, World, each_seed, simulate};

fn scenario(text: &str) -> Scenario {
    Scenario::from_toml(text).unwrap()
}

const SHARED: &str = r#"
    name = "Two services on the same hosts, until one leaves"
    days = 6
    [[service]]
    name = "large"
    desired = 60000.0
    busy = 2.0
    noise = 0.3
    [[service]]
    name = "small"
    desired = 6000.0
    busy = 3.0
    swing = 3.0
    noise = 0.3
    [[hosts]]
    count = 300
    services = ["large", "small"]
    until_day = 3.0
    [[hosts]]
    count = 300
    services = ["small"]
    from_day = 3.0
"#;

/// Checks that one seed gives one result, to the last bit, and another seed another.
#[test]
fn one_seed_gives_one_result() {
    let scenario = scenario(SHARED);
    let world = World::new(&scenario).unwrap();
    let table = |seed| {
        simulate(&scenario, &world, seed, None)
            .unwrap()
            .table(&world.truth())
    };
    assert_eq!(table(7), table(7));
    assert_ne!(table(7), table(8));
}

/// Checks that the result does not depend on how many threads share the seeds.
#[test]
fn threads_do_not_matter() {
    let go = |threads| each_seed(3, 10, threads, |seed| Ok(seed * seed)).unwrap();
    assert_eq!(go(1), go(4));
    assert_eq!(go(3), (3..13).map(|seed| seed * seed).collect::<Vec<_>>());
}

/// Checks that of two services on the same hosts the one that wants less has at least what it wants, that its
/// own plan is not driven down by what the other brings it, and that it has its rate when the other leaves.
#[test]
fn the_smaller_of_two_neither_starves_nor_swings() {
    let scenario = scenario(SHARED);
    let world = World::new(&scenario).unwrap();
    let outcomes = each_seed(1, 4, 2, |seed| simulate(&scenario, &world, seed, None)).unwrap();
    for outcome in outcomes {
        let small = &outcome.services[1];
        assert!(small.rate(1) > small.desired, "{}", small.rate(1));
        for day in 3..6 {
            let error = small.rate(day) / small.desired - 1.0;
            // 500 runs an hour at the most: chance alone makes 1.3 % a day.
            assert!(error.abs() < 0.07, "day {}: {error}", day + 1);
        }
    }
}

/// Checks that a limit at half of what is desired does not drive q up: the tuner counts what was taken, not
/// what stays.
#[test]
fn a_limit_does_not_drive_the_rate_up() {
    let free = scenario(SHARED);
    let mut limited = scenario(SHARED);
    limited.faults.limit = 0.5;
    let world = World::new(&free).unwrap();
    let [a, b] = [&free, &limited].map(|scenario| simulate(scenario, &world, 1, None).unwrap());
    let (a, b) = (&a.services[1], &b.services[1]);
    let taken =
        |hours: &[strobe_simulate::Hour]| hours.iter().map(|hour| hour.coverage.taken as f64).sum::<f64>();
    let stored: f64 = b.hours.iter().map(|hour| hour.stored as f64).sum();
    assert!((taken(&b.hours) / taken(&a.hours) - 1.0).abs() < 0.05);
    assert!((stored / taken(&b.hours) - 0.5).abs() < 0.01);
    assert!((b.plan.strength() / a.plan.strength() - 1.0).abs() < 0.1);
}

/// Checks that ten services whose load is a twentieth of another's have their rate as well: small ones do not
/// drown.
#[test]
fn small_services_have_their_rate_too() {
    let text = r#"
        name = "Small ones"
        days = 4
        [[service]]
        name = "small-{}"
        copies = 10
        desired = 2000.0
        busy = 0.2
        noise = 0.5
        [[hosts]]
        count = 200
        pick = [1, 1]
    "#;
    let scenario = scenario(text);
    let world = World::new(&scenario).unwrap();
    let outcome = simulate(&scenario, &world, 5, None).unwrap();
    for service in &outcome.services {
        let error = service.rate(3) / service.desired - 1.0;
        assert!(error.abs() < 0.12, "{}: {error}", service.name);
    }
}

/// Checks that the picture is an SVG that names its service.
#[test]
fn the_plot_is_a_picture() {
    let scenario = scenario(SHARED);
    let world = World::new(&scenario).unwrap();
    let outcome = simulate(&scenario, &world, 1, None).unwrap();
    let svg = outcome.plot(&world.truth(), 2).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("small: samples per hour") && svg.matches("<polyline").count() >= 12);
}
