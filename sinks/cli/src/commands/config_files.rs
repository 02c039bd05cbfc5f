//! `strobe config validate|diff|apply|show`: what is desired of the fleet, as files in a repository.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngCore;
use serde_json::json;
use strobe_bus::{
    BusSettings, Headers, Outcome, Outgoing, ResendingProducer, Topic, WindowLimits, compacted,
};
use strobe_config::{FILES_MAX, Fleet};
use strobe_event::config::{CONFIG_KEY, CONFIG_VALID_US_MAX};
use strobe_event::{AuditAction, ConfigFile, ConfigSet, SignedConfig, codec};
use strobe_signing::{Namespace, sign_with_ssh_keygen};

use crate::asking::{key_of, no_key, who};
use crate::auditing::changed;
use crate::config::Config;
use crate::error::CliError;
use crate::render::{self, Output};
use crate::times::{now_us, shown};

/// How long the bus may take to acknowledge what is applied.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);
/// How the files end that are read.
const ENDING: &str = "toml";

/// How a configuration is put in force.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  strobe config apply profiling/ --why 'more of checkout'\n  strobe config apply profiling/ --dry-run"
)]
pub struct Apply {
    /// The folder with the files.
    folder: PathBuf,
    /// Why, for whoever looks into it later.
    #[arg(long, default_value = "")]
    why: String,
    /// How long it stays in force unless it is applied again: a pipeline applies it more often.
    #[arg(long, default_value = "90d", value_parser = humantime::parse_duration)]
    valid_for: Duration,
    /// The SSH key to sign with; else `ask.key` of the configuration, else ~/.ssh/id_ed25519.
    #[arg(long, env = "STROBE_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Only say what would change.
    #[arg(long)]
    dry_run: bool,
}

/// Proves the files of a folder, without asking anybody.
///
/// # Errors
/// [`CliError::Config`] with all that is wrong, a line each, with file and line.
pub fn validate(folder: &Path) -> Result<(), CliError> {
    let (files, fleet) = read(folder)?;
    render::say(format!(
        "{} files: ok, {} entries",
        files.len(),
        fleet.sentences().len()
    ))
}

/// Says what would change; exit code 1 where something would, as `diff` does.
///
/// # Errors
/// As [`validate`]; [`CliError::Said`] where there is a difference.
pub fn diff(config: &Config, folder: &Path) -> Result<(), CliError> {
    let (_, fleet) = read(folder)?;
    let lines = differences(&config.bus()?, &fleet)?;
    if lines.is_empty() {
        return render::say("no difference");
    }
    render::say(render::plain(&lines.join("\n")))?;
    Err(CliError::Said)
}

/// Signs the files of a folder and puts them on the bus, whole.
///
/// # Errors
/// As [`validate`], and [`CliError::Bus`].
pub fn apply(config: &Config, args: &Apply) -> Result<(), CliError> {
    let (files, fleet) = read(&args.folder)?;
    let bus = config.bus()?;
    let lines = differences(&bus, &fleet)?;
    if !lines.is_empty() {
        render::say(render::plain(&lines.join("\n")))?;
    }
    if args.dry_run {
        return render::say(format!("{} changes; nothing was applied", lines.len()));
    }
    let valid_us = args.valid_for.as_micros();
    if valid_us == 0 || valid_us > u128::from(CONFIG_VALID_US_MAX) {
        return Err(CliError::Usage(
            "--valid-for must be above 0 and at most 400d".into(),
        ));
    }
    let made_us = now_us();
    let mut id = [0; 16];
    rand::rng().fill_bytes(&mut id);
    let set = ConfigSet {
        id: strobe_event::ConfigId(id),
        made_us,
        until_us: made_us.saturating_add(valid_us as u64),
        by: who(),
        why: args.why.clone(),
        files,
    };
    let unusable = |error: &dyn std::fmt::Display| CliError::Usage(error.to_string());
    let payload = codec::encode_framed(&set).map_err(|error| unusable(&error))?;
    let key = key_of(config, args.key.as_deref()).ok_or_else(no_key)?;
    let signature = sign_with_ssh_keygen(&key, Namespace::Config, &payload)?;
    let signed = SignedConfig {
        payload,
        signature: signature.into_bytes(),
    };
    publish(
        &bus,
        codec::encode_framed(&signed).map_err(|error| unusable(&error))?,
    )?;
    let detail = format!("configuration {}, {} changes: {}", set.id, lines.len(), args.why);
    changed(&bus, AuditAction::Configure, CONFIG_KEY, "", &detail);
    render::say(format!(
        "configuration {} is on the bus, valid until {}: {} changes\nwhoever may not configure this is refused by the tuner: `strobe audit \
         --action configure` says so",
        set.id,
        shown(set.until_us),
        lines.len()
    ))
}

/// Shows what is on the bus.
///
/// # Errors
/// [`CliError`].
pub fn show(config: &Config, output: Output) -> Result<(), CliError> {
    let Some(set) = on_bus(&config.bus()?)? else {
        return Err(CliError::Missing(
            "no configuration is on the bus: `strobe config apply DIR` puts one there; until then the defaults are in force".into(),
        ));
    };
    let fleet = Fleet::read(&set.files);
    let sentences = fleet.as_ref().map(Fleet::sentences).unwrap_or_default();
    if output == Output::Json {
        let files: serde_json::Map<_, _> = set
            .files
            .iter()
            .map(|file| (file.name.clone(), json!(file.text)))
            .collect();
        return render::json(&json!({
            "id": set.id.to_string(), "made": shown(set.made_us), "until": shown(set.until_us), "by": set.by, "why": set.why,
            "files": files, "says": sentences,
            "errors": fleet.err().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>(),
        }));
    }
    let left_us = set.until_us.saturating_sub(now_us());
    let mut lines = vec![
        format!("configuration {}", set.id),
        format!("made    {} by {} (as they say)", shown(set.made_us), set.by),
        format!(
            "until   {}{}",
            shown(set.until_us),
            if left_us == 0 {
                ": EXPIRED, and in force nowhere"
            } else {
                ""
            }
        ),
    ];
    if !set.why.is_empty() {
        lines.push(format!("because {}", set.why));
    }
    lines.push(String::new());
    lines.extend(sentences);
    lines.extend(fleet.err().into_iter().flatten().map(|error| error.to_string()));
    render::say(render::plain(&lines.join("\n")))
}

/// Reads a folder's files, sorted by name, and those of folders in it; proves them together.
fn read(folder: &Path) -> Result<(Vec<ConfigFile>, Fleet), CliError> {
    let mut files = Vec::new();
    collect(folder, folder, &mut files)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    if files.is_empty() {
        return Err(CliError::Usage(format!(
            "{} holds no file that ends with .{ENDING}",
            folder.display()
        )));
    }
    match Fleet::read(&files) {
        Ok(fleet) => Ok((files, fleet)),
        Err(errors) => {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Err(CliError::Config(lines.join("\n")))
        }
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<ConfigFile>) -> Result<(), CliError> {
    let failed = |what: &Path| {
        let what = what.display().to_string();
        move |source| CliError::Io {
            action: "read",
            what,
            source,
        }
    };
    for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed(folder))?);
        // Links are not followed: a folder may lead back into itself. `.git` and its like are not read.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|end| end == ENDING) {
            let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            files.push(ConfigFile { name, text });
        }
        if files.len() > FILES_MAX {
            break;
        }
    }
    Ok(())
}

/// Returns what is on the bus, whoever signed it; nothing where nothing is.
fn on_bus(bus: &BusSettings) -> Result<Option<ConfigSet>, CliError> {
    let table = compacted::read_all(bus, &bus.topic(Topic::Config))?;
    let Some(value) = table.get(CONFIG_KEY.as_bytes()) else {
        return Ok(None);
    };
    let unreadable = |error: codec::DecodeError| {
        CliError::Unwell(format!(
            "the configuration on the bus cannot be read: {error}; what was in force stays so, and `strobe config apply` mends it"
        ))
    };
    let signed: SignedConfig = codec::decode_framed(value).map_err(unreadable)?;
    Ok(Some(codec::decode_framed(&signed.payload).map_err(unreadable)?))
}

/// Returns what differs from what is on the bus, a line each.
fn differences(bus: &BusSettings, fleet: &Fleet) -> Result<Vec<String>, CliError> {
    let before = match on_bus(bus) {
        // What cannot be read says nothing: everything is new, and to apply it is the remedy.
        Err(CliError::Unwell(why)) => {
            eprintln!("strobe: {why}");
            None
        }
        // What has expired is not in force, even where it says the same.
        other => other?
            .filter(|set| set.until_us > now_us())
            .and_then(|set| Fleet::read(&set.files).ok()),
    };
    let before = before.map(|before| before.sentences()).unwrap_or_default();
    Ok(difference(&before, &fleet.sentences()))
}

fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|line| !after.contains(line));
    let new = after.iter().filter(|line| !before.contains(line));
    let gone = gone.map(|line| format!("- {line}"));
    gone.chain(new.map(|line| format!("+ {line}"))).collect()
}

fn publish(bus: &BusSettings, value: Vec<u8>) -> Result<(), CliError> {
    let topic = bus.topic(Topic::Config);
    let message = Outgoing {
        topic: topic.as_str().into(),
        key: Some(CONFIG_KEY.into()),
        headers: Headers::new(),
        payload: Some(value.into()),
    };
    let mut producer = ResendingProducer::new(bus, WindowLimits::default())?;
    if producer.push(1, message).is_err() {
        return Err(CliError::Usage(
            "the configuration is too large for one message of 1 MiB".into(),
        ));
    }
    match producer.flush(ACKNOWLEDGED_WITHIN).first() {
        Some(Outcome::Acknowledged { .. }) => Ok(()),
        Some(Outcome::Refused { reason, opaque, .. }) => Err(strobe_bus::Error::Refused {
            topic,
            opaque: *opaque,
            reason: reason.clone(),
        }
        .into()),
        None => Err(strobe_bus::Error::TimedOut {
            doing: "applying the configuration",
            seconds: ACKNOWLEDGED_WITHIN.as_secs(),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a difference is what came and what went, and nothing for what stays.
    #[test]
    fn a_difference_is_what_came_and_what_went() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(difference(&lines("a b c"), &lines("b c d")), ["- a", "+ d"]);
        assert!(difference(&lines("a b"), &lines("b a")).is_empty());
    }
}
