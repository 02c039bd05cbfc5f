//! What the codec refuses, and why.

/// Why a value cannot be put on the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A number of 32 bits does not fit Avro's `int`.
    #[error("`{field}` is {value}, and an int ends at 2147483647")]
    NumberTooLarge {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A text is longer than [`super::TEXT_BYTES_MAX`], or bytes are more than their field may hold.
    #[error("`{field}` has {bytes} bytes of {limit} allowed")]
    TextTooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// Even a part of one or two samples is larger than a message may be.
    #[error("a part of one or two samples takes {bytes} bytes of {limit} allowed")]
    SampleTooLarge {
        /// The part's length.
        bytes: usize,
        /// The longest allowed.
        limit: usize,
    },
}

/// Why bytes are not the value they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message does not start with Confluent's framing.
    #[error(
        "no framing: {bytes} bytes, the first {first:?}, where a zero and 4 bytes of schema id should stand"
    )]
    Unframed {
        /// The first byte.
        first: Option<u8>,
        /// Length of the message.
        bytes: usize,
    },
    /// The message is of another schema.
    #[error("schema id {id} where {expected} is expected: foreign, or newer than this reader")]
    ForeignSchema {
        /// The id found.
        id: u32,
        /// The id of the schema that was asked for.
        expected: u32,
    },
    /// The value is malformed.
    #[error("`{field}` at byte {at}: {fault}")]
    Malformed {
        /// The field that was being read.
        field: &'static str,
        /// Where, counted from the start of the Avro value.
        at: usize,
        /// What is wrong.
        fault: Fault,
    },
}

impl DecodeError {
    /// Returns whether it looks as if the end of the value were missing: it ends early, or it says that more will come than
    /// does.
    pub fn is_truncated(&self) -> bool {
        let fault = match self {
            Self::Malformed { fault, .. } => fault,
            Self::Unframed { .. } | Self::ForeignSchema { .. } => return false,
        };
        matches!(fault, Fault::Truncated { .. } | Fault::TooManyItems { .. })
    }
}

impl DecodeError {
    /// Returns whether something in it is longer than anything honest.
    pub fn is_oversized(&self) -> bool {
        matches!(self, Self::Malformed { fault: Fault::Length { length, limit }, .. }
            if usize::try_from(*length).is_ok_and(|length| length > *limit))
    }
}

/// What is wrong at one byte of an Avro value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The value ends too early.
    #[error("{needed} bytes needed, {left} left")]
    Truncated {
        /// Bytes needed at least.
        needed: u64,
        /// Bytes left.
        left: usize,
    },
    /// A number has more than 64 bits.
    #[error("a number of more than 64 bits")]
    Overlong,
    /// A number is outside of what its field may hold.
    #[error("{value} is outside of 0 to {limit}")]
    OutOfRange {
        /// The number.
        value: i64,
        /// The largest allowed.
        limit: u32,
    },
    /// An array says that it has more items than the bytes left can hold.
    #[error("{count} items cannot lie in {left} bytes")]
    TooManyItems {
        /// Items, as the block says.
        count: u64,
        /// Bytes left.
        left: usize,
    },
    /// A block of an array is not as long as it says.
    #[error("a block of {stated} bytes took {taken}")]
    BlockLength {
        /// Bytes, as the block says.
        stated: usize,
        /// Bytes that its items took.
        taken: usize,
    },
    /// A length is negative or over the bound of its field.
    #[error("a length of {length}, and 0 to {limit} are allowed")]
    Length {
        /// The length.
        length: i64,
        /// The longest allowed.
        limit: usize,
    },
    /// Text is not UTF-8.
    #[error("text that is not UTF-8")]
    NotUtf8,
    /// A build id is empty.
    #[error("an empty build id")]
    EmptyBuildId,
    /// The kind of a binary's identity is not known.
    #[error("kind of binary {code} is not known")]
    UnknownBinaryKind {
        /// The code.
        code: u8,
    },
    /// Bytes are left over behind the value.
    #[error("{bytes} bytes left over")]
    LeftOver {
        /// How many.
        bytes: usize,
    },
}
