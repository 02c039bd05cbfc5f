//! What becomes of a sample: stored, or dropped for a counted reason.

/// Why a sample that was taken will not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DropReason {
    /// The ring buffer between kernel and agent had no room.
    RingFull = 1,
    /// A record or message could not be decoded.
    Undecodable = 2,
    /// The spool was full: the newest is dropped.
    SpoolFull = 3,
    /// The batch outlived the spool's age limit before a broker took it.
    TooOld = 4,
    /// Thinned by a limit; the samples that stay weigh more.
    Thinned = 5,
    /// The store, or a check before it, refused the batch: it lies in the dead-letter topic.
    Rejected = 6,
}

impl DropReason {
    /// Every reason, in the order of the codes.
    pub const ALL: [Self; 6] = [
        Self::RingFull,
        Self::Undecodable,
        Self::SpoolFull,
        Self::TooOld,
        Self::Thinned,
        Self::Rejected,
    ];

    /// Returns the reason that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the reason's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::Undecodable => "undecodable",
            Self::SpoolFull => "spool_full",
            Self::TooOld => "too_old",
            Self::Thinned => "thinned",
            Self::Rejected => "rejected",
        }
    }
}

/// How many samples were dropped for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropCount {
    /// Code of a [`DropReason`].
    pub reason: u8,
    /// Samples dropped.
    pub samples: u64,
}
