//! In place of `container.rs` where this crate is built without the feature `containers`: a type of which no value exists.
//!
//! `testcontainers` brings some hundred crates; whoever does not test in containers does not build them.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::backend::Plan;

/// A container, of which there is none.
pub enum Container {}

#[allow(missing_docs, clippy::missing_errors_doc)]
impl Container {
    pub fn start(plan: &Plan<'_>) -> Result<Self> {
        bail!("{}: built without containers: make test-containers", plan.image)
    }
    pub fn pid(&self) -> Result<u32> {
        match *self {}
    }
    pub fn signal(&self, _: &str) -> Result<()> {
        match *self {}
    }
    pub fn freeze(&self, _: bool) -> Result<()> {
        match *self {}
    }
    pub fn stop(&self, _: Duration) -> Result<()> {
        match *self {}
    }
    pub fn start_again(&mut self) -> Result<()> {
        match *self {}
    }
    pub fn runs(&self) -> bool {
        match *self {}
    }
    pub fn ended(&self, _: Duration) -> Result<i64> {
        match *self {}
    }
}

/// Returns a command of the shell that does nothing: there is nothing to remove.
pub fn removal() -> String {
    ":".to_owned()
}
