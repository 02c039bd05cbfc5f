//! SQL as people write it.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::{Error, Explorer};

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Name.
    pub name: String,
    /// ClickHouse's type.
    #[serde(rename = "type")]
    pub kind: String,
}

/// An answer in columns and rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The columns.
    #[serde(rename = "meta")]
    pub columns: Vec<Column>,
    /// The rows, each with a value per column. Numbers of 64 bits may be text, as the server is set.
    #[serde(rename = "data")]
    pub rows: Vec<Vec<serde_json::Value>>,
}

impl Explorer {
    /// Runs `sql` and returns its rows. Who asks decides what is allowed: use a reader. A statement without rows gives
    /// an empty table.
    ///
    /// # Errors
    /// [`Error::Store`] with ClickHouse's text, [`Error::Answer`] when `sql` has a FORMAT clause of its own.
    pub async fn query(&self, sql: &str) -> Result<Table, Error> {
        let mut answer = Vec::new();
        self.query_to(sql, "JSONCompact", &mut answer).await?;
        if answer.is_empty() {
            return Ok(Table {
                columns: Vec::new(),
                rows: Vec::new(),
            });
        }
        serde_json::from_slice(&answer).map_err(|source| Error::Answer {
            expected: "JSONCompact",
            source,
        })
    }

    /// Runs `sql` and writes its answer, as it comes, in one of ClickHouse's formats (`CSVWithNames`, `JSONEachRow`).
    ///
    /// # Errors
    /// [`Error::Store`] with ClickHouse's text, also in the middle of an answer; [`Error::Write`].
    pub async fn query_to(&self, sql: &str, format: &str, out: &mut impl Write) -> Result<(), Error> {
        let failed = self.failed("run the query");
        let sql = sql.trim().trim_end_matches(';');
        let mut answer = self
            .client()
            .query_raw(sql)
            .fetch_bytes(format)
            .map_err(&failed)?;
        while let Some(bytes) = answer.next().await.map_err(&failed)? {
            out.write_all(&bytes).map_err(|source| Error::Write { source })?;
        }
        Ok(())
    }
}
