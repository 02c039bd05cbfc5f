//! Records of several CPUs → one order by time.

/// Memory kept between two bursts.
const ARENA_KEPT_BYTES: usize = 256 << 10;

/// Holds records until no earlier one can come, then gives them out by time.
///
/// Bounded by its users: each round they put in at most what their buffers hold, and the next one takes it out.
#[derive(Debug, Default)]
pub struct TimeMerge {
    bytes: Vec<u8>,
    waiting: Vec<Waiting>,
    next_bytes: Vec<u8>,
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    time_ns: u64,
    /// Equal times keep the order in which they came: that of their CPU.
    order: u64,
    start: usize,
    len: usize,
}

impl TimeMerge {
    /// Puts a record in.
    pub fn push(&mut self, time_ns: u64, record: &[u8]) {
        self.waiting.push(Waiting {
            time_ns,
            order: self.pushed,
            start: self.bytes.len(),
            len: record.len(),
        });
        self.bytes.extend_from_slice(record);
        self.pushed += 1;
    }

    /// Gives out every record up to `horizon_ns`, by time. Later ones wait.
    pub fn take(&mut self, horizon_ns: u64, mut give: impl FnMut(u64, &[u8])) {
        self.waiting
            .sort_unstable_by_key(|record| (record.time_ns, record.order));
        let due = self
            .waiting
            .partition_point(|record| record.time_ns <= horizon_ns);
        for record in &self.waiting[..due] {
            give(
                record.time_ns,
                &self.bytes[record.start..record.start + record.len],
            );
        }
        self.waiting.drain(..due);
        self.next_bytes.clear();
        for record in &mut self.waiting {
            let start = self.next_bytes.len();
            self.next_bytes
                .extend_from_slice(&self.bytes[record.start..record.start + record.len]);
            record.start = start;
        }
        std::mem::swap(&mut self.bytes, &mut self.next_bytes);
        self.bytes.shrink_to(ARENA_KEPT_BYTES);
        self.next_bytes.clear();
        self.next_bytes.shrink_to(ARENA_KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(merge: &mut TimeMerge, horizon_ns: u64) -> Vec<(u64, Vec<u8>)> {
        let mut taken = Vec::new();
        merge.take(horizon_ns, |time, record| taken.push((time, record.to_vec())));
        taken
    }

    /// Checks that what is younger than the horizon waits, and then comes before what was put in after it.
    #[test]
    fn younger_records_wait_for_their_elders() {
        let mut merge = TimeMerge::default();
        merge.push(30, b"thirty");
        merge.push(10, b"ten");
        assert_eq!(taken(&mut merge, 20), [(10, b"ten".to_vec())]);
        merge.push(25, b"twenty-five");
        assert_eq!(
            taken(&mut merge, 40),
            [(25, b"twenty-five".to_vec()), (30, b"thirty".to_vec())]
        );
        assert_eq!(taken(&mut merge, u64::MAX), []);
    }

    proptest! {
        /// Checks that nothing is lost, doubled or changed, and each round is in order, wherever the horizons fall.
        #[test]
        fn every_record_comes_out_once_in_order(rounds in proptest::collection::vec(
            (proptest::collection::vec((0_u64..100, proptest::collection::vec(any::<u8>(), 0..9)), 0..20), 0_u64..100),
            0..8,
        )) {
            let mut merge = TimeMerge::default();
            let (mut put, mut got) = (Vec::new(), Vec::new());
            for (records, horizon_ns) in rounds {
                for (time_ns, bytes) in records {
                    merge.push(time_ns, &bytes);
                    put.push((time_ns, bytes));
                }
                let round = taken(&mut merge, horizon_ns);
                prop_assert!(round.is_sorted_by_key(|(time_ns, _)| *time_ns));
                prop_assert!(round.iter().all(|(time_ns, _)| *time_ns <= horizon_ns));
                got.extend(round);
            }
            got.extend(taken(&mut merge, u64::MAX));
            put.sort();
            got.sort();
            prop_assert_eq!(put, got);
        }
    }
}
