//! The three stages in one go: the bytes of a raw batch → the bytes of one or more samples batches.

use strobe_bus::{MESSAGE_BYTES_MAX, Meta};
use strobe_event::codec::{self, DecodeError, EncodeError};
use strobe_event::raw::Malformed;
use strobe_event::split::{self, split_to_fit};
use strobe_event::{Part, RawBatch, SamplesBatch};
use strobe_symbols::SymbolsError;

use crate::symbolize::Names;
use crate::tag::{Tagged, Tagger};
use crate::thin::{Shares, thin};
use crate::weigh::{WeighError, Weighed, weigh_kept};

/// Why a batch goes to the dead letters, or must be tried again.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The message is larger than ours ever are.
    #[error("{bytes} bytes are over the limit of {limit} for a message")]
    Oversized {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// It is not a raw batch in Avro.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// Its parts do not fit together.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It says one number of samples in its headers and has another.
    #[error("the headers say {said} samples, the batch has {has}")]
    WrongCount {
        /// By the headers.
        said: u64,
        /// In the batch.
        has: usize,
    },
    /// Its counts give no weights.
    #[error(transparent)]
    Weigh(#[from] WeighError),
    /// The result cannot be put on the wire.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The symbol store or the worker has trouble of its own.
    #[error(transparent)]
    Symbols(#[from] SymbolsError),
}

impl StepError {
    /// Returns whether the message is not at fault: the same step may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Symbols(error) if error.is_transient())
    }
}

/// One message to send: its headers' content and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// What its headers say: the identity of the raw batch, with the part.
    pub meta: Meta,
    /// The framed Avro value.
    pub value: Vec<u8>,
}

/// Microseconds of a day.
const DAY_US: u64 = 86_400_000_000;

/// Bytes of a framed message that are not the Avro value: see `codec::frame`.
const FRAMING_BYTES: usize = 5;

/// Names, tags and weighs the raw batch in `value`; `generation` numbers names and tags (unix microseconds). Of what `shares`
/// limit, the rest is left out; a batch of which nothing stays gives no message.
///
/// # Errors
/// [`StepError`] says why not; see [`StepError::is_transient`] for what to do about it.
pub fn step(
    meta: &Meta,
    value: &[u8],
    names: &mut impl Names,
    tagger: &mut Tagger,
    generation: u64,
    shares: &Shares,
) -> Result<Vec<Made>, StepError> {
    if value.len() > MESSAGE_BYTES_MAX {
        return Err(StepError::Oversized {
            bytes: value.len(),
            limit: MESSAGE_BYTES_MAX,
        });
    }
    let mut raw: RawBatch = codec::decode_framed(value)?;
    raw.validate()?;
    if meta.samples != raw.samples.len() as u64 {
        return Err(StepError::WrongCount {
            said: meta.samples,
            has: raw.samples.len(),
        });
    }
    let kept = shares.of(&raw);
    let mut weighed = weigh_kept(&raw, kept.as_deref())?;
    let mut meta = meta.clone();
    if let Some(kept) = kept {
        thin(&meta.identity, &mut raw, &mut weighed, &kept);
        meta.samples = raw.samples.len() as u64;
        if meta.samples == 0 {
            return Ok(Vec::new());
        }
    }
    let Weighed { weights, of_sample } = weighed;
    let locations = names.locate(&raw)?;
    // Days of our own clock, which go one way only: batches of two days may come mixed.
    let day = (generation / DAY_US) as u32;
    let Tagged { tags, sample_context } = tagger.tag(&raw, &locations, day);
    let batch = SamplesBatch {
        raw,
        generation,
        locations,
        tags,
        weights,
        sample_weight: of_sample,
        sample_context,
    };
    send_off(&meta, &batch)
}

/// Returns the batch as one message, or as parts where it is over the limit.
fn send_off(meta: &Meta, batch: &SamplesBatch) -> Result<Vec<Made>, StepError> {
    let whole = codec::encode_framed(batch)?;
    if whole.len() <= MESSAGE_BYTES_MAX {
        return Ok(vec![Made {
            meta: meta.clone(),
            value: whole,
        }]);
    }
    let parts = split_to_fit(batch, MESSAGE_BYTES_MAX - FRAMING_BYTES)?;
    let count = parts.len();
    let sizes = split::ranges(batch.raw.samples.len(), count);
    let made = parts
        .into_iter()
        .zip(sizes)
        .enumerate()
        .map(|(part, (value, samples))| {
            let mut framed = Vec::with_capacity(FRAMING_BYTES + value.len());
            codec::frame(codec::SCHEMA_ID_SAMPLES_BATCH, &mut framed);
            framed.extend_from_slice(&value);
            let mut meta = meta.clone();
            meta.identity.part = Part {
                of: count as u32,
                index: part as u32,
            }
            .number();
            meta.samples = samples.len() as u64;
            Made { meta, value: framed }
        });
    Ok(made.collect())
}

#[cfg(test)]
mod tests {
    use strobe_event::synthetic::{self, Shape};
    use strobe_event::{Epoch, Identity, Locations, Reason};

    use super::*;

    /// Names every frame by its number, with `padding` behind it.
    struct Numbers {
        padding: usize,
    }

    impl Names for Numbers {
        fn locate(&mut self, batch: &RawBatch) -> Result<Locations, SymbolsError> {
            let frames = batch.frames.len();
            let mut names = Locations {
                text: vec![String::new()],
                ..Locations::default()
            };
            for frame in 0..frames {
                if frame % 7 == 0 {
                    names.count.push(0);
                    names.reason.push(Reason::MissingBinary as u8);
                    continue;
                }
                names.count.push(1);
                names.reason.push(0);
                names.function.push(names.text.len() as u32);
                names.file.push(0);
                names.line.push(frame as u32);
                names
                    .text
                    .push(format!("function_{frame}{}", "x".repeat(self.padding)));
            }
            Ok(names)
        }
    }

    fn given(samples: usize) -> (Meta, RawBatch) {
        let raw = synthetic::raw_batch(
            &Shape {
                samples,
                ..Shape::default()
            },
            3,
        );
        let identity = Identity {
            host: raw.run.host.clone(),
            epoch: Epoch([1; 16]),
            sequence: 9,
            part: 0,
        };
        (
            Meta {
                identity,
                run: raw.run.id,
                samples: samples as u64,
            },
            raw,
        )
    }

    /// Checks that one raw batch becomes one samples batch with the same identity, samples and unnamed frames.
    #[test]
    fn a_batch_keeps_its_identity_and_all_of_its_samples() {
        let (meta, raw) = given(500);
        let made = step(
            &meta,
            &codec::encode_framed(&raw).unwrap(),
            &mut Numbers { padding: 0 },
            &mut Tagger::idle(),
            42,
            &Shares::default(),
        )
        .unwrap();
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].meta, meta);
        let batch: SamplesBatch = codec::decode_framed(&made[0].value).unwrap();
        batch.validate().unwrap();
        assert_eq!(batch.raw, raw);
        assert_eq!(batch.generation, 42);
        assert_eq!(
            batch.locations.count[0], 0,
            "a frame without a name stays, with its reason"
        );
    }

    /// Checks that a batch that outgrows the limit is split: parts count up, and every sample is in exactly one.
    #[test]
    fn a_batch_that_outgrows_the_limit_is_split() {
        let (meta, raw) = given(4_000);
        let made = step(
            &meta,
            &codec::encode_framed(&raw).unwrap(),
            &mut Numbers { padding: 700 },
            &mut Tagger::idle(),
            1,
            &Shares::default(),
        )
        .unwrap();
        let parts = made.len();
        assert!(parts > 1);
        let mut samples = 0;
        for (part, made) in made.iter().enumerate() {
            assert!(made.value.len() <= MESSAGE_BYTES_MAX);
            let batch: SamplesBatch = codec::decode_framed(&made.value).unwrap();
            batch.validate().unwrap();
            let part = Part {
                of: parts as u32,
                index: part as u32,
            };
            let identity = Identity {
                part: part.number(),
                ..meta.identity.clone()
            };
            assert_eq!(
                (made.meta.samples, &made.meta.identity),
                (batch.raw.samples.len() as u64, &identity)
            );
            samples += batch.raw.samples.len();
        }
        assert_eq!(samples, 4_000);
    }

    /// Checks that what is no raw batch of ours is refused with its reason, and is not to be tried again.
    #[test]
    fn what_is_no_batch_of_ours_is_refused() {
        let (meta, raw) = given(10);
        let whole = codec::encode_framed(&raw).unwrap();
        let mut foreign = whole.clone();
        foreign[4] = 99;
        let oversized = vec![0; MESSAGE_BYTES_MAX + 1];
        for (value, what) in [
            (&whole[..whole.len() / 2], "truncated"),
            (foreign.as_slice(), "foreign"),
            (oversized.as_slice(), "oversized"),
            (&[][..], "empty"),
        ] {
            let (mut numbers, mut tagger) = (Numbers { padding: 0 }, Tagger::idle());
            let error = step(&meta, value, &mut numbers, &mut tagger, 1, &Shares::default()).unwrap_err();
            assert!(!error.is_transient(), "{what}: {error}");
        }
        let lies = Meta { samples: 11, ..meta };
        assert!(matches!(
            step(
                &lies,
                &whole,
                &mut Numbers { padding: 0 },
                &mut Tagger::idle(),
                1,
                &Shares::default()
            ),
            Err(StepError::WrongCount { said: 11, has: 10 })
        ));
    }
}
