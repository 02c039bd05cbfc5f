//! Leaving out any one factor of the weights must show.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use strobe_simulate::{Factor, Scenario, Trials};

const EVERYTHING: &str = include_str!("../scenarios/everything.toml");
const SEEDS: u64 = 24;

fn trials(omit: Option<Factor>) -> Trials {
    let scenario = Scenario::from_toml(&EVERYTHING.replace("days = 30", "days = 4")).unwrap();
    Trials::run(&scenario, 1, SEEDS, 2, omit).unwrap()
}

/// Returns the largest error of a service's total, and how many standard errors it is.
fn worst(trials: &Trials) -> (f64, f64) {
    let cells = ["web", "batch"].map(|service| trials.whole(service).unwrap());
    let worst = cells
        .iter()
        .max_by(|a, b| a.mean.abs().total_cmp(&b.mean.abs()))
        .unwrap();
    (worst.mean.abs(), worst.mean.abs() / worst.error)
}

/// Checks that with every factor in its place, shared hosts, refusals, cut-short and throttled runs, losses,
/// multiplexing and three kinds of thinning leave the totals where the truth is, and the intervals as wide as
/// they say.
#[test]
fn with_every_factor_the_totals_are_right() {
    let trials = trials(None);
    let (mean, errors) = worst(&trials);
    assert!(mean < 0.005 && errors < 4.0, "{mean} is {errors} standard errors");
    assert!((0.93..0.97).contains(&trials.held.0), "{:?}", trials.held);
    // Among some hundred cells a deviate of 4 is seen once in a hundred goes; of 5, practically never.
    let cell = trials.most_significant().unwrap();
    assert!(cell.mean.abs() / cell.error < 5.0, "{cell:?}");
}

/// Checks that without any one factor the same check fails: none is there for nothing.
#[test]
fn without_any_one_factor_the_totals_are_wrong() {
    for factor in Factor::ALL {
        let (mean, errors) = worst(&trials(Some(factor)));
        assert!(
            mean > 0.005 && errors > 4.0,
            "without {factor:?}: {mean}, {errors} standard errors"
        );
    }
}
