//! What one record of the spool holds: a message for the bus, and what its headers will say beside the identity.
//!
//! | offset | bytes | |
//! |--|--|--|
//! | 0 | 1 | kind: 1 a raw batch, 2 an event of a run, 3 coverage, 4 the host, 5 audit |
//! | 1 | 16 | run; zeros for none |
//! | 17 | 8 | samples, little endian |
//! | 25 | | the framed Avro value |

use strobe_bus::Topic;
use strobe_event::RunId;

const HEADER_BYTES: usize = 25;
const BATCH: u8 = 1;
const EVENT: u8 = 2;
const COVERAGE: u8 = 3;
const HOST: u8 = 4;
const AUDIT: u8 = 5;

/// A record of the spool, read.
#[derive(Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Where it goes.
    pub topic: Topic,
    /// The run it belongs to.
    pub run: RunId,
    /// Samples in it; 0 for an event.
    pub samples: u64,
    /// The framed Avro value.
    pub value: &'a [u8],
}

/// Starts a record in `out`: what stands before the value, which the caller appends.
pub fn begin(topic: Topic, run: RunId, samples: u64, out: &mut Vec<u8>) {
    out.clear();
    out.push(match topic {
        Topic::Runs => EVENT,
        Topic::Coverage => COVERAGE,
        Topic::Hosts => HOST,
        Topic::Audit => AUDIT,
        _ => BATCH,
    });
    out.extend_from_slice(&run.0);
    out.extend_from_slice(&samples.to_le_bytes());
}

/// Reads a record; nothing where it is none of ours.
pub fn open(record: &[u8]) -> Option<Envelope<'_>> {
    let (header, value) = record.split_first_chunk::<HEADER_BYTES>()?;
    let topic = match header[0] {
        BATCH => Topic::StacksRaw,
        EVENT => Topic::Runs,
        COVERAGE => Topic::Coverage,
        HOST => Topic::Hosts,
        AUDIT => Topic::Audit,
        _ => return None,
    };
    let mut run = [0; 16];
    run.copy_from_slice(&header[1..17]);
    let mut samples = [0; 8];
    samples.copy_from_slice(&header[17..]);
    Some(Envelope {
        topic,
        run: RunId(run),
        samples: u64::from_le_bytes(samples),
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a record comes back as it was written, and that anything shorter is none.
    #[test]
    fn records_come_back_as_they_were_written() {
        let mut record = Vec::new();
        begin(Topic::StacksRaw, RunId([3; 16]), 77, &mut record);
        record.extend_from_slice(b"value");
        let expected = Envelope {
            topic: Topic::StacksRaw,
            run: RunId([3; 16]),
            samples: 77,
            value: b"value",
        };
        assert_eq!(open(&record), Some(expected));
        assert!((0..HEADER_BYTES).all(|length| open(&record[..length]).is_none()));
    }
}
