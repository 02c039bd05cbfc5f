//! `strobe query`: SQL, as the reader.

use std::io::Read;

use strobe_explore::Explorer;

use crate::commands::wait;
use crate::config::Config;
use crate::error::CliError;
use crate::render;

/// The arguments.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe query 'SELECT function, file, line, sum(fleet_weight) / 1e9 AS cpu_seconds FROM \
                        sample_frames WHERE function LIKE $$%vector%$$ GROUP BY ALL ORDER BY 4 DESC LIMIT 10'\n  strobe \
                        query -o csv < question.sql"
)]
pub struct Args {
    /// The statement; standard input unless given.
    sql: Option<String>,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For people.
    Table,
    /// An object for each row.
    Json,
    /// Comma-separated, with a header.
    Csv,
}

/// Statements longer than this are a mistake.
const SQL_BYTES_MAX: u64 = 1 << 20;

/// Runs the statement.
///
/// # Errors
/// [`CliError`].
pub fn run(config: &Config, args: &Args) -> Result<(), CliError> {
    let sql = match &args.sql {
        Some(sql) => sql.clone(),
        None => {
            let mut text = String::new();
            let read = std::io::stdin().take(SQL_BYTES_MAX + 1).read_to_string(&mut text);
            read.map_err(|source| CliError::Io {
                action: "read",
                what: "standard input".into(),
                source,
            })?;
            text
        }
    };
    if sql.len() as u64 > SQL_BYTES_MAX {
        return Err(CliError::Usage(format!(
            "the SQL is longer than {SQL_BYTES_MAX} bytes: is it the right file?"
        )));
    }
    if sql.trim().is_empty() {
        return Err(CliError::Usage(
            "there is no SQL: give it as an argument or on standard input".into(),
        ));
    }
    let explorer = Explorer::new(&config.clickhouse.reader()?);
    if args.output == Form::Csv {
        let mut out = std::io::stdout();
        return wait(async { Ok(explorer.query_to(&sql, "CSVWithNames", &mut out).await?) });
    }
    let table = wait(async { Ok(explorer.query(&sql).await?) })?;
    if args.output == Form::Json {
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        let rows = table.rows.into_iter().map(|row| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .zip(row)
                .collect::<serde_json::Map<_, _>>()
        });
        return render::json(&rows.collect::<Vec<_>>());
    }
    let is_number = |kind: &str| {
        ["Int", "UInt", "Float", "Decimal"]
            .iter()
            .any(|number| kind.starts_with(number))
    };
    let columns: Vec<(&str, bool)> = table
        .columns
        .iter()
        .map(|column| (column.name.as_str(), is_number(&column.kind)))
        .collect();
    let rows = table.rows.iter().map(|row| {
        row.iter()
            .map(|value| match value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            })
            .collect()
    });
    render::say(render::table(&columns, rows))
}
