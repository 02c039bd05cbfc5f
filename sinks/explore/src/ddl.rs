//! The tables, as numbered, idempotent SQL that travels inside the executable. `strobe ddl apply` applies it.
//!
//! One text serves both forms: on a cluster, [`replicated`] turns its two markers into `ON CLUSTER` and `Replicated`.

use crate::{ClickHouse, Error};

const FILES: [&str; 15] = [
    include_str!("../../../infra/clickhouse/ddl/0001_samples.sql"),
    include_str!("../../../infra/clickhouse/ddl/0002_stacks.sql"),
    include_str!("../../../infra/clickhouse/ddl/0002_stacks_end.sql"),
    include_str!("../../../infra/clickhouse/ddl/0003_frames.sql"),
    include_str!("../../../infra/clickhouse/ddl/0004_tags.sql"),
    include_str!("../../../infra/clickhouse/ddl/0005_totals_hourly.sql"),
    include_str!("../../../infra/clickhouse/ddl/0006_batches.sql"),
    include_str!("../../../infra/clickhouse/ddl/0007_runs.sql"),
    include_str!("../../../infra/clickhouse/ddl/0008_stack_locations.sql"),
    include_str!("../../../infra/clickhouse/ddl/0009_sample_frames.sql"),
    include_str!("../../../infra/clickhouse/ddl/0010_coverage.sql"),
    include_str!("../../../infra/clickhouse/ddl/0011_service_hours.sql"),
    include_str!("../../../infra/clickhouse/ddl/0012_tagged_samples.sql"),
    include_str!("../../../infra/clickhouse/ddl/0013_tagged_frames.sql"),
    include_str!("../../../infra/clickhouse/ddl/0014_audit.sql"),
];

/// Returns the statements in their order: one per file.
pub fn statements() -> Vec<&'static str> {
    FILES.to_vec()
}

/// Returns the statements for a cluster: made on each of its servers, with replicated engines, whose paths are the
/// server's defaults.
///
/// # Errors
/// [`Error::Setting`] when `cluster` is no plain name.
pub fn replicated(cluster: &str) -> Result<Vec<String>, Error> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if cluster.is_empty() || !cluster.chars().all(word) {
        let rule = "letters, digits, underscores or dashes";
        return Err(Error::Setting {
            name: "cluster",
            value: cluster.to_owned(),
            rule,
        });
    }
    let on_cluster = format!("ON CLUSTER `{cluster}`");
    let turn = |text: &&str| {
        text.replace("/*ON CLUSTER*/", &on_cluster)
            .replace("/*Replicated*/", "Replicated")
    };
    Ok(FILES.iter().map(turn).collect())
}

/// Makes the database and its tables where they do not exist.
///
/// # Errors
/// [`Error::Store`]; what was made before it stays, and the next call goes on.
pub async fn apply(settings: &ClickHouse) -> Result<(), Error> {
    let failed = |source| Error::Store {
        action: "make the tables",
        url: settings.url().to_owned(),
        source,
    };
    // The name was proved to be letters, digits and underscores.
    let database = format!("CREATE DATABASE IF NOT EXISTS `{}`", settings.database());
    settings
        .client_without_database()
        .query_raw(&database)
        .execute()
        .await
        .map_err(failed)?;
    let client = settings.client();
    for statement in statements() {
        client
            .query_raw(statement.trim_end().trim_end_matches(';'))
            .execute()
            .await
            .map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use strobe_event::{AuditAction, AuditOutcome, MarkKind, Reason, StackEnd};

    /// Checks that each file is one statement that may be repeated, so that it can be sent as it is.
    #[test]
    fn each_file_is_one_statement_that_may_be_repeated() {
        for text in statements() {
            assert_eq!(text.matches(';').count(), 1, "{text}");
            assert!(text.ends_with(";\n"), "{text}");
            let forms = [
                "IF NOT EXISTS",
                "CREATE OR REPLACE VIEW",
                "MODIFY COLUMN IF EXISTS",
            ];
            let count: usize = forms.iter().map(|form| text.matches(form).count()).sum();
            assert_eq!(count, 1, "{text}");
        }
    }

    /// Checks that the folder holds the files that are applied, and no other.
    #[test]
    fn every_file_of_the_folder_is_applied() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra/clickhouse/ddl");
        let entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .filter(|path| path.extension().is_some_and(|end| end == "sql"))
            .collect();
        files.sort();
        let texts: Vec<_> = files
            .iter()
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        assert_eq!(texts, statements());
    }

    /// Checks that no marker is left on a cluster, and that every table there is replicated.
    #[test]
    fn a_cluster_gets_replicated_tables() {
        for text in replicated("prod-1").unwrap() {
            assert!(text.contains("ON CLUSTER `prod-1`"), "{text}");
            assert!(!text.contains("/*"), "{text}");
            assert!(
                text.contains(" VIEW ")
                    || text.contains("ALTER TABLE")
                    || text.contains("ENGINE = Replicated"),
                "{text}"
            );
        }
        assert!(replicated("a; DROP TABLE samples").is_err());
    }

    /// Checks that SQL and Rust call ends, marks, reasons and what is audited by the same names and texts.
    #[test]
    fn sql_names_codes_as_rust_does() {
        let of = |part: &str| {
            FILES
                .into_iter()
                .filter(|text| text.contains(part))
                .collect::<Vec<_>>()
        };
        for kind in MarkKind::ALL {
            assert!(
                of("CREATE TABLE IF NOT EXISTS tags")[0].contains(&format!(
                    "'{}' = {}",
                    kind.name(),
                    kind as u8
                )),
                "{kind:?}"
            );
        }
        let ends = of("end Enum8");
        assert_eq!(
            ends.len(),
            2,
            "where the table is made, and where an older one is brought up to date"
        );
        for (text, end) in ends.iter().flat_map(|text| StackEnd::ALL.map(|end| (text, end))) {
            assert!(
                text.contains(&format!("'{}' = {}", end.name(), end as u8)),
                "{end:?}"
            );
        }
        let audit = of("CREATE TABLE IF NOT EXISTS audit")[0];
        let actions = AuditAction::ALL.map(|action| (action.name(), action as u8));
        let outcomes = AuditOutcome::ALL.map(|outcome| (outcome.name(), outcome as u8));
        for (name, code) in actions.into_iter().chain(outcomes) {
            assert!(audit.contains(&format!("'{name}' = {code}")), "{name}");
        }
        let reasons = of("transform(reason")[0];
        for reason in Reason::ALL {
            assert!(reasons.contains(&format!("'{}'", reason.name())), "{reason:?}");
            assert!(
                reasons.contains(&format!("'{}'", reason.text().replace('\'', "\\'"))),
                "{reason:?}"
            );
        }
    }
}
