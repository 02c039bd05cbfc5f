//! The wire: batches and run events as Avro, by a hand-written codec that is byte-equal to `apache-avro`'s.
//!
//! The frozen schemas stand in `schemas/avro/`, the newest of each topic without a number; their fields are in the order of the structs'.
//! Numbers of 32 bits travel as `int` and must be below 2³¹; codes of 8 bits travel as `int`, so that an unknown
//! code survives a reader that does not know it; numbers of 64 bits travel as `long`, bit for bit.
//!
//! Decoding is made for bytes that somebody hostile wrote: every length is checked against the bytes that remain
//! before anything is allocated or looped over, so that a message costs at most [`ALLOCATED_PER_BYTE_MAX`] bytes
//! of memory per byte. It proves the form alone; [`crate::RawBatch::validate`] proves that the parts fit together.

mod alert;
mod audit;
mod config;
mod decode;
mod encode;
mod error;
mod raw;
mod request;
mod run;
mod samples;
mod sampling;

use crate::{
    Alert, AlertAnswer, AuditRecord, ConfigSet, CoverageRecord, HostRecord, HostReport, PlanRecord, RawBatch,
    Request, RequestState, RunEvent, SamplesBatch, SignedConfig, SignedRequest, StackSchemaFile, TunerRecord,
};
pub use error::{DecodeError, EncodeError, Fault};

/// Fixed id of the schema of `strobe.stacks.raw`.
pub const SCHEMA_ID_RAW_BATCH: u32 = 1;

/// Fixed id of the first schema of `strobe.samples`, which knows no contexts and no marks. It is read, and written no more.
pub const SCHEMA_ID_SAMPLES_BATCH_1: u32 = 2;

/// Fixed id of the schema of `strobe.samples`.
pub const SCHEMA_ID_SAMPLES_BATCH: u32 = 8;

/// Fixed id of the schema of `strobe.runs`.
pub const SCHEMA_ID_RUN_EVENT: u32 = 3;

/// Fixed id of the schema of `strobe.coverage`.
pub const SCHEMA_ID_COVERAGE: u32 = 4;

/// Fixed id of the schema of `strobe.plans`.
pub const SCHEMA_ID_PLAN: u32 = 5;

/// Fixed id of the schema of `strobe.hosts`.
pub const SCHEMA_ID_HOST: u32 = 6;

/// Fixed id of the schema of `strobe.tuner`.
pub const SCHEMA_ID_TUNER: u32 = 7;

/// Fixed id of the schema of stack schemas on `strobe.config`.
pub const SCHEMA_ID_STACK_SCHEMA: u32 = 9;

/// Fixed id of the schema of what is asked for, which travels signed within [`SignedRequest`].
pub const SCHEMA_ID_REQUEST: u32 = 10;

/// Fixed id of the schema of signed requests on `strobe.requests`.
pub const SCHEMA_ID_SIGNED_REQUEST: u32 = 11;

/// Fixed id of the schema of the states of requests on `strobe.requests`.
pub const SCHEMA_ID_REQUEST_STATE: u32 = 12;

/// Fixed id of the schema of `strobe.reports`.
pub const SCHEMA_ID_HOST_REPORT: u32 = 13;

/// Fixed id of the schema of alerts on `strobe.alerts`.
pub const SCHEMA_ID_ALERT: u32 = 14;

/// Fixed id of the schema of what rules made of alerts, on `strobe.alerts`.
pub const SCHEMA_ID_ALERT_ANSWER: u32 = 15;

/// Fixed id of the schema of `strobe.audit`.
pub const SCHEMA_ID_AUDIT: u32 = 16;

/// Fixed id of the schema of what is desired of the fleet, which travels signed within [`SignedConfig`].
pub const SCHEMA_ID_CONFIG_SET: u32 = 17;

/// Fixed id of the schema of signed configurations on `strobe.config`.
pub const SCHEMA_ID_SIGNED_CONFIG: u32 = 18;

/// Longest text on the wire: room for the longest demangled names seen (tens of KiB), a sixteenth of the limit on
/// messages. [`clip`] shortens what may be longer.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Most memory held while decoding, per byte of input: one byte can be an empty text of 24 bytes, and a vector that
/// grows block by block has room for twice what it holds (while it moves, its old room, half of that, is there too).
pub const ALLOCATED_PER_BYTE_MAX: usize = 2 * size_of::<String>();

/// Bytes of Confluent's framing: a zero and the schema's id.
pub const FRAME_BYTES: usize = 5;

/// A value with a frozen schema.
pub trait Wire: Sized + sealed::Fields {
    /// The fixed id of its schema.
    const SCHEMA_ID: u32;
}

pub(crate) mod sealed {
    use super::decode::Reader;
    use super::encode::Writer;
    use super::error::{DecodeError, EncodeError};

    /// A record whose fields are written and read in the order of its schema.
    pub trait Fields: Sized {
        /// Appends the fields.
        fn write(&self, to: &mut Writer<'_>) -> Result<(), EncodeError>;
        /// Reads the fields.
        fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
        /// Reads the fields of an older schema, where `id` is one.
        fn read_older(_id: u32, _from: &mut Reader<'_>) -> Option<Result<Self, DecodeError>> {
            None
        }
    }
}

impl Wire for RawBatch {
    const SCHEMA_ID: u32 = SCHEMA_ID_RAW_BATCH;
}

impl Wire for SamplesBatch {
    const SCHEMA_ID: u32 = SCHEMA_ID_SAMPLES_BATCH;
}

impl Wire for RunEvent {
    const SCHEMA_ID: u32 = SCHEMA_ID_RUN_EVENT;
}

impl Wire for CoverageRecord {
    const SCHEMA_ID: u32 = SCHEMA_ID_COVERAGE;
}

impl Wire for PlanRecord {
    const SCHEMA_ID: u32 = SCHEMA_ID_PLAN;
}

impl Wire for HostRecord {
    const SCHEMA_ID: u32 = SCHEMA_ID_HOST;
}

impl Wire for TunerRecord {
    const SCHEMA_ID: u32 = SCHEMA_ID_TUNER;
}

impl Wire for StackSchemaFile {
    const SCHEMA_ID: u32 = SCHEMA_ID_STACK_SCHEMA;
}

impl Wire for Request {
    const SCHEMA_ID: u32 = SCHEMA_ID_REQUEST;
}

impl Wire for SignedRequest {
    const SCHEMA_ID: u32 = SCHEMA_ID_SIGNED_REQUEST;
}

impl Wire for RequestState {
    const SCHEMA_ID: u32 = SCHEMA_ID_REQUEST_STATE;
}

impl Wire for HostReport {
    const SCHEMA_ID: u32 = SCHEMA_ID_HOST_REPORT;
}

impl Wire for Alert {
    const SCHEMA_ID: u32 = SCHEMA_ID_ALERT;
}

impl Wire for AlertAnswer {
    const SCHEMA_ID: u32 = SCHEMA_ID_ALERT_ANSWER;
}

impl Wire for AuditRecord {
    const SCHEMA_ID: u32 = SCHEMA_ID_AUDIT;
}

impl Wire for ConfigSet {
    const SCHEMA_ID: u32 = SCHEMA_ID_CONFIG_SET;
}

impl Wire for SignedConfig {
    const SCHEMA_ID: u32 = SCHEMA_ID_SIGNED_CONFIG;
}

/// Returns the text of the frozen schema `id`, or nothing where there is none.
pub fn schema_text(id: u32) -> Option<&'static str> {
    match id {
        SCHEMA_ID_RAW_BATCH => Some(include_str!("../../../avro/strobe.stacks.raw.avsc")),
        SCHEMA_ID_SAMPLES_BATCH_1 => Some(include_str!("../../../avro/strobe.samples.1.avsc")),
        SCHEMA_ID_SAMPLES_BATCH => Some(include_str!("../../../avro/strobe.samples.avsc")),
        SCHEMA_ID_RUN_EVENT => Some(include_str!("../../../avro/strobe.runs.avsc")),
        SCHEMA_ID_STACK_SCHEMA => Some(include_str!("../../../avro/strobe.config.stack-schema.avsc")),
        SCHEMA_ID_COVERAGE => Some(include_str!("../../../avro/strobe.coverage.avsc")),
        SCHEMA_ID_PLAN => Some(include_str!("../../../avro/strobe.plans.avsc")),
        SCHEMA_ID_HOST => Some(include_str!("../../../avro/strobe.hosts.avsc")),
        SCHEMA_ID_TUNER => Some(include_str!("../../../avro/strobe.tuner.avsc")),
        SCHEMA_ID_REQUEST => Some(include_str!("../../../avro/strobe.requests.ask.avsc")),
        SCHEMA_ID_SIGNED_REQUEST => Some(include_str!("../../../avro/strobe.requests.avsc")),
        SCHEMA_ID_REQUEST_STATE => Some(include_str!("../../../avro/strobe.requests.state.avsc")),
        SCHEMA_ID_HOST_REPORT => Some(include_str!("../../../avro/strobe.reports.avsc")),
        SCHEMA_ID_ALERT => Some(include_str!("../../../avro/strobe.alerts.avsc")),
        SCHEMA_ID_ALERT_ANSWER => Some(include_str!("../../../avro/strobe.alerts.answer.avsc")),
        SCHEMA_ID_AUDIT => Some(include_str!("../../../avro/strobe.audit.avsc")),
        SCHEMA_ID_CONFIG_SET => Some(include_str!("../../../avro/strobe.config.set.avsc")),
        SCHEMA_ID_SIGNED_CONFIG => Some(include_str!("../../../avro/strobe.config.avsc")),
        _ => None,
    }
}

/// Returns `value` in Avro, without framing.
///
/// # Errors
/// [`EncodeError`] names a number or text that the wire cannot carry.
pub fn encode<T: Wire>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    encode_into(value, &mut out)?;
    Ok(out)
}

/// Appends `value` in Avro to `out`, which a writer of many values clears and uses again.
///
/// # Errors
/// [`EncodeError`] names a number or text that the wire cannot carry; `out` is then as it was.
pub fn encode_into<T: Wire>(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let before = out.len();
    let written = value.write(&mut encode::Writer::new(out));
    if written.is_err() {
        out.truncate(before);
    }
    written
}

/// Returns the value that `bytes`, Avro without framing, hold.
///
/// # Errors
/// [`DecodeError`] says what is wrong and at which byte; bytes left over are wrong too.
pub fn decode<T: Wire>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = decode::Reader::new(bytes);
    let value = T::read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Appends Confluent's framing for the schema `id` to `out`; the Avro value follows it.
pub fn frame(id: u32, out: &mut Vec<u8>) {
    out.push(0);
    out.extend_from_slice(&id.to_be_bytes());
}

/// Returns the schema's id and the Avro value of a framed message.
///
/// # Errors
/// [`DecodeError::Unframed`] where the framing is missing.
pub fn unframe(message: &[u8]) -> Result<(u32, &[u8]), DecodeError> {
    match message {
        [0, a, b, c, d, value @ ..] => Ok((u32::from_be_bytes([*a, *b, *c, *d]), value)),
        _ => Err(DecodeError::Unframed {
            first: message.first().copied(),
            bytes: message.len(),
        }),
    }
}

/// Returns `value` as a framed message.
///
/// # Errors
/// As [`encode`].
pub fn encode_framed<T: Wire>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    frame(T::SCHEMA_ID, &mut out);
    encode_into(value, &mut out)?;
    Ok(out)
}

/// Returns the value of a framed message, also of an older schema of the same value; positions in errors count from behind
/// the framing.
///
/// # Errors
/// As [`unframe`] and [`decode`]; [`DecodeError::ForeignSchema`] where it is of another schema than `T`'s.
pub fn decode_framed<T: Wire>(message: &[u8]) -> Result<T, DecodeError> {
    let (id, value) = unframe(message)?;
    if id == T::SCHEMA_ID {
        return decode(value);
    }
    let mut reader = decode::Reader::new(value);
    let foreign = DecodeError::ForeignSchema {
        id,
        expected: T::SCHEMA_ID,
    };
    let value = T::read_older(id, &mut reader).ok_or(foreign)??;
    reader.finish()?;
    Ok(value)
}

/// Returns as much of `text`, from its start, as fits [`TEXT_BYTES_MAX`].
pub fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that framing comes off as it went on, and that its absence is named.
    #[test]
    fn framing_comes_off_as_it_went_on() {
        let mut message = Vec::new();
        frame(0x0102_0304, &mut message);
        assert_eq!(message, [0, 1, 2, 3, 4]);
        message.push(9);
        assert_eq!(unframe(&message), Ok((0x0102_0304, &[9_u8][..])));
        assert_eq!(
            unframe(&[]),
            Err(DecodeError::Unframed {
                first: None,
                bytes: 0
            })
        );
        assert_eq!(
            unframe(&[0, 0, 0, 1]),
            Err(DecodeError::Unframed {
                first: Some(0),
                bytes: 4
            })
        );
        assert_eq!(
            unframe(b"{\"a\":1}"),
            Err(DecodeError::Unframed {
                first: Some(b'{'),
                bytes: 7
            })
        );
    }

    /// Checks that a message of a schema that is not ours is refused by its id.
    #[test]
    fn foreign_schemas_are_named() {
        let refused = decode_framed::<RawBatch>(&[0, 0, 0, 0, 77, 1, 2]);
        assert_eq!(refused, Err(DecodeError::ForeignSchema { id: 77, expected: 1 }));
        assert!(refused.unwrap_err().to_string().contains("77"));
    }

    /// Checks that long text is cut between characters.
    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(clip(&text).len(), TEXT_BYTES_MAX);
        assert_eq!(clip(&format!("x{text}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(clip("short"), "short");
    }
}
