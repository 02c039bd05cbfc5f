//! Stage 8 of the path of one sample: bytes go to disk and get an identity; the publisher reads them back and
//! frees them on the broker's acknowledgement.
//!
//! A spool is one directory, one [`Writer`] and one [`Reader`] in one process. It knows nothing of what it holds.
//!
//! # Invariants
//!
//! - **Identity** is (host, epoch, sequence). The epoch is 128 random bits from the kernel, drawn at each open;
//!   a new open always starts a new segment, and older segments keep their epoch and host. Sequences start at 0
//!   in each epoch and have no gap: a record that is refused takes none. So restored disks, copied directories
//!   and torn tails cannot give one identity to two records. (A virtual machine cloned *while the spool is open*
//!   can: both copies go on in one epoch. Open it anew after a clone.)
//! - **Delivery** is at least once, oldest first. What was made durable ([`Writer::durable_sequence`]) is delivered
//!   until acknowledged; what was appended survives the death of the process; nothing else is ever delivered.
//! - **Size**: the segment files together never exceed `size_limit_bytes`. When a record does not fit, the newest
//!   is refused ([`Error::Full`]) and the caller counts it. Beside them stand a checkpoint and a lock file, under
//!   1 KiB together.
//! - **Durability**: `fdatasync` at most `sync_interval` after an append (the owner's timer calls
//!   [`Writer::sync_if_due`]), when a segment is closed, and at open for what a killed process left behind; the
//!   directory is synced after a file is created or removed. A failed sync is never tried again: the kernel has
//!   dropped the pages and would report success. The writer then refuses ([`Error::Failed`]) until the spool is
//!   opened anew; the reader goes on.
//! - **Damage** is counted ([`Recovered`], [`Usage::lost_records`]) and never an error, a panic or a loop.
//!
//! # Files
//!
//! All numbers are little endian. Checksums are CRC-32 (IEEE).
//!
//! `NNNNNNNNNNNNNNNNNNNN.segment`, the number in order of creation, 20 decimal digits:
//!
//! | offset | bytes | |
//! |--|--|--|
//! | 0 | 8 | magic `STRBSPL\n` |
//! | 8 | 2 | format version, 1 |
//! | 10 | 2 | *h*, length of the host, 1 to 255 |
//! | 12 | 16 | epoch |
//! | 28 | 8 | sequence of the first record |
//! | 36 | 8 | created, Unix time in ns |
//! | 44 | *h* | host, UTF-8 |
//! | 44+*h* | 4 | checksum of all before |
//!
//! then records without padding:
//!
//! | offset | bytes | |
//! |--|--|--|
//! | 0 | 4 | *n*, length of the payload, 1 to 8 MiB |
//! | 4 | 4 | checksum of: epoch of the segment, length, sequence, appended, payload |
//! | 8 | 8 | sequence |
//! | 16 | 8 | appended, Unix time in ns |
//! | 24 | *n* | payload |
//!
//! The epoch is in the checksum so that a payload which itself holds a piece of a spool is never taken for records.
//!
//! `checkpoint`, two slots at offsets 0 and 512, written in turn; the valid one of the higher generation counts:
//!
//! | offset | bytes | |
//! |--|--|--|
//! | 0 | 8 | magic `STRBCKP\n` |
//! | 8 | 8 | generation |
//! | 16 | 8 | segment of the first unacknowledged record; lower ones are wholly acknowledged |
//! | 24 | 8 | its offset there; 0: the first record |
//! | 32 | 8 | its sequence |
//! | 40 | 16 | epoch of that sequence |
//! | 56 | 4 | checksum of all before |
//!
//! A lost checkpoint causes repeats and nothing else. `lock` holds the pid of the process that has the spool open.

mod checkpoint;
mod disk;
mod error;
mod format;
mod reader;
mod recover;
mod settings;
mod shared;
mod writer;

use std::sync::Arc;

pub use disk::{Disk, DiskFile, HostDisk, Locking};
pub use error::Error;
pub use format::{Epoch, Identity, RECORD_BYTES_MAX};
pub use reader::{IN_FLIGHT_MAX, Position, Reader, Record, Usage};
pub use recover::Recovered;
pub use settings::Settings;
pub use shared::SEGMENTS_MAX;
pub use writer::Writer;

/// A spool, before it is opened.
pub struct Spool;

impl Spool {
    /// Returns both ends of the spool in `settings.directory`, created if missing, and what was found there.
    ///
    /// Holds the directory until both ends are dropped; a second opener gets [`Error::Locked`].
    pub fn open(settings: Settings) -> Result<(Writer, Reader, Recovered), Error> {
        Self::open_on(Arc::new(HostDisk), settings)
    }

    /// Returns what [`Spool::open`] returns, on a disk of the caller's: how the tests meet power cuts and full disks.
    pub fn open_on(disk: Arc<dyn Disk>, settings: Settings) -> Result<(Writer, Reader, Recovered), Error> {
        settings.validate()?;
        let found = recover::recover(&disk, &settings)?;
        let writer = Writer::new(disk.clone(), &settings, &found)?;
        let reader = Reader::new(
            disk,
            &settings,
            found.shared,
            found.lock,
            found.checkpoint,
            found.start,
        );
        Ok((writer, reader, found.recovered))
    }
}
