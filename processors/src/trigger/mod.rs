//! The trigger: who asks in, hosts picked, states out. `strobe run trigger`.
//!
//! It is the only one that says what became of a request ([`RequestState`]); agents report to it. All of its state is on the
//! bus: on every change of assignment it reads questions, its own states and reports again, as far back as anything of them can
//! still matter ([`REMEMBER_US`]), and goes on where they end. What a host said twice is known then, and so nothing is done
//! twice. Triggers share the partitions of both topics, a request's question and reports always with the same one.

mod audit;
mod book;
mod clock;
mod inventory;
mod rules;
mod service;
#[cfg(test)]
mod tests;

pub use book::{ANSWER_US, Book, REMEMBER_US, RUN_SLACK_US};
pub use inventory::Inventory;
pub use rules::{Damped, Fired, RULES_MAX, RuleConfig, Rules};
pub use service::{run, run_with};
