//! Weights: what one sample stands for. Pure arithmetic, used by whoever weighs and whoever checks.
//!
//! Within its run a sample stands for `w_run = value × (taken / kept) × (enabled / running) ÷ p_kernel ÷ p_limit`
//! events ([`run_weight`]); value is its period, duration or bytes. In the fleet it stands for
//! `W0 = w_run × L / (q × D_planned) ÷ p_thin` ([`fleet_weight`]), `L` the slot's length, `q` the probability with which
//! the slot was drawn, `D_planned` the run's planned duration. Only drawn runs count in the fleet: hosts and moments
//! that somebody chose say nothing about the others.
//!
//! Invariants, each held by a property test: what was lost is carried by what was kept (the factors of
//! [`loss_factors`] times the kept samples add up to the taken ones); halving a probability doubles a weight; a
//! weight is finite and positive, or it is refused.

mod loss;
mod weight;

pub use loss::{Counts, POOL_TAKEN_MIN, loss_factors};
pub use weight::{RunRates, Thinning, WeightError, fleet_weight, run_weight};
