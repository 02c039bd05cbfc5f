//! The audit, as it is stored.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use crate::selection::Sql;
use crate::{Error, Explorer, Range};

/// Records returned at most: what people read, and what a script can ask for in pieces.
pub const AUDIT_ROWS_MAX: usize = 100_000;

/// Which records are asked for; what is not given is any.
#[derive(Debug, Clone, Default)]
pub struct AuditAsked {
    /// Of this person or rule.
    pub who: Option<String>,
    /// About this service.
    pub service: Option<String>,
    /// About this profiler.
    pub profiler: Option<String>,
    /// Of this kind: `profile`, `cancel`, `configure`, ...
    pub action: Option<String>,
    /// That came to this: `asked`, `allowed`, `refused`, `ended`, `done`.
    pub outcome: Option<String>,
    /// About the request or configuration whose name begins so.
    pub subject: Option<String>,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// Its name, 32 hexadecimal digits.
    pub id: String,
    /// When, microseconds since 1970 (UTC).
    pub time_us: i64,
    /// The principal of the signature, or else who it says that it is.
    pub who: String,
    /// Whether a signature proved who.
    pub proved: bool,
    /// Who says so.
    pub reporter: String,
    /// What was done, or was to be.
    pub action: String,
    /// What came of it.
    pub outcome: String,
    /// Why it was refused, or how it ended, in one word.
    pub reason: String,
    /// The same for people.
    pub detail: String,
    /// Name of the request, or of what was configured.
    pub subject: String,
    /// Service that it is about.
    pub service: String,
    /// Profiler that it is about.
    pub profiler: String,
    /// Which hosts and processes it is about.
    pub target: String,
    /// What it is for, as whoever asked says.
    pub why: String,
}

impl Explorer {
    /// Returns the records of a range, the oldest first; of more than [`AUDIT_ROWS_MAX`] the newest.
    ///
    /// # Errors
    /// [`Error::Store`], and [`Error::Selection`] for an empty range.
    pub async fn audit(&self, range: Range, asked: &AuditAsked) -> Result<Vec<AuditRow>, Error> {
        if range.since_us >= range.until_us {
            let text = "the range is empty: `until` must be later than `since`";
            return Err(Error::Selection(text.into()));
        }
        let us = |us: u64| Some(i64::try_from(us).unwrap_or(i64::MAX));
        let sql = Sql::default()
            .push(
                "SELECT replaceAll(toString(id), '-', '') AS id_text, toUnixTimestamp64Micro(time) AS time_us, who, proved, \
                 toString(reporter) AS by, toString(action) AS what, toString(outcome) AS came, toString(reason) AS because, \
                 detail, subject, toString(service) AS of_service, toString(profiler) AS of_profiler, target, why \
                 FROM audit FINAL",
            )
            .number(" WHERE toUnixTimestamp64Micro(time) >= {since:Int64}", "since", us(range.since_us))
            .number(" AND toUnixTimestamp64Micro(time) < {until:Int64}", "until", us(range.until_us))
            .text(" AND who = {who:String}", "who", asked.who.as_deref())
            .text(" AND service = {service:String}", "service", asked.service.as_deref())
            .text(" AND profiler = {profiler:String}", "profiler", asked.profiler.as_deref())
            .text(" AND toString(action) = {action:String}", "action", asked.action.as_deref())
            .text(" AND toString(outcome) = {outcome:String}", "outcome", asked.outcome.as_deref())
            .text(" AND startsWith(subject, {subject:String})", "subject", asked.subject.as_deref())
            .number(
                " ORDER BY time DESC, id DESC LIMIT {most:Int64}",
                "most",
                Some(AUDIT_ROWS_MAX as i64),
            );
        let rows = sql.query(self.client()).fetch_all::<StoredRow>().await;
        let rows = rows.map_err(self.failed("read the audit"))?;
        Ok(rows.into_iter().rev().map(AuditRow::from).collect())
    }
}

/// A record under the names that the query gives its columns: they must not be those of the table.
#[derive(Row, Deserialize)]
struct StoredRow {
    id_text: String,
    time_us: i64,
    who: String,
    proved: bool,
    by: String,
    what: String,
    came: String,
    because: String,
    detail: String,
    subject: String,
    of_service: String,
    of_profiler: String,
    target: String,
    why: String,
}

impl From<StoredRow> for AuditRow {
    fn from(row: StoredRow) -> Self {
        Self {
            id: row.id_text,
            time_us: row.time_us,
            who: row.who,
            proved: row.proved,
            reporter: row.by,
            action: row.what,
            outcome: row.came,
            reason: row.because,
            detail: row.detail,
            subject: row.subject,
            service: row.of_service,
            profiler: row.of_profiler,
            target: row.target,
            why: row.why,
        }
    }
}
