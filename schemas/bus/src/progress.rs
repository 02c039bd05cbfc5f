//! How far each partition may be committed: up to the first message that is still under way. Pure.

use std::collections::{BTreeMap, VecDeque};

use crate::message::Partition;

/// Messages under way, in the order of their offsets, and what may be committed.
#[derive(Debug, Default)]
pub struct Progress {
    lines: BTreeMap<Partition, Line>,
    tickets: BTreeMap<u64, Ticket>,
    next_ticket: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Line {
    order: VecDeque<u64>,
    /// The offset to read next, were this process to end now.
    next: Option<i64>,
    committed: Option<i64>,
}

#[derive(Debug)]
struct Ticket {
    partition: Partition,
    offset: i64,
    cost: usize,
    done: bool,
}

impl Progress {
    /// Takes in a message; offsets of a partition come in order. The number stands for it from here on and is never
    /// given twice.
    pub fn admit(&mut self, partition: &Partition, offset: i64, cost: usize) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.bytes += cost;
        self.lines
            .entry(partition.clone())
            .or_default()
            .order
            .push_back(ticket);
        self.tickets.insert(
            ticket,
            Ticket {
                partition: partition.clone(),
                offset,
                cost,
                done: false,
            },
        );
        ticket
    }

    /// Notes that everything that comes of a message is where it belongs.
    pub fn finish(&mut self, ticket: u64) {
        let Some(entry) = self.tickets.get_mut(&ticket) else {
            return;
        };
        entry.done = true;
        let Some(line) = self.lines.get_mut(&entry.partition) else {
            return;
        };
        while let Some(front) = line.order.front() {
            if !self.tickets.get(front).is_some_and(|entry| entry.done) {
                break;
            }
            if let Some(entry) = line
                .order
                .pop_front()
                .and_then(|front| self.tickets.remove(&front))
            {
                self.bytes -= entry.cost;
                line.next = Some(entry.offset + 1);
            }
        }
    }

    /// Forgets a message and all later ones of its partition, so that nothing is ever committed past it.
    pub fn cut(&mut self, ticket: u64) {
        let Some(entry) = self.tickets.get(&ticket) else {
            return;
        };
        let Some(line) = self.lines.get_mut(&entry.partition) else {
            return;
        };
        while line.order.back().is_some_and(|back| *back >= ticket) {
            if let Some(entry) = line.order.pop_back().and_then(|back| self.tickets.remove(&back)) {
                self.bytes -= entry.cost;
            }
        }
    }

    /// Returns whether a message is under way.
    pub fn has(&self, ticket: u64) -> bool {
        self.tickets.contains_key(&ticket)
    }

    /// Returns what may be committed and is not.
    pub fn due(&self) -> Vec<(Partition, i64)> {
        let due = |(partition, line): (&Partition, &Line)| {
            line.next
                .filter(|next| line.committed != Some(*next))
                .map(|next| (partition.clone(), next))
        };
        self.lines.iter().filter_map(due).collect()
    }

    /// Notes a commit.
    pub fn committed(&mut self, partition: &Partition, next: i64) {
        if let Some(line) = self.lines.get_mut(partition) {
            line.committed = Some(next);
        }
    }

    /// Forgets everything: the partitions are somebody else's.
    pub fn clear(&mut self) {
        self.lines.clear();
        self.tickets.clear();
        self.bytes = 0;
    }

    /// Returns the messages under way.
    pub fn messages(&self) -> usize {
        self.tickets.len()
    }

    /// Returns the bytes under way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(number: i32) -> Partition {
        Partition {
            topic: "t".into(),
            partition: number,
        }
    }

    /// Checks that a partition is committed up to its first unfinished message, whatever finishes later.
    #[test]
    fn a_gap_holds_the_commit() {
        let mut progress = Progress::default();
        let tickets: Vec<_> = (10..15)
            .map(|offset| progress.admit(&partition(0), offset, 1))
            .collect();
        let other = progress.admit(&partition(1), 7, 1);
        progress.finish(tickets[1]);
        progress.finish(tickets[2]);
        assert_eq!(progress.due(), []);
        progress.finish(tickets[0]);
        assert_eq!(progress.due(), [(partition(0), 13)]);
        progress.committed(&partition(0), 13);
        assert_eq!(progress.due(), []);
        progress.finish(other);
        assert_eq!(progress.due(), [(partition(1), 8)]);
        assert_eq!((progress.messages(), progress.bytes()), (2, 2));
    }

    /// Checks that what was withdrawn is never committed over, not even by later messages that did finish.
    #[test]
    fn nothing_is_committed_past_a_cut() {
        let mut progress = Progress::default();
        let tickets: Vec<_> = (0..5)
            .map(|offset| progress.admit(&partition(0), offset, 10))
            .collect();
        progress.finish(tickets[4]);
        progress.cut(tickets[2]);
        assert!(!progress.has(tickets[4]));
        progress.finish(tickets[0]);
        progress.finish(tickets[1]);
        progress.finish(tickets[3]);
        assert_eq!(progress.due(), [(partition(0), 2)]);
        assert_eq!((progress.messages(), progress.bytes()), (0, 0));
    }
}
