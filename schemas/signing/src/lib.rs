//! Who may ask for what: signatures over exact bytes, and the file that says whose signatures count.
//!
//! Whoever can write to the bus can write a request. So what a host is asked to do, and how it is configured, is signed: by the
//! Ed25519 keys that people already have for SSH, in the format of `ssh-keygen -Y sign` (OpenSSH's PROTOCOL.sshsig), over the bytes
//! exactly as they travel. A stolen password of the bus alone starts nothing.
//!
//! * [`Signers`] is the file of allowed signers on each host, as proved: which key is which principal, and what it may do to which
//!   services with which profilers. No file means that nobody may: a host that was not told trusts nobody.
//! * A signature is made for one [`Namespace`] and is worth nothing in another, so that a signed request can never be passed off as
//!   configuration.
//! * Who signed ([`Signers::verify`]) and what they may do ([`Verified::may`]) are two questions: the payload must be authentic before
//!   anybody reads from it what it asks for.
//! * Replays and expiry are the payload's affair: it carries an id and an end, which the reader of the payload checks.
//!
//! A key is never read by more than its owner: people sign by `ssh-keygen` itself ([`sign_with_ssh_keygen`]), with their passphrases
//! and agents; services have a key without passphrase of their own ([`SigningKey`]).

mod error;
mod grant;
mod key;
mod keygen;
mod signers;

pub use error::{Refusal, SigningError};
pub use grant::Action;
pub use key::SigningKey;
pub use keygen::sign_with_ssh_keygen;
pub use signers::{SIGNER_ENTRIES_MAX, SIGNERS_BYTES_MAX, Signers, Verified};

/// Bytes that one signature may be over. A configuration file of 10,000 lines has about half of it; Kafka's default message is as big.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Bytes of a signature in its armored form. An Ed25519 one has about 300.
pub const SIGNATURE_BYTES_MAX: usize = 4 << 10;

/// What a signature is for. It is part of what is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// Requests to profile, their cancellations, and overrides of limits.
    Request,
    /// Configuration of profilers, services and trigger rules.
    Config,
}

impl Namespace {
    /// Returns the namespace as `ssh-keygen -Y sign -n` takes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request@strobe",
            Self::Config => "config@strobe",
        }
    }
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
