//! What an operator could fix.

/// Why the sink cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A key of the configuration holds what cannot work.
    #[error("`sink.{key}` is {value}: {remedy}")]
    Setting {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A table is not as this sink writes it.
    #[error(
        "table `{table}` has no column `{column}` of type {wanted}, but {found}: apply the tables of this version"
    )]
    Column {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The type that is sent.
        wanted: &'static str,
        /// What the table has.
        found: String,
    },
    /// ClickHouse refuses what waiting will not heal.
    #[error("ClickHouse refuses to {doing}: {source}")]
    Store {
        /// What was being done.
        doing: &'static str,
        /// What it says.
        source: clickhouse::error::Error,
    },
    /// Somebody else's text stands beside a committed offset.
    #[error("partition {partition}: {source}")]
    Note {
        /// The partition.
        partition: String,
        /// The text.
        source: crate::pending::Unreadable,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The thread that speaks with ClickHouse ended.
    #[error("the thread that speaks with ClickHouse ended; its last words are in the log")]
    StoreGone,
    /// A commit was refused for good.
    #[error(transparent)]
    Commit(#[from] strobe_bus::CommitError),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] strobe_bus::Error),
}

impl SinkError {
    /// Returns whether the same may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Bus(error) => error.is_transient(),
            Self::Commit(error) => error.is_transient(),
            _ => false,
        }
    }
}
