//! The parent's end of a symbol worker: start it, ask it one thing at a time, give it up when it is late.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;

use crate::error::SymbolsError;
use crate::wire::{self, Hello, MESSAGE_BYTES_MAX};

/// Time for a worker to say that its limits are in force. Starting takes some milliseconds; the rest is for a host
/// under load.
const START_MAX: Duration = Duration::from_secs(10);

/// Bytes read at once: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// How a request ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The worker died.
    Died,
    /// The worker took longer than it may.
    Late,
    /// The worker said something that is no message.
    Nonsense,
}

/// A running worker. Dropping it kills and reaps the process.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    requests: ChildStdin,
    answers: ChildStdout,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were handed out already.
    taken: usize,
}

impl Worker {
    /// Starts a worker and waits until its limits are in force.
    ///
    /// # Errors
    /// [`SymbolsError::WorkerStart`] or [`SymbolsError::WorkerUnusable`].
    pub(crate) fn start(command: &[OsString], hello: &Hello) -> Result<Self, SymbolsError> {
        let line = || {
            command
                .iter()
                .map(|word| word.to_string_lossy())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let failed = |source| SymbolsError::WorkerStart {
            command: line(),
            source,
        };
        let unusable = |detail: String| SymbolsError::WorkerUnusable {
            command: line(),
            detail,
        };
        let Some((program, arguments)) = command.split_first() else {
            return Err(unusable("the command is empty".to_owned()));
        };
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(requests), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(unusable("it has no stdin or stdout".to_owned()));
        };
        let mut worker = Self {
            process,
            requests,
            answers,
            buffer: Vec::new(),
            taken: 0,
        };
        // Neither end may block: the deadline holds for writing too, since a worker may stop reading.
        ioctl_fionbio(&worker.requests, true).map_err(|error| failed(error.into()))?;
        ioctl_fionbio(&worker.answers, true).map_err(|error| failed(error.into()))?;
        match worker.ask(&hello.encode(), START_MAX) {
            Ok(answer) if answer == wire::READY => Ok(worker),
            Ok(_) => Err(unusable("it is no symbol worker of this version".to_owned())),
            Err(Ended::Late) => Err(unusable(format!(
                "nothing was heard for {} s",
                START_MAX.as_secs()
            ))),
            Err(Ended::Nonsense) => Err(unusable("what it says is no message".to_owned())),
            Err(Ended::Died) => Err(unusable(match worker.process.wait() {
                Ok(status) => format!("it ended: {status}"),
                Err(error) => format!("it ended: {error}"),
            })),
        }
    }

    /// Returns whether the process still runs. One that was ended from outside while idle has not failed a request.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends one message and returns the answer. After an `Err` the worker is good for nothing but dropping.
    pub(crate) fn ask(&mut self, message: &[u8], most: Duration) -> Result<&[u8], Ended> {
        let deadline = Instant::now() + most;
        self.send(message, deadline)?;
        let end = self.receive_within(deadline)?;
        // One answer to one request, and not a byte more.
        if end != self.buffer.len() {
            return Err(Ended::Nonsense);
        }
        Ok(&self.buffer[4..end])
    }

    /// Sends one message.
    pub(crate) fn send(&mut self, message: &[u8], deadline: Instant) -> Result<(), Ended> {
        let message = wire::framed(message);
        let mut rest = message.as_slice();
        while !rest.is_empty() {
            match self.requests.write(rest) {
                Ok(0) => return Err(Ended::Died),
                Ok(count) => rest = &rest[count..],
                Err(error) => wait_after(&error, &self.requests, PollFlags::OUT, deadline)?,
            }
        }
        Ok(())
    }

    /// Returns the next message.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<&[u8], Ended> {
        let end = self.receive_within(deadline)?;
        Ok(&self.buffer[4..end])
    }

    /// Reads the next message, and returns where it ends in the buffer, whose first four bytes are its length.
    fn receive_within(&mut self, deadline: Instant) -> Result<usize, Ended> {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        loop {
            if let Some((length, body)) = self.buffer.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > MESSAGE_BYTES_MAX {
                    return Err(Ended::Nonsense);
                }
                if body.len() >= length {
                    self.taken = 4 + length;
                    return Ok(self.taken);
                }
            }
            // Grows with what arrives, never with what is promised.
            let used = self.buffer.len();
            self.buffer.resize(used + READ_BYTES, 0);
            let read = self.answers.read(&mut self.buffer[used..]);
            self.buffer.truncate(used + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(Ended::Died),
                Ok(_) => {}
                Err(error) => wait_after(&error, &self.answers, PollFlags::IN, deadline)?,
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Errors mean that it has ended already, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until `pipe` is ready again, after a read or write that said why it did nothing.
fn wait_after(error: &io::Error, pipe: &impl AsFd, ready: PollFlags, deadline: Instant) -> Result<(), Ended> {
    match error.kind() {
        io::ErrorKind::Interrupted => return Ok(()),
        io::ErrorKind::WouldBlock => {}
        _ => return Err(Ended::Died),
    }
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Ended::Late);
    }
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    // Ready, hung up, interrupted or too late: the next read or write tells which.
    let _ = poll(&mut [PollFd::new(pipe, ready)], Some(&timeout));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a worker which is stuck in a file, here one that nobody ever writes to, ends with its parent.
    #[test]
    fn a_stuck_worker_ends_with_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let stuck = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&stuck).status().unwrap().success());
        let own = std::env::current_exe().unwrap();
        let example = own
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .join("examples/symbol-worker");
        let mut process = Command::new(example)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut requests = process.stdin.take().unwrap();
        let hello = Hello {
            memory_bytes: 1 << 30,
            address_space_bytes: 2 << 30,
            binary_bytes: 1 << 30,
            parsed: 1,
            debug_folders: Vec::new(),
        };
        requests.write_all(&wire::framed(&hello.encode())).unwrap();
        let ready = wire::read_message(process.stdout.as_mut().unwrap()).unwrap();
        assert_eq!(ready.as_deref(), Some(wire::READY));
        let mut request = Vec::new();
        wire::encode_request(&mut request, &stuck, &[1]);
        requests.write_all(&wire::framed(&request)).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(process.try_wait().unwrap().is_none(), "it is stuck");
        // What the kernel does to a parent's pipes when the parent dies.
        drop(requests);
        let deadline = Instant::now() + Duration::from_secs(10);
        while process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it outlives its parent");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
