//! Sampling: which slots run, what a sample stands for, how well a total is known, and which plan comes next.
//!
//! Pure arithmetic, used alike by the agent (when to run), the processors (weights, the tuner), whoever shows
//! totals (their ±) and the simulator, so that what is simulated is what runs. The path of one sample through
//! it:
//!
//! 1. A host takes the strongest plan of its services ([`plan::choose`]); a slot opens
//!    ([`schedule::Schedule`]), and a hash says whether it runs and where in the slot ([`slot::Grid`],
//!    [`hash::Key`]).
//! 2. Within its run a sample stands for `w_run = value × (taken / kept) × (enabled / running) ÷ p_kernel ÷
//!    p_limit` events ([`run_weight`]); value is its period, duration or bytes. What the kernel left out
//!    unseen, [`ticks`] finds.
//! 3. In the fleet it stands for `W0 = w_run × L / (q × D_planned) ÷ p_thin` ([`fleet_weight`]), `L` the
//!    slot's length, `q` the probability with which the slot was drawn, `D_planned` the run's planned
//!    duration. Only drawn runs count in the fleet: hosts and moments that somebody chose say nothing about
//!    the others.
//! 4. What was refused or cut short is known only afterwards: [`coverage`] corrects the sums, [`spread`]
//!    gives them their ±.
//! 5. From coverage the [`tuner`] makes the next plan, with at most ten times the median believed of one host
//!    ([`cap`]), and [`limit`] the share of samples that stays.
//!
//! Invariants, each held by a property test: a slot opens once, however the clock wanders; what was lost is
//! carried by what was kept; halving a probability doubles a weight; a weight is finite and positive, or it
//! is refused; order and batching of sums do not matter; plans lie within their bounds and limits are not
//! passed, whatever was observed.

pub mod cap;
pub mod config;
pub mod coverage;
mod error;
pub mod hash;
pub mod limit;
mod loss;
pub mod neighbours;
pub mod plan;
pub mod schedule;
pub mod slot;
pub mod spread;
pub mod ticks;
pub mod tuner;
mod weight;

pub use error::SamplingError;
pub use loss::{Counts, POOL_TAKEN_MIN, loss_factors};
pub use weight::{RunRates, Thinning, WeightError, fleet_weight, run_weight};
