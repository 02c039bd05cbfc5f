//! Rows that somebody asked for: stacks that are stored, through the stack schemas of now; frames that are stored, by the symbol
//! files of now.

use std::time::Duration;

use clickhouse::Client;

use crate::error::SinkError;
use crate::rows::{FrameRows, TagRows};
use crate::tables::Table;

/// Longest time for one insert.
const REQUEST_TIME: Duration = Duration::from_secs(60);

/// Inserts rows of tags. Nothing can double: a row counts instead of those of the same stack and context that are older,
/// and samples are not touched.
///
/// # Errors
/// [`SinkError::Store`]: nothing or all of it is stored, and the same may be written again.
pub async fn write_tags(client: &Client, rows: &TagRows) -> Result<(), SinkError> {
    if rows.is_empty() {
        return Ok(());
    }
    insert(client, Table::Tags, rows.block().1, "insert tags").await
}

/// Inserts rows of frames. Nothing can double: a row counts instead of those of the same frame that are older, and samples and
/// stacks are not touched.
///
/// # Errors
/// [`SinkError::Store`]: nothing or all of it is stored, and the same may be written again.
pub async fn write_frames(client: &Client, rows: &FrameRows) -> Result<(), SinkError> {
    if rows.is_empty() {
        return Ok(());
    }
    insert(client, Table::Frames, rows.block().1, "insert frames").await
}

async fn insert(client: &Client, table: Table, block: Vec<u8>, doing: &'static str) -> Result<(), SinkError> {
    let mut request = client
        .clone()
        .with_setting("async_insert", "0")
        .insert_formatted_with(table.insert_sql())
        .with_timeouts(Some(REQUEST_TIME), Some(REQUEST_TIME));
    let sent = async {
        request.send(block.into()).await?;
        request.end().await
    };
    sent.await.map_err(|source| SinkError::Store { doing, source })
}
