//! `strobe stacks apply|list|remove`: which stack schemas are in force for the fleet.

use std::time::Duration;

use serde_json::json;
use strobe_bus::{Headers, Outcome, Outgoing, ResendingProducer, Topic, WindowFull, WindowLimits};
use strobe_event::{AuditAction, StackSchemaFile, codec};
use strobe_processor::schemas;
use strobe_stack_schema::{Library, Severity, check, test};

use crate::auditing::changed;
use crate::commands::stacks::{Files, refused, said};
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::{now_us, shown};

/// How long the bus may take to acknowledge what is published.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// Which schemas are put in force.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  strobe stacks apply --shipped\n  strobe stacks apply schemas/stacks team.stacks\n  strobe stacks apply shared.stacks checkout.stacks \
                  --enable checkout"
)]
pub struct Apply {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    enable: Enable,
    /// Let rules be without an example.
    #[arg(long)]
    untested: bool,
    /// Publish another text under a version that is on the bus already.
    #[arg(long)]
    force: bool,
    /// Do nothing where schemas are on the bus already: for what starts a site, so that it changes nobody's choice.
    #[arg(long)]
    unless_any: bool,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
}

/// Which of the given schemas do something by themselves.
#[derive(clap::Args)]
pub struct Enable {
    /// Enable these alone; the others are there to be included. All are enabled otherwise.
    #[arg(long = "enable", value_name = "NAME")]
    names: Vec<String>,
}

/// How the list is shown.
#[derive(clap::Args)]
pub struct List {
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Which schemas are taken out of force.
#[derive(clap::Args)]
pub struct Remove {
    /// Their names, as `strobe stacks list` shows them.
    #[arg(required = true)]
    names: Vec<String>,
}

/// Checks schemas together with those that are on the bus already, and publishes them.
///
/// # Errors
/// [`CliError`]; [`CliError::Said`] where a schema has errors or an example is not true, which are printed: nothing is then
/// published.
pub fn apply(config: &Config, args: &Apply) -> Result<(), CliError> {
    let bus = config.bus()?;
    let sources = args.files.sources()?;
    let given = Library::parse(&sources).map_err(refused)?;
    let mut wrong = Vec::new();
    for schema in given.schemas() {
        let found = check(&given, &schema.name, args.untested).map_err(refused)?;
        wrong.extend(found.into_iter().filter(|one| one.severity == Severity::Error));
        wrong.extend(test(&given, &schema.name).map_err(refused)?.failures);
    }
    if !wrong.is_empty() {
        said(&wrong)?;
        return Err(CliError::Said);
    }
    let files = files_of(&given, &args.enable)?;
    // As processors will see them: with those of others.
    let mut together = schemas::on_bus(&bus)?;
    if args.unless_any && together.iter().count() + together.unreadable().count() > 0 {
        return render::say("stack schemas are on the bus already: nothing was changed");
    }
    for file in &files {
        let known = together
            .get(&file.name)
            .filter(|known| known.version == file.version);
        if !args.force && known.is_some_and(|known| known.whole_text() != file.whole_text()) {
            return Err(CliError::Usage(format!(
                "version {} of `{}` is on the bus with another text: raise its version, or say --force",
                file.version, file.name
            )));
        }
        together.put(file.clone())?;
    }
    if let Some((_, why)) = together.unreadable().next() {
        return Err(CliError::Usage(why.to_owned()));
    }
    let program = together.compile()?;
    let in_force = program.schemas().len();
    if args.dry_run {
        return render::say(format!(
            "{} schemas would be published, {in_force} would be in force",
            files.len()
        ));
    }
    publish(
        config,
        &files
            .iter()
            .map(|file| (file.name.as_str(), Some(file)))
            .collect::<Vec<_>>(),
    )?;
    render::say(format!(
        "{} schemas published, {in_force} in force with {} rules: from now on samples are tagged by them\n`strobe retag --since \
         -1h` tags what is stored already",
        files.len(),
        program.rules()
    ))
}

/// Returns schemas as the bus carries them, applied now by whoever asks.
///
/// # Errors
/// [`CliError::Usage`] where a schema is to be enabled that is not among them.
pub fn files_of(given: &Library, enable: &Enable) -> Result<Vec<StackSchemaFile>, CliError> {
    for name in &enable.names {
        if given.get(name).is_none() {
            return Err(CliError::Usage(format!(
                "--enable `{name}`: no file holds that schema"
            )));
        }
    }
    let by = format!("{}@{}", user(), host());
    let schemas = given.schemas().map(|schema| {
        StackSchemaFile {
            name: schema.name.to_string(),
            version: schema.version,
            enabled: enable.names.is_empty() || enable.names.iter().any(|name| **name == *schema.name),
            applied_us: now_us(),
            applied_by: by.clone(),
            text: Vec::new(),
        }
        .with_text(&schema.source.text)
    });
    Ok(schemas.collect())
}

/// Lists what is on the bus.
///
/// # Errors
/// [`CliError`].
pub fn list(config: &Config, args: &List) -> Result<(), CliError> {
    let files = schemas::on_bus(&config.bus()?)?;
    match args.output {
        Output::Json => {
            let unreadable = files
                .unreadable()
                .map(|(name, why)| json!({"name": name, "unreadable": why}));
            let list: Vec<_> = files
                .iter()
                .map(|file| {
                    json!({
                        "name": file.name, "version": file.version, "enabled": file.enabled,
                        "applied": shown(file.applied_us), "by": file.applied_by, "text": file.whole_text(),
                    })
                })
                .chain(unreadable)
                .collect();
            render::json(&list)
        }
        Output::Table => {
            let columns = [
                ("schema", false),
                ("version", true),
                ("enabled", false),
                ("applied", false),
                ("by", false),
            ];
            let rows = files.iter().map(|file| {
                let enabled = if file.enabled { "yes" } else { "to be included" };
                vec![
                    file.name.clone(),
                    file.version.to_string(),
                    enabled.to_owned(),
                    shown(file.applied_us),
                    file.applied_by.clone(),
                ]
            });
            render::say(render::table(&columns, rows))?;
            for (_, why) in files.unreadable() {
                render::say(render::plain(why))?;
            }
            Ok(())
        }
    }
}

/// Takes schemas out of force.
///
/// # Errors
/// [`CliError::Usage`] for a name that is not there, and where others include one of them.
pub fn remove(config: &Config, args: &Remove) -> Result<(), CliError> {
    let mut files = schemas::on_bus(&config.bus()?)?;
    let whole = files.compile().is_ok();
    for name in &args.names {
        if !files.forget(name) {
            return Err(CliError::Usage(format!(
                "`{name}` is not on the bus: `strobe stacks list` shows what is"
            )));
        }
    }
    // What others include cannot go; where they do not compile as it is, taking something away may be the cure.
    let after = match files.compile() {
        Err(error) if whole => return Err(error.into()),
        after => after,
    };
    let changes: Vec<(&str, Option<&StackSchemaFile>)> =
        args.names.iter().map(|name| (name.as_str(), None)).collect();
    publish(config, &changes)?;
    let removed = args.names.len();
    render::say(match after {
        Ok(program) => format!(
            "{removed} schemas removed, {} in force; `strobe retag` takes their tags from what is stored",
            program.schemas().len()
        ),
        Err(error) => format!("{removed} schemas removed; the others still do not compile: {error}"),
    })
}

/// Publishes schemas, or takes them away, and waits until the bus has all.
fn publish(config: &Config, changes: &[(&str, Option<&StackSchemaFile>)]) -> Result<(), CliError> {
    let bus = config.bus()?;
    let topic = bus.topic(Topic::Config);
    let mut producer = ResendingProducer::new(&bus, WindowLimits::default())?;
    for (at, (name, file)) in changes.iter().enumerate() {
        let value = file.map(codec::encode_framed).transpose();
        let value = value.map_err(|error| CliError::Usage(format!("schema `{name}`: {error}")))?;
        let message = Outgoing {
            topic: topic.as_str().into(),
            key: Some(StackSchemaFile::key(name).into()),
            headers: Headers::new(),
            payload: value.map(Into::into),
        };
        if let Err(WindowFull(_)) = producer.push(at as u64, message) {
            return Err(CliError::Usage(format!(
                "schema `{name}` is too large for the bus"
            )));
        }
    }
    for outcome in producer.flush(ACKNOWLEDGED_WITHIN) {
        if let Outcome::Refused { reason, opaque, .. } = outcome {
            return Err(strobe_bus::Error::Refused {
                topic,
                opaque,
                reason,
            }
            .into());
        }
    }
    if producer.under_way() > 0 {
        return Err(strobe_bus::Error::TimedOut {
            doing: "publishing stack schemas",
            seconds: ACKNOWLEDGED_WITHIN.as_secs(),
        }
        .into());
    }
    for (name, file) in changes {
        let detail = match file {
            Some(file) => format!(
                "version {}, {}",
                file.version,
                if file.enabled { "enabled" } else { "to be included" }
            ),
            None => "taken out of force".to_owned(),
        };
        changed(
            &bus,
            AuditAction::Configure,
            &StackSchemaFile::key(name),
            "",
            &detail,
        );
    }
    Ok(())
}

fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| "unknown".into())
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
