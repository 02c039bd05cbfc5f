//! How a range becomes visible exactly once, whoever dies in between. Each line rests on the one before:
//!
//! 1. The *unchanged* position is committed, and beside it the range that is about to be inserted ([`Pending`]). A
//!    commit that is fenced means somebody else owns the partition: nothing is inserted.
//! 2. Every table gets one insert, in order, under a token that is a function of the table and the range. ClickHouse
//!    drops a repeat with the same token.
//! 3. The position behind the range is committed, with nothing beside it.
//!
//! Who takes over a partition with a range beside its position reads exactly that range again, leaves out what the note
//! says was left out, and inserts it to every table once more: whatever its predecessor had inserted is dropped by
//! its token. Only then does it look at what is stored and cut ranges of its own. So a range once named is never cut
//! otherwise, and two owners that overlap (one was stopped, and wakes up) insert the same rows under the same tokens.
//!
//! A range that ClickHouse *refuses* is the one exception: it must be cut otherwise, without what is refused. Then its
//! totals may be stored already, and must be taken back first: the note gets a mark, the totals are inserted (so that
//! they surely are) and then their negation, each under a token; then the position is committed with a number of
//! attempts that is part of all later tokens, so that what was taken back can be inserted again. Everything else may be
//! written twice without harm, but for the samples, which come last and are refused or stored as a whole.

use bytes::Bytes;

use crate::pending::{Note, Pending};
use crate::tables::Table;

/// Rows of one table.
#[derive(Debug, Clone)]
pub struct Insert {
    /// The table.
    pub table: Table,
    /// The same for the same rows, and for no others.
    pub token: String,
    /// The block.
    pub body: Bytes,
}

/// What ClickHouse said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    /// It has the rows, or had them.
    Stored,
    /// It will never take them.
    Rejected(String),
}

/// What became of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is stored, and the position is behind it.
    Stored,
    /// It was refused and nothing of it counts; the position is where it was.
    Rejected {
        /// What ClickHouse said.
        reason: String,
        /// The attempt that the next range from here is.
        attempt: u32,
    },
}

/// What the protocol needs of the world; a failure that leaves the range to whoever comes next is a `Halt`.
pub trait World {
    /// Why it cannot go on.
    type Halt;
    /// Commits the offset to read next, with a text beside it.
    fn commit(&mut self, next: i64, note: &str) -> Result<(), Self::Halt>;
    /// Inserts rows, as often as it takes for an answer.
    fn insert(&mut self, insert: &Insert) -> Result<Inserted, Self::Halt>;
    /// A point at which a test may end the process.
    fn passes(&mut self, point: &str);
}

/// Stores a range that was cut just now, or one that a predecessor named.
pub fn store<W: World>(
    world: &mut W,
    pending: &Pending,
    inserts: &[Insert],
    undo: Option<&Insert>,
) -> Result<Outcome, W::Halt> {
    world.commit(pending.first, &pending.to_string())?;
    world.passes("sink.pending_committed");
    let mut refused = pending.undo.then(|| "refused before".to_owned());
    for insert in inserts {
        if refused.is_some() {
            break;
        }
        match world.insert(insert)? {
            Inserted::Stored => world.passes(after_insert(insert.table)),
            Inserted::Rejected(reason) => refused = Some(reason),
        }
    }
    let Some(reason) = refused else {
        world.passes("sink.before_commit");
        world.commit(pending.last + 1, "")?;
        return Ok(Outcome::Stored);
    };
    let marked = Pending {
        undo: true,
        ..pending.clone()
    };
    world.commit(pending.first, &marked.to_string())?;
    world.passes("sink.undo_committed");
    if let Some(undo) = undo
        && let Some(totals) = inserts.iter().find(|insert| insert.table == undo.table)
        && world.insert(totals)? == Inserted::Stored
    {
        world.insert(undo)?;
        world.passes("sink.after_undo");
    }
    let attempt = pending.attempt + 1;
    world.commit(pending.first, &Note::Free { attempt }.to_string())?;
    Ok(Outcome::Rejected { reason, attempt })
}

fn after_insert(table: Table) -> &'static str {
    match table {
        Table::Frames => "sink.after_insert.frames",
        Table::Stacks => "sink.after_insert.stacks",
        Table::Tags => "sink.after_insert.tags",
        Table::TotalsHourly => "sink.after_insert.totals_hourly",
        Table::Batches => "sink.after_insert.batches",
        Table::Samples => "sink.after_insert.samples",
        Table::Runs => "sink.after_insert.runs",
        Table::Coverage => "sink.after_insert.coverage",
        Table::Audit => "sink.after_insert.audit",
    }
}
