//! What an operator could fix.

/// Why the processor cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ProcessorError {
    /// The configuration names no symbol store.
    #[error("`processor.symbol_store` is empty: name the folder that the agents put binaries into")]
    NoSymbolStore,
    /// A limit of the configuration is zero.
    #[error("`processor.{0}` is 0: give it a value, or leave it out for the default")]
    ZeroLimit(&'static str),
    /// The symbol store.
    #[error(transparent)]
    Store(#[from] strobe_store::StoreError),
    /// The symbolizer's child process, or the store as it sees it.
    #[error(transparent)]
    Symbols(#[from] strobe_symbols::SymbolsError),
    /// The stack schemas on the bus.
    #[error(transparent)]
    Schemas(#[from] crate::schemas::SchemasError),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] strobe_bus::Error),
    /// A position cannot be committed.
    #[error(transparent)]
    Commit(strobe_bus::CommitError),
    /// A plan cannot be put on the wire.
    #[error(transparent)]
    Encode(#[from] strobe_event::codec::EncodeError),
    /// A trigger rule that cannot be meant.
    #[error("{0}")]
    Rule(String),
    /// There are rules, and nothing that signs what they ask for.
    #[error(
        "`trigger.key` is empty: hosts run nothing unsigned; `ssh-keygen -t ed25519 -N '' -f FILE` makes a key"
    )]
    NoTriggerKey,
    /// The key of the trigger, or what it is to sign.
    #[error(transparent)]
    Signing(#[from] strobe_signing::SigningError),
    /// The tuner's state cannot be written down.
    #[error("the tuner's state cannot be written down: {0}")]
    State(serde_json::Error),
}

impl ProcessorError {
    /// Returns whether the same may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Symbols(error) => error.is_transient(),
            Self::Bus(error) => error.is_transient(),
            _ => false,
        }
    }
}
