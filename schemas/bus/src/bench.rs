//! The workbench between the loop that polls and the thread that runs the stage: jobs in, results out, in order.
//!
//! The loop never waits here: a stage may take seconds, and polling must go on. The jobs are bounded by the loop's
//! window, the results by bytes: with too many of them the worker waits before it takes the next job.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::dead_letter::{Complaint, DeadReason};
use crate::drive::StageResult;
use crate::message::{Message, Outgoing};
use crate::shutdown::lock;

pub(crate) struct Job {
    pub ticket: u64,
    pub message: Arc<Message>,
}

pub(crate) struct Done {
    pub ticket: u64,
    pub result: StageResult,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    results: VecDeque<(Done, usize)>,
    result_bytes: usize,
    closed: bool,
}

pub(crate) struct Bench {
    state: Mutex<State>,
    changed: Condvar,
    result_bytes_max: usize,
}

impl Bench {
    pub fn new(result_bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            result_bytes_max,
        }
    }

    pub fn submit(&self, job: Job) {
        lock(&self.state).jobs.push_back(job);
        self.changed.notify_all();
    }

    pub fn take_result(&self) -> Option<Done> {
        let mut state = lock(&self.state);
        let (done, bytes) = state.results.pop_front()?;
        state.result_bytes -= bytes;
        self.changed.notify_all();
        Some(done)
    }

    /// Takes back every job that the worker has not begun.
    pub fn withdraw(&self) -> Vec<u64> {
        lock(&self.state).jobs.drain(..).map(|job| job.ticket).collect()
    }

    /// Lets the worker end after the job in its hands.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Runs the stage over the jobs until the bench is closed.
    pub fn work(&self, name: &'static str, mut stage: impl FnMut(&Message) -> StageResult) {
        while let Some(job) = self.next_job() {
            // A message that makes the stage panic would do so again after every restart and block its partition for
            // ever: it is put aside like any other that cannot be processed.
            let result = catch_unwind(AssertUnwindSafe(|| stage(&job.message))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                StageResult::DeadLetter(Complaint {
                    reason: DeadReason::Panicked,
                    stage: name,
                    class: module_path!(),
                    exception: "panic",
                    message: text.unwrap_or_default(),
                })
            });
            let bytes = match &result {
                StageResult::Output(outputs) => outputs.iter().map(Outgoing::cost).sum(),
                StageResult::DeadLetter(_) | StageResult::Skip | StageResult::Leave => 0,
            };
            let mut state = lock(&self.state);
            state.result_bytes += bytes;
            state.results.push_back((
                Done {
                    ticket: job.ticket,
                    result,
                },
                bytes,
            ));
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state: MutexGuard<'_, State> = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if state.result_bytes < self.result_bytes_max
                && let Some(job) = state.jobs.pop_front()
            {
                return Some(job);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// Closes a bench however its owner ends, so that the worker's scope can end too.
pub(crate) struct CloseOnDrop<'a>(pub &'a Bench);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
