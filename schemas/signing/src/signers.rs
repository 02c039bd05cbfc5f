//! The file of allowed signers: read, proved, asked.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use ssh_key::{Algorithm, HashAlg, LineEnding, PublicKey, SshSig, public::KeyData};

use crate::error::{Refusal, SigningError};
use crate::grant::{Action, Grant};
use crate::{Namespace, PAYLOAD_BYTES_MAX, SIGNATURE_BYTES_MAX};

/// Entries of one file. A company with a thousand teams has a few per team.
pub const SIGNER_ENTRIES_MAX: usize = 10_000;

/// Bytes of one file: some 400 per entry.
pub const SIGNERS_BYTES_MAX: u64 = 4 << 20;

/// Bytes of a foreign namespace that a refusal repeats: what strangers wrote goes into logs and tables.
const NAMESPACE_SHOWN_BYTES: usize = 64;

/// Whose signatures count, and for what.
#[derive(Debug)]
pub struct Signers {
    entries: Vec<Entry>,
    /// Why nobody counts, where that is so.
    closed: Option<String>,
}

#[derive(Debug)]
struct Entry {
    principal: String,
    key: PublicKey,
    valid_until: Option<SystemTime>,
    grant: Grant,
}

/// Somebody whose signature fits, and what they may do.
#[derive(Debug)]
pub struct Verified<'a> {
    principal: &'a str,
    grants: Vec<&'a Grant>,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    signer: Vec<WrittenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEntry {
    principal: String,
    key: String,
    may: Vec<Action>,
    #[serde(default = "all")]
    services: Vec<String>,
    #[serde(default = "all")]
    profilers: Vec<String>,
    valid_until: Option<String>,
}

fn all() -> Vec<String> {
    vec!["*".into()]
}

impl Signers {
    /// Returns the signers of nobody: each request is refused with this reason.
    #[must_use]
    pub fn none(reason: impl Into<String>) -> Self {
        Self {
            entries: Vec::new(),
            closed: Some(reason.into()),
        }
    }

    /// Reads and proves a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, that others than its owner may write, or that does not say what it must.
    pub fn load(path: &Path) -> Result<Self, SigningError> {
        let unreadable = |source| SigningError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            let remedy = "others could add themselves to it; close it with `chmod go-w`";
            return Err(SigningError::TooOpen {
                path: path.to_owned(),
                mode,
                remedy,
            });
        }
        let too_big = |bytes| SigningError::TooBig {
            path: path.to_owned(),
            bytes,
            limit: SIGNERS_BYTES_MAX,
        };
        if metadata.len() > SIGNERS_BYTES_MAX {
            return Err(too_big(metadata.len()));
        }
        let mut text = String::new();
        file.take(SIGNERS_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        if text.len() as u64 > SIGNERS_BYTES_MAX {
            return Err(too_big(text.len() as u64));
        }
        Self::parse(&text, path)
    }

    /// Proves the text of a file; `path` is for messages.
    ///
    /// # Errors
    ///
    /// Text that does not say what it must, with the place.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SigningError> {
        let malformed = |message: String| SigningError::Malformed {
            path: PathBuf::from(path),
            message,
        };
        let written: Written =
            toml::from_str(text).map_err(|e| malformed(e.to_string().trim_end().to_owned()))?;
        if written.signer.len() > SIGNER_ENTRIES_MAX {
            return Err(malformed(format!(
                "{} entries, of at most {SIGNER_ENTRIES_MAX}",
                written.signer.len()
            )));
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(written.signer.len());
        for (index, entry) in written.signer.into_iter().enumerate() {
            let principal = entry.principal.clone();
            let entry = Entry::prove(entry)
                .map_err(|message| malformed(format!("entry {} (`{principal}`): {message}", index + 1)))?;
            // The audit names principals: one key must not be two people.
            let other =
                |e: &&Entry| e.key.key_data() == entry.key.key_data() && e.principal != entry.principal;
            if let Some(other) = entries.iter().find(other) {
                return Err(malformed(format!(
                    "`{}` and `{}` have the same key: give each a key of their own",
                    other.principal, entry.principal
                )));
            }
            entries.push(entry);
        }
        let closed = entries
            .is_empty()
            .then(|| format!("{} names no signer", path.display()));
        Ok(Self { entries, closed })
    }

    /// Returns who may sign, each with the fingerprint of the key, in the file's order.
    pub fn principals(&self) -> impl Iterator<Item = (&str, String)> {
        self.entries.iter().map(|e| {
            (
                e.principal.as_str(),
                e.key.fingerprint(HashAlg::Sha256).to_string(),
            )
        })
    }

    /// Returns who signed exactly these bytes for this purpose. `signature` is the armored text that `ssh-keygen -Y sign` writes.
    ///
    /// # Errors
    ///
    /// Why it does not count.
    pub fn verify(
        &self,
        namespace: Namespace,
        payload: &[u8],
        signature: &[u8],
        now: SystemTime,
    ) -> Result<Verified<'_>, Refusal> {
        if let Some(reason) = &self.closed {
            return Err(Refusal::Closed(reason.clone()));
        }
        for (bytes, limit) in [
            (payload.len(), PAYLOAD_BYTES_MAX),
            (signature.len(), SIGNATURE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(Refusal::Oversized { bytes, limit });
            }
        }
        if signature.is_empty() {
            return Err(Refusal::Unsigned);
        }
        let signature = decode(signature).ok_or(Refusal::Malformed)?;
        if signature.namespace() != namespace.as_str() {
            let found = signature
                .namespace()
                .chars()
                .filter(|c| !c.is_control())
                .take(NAMESPACE_SHOWN_BYTES);
            return Err(Refusal::Namespace {
                found: found.collect(),
                wanted: namespace.as_str(),
            });
        }
        let of_key: Vec<&Entry> = self
            .entries
            .iter()
            .filter(|e| e.key.key_data() == signature.public_key())
            .collect();
        let Some(first) = of_key.first() else {
            return Err(Refusal::UnknownKey {
                fingerprint: fingerprint(signature.public_key()),
            });
        };
        if first.key.verify(namespace.as_str(), payload, &signature).is_err() {
            return Err(Refusal::Forged {
                principal: first.principal.clone(),
            });
        }
        // Only after the signature fits: what a key may do is no stranger's business.
        let grants: Vec<&Grant> = of_key
            .iter()
            .filter(|e| e.valid_until.is_none_or(|end| now < end))
            .map(|e| &e.grant)
            .collect();
        if grants.is_empty() {
            return Err(Refusal::Expired {
                principal: first.principal.clone(),
            });
        }
        Ok(Verified {
            principal: &first.principal,
            grants,
        })
    }
}

impl Verified<'_> {
    /// Returns the name that the file gives to the key.
    #[must_use]
    pub fn principal(&self) -> &str {
        self.principal
    }

    /// Checks that the signer may do this. A request for whole hosts asks for the service `*`.
    ///
    /// # Errors
    ///
    /// That they may not.
    pub fn may(&self, action: Action, service: &str, profiler: &str) -> Result<(), Refusal> {
        if self
            .grants
            .iter()
            .any(|grant| grant.allows(action, service, profiler))
        {
            return Ok(());
        }
        Err(Refusal::NotGranted {
            principal: self.principal.to_owned(),
            action,
            service: service.to_owned(),
            profiler: profiler.to_owned(),
        })
    }
}

impl Entry {
    fn prove(written: WrittenEntry) -> Result<Self, String> {
        if written.principal.is_empty() || written.principal.chars().any(char::is_control) {
            return Err("`principal` is empty or has control characters: name a person or a service".into());
        }
        let key = PublicKey::from_openssh(&written.key).map_err(|e| {
            format!("`key` is no public key in OpenSSH's form (the line of a .pub file): {e}")
        })?;
        if key.algorithm() != Algorithm::Ed25519 {
            return Err(format!(
                "`key` is of type {}: only ssh-ed25519 is taken; make one with `ssh-keygen -t ed25519`",
                key.algorithm()
            ));
        }
        let valid_until = written
            .valid_until
            .map(|end| {
                humantime::parse_rfc3339(&end)
                    .map_err(|_| format!("`valid_until`: `{end}` is no time like 2030-01-31T00:00:00Z"))
            })
            .transpose()?;
        let grant = Grant::new(written.may, &written.services, &written.profilers)?;
        Ok(Self {
            principal: written.principal,
            key,
            valid_until,
            grant,
        })
    }
}

/// Reads an armored signature. What is not exactly what its own fields make when written again is none: the library reads past some
/// wrong lengths inside, and one signature should have one form.
fn decode(armored: &[u8]) -> Option<SshSig> {
    let signature = SshSig::from_pem(armored)
        .ok()
        .filter(|s| s.version() == SshSig::VERSION)?;
    let again = signature.to_pem(LineEnding::LF).ok()?;
    let letters = |text: &[u8]| {
        text.iter()
            .copied()
            .filter(|b| !b.is_ascii_whitespace())
            .collect::<Vec<u8>>()
    };
    (letters(again.as_bytes()) == letters(armored)).then_some(signature)
}

fn fingerprint(key: &KeyData) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}
