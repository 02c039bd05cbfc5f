//! What is wrong with a file or a key, which its owner mends, and why a signature was refused, which is an answer.

use std::path::PathBuf;

use crate::grant::Action;

/// A file or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Somebody else could write the file of signers, or read a private key.
    #[error("{path} is {mode:o}: {remedy}")]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its mode's permission bits.
        mode: u32,
        /// The command that closes it.
        remedy: &'static str,
    },
    /// The file is larger than any honest one.
    #[error("{path} has {bytes} bytes, of at most {limit}")]
    TooBig {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The file of signers does not say what it must.
    #[error("{path}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its place.
        message: String,
    },
    /// A service's private key is none, is of another kind, or has a passphrase.
    #[error("{path} cannot sign: {message}; make one with `ssh-keygen -t ed25519 -N '' -f FILE`")]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// `ssh-keygen` did not sign.
    #[error("`ssh-keygen -Y sign` with {path}: {message}")]
    Keygen {
        /// The key that it was given.
        path: PathBuf,
        /// The last that it said.
        message: String,
    },
    /// More bytes than one signature may be over.
    #[error("{bytes} bytes are too many to sign, of at most {}", crate::PAYLOAD_BYTES_MAX)]
    Payload {
        /// How many there are.
        bytes: usize,
    },
}

/// Why something that asks to be done is not done. An answer, which is recorded; nothing of it is an operator's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody may: the host has no file of signers, or an unusable one.
    #[error("this host takes no requests: {0}")]
    Closed(String),
    /// There is no signature.
    #[error("it is not signed")]
    Unsigned,
    /// Payload or signature is larger than any honest one.
    #[error("it is oversized: {bytes} bytes, of at most {limit}")]
    Oversized {
        /// How many bytes it has.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The signature is not one that can be read.
    #[error("its signature is not in the SSH signature format")]
    Malformed,
    /// The signature was made for something else.
    #[error("it was signed for `{found}`, not for `{wanted}`")]
    Namespace {
        /// What it was made for, cut to a bound.
        found: String,
        /// What it had to be made for.
        wanted: &'static str,
    },
    /// Nobody in the file of signers has this key.
    #[error("the key {fingerprint} is not in the file of signers")]
    UnknownKey {
        /// The key, as `ssh-keygen -l` shows it.
        fingerprint: String,
    },
    /// The bytes are not those that were signed.
    #[error("the signature of `{principal}` does not fit these bytes")]
    Forged {
        /// Whose key it claims.
        principal: String,
    },
    /// All entries of the key are over.
    #[error("the entry of `{principal}` in the file of signers has expired")]
    Expired {
        /// Whose it is.
        principal: String,
    },
    /// The signer is known, and may not do this.
    #[error("`{principal}` may not {action} `{service}` with profiler `{profiler}`")]
    NotGranted {
        /// Who asked.
        principal: String,
        /// What for.
        action: Action,
        /// On which service.
        service: String,
        /// By which profiler.
        profiler: String,
    },
}

impl Refusal {
    /// Returns the reason as one word, for counters and for the audit's columns.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Closed(_) => "closed",
            Self::Unsigned => "unsigned",
            Self::Oversized { .. } => "oversized",
            Self::Malformed => "malformed",
            Self::Namespace { .. } => "namespace",
            Self::UnknownKey { .. } => "unknown_key",
            Self::Forged { .. } => "forged",
            Self::Expired { .. } => "signer_expired",
            Self::NotGranted { .. } => "not_granted",
        }
    }
}
