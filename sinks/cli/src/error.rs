//! What a person at the command line could fix.

use std::path::PathBuf;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    ConfigRead {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The configuration is not right.
    #[error("{0}")]
    Config(String),
    /// What was typed does not make sense.
    #[error("{0}")]
    Usage(String),
    /// The store.
    #[error(transparent)]
    Explore(#[from] strobe_explore::Error),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] strobe_bus::Error),
    /// The webhook.
    #[error(transparent)]
    Alerts(#[from] strobe_alerts::AlertsError),
    /// A signature.
    #[error(transparent)]
    Signing(#[from] strobe_signing::SigningError),
    /// The processor.
    #[error(transparent)]
    Processor(#[from] strobe_processor::ProcessorError),
    /// Stack schemas that cannot be in force together.
    #[error(transparent)]
    Schemas(#[from] strobe_processor::schemas::SchemasError),
    /// The sink.
    #[error(transparent)]
    Sink(#[from] strobe_sink::SinkError),
    /// An endpoint for metrics.
    #[error(transparent)]
    Telemetry(#[from] strobe_telemetry::TelemetryError),
    /// A part is not well.
    #[error("{0}")]
    Unwell(String),
    /// An export.
    #[error(transparent)]
    Export(#[from] strobe_export::ExportError),
    /// Reading or writing.
    #[error("cannot {action} {what}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not everything was stored in time.
    #[error("not everything was stored within {0:?}: `strobe status` shows what is under way")]
    NotStored(std::time::Duration),
    /// Nothing is stored of what was asked for.
    #[error(
        "nothing is stored of {since} to {until}: choose another range or selection, or ask `strobe status`"
    )]
    NothingStored {
        /// Start of the range, as people read it.
        since: String,
        /// Its end.
        until: String,
    },
    /// Slots were planned, and none of them ran: nothing is known, which is not 0.
    #[error(
        "`{service}` was not sampled from {since} to {until}, which does not say that it took nothing: of the slots that {hosts} planned for it none \
         ran; ask for a longer range, or `strobe sampling explain {service}`"
    )]
    NotSampled {
        /// The service.
        service: String,
        /// Its hosts, counted.
        hosts: String,
        /// Start of the range, as people read it.
        since: String,
        /// Its end.
        until: String,
    },
    /// Something that was named is not there.
    #[error("{0}")]
    Missing(String),
    /// The command has already said what is wrong.
    #[error("something does not work")]
    Said,
}

impl CliError {
    /// Returns whether the command has already told the person.
    pub fn is_said(&self) -> bool {
        matches!(self, Self::Said)
    }

    /// Returns what to do about it, where the message does not say.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Explore(error) if error.is_transient() => {
                Some("is it running, and is `clickhouse.url` right? `strobe doctor` says more")
            }
            Self::Explore(error) if error.is_unauthorized() => Some(
                "does the configuration name the user and its password file? See `[clickhouse]`, --config and STROBE_CONFIG",
            ),
            _ => None,
        }
    }

    /// Returns the exit code: see `strobe --help`.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::Schemas(_)
            | Self::Processor(strobe_processor::ProcessorError::Schemas(_))
            | Self::Explore(strobe_explore::Error::Selection(_)) => 2,
            Self::NothingStored { .. } | Self::NotSampled { .. } => 3,
            Self::ConfigRead { .. }
            | Self::Config(_)
            | Self::Alerts(strobe_alerts::AlertsError::Address(_)) => 78,
            Self::Explore(
                strobe_explore::Error::Setting { .. } | strobe_explore::Error::PasswordFile { .. },
            )
            | Self::Bus(strobe_bus::Error::Config(_))
            | Self::Processor(
                strobe_processor::ProcessorError::NoSymbolStore
                | strobe_processor::ProcessorError::NoTriggerKey
                | strobe_processor::ProcessorError::Rule(_)
                | strobe_processor::ProcessorError::Signing(_)
                | strobe_processor::ProcessorError::ZeroLimit(_),
            )
            | Self::Telemetry(strobe_telemetry::TelemetryError::Address { .. })
            | Self::Sink(strobe_sink::SinkError::Setting { .. }) => 78,
            Self::Explore(error) if error.is_transient() => 69,
            Self::Bus(strobe_bus::Error::Unreachable { .. })
            | Self::Processor(strobe_processor::ProcessorError::Bus(strobe_bus::Error::Unreachable {
                ..
            })) => 69,
            _ => 1,
        }
    }
}

/// Returns an error and its causes on one line, without what is said twice.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    crate::render::plain(&text)
}
