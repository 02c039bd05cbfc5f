//! `strobe stacks`: stack schemas as files; what needs the store or the bus is in files of its own.

use std::path::{Path, PathBuf};

use strobe_stack_schema::{Diagnostic, Library, Severity, Source, StackSchemaError, check, stacktags, test};

use crate::commands::{stacks_on_bus, stacks_try};
use crate::config::Config;
use crate::error::CliError;
use crate::{input, render, shipped};

/// What to do.
#[derive(clap::Subcommand)]
#[command(after_help = "Examples:\n  \
    strobe stacks check schemas/stacks\n  \
    strobe stacks test schemas/stacks/cpp.stacks\n  \
    strobe stacks import team.stacktags > team.stacks\n  \
    strobe stacks try team.stacks --since -1h --service checkout\n  \
    strobe stacks apply --shipped\n  \
    strobe stacks list\n  \
    strobe stacks remove team")]
pub enum Command {
    /// Look schemas over: rules without an example, that can never match, that never prevail.
    Check {
        #[command(flatten)]
        files: Files,
        /// Let rules be without an example.
        #[arg(long)]
        untested: bool,
    },
    /// Run the examples that stand beside the rules, and show what differs.
    Test {
        #[command(flatten)]
        files: Files,
    },
    /// Show what schemas would do to stored samples, before anyone enables them: share per tag, frames removed, untagged rest.
    Try(Box<stacks_try::Args>),
    /// Put schemas in force for the fleet: processors take them over between two batches.
    Apply(stacks_on_bus::Apply),
    /// List the schemas that were applied.
    List(stacks_on_bus::List),
    /// Take schemas out of force.
    Remove(stacks_on_bus::Remove),
    /// Write a file of Microsoft's stack tags as a schema, on standard output; what cannot be carried over, on standard error.
    Import {
        /// The file.
        file: PathBuf,
        /// Name of the schema; by default the file's.
        #[arg(long)]
        name: Option<String>,
    },
}

/// Which schemas.
#[derive(clap::Args)]
pub struct Files {
    /// Files, or folders of `.stacks` files. What one includes must be among them.
    #[arg(required_unless_present = "shipped")]
    paths: Vec<PathBuf>,
    /// The schemas that Strobe ships: copies, strings, allocation, locks, compression, kernel areas and more.
    #[arg(long)]
    shipped: bool,
}

impl Files {
    /// Returns the texts of the files, those of a folder by name.
    ///
    /// # Errors
    /// [`CliError`] names the file that cannot be read, or the folder that has none.
    pub fn sources(&self) -> Result<Vec<Source>, CliError> {
        let mut sources: Vec<Source> = match self.shipped {
            true => shipped::sources().collect(),
            false => Vec::new(),
        };
        for path in &self.paths {
            if !path.is_dir() {
                sources.push(read(path)?);
                continue;
            }
            let mut found = Vec::new();
            for entry in std::fs::read_dir(path).map_err(input::failed("read", path))? {
                let file = entry.map_err(input::failed("read", path))?.path();
                if file.extension().is_some_and(|extension| extension == "stacks") {
                    found.push(file);
                }
            }
            if found.is_empty() {
                let folder = path.display();
                return Err(CliError::Usage(format!(
                    "{folder} has no file that ends in `.stacks`"
                )));
            }
            found.sort();
            for file in &found {
                sources.push(read(file)?);
            }
        }
        Ok(sources)
    }
}

fn read(path: &Path) -> Result<Source, CliError> {
    Ok(Source::new(&path.display().to_string(), &input::text(path)?))
}

/// Returns a refusal as what was typed wrong.
pub fn refused(error: StackSchemaError) -> CliError {
    CliError::Usage(error.to_string())
}

/// Carries a command out.
///
/// # Errors
/// [`CliError`]; [`CliError::Said`] where schemas have errors, which are printed.
pub fn run(config: &Config, command: &Command) -> Result<(), CliError> {
    match command {
        Command::Try(args) => stacks_try::run(config, args),
        Command::Apply(args) => stacks_on_bus::apply(config, args),
        Command::List(args) => stacks_on_bus::list(config, args),
        Command::Remove(args) => stacks_on_bus::remove(config, args),
        Command::Check { files, untested } => {
            let library = Library::parse(&files.sources()?).map_err(refused)?;
            let mut found: Vec<Diagnostic> = Vec::new();
            for schema in library.schemas() {
                found.extend(check(&library, &schema.name, *untested).map_err(refused)?);
            }
            said(&found)?;
            let errors = found.iter().filter(|one| one.severity == Severity::Error).count();
            let warnings = found.len() - errors;
            let schemas = library.schemas().count();
            render::say(format!("{schemas} schemas: {errors} errors, {warnings} warnings"))?;
            if errors > 0 { Err(CliError::Said) } else { Ok(()) }
        }
        Command::Test { files } => {
            let library = Library::parse(&files.sources()?).map_err(refused)?;
            let (mut passed, mut failures) = (0, Vec::new());
            for schema in library.schemas() {
                let report = test(&library, &schema.name).map_err(refused)?;
                passed += report.passed;
                failures.extend(report.failures);
            }
            said(&failures)?;
            render::say(format!("{passed} examples are true, {} are not", failures.len()))?;
            if failures.is_empty() {
                Ok(())
            } else {
                Err(CliError::Said)
            }
        }
        Command::Import { file, name } => {
            let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let name = name.clone().or(stem).unwrap_or_default();
            let imported = stacktags::import(&name, &read(file)?).map_err(refused)?;
            for note in &imported.notes {
                let place = format!("{}:{}:{}", file.display(), note.line, note.column);
                eprintln!("{}", render::plain(&format!("{place}: {}", note.message)));
            }
            render::say(imported.text.trim_end())
        }
    }
}

/// Prints what was found. A text of several lines: each is cleaned by itself.
///
/// # Errors
/// [`CliError::Io`] where standard output cannot be written.
pub fn said(found: &[Diagnostic]) -> Result<(), CliError> {
    for one in found {
        let text = one.to_string();
        let lines: Vec<String> = text.lines().map(render::plain).collect();
        render::say(format!("{}\n", lines.join("\n")))?;
    }
    Ok(())
}
