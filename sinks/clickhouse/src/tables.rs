//! The tables as this sink writes them: names, and the columns with the types that are sent.

use crate::error::SinkError;

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// What frames are called.
    Frames,
    /// What stacks are.
    Stacks,
    /// Tags and marks of stacks in contexts.
    Tags,
    /// Sums per hour.
    TotalsHourly,
    /// One row per batch.
    Batches,
    /// One row per sample. Last: only its rows mean "stored".
    Samples,
    /// One row per event of a run.
    Runs,
    /// What became of slots.
    Coverage,
    /// Who asked for what, and who was refused.
    Audit,
}

type Column = (&'static str, &'static str);

const FRAMES: [Column; 11] = [
    ("frame", "UInt64"),
    ("generation", "UInt64"),
    ("functions", "Array(String)"),
    ("files", "Array(String)"),
    ("lines", "Array(UInt32)"),
    ("module", "LowCardinality(String)"),
    ("build_id", "String"),
    ("kind", "Int8"),
    ("address", "UInt64"),
    ("reason", "LowCardinality(String)"),
    ("day", "Date"),
];
const STACKS: [Column; 5] = [
    ("stack", "UInt64"),
    ("stack_high", "UInt64"),
    ("frames", "Array(UInt64)"),
    ("end", "Int8"),
    ("day", "Date"),
];
const TAGS: [Column; 16] = [
    ("stack", "UInt64"),
    ("context", "UInt64"),
    ("generation", "UInt64"),
    ("service", "LowCardinality(String)"),
    ("profiler", "LowCardinality(String)"),
    ("labels", "Map(String, String)"),
    ("tags", "Array(LowCardinality(String))"),
    ("frame_tags.frame", "Array(UInt16)"),
    ("frame_tags.inline", "Array(UInt16)"),
    ("frame_tags.tag", "Array(LowCardinality(String))"),
    ("marks.frame", "Array(UInt16)"),
    ("marks.inline", "Array(UInt16)"),
    ("marks.kind", "Array(Int8)"),
    ("marks.text", "Array(LowCardinality(String))"),
    ("schemas", "Array(LowCardinality(String))"),
    ("day", "Date"),
];
const TOTALS_HOURLY: [Column; 7] = [
    ("hour", "DateTime"),
    ("service", "LowCardinality(String)"),
    ("profiler", "LowCardinality(String)"),
    ("stack", "UInt64"),
    ("fleet_weight", "Float64"),
    ("run_weight", "Float64"),
    ("samples", "UInt64"),
];
const BATCHES: [Column; 16] = [
    ("host", "LowCardinality(String)"),
    ("epoch", "UUID"),
    ("sequence", "UInt64"),
    ("part", "UInt32"),
    ("run", "UUID"),
    ("profiler", "LowCardinality(String)"),
    ("cause", "Int8"),
    ("batch_index", "UInt32"),
    ("start_time", "DateTime64(6)"),
    ("end_time", "DateTime64(6)"),
    ("samples", "UInt64"),
    ("taken", "UInt64"),
    ("idle", "UInt64"),
    ("enabled_ns", "UInt64"),
    ("running_ns", "UInt64"),
    ("drops", "Map(String, UInt64)"),
];
// Each value of few distinct ones is sent once per block, whatever the table keeps them as.
const SAMPLES: [Column; 19] = [
    ("service", "LowCardinality(String)"),
    ("profiler", "LowCardinality(String)"),
    ("time", "DateTime64(6)"),
    ("stack", "LowCardinality(UInt64)"),
    ("fleet_weight", "LowCardinality(Float64)"),
    ("run_weight", "LowCardinality(Float64)"),
    ("host", "LowCardinality(String)"),
    ("pid", "UInt32"),
    ("tid", "UInt32"),
    ("thread", "LowCardinality(String)"),
    ("executable", "LowCardinality(String)"),
    ("container", "LowCardinality(String)"),
    ("cpu", "UInt16"),
    ("cause", "Int8"),
    ("run", "LowCardinality(UUID)"),
    ("epoch", "LowCardinality(UUID)"),
    ("sequence", "LowCardinality(UInt64)"),
    ("part", "LowCardinality(UInt32)"),
    ("context", "LowCardinality(UInt64)"),
];
const RUNS: [Column; 19] = [
    ("run", "UUID"),
    ("host", "LowCardinality(String)"),
    ("profiler", "LowCardinality(String)"),
    ("cause", "Int8"),
    ("state", "Int8"),
    ("time", "DateTime64(6)"),
    ("detail", "String"),
    ("planned_us", "UInt64"),
    ("done_us", "UInt64"),
    ("run_probability", "Float64"),
    ("period", "UInt64"),
    ("taken", "UInt64"),
    ("spooled", "UInt64"),
    ("idle", "UInt64"),
    ("batches", "UInt64"),
    ("drops", "Map(String, UInt64)"),
    ("epoch", "UUID"),
    ("sequence", "UInt64"),
    ("part", "UInt32"),
];

const COVERAGE: [Column; 23] = [
    ("service", "LowCardinality(String)"),
    ("profiler", "LowCardinality(String)"),
    ("host", "LowCardinality(String)"),
    ("hour", "DateTime"),
    ("until", "DateTime64(6)"),
    ("slot_us", "UInt64"),
    ("revision", "UInt64"),
    ("planned", "UInt64"),
    ("refused", "UInt64"),
    ("complete", "UInt64"),
    ("cut_short", "UInt64"),
    ("drawn_inverse", "Float64"),
    ("done_us", "UInt64"),
    ("taken", "UInt64"),
    ("cpu_us", "UInt64"),
    ("cpu_source", "Int8"),
    ("runs", "UInt64"),
    ("u", "Float64"),
    ("uu", "Float64"),
    ("t", "Float64"),
    ("tt", "Float64"),
    ("tu", "Float64"),
    ("epoch", "UUID"),
];

const AUDIT: [Column; 14] = [
    ("id", "UUID"),
    ("time", "DateTime64(6)"),
    ("who", "String"),
    ("proved", "Bool"),
    ("reporter", "LowCardinality(String)"),
    ("action", "Int8"),
    ("outcome", "Int8"),
    ("reason", "LowCardinality(String)"),
    ("detail", "String"),
    ("subject", "String"),
    ("service", "LowCardinality(String)"),
    ("profiler", "LowCardinality(String)"),
    ("target", "String"),
    ("why", "String"),
];

impl Table {
    /// Every table, in the order of the inserts.
    pub const ALL: [Self; 9] = [
        Self::Frames,
        Self::Stacks,
        Self::Tags,
        Self::TotalsHourly,
        Self::Batches,
        Self::Samples,
        Self::Runs,
        Self::Coverage,
        Self::Audit,
    ];

    /// Returns the table's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Stacks => "stacks",
            Self::Tags => "tags",
            Self::TotalsHourly => "totals_hourly",
            Self::Batches => "batches",
            Self::Samples => "samples",
            Self::Runs => "runs",
            Self::Coverage => "coverage",
            Self::Audit => "audit",
        }
    }

    /// Returns the columns that are written, with the types that are sent.
    pub fn columns(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Frames => &FRAMES,
            Self::Stacks => &STACKS,
            Self::Tags => &TAGS,
            Self::TotalsHourly => &TOTALS_HOURLY,
            Self::Batches => &BATCHES,
            Self::Samples => &SAMPLES,
            Self::Runs => &RUNS,
            Self::Coverage => &COVERAGE,
            Self::Audit => &AUDIT,
        }
    }

    /// Returns the statement that inserts a block.
    pub fn insert_sql(self) -> String {
        let columns: Vec<String> = self
            .columns()
            .iter()
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        format!(
            "INSERT INTO `{}` ({}) FORMAT Native",
            self.name(),
            columns.join(", ")
        )
    }

    /// Proves that the table has every column that is written, of a type that holds it.
    ///
    /// # Errors
    /// [`SinkError::Column`] names the first one that does not fit.
    pub fn check(self, described: &[(String, String)]) -> Result<(), SinkError> {
        for &(column, wanted) in self.columns() {
            let found = described.iter().find(|(name, _)| name == column);
            if found.is_none_or(|(_, kind)| plain(kind) != plain(wanted)) {
                return Err(SinkError::Column {
                    table: self.name(),
                    column,
                    wanted,
                    found: found.map_or_else(|| "none".to_owned(), |(_, kind)| kind.clone()),
                });
            }
        }
        Ok(())
    }
}

/// Returns a type without what does not decide whether a value fits: dictionaries, time zones, names of codes.
fn plain(kind: &str) -> String {
    if kind.starts_with("Enum8(") {
        return "Int8".into();
    }
    if kind.starts_with("Array(Enum8(") {
        return "Array(Int8)".into();
    }
    let mut out = kind.replace(", 'UTC'", "").replace("('UTC')", "");
    while let Some(start) = out.find("LowCardinality(") {
        let inside = start + "LowCardinality(".len();
        let Some(end) = out[inside..].find(')') else { break };
        out.remove(inside + end);
        out.replace_range(start..inside, "");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that types which hold the same count as the same, and that others and absent ones are named.
    #[test]
    fn a_wrong_column_is_named() {
        let described = |kind: &str| -> Vec<(String, String)> {
            let kinds = ["UInt64", "UInt64", "Array(UInt64)", "Enum8('root' = 1)", kind];
            STACKS
                .iter()
                .zip(kinds)
                .map(|(&(name, _), kind)| (name.to_owned(), kind.to_owned()))
                .collect()
        };
        Table::Stacks.check(&described("Date")).unwrap();
        let wrong = Table::Stacks
            .check(&described("DateTime('UTC')"))
            .unwrap_err()
            .to_string();
        assert!(wrong.contains("`day`") && wrong.contains("DateTime"), "{wrong}");
        let missing = Table::Stacks
            .check(&described("Date")[..4])
            .unwrap_err()
            .to_string();
        assert!(missing.contains("`day`") && missing.contains("none"), "{missing}");
        for (stored, sent) in [
            ("LowCardinality(UInt64)", "UInt64"),
            ("Map(LowCardinality(String), UInt64)", "Map(String, UInt64)"),
            ("Array(LowCardinality(String))", "Array(String)"),
            ("Array(Enum8('hidden' = 1))", "Array(Int8)"),
            ("DateTime64(6, 'UTC')", "DateTime64(6)"),
            ("DateTime('UTC')", "DateTime"),
        ] {
            assert_eq!(plain(stored), plain(sent));
        }
        assert_ne!(plain("DateTime64(3, 'UTC')"), plain("DateTime64(6)"));
    }
}
