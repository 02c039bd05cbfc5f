//! Labels of hosts, as the inventory has them: what stack schemas may ask beside a sample's service, profiler and host.
//!
//! A thread reads `strobe.hosts`, so that no batch carries what hardly ever changes. A batch of a host that the inventory does
//! not know yet has no labels, and neither have samples of before a label was given: contexts are fixed when they are made.

use std::collections::HashMap;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use strobe_bus::{BusSettings, Compacted, Shutdown, Topic};
use strobe_event::{HostRecord, codec};

use crate::error::ProcessorError;

/// How long the first batch waits for the inventory of before the processor started.
const FIRST: Duration = Duration::from_secs(10);
/// Pause before the topic is looked for again.
const AGAIN: Duration = Duration::from_secs(2);
/// Hosts whose labels are kept: ten times the largest fleets. What comes beyond has none.
const HOSTS_MAX: usize = 100_000;
/// Bytes of labels that are kept of a host: 64 of 256 bytes, which is what agents accept. What is over that has none.
const LABELS_BYTES_MAX: usize = 16 << 10;

/// Names and values of a host's labels.
pub type Labels = Arc<[(String, String)]>;

/// Labels by host.
#[derive(Debug, Default)]
pub struct Inventory {
    hosts: HashMap<Box<str>, Labels>,
}

impl Inventory {
    /// Takes a change of the topic over. What cannot be read leaves what was known of the host.
    fn take(&mut self, key: &[u8], value: Option<&[u8]>) {
        let Ok(host) = std::str::from_utf8(key) else {
            return;
        };
        match value.map(codec::decode_framed::<HostRecord>) {
            None => drop(self.hosts.remove(host)),
            Some(Ok(record)) => self.put(host, &record.labels),
            Some(Err(error)) => {
                tracing::warn!(host, %error, "the inventory's record of a host cannot be read; its labels stay");
            }
        }
    }

    fn put(&mut self, host: &str, labels: &[String]) {
        let bytes: usize = labels.iter().map(String::len).sum();
        let full = self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(host);
        if bytes == 0 || bytes > LABELS_BYTES_MAX || full {
            self.hosts.remove(host);
            return;
        }
        let pairs = labels.iter().filter_map(|label| label.split_once('='));
        let known = |(name, value): &(&str, &str)| !name.is_empty() && !value.is_empty();
        let labels = pairs
            .filter(known)
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.hosts.insert(host.into(), labels.collect());
    }

    /// Returns the labels of a host; none where it is not known.
    fn of(&self, host: &str) -> Labels {
        self.hosts.get(host).cloned().unwrap_or_default()
    }
}

/// Follows the inventory in a thread of its own.
pub struct Hosts {
    inventory: Arc<Mutex<Inventory>>,
    thread: Option<JoinHandle<()>>,
    stop: Shutdown,
}

impl Hosts {
    /// Starts following, and waits, within a bound, for what the topic holds already. A topic that is missing or cannot be read
    /// is said and waited for; until then hosts have no labels.
    ///
    /// # Errors
    /// [`ProcessorError::Bus`] where there can be no thread.
    pub fn follow(bus: &BusSettings) -> Result<Self, ProcessorError> {
        let inventory = Arc::new(Mutex::new(Inventory::default()));
        let stop = Shutdown::default();
        let (theirs, until, bus) = (Arc::clone(&inventory), stop.clone(), bus.clone());
        let (ready, first) = sync_channel(1);
        let follow = move || {
            let topic = bus.topic(Topic::Hosts);
            while !until.is_requested() {
                let read = Compacted::open(&bus, &topic).and_then(|mut reader| {
                    while !until.is_requested() {
                        reader.poll(Duration::from_millis(200), |message| {
                            let mut known = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                            known.take(
                                message.key.as_deref().unwrap_or_default(),
                                message.payload.as_deref(),
                            );
                        })?;
                        if reader.is_caught_up() {
                            let _heard = ready.try_send(());
                        }
                    }
                    Ok(())
                });
                if let Err(error) = read {
                    // A bus without the topic knows no hosts.
                    if matches!(error, strobe_bus::Error::TopicMissing { .. }) {
                        let _heard = ready.try_send(());
                    }
                    tracing::warn!(%error, pause = ?AGAIN, "the inventory of hosts cannot be followed; labels stay as they are");
                    until.wait_timeout(AGAIN);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("hosts".into())
            .spawn(follow)
            .map_err(|source| strobe_bus::Error::Os {
                doing: "starting the thread of hosts",
                source,
            })?;
        if first.recv_timeout(FIRST).is_err() {
            tracing::warn!(
                "`strobe.hosts` could not be read in time: samples go on without labels until it can"
            );
        }
        Ok(Self {
            inventory,
            thread: Some(thread),
            stop,
        })
    }

    /// Returns the labels of a host, as it last said; none where it is not known.
    pub fn labels(&self, host: &str) -> Labels {
        let inventory = self.inventory.lock();
        inventory.unwrap_or_else(PoisonError::into_inner).of(host)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // It looks at the wish several times a second; a panic of it was logged by itself.
            let _ended = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(labels: &[&str]) -> Vec<u8> {
        let record = HostRecord {
            host: "a".into(),
            time_us: 1,
            agent: String::new(),
            kernel: String::new(),
            cpus: 1,
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            services: Vec::new(),
        };
        codec::encode_framed(&record).unwrap()
    }

    /// Checks that a host has the labels that it last said, those that are none are left out, what cannot be read changes
    /// nothing, and a host that goes has none.
    #[test]
    fn a_host_has_the_labels_that_it_last_said() {
        let mut inventory = Inventory::default();
        assert!(inventory.of("a").is_empty());
        inventory.take(b"a", Some(&record(&["region=eu-1"])));
        inventory.take(
            b"a",
            Some(&record(&["region=eu-2", "tier=gold=1", "odd", "=x", "y="])),
        );
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let wanted = [pair("region", "eu-2"), pair("tier", "gold=1")];
        assert_eq!(*inventory.of("a"), wanted);
        inventory.take(b"a", Some(b"no record"));
        assert_eq!(*inventory.of("a"), wanted);
        assert!(inventory.of("b").is_empty());
        let long = "x".repeat(LABELS_BYTES_MAX);
        inventory.take(b"b", Some(&record(&[&format!("k={long}")])));
        assert!(inventory.of("b").is_empty(), "too long to be kept");
        inventory.take(b"a", None);
        assert!(inventory.of("a").is_empty());
    }
}
