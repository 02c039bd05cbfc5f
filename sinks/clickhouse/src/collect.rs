//! Messages of one partition → a range: what of them is inserted, what is left out, and the rows.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use strobe_bus::{Complaint, DeadReason, MESSAGE_BYTES_MAX, Message, Meta, Outgoing, Partition, dead_letter};
use strobe_event::{Identity, Part, SamplesBatch};
use xxhash_rust::xxh3::Xxh3;

use crate::insert::{BLOCK_ROWS_MAX, Question};
use crate::judge::{FUTURE, Judged, Refusal, TOO_OLD, judge};
use crate::lane::{Kind, Lane, RANGE_MESSAGES_MAX};
use crate::pending::Pending;
use crate::protocol::Insert;
use crate::rows::{FreshRows, RangeRows, TableBlock, WrittenRows};
use crate::settings::{RANGE_SAMPLES_MAX, Settings};
use crate::stored::{Known, Spool, cut};
use crate::tables::Table;

/// The stage's name in logs and dead letters.
pub const STAGE: &str = "sink";

/// Version of what a range is turned into: part of every token. It changes when the same messages would give other rows.
const ROWS_VERSION: u32 = 2;

/// Rows that one message can add at most: as many frames as fit, two bytes each, and never more than that.
const MESSAGE_ROWS_MAX: usize = MESSAGE_BYTES_MAX / 2;
const _: () = assert!(RANGE_SAMPLES_MAX as usize + MESSAGE_ROWS_MAX < BLOCK_ROWS_MAX);

/// A part that will be stored with a range.
pub struct Stored {
    spool: Spool,
    sequence: u64,
    part: Part,
    samples: u64,
}

/// What a range counts once it is stored.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Batches and parts of batches.
    pub batches: u64,
    /// Samples.
    pub samples: u64,
    /// Events of runs.
    pub runs: u64,
    /// Records of coverage.
    pub coverage: u64,
    /// Records of the audit.
    pub audit: u64,
    /// Messages that were stored before.
    pub repeats: u64,
    /// Samples in them.
    pub repeated_samples: u64,
    /// Batches of which only some parts are news.
    pub cut: u64,
    /// Messages that a predecessor's range names and the topic no longer has.
    pub missing: u64,
}

/// A range, ready to be stored.
pub struct Range {
    /// What is written down beside the position.
    pub pending: Pending,
    /// The inserts, in order; none when nothing of the range is news.
    pub inserts: Vec<Insert>,
    /// Takes its totals back.
    pub undo: Option<Insert>,
    /// What will have been written.
    pub fresh: FreshRows,
    /// Messages that are put aside.
    pub letters: Vec<Outgoing>,
    /// Messages it is made of.
    pub messages: usize,
    /// What it counts.
    pub counts: Counts,
}

/// Returns the first of the messages that wait, as many as a range of this partition may have.
fn candidates<'a>(lane: &'a Lane, settings: &Settings) -> impl Iterator<Item = &'a Message> {
    let (mut samples, mut bytes) = (0_u64, 0);
    let (samples_max, bytes_max) = (settings.range_samples, settings.range_bytes);
    lane.waiting()
        .take(lane.messages_max.min(RANGE_MESSAGES_MAX))
        .map_while(move |waiting| {
            let has_room = samples < samples_max && bytes < bytes_max;
            samples = samples.saturating_add(waiting.samples);
            bytes += waiting.message.bytes().len();
            has_room.then_some(&waiting.message)
        })
}

/// Returns what must be asked of the store before the next range of this partition can be cut.
pub fn questions(lane: &Lane, settings: &Settings, known: &Known) -> Vec<Question> {
    let mut questions: std::collections::BTreeMap<Spool, (u64, u64)> = std::collections::BTreeMap::new();
    if lane.kind != Kind::Samples {
        return Vec::new();
    }
    for meta in candidates(lane, settings).filter_map(|message| Meta::from_headers(&message.headers).ok()) {
        let Identity {
            host,
            epoch,
            sequence,
            ..
        } = meta.identity;
        let spool: Spool = (host.into(), epoch);
        if known.knows(&spool, sequence) {
            continue;
        }
        let (from, _) = questions.entry(spool).or_insert((sequence, u64::MAX));
        *from = sequence.min(*from);
    }
    questions
        .into_iter()
        .map(|(spool, (from, to))| Question { spool, from, to })
        .collect()
}

/// Cuts the next range of a partition.
pub fn cut_range(
    lane: &Lane,
    attempt: u32,
    settings: &Settings,
    known: &mut Known,
    written: &WrittenRows,
) -> Option<Range> {
    let first = lane.waiting().next()?.message.offset;
    let mut range = Building::new(Pending::new(first, attempt));
    let now_us = now_us();
    for message in candidates(lane, settings) {
        // What came while the store was asked was not asked for: it waits for the next range.
        if range.rows.rows() as u64 >= settings.range_samples || !is_known(lane.kind, message, known) {
            break;
        }
        let judged = judge(lane.kind, message, Some((known, settings.oldest, now_us)));
        let mut pending = range.pending.clone();
        pending.last = message.offset;
        match &judged {
            Ok(Judged::Batch { pieces, part, .. }) if *pieces != [*part] => {
                pending.cut.insert(
                    message.offset,
                    pieces.iter().map(|piece| piece.number()).collect(),
                );
            }
            Ok(
                Judged::Batch { .. } | Judged::Event { .. } | Judged::Coverage { .. } | Judged::Audit { .. },
            ) => {}
            Ok(Judged::Repeat { .. } | Judged::Left) | Err(_) => pending.skip(message.offset),
        }
        // The first message always fits: its parts are few, or it was refused for that.
        if !pending.fits() && range.messages > 0 {
            break;
        }
        range.pending = pending;
        for stored in range.take(message, judged, Some(written)) {
            known.add(&stored.spool, stored.sequence, stored.part, stored.samples);
        }
    }
    known.trim();
    (range.messages > 0).then(|| range.finish(&lane.partition))
}

/// Returns whether it can be judged if a message is a repeat.
fn is_known(kind: Kind, message: &Message, known: &Known) -> bool {
    match (kind, Meta::from_headers(&message.headers)) {
        // Events, coverage and the audit are told apart by their rows, and what has no identity is put aside.
        (Kind::Runs | Kind::Coverage | Kind::Audit, _) | (_, Err(_)) => true,
        (Kind::Samples, Ok(Meta { identity, .. })) => {
            known.knows(&(identity.host.into(), identity.epoch), identity.sequence)
        }
    }
}

/// Makes a range that a predecessor named once more, exactly as it was.
pub fn remake_range(lane: &Lane, named: &Pending) -> Range {
    let mut range = Building::new(named.clone());
    for message in lane
        .waiting()
        .map(|waiting| &waiting.message)
        .take_while(|message| message.offset <= named.last)
    {
        let judged = if named.skips(message.offset) {
            Ok(Judged::Left)
        } else {
            judge(lane.kind, message, None).map(|judged| match (judged, named.cut.get(&message.offset)) {
                (
                    Judged::Batch {
                        meta, batch, part, ..
                    },
                    Some(numbers),
                ) => {
                    let pieces = numbers
                        .iter()
                        .filter_map(|&number| Part::from_number(number))
                        .collect();
                    Judged::Batch {
                        meta,
                        batch,
                        part,
                        pieces,
                    }
                }
                (judged, _) => judged,
            })
        };
        range.take(message, judged, None);
    }
    range.counts.missing = (named.last - named.first + 1)
        .unsigned_abs()
        .saturating_sub(range.messages as u64);
    range.finish(&lane.partition)
}

/// Returns the dead letter of a message that ClickHouse refused.
pub fn rejected(message: &Message, reason: &str) -> Outgoing {
    letter(
        message,
        Refusal {
            reason: DeadReason::Rejected,
            exception: "Rejected",
            message: reason.to_owned(),
        },
    )
}

fn letter(message: &Message, refusal: Refusal) -> Outgoing {
    tracing::warn!(
        partition = %message.partition,
        offset = message.offset,
        reason = refusal.reason.name(),
        exception = refusal.exception,
        detail = refusal.message,
        "put aside"
    );
    let exception = refusal.exception;
    let complaint = Complaint {
        reason: refusal.reason,
        stage: STAGE,
        class: module_path!(),
        exception,
        message: refusal.message,
    };
    let mut letter = dead_letter::wrap(message, &complaint);
    // Times outside of what is kept have names of their own for people who list dead letters.
    let name = match exception {
        TOO_OLD => "too_old",
        FUTURE => "future",
        _ => return letter,
    };
    letter.headers.retain(|header| header != dead_letter::REASON);
    letter.headers.push(dead_letter::REASON, name);
    letter
}

struct Building {
    pending: Pending,
    rows: RangeRows,
    letters: Vec<Outgoing>,
    messages: usize,
    counts: Counts,
    /// Of every identity that is inserted, in order.
    identities: Xxh3,
}

impl Building {
    fn new(pending: Pending) -> Self {
        Self {
            pending,
            rows: RangeRows::default(),
            letters: Vec::new(),
            messages: 0,
            counts: Counts::default(),
            identities: Xxh3::new(),
        }
    }

    /// Takes in a message, and returns the parts that will be stored with it.
    fn take(
        &mut self,
        message: &Message,
        judged: Result<Judged, Refusal>,
        written: Option<&WrittenRows>,
    ) -> Vec<Stored> {
        self.messages += 1;
        let mut stored = Vec::new();
        match judged {
            Err(refusal) => self.letters.push(letter(message, refusal)),
            Ok(Judged::Left) => {}
            Ok(Judged::Repeat { samples }) => {
                self.counts.repeats += 1;
                self.counts.repeated_samples += samples;
            }
            Ok(Judged::Event { meta, event }) => {
                self.counts.runs += 1;
                self.note(&meta.identity);
                self.rows.add_event(&meta.identity, &event);
            }
            Ok(Judged::Coverage { meta, record }) => {
                self.counts.coverage += 1;
                self.note(&meta.identity);
                self.rows.add_coverage(&meta.identity, &record);
            }
            Ok(Judged::Audit { record }) => {
                self.counts.audit += 1;
                self.identities.update(&record.id.0);
                self.rows.add_audit(&record);
            }
            Ok(Judged::Batch {
                meta,
                batch,
                part,
                pieces,
            }) if pieces == [part] => {
                stored.extend(self.take_piece(meta.identity, &batch, part, written));
            }
            Ok(Judged::Batch {
                meta,
                batch,
                part,
                pieces,
            }) => {
                self.counts.cut += 1;
                for piece in pieces {
                    if let Some(cut) = cut(&batch, part, piece) {
                        let identity = Identity {
                            part: piece.number(),
                            ..meta.identity.clone()
                        };
                        stored.extend(self.take_piece(identity, &cut, piece, written));
                    }
                }
            }
        }
        stored
    }

    fn take_piece(
        &mut self,
        identity: Identity,
        batch: &SamplesBatch,
        part: Part,
        written: Option<&WrittenRows>,
    ) -> Option<Stored> {
        let samples = batch.raw.samples.len() as u64;
        self.counts.batches += 1;
        self.counts.samples += samples;
        self.note(&identity);
        self.rows.add(&identity, batch, written);
        let Identity {
            host,
            epoch,
            sequence,
            ..
        } = identity;
        Some(Stored {
            spool: (host.into(), epoch),
            sequence,
            part,
            samples,
        })
    }

    fn note(&mut self, identity: &Identity) {
        self.identities
            .update(&(identity.host.len() as u64).to_le_bytes());
        self.identities.update(identity.host.as_bytes());
        self.identities.update(&identity.epoch.0);
        self.identities.update(&identity.sequence.to_le_bytes());
        self.identities.update(&identity.part.to_le_bytes());
    }

    fn finish(self, partition: &Partition) -> Range {
        let Pending {
            first, last, attempt, ..
        } = self.pending;
        // The range alone names the rows as long as a topic lives; the identities tell it from one of the same name
        // that was made anew, whose offsets start again.
        let identities = self.identities.digest128();
        let token = |table: Table, undo: &str| {
            let name = table.name();
            format!("{name}{undo} {partition} {first}-{last} a{attempt} {identities:032x} v{ROWS_VERSION}")
        };
        let insert = |block: TableBlock, undo: &str| Insert {
            table: block.table,
            token: token(block.table, undo),
            body: Bytes::from(block.bytes),
        };
        let blocks = self.rows.finish();
        Range {
            inserts: blocks.blocks.into_iter().map(|block| insert(block, "")).collect(),
            undo: blocks.undo.map(|block| insert(block, " taken back")),
            fresh: blocks.fresh,
            pending: self.pending,
            letters: self.letters,
            messages: self.messages,
            counts: self.counts,
        }
    }
}

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}
