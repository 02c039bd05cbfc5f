//! A fleet in memory: thousands of hosts and days of virtual time, against a truth that is known.
//!
//! What runs here is what runs on hosts and processors: the draws, phases and choice of plans, the tuner,
//! weights, coverage and spread of `strobe-sampling`. Only the world is made up: services whose load swings
//! by hour and weekday, that share hosts, hosts that come and go, runs that are refused, cut short and
//! throttled, samples that are lost and thinned. The truth is computed from the world alone and never from a
//! sample. No I/O: a scenario comes as text, a report goes as text.
//!
//! 1. [`Scenario::from_toml`] → [`World::new`] → [`World::truth`];
//! 2. [`simulate`] with a seed → [`Outcome`], with [`Outcome::table`] and [`Outcome::plot`];
//! 3. or [`simulate_with`] somebody who takes what hosts report and makes the plans ([`Outside`]): the real tuner, behind a bus;
//! 4. [`Trials::run`] over many seeds → bias and how often intervals hold.
//!
//! One seed, one result: each go has a generator of its own (xoshiro256++), and a salt of its own for the
//! draws.

mod error;
mod fleet;
mod load;
mod outcome;
mod outside;
mod plot;
mod run;
mod scenario;
mod trials;

pub use error::SimulateError;
pub use fleet::{simulate, simulate_with};
pub use load::{FIRST_DAY, Host, STRETCH_MINUTES, ServiceLoad, World};
pub use outcome::{Hour, Outcome, ServiceOutcome};
pub use outside::{HourReport, Outside, OutsideError, RunReport};
pub use plot::PlotError;
pub use run::Factor;
pub use scenario::{Faults, Fixed, Function, Hosts, Scenario, Service};
pub use trials::{Cell, SHARE_MIN, Trials, each_seed};
